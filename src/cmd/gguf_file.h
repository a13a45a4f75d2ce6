// Writes a GGUF file of any size with little memory: the header, then the rows of all tensors, made by several threads
// a megabyte at a time, each put where it belongs. The file has its name only when it is whole; after a failure nothing
// of it is left.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

struct gguf_file_tensor {
    char name[LIMIT_TENSOR_NAME];
    uint64_t dim[GGUF_DIMS]; // innermost first: dim[0] is what a row has
    uint32_t n_dims;
    enum dtype type;
    uint64_t offset; // gguf_file_write finds it
};

struct gguf_file {
    const char *path;
    bool force;                     // an existing file is replaced
    uint32_t threads;               // 0: one per processor
    bool progress;                  // on stderr
    struct gguf_writer *writer;     // holds the metadata; the tensors are added to it
    const struct hparams *settings; // to what the metadata must come (gguf_export_check); NULL: not checked
    struct gguf_file_tensor *tensors;
    uint32_t n_tensors;
    // Makes rows [row, row + n) of a tensor in dst, in its type. Called by several threads at once.
    int (*rows)(void *arg, uint32_t tensor, uint64_t row, uint64_t n, uint8_t *dst, struct err *e);
    void *arg;
};

// ERR_USAGE: path is there and force is not set.
int gguf_file_write(struct gguf_file *f, struct err *e) MUST_CHECK;
// Bytes that it will have: of all tensors, without the header.
uint64_t gguf_file_data_bytes(const struct gguf_file *f);
