#include "pull/pull.h"

#include "os/file.h"
#include "pull/fetch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_POLL_MS = 200 };

// The file is the one that the path leads to: a pull that failed may have removed it while this one waited.
static bool is_still_there(int fd, const char *path) {
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// One pull works in a folder at a time; the others wait for it. *fd holds the lock until it is closed.
static int wait_for_lock(const struct pull_config *c, const char *own, int *fd, struct err *e) {
    char path[LIMIT_PATH];
    bool told = false;
    int rc = file_mkdir_all(own, 0755, e);
    if (!rc) rc = file_join(path, sizeof path, own, "lock", e);
    if (rc) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) return err_set(e, ERR_IO, "%.400s: open: %s", path, strerror(errno));
    while (!rc && flock(*fd, LOCK_EX | LOCK_NB)) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) {
            rc = err_set(e, ERR_IO, "%.400s: flock: %s", path, strerror(errno));
        } else {
            if (!told) c->note(c->arg, "another loom pull works in this folder: waiting for it");
            told = true;
            if (request_wait(c, LOCK_POLL_MS)) rc = err_set(e, ERR_CANCELLED, "stopped");
        }
    }
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

static int take_lock(const struct pull_config *c, const char *own, int *fd, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_join(path, sizeof path, own, "lock", e);
    for (bool held = false; !rc && !held;) {
        rc = wait_for_lock(c, own, fd, e);
        held = !rc && is_still_there(*fd, path);
        if (!rc && !held) close(*fd);
    }
    return rc;
}

// After a failure: no folder stays that holds nothing. The lock is still held.
static void drop_empty(const struct pull_config *c, const char *own, bool had_folder) {
    char path[LIMIT_PATH];
    if (file_join(path, sizeof path, own, "lock", NULL)) return;
    unlink(path);
    if (!rmdir(own) && !had_folder) rmdir(c->out);
}

static int fetch_locked(const struct hub *h, const struct listing *l, const struct choice *choice, const char *own,
                        struct pull_result *r, struct err *e) {
    char path[LIMIT_PATH];
    struct state_record record;
    struct err other;
    int rc = file_join(path, sizeof path, own, "record", e);
    if (rc) return rc;
    state_record_read(path, &record);
    rc = fetch_run(h, l, choice, &record, r, e);
    // Without a record the next pull hashes what it finds: it is no reason to fail.
    if (record.changed && state_record_write(path, &record, &other)) h->config->note(h->config->arg, other.text);
    state_record_fini(&record);
    return rc;
}

int pull_run(const struct pull_config *c, struct pull_result *r, struct err *e) {
    struct hub h;
    struct listing l = {0};
    struct choice choice = {0};
    char own[LIMIT_PATH];
    int fd = -1;
    *r = (struct pull_result){0};
    ASSERT(c->connections >= 1 && c->connections <= LIMIT_PULL_CONNECTIONS, "%u connections", c->connections);
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return err_set(e, ERR_NOMEM, "libcurl cannot be started");
    int rc = hub_init(&h, c, e);
    if (!rc && file_exists(c->out) && !file_is_dir(c->out))
        rc = err_set(e, ERR_USAGE, "%.400s: stands there and is no folder; --out names another", c->out);
    if (!rc) rc = hub_list(&h, &l, e);
    if (!rc) rc = choice_make(&l, c->repo, c->file, &choice, e);
    const bool had_folder = file_exists(c->out);
    if (!rc) rc = file_join(own, sizeof own, c->out, ".loom-pull", e);
    if (!rc) rc = take_lock(c, own, &fd, e);
    if (!rc) rc = fetch_locked(&h, &l, &choice, own, r, e);
    if (!rc && choice.opened)
        rc = file_join(r->path, sizeof r->path, c->out, choice.opened, e);
    else if (!rc)
        snprintf(r->path, sizeof r->path, "%.4000s", c->out);
    if (rc && fd >= 0) drop_empty(c, own, had_folder);
    if (fd >= 0) close(fd); // and with it the lock
    choice_fini(&choice);
    listing_fini(&l);
    curl_global_cleanup();
    return rc;
}
