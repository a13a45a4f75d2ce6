#include "text/norm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void is(const struct norm *n, const char *in, bool first, const size_t *breaks, size_t n_breaks,
               const char *want, const size_t *moved) {
    struct norm_text out;
    struct err e = {0};
    if (norm_run(n, (const uint8_t *)in, strlen(in), breaks, n_breaks, first, &out, &e)) fail_msg("%s", e.text);
    assert_int_equal(out.len_bytes, strlen(want));
    assert_memory_equal(out.data, want, out.len_bytes);
    assert_int_equal(out.n_breaks, n_breaks);
    for (size_t i = 0; i < n_breaks; i++)
        if (out.breaks[i] != moved[i]) fail_msg("break %zu is at %zu, not %zu", i, out.breaks[i], moved[i]);
    norm_text_fini(&out);
}

static void one(struct norm_step step, const char *in, const char *want) {
    struct norm n = {0};
    assert_int_equal(norm_add(&n, &step, NULL), 0);
    is(&n, in, true, NULL, 0, want, NULL);
    norm_fini(&n);
}

static void each_kind(void **state) {
    (void)state;
    one((struct norm_step){.kind = NORM_NFC}, "e\xcc\x81", "\xc3\xa9");
    one((struct norm_step){.kind = NORM_NFD}, "\xc3\xa9", "e\xcc\x81");
    one((struct norm_step){.kind = NORM_NFKC}, "\xef\xac\x81", "fi");
    one((struct norm_step){.kind = NORM_NFKD}, "\xc2\xbd",
        "1\xe2\x81\x84"
        "2");
    one((struct norm_step){.kind = NORM_LOWERCASE}, "\xc3\x89\xc4\xb0X", "\xc3\xa9i\xcc\x87x");
    one((struct norm_step){.kind = NORM_STRIP_ACCENTS}, "e\xcc\x81\xc3\xa9", "e\xc3\xa9");
    one((struct norm_step){.kind = NORM_STRIP, .left = true, .right = true}, " \xe3\x80\x80 x \n", "x");
    one((struct norm_step){.kind = NORM_STRIP, .left = true}, "  x ", "x ");
    one((struct norm_step){.kind = NORM_STRIP, .left = true, .right = true}, "  ", "");
    one((struct norm_step){.kind = NORM_PREPEND, .to = "_", .to_bytes = 1}, "x", "_x");
    one((struct norm_step){.kind = NORM_PREPEND, .to = "_", .to_bytes = 1}, "", "");
    one((struct norm_step){.kind = NORM_REPLACE, .from = "aa", .from_bytes = 2, .to = "b", .to_bytes = 1}, "aaaxa",
        "baxa");
}

static void by_pattern(void **state) {
    (void)state;
    struct norm_step step = {.kind = NORM_REPLACE, .to = "+", .to_bytes = 1};
    assert_int_equal(pattern_new("\\s+", 3, false, "x", &step.pattern, NULL), 0);
    one(step, "a  b \xe3\x80\x80 c", "a+b+c");
    assert_int_equal(pattern_new("x*", 2, false, "x", &step.pattern, NULL), 0);
    one(step, "\xc3\xa9xx", "+\xc3\xa9++");
}

static void steps_follow_each_other_and_breaks_move(void **state) {
    (void)state;
    struct norm n = {0};
    assert_int_equal(norm_add(&n, &(struct norm_step){.kind = NORM_NFC}, NULL), 0);
    assert_int_equal(
        norm_add(&n, &(struct norm_step){.kind = NORM_PREPEND, .to = "__", .to_bytes = 2, .first_only = true}, NULL),
        0);
    assert_int_equal(
        norm_add(&n,
                 &(struct norm_step){.kind = NORM_REPLACE, .from = " ", .from_bytes = 1, .to = "___", .to_bytes = 3},
                 NULL),
        0);
    assert_int_equal(norm_add(&n, &(struct norm_step){.kind = NORM_LOWERCASE}, NULL), 0);
    const size_t breaks[] = {0, 3, 4, 5, 6};
    is(&n, "e\xcc\x81 A<", true, breaks, 5, "__\xc3\xa9___a<", (const size_t[]){2, 4, 7, 8, 9});
    is(&n, "A B", false, breaks, 2, "a___b", (const size_t[]){0, 5});
    norm_fini(&n);
}

static void knows_what_cannot_change(void **state) {
    (void)state;
    struct norm n = {0};
    assert_false(norm_may_change(&n, (const uint8_t *)"e\xcc\x81", 3));
    assert_int_equal(norm_add(&n, &(struct norm_step){.kind = NORM_NFC}, NULL), 0);
    assert_false(norm_may_change(&n, (const uint8_t *)"\xc3\xa9", 2));
    assert_true(norm_may_change(&n, (const uint8_t *)"e\xcc\x81", 3));
    norm_fini(&n);
    for (int i = 0; i < NORM_STEPS; i++) assert_int_equal(norm_add(&n, &(struct norm_step){.kind = NORM_NFC}, NULL), 0);
    assert_int_equal(norm_add(&n, &(struct norm_step){.kind = NORM_NFC}, NULL), ERR_LIMIT);
    norm_fini(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind),
        cmocka_unit_test(by_pattern),
        cmocka_unit_test(steps_follow_each_other_and_breaks_move),
        cmocka_unit_test(knows_what_cannot_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
