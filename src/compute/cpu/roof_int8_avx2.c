#include "compute/cpu/roof_int8.h"

#include <immintrin.h>

enum { CHAINS = 10 };

// maddubs, madd and an add: what AVX2 needs for 32 multiply-adds.
uint64_t roof_int8_avx2(uint64_t n, int32_t *sink) {
    __m256i acc[CHAINS], w = _mm256_set1_epi8(3), a = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
#ifdef __clang__
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 16
#endif
        for (int i = 0; i < CHAINS; i++) {
            __m256i w2 = w;
            __asm__ volatile("" : "+x"(w2)); // each round is new work to the compiler
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w2, a), one));
        }
    }
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    *sink = _mm256_extract_epi32(acc[0], 0);
    return n * CHAINS * 32;
}
