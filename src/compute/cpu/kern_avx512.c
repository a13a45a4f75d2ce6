// Row kernels, AVX-512. All of them are bound by memory or by a few operations a value; what matters is that each does
// the operations of its reference in the same association.
#include "compute/cpu/simd_avx512.h"

// Codes and scale of 128 values; returns the scale.
static float quant128(const float *x, int8_t *q, bool *fault) {
    const __m512i abs = _mm512_set1_epi32((int)REF_ABS_BITS);
    __m512i max = _mm512_setzero_si512();
    for (int i = 0; i < 128; i += 16) max = _mm512_max_epu32(max, _mm512_and_si512(_mm512_loadu_si512(x + i), abs));
    uint32_t m = _mm512_reduce_max_epu32(max);
    if (m >= REF_INF_BITS) {
        *fault = true;
        m = 0;
    }
    float amax = ref_float(m);
    if (amax < REF_TINY) {
        memset(q, 0, 128);
        return 0.0f;
    }
    const __m512 id = _mm512_set1_ps(127.0f / amax);
    for (int i = 0; i < 128; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), id));
        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtepi32_epi8(v));
    }
    return amax * REF_INV127;
}

static void act_sums(struct act_block *a) {
    for (int h = 0; h < 2; h++) {
        __m512i v = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(a->q + h * 64));
        v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
        v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
        _mm512_mask_compressstoreu_epi32(a->sum16 + h * 4, 0x1111, v);
    }
    a->sum = 0;
    for (int g = 0; g < 4; g++) {
        a->sum32[g] = a->sum16[2 * g] + a->sum16[2 * g + 1];
        a->sum += a->sum32[g];
    }
}

static void quant_row_avx512(const float *x, uint32_t k, struct act_block *a, bool *fault) {
    for (; k >= REF_ACT_BLOCK; k -= REF_ACT_BLOCK, x += REF_ACT_BLOCK, a++) {
        a->d = quant128(x, a->q, fault);
        act_sums(a);
    }
    if (k == 0) return;
    float last[REF_ACT_BLOCK] = {0}; // zeros change neither the maximum nor the codes
    memcpy(last, x, k * sizeof *x);
    a->d = quant128(last, a->q, fault);
    act_sums(a);
}

static float quant_avx512(const float *x, uint32_t n, int8_t *q, bool *fault) {
    if (n == 128) return quant128(x, q, fault);
    __m512i max = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512i v = _mm512_maskz_loadu_epi32(lanes16(n - i), x + i);
        max = _mm512_max_epu32(max, _mm512_and_si512(v, _mm512_set1_epi32((int)REF_ABS_BITS)));
    }
    uint32_t m = _mm512_reduce_max_epu32(max);
    if (m >= REF_INF_BITS) {
        *fault = true;
        m = 0;
    }
    float amax = ref_float(m);
    if (amax < REF_TINY) {
        memset(q, 0, n);
        return 0.0f;
    }
    const __m512 id = _mm512_set1_ps(127.0f / amax);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes16(n - i);
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), id));
        _mm512_mask_cvtepi32_storeu_epi8(q + i, lanes, v);
    }
    return amax * REF_INV127;
}

// The 64 partial sums of NUMERICS 4 are the lanes of four registers.
static float sum_of_squares(const float *x, uint32_t n) {
    __m512 p[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64) UNROLL for (uint32_t r = 0; r < 4; r++) {
            __m512 v = _mm512_loadu_ps(x + i + r * 16);
            p[r] = _mm512_fmadd_ps(v, v, p[r]);
        }
    UNROLL for (uint32_t r = 0; r < 4; r++) {
        if (i + r * 16 >= n) break;
        __m512 v = _mm512_maskz_loadu_ps(lanes16(n - i - r * 16), x + i + r * 16);
        p[r] = _mm512_fmadd_ps(v, v, p[r]);
    }
    __m512 s16 = _mm512_add_ps(_mm512_add_ps(p[0], p[2]), _mm512_add_ps(p[1], p[3]));
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(s16), _mm512_extractf32x8_ps(s16, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

static void rmsnorm_avx512(const float *x, const float *w, uint32_t n, float eps, float *y) {
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

static void exp2_avx512(const float *x, uint32_t n, float *y, bool *fault) {
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        _mm512_mask_storeu_ps(y + i, m, exp2_16(m, _mm512_maskz_loadu_ps(m, x + i), &bad));
    }
    if (bad) *fault = true;
}

static void silu_mul_avx512(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, g + i);
        __m512 e = exp2_16(m, _mm512_mul_ps(v, _mm512_set1_ps(-REF_LOG2E)), &bad);
        v = _mm512_div_ps(v, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_mask_storeu_ps(h + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, u + i)));
    }
    if (bad) *fault = true;
}

static void gelu_mul_avx512(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    const __m512 cubic = _mm512_set1_ps(REF_GELU_CUBIC), linear = _mm512_set1_ps(REF_GELU_LINEAR);
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, g + i), k = _mm512_fmadd_ps(_mm512_mul_ps(v, v), cubic, linear);
        v = _mm512_div_ps(v, _mm512_add_ps(_mm512_set1_ps(1.0f), exp2_16(m, _mm512_mul_ps(v, k), &bad)));
        _mm512_mask_storeu_ps(h + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, u + i)));
    }
    if (bad) *fault = true;
}

static void softcap_avx512(float *x, uint32_t n, float cap, bool *fault) {
    const __m512 inverse = _mm512_set1_ps(1.0f / cap);
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = tanh_16(m, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inverse), &bad);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(_mm512_set1_ps(cap), v));
    }
    if (bad) *fault = true;
}

// NUMERICS 2.1, as f32.
static __m512 round_bf16_16(__mmask16 m, __m512 x, __mmask16 *bad) {
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    u = _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u));
    __mmask16 wild = not_finite16(m, x) | not_finite16(m, _mm512_castsi512_ps(u));
    *bad |= wild;
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32((__mmask16)~wild, u));
}

static void add_avx512(const float *a, const float *b, uint32_t n, bool round_bf16, float *y, bool *fault) {
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i));
        _mm512_mask_storeu_ps(y + i, m, round_bf16 ? round_bf16_16(m, v, &bad) : v);
    }
    if (bad) *fault = true;
}

static void axpy_avx512(float w, const float *x, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_fmadd_ps(_mm512_set1_ps(w), v, _mm512_maskz_loadu_ps(m, y + i)));
    }
}

static void rope_avx512(float *x, uint32_t n_freq, const float *cos, const float *sin) {
    for (uint32_t i = 0; i < n_freq; i += 16) {
        __mmask16 m = lanes16(n_freq - i);
        __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + n_freq + i);
        __m512 c = _mm512_maskz_loadu_ps(m, cos + i), s = _mm512_maskz_loadu_ps(m, sin + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + n_freq + i, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

// One stage of pairs inside a register: `other` holds each lane's partner, the lanes of `second` are the b of a pair.
static ALWAYS_INLINE __m512 pairs(__m512 v, __m512 other, __mmask16 second) {
    return _mm512_mask_sub_ps(_mm512_add_ps(v, other), second, other, v);
}

static void hadamard_avx512(float *x, uint32_t n) {
    if (n < 16) {
        ref_hadamard(x, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        v = pairs(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
        v = pairs(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
        v = pairs(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
        v = pairs(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
        _mm512_storeu_ps(x + i, v);
    }
    for (uint32_t h = 16; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 16) {
                __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + h);
                _mm512_storeu_ps(x + j, _mm512_add_ps(a, b));
                _mm512_storeu_ps(x + j + h, _mm512_sub_ps(a, b));
            }
}

static int32_t best_avx512(const float *l, uint32_t n) {
    __m512 max = _mm512_set1_ps(-INFINITY);
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, l + i);
        bad |= not_finite16(m, v);
        max = _mm512_mask_max_ps(max, m, max, v);
    }
    if (bad) return -1;
    const __m512 best = _mm512_set1_ps(_mm512_reduce_max_ps(max));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __mmask16 hit = _mm512_mask_cmp_ps_mask(m, _mm512_maskz_loadu_ps(m, l + i), best, _CMP_EQ_OQ);
        if (hit) return (int32_t)(i + (uint32_t)__builtin_ctz(hit));
    }
    return -1;
}

static void sample_u_avx512(const float *l, uint32_t n, float best, float scale, uint32_t *u, bool *fault) {
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes16(n - i);
        __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(m, l + i), _mm512_set1_ps(best));
        __m512 e = exp2_16(m, _mm512_mul_ps(x, _mm512_set1_ps(scale)), &bad);
        _mm512_mask_storeu_epi32(u + i, m, _mm512_cvtps_epi32(_mm512_mul_ps(e, _mm512_set1_ps(0x1p30f))));
    }
    if (bad) *fault = true;
}

const struct kern kern_avx512 = {
    .name = "cpu/avx512",
    .isa = ISA_AVX512,
    .panels = true,
    .code_xor = 0x80,
    .kv_xor = 0x80,
    .quant_row = quant_row_avx512,
    .quant = quant_avx512,
    .rmsnorm = rmsnorm_avx512,
    .exp2 = exp2_avx512,
    .silu_mul = silu_mul_avx512,
    .gelu_mul = gelu_mul_avx512,
    .softcap = softcap_avx512,
    .add = add_avx512,
    .axpy = axpy_avx512,
    .rope = rope_avx512,
    .hadamard = hadamard_avx512,
    .matmul = matmul_avx512,
    .attention = attention_avx512,
    .best = best_avx512,
    .sample_u = sample_u_avx512,
};
