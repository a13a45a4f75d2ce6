#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "head/journal_int.h"

static bool segment_number(const char *name, uint32_t *n) {
    char *end;
    if (strlen(name) != 14 || name[0] < '0' || name[0] > '9') return false;
    unsigned long v = strtoul(name, &end, 10);
    if (end != name + 10 || strcmp(end, ".log") != 0 || v >= UINT32_MAX) return false;
    *n = (uint32_t)v;
    return true;
}

void journal_files_path(const char *folder, uint32_t n, char path[JOURNAL_PATH_BYTES]) {
    snprintf(path, JOURNAL_PATH_BYTES, "%s/%010u.log", folder, n);
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int journal_files_list(const char *folder, uint32_t **list, uint32_t *n, struct err *e) {
    enum { SEGMENTS_MAX = 1 << 16 };
    DIR *d = opendir(folder);
    if (!d) return err_set(e, ERR_IO, "%s: %s", folder, strerror(errno));
    uint32_t cap = 0, count = 0, *p = NULL;
    int rc = ERR_OK;
    for (const struct dirent *it; !rc && count < SEGMENTS_MAX && (it = readdir(d));) {
        uint32_t number;
        if (!segment_number(it->d_name, &number)) continue;
        if (count == cap) {
            cap = cap ? cap * 2 : 16;
            uint32_t *more = realloc(p, cap * sizeof *p);
            if (!more) rc = err_set(e, ERR_NOMEM, "%s: no memory", folder);
            if (more) p = more;
        }
        if (!rc) p[count++] = number;
    }
    closedir(d);
    if (rc) {
        free(p);
        return rc;
    }
    if (p) qsort(p, count, sizeof *p, by_number);
    *list = p;
    *n = count;
    return ERR_OK;
}

void journal_files_remove_older(const char *folder, uint32_t than) {
    uint32_t *list, n;
    struct err e;
    if (journal_files_list(folder, &list, &n, &e)) return;
    for (uint32_t i = 0; i < n && list[i] < than; i++) {
        char path[JOURNAL_PATH_BYTES];
        journal_files_path(folder, list[i], path);
        unlink(path);
    }
    free(list);
}

void journal_files_sync(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}
