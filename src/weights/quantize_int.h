// The inside of the quantiser, for quantize*.c only: numbers as bits, and the search for scales.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { QUANT_GROUP = 32, QUANT_SUPER = 256 };

static inline uint32_t quantize_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float quantize_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float quantize_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return quantize_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return quantize_float(sign | (exponent + 112) << 23 | mantissa << 13);
    return quantize_float(quantize_bits((float)mantissa * 0x1p-24f) | sign);
}

// Nearest even; Inf where the value is too large. Finite input only.
static inline uint16_t quantize_f32_to_f16(float f) {
    uint32_t u = quantize_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    // Below 2^-14 the result is a multiple of 2^-24: the addition does the rounding.
    if (a < 0x38800000) return (uint16_t)(sign | (quantize_bits(quantize_float(a) + 0.5f) - 0x3f000000));
    uint32_t r = a + 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (r - 0x38000000) >> 13);
}

static inline void quantize_put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

// To the nearest whole number, ties to even, for |x| < 2^22: the addition does the rounding, and compilers make one
// vector instruction of it where rintf would be a call.
static inline float quantize_round(float x) { return (x + 0x1.8p+23f) - 0x1.8p+23f; }

// One group of values with the weight that an error of each has; n is a multiple of QUANT_LANES, at most QUANT_GROUP.
// All sums run over QUANT_LANES partial sums, value i in sum i % QUANT_LANES, which are then added in order: that is
// the written order, and it lets compilers use vectors.
enum { QUANT_LANES = 8 };
struct quantize_group {
    float x[QUANT_GROUP], w[QUANT_GROUP];
    uint32_t n;
};

// x ~ scale * q - min with q from 0 to n_max: the pair of least weighted squared error among those that a search over
// steps finds. free_min: min may have any sign (Q4_1, Q5_1); else it is >= 0 (K types). scale >= 0.
void quantize_fit_min(const struct quantize_group *g, int n_max, bool free_min, float *scale, float *min);
// x ~ scale * q with q from -n_max to n_max - 1; scale of any sign.
float quantize_fit_signed(const struct quantize_group *g, int n_max);
// The codes for a scale and a min, clamped to [lo, hi]; returns their weighted squared error.
float quantize_codes(const struct quantize_group *g, float scale, float min, int lo, int hi, int8_t *q);

// One whole block of a type, from block_values values of which all are finite and none too large.
void quantize_block_q4_1(const float *x, uint8_t *out);
void quantize_block_q5_0(const float *x, uint8_t *out);
void quantize_block_q5_1(const float *x, uint8_t *out);
void quantize_block_q4_k(const float *x, uint8_t *out);
void quantize_block_q5_k(const float *x, uint8_t *out);
void quantize_block_q6_k(const float *x, uint8_t *out);
