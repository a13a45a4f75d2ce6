// Shared by the AVX-512 kernels.
#pragma once
#include "compute/cpu/kern.h"

#include <immintrin.h>

// The lanes of the first n of 16 values.
static inline __mmask16 lanes16(uint32_t n) { return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1); }

// Lanes of m that hold NaN or Inf.
static inline __mmask16 not_finite16(__mmask16 m, __m512 x) {
    __m512i a = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)REF_ABS_BITS));
    return _mm512_mask_cmpge_epu32_mask(m, a, _mm512_set1_epi32((int)REF_INF_BITS));
}

// NUMERICS 6.1 in the lanes of m; 0 elsewhere. *bad collects lanes with NaN or Inf.
static inline __m512 exp2_16(__mmask16 m, __m512 x, __mmask16 *bad) {
    __mmask16 wild = not_finite16(m, x);
    __mmask16 live = m & (__mmask16)~wild & _mm512_cmp_ps_mask(x, _mm512_set1_ps(REF_EXP2_LOW), _CMP_GE_OQ);
    *bad |= wild;
    x = _mm512_maskz_min_ps(live, x, _mm512_set1_ps(127.0f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_castsi512_ps(_mm512_set1_epi32(0x3920e99a));
    p = _mm512_fmadd_ps(p, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x3aafa2b5)));
    p = _mm512_fmadd_ps(p, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x3c1d96de)));
    p = _mm512_fmadd_ps(p, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x3d63576a)));
    p = _mm512_fmadd_ps(p, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x3e75fded)));
    p = _mm512_fmadd_ps(p, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x3f317218)));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(live, bits));
}

// NUMERICS 12.1 in the lanes of m; 0 elsewhere. *bad collects lanes with NaN or Inf.
static inline __m512 tanh_16(__mmask16 m, __m512 x, __mmask16 *bad) {
    const __m512 one = _mm512_set1_ps(1.0f), abs = _mm512_castsi512_ps(_mm512_set1_epi32((int)REF_ABS_BITS));
    __mmask16 wild = not_finite16(m, x), live = m & (__mmask16)~wild;
    __m512 a = _mm512_maskz_and_ps(live, x, abs), z = _mm512_mul_ps(a, a);
    __m512 p = _mm512_castsi512_ps(_mm512_set1_epi32((int)0xbbcd9823u));
    p = _mm512_fmadd_ps(p, z, _mm512_castsi512_ps(_mm512_set1_epi32(0x3cac9e83)));
    p = _mm512_fmadd_ps(p, z, _mm512_castsi512_ps(_mm512_set1_epi32((int)0xbd5c943du)));
    p = _mm512_fmadd_ps(p, z, _mm512_castsi512_ps(_mm512_set1_epi32(0x3e088693)));
    p = _mm512_fmadd_ps(p, z, _mm512_castsi512_ps(_mm512_set1_epi32((int)0xbeaaaaa5u)));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(a, z), p, a), b = _mm512_min_ps(a, _mm512_set1_ps(REF_TANH_LARGE));
    __m512 e = exp2_16(live, _mm512_mul_ps(b, _mm512_set1_ps(2.0f * REF_LOG2E)), bad); // b is finite
    __m512 y = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(one, e)));
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, _mm512_set1_ps(REF_TANH_SMALL), _CMP_LT_OQ), small);
    *bad |= wild;
    return _mm512_maskz_or_ps(live, y, _mm512_andnot_ps(abs, x));
}
