// The numeric contract in plain C, rule by rule: what every kernel of every backend is compared with. Pure functions
// without state: thread-safe. Sections refer to NUMERICS.md. A `bool *fault` (1.5) is only ever set to true.
#pragma once
#include "base/step.h"
#include "compute/ref/ref_float.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

// ---- Quantiser (2.2, 2.3)

// One scale for n values; returns it and writes n codes.
float ref_quant(const float *x, uint32_t n, int8_t *q, bool *fault);

// One block of 128 activations with the sums over its groups that offsets and minima of weight types need. Codes
// behind the end of the row are 0.
struct act_block {
    _Alignas(64) int8_t q[REF_ACT_BLOCK];
    float d;
    int32_t sum; // over all 128 codes
    int32_t sum32[4];
    int32_t sum16[8];
};

static inline uint32_t ref_n_blocks(uint32_t k) { return (k + REF_ACT_BLOCK - 1) / REF_ACT_BLOCK; }

// x [k] -> a [ref_n_blocks(k)].
void ref_quant_row(const float *x, uint32_t k, struct act_block *a, bool *fault);
// Fills the sums of a from its codes.
void ref_act_sums(struct act_block *a);

// ---- Weights (3)

// 128 weights of one row of any block type, unpacked. Fields that a type has not are 0; `q` has its offset taken off.
struct ref_block {
    int16_t q[REF_ACT_BLOCK];
    float d32;            // L8
    uint16_t d[4], m[4];  // f16: one per 32 (Q8_0 .. Q5_1), else d[0] and m[0] (K types: d, dmin)
    int16_t sc[8], mn[4]; // K types: integer scales per 32 (Q6_K: per 16) and minima
};

// The block of values [block * 128, +128) of a row of k values.
void ref_block_read(enum dtype t, const uint8_t *row, uint32_t k, uint32_t block, struct ref_block *b);
float ref_block_dot(enum dtype t, const struct ref_block *b, const struct act_block *a); // t(n,b) of 3.2
void ref_block_f32(enum dtype t, const struct ref_block *b, float *out);                 // 128 values by 3.4
// One row times one quantised vector (3.1), and the same for a float type (3.3).
float ref_dot(enum dtype t, const uint8_t *row, const struct act_block *a, uint32_t k);
float ref_dot_float(enum dtype t, const uint8_t *row, const float *x, uint32_t k);
float ref_load_float(enum dtype t, const uint8_t *row, uint32_t i); // value i of a row of a float type, exactly
// A row as f32 (3.4), any weight type.
void ref_row_f32(enum dtype t, const uint8_t *row, uint32_t k, float *out);

// ---- Norm, RoPE, Hadamard (4, 5, 6.6)

void ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y);
void ref_rope_row(uint32_t pos, const double *fq, uint32_t n_freq, float *cos, float *sin);
void ref_rope(float *x, uint32_t n_freq, const float *cos, const float *sin);
void ref_hadamard(float *x, uint32_t n);
// 12.5: 1 + beta ln(1 + floor(pos / original)), by which queries grow.
float ref_position_factor(uint32_t pos, uint32_t original, float beta);

// ---- Attention of one (query, head) (6)

struct ref_att_state {
    float m, l, o[LIMIT_HEAD_DIM];
};

struct ref_attention {
    struct ref_att_state total, segment;
};

// merge of 6.3.
void ref_att_clear(struct ref_att_state *s);
void ref_att_merge(struct ref_att_state *s, float mb, float lb, float w, const float *o, uint32_t hd);
void ref_attention_begin(struct ref_attention *a);
// Keys and values with their scales, the first row that of j0.
struct ref_keys_i8 {
    const int8_t *k, *v;
    const float *dk, *dv;
};
// One block of keys j0 .. j0+63 (j0 a multiple of 64) of which lo .. pos are valid; blocks come in ascending order.
// k, v: [64][hd]; only valid rows are looked at. cap: of scores in log2 units (12.4), 0: none.
void ref_attention_block_i8(struct ref_attention *a, const int8_t *q, float qs, const struct ref_keys_i8 *keys,
                            uint32_t hd, float cap, uint32_t j0, uint32_t lo, uint32_t pos, bool *fault);
// 6.8, with K and V taken exactly to f32.
void ref_attention_block_float(struct ref_attention *a, const float *q, float scale, const float *k, const float *v,
                               uint32_t hd, float cap, uint32_t j0, uint32_t lo, uint32_t pos, bool *fault);
void ref_attention_end(const struct ref_attention *a, uint32_t hd, float *out);
// 12.4: a cap of scores in natural units as the two functions above take it; 0 stays 0.
static inline float ref_attention_cap(float softcap) { return softcap * REF_LOG2E; }
// First key that a query at pos sees.
static inline uint32_t ref_first_key(uint32_t pos, uint32_t window) {
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

// ---- Router (7.2)

// The top_k of n logits in rank order, with their weights.
void ref_router(const float *logits, uint32_t n, uint32_t top_k, bool norm_topk, uint32_t *index, float *weight,
                bool *fault);

// 12.6: chosen by sigmoid and bias among the experts of the best groups, weighted by the sigmoid alone.
struct ref_sigmoid_router {
    uint32_t n, top_k;             // top_k <= experts of top_groups groups
    uint32_t n_groups, top_groups; // n a multiple of n_groups
    bool norm_topk;
    const float *bias; // [n] or NULL
};
void ref_router_sigmoid(const struct ref_sigmoid_router *s, const float *logits, uint32_t *index, float *weight,
                        bool *fault);

// ---- Sampler (8)

// Step 1. Tokens of `seen` entries are distinct; bias likewise.
struct ref_token_bias {
    int32_t token;
    float bias;
};
struct ref_token_count {
    int32_t token;
    uint32_t in_answer; // 0: seen in the prompt only
};
struct ref_penalties {
    float repetition, frequency, presence; // 1, 0, 0: off
    const struct ref_token_bias *bias;
    const struct ref_token_count *seen;
    uint32_t n_bias, n_seen;
};
void ref_penalise(float *logits, uint32_t n_vocab, const struct ref_penalties *p);

// Steps 2 to 7, by sorting. allowed: bit t of word t/32 says that token t may be drawn; NULL: all. Returns -1 and sets
// fault if a logit is not finite (or nothing is allowed). scratch: n_vocab entries.
struct ref_ranked {
    float logit;
    int32_t token;
    uint32_t u;
};
int32_t ref_sample(const float *logits, uint32_t n_vocab, const struct sampling *p, uint32_t pos,
                   const uint32_t *allowed, struct ref_ranked *scratch, bool *fault);
// The draw of step 7: which part of [0, sum) position and seed name.
uint64_t ref_draw(const struct sampling *p, uint32_t pos, uint64_t sum);
// th of step 5: the mass that the kept prefix must reach, of a total of sum.
uint64_t ref_top_p_mass(float top_p, uint64_t sum);
// f32 log-probability of logit l, given the best logit and the sum of step 3 at T = 1 over all tokens.
float ref_logprob(float l, float best, uint64_t sum);
