// The inner loops of the roof: int8 dot instructions on registers that depend on nothing else.
#pragma once
#include <stdint.h>

// Runs n rounds and returns the multiply-adds done. sink keeps the compiler from dropping the work.
uint64_t roof_int8_avx2(uint64_t n, int32_t *sink);
uint64_t roof_int8_avx512(uint64_t n, int32_t *sink);
