// Attention, AVX2. The layout is that of attention_avx512.c: a lane is a key for the scores, a value of the output for
// P V. K stays signed: vpmaddubsw takes |k| and the query with k's sign. The weights p reach 255, whose products would
// saturate there: V is widened to 16 bits instead, even and odd keys apart, and the loads and shifts are shared by the
// queries of a tile.
#include "compute/cpu/kv_layout.h"
#include "compute/cpu/simd_avx2.h"

enum { BLOCK_REGS = REF_KEY_BLOCK / 8 };

struct state {
    float m, l;
    _Alignas(32) float o[LIMIT_HEAD_DIM];
};

struct query_state {
    struct state total, segment;
};

static void clear(struct state *s, uint32_t hd) {
    s->m = REF_NO_KEYS;
    s->l = 0.0f;
    memset(s->o, 0, hd * sizeof *s->o);
}

// merge of NUMERICS 6.3.
static void merge(struct state *s, float mb, float lb, float w, const float *o, uint32_t hd) {
    float m = s->m > mb ? s->m : mb, al = ref_pow2(s->m - m), be = ref_pow2(mb - m);
    s->l = fmaf(lb, be, s->l * al);
    s->m = m;
    const __m256 wb = _mm256_set1_ps(w * be), a = _mm256_set1_ps(al);
    for (uint32_t d = 0; d < hd; d += 8) {
        __m256 old = _mm256_mul_ps(_mm256_load_ps(s->o + d), a);
        _mm256_store_ps(s->o + d, _mm256_fmadd_ps(wb, _mm256_load_ps(o + d), old));
    }
}

static void end_block(struct query_state *s, uint32_t hd, uint32_t j0, uint32_t pos) {
    uint32_t next = j0 + REF_KEY_BLOCK;
    if (next % REF_KEY_SEGMENT != 0 && next <= pos) return;
    merge(&s->total, s->segment.m, s->segment.l, 1.0f, s->segment.o, hd);
    clear(&s->segment, hd);
}

static bool sees_block(const struct att_query *q, uint32_t j0) { return j0 <= q->pos && j0 + REF_KEY_BLOCK > q->lo; }

// All ones in the lanes of the valid keys among j .. j + 7.
static __m256i valid8(const struct att_query *q, uint32_t j) {
    __m256i key = _mm256_add_epi32(_mm256_set1_epi32((int)j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)q->lo), key);
    __m256i behind = _mm256_cmpgt_epi32(key, _mm256_set1_epi32((int)q->pos));
    return _mm256_andnot_si256(_mm256_or_si256(before, behind), _mm256_set1_epi32(-1));
}

// Scores of a block under the query's cap (NUMERICS 12.4). Out of line: most models have none.
static __attribute__((noinline)) void cap_scores(float *t, struct att_query *q, uint32_t j0) {
    const __m256 cap = _mm256_set1_ps(q->cap), inverse = _mm256_set1_ps(1.0f / q->cap);
    __m256i bad = _mm256_setzero_si256();
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8) {
        __m256 x = _mm256_and_ps(_mm256_load_ps(t + j), _mm256_castsi256_ps(valid8(q, j0 + j)));
        _mm256_store_ps(t + j, _mm256_mul_ps(cap, tanh_8(_mm256_mul_ps(x, inverse), &bad)));
    }
    if (any8(bad)) q->fault = true;
}

// Scores t of a block -> weights e, 0 where not valid; the integer maximum and the sum.
static void softmax(float *t, struct att_query *q, uint32_t j0, float *mb, float *lb) {
    __m256 max = _mm256_set1_ps(REF_NO_KEYS), l = _mm256_setzero_ps();
    __m256i bad = _mm256_setzero_si256();
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8) {
        __m256i valid = valid8(q, j0 + j);
        __m256 v = _mm256_load_ps(t + j);
        bad = _mm256_or_si256(bad, _mm256_and_si256(valid, not_finite8(v)));
        max = _mm256_max_ps(max, _mm256_blendv_ps(max, v, _mm256_castsi256_ps(valid)));
    }
    *mb = ceilf(max_lane8(max));
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8) {
        __m256 valid = _mm256_castsi256_ps(valid8(q, j0 + j));
        __m256 x = _mm256_and_ps(valid, _mm256_sub_ps(_mm256_load_ps(t + j), _mm256_set1_ps(*mb)));
        __m256 e = _mm256_and_ps(valid, exp2_8(x, &bad));
        l = _mm256_add_ps(l, e);
        _mm256_store_ps(t + j, e);
    }
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps(l, 1));
    l4 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    *lb = _mm_cvtss_f32(_mm_add_ss(l4, _mm_shuffle_ps(l4, l4, 1)));
    if (any8(bad)) q->fault = true;
}

// p of four neighbouring keys as two pairs of 16 bits: keys 0 and 2, keys 1 and 3.
struct weights {
    int32_t even[REF_KEY_BLOCK / 4], odd[REF_KEY_BLOCK / 4];
};

static float quantise_p(float *e, const float *dv, const struct att_query *q, uint32_t j0, struct weights *w) {
    __m256 max = _mm256_setzero_ps();
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8) {
        __m256i valid = valid8(q, j0 + j); // scales of keys that were never written may be anything
        __m256 f = _mm256_mul_ps(_mm256_load_ps(e + j), _mm256_maskload_ps(dv + j, valid));
        max = _mm256_max_ps(max, f);
        _mm256_store_ps(e + j, f);
    }
    float a = max_lane8(max);
    const __m256 r = _mm256_set1_ps(a < REF_TINY ? 0.0f : 255.0f / a);
    uint8_t p[REF_KEY_BLOCK];
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8)
        store_low_bytes8(p + j, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(e + j), r)));
    for (uint32_t j = 0; j < REF_KEY_BLOCK / 4; j++) {
        w->even[j] = p[4 * j] | p[4 * j + 2] << 16;
        w->odd[j] = p[4 * j + 1] | p[4 * j + 3] << 16;
    }
    return a * REF_INV255;
}

static ALWAYS_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

// Records of neighbouring blocks lie far apart, and the processor's own prefetcher begins anew with each page of 4 KiB:
// each line of K and V asks for its like in the next block.
static ALWAYS_INLINE void ahead(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

// Products of n queries with 16 keys from key j on.
static ALWAYS_INLINE void scores_i8(const uint8_t *k, const uint8_t *next, const struct att_query *q, int n,
                                    uint32_t hd, uint32_t j, float t[ATT_TILE][REF_KEY_BLOCK]) {
    __m256i s[ATT_TILE][2];
    UNROLL for (int i = 0; i < n; i++) s[i][0] = s[i][1] = _mm256_setzero_si256();
    for (uint32_t d = 0; d < hd; d += 4) UNROLL for (int r = 0; r < 2; r++) {
            __m256i v =
                _mm256_load_si256((const __m256i *)(const void *)(k + d * REF_KEY_BLOCK + j * 4 + (uint32_t)r * 32));
            __m256i magnitude = _mm256_abs_epi8(v);
            if (r == 0) ahead(next + d * REF_KEY_BLOCK + j * 4);
            UNROLL for (int i = 0; i < n; i++) {
                __m256i x = _mm256_sign_epi8(broadcast4(q[i].q8 + d), v);
                __m256i pairs = _mm256_maddubs_epi16(magnitude, x);
                s[i][r] = _mm256_add_epi32(s[i][r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int r = 0; r < 2; r++)
        _mm256_store_ps(t[i] + j + r * 8, _mm256_cvtepi32_ps(s[i][r]));
}

// 16 outputs from value d on.
static ALWAYS_INLINE void outputs_i8(const uint8_t *v, const uint8_t *next, const struct weights w[ATT_TILE], int n,
                                     uint32_t hd, uint32_t d, float o[ATT_TILE][LIMIT_HEAD_DIM]) {
    __m256i s[ATT_TILE][2];
    UNROLL for (int i = 0; i < n; i++) s[i][0] = s[i][1] = _mm256_setzero_si256();
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 4) UNROLL for (int r = 0; r < 2; r++) {
            __m256i x = _mm256_load_si256((const __m256i *)(const void *)(v + j * hd + d * 4 + (uint32_t)r * 32));
            if (r == 0) ahead(next + j * hd + d * 4);
            __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd = _mm256_srai_epi16(x, 8);
            UNROLL for (int i = 0; i < n; i++) {
                __m256i a = _mm256_madd_epi16(even, _mm256_set1_epi32(w[i].even[j / 4]));
                __m256i b = _mm256_madd_epi16(odd, _mm256_set1_epi32(w[i].odd[j / 4]));
                s[i][r] = _mm256_add_epi32(s[i][r], _mm256_add_epi32(a, b));
            }
        }
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int r = 0; r < 2; r++)
        _mm256_store_ps(o[i] + d + r * 8, _mm256_cvtepi32_ps(s[i][r]));
}

// next: the record of the block that follows, or rec.
static ALWAYS_INLINE void block_i8(const uint8_t *rec, const uint8_t *next, struct att_query *q, int n, uint32_t hd,
                                   uint32_t j0, struct query_state *state) {
    const uint8_t *vs = rec + kv_half_bytes(KV_I8, hd);
    const uint8_t *next_vs = next + kv_half_bytes(KV_I8, hd);
    const float *dk = kv_scales(rec, hd), *dv = kv_scales(vs, hd);
    _Alignas(32) float t[ATT_TILE][REF_KEY_BLOCK], o[ATT_TILE][LIMIT_HEAD_DIM];
    struct weights p[ATT_TILE];
    float mb[ATT_TILE] = {0}, lb[ATT_TILE] = {0}, w[ATT_TILE] = {0};
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 16) { // the scales
        ahead(next + hd * REF_KEY_BLOCK + j * 4);
        ahead(next_vs + hd * REF_KEY_BLOCK + j * 4);
    }
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 16) scores_i8(rec, next, q, n, hd, j, t);
    for (int i = 0; i < n; i++) {
        if (!sees_block(&q[i], j0)) {
            memset(&p[i], 0, sizeof p[i]);
            continue;
        }
        for (uint32_t j = 0; j < REF_KEY_BLOCK; j += 8) {
            __m256 d = _mm256_mul_ps(_mm256_set1_ps(q[i].qs), _mm256_loadu_ps(dk + j));
            _mm256_store_ps(t[i] + j, _mm256_mul_ps(_mm256_load_ps(t[i] + j), d));
        }
        if (q[i].cap > 0.0f) cap_scores(t[i], &q[i], j0);
        softmax(t[i], &q[i], j0, &mb[i], &lb[i]);
        w[i] = quantise_p(t[i], dv, &q[i], j0, &p[i]);
    }
    for (uint32_t d = 0; d < hd; d += 16) outputs_i8(vs, next_vs, p, n, hd, d, o);
    for (int i = 0; i < n; i++) {
        if (!sees_block(&q[i], j0)) continue;
        merge(&state[i].segment, mb[i], lb[i], w[i], o[i], hd);
        end_block(&state[i], hd, j0, q[i].pos);
    }
}

// ---- Float caches (NUMERICS 6.8): chains of fma over d for the scores, over keys for the outputs.

static ALWAYS_INLINE __m256 load_values(enum kv_type type, const uint8_t *p, uint32_t at) {
    if (type == KV_F32) return _mm256_loadu_ps((const float *)(const void *)p + at);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + at * 2)));
}

static ALWAYS_INLINE void query_float(enum kv_type type, const uint8_t *rec, struct att_query *q, uint32_t hd,
                                      uint32_t j0, struct query_state *state) {
    const uint8_t *vs = rec + kv_half_bytes(type, hd);
    _Alignas(32) float e[REF_KEY_BLOCK], o[LIMIT_HEAD_DIM];
    float mb, lb;
    __m256 t[BLOCK_REGS];
    if (!sees_block(q, j0)) return;
    UNROLL for (int r = 0; r < BLOCK_REGS; r++) t[r] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < hd; d++) {
        __m256 x = _mm256_set1_ps(q->q[d]);
        UNROLL for (uint32_t r = 0; r < BLOCK_REGS; r++) t[r] =
            _mm256_fmadd_ps(x, load_values(type, rec, d * REF_KEY_BLOCK + r * 8), t[r]);
    }
    UNROLL for (int r = 0; r < BLOCK_REGS; r++) _mm256_store_ps(e + r * 8, _mm256_mul_ps(t[r], _mm256_set1_ps(q->qs)));
    if (q->cap > 0.0f) cap_scores(e, q, j0);
    softmax(e, q, j0, &mb, &lb);
    uint32_t first = q->lo > j0 ? q->lo - j0 : 0, end = q->pos - j0 < REF_KEY_BLOCK ? q->pos - j0 + 1 : REF_KEY_BLOCK;
    for (uint32_t d = 0; d < hd; d += 16) {
        __m256 s0 = _mm256_setzero_ps(), s1 = s0;
        for (uint32_t j = first; j < end; j++) {
            __m256 w = _mm256_set1_ps(e[j]);
            s0 = _mm256_fmadd_ps(w, load_values(type, vs, j * hd + d), s0);
            s1 = _mm256_fmadd_ps(w, load_values(type, vs, j * hd + d + 8), s1);
        }
        _mm256_store_ps(o + d, s0);
        _mm256_store_ps(o + d + 8, s1);
    }
    merge(&state->segment, mb, lb, 1.0f, o, hd);
    end_block(state, hd, j0, q->pos);
}

static ALWAYS_INLINE void run(const struct kv_view *kv, struct att_query *q, int n) {
    uint32_t hd = kv->head_dim, first = q[0].lo, last = q[0].pos;
    struct query_state state[ATT_TILE];
    for (int i = 0; i < n; i++) {
        clear(&state[i].total, hd);
        clear(&state[i].segment, hd);
        first = q[i].lo < first ? q[i].lo : first;
        last = q[i].pos > last ? q[i].pos : last;
    }
    for (uint32_t b = first / REF_KEY_BLOCK; b <= last / REF_KEY_BLOCK; b++) {
        const uint8_t *rec = kv_record(kv, b), *next = b < last / REF_KEY_BLOCK ? kv_record(kv, b + 1) : rec;
        uint32_t j0 = b * REF_KEY_BLOCK;
        if (kv->type == KV_I8)
            block_i8(rec, next, q, n, hd, j0, state);
        else
            for (int i = 0; i < n; i++)
                if (kv->type == KV_F16)
                    query_float(KV_F16, rec, &q[i], hd, j0, &state[i]);
                else
                    query_float(KV_F32, rec, &q[i], hd, j0, &state[i]);
    }
    for (int i = 0; i < n; i++)
        for (uint32_t d = 0; d < hd; d += 8) {
            __m256 v = _mm256_div_ps(_mm256_load_ps(state[i].total.o + d), _mm256_set1_ps(state[i].total.l));
            _mm256_storeu_ps(q[i].out + d, v);
        }
}

void attention_avx2(const struct kv_view *kv, struct att_query *q, uint32_t n) {
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
