// The kernels of one instruction set. Everything that runs over a row, a head or a panel is here; the operations of the
// backend only cut batches into such pieces. Each kernel gives the bytes of its compute/ref form.
//
// Kernels are pure and allocate nothing. A `bool *fault` (NUMERICS 1.5) is only ever set to true. Pointers need no
// alignment except where a struct has one.
#pragma once
#include "compute/cpu/weight.h"

// A matrix times rows: y[t] = W a[t] for the tokens t of [0, n). rows[t] names the row of a or x; NULL: row t.
struct matmul_job {
    const struct weight *w;
    const struct act_block *a; // block types; a row is w->n_blocks of them
    const float *x;            // float types; row stride x_stride
    uint64_t x_stride;
    const uint32_t *rows;
    const float *bias; // [n_rows of W] or NULL
    float *y;          // [n][y_stride]
    uint64_t y_stride;
};

// K and V of one (layer, kv head): the record of block id b lies at base + blocks[i] * stride, i counting from
// position 0. KV_I8: K codes [hd/4][64 keys][4], dk f32 [64], V codes [64/4][hd][4], dv f32 [64]; codes of K are xored
// with the kernel set's kv_xor. KV_F16, KV_F32: K [hd][64], V [64][hd].
struct kv_view {
    const uint8_t *base;
    uint64_t stride;
    const uint32_t *blocks;
    enum kv_type type;
    uint32_t head_dim; // a multiple of 16
};

// One (query, head); keys lo .. pos.
struct att_query {
    const int8_t *q8; // KV_I8: codes
    const float *q;   // KV_F16, KV_F32
    float qs;         // KV_I8: dq * scale; else scale
    float cap;        // of scores, in log2 units (NUMERICS 12.4); 0: none
    uint32_t lo, pos;
    float *out; // [head_dim]; may be q: it is written at the very end
    bool fault;
};

enum { ATT_TILE = 4 }; // queries of one kv head that are computed together

struct kern {
    const char *name;
    enum isa isa;
    bool panels;      // weights in panels
    uint8_t code_xor; // struct weight
    uint8_t kv_xor;   // struct kv_view

    void (*quant_row)(const float *x, uint32_t k, struct act_block *a, bool *fault);
    float (*quant)(const float *x, uint32_t n, int8_t *q, bool *fault); // ref_quant; n <= LIMIT_HEAD_DIM
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    void (*exp2)(const float *x, uint32_t n, float *y, bool *fault);
    void (*silu_mul)(const float *g, const float *u, uint32_t n, float *h, bool *fault);
    void (*gelu_mul)(const float *g, const float *u, uint32_t n, float *h, bool *fault);
    void (*softcap)(float *x, uint32_t n, float cap, bool *fault);
    // y = a + b, rounded to bf16 if asked to.
    void (*add)(const float *a, const float *b, uint32_t n, bool round_bf16, float *y, bool *fault);
    void (*axpy)(float w, const float *x, uint32_t n, float *y); // y = fma(w, x, y)
    void (*rope)(float *x, uint32_t n_freq, const float *cos, const float *sin);
    void (*hadamard)(float *x, uint32_t n); // n a power of two
    // Tokens [t0, t0 + n) of panel `panel` (16 rows of W).
    void (*matmul)(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n);
    // n <= ATT_TILE queries over the same K and V.
    void (*attention)(const struct kv_view *kv, struct att_query *q, uint32_t n);
    // The largest of n finite logits, ties to the lowest index; -1 if one is not finite.
    int32_t (*best)(const float *l, uint32_t n);
    // u of NUMERICS 8 step 3.
    void (*sample_u)(const float *l, uint32_t n, float best, float scale, uint32_t *u, bool *fault);
};

extern const struct kern kern_ref, kern_avx2, kern_avx512;
// The kernel set of an ISA; ISA_AUTO: the best there is. NULL: the CPU lacks it.
const struct kern *kern_find(enum isa isa);

// Integer matrix kernels of the two vector sets, one file each.
void matmul_avx2(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n);
void matmul_avx512(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n);
void attention_avx2(const struct kv_view *kv, struct att_query *q, uint32_t n);
void attention_avx512(const struct kv_view *kv, struct att_query *q, uint32_t n);

static inline void kern_act_mul(const struct kern *k, enum activation act, const float *g, const float *u, uint32_t n,
                                float *h, bool *fault) {
    (act == ACT_SILU ? k->silu_mul : k->gelu_mul)(g, u, n, h, fault);
}

static inline uint32_t matmul_row(const struct matmul_job *j, uint32_t t) { return j->rows ? j->rows[t] : t; }

// Asks the compiler to unroll a short loop over registers completely.
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE inline __attribute__((always_inline))
