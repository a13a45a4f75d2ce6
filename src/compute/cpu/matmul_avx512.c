// W x for panels, AVX-512 with VNNI. A lane is a row; vpdpbusd multiplies unsigned codes by signed activations and adds
// four products to a lane without saturating. Signed codes are stored as code ^ 0x80 = code + 128: the sums start at
// -128 times the sum of the activations and so cost nothing extra. One load of 64 codes serves up to 8 tokens.
//
// Roof: decode reads each code once (memory); prefill issues one vpdpbusd (64 products) a cycle.
#include "compute/cpu/kern.h"

#include <immintrin.h>

enum { MAX_TILE = 8, PER_SEGMENT = REF_SEGMENT / REF_ACT_BLOCK };

static ALWAYS_INLINE __m512i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

// Starts the sums of all tokens at -offset times the sum of a group of activations.
static ALWAYS_INLINE __m512i start(int32_t offset, int32_t sum) { return _mm512_set1_epi32(-offset * sum); }

static ALWAYS_INLINE __m512 load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

static ALWAYS_INLINE __m512i load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
}

static ALWAYS_INLINE __m512i load_s8(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
}

// sum[t] += codes * activations over values [k0, k0 + n) of a block.
static ALWAYS_INLINE void dot(__m512i sum[MAX_TILE], const uint8_t *codes, bool nibbles,
                              const struct act_block *const a[MAX_TILE], int n_tokens, int k0, int n) {
    if (!nibbles) {
        for (int k = k0; k < k0 + n; k += 4) {
            __m512i v = _mm512_load_si512(codes + k * 16);
            UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm512_dpbusd_epi32(sum[t], v, broadcast4(a[t]->q + k));
        }
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int k = k0; k < k0 + n; k += 8) {
        __m512i v = _mm512_load_si512(codes + k * 8);
        __m512i lo = _mm512_and_si512(v, low), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        UNROLL for (int t = 0; t < n_tokens; t++) {
            sum[t] = _mm512_dpbusd_epi32(sum[t], lo, broadcast4(a[t]->q + k));
            sum[t] = _mm512_dpbusd_epi32(sum[t], hi, broadcast4(a[t]->q + k + 4));
        }
    }
}

// The block value v[t] = t(n,b) of 16 rows for every token (NUMERICS 3.2).
static ALWAYS_INLINE void block_l8(const uint8_t *rec, const uint8_t *codes, const struct act_block *const a[MAX_TILE],
                                   int n_tokens, __m512 v[MAX_TILE]) {
    __m512i sum[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = start(128, a[t]->sum);
    dot(sum, codes, false, a, n_tokens, 0, 128);
    __m512 d = _mm512_load_ps((const float *)(const void *)rec);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
        _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum[t]), _mm512_setzero_ps());
}

static ALWAYS_INLINE void block_group32(const uint8_t *rec, const uint8_t *codes, bool nibbles, int32_t offset,
                                        bool has_min, const struct act_block *const a[MAX_TILE], int n_tokens,
                                        __m512 v[MAX_TILE]) {
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_setzero_ps();
    for (int g = 0; g < 4; g++) {
        __m512i sum[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = start(offset, a[t]->sum32[g]);
        dot(sum, codes, nibbles, a, n_tokens, g * 32, 32);
        __m512 d = load_f16(rec + g * 32);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum[t]), v[t]);
        if (!has_min) continue;
        __m512 m = load_f16(rec + 128 + g * 32);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
            _mm512_fmadd_ps(m, _mm512_set1_ps((float)a[t]->sum32[g]), v[t]);
    }
}

// Q4_K and Q5_K (with minima, groups of 32), Q6_K (groups of 16, offset 32). Everything up to d is exact in int32.
static ALWAYS_INLINE void block_k(const uint8_t *rec, const uint8_t *codes, enum dtype type,
                                  const struct act_block *const a[MAX_TILE], int n_tokens, __m512 v[MAX_TILE]) {
    const bool q6 = type == DT_Q6_K;
    const int groups = q6 ? 8 : 4;
    __m512i j[MAX_TILE], n[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) j[t] = n[t] = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        __m512i sum[MAX_TILE], sc = q6 ? load_s8(rec + 64 + g * 16) : load_u8(rec + 64 + g * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = q6 ? start(32, a[t]->sum16[g]) : _mm512_setzero_si512();
        dot(sum, codes, type == DT_Q4_K, a, n_tokens, g * (128 / groups), 128 / groups);
        UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm512_add_epi32(j[t], _mm512_mullo_epi32(sc, sum[t]));
        if (q6) continue;
        __m512i mn = load_u8(rec + 128 + g * 16); // |minimum * sum| <= 63 * 4064: two 16-bit factors
        UNROLL for (int t = 0; t < n_tokens; t++) n[t] =
            _mm512_add_epi32(n[t], _mm512_madd_epi16(mn, _mm512_set1_epi32(a[t]->sum32[g] & 0xffff)));
    }
    __m512 d = load_f16(rec);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(j[t]), _mm512_setzero_ps());
    if (q6) return;
    __m512 m = load_f16(rec + 32);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_fnmadd_ps(m, _mm512_cvtepi32_ps(n[t]), v[t]);
}

static ALWAYS_INLINE void block(enum dtype type, const uint8_t *rec, const uint8_t *codes,
                                const struct act_block *const a[MAX_TILE], int n_tokens, __m512 v[MAX_TILE]) {
    switch (type) {
    case DT_L8:
        block_l8(rec, codes, a, n_tokens, v);
        break;
    case DT_Q8_0:
        block_group32(rec, codes, false, 128, false, a, n_tokens, v);
        break;
    case DT_Q4_0:
        block_group32(rec, codes, true, 8, false, a, n_tokens, v);
        break;
    case DT_Q4_1:
        block_group32(rec, codes, true, 0, true, a, n_tokens, v);
        break;
    case DT_Q5_0:
        block_group32(rec, codes, false, 16, false, a, n_tokens, v);
        break;
    case DT_Q5_1:
        block_group32(rec, codes, false, 0, true, a, n_tokens, v);
        break;
    default:
        block_k(rec, codes, type, a, n_tokens, v);
    }
}

static ALWAYS_INLINE void store(const struct matmul_job *j, uint32_t panel, uint32_t t, __m512 v) {
    uint32_t row = panel * PANEL_ROWS, left = j->w->n_rows - row;
    __mmask16 rows = (__mmask16)(left >= PANEL_ROWS ? 0xffff : (1u << left) - 1);
    if (j->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(rows, j->bias + row));
    _mm512_mask_storeu_ps(j->y + t * j->y_stride + row, rows, v);
}

// One panel times n_tokens tokens of a block type; type and n_tokens are constants after inlining.
static ALWAYS_INLINE void tile(const struct matmul_job *j, uint32_t panel, uint32_t t0, enum dtype type, int n_tokens) {
    const struct weight *w = j->w;
    const uint32_t rec_bytes = panel_layout(type)->bytes, codes = panel_layout(type)->codes;
    const uint8_t *rec = w->data + panel * w->panel_bytes;
    const struct act_block *a[MAX_TILE];
    __m512 acc[MAX_TILE], total[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) {
        a[t] = j->a + (size_t)matmul_row(j, t0 + (uint32_t)t) * w->n_blocks;
        total[t] = _mm512_setzero_ps();
    }
    for (uint32_t s = 0; s < w->n_blocks; s += PER_SEGMENT) {
        uint32_t end = s + PER_SEGMENT < w->n_blocks ? s + PER_SEGMENT : w->n_blocks;
        UNROLL for (int t = 0; t < n_tokens; t++) acc[t] = _mm512_setzero_ps();
        for (uint32_t b = s; b < end; b++, rec += rec_bytes) {
            __m512 v[MAX_TILE];
            block(type, rec, rec + codes, a, n_tokens, v);
            UNROLL for (int t = 0; t < n_tokens; t++) {
                acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(a[t]->d), v[t], acc[t]);
                a[t]++;
            }
        }
        UNROLL for (int t = 0; t < n_tokens; t++) total[t] = _mm512_add_ps(total[t], acc[t]);
    }
    UNROLL for (int t = 0; t < n_tokens; t++) store(j, panel, t0 + (uint32_t)t, total[t]);
}

// ---- Float types (NUMERICS 3.3): runs of 64 values are chains of their own, so that several runs go at once.

static ALWAYS_INLINE __m512 load_values(enum dtype type, const uint8_t *panel, uint32_t k) {
    if (type == DT_F32) return _mm512_loadu_ps((const float *)(const void *)panel + (size_t)k * PANEL_ROWS);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(panel + (size_t)k * PANEL_ROWS * 2));
    if (type == DT_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

// total[t] += n_runs runs of n values that start at k, k + 64, ..
static ALWAYS_INLINE void float_runs(enum dtype type, const uint8_t *panel, const float *const x[4], int n_tokens,
                                     uint32_t n_runs, uint32_t k, uint32_t n, __m512 total[4]) {
    __m512 s[4][FLOAT_RUNS];
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (uint32_t r = 0; r < n_runs; r++) s[t][r] =
        _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i++) UNROLL for (uint32_t r = 0; r < n_runs; r++) {
            __m512 w = load_values(type, panel, k + i * n_runs + r);
            UNROLL for (int t = 0; t < n_tokens; t++) s[t][r] =
                _mm512_fmadd_ps(w, _mm512_set1_ps(x[t][k + r * REF_FLOAT_RUN + i]), s[t][r]);
        }
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (uint32_t r = 0; r < n_runs; r++) total[t] =
        _mm512_add_ps(total[t], s[t][r]);
}

static ALWAYS_INLINE void float_tile(const struct matmul_job *j, uint32_t panel, uint32_t t0, enum dtype type,
                                     int n_tokens) {
    const struct weight *w = j->w;
    const uint8_t *data = w->data + panel * w->panel_bytes;
    const float *x[4];
    __m512 total[4];
    UNROLL for (int t = 0; t < n_tokens; t++) {
        x[t] = j->x + matmul_row(j, t0 + (uint32_t)t) * j->x_stride;
        total[t] = _mm512_setzero_ps();
    }
    uint32_t k = 0;
    for (; k + FLOAT_GROUP <= w->k; k += FLOAT_GROUP)
        float_runs(type, data, x, n_tokens, FLOAT_RUNS, k, REF_FLOAT_RUN, total);
    for (; k < w->k; k += REF_FLOAT_RUN)
        float_runs(type, data, x, n_tokens, 1, k, w->k - k < REF_FLOAT_RUN ? w->k - k : REF_FLOAT_RUN, total);
    UNROLL for (int t = 0; t < n_tokens; t++) store(j, panel, t0 + (uint32_t)t, total[t]);
}

#define BLOCK_TYPE(type)                                                                                               \
    static void run_##type(const struct matmul_job *j, uint32_t panel, uint32_t t, uint32_t n) {                       \
        for (; n >= 8; n -= 8, t += 8) tile(j, panel, t, DT_##type, 8);                                                \
        for (; n >= 4; n -= 4, t += 4) tile(j, panel, t, DT_##type, 4);                                                \
        for (; n >= 2; n -= 2, t += 2) tile(j, panel, t, DT_##type, 2);                                                \
        if (n) tile(j, panel, t, DT_##type, 1);                                                                        \
    }
#define FLOAT_TYPE(type)                                                                                               \
    static void run_##type(const struct matmul_job *j, uint32_t panel, uint32_t t, uint32_t n) {                       \
        for (; n >= 4; n -= 4, t += 4) float_tile(j, panel, t, DT_##type, 4);                                          \
        for (; n; n--, t++) float_tile(j, panel, t, DT_##type, 1);                                                     \
    }
BLOCK_TYPE(L8)
BLOCK_TYPE(Q8_0)
BLOCK_TYPE(Q4_0)
BLOCK_TYPE(Q4_1)
BLOCK_TYPE(Q5_0)
BLOCK_TYPE(Q5_1)
BLOCK_TYPE(Q4_K)
BLOCK_TYPE(Q5_K)
BLOCK_TYPE(Q6_K)
FLOAT_TYPE(F32)
FLOAT_TYPE(F16)
FLOAT_TYPE(BF16)

void matmul_avx512(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n) {
    static void (*const run[])(const struct matmul_job *, uint32_t, uint32_t, uint32_t) = {
        [DT_F32] = run_F32,   [DT_F16] = run_F16,   [DT_BF16] = run_BF16, [DT_L8] = run_L8,
        [DT_Q8_0] = run_Q8_0, [DT_Q4_0] = run_Q4_0, [DT_Q4_1] = run_Q4_1, [DT_Q5_0] = run_Q5_0,
        [DT_Q5_1] = run_Q5_1, [DT_Q4_K] = run_Q4_K, [DT_Q5_K] = run_Q5_K, [DT_Q6_K] = run_Q6_K,
    };
    run[j->w->type](j, panel, t0, n);
}
