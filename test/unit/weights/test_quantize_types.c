// The block types whose scales are searched for: dequantised by the reference of the kernels, against rounding to the
// nearest code with the scale that spans the group.
#include "base/map.h"
#include "base/rng.h"
#include "compute/ref/ref.h"
#include "weights/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { K = 4096 };

// What the search may be compared with, and how good it has to be on a normal distribution: the error in relation to
// the values, both as roots of mean squares.
static const struct {
    enum dtype type;
    int n_max;      // of the codes
    bool has_min;   // codes from 0, with a minimum; else both signs
    uint32_t group; // values with one scale
    double at_most; // relative error
} types[] = {
    {DT_Q4_1, 15, true, 32, 0.080}, {DT_Q5_0, 16, false, 32, 0.045}, {DT_Q5_1, 31, true, 32, 0.040},
    {DT_Q4_K, 15, true, 32, 0.080}, {DT_Q5_K, 31, true, 32, 0.041},  {DT_Q6_K, 32, false, 16, 0.020},
};
enum { N_TYPES = sizeof types / sizeof *types };

// Sums of twelve: near enough to normal, the same everywhere.
static void fill_normal(float *x, uint32_t n, uint64_t seed, float scale) {
    struct rng r;
    rng_init(&r, seed);
    for (uint32_t i = 0; i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += rng_unit(&r);
        x[i] = (float)sum * scale;
    }
}

static double rms_of(const float *x, const float *y, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)x[i] - (y ? (double)y[i] : 0);
        sum += d * d;
    }
    return sqrt(sum / n);
}

// Rounding to the nearest, with scales that are kept as floats: better than any block type could store it.
static void round_groups(const float *x, int n_max, bool has_min, uint32_t group, float *y) {
    for (uint32_t g = 0; g < K; g += group) {
        float lo = x[g], hi = x[g], most = 0;
        for (uint32_t i = g; i < g + group; i++) {
            lo = fminf(lo, x[i]);
            hi = fmaxf(hi, x[i]);
            most = fmaxf(most, fabsf(x[i]));
        }
        float d = has_min ? (hi - lo) / (float)n_max : most / (float)(n_max - 1), from = has_min ? lo : 0;
        for (uint32_t i = g; i < g + group; i++) y[i] = from + d * rintf((x[i] - from) / d);
    }
}

static void quantise(enum dtype t, const float *x, uint32_t n, uint8_t *q, float *y) {
    struct err e;
    assert_int_equal(quantize_rows(DT_F32, x, 1, n, t, q, &e), ERR_OK);
    assert_true(dtype_row_is_finite(t, q, n));
    ref_row_f32(t, q, n, y);
}

static void test_against_rounding(void **state) {
    (void)state;
    static float x[K], y[K], plain[K];
    static uint8_t q[K * 2];
    for (size_t i = 0; i < N_TYPES; i++) {
        fill_normal(x, K, 11 + i, 0.02f);
        quantise(types[i].type, x, K, q, y);
        round_groups(x, types[i].n_max, types[i].has_min, types[i].group, plain);
        double error = rms_of(x, y, K) / rms_of(x, NULL, K), rounded = rms_of(x, plain, K) / rms_of(x, NULL, K);
        print_message("%s: %.5f, rounding %.5f\n", dtype_info(types[i].type)->name, error, rounded);
        assert_true(error < types[i].at_most);
        assert_true(error < rounded);
    }
}

// Values that the type can say exactly, in a block of its own making, come back as they were.
static void test_exact(void **state) {
    (void)state;
    float x[256], y[256];
    uint8_t q[512];
    for (size_t i = 0; i < N_TYPES; i++) {
        for (uint32_t k = 0; k < 256; k++) {
            int span = types[i].has_min ? types[i].n_max + 1 : 2 * types[i].n_max;
            x[k] = (float)((int)(k * 7 % 32) % span - (types[i].has_min ? 0 : types[i].n_max)) * 0.25f;
        }
        if (types[i].type == DT_Q6_K)
            for (uint32_t k = 0; k < 256; k++) x[k] = (float)((int)(k % 16) * 4 - 32) * 0.25f;
        quantise(types[i].type, x, 256, q, y);
        for (uint32_t k = 0; k < 256; k++) assert_true(fabsf(x[k] - y[k]) <= 0.004f * (float)types[i].n_max * 0.25f);
    }
}

static void test_constant_and_zero(void **state) {
    (void)state;
    static const float values[] = {0, 1, -1, 0.3f, -250, 1e-30f, 20000};
    float x[256], y[256];
    uint8_t q[512];
    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            for (uint32_t k = 0; k < 256; k++) x[k] = values[v];
            quantise(types[i].type, x, 256, q, y);
            for (uint32_t k = 0; k < 256; k++) assert_true(fabsf(y[k] - x[k]) <= fabsf(x[k]) * 0.01f + 1e-7f);
        }
    }
}

// One large value among small ones must come back, and must not make the others large.
static void test_outlier(void **state) {
    (void)state;
    float x[256], y[256];
    uint8_t q[512];
    for (size_t i = 0; i < N_TYPES; i++) {
        fill_normal(x, 256, 5, 0.01f);
        x[77] = -1;
        quantise(types[i].type, x, 256, q, y);
        assert_true(fabsf(y[77] + 1) < 0.03f);
        for (uint32_t k = 0; k < 256; k++) assert_true(k == 77 || fabsf(y[k] - x[k]) <= 1.1f / (float)types[i].n_max);
    }
}

// Rows of odd lengths: zeros behind the end. Two rows do not touch each other.
static void test_short_rows(void **state) {
    (void)state;
    float x[2 * 96], y[256];
    uint8_t two[1024], one[512];
    struct err e;
    fill_normal(x, 2 * 96, 8, 1);
    for (size_t i = 0; i < N_TYPES; i++) {
        const uint64_t bytes = dtype_row_bytes(types[i].type, 96);
        assert_int_equal(quantize_rows(DT_F32, x, 2, 96, types[i].type, two, &e), ERR_OK);
        assert_int_equal(quantize_rows(DT_F32, x + 96, 1, 96, types[i].type, one, &e), ERR_OK);
        assert_memory_equal(two + bytes, one, bytes);
        ref_row_f32(types[i].type, two, dtype_info(types[i].type)->block_values == 256 ? 256 : 96, y);
        if (dtype_info(types[i].type)->block_values == 256)
            for (uint32_t k = 96; k < 256; k++) assert_true(fabsf(y[k]) < 0.15f);
    }
}

static void test_refused(void **state) {
    (void)state;
    float x[256] = {0};
    uint8_t q[512];
    struct err e;
    for (size_t i = 0; i < N_TYPES; i++) {
        x[200] = NAN;
        assert_int_equal(quantize_rows(DT_F32, x, 1, 256, types[i].type, q, &e), ERR_FORMAT);
        x[200] = 1e30f;
        assert_int_equal(quantize_rows(DT_F32, x, 1, 256, types[i].type, q, &e), ERR_FORMAT);
        x[200] = 0;
    }
}

// Garbage where a block's memory will lie, so that bytes which depend on it differ.
static void dirty_stack(int value) {
    volatile uint8_t garbage[20000];
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (uint8_t)value;
}

// The scales of small weights are f16 subnormals: they lose bits, but what they cannot say must not cost more than it
// has to.
static void test_small_values(void **state) {
    (void)state;
    static const float most[] = {1e-1f, 1e-2f, 3e-3f, 1e-3f, 5e-4f, 3e-4f, 1e-4f};
    static float x[K], y[K];
    static uint8_t q[K * 2], again[K * 2];
    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t m = 0; m < sizeof most / sizeof *most; m++) {
            fill_normal(x, K, 29 + m, most[m] / 3);
            dirty_stack(0x11);
            quantise(types[i].type, x, K, q, y);
            dirty_stack(0x77);
            quantise(types[i].type, x, K, again, y);
            assert_memory_equal(q, again, dtype_row_bytes(types[i].type, K));
            const double error = rms_of(x, y, K) / rms_of(x, NULL, K);
            if (error >= 1.25 * types[i].at_most)
                print_message("%s: %g: %g\n", dtype_info(types[i].type)->name, (double)most[m], error);
            assert_true(error < (most[m] < 3e-4f ? 1.6 : 1.25) * types[i].at_most);
        }
    }
}

// The same bytes everywhere. When a change of the search is wanted, these change with it; else they do not.
static void test_bytes(void **state) {
    (void)state;
    static const uint64_t want[N_TYPES] = {0x4af71c5902530baf, 0xc1eec93372bd695c, 0xdf4b402c37399a34,
                                           0xe7bef2a06d3fbe1f, 0x1c53bb11c3ab6701, 0x8d6b807101e341b6};
    static float x[K];
    static uint8_t q[K * 2];
    struct err e;
    bool same = true;
    fill_normal(x, K, 3, 0.05f);
    for (size_t i = 0; i < N_TYPES; i++) {
        assert_int_equal(quantize_rows(DT_F32, x, 1, K, types[i].type, q, &e), ERR_OK);
        uint64_t hash = map_hash_bytes(q, dtype_row_bytes(types[i].type, K), 0);
        if (hash != want[i])
            print_message("%s: 0x%016llx\n", dtype_info(types[i].type)->name, (unsigned long long)hash);
        same &= hash == want[i];
    }
    assert_true(same);
}

static void test_floats(void **state) {
    (void)state;
    const float x[] = {1, 1.00390625f, -2.5f, 65504, 1e-8f, 0x1.008p0f};
    uint16_t h[6];
    float y[6];
    struct err e;
    assert_int_equal(floats_from_f32(DT_F16, x, 6, h, &e), ERR_OK);
    floats_to_f32(DT_F16, h, 6, y);
    assert_true(y[0] == 1 && y[1] == 1.00390625f && y[2] == -2.5f && y[3] == 65504 && y[4] == 0);
    assert_int_equal(floats_from_f32(DT_BF16, x, 6, h, &e), ERR_OK);
    floats_to_f32(DT_BF16, h, 6, y);
    assert_true(y[0] == 1 && y[1] == 1 && y[2] == -2.5f && y[5] == 1); // ties go to even
    assert_int_equal(floats_from_f32(DT_F32, x, 6, y, &e), ERR_OK);
    assert_memory_equal(x, y, sizeof x);
    const float large = 70000, inf = INFINITY;
    assert_int_equal(floats_from_f32(DT_F16, &large, 1, h, &e), ERR_FORMAT);
    assert_int_equal(floats_from_f32(DT_BF16, &large, 1, h, &e), ERR_OK);
    assert_int_equal(floats_from_f32(DT_BF16, &inf, 1, h, &e), ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_rounding),
                                       cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_constant_and_zero),
                                       cmocka_unit_test(test_outlier),
                                       cmocka_unit_test(test_short_rows),
                                       cmocka_unit_test(test_small_values),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
