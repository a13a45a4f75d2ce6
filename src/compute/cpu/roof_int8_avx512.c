#include "compute/cpu/roof_int8.h"

#include <immintrin.h>

enum { CHAINS = 16 };

uint64_t roof_int8_avx512(uint64_t n, int32_t *sink) {
    __m512i acc[CHAINS], w = _mm512_set1_epi8(3), a = _mm512_set1_epi8(5);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
#ifdef __clang__
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 16
#endif
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], w, a);
        __asm__ volatile("" : "+v"(w)); // each round is new work to the compiler
    }
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    *sink = _mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
    return n * CHAINS * 64;
}
