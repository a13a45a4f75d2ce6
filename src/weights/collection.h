// The inside of struct tensors, for the files of this folder only.
#pragma once
#include "base/map.h"
#include "gguf/gguf.h"
#include "os/file.h"
#include "weights/tensors.h"

struct tensors {
    struct tensor *list; // [cap]; the names are this struct's own copies
    uint32_t count, cap;
    struct strmap index;   // name -> place in list
    struct file_map *maps; // [LIMIT_SHARDS], or NULL
    int *fds;              // [LIMIT_SHARDS] of the same files, for tensors_read
    uint32_t n_maps;
    struct gguf *gguf; // of the file, or of the first shard; it looks into that map. NULL: no GGUF file
};

// Maps one file; *map belongs to t.
int tensors_map_file(struct tensors *t, const char *path, const struct file_map **map, struct err *e) MUST_CHECK;

// Maps one safetensors file and adds its tensors; the errors name the file.
int tensors_add_file(struct tensors *t, const char *path, struct err *e) MUST_CHECK;
// Reads the index `path` in `folder` and adds the shards it names.
int index_open(struct tensors *t, const char *folder, const char *path, struct err *e) MUST_CHECK;
// Adds the tensors of a safetensors file that lies in memory.
int safetensors_read(struct tensors *t, const uint8_t *data, uint64_t bytes, struct err *e) MUST_CHECK;

// Adds the tensors of a GGUF file, which is mapped already, and of the other files that it was split into.
int gguf_open_file(struct tensors *t, const char *path, const struct file_map *map, struct err *e) MUST_CHECK;
// The same for one whole file in memory.
int gguf_open_memory(struct tensors *t, const uint8_t *data, uint64_t bytes, struct err *e) MUST_CHECK;
