#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"

static void check_block(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1,
                        const uint32_t want[4]) {
    uint32_t c[4] = {c0, c1, c2, c3};
    philox4x32(c, k0, k1);
    for (int i = 0; i < 4; i++) assert_int_equal(c[i], want[i]);
}

// The three published known answers of Philox4x32-10: all zeros, all ones, digits of pi.
static void known_answers(void **state) {
    (void)state;
    check_block(0, 0, 0, 0, 0, 0, (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check_block(~0u, ~0u, ~0u, ~0u, ~0u, ~0u, (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check_block(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
                (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static void stream_is_the_blocks(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 0x0123456789abcdefu);
    for (uint32_t block = 0; block < 3; block++) {
        uint32_t c[4] = {block, 0, 0, 0};
        philox4x32(c, 0x89abcdef, 0x01234567);
        for (int i = 0; i < 4; i++) assert_int_equal(rng_u32(&r), c[i]);
    }
}

static void below_is_in_range_and_even(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    uint32_t seen[5] = {0};
    for (int i = 0; i < 50000; i++) {
        uint32_t v = rng_below(&r, 5);
        assert_true(v < 5);
        seen[v]++;
    }
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 9600, 10400); // 4.5 standard deviations, one fixed seed
    for (int i = 0; i < 100; i++) assert_int_equal(rng_below(&r, 1), 0);
}

static void unit_stays_below_one(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 1);
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        double u = rng_unit(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4900 && sum < 5100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(stream_is_the_blocks),
                                       cmocka_unit_test(below_is_in_range_and_even),
                                       cmocka_unit_test(unit_stays_below_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
