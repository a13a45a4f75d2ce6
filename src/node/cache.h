// Weight tensors on this machine's disk: the node's own cache, one file a tensor named by its SHA-256, and the model's
// folder if there is one. What comes out was hashed in this process, and the file has not changed since. One thread
// (the lazy one, compute.h, or the one that fetches for it) uses it at a time.
#pragma once
#include "base/map.h"
#include "os/file.h"
#include "weights/tensors.h"
#include "wire/control.h"
#include <stdatomic.h>

// What a file was when its hash was right; with any of this changed it is hashed again.
struct cache_stamp {
    uint64_t dev, inode, bytes, mtime_ns, ctime_ns;
};

struct cache {
    char dir[LIMIT_PATH];
    uint64_t max_bytes, total_bytes; // bound and size of the folder
    struct strmap verified;          // SHA-256 of a file in hex -> index of its stamp
    struct cache_stamp *stamps;      // [n_stamps]
    uint32_t n_stamps, stamps_cap;
    const char *model_dir;        // the caller's: a model's folder, or its .gguf file; NULL: none
    struct tensors *model;        // NULL: none, or it cannot be read now
    uint64_t model_digest;        // of the names and stamps of the folder's files when it was opened
    struct strmap model_verified; // "sha256 name" of its tensors
    bool warned;                  // that the disk does not take weights: once a load
    _Atomic uint64_t *progress;   // grows by every byte that is hashed or written
    const atomic_bool *quit;      // set: give up (ERR_CANCELLED)
};

// model_dir may be NULL; one that cannot be opened is ERR_*, told to the operator who named it.
int cache_init(struct cache *c, const char *dir, uint64_t max_bytes, const char *model_dir, _Atomic uint64_t *progress,
               const atomic_bool *quit, struct err *e) MUST_CHECK;
void cache_fini(struct cache *c);

// A load begins: nothing that was found before is held any more. A model folder that changed is opened anew.
void cache_begin(struct cache *c);

// Finds the bytes of a tensor. With map->data set the caller closes the map when it is done; else *data belongs to the
// model's folder and lives as long as the cache. ERR_NOT_FOUND: to be fetched.
int cache_find(struct cache *c, const char *name, const struct control_tensor *t, struct file_map *map,
               const uint8_t **data, struct err *e) MUST_CHECK;

// A tensor on its way in. cache_put_end checks the hash (else ERR_FORMAT) and hands out the bytes, whose map the caller
// closes; only then do they have their name in the folder. Makes room by removing files not used for the longest time.
// A disk that is full or read-only costs the node its cache and nothing else: the bytes then lie in memory.
struct cache_put {
    int fd;
    uint64_t bytes;
    char temp[LIMIT_PATH]; // "": in memory
    void *sha;             // the running hash
};
int cache_put_begin(struct cache *c, const struct control_tensor *t, struct cache_put *p, struct err *e) MUST_CHECK;
int cache_put_add(struct cache *c, struct cache_put *p, const void *data, size_t len, struct err *e) MUST_CHECK;
int cache_put_end(struct cache *c, struct cache_put *p, const struct control_tensor *t, struct file_map *map,
                  struct err *e) MUST_CHECK;
void cache_put_abort(struct cache_put *p);
