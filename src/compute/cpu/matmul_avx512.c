// W x for panels, AVX-512 with VNNI. A lane is a row; vpdpbusd multiplies unsigned codes by signed activations and adds
// four products to a lane without saturating. Signed codes are stored as code ^ 0x80 = code + 128: the sums start at
// -128 times the sum of the activations and so cost nothing extra. One load of 64 codes serves up to 8 tokens.
//
// Roof: decode reads each code once (memory); prefill issues one vpdpbusd (64 products) a cycle, and the
// multiplications of the scales take turns with it: 9 of 8 cycles for a group of 32 values, 41 of 32 for the K types.
#include "compute/cpu/matmul_panel.h"

#include <immintrin.h>

enum { MAX_TILE = 8 };

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

static ALWAYS_INLINE __m512i load(const uint8_t *p) { return _mm512_load_si512(p); }

// sum[t] += 64 codes * 4 activations from value k on.
static ALWAYS_INLINE void add_products(__m512i sum[MAX_TILE], __m512i codes, const struct act_block *const a[MAX_TILE],
                                       int n_tokens, int k) {
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = _mm512_dpbusd_epi32(sum[t], codes, broadcast4(a[t]->q + k));
}

// The low four bits of n and the bits above them, those in `mask`, of h.
static ALWAYS_INLINE __m512i join(__m512i n, __m512i h, char mask) {
    __m512i v = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), n, h, 0xca);
    return _mm512_and_si512(v, _mm512_set1_epi8(mask));
}

// 32 codes of five bits from value k on: v[i] has those of values k + 4 i .. k + 4 i + 3.
static ALWAYS_INLINE void unpack5(const uint8_t *codes, int k, __m512i v[8]) {
    const uint8_t *run = codes + k / 32 * PANEL_RUN5_BYTES;
    __m512i h = load(run), n = load(run + 64);
    v[0] = join(n, _mm512_slli_epi16(h, 4), 31);
    v[1] = join(_mm512_srli_epi16(n, 4), _mm512_slli_epi16(h, 3), 31);
    n = load(run + 128);
    v[2] = join(n, _mm512_slli_epi16(h, 2), 31);
    v[3] = join(_mm512_srli_epi16(n, 4), _mm512_slli_epi16(h, 1), 31);
    n = load(run + 192);
    v[4] = join(n, h, 31);
    v[5] = join(_mm512_srli_epi16(n, 4), _mm512_srli_epi16(h, 1), 31);
    n = load(run + 256);
    v[6] = join(n, _mm512_srli_epi16(h, 2), 31);
    v[7] = join(_mm512_srli_epi16(n, 4), _mm512_srli_epi16(h, 3), 31);
}

// 16 codes of six bits likewise.
static ALWAYS_INLINE void unpack6(const uint8_t *codes, int k, __m512i v[4]) {
    const uint8_t *run = codes + k / 16 * PANEL_RUN6_BYTES;
    __m512i h = load(run), n0 = load(run + 64), n1 = load(run + 128);
    v[0] = join(n0, _mm512_slli_epi16(h, 4), 63);
    v[1] = join(_mm512_srli_epi16(n0, 4), _mm512_slli_epi16(h, 2), 63);
    v[2] = join(n1, h, 63);
    v[3] = join(_mm512_srli_epi16(n1, 4), _mm512_srli_epi16(h, 2), 63);
}

// The codes of n records of a packed type, as bytes.
static ALWAYS_INLINE void widen(const uint8_t *rec, uint32_t n, enum dtype type, uint8_t *wide) {
    const uint32_t rec_bytes = panel_layout(type)->bytes, codes = panel_layout(type)->codes;
    const int n_words = panel_bits(type) == 5 ? 8 : 4;
    for (uint32_t i = 0; i < n; i++, rec += rec_bytes, wide += PANEL_WIDE_BYTES)
        for (int k = 0; k < 128; k += 4 * n_words) {
            __m512i v[8];
            if (n_words == 8)
                unpack5(rec + codes, k, v);
            else
                unpack6(rec + codes, k, v);
            UNROLL for (int q = 0; q < n_words; q++) _mm512_store_si512(wide + (k + 4 * q) * PANEL_ROWS, v[q]);
        }
}

// sum[t] += codes * activations over values [k0, k0 + n) of a block.
static ALWAYS_INLINE void dot(__m512i sum[MAX_TILE], const uint8_t *codes, int bits,
                              const struct act_block *const a[MAX_TILE], int n_tokens, int k0, int n) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i v5[8], v6[4];
    if (bits == 5) {
        unpack5(codes, k0, v5);
        UNROLL for (int q = 0; q < 8; q++) add_products(sum, v5[q], a, n_tokens, k0 + 4 * q);
    }
    if (bits == 6) {
        unpack6(codes, k0, v6);
        UNROLL for (int q = 0; q < 4; q++) add_products(sum, v6[q], a, n_tokens, k0 + 4 * q);
    }
    for (int k = k0; bits == 8 && k < k0 + n; k += 4) add_products(sum, load(codes + k * 16), a, n_tokens, k);
    for (int k = k0; bits == 4 && k < k0 + n; k += 8) {
        __m512i v = load(codes + k * 8);
        add_products(sum, _mm512_and_si512(v, low), a, n_tokens, k);
        add_products(sum, _mm512_and_si512(_mm512_srli_epi16(v, 4), low), a, n_tokens, k + 4);
    }
}

// The block value v[t] = t(n,b) of 16 rows for every token (NUMERICS 3.2).
static ALWAYS_INLINE void block_l8(const uint8_t *rec, const uint8_t *codes, const struct act_block *const a[MAX_TILE],
                                   int n_tokens, __m512 v[MAX_TILE]) {
    __m512i sum[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = start(128, a[t]->sum);
    dot(sum, codes, 8, a, n_tokens, 0, 128);
    __m512 d = _mm512_load_ps((const float *)(const void *)rec);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
        _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum[t]), _mm512_setzero_ps());
}

static ALWAYS_INLINE void block_group32(const uint8_t *rec, const uint8_t *codes, int bits, int32_t offset,
                                        bool has_min, const struct act_block *const a[MAX_TILE], int n_tokens,
                                        __m512 v[MAX_TILE]) {
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_setzero_ps();
    for (int g = 0; g < 4; g++) {
        __m512i sum[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = start(offset, a[t]->sum32[g]);
        dot(sum, codes, bits, a, n_tokens, g * 32, 32);
        __m512 d = load_f16(rec + g * 32);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum[t]), v[t]);
        if (!has_min) continue;
        __m512 m = load_f16(rec + 128 + g * 32);
        UNROLL for (int t = 0; t < n_tokens; t++) v[t] =
            _mm512_fmadd_ps(m, _mm512_set1_ps((float)a[t]->sum32[g]), v[t]);
    }
}

// The minima of groups g and g + 1, as pairs of 16 bits.
static ALWAYS_INLINE __m512i load_minima(const uint8_t *rec, int g) {
    return _mm512_or_si512(load_u8(rec + 128 + g * 16), _mm512_slli_epi32(load_u8(rec + 144 + g * 16), 16));
}

// The sums of groups g and g + 1 likewise: |sum| <= 32 * 127.
static ALWAYS_INLINE __m512i sum_pair(const struct act_block *a, int g) {
    return _mm512_set1_epi32((int32_t)((uint32_t)a->sum32[g] & 0xffff) | (int32_t)((uint32_t)a->sum32[g + 1] << 16));
}

// Q4_K and Q5_K (with minima, groups of 32), Q6_K (groups of 16, offset 32). Everything up to d is exact in int32. The
// minima come last, when the sums have left the registers.
static ALWAYS_INLINE void block_k(const uint8_t *rec, const uint8_t *codes, int bits, enum dtype type,
                                  const struct act_block *const a[MAX_TILE], int n_tokens, __m512 v[MAX_TILE]) {
    const bool q6 = type == DT_Q6_K;
    const int groups = q6 ? 8 : 4;
    __m512i j[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        __m512i sum[MAX_TILE];
        UNROLL for (int t = 0; t < n_tokens; t++) sum[t] = q6 ? start(32, a[t]->sum16[g]) : _mm512_setzero_si512();
        dot(sum, codes, bits, a, n_tokens, g * (128 / groups), 128 / groups);
        __m512i sc = q6 ? load_s8(rec + 64 + g * 16) : load_u8(rec + 64 + g * 16);
        UNROLL for (int t = 0; t < n_tokens; t++) j[t] = _mm512_add_epi32(j[t], _mm512_mullo_epi32(sc, sum[t]));
    }
    __m512 d = load_f16(rec);
    UNROLL for (int t = 0; t < n_tokens; t++) v[t] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(j[t]), _mm512_setzero_ps());
    if (q6) return;
    __m512 m = load_f16(rec + 32);
    __m512i m0 = load_minima(rec, 0), m2 = load_minima(rec, 2);
    UNROLL for (int t = 0; t < n_tokens; t++) {
        __m512i n = _mm512_dpwssd_epi32(_mm512_madd_epi16(m0, sum_pair(a[t], 0)), m2, sum_pair(a[t], 2));
        v[t] = _mm512_fnmadd_ps(m, _mm512_cvtepi32_ps(n), v[t]);
    }
}

// bits: of the codes as they stand there, 8 where they were widened.
static ALWAYS_INLINE void block(enum dtype type, const uint8_t *rec, const uint8_t *codes, int bits,
                                const struct act_block *const a[MAX_TILE], int n_tokens, __m512 v[MAX_TILE]) {
    switch (type) {
    case DT_L8:
        block_l8(rec, codes, a, n_tokens, v);
        break;
    case DT_Q8_0:
        block_group32(rec, codes, bits, 128, false, a, n_tokens, v);
        break;
    case DT_Q4_0:
        block_group32(rec, codes, bits, 8, false, a, n_tokens, v);
        break;
    case DT_Q4_1:
    case DT_Q5_1:
        block_group32(rec, codes, bits, 0, true, a, n_tokens, v);
        break;
    case DT_Q5_0:
        block_group32(rec, codes, bits, 16, false, a, n_tokens, v);
        break;
    default:
        block_k(rec, codes, bits, type, a, n_tokens, v);
    }
}

static ALWAYS_INLINE void store(const struct matmul_job *j, uint32_t panel, uint32_t t, __m512 v) {
    uint32_t row = panel * PANEL_ROWS, left = j->w->n_rows - row;
    __mmask16 rows = (__mmask16)(left >= PANEL_ROWS ? 0xffff : (1u << left) - 1);
    if (j->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(rows, j->bias + row));
    _mm512_mask_storeu_ps(j->y + t * j->y_stride + row, rows, v);
}

// A segment of a panel times n_tokens tokens: total[t] += its sum. type, wide and n_tokens are constants when inlined.
static ALWAYS_INLINE void tile(const struct matmul_job *j, const struct segment *s, enum dtype type, bool wide,
                               uint32_t t0, uint32_t part, int n_tokens, __m512 *total) {
    const struct panel_layout *l = panel_layout(type);
    const uint8_t *rec = s->rec, *codes = wide ? s->wide : rec + l->codes;
    const uint32_t rec_bytes = l->bytes, codes_bytes = wide ? PANEL_WIDE_BYTES : l->bytes;
    const struct act_block *a[MAX_TILE];
    __m512 acc[MAX_TILE];
    UNROLL for (int t = 0; t < n_tokens; t++) {
        a[t] = j->a + (size_t)matmul_row(j, t0 + (uint32_t)t) * j->w->n_blocks + s->first;
        acc[t] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < s->n_blocks; b++, rec += rec_bytes, codes += codes_bytes) {
        __m512 v[MAX_TILE];
        if (n_tokens == MAX_TILE)
            ahead(s, rec, rec_bytes, part);
        else
            scales_first(rec, l->codes);
        block(type, rec, codes, wide ? 8 : panel_bits(type), a, n_tokens, v);
        UNROLL for (int t = 0; t < n_tokens; t++) {
            acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(a[t]->d), v[t], acc[t]);
            a[t]++;
        }
    }
    UNROLL for (int t = 0; t < n_tokens; t++) total[t] = _mm512_add_ps(total[t], acc[t]);
}

typedef void tiles_fn(const struct matmul_job *j, const struct segment *s, uint32_t t0, uint32_t n, __m512 *total);

// One panel times n tokens of a block type.
static ALWAYS_INLINE void segments(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n, enum dtype type,
                                   tiles_fn *tiles) {
    const struct weight *w = j->w;
    const uint8_t *rec = w->data + panel * w->panel_bytes;
    __m512 total[PASS];
    _Alignas(64) uint8_t wide[PER_SEGMENT * PANEL_WIDE_BYTES];
    for (uint32_t at = 0; at < n; at += PASS) {
        uint32_t m = n - at < PASS ? n - at : PASS; // a full pass belongs to a prompt: the panel will be in the cache
        for (uint32_t t = 0; t < m; t++) total[t] = _mm512_setzero_ps();
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
    static void tiles_##type(const struct matmul_job *j, const struct segment *s, uint32_t t0, uint32_t n,             \
                             __m512 *total) {                                                                          \
        uint32_t t = 0;                                                                                                \
        for (; is_packed(DT_##type) && s->wide && n - t >= 8; t += 8)                                                  \
            tile(j, s, DT_##type, true, t0 + t, t / 8, 8, total + t);                                                  \
        for (; n - t >= 8; t += 8) tile(j, s, DT_##type, false, t0 + t, t / 8, 8, total + t);                          \
        for (; n - t >= 4; t += 4) tile(j, s, DT_##type, false, t0 + t, 0, 4, total + t);                              \
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

void matmul_avx512(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n) {
    static void (*const run[])(const struct matmul_job *, uint32_t, uint32_t, uint32_t) = {
        [DT_F32] = run_F32,   [DT_F16] = run_F16,   [DT_BF16] = run_BF16, [DT_L8] = run_L8,
        [DT_Q8_0] = run_Q8_0, [DT_Q4_0] = run_Q4_0, [DT_Q4_1] = run_Q4_1, [DT_Q5_0] = run_Q5_0,
        [DT_Q5_1] = run_Q5_1, [DT_Q4_K] = run_Q4_K, [DT_Q5_K] = run_Q5_K, [DT_Q6_K] = run_Q6_K,
    };
    run[j->w->type](j, panel, t0, n);
}
