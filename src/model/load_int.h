// Inside of load*.c only.
#pragma once
#include "model/part.h"

// Room that grows.
struct piece {
    uint8_t *data;
    uint64_t cap;
};
bool piece_need(struct piece *p, uint64_t bytes);

// What one thread has of its own while a matrix is put. The first piece of rows that it could not do stays in rc, e.
struct load_thread {
    _Alignas(64) struct piece raw; // rows as the file has them, in the model's order
    struct piece heads;            // rows as the file has them, where that is another order
    struct piece values;           // as f32 between two types
    struct piece made;             // as the backend keeps them
    int rc;
    uint64_t bad_row;
    struct err e;
};

// What a load carries from tensor to tensor.
struct loader {
    struct model_part *p;
    const struct tensors *tensors;
    const struct model_progress *progress;
    _Atomic uint64_t done_bytes;
    uint64_t total_bytes, told_bytes;
    struct load_thread *threads; // [n_threads]
    uint32_t n_threads;
    struct err *e;
};

// Tells how far the load is, if it went on since. The thread that loads.
void load_report(struct loader *l);

// Waits for the bytes of a tensor, if they are still on their way.
int load_await(const struct loader *l, const struct tensor *t) MUST_CHECK;

// load_matrix.c: reads, converts and puts the rows of t, on all threads of the backend. head_dim: the rows of a head
// lie in RoPE pairs (hparams.qk_interleaved); 0: they do not. has_block is set if what it became is of the integer
// path.
int load_matrix(struct loader *l, const struct tensor *t, bool is_matrix, uint32_t head_dim, struct weight **out,
                bool *has_block) MUST_CHECK;
// Where the file has row i of a head, if the rows go by pairs that turn together: 0, n/2, 1, n/2 + 1, ...
uint64_t load_file_row(uint32_t head_dim, uint64_t row);
