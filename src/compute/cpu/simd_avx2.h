// Shared by the AVX2 kernels.
#pragma once
#include "compute/cpu/kern.h"

#include <immintrin.h>

// All ones in lanes that hold NaN or Inf.
static inline __m256i not_finite8(__m256 x) {
    __m256i a = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32((int)REF_ABS_BITS));
    return _mm256_cmpgt_epi32(a, _mm256_set1_epi32((int)(REF_INF_BITS - 1)));
}

static inline bool any8(__m256i m) { return !_mm256_testz_si256(m, m); }

// NUMERICS 6.1. *bad collects lanes with NaN or Inf.
static inline __m256 exp2_8(__m256 x, __m256i *bad) {
    __m256i wild = not_finite8(x);
    __m256 live =
        _mm256_andnot_ps(_mm256_castsi256_ps(wild), _mm256_cmp_ps(x, _mm256_set1_ps(REF_EXP2_LOW), _CMP_GE_OQ));
    *bad = _mm256_or_si256(*bad, wild);
    x = _mm256_and_ps(live, _mm256_min_ps(x, _mm256_set1_ps(127.0f)));
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_castsi256_ps(_mm256_set1_epi32(0x3920e99a));
    p = _mm256_fmadd_ps(p, f, _mm256_castsi256_ps(_mm256_set1_epi32(0x3aafa2b5)));
    p = _mm256_fmadd_ps(p, f, _mm256_castsi256_ps(_mm256_set1_epi32(0x3c1d96de)));
    p = _mm256_fmadd_ps(p, f, _mm256_castsi256_ps(_mm256_set1_epi32(0x3d63576a)));
    p = _mm256_fmadd_ps(p, f, _mm256_castsi256_ps(_mm256_set1_epi32(0x3e75fded)));
    p = _mm256_fmadd_ps(p, f, _mm256_castsi256_ps(_mm256_set1_epi32(0x3f317218)));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(live, _mm256_castsi256_ps(bits));
}

// NUMERICS 12.1.
static inline __m256 tanh_8(__m256 x, __m256i *bad) {
    const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32((int)REF_ABS_BITS)), one = _mm256_set1_ps(1.0f);
    __m256i wild = not_finite8(x);
    __m256 sign = _mm256_andnot_ps(abs, x), a = _mm256_and_ps(abs, x), z = _mm256_mul_ps(a, a);
    __m256 p = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xbbcd9823u));
    p = _mm256_fmadd_ps(p, z, _mm256_castsi256_ps(_mm256_set1_epi32(0x3cac9e83)));
    p = _mm256_fmadd_ps(p, z, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xbd5c943du)));
    p = _mm256_fmadd_ps(p, z, _mm256_castsi256_ps(_mm256_set1_epi32(0x3e088693)));
    p = _mm256_fmadd_ps(p, z, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xbeaaaaa5u)));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(a, z), p, a), b = _mm256_min_ps(a, _mm256_set1_ps(REF_TANH_LARGE));
    __m256 e = exp2_8(_mm256_mul_ps(b, _mm256_set1_ps(2.0f * REF_LOG2E)), bad); // b is finite
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(one, e)));
    __m256 is_small = _mm256_cmp_ps(a, _mm256_set1_ps(REF_TANH_SMALL), _CMP_LT_OQ);
    __m256 y = _mm256_or_ps(_mm256_blendv_ps(large, small, is_small), sign);
    *bad = _mm256_or_si256(*bad, wild);
    return _mm256_andnot_ps(_mm256_castsi256_ps(wild), y);
}

static inline float max_lane8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// Eight int32 of -128 .. 255 to bytes.
static inline void store_low_bytes8(void *p, __m256i v) {
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i b = _mm256_shuffle_epi8(v, pick);
    __m128i out = _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    _mm_storel_epi64((__m128i *)p, out);
}
