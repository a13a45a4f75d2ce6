#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/crc32c.h"
#include "base/rng.h"
#include <string.h>

// The check value of the CRC catalogue and the examples of RFC 3720, appendix B.4.
static void known_answers(void **state) {
    (void)state;
    uint8_t b[32];
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(crc32c(0, "", 0), 0);
    memset(b, 0, sizeof b);
    assert_int_equal(crc32c(0, b, sizeof b), 0x8A9136AA);
    memset(b, 0xff, sizeof b);
    assert_int_equal(crc32c(0, b, sizeof b), 0x62A8AB43);
    for (int i = 0; i < 32; i++) b[i] = (uint8_t)i;
    assert_int_equal(crc32c(0, b, sizeof b), 0x46DD794E);
    for (int i = 0; i < 32; i++) b[i] = (uint8_t)(31 - i);
    assert_int_equal(crc32c(0, b, sizeof b), 0x113FDB5C);
}

static uint32_t bitwise(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
    }
    return ~c;
}

static void equals_the_definition_at_any_length_and_cut(void **state) {
    (void)state;
    uint8_t b[211];
    struct rng r;
    rng_init(&r, 3);
    for (size_t i = 0; i < sizeof b; i++) b[i] = (uint8_t)rng_u32(&r);
    for (size_t n = 0; n <= 200; n++) {
        size_t off = n % 11, cut = n ? rng_below(&r, (uint32_t)n) : 0;
        assert_int_equal(crc32c(0, b + off, n), bitwise(b + off, n));
        assert_int_equal(crc32c(crc32c(0, b + off, cut), b + off + cut, n - cut), bitwise(b + off, n));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers),
                                       cmocka_unit_test(equals_the_definition_at_any_length_and_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
