// Sizes as texts: the unit fits, and what is needed is never told too low.
#include "base/size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void units_fit(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *near, *up;
    } cases[] = {{0, "0 bytes", "0 bytes"},
                 {1, "1 byte", "1 byte"},
                 {1023, "1023 bytes", "1023 bytes"},
                 {1024, "1.0 KiB", "1.0 KiB"},
                 {1025, "1.0 KiB", "1.1 KiB"},
                 {47u << 20, "47.0 MiB", "47.0 MiB"},
                 {(47u << 20) + 1, "47.0 MiB", "47.1 MiB"},
                 {(1u << 20) - 1, "1.0 MiB", "1.0 MiB"},
                 {3ull << 30, "3.0 GiB", "3.0 GiB"},
                 {1ull << 50, "1.0 PiB", "1.0 PiB"},
                 {UINT64_MAX, "16.0 EiB", "16.0 EiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[SIZE_TEXT_BYTES];
        assert_string_equal(size_text(cases[i].bytes, text), cases[i].near);
        assert_string_equal(size_text_up(cases[i].bytes, text), cases[i].up);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
