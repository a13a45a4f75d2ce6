// The tensors of a model file or folder: name -> type, shape, bytes. Data stays in the mapped file; nothing is copied.
// A struct tensors is read-only after it was opened and may then be used by any thread; it owns the maps.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

enum { TENSOR_DIMS = 4 };

struct tensor {
    const char *name;
    enum dtype type;
    uint32_t n_dims;
    uint64_t dim[TENSOR_DIMS]; // outermost first, as PyTorch writes a shape
    const uint8_t *data;
    uint64_t bytes;
    bool is_mapped; // data lies in a map of a file that is not this struct's own: what was read of it may be dropped
};

struct tensors;
struct gguf;

// path: a folder with model.safetensors or model.safetensors.index.json and its shards, one .safetensors file, or a
// .gguf file (any shard of a split one: the others are found beside it). Tensors of GGUF files come under the names
// that the model's Hugging Face folder would have (weights/gguf_names.h), experts one by one.
int tensors_open(const char *path, struct tensors **t, struct err *e) MUST_CHECK;
// The files that path, which is one, stands for: all of a split GGUF model, in order, whether they are there or not;
// path itself else. False: there is no i-th.
bool tensors_file_name(const char *path, uint32_t i, char out[LIMIT_PATH]);
// The same from one file in memory (fuzzing, tests); bytes must outlive t.
int tensors_open_memory(const uint8_t *data, uint64_t bytes, struct tensors **t, struct err *e) MUST_CHECK;
// An empty collection to which single tensors are added (a node that fetched its layers one by one). The data and the
// map behind it are the caller's and must outlive t; the name is copied. ERR_FORMAT: the name is there already.
int tensors_new(struct tensors **t) MUST_CHECK;
int tensors_add(struct tensors *t, const struct tensor *one, struct err *e) MUST_CHECK;
void tensors_free(struct tensors *t);
// The data of a tensor that was added without, while nobody else looks at this one.
void tensors_put_data(struct tensors *t, const char *name, const uint8_t *data);
// The metadata of a GGUF file (of a split one: its first shard); NULL: it is none. Owned by t.
const struct gguf *tensors_gguf(const struct tensors *t);
// What the files call the tensor that is known as name here, for error texts: of a GGUF file GGUF's name, which may be
// that of a whole stack; else name.
const char *tensors_file_tensor(const struct tensors *t, const char *name, char out[LIMIT_TENSOR_NAME]);
// One more name for rows [row, row + n_rows) of base, which keeps its own. The rows lie one behind the other, so that
// nothing is copied. The list grows, so that pointers into it (base too) are no longer valid afterwards. ERR_FORMAT:
// the name is there already; ERR_LIMIT.
int tensors_alias(struct tensors *t, const char *name, const struct tensor *base, uint64_t row, uint64_t n_rows,
                  struct err *e) MUST_CHECK;

// Copies n bytes of one's data, from offset on, to dst; no more memory than these n bytes is held afterwards. Unlike a
// look at data it survives a file that somebody shortened meanwhile (which kills the process that touches the map):
// ERR_IO then. Any thread.
int tensors_read(const struct tensors *t, const struct tensor *one, uint64_t offset, void *dst, size_t n,
                 struct err *e) MUST_CHECK;

uint32_t tensors_count(const struct tensors *t);
const struct tensor *tensors_at(const struct tensors *t, uint32_t i);
const struct tensor *tensors_find(const struct tensors *t, const char *name); // NULL: none
