#include "pull/disk.h"

#include "os/file.h"
#include "pull/choice.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int fail(struct err *e, const char *path, const char *what) {
    int code = errno == ENOSPC || errno == EDQUOT ? ERR_LIMIT : ERR_IO;
    return err_set(e, code, "%.300s: %s: %s", path, what, strerror(errno));
}

int disk_paths(struct disk_paths *p, const char *folder, const char *path, struct err *e) {
    char name[LIMIT_PULL_PATH + 32];
    int rc = file_join(p->whole, sizeof p->whole, folder, path, e);
    snprintf(name, sizeof name, ".loom-pull/%s.part", path);
    if (!rc) rc = file_join(p->part, sizeof p->part, folder, name, e);
    snprintf(name, sizeof name, ".loom-pull/%s.state", path);
    if (!rc) rc = file_join(p->state, sizeof p->state, folder, name, e);
    return rc;
}

int disk_make_folder_of(const char *path, struct err *e) {
    char folder[LIMIT_PATH];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return ERR_OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return file_mkdir_all(folder, 0755, e);
}

int disk_check_room(const char *folder, uint64_t need_bytes, struct err *e) {
    struct statvfs v;
    if (statvfs(folder, &v)) return fail(e, folder, "statvfs");
    uint64_t free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    if (need_bytes <= free_bytes) return ERR_OK;
    char has[24], needs[24];
    choice_size_text(free_bytes, has, sizeof has);
    choice_size_text(need_bytes, needs, sizeof needs);
    return err_set(e, ERR_LIMIT, "%.300s: the disk has %s free, and %s are needed", folder, has, needs);
}

int disk_open_part(const char *path, uint64_t size_bytes, int *fd, struct err *e) {
    struct stat st;
    int rc = disk_make_folder_of(path, e);
    if (rc) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (*fd < 0) return fail(e, path, "open");
    rc = fstat(*fd, &st) ? fail(e, path, "stat") : ERR_OK;
    bool fresh = !rc && (uint64_t)st.st_size != size_bytes;
    if (!rc && fresh && ftruncate(*fd, 0)) rc = fail(e, path, "truncate");
    // The room is taken now, where the file system can do that; the length is set in any case.
    if (!rc && fresh && size_bytes && fallocate(*fd, 0, 0, (off_t)size_bytes) && errno != EOPNOTSUPP)
        rc = fail(e, path, "allocate");
    if (!rc && fresh && ftruncate(*fd, (off_t)size_bytes)) rc = fail(e, path, "truncate");
    if (rc) {
        close(*fd);
        unlink(path);
        *fd = -1;
    }
    return rc;
}

uint64_t disk_allocated(const char *path) {
    struct stat st;
    return stat(path, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}

int disk_write(int fd, const char *path, const void *data, size_t len_bytes, uint64_t at, struct err *e) {
    const char *p = data;
    while (len_bytes) {
        ssize_t n = pwrite(fd, p, len_bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(e, path, "write");
        p += n;
        at += (uint64_t)n;
        len_bytes -= (size_t)n;
    }
    return ERR_OK;
}

bool disk_look(const char *path, uint64_t *size_bytes, int64_t *mtime_ns) {
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return false;
    *size_bytes = (uint64_t)st.st_size;
    *mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return true;
}

bool disk_load_state(const struct disk_paths *p, const struct listing_file *want, struct state *s) {
    uint64_t size;
    int64_t mtime;
    return state_read(p->state, s) && s->size_bytes == want->size_bytes && digest_equal(&s->digest, &want->digest) &&
           (want->digest.kind != DIGEST_NONE || s->etag[0]) && disk_look(p->part, &size, &mtime) &&
           size == want->size_bytes;
}

void disk_forget(const char *folder, const struct disk_paths *p) {
    char at[LIMIT_PATH];
    unlink(p->part);
    unlink(p->state);
    snprintf(at, sizeof at, "%s", p->part);
    // ".loom-pull" itself stays: it holds the lock.
    size_t keep = strlen(folder) + strlen("/.loom-pull");
    for (char *slash; (slash = strrchr(at, '/')) && (size_t)(slash - at) > keep;) {
        *slash = 0;
        if (rmdir(at)) break;
    }
}

int disk_sync(const struct disk_paths *p, const struct state *s, struct err *e) {
    int fd = open(p->part, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail(e, p->part, "open");
    int rc = fdatasync(fd) ? fail(e, p->part, "fsync") : ERR_OK;
    close(fd);
    return rc ? rc : state_write(p->state, s, e);
}

// What the file hashes to is what the hub announced. ERR_FORMAT if not.
static int check_digest(struct disk *d, const struct disk_job *j, const char *path, struct err *e) {
    struct digest got;
    char want_text[DIGEST_TEXT_BYTES], got_text[DIGEST_TEXT_BYTES];
    if (j->want->digest.kind == DIGEST_NONE) return ERR_OK;
    int rc = digest_file(path, j->want->digest.kind, &d->stop, &got, e);
    if (rc || digest_equal(&got, &j->want->digest)) return rc;
    digest_text(&j->want->digest, want_text);
    digest_text(&got, got_text);
    return err_set(e, ERR_FORMAT, "%.200s: is not what the hub announced: expected %s, got %s; it was removed",
                   j->want->path, want_text, got_text);
}

static int place_part(struct disk *d, struct disk_job *j) {
    uint64_t size;
    int rc = check_digest(d, j, j->paths.part, &j->e);
    if (rc == ERR_FORMAT) {
        unlink(j->paths.part);
        unlink(j->paths.state);
    }
    if (rc) return rc;
    int fd = open(j->paths.part, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail(&j->e, j->paths.part, "open");
    rc = fsync(fd) ? fail(&j->e, j->paths.part, "fsync") : ERR_OK;
    close(fd);
    if (!rc) rc = disk_make_folder_of(j->paths.whole, &j->e);
    if (!rc && rename(j->paths.part, j->paths.whole)) rc = fail(&j->e, j->paths.whole, "rename");
    if (!rc && !disk_look(j->paths.whole, &size, &j->mtime_ns)) rc = fail(&j->e, j->paths.whole, "stat");
    return rc;
}

static void check_whole(struct disk *d, struct disk_job *j) {
    uint64_t size;
    j->rc = check_digest(d, j, j->paths.whole, &j->e);
    j->equal = !j->rc && disk_look(j->paths.whole, &size, &j->mtime_ns) && size == j->want->size_bytes;
    if (j->rc == ERR_FORMAT) j->rc = ERR_OK; // it is another file: not equal, and no failure
}

static void work(struct disk *d, struct queue *jobs) {
    struct disk_job *j;
    while ((j = queue_pop(jobs, QUEUE_FOREVER))) {
        if (j->task == DISK_SYNC)
            j->rc = disk_sync(&j->paths, j->state, &j->e);
        else if (atomic_load(&d->stop))
            j->rc = err_set(&j->e, ERR_CANCELLED, "stopped");
        else if (j->task == DISK_PLACE)
            j->rc = place_part(d, j);
        else
            check_whole(d, j);
        int rc = queue_push(&d->done, j);
        ASSERT(!rc, "there is room for all jobs of all files");
        curl_multi_wakeup(d->wake);
    }
}

static void run_syncs(void *arg) {
    struct disk *d = arg;
    work(d, &d->syncs);
}

static void run_hashes(void *arg) {
    struct disk *d = arg;
    work(d, &d->hashes);
}

int disk_start(struct disk *d, uint32_t n_files, CURLM *wake, struct err *e) {
    *d = (struct disk){.wake = wake};
    atomic_init(&d->stop, false);
    int rc = queue_init(&d->syncs, n_files + 1, false, e);
    if (rc) return rc;
    if ((rc = queue_init(&d->hashes, n_files + 1, false, e))) goto no_hashes;
    if ((rc = queue_init(&d->done, 2 * n_files + 2, false, e))) goto no_done;
    if ((rc = thread_start(&d->sync_thread, "pull-sync", run_syncs, d, e))) goto no_sync;
    if ((rc = thread_start(&d->hash_thread, "pull-hash", run_hashes, d, e))) goto no_hash;
    return ERR_OK;
no_hash:
    queue_close(&d->syncs);
    thread_join(&d->sync_thread);
no_sync:
    queue_fini(&d->done);
no_done:
    queue_fini(&d->hashes);
no_hashes:
    queue_fini(&d->syncs);
    return rc;
}

int disk_post(struct disk *d, enum disk_task task, uint32_t file, const struct disk_paths *paths,
              const struct listing_file *want, const struct state *state, struct err *e) {
    struct disk_job *j = malloc(sizeof *j);
    if (!j) return err_set(e, ERR_NOMEM, "%.200s: no memory", want->path);
    *j = (struct disk_job){.task = task, .file = file, .paths = *paths, .want = want};
    if (state) {
        j->state = malloc(sizeof *state);
        if (!j->state) {
            disk_job_free(j);
            return err_set(e, ERR_NOMEM, "%.200s: no memory", want->path);
        }
        *j->state = *state;
    }
    int rc = queue_push(task == DISK_SYNC ? &d->syncs : &d->hashes, j);
    ASSERT(!rc, "a file has one job of a kind");
    return ERR_OK;
}

struct disk_job *disk_result(struct disk *d) {
    return queue_pop(&d->done, 0);
}

void disk_job_free(struct disk_job *j) {
    free(j->state);
    free(j);
}

void disk_stop(struct disk *d) {
    atomic_store(&d->stop, true);
    queue_close(&d->syncs);
    queue_close(&d->hashes);
    thread_join(&d->sync_thread);
    thread_join(&d->hash_thread);
}

void disk_fini(struct disk *d) {
    for (struct disk_job *j; (j = disk_result(d));) disk_job_free(j);
    queue_fini(&d->done);
    queue_fini(&d->hashes);
    queue_fini(&d->syncs);
}
