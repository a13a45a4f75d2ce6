#include "os/file.h"

#include "base/limits.h"
#include <errno.h>
#include <ftw.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct err *e, const char *path, const char *what) {
    int code = errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : errno == ENOMEM ? ERR_NOMEM : ERR_IO;
    return err_set(e, code, "%s: %s: %s", path, what, strerror(errno));
}

// Opens a regular file; anything else (a folder, a pipe that would block us) is refused.
static int open_regular(const char *path, int *fd, size_t *len_bytes, struct err *e) {
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return fail(e, path, "open");
    int rc = fstat(f, &st) ? fail(e, path, "stat") : ERR_OK;
    if (!rc && !S_ISREG(st.st_mode)) rc = err_set(e, ERR_IO, "%s: is not a regular file", path);
    if (rc) {
        close(f);
        return rc;
    }
    *fd = f;
    *len_bytes = (size_t)st.st_size;
    return ERR_OK;
}

int file_read(const char *path, size_t max_bytes, char **data, size_t *len_bytes, struct err *e) {
    int fd;
    size_t size;
    int rc = open_regular(path, &fd, &size, e);
    if (rc) return rc;
    char *p = NULL;
    if (size > max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s: has %zu bytes, at most %zu are allowed", path, size, max_bytes);
    } else if (!(p = malloc(size + 1))) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for its %zu bytes", path, size);
    }
    size_t got = 0;
    while (!rc && got < size) {
        ssize_t n = read(fd, p + got, size - got);
        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            break; // it became shorter since the stat
        } else if (errno != EINTR) {
            rc = fail(e, path, "read");
        }
    }
    close(fd);
    if (rc) {
        free(p);
        return rc;
    }
    p[got] = 0;
    *data = p;
    *len_bytes = got;
    return ERR_OK;
}

int file_map_open(struct file_map *m, const char *path, struct err *e) {
    int fd;
    *m = (struct file_map){0};
    int rc = open_regular(path, &fd, &m->len_bytes, e);
    if (rc) return rc;
    if (m->len_bytes) {
        void *p = mmap(NULL, m->len_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = fail(e, path, "mmap");
            m->len_bytes = 0;
        } else {
            m->data = p;
        }
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->len_bytes);
    *m = (struct file_map){0};
}

void file_map_drop(const void *data, size_t len_bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;
    const uintptr_t end = ((uintptr_t)data + len_bytes + page - 1) / page * page;
    if (len_bytes) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static int write_all(int fd, const void *data, size_t len_bytes) {
    const char *p = data;
    while (len_bytes) {
        ssize_t n = write(fd, p, len_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        p += n;
        len_bytes -= (size_t)n;
    }
    return 0;
}

// A rename is on the disk only when the folder is.
static int sync_folder_of(const char *path, struct err *e) {
    char folder[LIMIT_PATH];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    snprintf(folder, sizeof folder, "%.*s", slash ? (n ? (int)n : 1) : 1, slash ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(e, folder, "open");
    int rc = fsync(fd) && errno != EINVAL ? fail(e, folder, "fsync") : ERR_OK; // some file systems have no such thing
    close(fd);
    return rc;
}

int file_write(const char *path, const void *data, size_t len_bytes, mode_t mode, struct err *e) {
    char temp[LIMIT_PATH];
    if (snprintf(temp, sizeof temp, "%s.XXXXXX", path) >= (int)sizeof temp)
        return err_set(e, ERR_LIMIT, "%s: the path is longer than %zu bytes", path, sizeof temp - 8);
    int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) return fail(e, path, "write");
    int rc = ERR_OK;
    if (fchmod(fd, mode) || write_all(fd, data, len_bytes) || fsync(fd)) rc = fail(e, path, "write");
    if (close(fd) && !rc) rc = fail(e, path, "close");
    if (!rc && rename(temp, path)) rc = fail(e, path, "rename");
    if (rc) {
        unlink(temp);
        return rc;
    }
    return sync_folder_of(path, e);
}

int file_mkdir_all(const char *path, mode_t mode, struct err *e) {
    char p[LIMIT_PATH];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof p) return err_set(e, ERR_LIMIT, "%s: the path has %zu bytes", path, n);
    memcpy(p, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (p[i] != '/' && p[i] != 0) continue;
        char c = p[i];
        p[i] = 0;
        int failed = mkdir(p, mode) ? errno : 0;
        if (failed && !file_is_dir(p)) {
            errno = failed; // what file_is_dir met is not the reason
            return fail(e, p, "mkdir");
        }
        p[i] = c;
    }
    return ERR_OK;
}

bool file_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int file_join(char *out, size_t out_bytes, const char *folder, const char *name, struct err *e) {
    size_t n = strlen(folder);
    const char *sep = n && folder[n - 1] != '/' ? "/" : "";
    int k = snprintf(out, out_bytes, "%s%s%s", folder, sep, name);
    if (k < 0 || (size_t)k >= out_bytes)
        return err_set(e, ERR_LIMIT, "%s/%s: the path is longer than %zu bytes", folder, name, out_bytes - 1);
    return ERR_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    (void)remove(path); // the others are still to be removed when this one stays
    return 0;
}

void file_remove_tree(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }
