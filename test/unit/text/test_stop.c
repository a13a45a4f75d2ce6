#include "text/stop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct stop *make(const char *const *strings, uint32_t n) {
    size_t len[LIMIT_STOP_STRINGS];
    struct stop *s = NULL;
    for (uint32_t i = 0; i < n; i++) len[i] = strlen(strings[i]);
    assert_int_equal(stop_new(strings, len, n, &s, NULL), 0);
    return s;
}

// Feeds text in calls of every size: the shown text and the string that matched must never differ.
static void check(const char *const *strings, uint32_t n, const char *text, const char *want, int which) {
    struct stop *s = make(strings, n);
    size_t len = strlen(text);
    for (size_t step = 1; step <= len; step++) {
        struct buf out;
        bool matched = false;
        buf_init(&out, 1 << 16);
        stop_reset(s);
        for (size_t at = 0; at < len; at += step)
            assert_int_equal(stop_feed(s, text + at, at + step < len ? step : len - at, &out, &matched), 0);
        assert_int_equal(matched, which >= 0);
        assert_int_equal(stop_flush(s, &out), 0);
        assert_int_equal(stop_flush(s, &out), 0);
        assert_string_equal(buf_cstr(&out), want);
        assert_int_equal(stop_which(s), which);
        buf_fini(&out);
    }
    stop_free(s);
}

#define CHECK(text, want, which, ...)                                                                                  \
    check((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), text, want, \
          which)

static void finds_across_borders(void **state) {
    (void)state;
    CHECK("one END two", "one ", 0, "END");
    CHECK("one EN", "one EN", -1, "END");
    CHECK("EEND", "E", 0, "END");
    CHECK("aabaabaaab", "aab", 0, "aabaaab");
    CHECK("ababac", "ab", 0, "abac");
    CHECK("\n\nUser:", "", 1, "User:", "\n\n");
    CHECK("nothing here", "nothing here", -1, "zzz", "q");
    CHECK("\xe4\xb8\xad\xe6\x96\x87\xe5\xae\x8c", "\xe4\xb8\xad\xe6\x96\x87", 0, "\xe5\xae\x8c");
}

static void first_complete_wins_then_longest(void **state) {
    (void)state;
    CHECK("xabcd", "xa", 1, "abcd", "bc");
    CHECK("xabc", "x", 0, "abc", "bc", "c");
    CHECK("xabd", "xabd", -1, "abcd", "abce");
}

static void holds_no_more_than_needed(void **state) {
    (void)state;
    struct stop *s = make((const char *const[]){"###", "#!"}, 2);
    struct buf out;
    bool matched;
    buf_init(&out, 100);
    assert_int_equal(stop_feed(s, "a##", 3, &out, &matched), 0);
    assert_string_equal(buf_cstr(&out), "a");
    assert_int_equal(stop_feed(s, "b", 1, &out, &matched), 0);
    assert_string_equal(buf_cstr(&out), "a##b");
    assert_false(matched);
    stop_free(s);
    buf_fini(&out);
}

static void without_strings_all_passes(void **state) {
    (void)state;
    struct stop *s = NULL;
    struct buf out;
    bool matched;
    buf_init(&out, 4);
    assert_int_equal(stop_new(NULL, NULL, 0, &s, NULL), 0);
    assert_int_equal(stop_feed(s, "abcd", 4, &out, &matched), 0);
    assert_int_equal(stop_flush(s, &out), 0);
    assert_int_equal(out.len_bytes, 4);
    assert_int_equal(stop_feed(s, "e", 1, &out, &matched), ERR_NOMEM);
    stop_free(s);
    buf_fini(&out);
}

static void refuses_bad_strings(void **state) {
    (void)state;
    struct stop *s = NULL;
    struct err e;
    char big[LIMIT_STOP_BYTES + 1];
    memset(big, 'x', sizeof big);
    const char *many[LIMIT_STOP_STRINGS + 1];
    size_t len[LIMIT_STOP_STRINGS + 1];
    for (size_t i = 0; i <= LIMIT_STOP_STRINGS; i++) many[i] = "x", len[i] = 1;
    assert_int_equal(stop_new(many, len, LIMIT_STOP_STRINGS + 1, &s, &e), ERR_USAGE);
    assert_int_equal(stop_new((const char *const[]){""}, (const size_t[]){0}, 1, &s, &e), ERR_USAGE);
    assert_int_equal(stop_new((const char *const[]){big}, (const size_t[]){sizeof big}, 1, &s, &e), ERR_USAGE);
    assert_int_equal(stop_new((const char *const[]){"\xff"}, (const size_t[]){1}, 1, &s, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "stop[0]"));
    assert_int_equal(stop_new((const char *const[]){big}, (const size_t[]){LIMIT_STOP_BYTES}, 1, &s, &e), 0);
    stop_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_across_borders),      cmocka_unit_test(first_complete_wins_then_longest),
        cmocka_unit_test(holds_no_more_than_needed), cmocka_unit_test(without_strings_all_passes),
        cmocka_unit_test(refuses_bad_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
