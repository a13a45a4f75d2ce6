// W x for panels, AVX2. A lane is a row; a panel of 16 rows is two registers wide. vpmaddubsw adds two products in 16
// bits and saturates, so the unsigned factor is |w| <= 128 with the sign moved to the activation (128 * 127 * 2 =
// 32512), or a code of at most 6 bits. Products of 4-bit codes are summed in 16 bits over a whole group of 32 values
// (16 * 15 * 127 = 30480).
//
// Roof: decode is bound by memory; prefill of one-byte codes by four operations per 32 products.
#include "compute/cpu/kern.h"

#include <immintrin.h>

enum { MAX_TILE = 4, PER_SEGMENT = REF_SEGMENT / REF_ACT_BLOCK };

static ALWAYS_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

static ALWAYS_INLINE __m256i load(const uint8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }

static ALWAYS_INLINE __m256 load_f16(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

static ALWAYS_INLINE __m256i load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

static ALWAYS_INLINE __m256i load_s8(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

static ALWAYS_INLINE __m256i add_pairs(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

enum codes { SIGNED_BYTES, SMALL_BYTES, NIBBLES };

// sum[t] += codes * activations over values [k0, k0 + n), for the 8 rows that `codes` starts at.
static ALWAYS_INLINE void dot(__m256i sum[MAX_TILE], const uint8_t *codes, enum codes kind,
                              const struct act_block *const a[MAX_TILE], int n_tokens, int k0, int n) {
    if (kind == NIBBLES) {
        const __m256i low = _mm256_set1_epi8(15);
        __m256i pairs[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) pairs[t] = _mm256_setzero_si256();
        for (int k = k0; k < k0 + n; k += 8) {
            __m256i v = load(codes + k * 8), lo = _mm256_and_si256(v, low);
            __m256i hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
            UNROLL for (int t = 0; t < n_tokens; t++) {
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(lo, broadcast4(a[t]->q + k)));
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(hi, broadcast4(a[t]->q + k + 4)));
            }
        }
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = add_pairs(sum[t], pairs[t]);
        return;
    }
    for (int k = k0; k < k0 + n; k += 4) {
        __m256i v = load(codes + k * 16), magnitude = kind == SIGNED_BYTES ? _mm256_abs_epi8(v) : v;
        UNROLL for (int t = 0; t < n_tokens; t++) {
            __m256i x = broadcast4(a[t]->q + k);
            if (kind == SIGNED_BYTES) x = _mm256_sign_epi8(x, v);
            sum[t] = add_pairs(sum[t], _mm256_maddubs_epi16(magnitude, x));
        }
    }
}

// The block values of 8 rows (`half` of the panel) for every token (NUMERICS 3.2).
static ALWAYS_INLINE void block_l8(const uint8_t *rec, const uint8_t *codes, int half,
                                   const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    __m256i sum[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_setzero_si256();
    dot(sum, codes, SIGNED_BYTES, a, n_tokens, 0, 128);
    __m256 d = _mm256_load_ps((const float *)(const void *)rec + half * 8);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
        _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(sum[t]), _mm256_setzero_ps());
}

static ALWAYS_INLINE void block_group32(const uint8_t *rec, const uint8_t *codes, int half, enum codes kind,
                                        int32_t offset, bool has_min, const struct act_block *const a[MAX_TILE],
                                        int n_tokens, __m256 v[MAX_TILE]) {
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_setzero_ps();
    for (int g = 0; g < 4; g++) {
        __m256i sum[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_set1_epi32(-offset * a[t]->sum32[g]);
        dot(sum, codes, kind, a, n_tokens, g * 32, 32);
        __m256 d = load_f16(rec + g * 32 + half * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(sum[t]), v[t]);
        if (!has_min) continue;
        __m256 m = load_f16(rec + 128 + g * 32 + half * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
            _mm256_fmadd_ps(m, _mm256_set1_ps((float)a[t]->sum32[g]), v[t]);
    }
}

static ALWAYS_INLINE void block_k(const uint8_t *rec, const uint8_t *codes, int half, enum dtype type,
                                  const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    const bool q6 = type == DT_Q6_K;
    const int groups = q6 ? 8 : 4, width = 128 / groups;
    __m256i j[MAX_TILE], n[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) j[t] = n[t] = _mm256_setzero_si256();
    for (int g = 0; g < groups; g++) {
        const uint8_t *scales = rec + 64 + g * 16 + half * 8;
        __m256i sum[MAX_TILE], sc = q6 ? load_s8(scales) : load_u8(scales);
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_set1_epi32(q6 ? -32 * a[t]->sum16[g] : 0);
        dot(sum, codes, type == DT_Q4_K ? NIBBLES : SMALL_BYTES, a, n_tokens, g * width, width);
        UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm256_add_epi32(j[t], _mm256_mullo_epi32(sc, sum[t]));
        if (q6) continue;
        __m256i mn = load_u8(scales + 64); // |minimum * sum| <= 63 * 4064: two 16-bit factors
        UNROLL for (int t = 0; t < n_tokens; t++) n[t] =
            _mm256_add_epi32(n[t], _mm256_madd_epi16(mn, _mm256_set1_epi32(a[t]->sum32[g] & 0xffff)));
    }
    __m256 d = load_f16(rec + half * 16);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(j[t]), _mm256_setzero_ps());
    if (q6) return;
    __m256 m = load_f16(rec + 32 + half * 16);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(n[t]), v[t]);
}

static ALWAYS_INLINE void block(enum dtype type, const uint8_t *rec, const uint8_t *codes, int half,
                                const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    switch (type) {
    case DT_L8:
        block_l8(rec, codes, half, a, n_tokens, v);
        break;
    case DT_Q8_0:
        block_group32(rec, codes, half, SIGNED_BYTES, 0, false, a, n_tokens, v);
        break;
    case DT_Q4_0:
        block_group32(rec, codes, half, NIBBLES, 8, false, a, n_tokens, v);
        break;
    case DT_Q4_1:
        block_group32(rec, codes, half, NIBBLES, 0, true, a, n_tokens, v);
        break;
    case DT_Q5_0:
        block_group32(rec, codes, half, SMALL_BYTES, 16, false, a, n_tokens, v);
        break;
    case DT_Q5_1:
        block_group32(rec, codes, half, SMALL_BYTES, 0, true, a, n_tokens, v);
        break;
    default:
        block_k(rec, codes, half, type, a, n_tokens, v);
    }
}

static void store(const struct matmul_job *j, uint32_t panel, uint32_t t, const __m256 v[2]) {
    uint32_t row = panel * PANEL_ROWS, left = j->w->n_rows - row, n = left < PANEL_ROWS ? left : PANEL_ROWS;
    float out[PANEL_ROWS];
    _mm256_storeu_ps(out, v[0]);
    _mm256_storeu_ps(out + 8, v[1]);
    for (uint32_t i = 0; j->bias && i < n; i++) out[i] = out[i] + j->bias[row + i];
    memcpy(j->y + t * j->y_stride + row, out, n * sizeof *out);
}

static ALWAYS_INLINE void tile(const struct matmul_job *j, uint32_t panel, uint32_t t0, enum dtype type, int n_tokens) {
    const struct weight *w = j->w;
    const uint32_t rec_bytes = panel_layout(type)->bytes, codes = panel_layout(type)->codes;
    const uint8_t *rec = w->data + panel * w->panel_bytes;
    const struct act_block *a[MAX_TILE];
    __m256 acc[MAX_TILE][2], total[MAX_TILE][2];
    for (int t = 0; t < n_tokens; t++) {
        a[t] = j->a + (size_t)matmul_row(j, t0 + (uint32_t)t) * w->n_blocks;
        total[t][0] = total[t][1] = _mm256_setzero_ps();
    }
    for (uint32_t s = 0; s < w->n_blocks; s += PER_SEGMENT) {
        uint32_t end = s + PER_SEGMENT < w->n_blocks ? s + PER_SEGMENT : w->n_blocks;
        for (int t = 0; t < n_tokens; t++) acc[t][0] = acc[t][1] = _mm256_setzero_ps();
        for (uint32_t b = s; b < end; b++, rec += rec_bytes) {
            for (int half = 0; half < 2; half++) {
                __m256 v[MAX_TILE];
                block(type, rec, rec + codes + half * 32, half, a, n_tokens, v);
                UNROLL for (int t = 0; t < n_tokens; t++) acc[t][half] =
                    _mm256_fmadd_ps(_mm256_set1_ps(a[t]->d), v[t], acc[t][half]);
            }
            for (int t = 0; t < n_tokens; t++) a[t]++;
        }
        for (int t = 0; t < n_tokens; t++)
            for (int half = 0; half < 2; half++) total[t][half] = _mm256_add_ps(total[t][half], acc[t][half]);
    }
    for (int t = 0; t < n_tokens; t++) store(j, panel, t0 + (uint32_t)t, total[t]);
}

// ---- Float types (NUMERICS 3.3): one token takes four runs of 64 values at once, four tokens one run after the other,
// which keeps the chains of fma in registers.

static ALWAYS_INLINE __m256 load_values(enum dtype type, const uint8_t *panel, uint32_t k, int half) {
    size_t at = (size_t)k * PANEL_ROWS + (size_t)half * 8;
    if (type == DT_F32) return _mm256_loadu_ps((const float *)(const void *)panel + at);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(panel + at * 2));
    if (type == DT_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

// total[t] += n_runs runs of n values that start at k, k + 64, .. and stand at places at, at + step, ..
static ALWAYS_INLINE void float_runs(enum dtype type, const uint8_t *panel, const float *const x[4], int n_tokens,
                                     uint32_t n_runs, uint32_t k, uint32_t n, uint32_t at, uint32_t step,
                                     __m256 total[4][2]) {
    __m256 s[4][FLOAT_RUNS][2];
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (uint32_t r = 0; r < n_runs; r++) s[t][r][0] = s[t][r][1] =
        _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i++) UNROLL for (uint32_t r = 0; r < n_runs; r++) {
            __m256 w0 = load_values(type, panel, at + i * step + r, 0),
                   w1 = load_values(type, panel, at + i * step + r, 1);
            UNROLL for (int t = 0; t < n_tokens; t++) {
                __m256 v = _mm256_set1_ps(x[t][k + r * REF_FLOAT_RUN + i]);
                s[t][r][0] = _mm256_fmadd_ps(w0, v, s[t][r][0]);
                s[t][r][1] = _mm256_fmadd_ps(w1, v, s[t][r][1]);
            }
        }
    UNROLL for (int t = 0; t < n_tokens; t++) UNROLL for (uint32_t r = 0; r < n_runs; r++) {
        total[t][0] = _mm256_add_ps(total[t][0], s[t][r][0]);
        total[t][1] = _mm256_add_ps(total[t][1], s[t][r][1]);
    }
}

static ALWAYS_INLINE void float_tile(const struct matmul_job *j, uint32_t panel, uint32_t t0, enum dtype type,
                                     int n_tokens) {
    const struct weight *w = j->w;
    const uint8_t *data = w->data + panel * w->panel_bytes;
    const uint32_t many = n_tokens == 1 ? FLOAT_RUNS : 1;
    const float *x[4];
    __m256 total[4][2];
    UNROLL for (int t = 0; t < n_tokens; t++) {
        x[t] = j->x + matmul_row(j, t0 + (uint32_t)t) * j->x_stride;
        total[t][0] = total[t][1] = _mm256_setzero_ps();
    }
    uint32_t k = 0;
    for (; k + FLOAT_GROUP <= w->k; k += FLOAT_GROUP)
        for (uint32_t r = 0; r < FLOAT_RUNS; r += many)
            float_runs(type, data, x, n_tokens, many, k + r * REF_FLOAT_RUN, REF_FLOAT_RUN, k + r, FLOAT_RUNS, total);
    for (; k < w->k; k += REF_FLOAT_RUN)
        float_runs(type, data, x, n_tokens, 1, k, w->k - k < REF_FLOAT_RUN ? w->k - k : REF_FLOAT_RUN, k, 1, total);
    UNROLL for (int t = 0; t < n_tokens; t++) store(j, panel, t0 + (uint32_t)t, total[t]);
}

#define BLOCK_TYPE(type)                                                                                               \
    static void run_##type(const struct matmul_job *j, uint32_t panel, uint32_t t, uint32_t n) {                       \
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

void matmul_avx2(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n) {
    static void (*const run[])(const struct matmul_job *, uint32_t, uint32_t, uint32_t) = {
        [DT_F32] = run_F32,   [DT_F16] = run_F16,   [DT_BF16] = run_BF16, [DT_L8] = run_L8,
        [DT_Q8_0] = run_Q8_0, [DT_Q4_0] = run_Q4_0, [DT_Q4_1] = run_Q4_1, [DT_Q5_0] = run_Q5_0,
        [DT_Q5_1] = run_Q5_1, [DT_Q4_K] = run_Q4_K, [DT_Q5_K] = run_Q5_K, [DT_Q6_K] = run_Q6_K,
    };
    run[j->w->type](j, panel, t0, n);
}
