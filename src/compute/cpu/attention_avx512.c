// Attention, AVX-512. K of a block stands as [hd/4][64 keys][4], so that a lane is a key and four registers hold the
// scores of a block; V as [64/4][hd][4], so that a lane is a value of the output. Up to ATT_TILE queries of one kv head
// share each load. Products of 8 bits by vpdpbusd: K is stored as code + 128 (the sums start at -128 * sum of q), and
// the weights p of V are unsigned already.
//
// Roof: decode reads every key once; prefill is bound by exp2 and the requantisation of p, some 20 float operations a
// key and query beside 2 * hd products.
#include "compute/cpu/kv_layout.h"
#include "compute/cpu/simd_avx512.h"

enum { BLOCK_REGS = REF_KEY_BLOCK / 16, HD_REGS = LIMIT_HEAD_DIM / 16 };

struct state {
    float m, l;
    __m512 o[HD_REGS];
};

struct query_state {
    struct state total, segment;
};

static void clear(struct state *s, uint32_t hd) {
    s->m = REF_NO_KEYS;
    s->l = 0.0f;
    for (uint32_t i = 0; i < hd / 16; i++) s->o[i] = _mm512_setzero_ps();
}

// merge of NUMERICS 6.3; a factor of exactly 1 is left out.
static void merge(struct state *s, float mb, float lb, float w, const __m512 *o, uint32_t hd) {
    float m = s->m > mb ? s->m : mb, al = ref_pow2(s->m - m), be = ref_pow2(mb - m);
    s->l = fmaf(lb, be, s->l * al);
    s->m = m;
    const __m512 wb = _mm512_set1_ps(w * be), a = _mm512_set1_ps(al);
    if (al == 1.0f)
        for (uint32_t i = 0; i < hd / 16; i++) s->o[i] = _mm512_fmadd_ps(wb, o[i], s->o[i]);
    else
        for (uint32_t i = 0; i < hd / 16; i++) s->o[i] = _mm512_fmadd_ps(wb, o[i], _mm512_mul_ps(s->o[i], a));
}

static void end_block(struct query_state *s, uint32_t hd, uint32_t j0, uint32_t pos) {
    uint32_t next = j0 + REF_KEY_BLOCK;
    if (next % REF_KEY_SEGMENT != 0 && next <= pos) return;
    merge(&s->total, s->segment.m, s->segment.l, 1.0f, s->segment.o, hd);
    clear(&s->segment, hd);
}

// The valid keys of the block at j0, a bit each.
static uint64_t valid_keys(const struct att_query *q, uint32_t j0) {
    if (j0 > q->pos || j0 + REF_KEY_BLOCK <= q->lo) return 0;
    uint64_t m = ~0ull;
    if (q->pos - j0 < REF_KEY_BLOCK - 1) m = (1ull << (q->pos - j0 + 1)) - 1;
    if (q->lo > j0) m &= ~0ull << (q->lo - j0);
    return m;
}

static float sum_l(const __m512 e[BLOCK_REGS]) {
    __m256 l = _mm256_setzero_ps();
    for (int i = 0; i < BLOCK_REGS; i++) {
        l = _mm256_add_ps(l, _mm512_castps512_ps256(e[i]));
        l = _mm256_add_ps(l, _mm512_extractf32x8_ps(e[i], 1));
    }
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps(l, 1));
    l4 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l4, _mm_shuffle_ps(l4, l4, 1)));
}

// 16 scores, of which the keys of m are valid, under the query's cap (NUMERICS 12.4). Out of line: most models have
// none.
static __attribute__((noinline)) __m512 cap16(__m512 t, __mmask16 m, struct att_query *q) {
    __mmask16 bad = 0;
    t = tanh_16(m, _mm512_mul_ps(t, _mm512_set1_ps(1.0f / q->cap)), &bad);
    if (bad) q->fault = true;
    return _mm512_mul_ps(_mm512_set1_ps(q->cap), t);
}

// Scores t -> weights e; the integer maximum and the sum of the block.
static void softmax(__m512 t[BLOCK_REGS], uint64_t valid, float *mb, float *lb, bool *fault) {
    __m512 max = _mm512_set1_ps(REF_NO_KEYS);
    __mmask16 bad = 0;
    for (int i = 0; i < BLOCK_REGS; i++) {
        __mmask16 m = (__mmask16)(valid >> (16 * i));
        bad |= not_finite16(m, t[i]);
        max = _mm512_mask_max_ps(max, m, max, t[i]);
    }
    *mb = ceilf(_mm512_reduce_max_ps(max));
    for (int i = 0; i < BLOCK_REGS; i++)
        t[i] = exp2_16((__mmask16)(valid >> (16 * i)), _mm512_sub_ps(t[i], _mm512_set1_ps(*mb)), &bad);
    *lb = sum_l(t);
    if (bad) *fault = true;
}

// e * dv -> p in 0..255; returns the scale w.
static float quantise_p(const __m512 e[BLOCK_REGS], const float *dv, uint64_t valid, uint8_t *p) {
    __m512 f[BLOCK_REGS], max = _mm512_setzero_ps();
    for (int i = 0; i < BLOCK_REGS; i++) {
        f[i] = _mm512_mul_ps(e[i], _mm512_maskz_loadu_ps((__mmask16)(valid >> (16 * i)), dv + i * 16));
        max = _mm512_max_ps(max, f[i]);
    }
    float a = _mm512_reduce_max_ps(max);
    const __m512 r = _mm512_set1_ps(a < REF_TINY ? 0.0f : 255.0f / a);
    for (int i = 0; i < BLOCK_REGS; i++)
        _mm_store_si128((__m128i *)(void *)(p + i * 16),
                        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(f[i], r))));
    return a * REF_INV255;
}

static ALWAYS_INLINE __m512i broadcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

// Records of neighbouring blocks lie far apart, and the processor's own prefetcher begins anew with each page of 4 KiB:
// each load of K and V asks for its like in the next block.
static ALWAYS_INLINE void ahead(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

// Scores of n queries against the 64 keys of a block.
static ALWAYS_INLINE void scores_i8(const uint8_t *k, const uint8_t *next, const struct att_query *q,
                                    const int32_t *q_sum, int n, uint32_t hd, __m512i s[ATT_TILE][BLOCK_REGS]) {
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int r = 0; r < BLOCK_REGS; r++) s[i][r] =
        _mm512_set1_epi32(-128 * q_sum[i]);
    UNROLL for (int r = 0; r < BLOCK_REGS; r++) { // the scales
        ahead(next + hd * REF_KEY_BLOCK + r * 64);
        ahead(next + kv_half_bytes(KV_I8, hd) + hd * REF_KEY_BLOCK + r * 64);
    }
    for (uint32_t d = 0; d < hd; d += 4) {
        __m512i v[BLOCK_REGS];
        UNROLL for (int r = 0; r < BLOCK_REGS; r++) {
            v[r] = _mm512_load_si512(k + d * REF_KEY_BLOCK + r * 64);
            ahead(next + d * REF_KEY_BLOCK + r * 64);
        }
        UNROLL for (int i = 0; i < n; i++) {
            __m512i x = broadcast4(q[i].q8 + d);
            UNROLL for (int r = 0; r < BLOCK_REGS; r++) s[i][r] = _mm512_dpbusd_epi32(s[i][r], v[r], x);
        }
    }
}

// n_regs * 16 outputs from value d on: o = sum of p * V.
static ALWAYS_INLINE void outputs_i8(const uint8_t *v, const uint8_t *next, const uint8_t p[ATT_TILE][REF_KEY_BLOCK],
                                     int n, uint32_t hd, uint32_t d, int n_regs, __m512 o[ATT_TILE][HD_REGS]) {
    __m512i s[ATT_TILE][8];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int r = 0; r < n_regs; r++) s[i][r] = _mm512_setzero_si512();
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 4) {
        __m512i x[8];
        UNROLL for (int r = 0; r < n_regs; r++) {
            x[r] = _mm512_load_si512(v + j * hd + d * 4 + r * 64);
            ahead(next + j * hd + d * 4 + r * 64);
        }
        UNROLL for (int i = 0; i < n; i++) {
            __m512i w = broadcast4(p[i] + j);
            UNROLL for (int r = 0; r < n_regs; r++) s[i][r] = _mm512_dpbusd_epi32(s[i][r], w, x[r]);
        }
    }
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int r = 0; r < n_regs; r++) o[i][d / 16 + (uint32_t)r] =
        _mm512_cvtepi32_ps(s[i][r]);
}

// next: the record of the block that follows, or rec.
static ALWAYS_INLINE void block_i8(const uint8_t *rec, const uint8_t *next, struct att_query *q, const int32_t *q_sum,
                                   int n, uint32_t hd, uint32_t j0, struct query_state *state) {
    const uint8_t *vs = rec + kv_half_bytes(KV_I8, hd);
    const uint8_t *next_vs = next + kv_half_bytes(KV_I8, hd);
    const float *dk = kv_scales(rec, hd), *dv = kv_scales(vs, hd);
    _Alignas(64) uint8_t p[ATT_TILE][REF_KEY_BLOCK];
    float mb[ATT_TILE] = {0}, lb[ATT_TILE] = {0}, w[ATT_TILE] = {0};
    uint64_t valid[ATT_TILE];
    __m512i s[ATT_TILE][BLOCK_REGS];
    __m512 o[ATT_TILE][HD_REGS];
    scores_i8(rec, next, q, q_sum, n, hd, s);
    for (int i = 0; i < n; i++) {
        __m512 t[BLOCK_REGS];
        valid[i] = valid_keys(&q[i], j0);
        if (!valid[i]) {
            memset(p[i], 0, sizeof p[i]);
            continue;
        }
        for (int r = 0; r < BLOCK_REGS; r++) {
            __m512 d = _mm512_maskz_loadu_ps((__mmask16)(valid[i] >> (16 * r)), dk + r * 16);
            t[r] = _mm512_mul_ps(_mm512_cvtepi32_ps(s[i][r]), _mm512_mul_ps(_mm512_set1_ps(q[i].qs), d));
        }
        for (int r = 0; q[i].cap > 0.0f && r < BLOCK_REGS; r++)
            t[r] = cap16(t[r], (__mmask16)(valid[i] >> (16 * r)), &q[i]);
        softmax(t, valid[i], &mb[i], &lb[i], &q[i].fault);
        w[i] = quantise_p(t, dv, valid[i], p[i]);
    }
    uint32_t d = 0;
    for (; n <= 2 && d + 128 <= hd; d += 128) outputs_i8(vs, next_vs, p, n, hd, d, 8, o); // V in one stream
    for (; d + 64 <= hd; d += 64) outputs_i8(vs, next_vs, p, n, hd, d, 4, o);
    for (; d < hd; d += 16) outputs_i8(vs, next_vs, p, n, hd, d, 1, o);
    for (int i = 0; i < n; i++) {
        if (!valid[i]) continue;
        merge(&state[i].segment, mb[i], lb[i], w[i], o[i], hd);
        end_block(&state[i], hd, j0, q[i].pos);
    }
}

// ---- Float caches (NUMERICS 6.8): chains of fma over d for the scores, over keys for the outputs.

static ALWAYS_INLINE __m512 load_values(enum kv_type type, const uint8_t *p, uint32_t at) {
    if (type == KV_F32) return _mm512_loadu_ps((const float *)(const void *)p + at);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + at * 2)));
}

static ALWAYS_INLINE void query_float(enum kv_type type, const uint8_t *rec, struct att_query *q, uint32_t hd,
                                      uint32_t j0, struct query_state *state) {
    const uint8_t *vs = rec + kv_half_bytes(type, hd);
    uint64_t valid = valid_keys(q, j0);
    _Alignas(64) float e[REF_KEY_BLOCK];
    float mb, lb;
    __m512 t[BLOCK_REGS], o[HD_REGS];
    if (!valid) return;
    UNROLL for (int r = 0; r < BLOCK_REGS; r++) t[r] = _mm512_setzero_ps();
    for (uint32_t d = 0; d < hd; d++) {
        __m512 x = _mm512_set1_ps(q->q[d]);
        UNROLL for (uint32_t r = 0; r < BLOCK_REGS; r++) t[r] =
            _mm512_fmadd_ps(x, load_values(type, rec, d * REF_KEY_BLOCK + r * 16), t[r]);
    }
    for (int r = 0; r < BLOCK_REGS; r++) t[r] = _mm512_mul_ps(t[r], _mm512_set1_ps(q->qs));
    for (int r = 0; q->cap > 0.0f && r < BLOCK_REGS; r++) t[r] = cap16(t[r], (__mmask16)(valid >> (16 * r)), q);
    softmax(t, valid, &mb, &lb, &q->fault);
    for (int r = 0; r < BLOCK_REGS; r++) _mm512_store_ps(e + r * 16, t[r]);
    uint32_t first = (uint32_t)__builtin_ctzll(valid), end = REF_KEY_BLOCK - (uint32_t)__builtin_clzll(valid);
    for (uint32_t d = 0; d < hd; d += 16) {
        __m512 s = _mm512_setzero_ps();
        for (uint32_t j = first; j < end; j++)
            s = _mm512_fmadd_ps(_mm512_set1_ps(e[j]), load_values(type, vs, j * hd + d), s);
        o[d / 16] = s;
    }
    merge(&state->segment, mb, lb, 1.0f, o, hd);
    end_block(state, hd, j0, q->pos);
}

static ALWAYS_INLINE void run(const struct kv_view *kv, struct att_query *q, int n) {
    uint32_t hd = kv->head_dim, first = q[0].lo, last = q[0].pos;
    struct query_state state[ATT_TILE];
    int32_t q_sum[ATT_TILE] = {0};
    for (int i = 0; i < n; i++) {
        clear(&state[i].total, hd);
        clear(&state[i].segment, hd);
        first = q[i].lo < first ? q[i].lo : first;
        last = q[i].pos > last ? q[i].pos : last;
        for (uint32_t d = 0; kv->type == KV_I8 && d < hd; d++) q_sum[i] += q[i].q8[d];
    }
    for (uint32_t b = first / REF_KEY_BLOCK; b <= last / REF_KEY_BLOCK; b++) {
        const uint8_t *rec = kv_record(kv, b), *next = b < last / REF_KEY_BLOCK ? kv_record(kv, b + 1) : rec;
        uint32_t j0 = b * REF_KEY_BLOCK;
        if (kv->type == KV_I8)
            block_i8(rec, next, q, q_sum, n, hd, j0, state);
        else
            for (int i = 0; i < n; i++)
                if (kv->type == KV_F16)
                    query_float(KV_F16, rec, &q[i], hd, j0, &state[i]);
                else
                    query_float(KV_F32, rec, &q[i], hd, j0, &state[i]);
    }
    for (int i = 0; i < n; i++)
        for (uint32_t r = 0; r < hd / 16; r++)
            _mm512_storeu_ps(q[i].out + r * 16, _mm512_div_ps(state[i].total.o[r], _mm512_set1_ps(state[i].total.l)));
}

void attention_avx512(const struct kv_view *kv, struct att_query *q, uint32_t n) {
    switch (n) {
    case 4:
        run(kv, q, 4);
        break;
    case 3:
        run(kv, q, 3);
        break;
    case 2:
        run(kv, q, 2);
        break;
    default:
        run(kv, q, 1);
    }
}
