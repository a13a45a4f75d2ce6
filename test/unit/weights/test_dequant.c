// Each type against a second implementation, written value by value from the published layouts: exact arithmetic in
// double, then one rounding, or the two that the formula names. The types that kernels compute with are also held
// against theirs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "compute/ref/ref.h"
#include "weights/dequant.h"
#include "weights/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 400, SUPER = 256 };

static double half(const uint8_t *p) {
    int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double m = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -m : m;
}

static int bits(const uint8_t *p, int at, int n) { // little-endian bit string
    int v = 0;
    for (int i = 0; i < n; i++) v |= (p[(at + i) / 8] >> (at + i) % 8 & 1) << i;
    return v;
}

// Value i of a block of 32 of 4 bits: the low halves of 16 bytes, then the high ones.
static int nibble(const uint8_t *p, int i) { return bits(p, 8 * (i % 16) + (i < 16 ? 0 : 4), 4); }

static double old_type(enum dtype t, const uint8_t *p, int i) {
    switch (t) {
    case DT_Q8_0:
        return half(p) * (int8_t)p[2 + i];
    case DT_Q4_0:
        return half(p) * (nibble(p + 2, i) - 8);
    case DT_Q4_1:
        return half(p) * nibble(p + 4, i) + half(p + 2);
    case DT_Q5_0:
        return half(p) * (nibble(p + 6, i) + 16 * bits(p + 2, i, 1) - 16);
    case DT_Q5_1:
        return half(p) * (nibble(p + 8, i) + 16 * bits(p + 4, i, 1)) + half(p + 2);
    default: { // IQ4_NL
        static const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        return half(p) * values[nibble(p + 2, i)];
    }
    }
}

// The 6-bit scales and minima of Q4_K and Q5_K: in pairs of bytes, those of the last four groups spread over all three.
static void packed(const uint8_t *s, int g, int *scale, int *min) {
    *scale = g < 4 ? bits(s + g, 0, 6) : bits(s + 4 + g, 0, 4) + 16 * bits(s + g - 4, 6, 2);
    *min = g < 4 ? bits(s + 4 + g, 0, 6) : bits(s + 4 + g, 4, 4) + 16 * bits(s + g, 6, 2);
}

static double k_type(enum dtype t, const uint8_t *p, int i) {
    int scale, min, half_of = i / 128, l = i % 32, quarter = i % 128 / 32;
    switch (t) {
    case DT_Q2_K: {
        int q = bits(p + 16 + 32 * half_of + l, 2 * quarter, 2);
        return half(p + 80) * (p[i / 16] & 15) * q - half(p + 82) * (p[i / 16] >> 4);
    }
    case DT_Q3_K: {
        int g = i / 16, q = bits(p + 32 + 32 * half_of + l, 2 * quarter, 2) + 4 * bits(p + l, i / 32, 1) - 4;
        int low = bits(p + 96 + g % 8, g < 8 ? 0 : 4, 4), high = bits(p + 104 + g % 4, 2 * (g / 4), 2);
        return half(p + 108) * (low + 16 * high - 32) * q;
    }
    case DT_Q4_K:
        packed(p + 4, i / 32, &scale, &min);
        return half(p) * scale * bits(p + 16 + 32 * (i / 64) + l, i / 32 % 2 * 4, 4) - half(p + 2) * min;
    case DT_Q5_K: {
        packed(p + 4, i / 32, &scale, &min);
        int q = bits(p + 48 + 32 * (i / 64) + l, i / 32 % 2 * 4, 4) + 16 * bits(p + 16 + l, i / 32, 1);
        return half(p) * scale * q - half(p + 2) * min;
    }
    case DT_Q6_K: {
        int low = bits(p + 64 * half_of + 32 * (quarter % 2) + l, quarter / 2 * 4, 4);
        int q = low + 16 * bits(p + 128 + 32 * half_of + l, 2 * quarter, 2) - 32;
        return half(p + 208) * (int8_t)p[192 + i / 16] * q;
    }
    default: { // IQ4_XS
        static const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        int g = i / 32, s = bits(p + 4, 4 * g, 4) + 16 * bits(p + 2, 2 * g, 2) - 32;
        return half(p) * s * values[nibble(p + 8 + 16 * g, i % 32)];
    }
    }
}

// A block of random bytes whose scales are finite.
static void random_block(struct rng *r, enum dtype t, uint8_t *p) {
    const uint32_t n = dtype_info(t)->block_bytes;
    do
        for (uint32_t i = 0; i < n; i++) p[i] = (uint8_t)rng_u64(r);
    while (!dtype_row_is_finite(t, p, dtype_info(t)->block_values));
}

static void blocks(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1,   DT_Q2_K,
                                       DT_Q3_K, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};
    struct rng r;
    rng_init(&r, 4);
    for (size_t x = 0; x < sizeof types / sizeof *types; x++) {
        const enum dtype t = types[x];
        const struct dtype_info *info = dtype_info(t);
        assert_true(dequant_knows(t));
        for (int round = 0; round < ROUNDS; round++) {
            uint8_t row[2 * 256 + 1] = {0}; // at an odd address, as files have them
            float got[2 * SUPER], kernel[2 * SUPER];
            uint32_t n = 2 * info->block_values;
            for (uint32_t b = 0; b < 2; b++) random_block(&r, t, row + 1 + b * info->block_bytes);
            dequant_row(t, row + 1, n, got);
            for (uint32_t i = 0; i < n; i++) {
                const uint8_t *p = row + 1 + i / info->block_values * info->block_bytes;
                int at = (int)(i % info->block_values);
                float want = (float)(info->block_values == 32 ? old_type(t, p, at) : k_type(t, p, at));
                if (got[i] != want) fail_msg("%s value %u: %a, not %a", info->name, i, (double)got[i], (double)want);
            }
            if (!info->is_block) continue;
            ref_row_f32(t, row + 1, n, kernel);
            assert_memory_equal(got, kernel, n * sizeof *got);
        }
    }
}

static void l8(void **state) {
    (void)state;
    struct rng r;
    float x[300], got[300], kernel[300];
    uint8_t row[3 * 132];
    rng_init(&r, 5);
    for (int i = 0; i < 300; i++) x[i] = (float)rng_unit(&r) - 0.5f;
    assert_int_equal(quantize_rows(DT_F32, x, 1, 300, DT_L8, row, NULL), 0);
    dequant_row(DT_L8, row, 300, got);
    ref_row_f32(DT_L8, row, 300, kernel);
    assert_memory_equal(got, kernel, sizeof got);
    for (int i = 0; i < 300; i++) assert_true(fabsf(got[i] - x[i]) <= 0.5f / 250);
}

// All 256 values by the definition; NaN, and no Inf.
static void f8(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++) {
        const uint8_t b = (uint8_t)i;
        float got;
        dequant_row(DT_F8_E4M3, &b, 1, &got);
        int exponent = i >> 3 & 15, mantissa = i & 7;
        double want = exponent ? pow(2, exponent - 7) * (1 + mantissa / 8.0) : pow(2, -6) * (mantissa / 8.0);
        if (i & 128) want = -want;
        if ((i & 127) == 127)
            assert_true(isnan(got));
        else
            assert_true((double)got == want);
        assert_int_equal(dtype_row_is_finite(DT_F8_E4M3, &b, 1), (i & 127) != 127);
    }
    const uint8_t largest = 0x7e;
    float got;
    dequant_row(DT_F8_E4M3, &largest, 1, &got);
    assert_true(got == 448);
}

static void f8_scales(void **state) {
    (void)state;
    enum { ROWS = 130, K = 200 };
    static uint8_t w[ROWS * K];
    static float got[ROWS * K];
    const float f32[4] = {0.5f, 3, 0x1.234567p-9f, -2};
    const uint16_t bf16[4] = {0x3f00, 0x4040, 0x3b12, 0xc000};
    struct rng r;
    rng_init(&r, 6);
    for (int i = 0; i < ROWS * K; i++) w[i] = (uint8_t)(rng_u64(&r) % 0x7f);
    for (int type = 0; type < 2; type++) {
        const void *scales = type ? (const void *)bf16 : f32;
        for (uint64_t row = 0; row < ROWS; row += 37) { // in pieces that do not end with the tiles
            uint64_t n = ROWS - row < 37 ? ROWS - row : 37;
            dequant_f8_rows(w + row * K, row, n, K, type ? DT_BF16 : DT_F32, scales, got + row * K);
        }
        for (uint32_t i = 0; i < ROWS * K; i++) {
            uint32_t tile = i / K / 128 * 2 + i % K / 128;
            float value, scale = f32[tile];
            if (type) floats_to_f32(DT_BF16, &bf16[tile], 1, &scale);
            dequant_row(DT_F8_E4M3, &w[i], 1, &value);
            assert_true(got[i] == value * scale);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks), cmocka_unit_test(l8), cmocka_unit_test(f8),
                                       cmocka_unit_test(f8_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
