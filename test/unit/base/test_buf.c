#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include <string.h>

static void grows_to_its_maximum(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 1000);
    for (int i = 0; i < 100; i++) assert_int_equal(buf_add(&b, "0123456789", 10), ERR_OK);
    assert_int_equal(b.len_bytes, 1000);
    assert_int_equal(buf_add(&b, "x", 1), ERR_NOMEM);
    assert_int_equal(buf_add(&b, NULL, 0), ERR_OK);
    assert_null(buf_cstr(&b));
    assert_int_equal(buf_reserve(&b, SIZE_MAX), ERR_NOMEM);
    assert_int_equal(b.len_bytes, 1000);
    assert_memory_equal(b.data + 990, "0123456789", 10);
    buf_clear(&b);
    assert_int_equal(buf_add(&b, "abc", 3), ERR_OK);
    assert_string_equal(buf_cstr(&b), "abc");
    buf_fini(&b);
}

static void formats(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 12);
    assert_int_equal(buf_addf(&b, "%d-%s", 42, "abc"), ERR_OK);
    assert_int_equal(buf_addf(&b, "%s", "too long"), ERR_NOMEM);
    assert_int_equal(buf_addf(&b, "%c", 'x'), ERR_OK);
    assert_string_equal(buf_cstr(&b), "42-abcx");
    buf_fini(&b);
}

static void json_strings_are_escaped_whole_or_not_at_all(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 64);
    assert_int_equal(buf_add_json_string(&b, "a\"\\\n\x01\x7f\0é", 9), ERR_OK);
    assert_string_equal(buf_cstr(&b), "\"a\\\"\\\\\\n\\u0001\\u007f\\u0000é\"");
    size_t before = b.len_bytes;
    assert_int_equal(buf_add_json_string(&b, "\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1", 15), ERR_NOMEM);
    assert_int_equal(b.len_bytes, before);
    buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(grows_to_its_maximum), cmocka_unit_test(formats),
                                       cmocka_unit_test(json_strings_are_escaped_whole_or_not_at_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
