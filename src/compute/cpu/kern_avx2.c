// Row kernels, AVX2 with FMA. Values behind the last full register take the scalar form, which this file compiles with
// the same instructions.
#include "compute/cpu/simd_avx2.h"

// ref_quant for n a multiple of 8.
static float quant_full(const float *x, uint32_t n, int8_t *q, bool *fault) {
    const __m256i abs = _mm256_set1_epi32((int)REF_ABS_BITS);
    __m256i max = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        max = _mm256_max_epu32(max, _mm256_and_si256(v, abs));
    }
    __m128i m4 = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m4 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, 0x4e));
    m4 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, 0xb1));
    uint32_t m = (uint32_t)_mm_cvtsi128_si32(m4);
    if (m >= REF_INF_BITS) {
        *fault = true;
        m = 0;
    }
    float amax = ref_float(m);
    if (amax < REF_TINY) {
        memset(q, 0, n);
        return 0.0f;
    }
    const __m256 id = _mm256_set1_ps(127.0f / amax);
    for (uint32_t i = 0; i < n; i += 8)
        store_low_bytes8(q + i, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), id)));
    return amax * REF_INV127;
}

static float quant_avx2(const float *x, uint32_t n, int8_t *q, bool *fault) {
    return n % 8 == 0 ? quant_full(x, n, q, fault) : ref_quant(x, n, q, fault);
}

static void act_sums(struct act_block *a) {
    const __m256i bias = _mm256_set1_epi8((char)0x80);
    a->sum = 0;
    for (int g = 0; g < 4; g++) { // sums of 8 bytes, each 128 too large
        __m256i v = _mm256_xor_si256(_mm256_load_si256((const __m256i *)(const void *)(a->q + g * 32)), bias);
        v = _mm256_sad_epu8(v, _mm256_setzero_si256());
        v = _mm256_add_epi64(v, _mm256_shuffle_epi32(v, 0x4e));
        a->sum16[2 * g] = _mm256_extract_epi32(v, 0) - 16 * 128;
        a->sum16[2 * g + 1] = _mm256_extract_epi32(v, 4) - 16 * 128;
        a->sum32[g] = a->sum16[2 * g] + a->sum16[2 * g + 1];
        a->sum += a->sum32[g];
    }
}

static void quant_row_avx2(const float *x, uint32_t k, struct act_block *a, bool *fault) {
    for (; k >= REF_ACT_BLOCK; k -= REF_ACT_BLOCK, x += REF_ACT_BLOCK, a++) {
        a->d = quant_full(x, REF_ACT_BLOCK, a->q, fault);
        act_sums(a);
    }
    if (k == 0) return;
    float last[REF_ACT_BLOCK] = {0}; // zeros change neither the maximum nor the codes
    memcpy(last, x, k * sizeof *x);
    a->d = quant_full(last, REF_ACT_BLOCK, a->q, fault);
    act_sums(a);
}

// The 64 partial sums of NUMERICS 4 are the lanes of eight registers.
static float sum_of_squares(const float *x, uint32_t n) {
    _Alignas(32) float last[64] = {0};
    __m256 p[8];
    UNROLL for (int r = 0; r < 8; r++) p[r] = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64) UNROLL for (int r = 0; r < 8; r++) {
            __m256 v = _mm256_loadu_ps(x + i + r * 8);
            p[r] = _mm256_fmadd_ps(v, v, p[r]);
        }
    if (i < n) {
        memcpy(last, x + i, (n - i) * sizeof *x);
        UNROLL for (int r = 0; r < 8; r++) {
            __m256 v = _mm256_load_ps(last + r * 8);
            p[r] = _mm256_fmadd_ps(v, v, p[r]);
        }
    }
    UNROLL for (int h = 4; h > 0; h /= 2) UNROLL for (int r = 0; r < h; r++) p[r] = _mm256_add_ps(p[r], p[r + h]);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(p[0]), _mm256_extractf128_ps(p[0], 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

static void rmsnorm_avx2(const float *x, const float *w, uint32_t n, float eps, float *y) {
    float r = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(r));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++) y[i] = (x[i] * r) * w[i];
}

static void exp2_avx2(const float *x, uint32_t n, float *y, bool *fault) {
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, exp2_8(_mm256_loadu_ps(x + i), &bad));
    for (; i < n; i++) y[i] = ref_exp2(x[i], fault);
    if (any8(bad)) *fault = true;
}

static void silu_mul_avx2(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(g + i), e = exp2_8(_mm256_mul_ps(v, _mm256_set1_ps(-REF_LOG2E)), &bad);
        v = _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(v, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) h[i] = ref_silu(g[i], fault) * u[i];
    if (any8(bad)) *fault = true;
}

static void gelu_mul_avx2(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    const __m256 cubic = _mm256_set1_ps(REF_GELU_CUBIC), linear = _mm256_set1_ps(REF_GELU_LINEAR);
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(g + i), k = _mm256_fmadd_ps(_mm256_mul_ps(v, v), cubic, linear);
        v = _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0f), exp2_8(_mm256_mul_ps(v, k), &bad)));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(v, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) h[i] = ref_gelu(g[i], fault) * u[i];
    if (any8(bad)) *fault = true;
}

static void softcap_avx2(float *x, uint32_t n, float cap, bool *fault) {
    const float inverse = 1.0f / cap;
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = tanh_8(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)), &bad);
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_set1_ps(cap), v));
    }
    for (; i < n; i++) x[i] = ref_softcap(x[i], cap, inverse, fault);
    if (any8(bad)) *fault = true;
}

// NUMERICS 2.1, as f32.
static __m256 round_bf16_8(__m256 x, __m256i *bad) {
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    u = _mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u));
    __m256i wild = _mm256_or_si256(not_finite8(x), not_finite8(_mm256_castsi256_ps(u)));
    *bad = _mm256_or_si256(*bad, wild);
    return _mm256_castsi256_ps(_mm256_andnot_si256(wild, u));
}

static void add_avx2(const float *a, const float *b, uint32_t n, bool round_bf16, float *y, bool *fault) {
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
        _mm256_storeu_ps(y + i, round_bf16 ? round_bf16_8(v, &bad) : v);
    }
    for (; i < n; i++) {
        float v = a[i] + b[i];
        y[i] = round_bf16 ? ref_f32_from_bf16(ref_bf16_from_f32(v, fault)) : v;
    }
    if (any8(bad)) *fault = true;
}

static void axpy_avx2(float w, const float *x, uint32_t n, float *y) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_set1_ps(w), _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) y[i] = fmaf(w, x[i], y[i]);
}

static void rope_avx2(float *x, uint32_t n_freq, const float *cos, const float *sin) {
    uint32_t i = 0;
    for (; i + 8 <= n_freq; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + n_freq + i);
        __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + n_freq + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < n_freq; i++) {
        float a = x[i], b = x[i + n_freq], t = b * sin[i], u = a * sin[i];
        x[i] = fmaf(a, cos[i], -t);
        x[i + n_freq] = fmaf(b, cos[i], u);
    }
}

static void hadamard_avx2(float *x, uint32_t n) {
    if (n < 8) {
        ref_hadamard(x, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += 8) { // pairs inside a register: sum in the first lane, difference in the second
        __m256 v = _mm256_loadu_ps(x + i), o = _mm256_permute_ps(v, 0xb1);
        v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xaa);
        o = _mm256_permute_ps(v, 0x4e);
        v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xcc);
        o = _mm256_permute2f128_ps(v, v, 0x01);
        v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xf0);
        _mm256_storeu_ps(x + i, v);
    }
    for (uint32_t h = 8; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 8) {
                __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + h);
                _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
                _mm256_storeu_ps(x + j + h, _mm256_sub_ps(a, b));
            }
}

static int32_t best_avx2(const float *l, uint32_t n) {
    __m256 max = _mm256_set1_ps(-INFINITY);
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(l + i);
        bad = _mm256_or_si256(bad, not_finite8(v));
        max = _mm256_max_ps(max, v);
    }
    float best = max_lane8(max);
    for (; i < n; i++) {
        if (!ref_is_finite(l[i])) return -1;
        if (l[i] > best) best = l[i];
    }
    if (any8(bad)) return -1;
    for (i = 0; i + 8 <= n; i += 8) {
        int hit = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(l + i), _mm256_set1_ps(best), _CMP_EQ_OQ));
        if (hit) return (int32_t)i + __builtin_ctz((unsigned)hit);
    }
    while (i < n && l[i] != best) i++;
    return (int32_t)i;
}

static void sample_u_avx2(const float *l, uint32_t n, float best, float scale, uint32_t *u, bool *fault) {
    __m256i bad = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(l + i), _mm256_set1_ps(best)), _mm256_set1_ps(scale));
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(exp2_8(x, &bad), _mm256_set1_ps(0x1p30f)));
        _mm256_storeu_si256((__m256i *)(void *)(u + i), v);
    }
    for (; i < n; i++) u[i] = (uint32_t)rintf(ref_exp2((l[i] - best) * scale, fault) * 0x1p30f);
    if (any8(bad)) *fault = true;
}

const struct kern kern_avx2 = {
    .name = "cpu/avx2",
    .isa = ISA_AVX2,
    .panels = true,
    .quant_row = quant_row_avx2,
    .quant = quant_avx2,
    .rmsnorm = rmsnorm_avx2,
    .exp2 = exp2_avx2,
    .silu_mul = silu_mul_avx2,
    .gelu_mul = gelu_mul_avx2,
    .softcap = softcap_avx2,
    .add = add_avx2,
    .axpy = axpy_avx2,
    .rope = rope_avx2,
    .hadamard = hadamard_avx2,
    .matmul = matmul_avx2,
    .attention = attention_avx2,
    .best = best_avx2,
    .sample_u = sample_u_avx2,
};
