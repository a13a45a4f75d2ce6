#include "base/rng.h"
#include "weights/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static float f16(uint16_t h) {
    float x;
    floats_to_f32(DT_F16, &h, 1, &x);
    return x;
}

static float f32_at(const uint8_t *p) {
    float f;
    memcpy(&f, p, 4);
    return f;
}

static uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void test_floats(void **state) {
    (void)state;
    assert_true(f16(0x3c00) == 1);
    assert_true(f16(0xc000) == -2);
    assert_true(f16(0x7bff) == 65504);
    assert_true(f16(0x0001) == 0x1p-24f);
    assert_true(f16(0x03ff) == 1023 * 0x1p-24f);
    assert_true(f16(0x8400) == -0x1p-14f);
    assert_true(isinf(f16(0x7c00)) && isnan(f16(0x7e00)));
    uint8_t odd[5] = {0xff, 0x80, 0x3f, 0x00, 0xc0}; // at an odd address: 1 and -2 in bf16
    float x[2];
    floats_to_f32(DT_BF16, odd + 1, 2, x);
    assert_true(x[0] == 1 && x[1] == -2);
}

static void test_l8(void **state) {
    (void)state;
    struct err e;
    float x[2][130] = {{0}};
    uint8_t out[2][2 * 132];
    x[0][0] = 127;
    x[0][1] = -63.5f; // a tie: -64 is even
    x[0][2] = 0.5f;   // a tie: 0
    x[0][128] = -3;
    x[1][129] = 0x1p-90f; // too small: all zero
    memset(out, 0xaa, sizeof out);
    assert_int_equal(quantize_rows(DT_F32, x, 2, 130, DT_L8, out, &e), ERR_OK);
    assert_true(f32_at(out[0]) == 127.0f * 0x1.020408p-7f);
    assert_int_equal((int8_t)out[0][4], 127);
    assert_int_equal((int8_t)out[0][5], -64);
    assert_int_equal((int8_t)out[0][6], 0);
    assert_true(f32_at(out[0] + 132) == 3.0f * 0x1.020408p-7f);
    assert_int_equal((int8_t)out[0][136], -127);
    for (int i = 137; i < 264; i++) assert_int_equal(out[0][i], 0);
    for (int i = 0; i < 264; i++) assert_int_equal(out[1][i], 0);
}

static void test_q8_0(void **state) {
    (void)state;
    struct err e;
    float x[40] = {[0] = 1, [1] = -0.25f, [31] = 0.5f, [35] = -254};
    uint8_t out[68];
    assert_int_equal(quantize_rows(DT_F32, x, 1, 40, DT_Q8_0, out, &e), ERR_OK);
    assert_int_equal(u16_at(out), 0x2008); // f16(1/127)
    assert_int_equal((int8_t)out[2], 127);
    assert_int_equal((int8_t)out[3], -32);
    assert_int_equal((int8_t)out[33], 64);
    assert_true(f16(u16_at(out + 34)) == 2);
    assert_int_equal((int8_t)out[36 + 3], -127);
    for (int i = 36 + 8; i < 68; i++) assert_int_equal(out[i], 0);
}

static void test_q4_0(void **state) {
    (void)state;
    struct err e;
    float x[33] = {[0] = 8, [1] = -7, [2] = 1.4f, [16] = 3, [32] = -1};
    uint8_t out[36];
    assert_int_equal(quantize_rows(DT_F32, x, 1, 33, DT_Q4_0, out, &e), ERR_OK);
    assert_true(f16(u16_at(out)) == -1); // the extreme is 8: its code is -8
    assert_int_equal(out[2], 0 | (8 - 3) << 4);
    assert_int_equal(out[3] & 15, 15);
    assert_int_equal(out[4] & 15, 8 - 1);
    assert_true(f16(u16_at(out + 18)) == 0.125f);
    assert_int_equal(out[20], 0 | 8 << 4);
    for (int i = 21; i < 36; i++) assert_int_equal(out[i], 0x88);
}

// Every block type comes back to within half a step of its scale, from every float type.
static void test_round_trip(void **state) {
    (void)state;
    enum { K = 200 };
    struct rng r;
    struct err e;
    rng_init(&r, 3);
    uint16_t half[K];
    float x[K];
    for (int i = 0; i < K; i++) half[i] = (uint16_t)(rng_u32(&r) & 0xbfff); // |x| < 2
    floats_to_f32(DT_F16, half, K, x);
    uint8_t a[2 * 132], b[2 * 132], q8[7 * 34];
    assert_int_equal(quantize_rows(DT_F16, half, 1, K, DT_L8, a, &e), ERR_OK);
    assert_int_equal(quantize_rows(DT_F32, x, 1, K, DT_L8, b, &e), ERR_OK);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(quantize_rows(DT_F32, x, 1, K, DT_Q8_0, q8, &e), ERR_OK);
    for (int i = 0; i < K; i++) {
        float d = f32_at(a + i / 128 * 132);
        assert_true(fabsf(d * (int8_t)a[i / 128 * 132 + 4 + i % 128] - x[i]) <= 0.501f * d);
        d = f16(u16_at(q8 + i / 32 * 34));
        assert_true(fabsf(d * (int8_t)q8[i / 32 * 34 + 2 + i % 32] - x[i]) <= 0.6f * d);
    }
}

static void test_bad_values(void **state) {
    (void)state;
    struct err e;
    uint8_t out[132];
    float x[128] = {0};
    x[100] = NAN;
    assert_int_equal(quantize_rows(DT_F32, x, 1, 128, DT_L8, out, &e), ERR_FORMAT);
    assert_int_equal(floats_check(DT_F32, x, 100, &e), ERR_OK);
    assert_int_equal(floats_check(DT_F32, x, 101, &e), ERR_FORMAT);
    x[100] = -INFINITY;
    assert_int_equal(quantize_rows(DT_F32, x, 1, 128, DT_Q4_0, out, &e), ERR_FORMAT);
    x[100] = 1e30f; // fits f32 scales, not f16 ones
    assert_int_equal(quantize_rows(DT_F32, x, 1, 128, DT_L8, out, &e), ERR_OK);
    assert_int_equal(quantize_rows(DT_F32, x, 1, 128, DT_Q8_0, out, &e), ERR_FORMAT);
    assert_int_equal(quantize_rows(DT_F32, x, 1, 128, DT_Q4_0, out, &e), ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_floats),     cmocka_unit_test(test_l8),
                                       cmocka_unit_test(test_q8_0),       cmocka_unit_test(test_q4_0),
                                       cmocka_unit_test(test_round_trip), cmocka_unit_test(test_bad_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
