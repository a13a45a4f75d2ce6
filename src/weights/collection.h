// The inside of struct tensors, for the files of this folder only.
#pragma once
#include "base/map.h"
#include "os/file.h"
#include "weights/tensors.h"

struct tensors {
    struct tensor *list; // [cap]; the names are this struct's own copies
    uint32_t count, cap;
    struct strmap index;   // name -> place in list
    struct file_map *maps; // [LIMIT_SHARDS], or NULL
    int *fds;              // [LIMIT_SHARDS] of the same files, for tensors_read
    uint32_t n_maps;
};

// Maps one safetensors file and adds its tensors; the errors name the file.
int tensors_add_file(struct tensors *t, const char *path, struct err *e) MUST_CHECK;
// Reads the index `path` in `folder` and adds the shards it names.
int index_open(struct tensors *t, const char *folder, const char *path, struct err *e) MUST_CHECK;
// Adds the tensors of a safetensors file that lies in memory.
int safetensors_read(struct tensors *t, const uint8_t *data, uint64_t bytes, struct err *e) MUST_CHECK;
