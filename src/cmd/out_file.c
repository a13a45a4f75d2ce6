#include "cmd/out_file.h"

#include "os/file.h"
#include "os/random.h"
#include "weights/tensors.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16 }; // of a random name

static int is_there(const char *path, struct err *e) {
    return err_set(e, ERR_USAGE, "%s: is there already; --force replaces it", path);
}

static void folder_of(const char *path, char out[LIMIT_PATH]) {
    const char *slash = strrchr(path, '/');
    const int len = !slash ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(out, LIMIT_PATH, "%.*s", len, slash ? path : ".");
}

int out_file_check(const char *path, bool force, struct err *e) {
    struct stat st;
    const size_t len = strlen(path);
    if (len >= LIMIT_PATH) return err_set(e, ERR_USAGE, "%.64s...: the path is too long", path);
    if (len == 0 || path[len - 1] == '/') return err_set(e, ERR_USAGE, "%s: is no file's name", path);
    if (strcmp(path, "-") == 0)
        return err_set(e, ERR_USAGE, "-: a file is written, not stdout; ./- is one of that name");
    if (lstat(path, &st)) {
        char folder[LIMIT_PATH];
        if (errno != ENOENT) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        folder_of(path, folder);
        if (access(folder, W_OK | X_OK)) return err_set(e, ERR_IO, "%s: %s", folder, strerror(errno));
        return ERR_OK;
    }
    if (S_ISDIR(st.st_mode)) return err_set(e, ERR_USAGE, "%s: is a folder; a file is written", path);
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_USAGE, "%s: is no regular file and is not replaced", path);
    return force ? ERR_OK : is_there(path, e);
}

// ---- What is read

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_in_folder(const struct stat *out, const char *folder) {
    DIR *d = opendir(folder);
    bool found = false;
    for (const struct dirent *one; d && !found && (one = readdir(d));) {
        struct stat st;
        found = fstatat(dirfd(d), one->d_name, &st, 0) == 0 && is_same(out, &st);
    }
    if (d) closedir(d);
    return found;
}

int out_file_refuse_input(const char *path, const char *in, struct err *e) {
    struct stat out, st;
    char name[LIMIT_PATH];
    if (stat(path, &out)) return ERR_OK;
    bool found = stat(in, &st) == 0 && is_same(&out, &st);
    if (!found && file_is_dir(in)) found = is_in_folder(&out, in);
    for (uint32_t i = 0; !found && tensors_file_name(in, i, name); i++)
        found = stat(name, &st) == 0 && is_same(&out, &st);
    return found ? err_set(e, ERR_USAGE, "%s: is a file of %s, which is read; give the new file another name", path, in)
                 : ERR_OK;
}

// ---- The file

static int random_name(const char *path, char out[LIMIT_PATH], struct err *e) {
    char folder[LIMIT_PATH];
    folder_of(path, folder);
    const int n = snprintf(out, LIMIT_PATH, "%s/.loom-%016llx", folder, (unsigned long long)random_u64());
    return n < LIMIT_PATH ? ERR_OK : err_set(e, ERR_LIMIT, "%s: the path is too long", path);
}

int out_file_open(struct out_file *f, const char *path, bool force, struct err *e) {
    char folder[LIMIT_PATH];
    *f = (struct out_file){.path = path, .force = force, .fd = -1};
    int rc = out_file_check(path, force, e);
    if (rc) return rc;
    folder_of(path, folder);
    // Its name will be made from the one that it has under /proc.
    if (access("/proc/self/fd", X_OK) == 0) f->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    for (int i = 0; f->fd < 0 && i < TRIES; i++) {
        rc = random_name(path, f->temp, e);
        if (rc) return rc;
        f->fd = open(f->temp, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
        if (f->fd < 0 && errno != EEXIST) break;
    }
    if (f->fd >= 0) return ERR_OK;
    f->temp[0] = 0;
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static int link_as(const struct out_file *f, const char *name) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

// A file system that knows no exclusive renaming still makes files exclusively: an empty one holds the place.
static int rename_to_new(const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    const int fd = open(to, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    close(fd);
    return rename(from, to);
}

static int replace(struct out_file *f, struct err *e) {
    int rc = out_file_check(f->path, true, e);
    for (int i = 0; !rc && !f->temp[0] && i < TRIES; i++) {
        char name[LIMIT_PATH];
        rc = random_name(f->path, name, e);
        if (!rc && link_as(f, name) == 0)
            memcpy(f->temp, name, sizeof name);
        else if (!rc && (errno != EEXIST || i + 1 == TRIES))
            rc = err_set(e, ERR_IO, "%s: link: %s", f->path, strerror(errno));
    }
    if (!rc && rename(f->temp, f->path)) rc = err_set(e, ERR_IO, "%s: rename: %s", f->path, strerror(errno));
    return rc;
}

static int sync_folder(const char *path, struct err *e) {
    char folder[LIMIT_PATH];
    folder_of(path, folder);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // One that may be written but not read cannot be synced.
    if (fd < 0) return errno == EACCES ? ERR_OK : err_set(e, ERR_IO, "%s: %s", folder, strerror(errno));
    int rc = fsync(fd) && errno != EINVAL ? err_set(e, ERR_IO, "%s: fsync: %s", folder, strerror(errno)) : ERR_OK;
    close(fd);
    return rc;
}

int out_file_place(struct out_file *f, struct err *e) {
    int rc = ERR_OK;
    if (f->force)
        rc = replace(f, e);
    else if (f->temp[0] ? rename_to_new(f->temp, f->path) : link_as(f, f->path))
        rc = errno == EEXIST ? is_there(f->path, e) : err_set(e, ERR_IO, "%s: %s", f->path, strerror(errno));
    if (rc) return rc;
    f->temp[0] = 0;
    return sync_folder(f->path, e);
}

void out_file_close(struct out_file *f) {
    if (f->temp[0]) unlink(f->temp);
    if (f->fd >= 0) close(f->fd);
    f->temp[0] = 0;
    f->fd = -1;
}
