// Inside of the CPU backend: what its files share.
#pragma once
#include "compute/cpu/kern.h"
#include "compute/cpu/pool.h"

#include <stddef.h>

// Scratch of the operations that need some (moe, sample). Address space is taken once; pages come as they are used.
enum { CPU_SCRATCH_BYTES = 256 << 20 };

struct cpu {
    struct backend base;
    struct backend_ops ops;
    const struct kern *kern;
    struct pool *pool;
    uint8_t *scratch;
};

struct qrows {
    struct backend *be;
    uint32_t max_rows, max_k, k; // k: of what was quantised last
    struct act_block *a;
};

struct kv_cache {
    struct backend *be;
    struct kv_spec spec;
    uint64_t record_bytes; // of one (layer, block, head)
    uint8_t *data;         // [n_layers][n_blocks][n_kv_heads] records
};

static inline struct cpu *cpu_of(struct backend *be) {
    return (struct cpu *)(void *)((char *)be - offsetof(struct cpu, base));
}

// Marks a row of the batch; rows of several workers may be marked at once, one row by several.
static inline void cpu_fault(const struct batch *b, uint32_t row, bool fault) {
    if (fault) __atomic_store_n(&b->fault[row], 1, __ATOMIC_RELAXED);
}

// Items of `values` numbers each that one worker should take at a time, so that an item is worth waking it.
static inline uint32_t cpu_grain(uint64_t values) {
    return values >= 16384 ? 1 : (uint32_t)(16384 / (values ? values : 1));
}

// mem.c: zeros, aligned to 64. Each allocation takes CPU_MEM_HEADER_BYTES more. Any thread.
enum { CPU_MEM_HEADER_BYTES = 64 };
void *cpu_mem_alloc(struct backend *be, uint64_t bytes); // NULL: no memory
// Takes the pages at once, not at the first touch: no step waits for them, and what a stage takes is known from the
// start.
void *cpu_mem_alloc_now(struct backend *be, uint64_t bytes);
void cpu_mem_free(struct backend *be, void *p);

// Runs a matrix job over n tokens on all workers; several jobs of one shape may run as one (moe).
struct cpu_matmul {
    struct matmul_job job;
    uint32_t n_tokens;
};
void cpu_matmul_run(struct cpu *c, const struct cpu_matmul *m, uint32_t n_jobs);

void cpu_kv_write(struct backend *be, struct kv_cache *kv, uint32_t layer, const struct attention_spec *s, float *k,
                  const float *v, const struct batch *b);
void cpu_attention(struct backend *be, const struct kv_cache *kv, uint32_t layer, const struct attention_spec *s,
                   float *q, const struct batch *b, float *out);
struct kv_cache *cpu_kv_new(struct backend *be, const struct kv_spec *spec);
void cpu_kv_free(struct kv_cache *kv);
uint64_t cpu_kv_block_bytes(const struct kv_spec *spec);
void cpu_moe(struct backend *be, const struct moe_spec *s, const float *logits, const struct qrows *q, const float *x,
             const struct batch *b, float *y);
