// W x for panels, AVX2. A lane is a row; a panel of 16 rows is two registers wide. vpmaddubsw adds two products in 16
// bits and saturates, so the unsigned factor is |w| <= 128 with the sign moved to the activation (128 * 127 * 2 =
// 32512), or a code of at most 6 bits. Products of 4-bit codes are summed in 16 bits over a whole group of 32 values
// (16 * 15 * 127 = 30480), of 5-bit codes over 16 (8 * 31 * 127 = 31496), of 6-bit codes over 8 (4 * 63 * 127 = 32004).
//
// Roof: decode is bound by memory; prefill of one-byte codes by four operations per 32 products.
#include "compute/cpu/matmul_panel.h"

#include <immintrin.h>

enum { MAX_TILE = 4 };

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

// A step of the activations of n_tokens tokens: pairs[t] += 32 codes of at most 6 bits * 4 activations from value k on.
static ALWAYS_INLINE void add_products(__m256i pairs[MAX_TILE], __m256i codes,
                                       const struct act_block *const a[MAX_TILE], int n_tokens, int k) {
    UNROLL for (int t = 0; t < n_tokens; t++) pairs[t] =
        _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(codes, broadcast4(a[t]->q + k)));
}

static ALWAYS_INLINE void clear_pairs(__m256i pairs[MAX_TILE], int n_tokens) {
    UNROLL for (int t = 0; t < n_tokens; t++) pairs[t] = _mm256_setzero_si256();
}

static ALWAYS_INLINE void flush_pairs(__m256i sum[MAX_TILE], __m256i pairs[MAX_TILE], int n_tokens) {
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = add_pairs(sum[t], pairs[t]);
}

// The low four bits of n and, above them, the bits `mask` of h.
static ALWAYS_INLINE __m256i join(__m256i n, __m256i h, char mask) {
    return _mm256_or_si256(_mm256_and_si256(n, _mm256_set1_epi8(15)), _mm256_and_si256(h, _mm256_set1_epi8(mask)));
}

// 32 codes of five bits from value k on, of the 8 rows that `codes` starts at: v[i] has those of values k + 4 i ..
// k + 4 i + 3.
static ALWAYS_INLINE void unpack5(const uint8_t *codes, int k, __m256i v[8]) {
    const uint8_t *run = codes + k / 32 * PANEL_RUN5_BYTES;
    __m256i h = load(run), n = load(run + 64);
    v[0] = join(n, _mm256_slli_epi16(h, 4), 16);
    v[1] = join(_mm256_srli_epi16(n, 4), _mm256_slli_epi16(h, 3), 16);
    n = load(run + 128);
    v[2] = join(n, _mm256_slli_epi16(h, 2), 16);
    v[3] = join(_mm256_srli_epi16(n, 4), _mm256_slli_epi16(h, 1), 16);
    n = load(run + 192);
    v[4] = join(n, h, 16);
    v[5] = join(_mm256_srli_epi16(n, 4), _mm256_srli_epi16(h, 1), 16);
    n = load(run + 256);
    v[6] = join(n, _mm256_srli_epi16(h, 2), 16);
    v[7] = join(_mm256_srli_epi16(n, 4), _mm256_srli_epi16(h, 3), 16);
}

// 16 codes of six bits likewise.
static ALWAYS_INLINE void unpack6(const uint8_t *codes, int k, __m256i v[4]) {
    const uint8_t *run = codes + k / 16 * PANEL_RUN6_BYTES;
    __m256i h = load(run), n0 = load(run + 64), n1 = load(run + 128);
    v[0] = join(n0, _mm256_slli_epi16(h, 4), 48);
    v[1] = join(_mm256_srli_epi16(n0, 4), _mm256_slli_epi16(h, 2), 48);
    v[2] = join(n1, h, 48);
    v[3] = join(_mm256_srli_epi16(n1, 4), _mm256_srli_epi16(h, 2), 48);
}

// The codes of n records of a packed type, as bytes.
static ALWAYS_INLINE void widen(const uint8_t *rec, uint32_t n, enum dtype type, uint8_t *wide) {
    const uint32_t rec_bytes = panel_layout(type)->bytes, codes = panel_layout(type)->codes;
    const int n_words = panel_bits(type) == 5 ? 8 : 4;
    for (uint32_t i = 0; i < n; i++, rec += rec_bytes, wide += PANEL_WIDE_BYTES)
        for (int k = 0; k < 128; k += 4 * n_words)
            for (int half = 0; half < 2; half++) {
                uint8_t *to = wide + k * PANEL_ROWS + half * 32;
                __m256i v[8];
                if (n_words == 8)
                    unpack5(rec + codes + half * 32, k, v);
                else
                    unpack6(rec + codes + half * 32, k, v);
                UNROLL for (int q = 0; q < n_words; q++) _mm256_store_si256((__m256i *)(void *)(to + q * 64), v[q]);
            }
}

// sum[t] += n_words registers of codes below 2^bits * activations from value k on.
static ALWAYS_INLINE void dot_words(__m256i sum[MAX_TILE], const __m256i *v, int n_words, int bits,
                                    const struct act_block *const a[MAX_TILE], int n_tokens, int k) {
    const int together = bits == 5 ? 4 : 2; // whose products fit 16 bits
    UNROLL for (int q = 0; q < n_words; q += together) {
        __m256i pairs[MAX_TILE];
        clear_pairs(pairs, n_tokens);
        UNROLL for (int i = q; i < q + together; i++) add_products(pairs, v[i], a, n_tokens, k + 4 * i);
        flush_pairs(sum, pairs, n_tokens);
    }
}

static ALWAYS_INLINE void dot4(__m256i sum[MAX_TILE], const uint8_t *codes, const struct act_block *const a[MAX_TILE],
                               int n_tokens, int k0) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i pairs[MAX_TILE];
    clear_pairs(pairs, n_tokens);
    for (int k = k0; k < k0 + 32; k += 8) {
        __m256i v = load(codes + k * 8);
        add_products(pairs, _mm256_and_si256(v, low), a, n_tokens, k);
        add_products(pairs, _mm256_and_si256(_mm256_srli_epi16(v, 4), low), a, n_tokens, k + 4);
    }
    flush_pairs(sum, pairs, n_tokens);
}

// How the codes of a type stand: signed bytes, or of 4, 5 or 6 bits, packed or (PACKED not set) as bytes.
enum { PACKED = 16 };

// sum[t] += codes * activations over values [k0, k0 + n), for the 8 rows that `codes` starts at.
static ALWAYS_INLINE void dot(__m256i sum[MAX_TILE], const uint8_t *codes, int how,
                              const struct act_block *const a[MAX_TILE], int n_tokens, int k0, int n) {
    const int bits = how & ~PACKED;
    __m256i v[8];
    if (bits == 4) dot4(sum, codes, a, n_tokens, k0);
    if (bits == 5 || bits == 6) {
        if (how == (5 | PACKED)) unpack5(codes, k0, v);
        if (how == (6 | PACKED)) unpack6(codes, k0, v);
        if (!(how & PACKED)) UNROLL for (int q = 0; q < n / 4; q++) v[q] = load(codes + (k0 + 4 * q) * 16);
        dot_words(sum, v, n / 4, bits, a, n_tokens, k0);
    }
    for (int k = k0; bits == 8 && k < k0 + n; k += 4) {
        __m256i w = load(codes + k * 16), magnitude = _mm256_abs_epi8(w);
        UNROLL for (int t = 0; t < n_tokens; t++) {
            __m256i x = _mm256_sign_epi8(broadcast4(a[t]->q + k), w);
            sum[t] = add_pairs(sum[t], _mm256_maddubs_epi16(magnitude, x));
        }
    }
}

// The block values of 8 rows (`half` of the panel) for every token (NUMERICS 3.2).
static ALWAYS_INLINE void block_l8(const uint8_t *rec, const uint8_t *codes, int half,
                                   const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    __m256i sum[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_setzero_si256();
    dot(sum, codes, 8, a, n_tokens, 0, 128);
    __m256 d = _mm256_load_ps((const float *)(const void *)rec + half * 8);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
        _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(sum[t]), _mm256_setzero_ps());
}

static ALWAYS_INLINE void block_group32(const uint8_t *rec, const uint8_t *codes, int half, int how, int32_t offset,
                                        bool has_min, const struct act_block *const a[MAX_TILE], int n_tokens,
                                        __m256 v[MAX_TILE]) {
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_setzero_ps();
    for (int g = 0; g < 4; g++) {
        __m256i sum[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_set1_epi32(-offset * a[t]->sum32[g]);
        dot(sum, codes, how, a, n_tokens, g * 32, 32);
        __m256 d = load_f16(rec + g * 32 + half * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(sum[t]), v[t]);
        if (!has_min) continue;
        __m256 m = load_f16(rec + 128 + g * 32 + half * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
            _mm256_fmadd_ps(m, _mm256_set1_ps((float)a[t]->sum32[g]), v[t]);
    }
}

// The minima of groups g and g + 1, and the sums of these groups, as pairs of 16 bits: |sum| <= 32 * 127.
static ALWAYS_INLINE __m256i load_minima(const uint8_t *mn, int g) {
    return _mm256_or_si256(load_u8(mn + g * 16), _mm256_slli_epi32(load_u8(mn + g * 16 + 16), 16));
}

static ALWAYS_INLINE __m256i sum_pair(const struct act_block *a, int g) {
    return _mm256_set1_epi32((int32_t)((uint32_t)a->sum32[g] & 0xffff) | (int32_t)((uint32_t)a->sum32[g + 1] << 16));
}

static ALWAYS_INLINE void block_k(const uint8_t *rec, const uint8_t *codes, int half, int how, enum dtype type,
                                  const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    const bool q6 = type == DT_Q6_K;
    const int groups = q6 ? 8 : 4, width = 128 / groups;
    __m256i j[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm256_setzero_si256();
    for (int g = 0; g < groups; g++) {
        const uint8_t *scales = rec + 64 + g * 16 + half * 8;
        __m256i sum[MAX_TILE], sc = q6 ? load_s8(scales) : load_u8(scales);
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm256_set1_epi32(q6 ? -32 * a[t]->sum16[g] : 0);
        dot(sum, codes, how, a, n_tokens, g * width, width);
        UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm256_add_epi32(j[t], _mm256_mullo_epi32(sc, sum[t]));
    }
    __m256 d = load_f16(rec + half * 16);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(j[t]), _mm256_setzero_ps());
    if (q6) return;
    __m256 m = load_f16(rec + 32 + half * 16);
    __m256i m0 = load_minima(rec + 128 + half * 8, 0), m2 = load_minima(rec + 128 + half * 8, 2);
    UNROLL for (int t = 0; t < n_tokens; t++) {
        __m256i n = _mm256_madd_epi16(m0, sum_pair(a[t], 0));
        n = _mm256_add_epi32(n, _mm256_madd_epi16(m2, sum_pair(a[t], 2)));
        v[t] = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(n), v[t]);
    }
}

static ALWAYS_INLINE void block(enum dtype type, const uint8_t *rec, const uint8_t *codes, int half, int how,
                                const struct act_block *const a[MAX_TILE], int n_tokens, __m256 v[MAX_TILE]) {
    switch (type) {
    case DT_L8:
        block_l8(rec, codes, half, a, n_tokens, v);
        break;
    case DT_Q8_0:
        block_group32(rec, codes, half, how, 0, false, a, n_tokens, v);
        break;
    case DT_Q4_0:
        block_group32(rec, codes, half, how, 8, false, a, n_tokens, v);
        break;
    case DT_Q4_1:
    case DT_Q5_1:
        block_group32(rec, codes, half, how, 0, true, a, n_tokens, v);
        break;
    case DT_Q5_0:
        block_group32(rec, codes, half, how, 16, false, a, n_tokens, v);
        break;
    default:
        block_k(rec, codes, half, how, type, a, n_tokens, v);
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

// A segment of a panel times n_tokens tokens: total[t] += its sum. type, wide and n_tokens are constants when inlined.
static ALWAYS_INLINE void tile(const struct matmul_job *j, const struct segment *s, enum dtype type, bool wide,
                               uint32_t t0, uint32_t part, int n_tokens, __m256 (*total)[2]) {
    const struct panel_layout *l = panel_layout(type);
    const uint8_t *rec = s->rec, *codes = wide ? s->wide : rec + l->codes;
    const uint32_t rec_bytes = l->bytes, codes_bytes = wide ? PANEL_WIDE_BYTES : l->bytes;
    const int how = panel_bits(type) | (is_packed(type) && !wide ? PACKED : 0);
    const struct act_block *a[MAX_TILE];
    __m256 acc[MAX_TILE][2];
    UNROLL for (int t = 0; t < n_tokens; t++) {
        a[t] = j->a + (size_t)matmul_row(j, t0 + (uint32_t)t) * j->w->n_blocks + s->first;
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < s->n_blocks; b++, rec += rec_bytes, codes += codes_bytes) {
        if (n_tokens == MAX_TILE)
            ahead(s, rec, rec_bytes, part);
        else
            scales_first(rec, l->codes);
        for (int half = 0; half < 2; half++) {
            __m256 v[MAX_TILE];
            block(type, rec, codes + half * 32, half, how, a, n_tokens, v);
            UNROLL for (int t = 0; t < n_tokens; t++) acc[t][half] =
                _mm256_fmadd_ps(_mm256_set1_ps(a[t]->d), v[t], acc[t][half]);
        }
        UNROLL for (int t = 0; t < n_tokens; t++) a[t]++;
    }
    UNROLL for (int t = 0; t < n_tokens; t++) {
        total[t][0] = _mm256_add_ps(total[t][0], acc[t][0]);
        total[t][1] = _mm256_add_ps(total[t][1], acc[t][1]);
    }
}

typedef void tiles_fn(const struct matmul_job *j, const struct segment *s, uint32_t t0, uint32_t n, __m256 (*total)[2]);

// One panel times n tokens of a block type, segment by segment; the totals of PASS tokens wait on the stack.
static ALWAYS_INLINE void segments(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n, enum dtype type,
                                   tiles_fn *tiles) {
    const struct weight *w = j->w;
    const uint8_t *rec = w->data + panel * w->panel_bytes;
    __m256 total[PASS][2];
    _Alignas(64) uint8_t wide[PER_SEGMENT * PANEL_WIDE_BYTES];
    for (uint32_t at = 0; at < n; at += PASS) {
        uint32_t m = n - at < PASS ? n - at : PASS; // a full pass belongs to a prompt: the panel will be in the cache
        for (uint32_t t = 0; t < m; t++) total[t][0] = total[t][1] = _mm256_setzero_ps();
        for (uint32_t b = 0; b < w->n_blocks; b += PER_SEGMENT) {
            struct segment s = {.rec = rec + (size_t)b * panel_layout(type)->bytes,
                                .first = b,
                                .n_tiles = m < 8 || m == PASS ? 0 : m / MAX_TILE};
            s.n_blocks = w->n_blocks - b < PER_SEGMENT ? w->n_blocks - b : PER_SEGMENT;
            if (is_packed(type) && m >= WIDE) {
                widen(s.rec, s.n_blocks, type, wide);
                s.wide = wide;
            }
            tiles(j, &s, t0 + at, m, total);
        }
        for (uint32_t t = 0; t < m; t++) store(j, panel, t0 + at + t, total[t]);
    }
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
    static void tiles_##type(const struct matmul_job *j, const struct segment *s, uint32_t t0, uint32_t n,             \
                             __m256(*total)[2]) {                                                                      \
        uint32_t t = 0;                                                                                                \
        for (; is_packed(DT_##type) && s->wide && n - t >= 4; t += 4)                                                  \
            tile(j, s, DT_##type, true, t0 + t, t / 4, 4, total + t);                                                  \
        for (; n - t >= 4; t += 4) tile(j, s, DT_##type, false, t0 + t, t / 4, 4, total + t);                          \
        for (; n - t >= 2; t += 2) tile(j, s, DT_##type, false, t0 + t, 0, 2, total + t);                              \
        if (n - t) tile(j, s, DT_##type, false, t0 + t, 0, 1, total + t);                                              \
    }                                                                                                                  \
    static void run_##type(const struct matmul_job *j, uint32_t panel, uint32_t t, uint32_t n) {                       \
        segments(j, panel, t, n, DT_##type, tiles_##type);                                                             \
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
