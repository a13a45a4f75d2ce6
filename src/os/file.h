// Whole files: read with a maximum, mapped, written so that a crash leaves the old or the new content. Thread-safe.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Reads a regular file of at most max_bytes and puts a NUL behind it. *data is the caller's to free(); unchanged on
// error. ERR_NOT_FOUND, ERR_IO, ERR_LIMIT, ERR_NOMEM.
int file_read(const char *path, size_t max_bytes, char **data, size_t *len_bytes, struct err *e) MUST_CHECK;

// A file in the address space, read-only. Another process that shortens it takes pages away under our feet (SIGBUS):
// model files are not edited in place.
struct file_map {
    const uint8_t *data; // NULL for an empty file
    size_t len_bytes;
};
int file_map_open(struct file_map *m, const char *path, struct err *e) MUST_CHECK;
void file_map_close(struct file_map *m);
// The pages that hold these bytes of a map are in nobody's way any more: they no longer count as this process's memory,
// and come back from the page cache when they are looked at again. Any thread.
void file_map_drop(const void *data, size_t len_bytes);

// Replaces path by these bytes: a temporary file beside it, fsync, rename, fsync of the folder.
int file_write(const char *path, const void *data, size_t len_bytes, mode_t mode, struct err *e) MUST_CHECK;
// Makes the folder and those above it, where missing.
int file_mkdir_all(const char *path, mode_t mode, struct err *e) MUST_CHECK;

// Removes path and everything below it, without following links; what cannot be removed stays.
void file_remove_tree(const char *path);

// Of any kind; also what cannot be looked at, or a link that leads nowhere: opening it tells why.
bool file_exists(const char *path);
bool file_is_dir(const char *path);
// Joins folder and name with one '/'. ERR_LIMIT if it does not fit.
int file_join(char *out, size_t out_bytes, const char *folder, const char *name, struct err *e) MUST_CHECK;
