// Weight tensors on this machine's disk: the node's own cache, one file a tensor named by its SHA-256, and the model's
// folder if there is one. What comes out was hashed once in this process. One thread (the compute thread) uses it.
#pragma once
#include "base/map.h"
#include "os/file.h"
#include "weights/tensors.h"
#include "wire/control.h"
#include <stdatomic.h>

struct cache {
    char dir[LIMIT_PATH];
    uint64_t max_bytes, total_bytes; // bound and size of the folder
    struct strmap verified;          // SHA-256 of files, and names of the model folder's tensors: hashed and right
    struct tensors *model;           // the model's folder, or NULL
    _Atomic uint64_t *progress;      // grows by every byte that is hashed or written
    const atomic_bool *quit;         // set: give up (ERR_CANCELLED)
};

// model_dir may be NULL; one that cannot be opened is ERR_*, told to the operator who named it.
int cache_init(struct cache *c, const char *dir, uint64_t max_bytes, const char *model_dir, _Atomic uint64_t *progress,
               const atomic_bool *quit, struct err *e) MUST_CHECK;
void cache_fini(struct cache *c);

// Finds the bytes of a tensor. With map->data set the caller closes the map when it is done; else *data belongs to the
// model's folder and lives as long as the cache. ERR_NOT_FOUND: to be fetched.
int cache_find(struct cache *c, const char *name, const struct control_tensor *t, struct file_map *map,
               const uint8_t **data, struct err *e) MUST_CHECK;

// A tensor on its way in. Nothing is visible under its name before cache_put_end found the hash right (else
// ERR_FORMAT). Makes room by removing files not used for the longest time.
struct cache_put {
    int fd;
    uint64_t bytes;
    char temp[LIMIT_PATH];
    void *sha; // the running hash
};
int cache_put_begin(struct cache *c, const struct control_tensor *t, struct cache_put *p, struct err *e) MUST_CHECK;
int cache_put_add(struct cache *c, struct cache_put *p, const void *data, size_t len, struct err *e) MUST_CHECK;
int cache_put_end(struct cache *c, struct cache_put *p, const struct control_tensor *t, struct err *e) MUST_CHECK;
void cache_put_abort(struct cache_put *p);
