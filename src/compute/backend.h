// The one vtable between what a layer is (model/) and how a device computes it. An operation takes a whole batch of
// rows; the result of every row is what NUMERICS.md says, byte for byte, on every backend, whatever else is in the
// batch. compute/ref is the plain form of that text; compute/cpu picks reference, AVX2 or AVX-512 kernels.
//
// Threads: one backend belongs to one compute thread, which alone calls it; it may use workers of its own inside.
// Memory: buffers named `float *` and so on below lie in the backend's memory (mem_alloc). No operation allocates.
// Errors: operations cannot fail. NaN and Inf set fault[row] as NUMERICS 1.5 says; other rows are untouched.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "base/step.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

struct backend;
struct weight;   // a matrix [n_rows][k] in the backend's own layout
struct kv_cache; // K and V of some layers, in blocks of LIMIT_BLOCK_TOKENS tokens
struct qrows;    // rows quantised by NUMERICS 2.3: codes, scales and whatever sums the kernels want

enum kv_type {
    KV_I8,  // NUMERICS 6.3: int8 K, V and Q
    KV_F16, // NUMERICS 6.8
    KV_F32  // 6.8 with K and V kept in f32: the plain mathematics of `logits --verify`, never in service
};

struct kv_spec {
    enum kv_type type;
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t n_blocks;
};

struct batch_seq {
    uint32_t row, n_rows;   // its rows of the batch
    uint32_t pos;           // position of the first of them
    const uint32_t *blocks; // host memory: block id of position p is blocks[p / LIMIT_BLOCK_TOKENS]
};

struct batch {
    uint32_t n_rows, n_seqs;
    const struct batch_seq *seqs;
    const uint32_t *row_pos; // [n_rows] position of each row
    uint8_t *fault;          // [n_rows] host memory; an operation only ever sets it to 1
};

struct attention_spec {
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window; // 0: none; else keys j > pos - window
    float scale;     // NUMERICS 6.2 (and 6.6 with had): multiplies the integer score
    float softcap;   // NUMERICS 12.4: a score s (before log2 e) becomes softcap * tanh(s / softcap); 0: none
    bool had;        // Q and K are Hadamard-turned before they are quantised (KV_I8 only)
};

enum activation { ACT_SILU, ACT_GELU_TANH };

enum router_kind {
    ROUTER_SOFTMAX, // NUMERICS 7.2
    ROUTER_SIGMOID  // NUMERICS 12.6: chosen by sigmoid(logit) + bias, weighted by sigmoid(logit)
};

struct moe_spec {
    uint32_t n_experts, top_k;
    enum activation act;
    enum router_kind router;
    bool norm_topk;                // NUMERICS 7.2
    const float *bias;             // ROUTER_SIGMOID: [n_experts] in the backend's memory, or NULL
    uint32_t n_groups, top_groups; // ROUTER_SIGMOID: only experts of the best groups are chosen from; 1, 1: all
    float weights_scale;           // the weights are multiplied by it last; 1: not at all
    const struct weight *const *gate, *const *up, *const *down; // [n_experts] each
};

// Works on the items [begin, end) of a loop; thread is below threads().
typedef void (*backend_loop_fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread);

struct backend_ops {
    const char *name; // "cpu/avx512"

    // For what the host does while weights are put: calls fn on all of [0, n_items), at most `grain` items at a time,
    // on so many threads at once as threads() says, the caller's among them.
    uint32_t (*threads)(const struct backend *be);
    void (*spread)(struct backend *be, backend_loop_fn fn, void *arg, uint32_t n_items, uint32_t grain);

    void *(*mem_alloc)(struct backend *be, uint64_t bytes); // zeroed, aligned to 64; NULL: no memory
    void (*mem_free)(struct backend *be, void *p);
    void (*mem_put)(struct backend *be, void *dst, const void *host_src, uint64_t bytes);
    void (*mem_get)(struct backend *be, void *host_dst, const void *src, uint64_t bytes);

    // A matrix of n_rows rows of k values of type t (a block type, or F32/F16/BF16 for the float path). Rows are put
    // in any order, in runs that start at a multiple of 16 and are a multiple of 16 long or reach the last row, by the
    // threads of spread too; src is host memory in the layout of dtype.h. weight_bytes: what such a matrix takes in the
    // backend's memory.
    struct weight *(*weight_new)(struct backend *be, enum dtype t, uint32_t n_rows, uint32_t k);
    void (*weight_put)(struct weight *w, uint32_t row, uint32_t n_rows, const void *src);
    void (*weight_free)(struct weight *w);
    uint64_t (*weight_bytes)(enum dtype t, uint32_t n_rows, uint32_t k);

    struct qrows *(*qrows_new)(struct backend *be, uint32_t max_rows, uint32_t max_k);
    void (*qrows_free)(struct qrows *q);

    struct kv_cache *(*kv_new)(struct backend *be, const struct kv_spec *spec);
    void (*kv_free)(struct kv_cache *kv);
    uint64_t (*kv_block_bytes)(const struct kv_spec *spec); // one block over all n_layers

    // x[r] = embedding row of ids[r] in f32 (NUMERICS 3.4) times scale (12.5), then rounded to bf16 unless keep_f32.
    void (*embed)(struct backend *be, const struct weight *w, const int32_t *host_ids, float scale,
                  const struct batch *b, bool keep_f32, float *x);
    // y[r][g] = norm of group g of row r: n_groups groups of n values, each normed alone with the same w[n]. x may be
    // y.
    void (*rmsnorm)(struct backend *be, const float *x, const float *w, uint32_t n_groups, uint32_t n, float eps,
                    const struct batch *b, float *y);
    // Quantises x [n_rows][k] (NUMERICS 2.3).
    void (*quant)(struct backend *be, const float *x, uint32_t k, const struct batch *b, struct qrows *q);
    // y[r][n] = W x_r for all rows of b, by 3.1 for block types (q) and by 3.3 for float types (x). The one that does
    // not apply may be NULL. bias [n_rows of W] is added last, if not NULL. The row stride of y is n_rows of W.
    void (*matmul)(struct backend *be, const struct weight *w, const struct qrows *q, const float *x, const float *bias,
                   const struct batch *b, float *y);
    // cos and sin [n_rows][n_freq] of each row's position (NUMERICS 5); factor multiplies both if it is not 1.
    void (*rope_table)(struct backend *be, const double *host_fq, uint32_t n_freq, float factor, const struct batch *b,
                       float *cos, float *sin);
    // Turns n_heads heads of head_dim values in each row of x; n_freq pairs (i, i + n_freq), the rest stays.
    void (*rope)(struct backend *be, float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_freq, const float *cos,
                 const float *sin, const struct batch *b);
    // Stores K and V [n_rows][n_kv_heads * head_dim] of every row at its position in layer `layer` of the cache,
    // Hadamard-turned and quantised as the spec says. k is used up (may be overwritten).
    void (*kv_write)(struct backend *be, struct kv_cache *kv, uint32_t layer, const struct attention_spec *s, float *k,
                     const float *v, const struct batch *b);
    // out [n_rows][n_heads * head_dim] from q (same shape, used up). kv_write of this layer came before.
    void (*attention)(struct backend *be, const struct kv_cache *kv, uint32_t layer, const struct attention_spec *s,
                      float *q, const struct batch *b, float *out);
    // h = act(g) * u over [n_rows][n] (NUMERICS 7.1, 12.3). h may be g.
    void (*act_mul)(struct backend *be, enum activation act, const float *g, const float *u, uint32_t n,
                    const struct batch *b, float *h);
    // x[r][i] = host_factor[r] * x[r][i] over [n_rows][n] (NUMERICS 12.5: queries that grow with their position).
    void (*scale_rows)(struct backend *be, float *x, uint32_t n, const float *host_factor, const struct batch *b);
    // x = cap * tanh(x / cap) over [n_rows][n], cap > 0 (NUMERICS 12.2: final logits).
    void (*softcap)(struct backend *be, float *x, uint32_t n, float cap, const struct batch *b);
    // y = sum over the chosen experts (NUMERICS 7.2, 7.3, 12.6, 12.7). logits [n_rows][n_experts] from the float
    // router; x is the normed row [n_rows][hidden], q the same quantised (one of them NULL as in matmul).
    void (*moe)(struct backend *be, const struct moe_spec *s, const float *logits, const struct qrows *q,
                const float *x, const struct batch *b, float *y);
    // y = a + b2 over [n_rows][n]. With round_bf16 the sum is rounded to bf16 (kept as f32). y may be a.
    void (*add)(struct backend *be, const float *a, const float *b2, uint32_t n, bool round_bf16, const struct batch *b,
                float *y);
    // Rows as they cross a stage boundary: bf16, little-endian; x holds bf16 values already.
    void (*rows_get_bf16)(struct backend *be, const float *x, uint32_t n, uint32_t n_rows, uint16_t *host_dst);
    void (*rows_put_bf16)(struct backend *be, const uint16_t *host_src, uint32_t n, uint32_t n_rows, float *x);
    // Copies the rows host_index[0..n_out) of x [..][n] one after the other to y.
    void (*gather_rows)(struct backend *be, const float *x, uint32_t n, const uint32_t *host_index, uint32_t n_out,
                        float *y);
    // Draws one token per row of logits [n][n_vocab] (NUMERICS 8, steps 2 to 7). pos[i]: position of the token drawn.
    // fault[i] is set, and token[i] is -1, when a logit is not finite. Host memory but for logits.
    void (*sample)(struct backend *be, const float *logits, uint32_t n_vocab, uint32_t n,
                   const struct sampling *const *p, const uint32_t *pos, int32_t *token, uint8_t *fault);
    void (*free)(struct backend *be);
};

struct backend {
    const struct backend_ops *ops;
    uint64_t choice_ns; // that moe spent so far on choosing experts, for measurements
};

enum isa { ISA_AUTO, ISA_REF, ISA_AVX2, ISA_AVX512 };

struct backend_cpu_config {
    enum isa isa;       // AUTO: the best that CPUID names
    uint32_t n_threads; // 0: one per CPU that this process may use
};

// A CPU backend with its worker pool. ERR_UNSUPPORTED where the CPU lacks the ISA asked for.
int backend_cpu_new(const struct backend_cpu_config *c, struct backend **be, struct err *e) MUST_CHECK;
int isa_from_name(const char *name); // "auto", "ref", "avx2", "avx512"; -1: none of these
const char *isa_name(enum isa isa);
enum isa isa_best(void);
