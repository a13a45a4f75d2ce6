// The tensors of a model file or folder: name -> type, shape, bytes. Data stays in the mapped file; nothing is copied.
// A struct tensors is read-only after it was opened and may then be used by any thread; it owns the maps.
#pragma once
#include "base/err.h"
#include "tensor/dtype.h"
#include <stdint.h>

enum { TENSOR_DIMS = 4 };

struct tensor {
    const char *name;
    enum dtype type;
    uint32_t n_dims;
    uint64_t dim[TENSOR_DIMS]; // outermost first, as PyTorch writes a shape
    const uint8_t *data;
    uint64_t bytes;
};

struct tensors;

// path: a folder with model.safetensors or model.safetensors.index.json and its shards, or one .safetensors file.
int tensors_open(const char *path, struct tensors **t, struct err *e) MUST_CHECK;
// The same from one file in memory (fuzzing, tests); bytes must outlive t.
int tensors_open_memory(const uint8_t *data, uint64_t bytes, struct tensors **t, struct err *e) MUST_CHECK;
// An empty collection to which single tensors are added (a node that fetched its layers one by one). The data and the
// map behind it are the caller's and must outlive t; the name is copied. ERR_FORMAT: the name is there already.
int tensors_new(struct tensors **t) MUST_CHECK;
int tensors_add(struct tensors *t, const struct tensor *one, struct err *e) MUST_CHECK;
void tensors_free(struct tensors *t);

// Copies n bytes of one's data, from offset on, to dst. Unlike a look at data it survives a file that somebody
// shortened meanwhile (which kills the process that touches the map): ERR_IO then. Any thread.
int tensors_read(const struct tensors *t, const struct tensor *one, uint64_t offset, void *dst, size_t n,
                 struct err *e) MUST_CHECK;

uint32_t tensors_count(const struct tensors *t);
const struct tensor *tensors_at(const struct tensors *t, uint32_t i);
const struct tensor *tensors_find(const struct tensors *t, const char *name); // NULL: none
