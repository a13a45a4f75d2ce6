#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

static void names_and_sizes(void **state) {
    (void)state;
    for (int t = 0; t < DT_N; t++) {
        const struct dtype_info *i = dtype_info((enum dtype)t);
        assert_int_equal(dtype_from_name(i->name), t);
        assert_true(i->block_values >= 1 && i->block_bytes >= 1);
        assert_false(i->is_float && i->is_block);
        assert_false(i->is_converted && (i->is_float || i->is_block));
        assert_true((i->is_block || (i->is_converted && t != DT_F8_E4M3)) == (i->block_values > 1));
    }
    assert_int_equal(dtype_from_name("IQ2_XXS"), -1);
    assert_int_equal(dtype_row_bytes(DT_F32, 5), 20);
    assert_int_equal(dtype_row_bytes(DT_L8, 128), 132);
    assert_int_equal(dtype_row_bytes(DT_L8, 129), 264);
    assert_int_equal(dtype_row_bytes(DT_Q8_0, 64), 68);
    assert_int_equal(dtype_row_bytes(DT_Q4_K, 512), 288);
    assert_int_equal(dtype_row_bytes(DT_Q6_K, 256), 210);
    assert_int_equal(dtype_row_bytes(DT_F32, 1ull << 40), 1ull << 42);
}

// Puts an infinite value at one place after the other; a row with one anywhere is found out.
static void check_finite(enum dtype t, const void *inf, uint32_t inf_bytes, uint32_t offset) {
    const struct dtype_info *info = dtype_info(t);
    uint8_t row[2048] = {0};
    uint64_t k = info->block_values * 3ull;
    assert_true(dtype_row_is_finite(t, row, k));
    for (uint32_t b = 0; b < 3; b++) {
        uint8_t *at = row + b * info->block_bytes + offset;
        memcpy(at, inf, inf_bytes);
        assert_false(dtype_row_is_finite(t, row, k));
        assert_true(dtype_row_is_finite(t, row, b * info->block_values));
        memset(at, 0, inf_bytes);
    }
}

static void gguf_numbers(void **state) {
    (void)state;
    int known = 0;
    for (uint32_t n = 0; n < 300; n++) {
        const int t = dtype_from_gguf(n);
        assert_true(dtype_gguf_name(n)[0] != 0);
        if (t < 0) continue;
        known++;
        assert_int_equal(dtype_to_gguf((enum dtype)t), n);
        assert_string_equal(dtype_gguf_name(n), dtype_info((enum dtype)t)->name);
    }
    assert_int_equal(known, 19);
    assert_int_equal(dtype_from_gguf(12), DT_Q4_K);
    assert_int_equal(dtype_from_gguf(UINT32_MAX), -1);
    assert_int_equal(dtype_to_gguf(DT_F8_E4M3), -1);
    assert_string_equal(dtype_gguf_name(16), "IQ2_XXS");
    assert_string_equal(dtype_gguf_name(39), "MXFP4");
}

static void finite_rows(void **state) {
    (void)state;
    const float f32 = -INFINITY, nan32 = NAN;
    const double f64 = INFINITY;
    const uint16_t f16 = 0xfc00, nan16 = 0x7e01, bf16 = 0x7f80;
    check_finite(DT_F32, &f32, 4, 0);
    check_finite(DT_F32, &nan32, 4, 0);
    check_finite(DT_F64, &f64, 8, 0);
    check_finite(DT_F16, &nan16, 2, 0);
    check_finite(DT_BF16, &bf16, 2, 0);
    check_finite(DT_L8, &f32, 4, 0);
    check_finite(DT_Q8_0, &f16, 2, 0);
    check_finite(DT_Q5_0, &nan16, 2, 0);
    check_finite(DT_Q4_1, &f16, 2, 2);
    check_finite(DT_Q5_1, &f16, 2, 0);
    check_finite(DT_Q4_K, &nan16, 2, 2);
    check_finite(DT_Q5_K, &f16, 2, 0);
    check_finite(DT_Q6_K, &f16, 2, 208);
    check_finite(DT_Q2_K, &f16, 2, 80);
    check_finite(DT_Q2_K, &nan16, 2, 82);
    check_finite(DT_Q3_K, &f16, 2, 108);
    check_finite(DT_IQ4_NL, &f16, 2, 0);
    check_finite(DT_IQ4_XS, &nan16, 2, 0);
    check_finite(DT_F8_E4M3, &(uint8_t){0xff}, 1, 0);
    const float largest = 3.4028234e38f;
    assert_true(dtype_row_is_finite(DT_F32, &largest, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_sizes), cmocka_unit_test(gguf_numbers),
                                       cmocka_unit_test(finite_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
