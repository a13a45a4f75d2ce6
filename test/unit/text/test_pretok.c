#include "text/pretok.h"
#include "base/buf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int join(void *ctx, const uint8_t *piece, size_t n) {
    struct buf *b = ctx;
    int rc = b->len_bytes ? buf_add(b, "|", 1) : 0;
    return rc ? rc : buf_add(b, piece, n);
}

// Runs p over text and compares the pieces, joined by bars.
static void pieces(const struct pretok *p, const char *text, const char *want) {
    struct pretok_scratch s;
    struct buf got;
    struct err e = {0};
    buf_init(&got, 1 << 20);
    assert_int_equal(pretok_scratch_init(&s), 0);
    if (pretok_run(p, &s, (const uint8_t *)text, strlen(text), true, join, &got, &e)) fail_msg("%s", e.text);
    assert_string_equal(got.len_bytes ? buf_cstr(&got) : "", want);
    pretok_scratch_fini(&s);
    buf_fini(&got);
}

static void one(const char *pattern, bool literal, enum pretok_behavior behavior, bool invert, const char *text,
                const char *want) {
    struct pretok p = {0};
    struct err e = {0};
    if (pretok_add(&p, pattern, strlen(pattern), literal, behavior, invert, &e)) fail_msg("%s", e.text);
    pieces(&p, text, want);
    pretok_fini(&p);
}

static void behaviors(void **state) {
    (void)state;
    const char *text = "the-final--countdown";
    one("-", true, PRETOK_ISOLATED, false, text, "the|-|final|-|-|countdown");
    one("-", true, PRETOK_REMOVED, false, text, "the|final|countdown");
    one("-", true, PRETOK_MERGED_WITH_PREVIOUS, false, text, "the-|final-|-|countdown");
    one("-", true, PRETOK_MERGED_WITH_NEXT, false, text, "the|-final|-|-countdown");
    one("-", true, PRETOK_CONTIGUOUS, false, text, "the|-|final|--|countdown");
    one("[a-z]+", false, PRETOK_REMOVED, true, text, "the|final|countdown");
    one("-", true, PRETOK_REMOVED, false, "---", "");
    one(".", true, PRETOK_ISOLATED, false, "a.b", "a|.|b"); // no pattern, a string
}

static void empty_matches_cut(void **state) {
    (void)state;
    one("(?=x)", false, PRETOK_ISOLATED, false, "axbx", "a|xb|x");
    one("y*", false, PRETOK_ISOLATED, false, "\xc3\xa9yz", "\xc3\xa9|y|z");
}

static void white_space_is_that_of_the_reference(void **state) {
    (void)state;
    // U+180E is none (PCRE2's \s says it is), U+0085 and U+3000 are.
    one("\\s+", false, PRETOK_ISOLATED, false,
        "a\xe1\xa0\x8e"
        "b\xc2\x85\xe3\x80\x80"
        "c",
        "a\xe1\xa0\x8e"
        "b|\xc2\x85\xe3\x80\x80|c");
    one("\\S+", false, PRETOK_ISOLATED, false,
        "a\xe1\xa0\x8e"
        "b c",
        "a\xe1\xa0\x8e"
        "b| |c");
    one("[^\\s\\p{L}]+", false, PRETOK_ISOLATED, false,
        "a\xe1\xa0\x8e"
        "b !",
        "a|\xe1\xa0\x8e|b |!");
    one("[\\Sx]+", false, PRETOK_ISOLATED, false,
        "a\xe1\xa0\x8e\xe3\x80\x80"
        "b",
        "a\xe1\xa0\x8e|\xe3\x80\x80|b");
    one("[\\s-x]+", false, PRETOK_ISOLATED, false, "a -x5", "a| -x|5");
}

static void patterns_are_read_as_oniguruma(void **state) {
    (void)state;
    one("[]a]+", false, PRETOK_ISOLATED, false, "b]ab", "b|]a|b");
    one("\\p{Han}+", false, PRETOK_ISOLATED, false, "a\xe4\xb8\xad\xe3\x80\x81", "a|\xe4\xb8\xad|\xe3\x80\x81");
    one("^b", false, PRETOK_ISOLATED, false, "a\nba", "a\n|b|a");
    one("[[:digit:]]+", false, PRETOK_ISOLATED, false, "a12", "a|12");
    struct pretok p = {0};
    struct err e;
    static const char *const bad[] = {"[a[b]]", "[a&&b]", "(", "[a", "\\p{", "\\p", "\\", "a{2,1}", "\\C"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(pretok_add(&p, bad[i], strlen(bad[i]), false, PRETOK_ISOLATED, false, &e), ERR_UNSUPPORTED);
    assert_int_equal(p.n_steps, 0);
}

static void steps_work_on_what_the_last_one_left(void **state) {
    (void)state;
    struct pretok p = {0};
    assert_int_equal(pretok_add(&p, "\\p{N}{1,3}", 10, false, PRETOK_ISOLATED, false, NULL), 0);
    assert_int_equal(pretok_add(&p, "[a-z]+", 6, false, PRETOK_ISOLATED, false, NULL), 0);
    pieces(&p, "ab1234c d", "ab|123|4|c| |d");
    assert_int_equal(pretok_add_prefix(&p, NULL), 0);
    pieces(&p, "ab1 d", " ab| 1| | d");
    pretok_fini(&p);
    assert_int_equal(pretok_add_prefix(&p, NULL), 0);
    assert_int_equal(pretok_add(&p, "[a-z]+", 6, false, PRETOK_ISOLATED, false, NULL), 0);
    pieces(&p, "ab", " |ab");
    // A second step that changes the text works on what the first one made.
    assert_int_equal(pretok_add_metaspace(&p, "_", 1, PRETOK_FIRST, true, NULL), 0);
    pieces(&p, "ab c d", "_|ab|_|c|_|d");
    pretok_fini(&p);
    assert_int_equal(pretok_add(&p, "-", 1, true, PRETOK_REMOVED, false, NULL), 0);
    assert_int_equal(pretok_add_metaspace(&p, "_", 1, PRETOK_FIRST, false, NULL), 0);
    pieces(&p, "a-b", "_a|b");
    pieces(&p, "-b", "b"); // it does not begin the text
    pretok_fini(&p);
}

static void words_are_those_of_the_reference(void **state) {
    (void)state;
    one("\\w+", false, PRETOK_ISOLATED, false, "a\xcc\x81_1-\xe2\x80\xbf+", "a\xcc\x81_1|-|\xe2\x80\xbf|+");
    one("\\W", false, PRETOK_REMOVED, false, "a-b\xcc\x81 c", "a|b\xcc\x81|c");
    one("[\\w-]+", false, PRETOK_ISOLATED, false, "a-1!", "a-1|!");
}

// "\s+$" from each place of a run would be quadratic.
static void ends_of_lines(void **state) {
    (void)state;
    one("\\s+$", false, PRETOK_ISOLATED, false, "a  b \n c  ", "a  b| |\n c|  ");
    one("\\s+$", false, PRETOK_ISOLATED, false, "a \n\nb\n", "a| \n|\nb|\n");
    enum { N = 1 << 20 };
    struct pretok p = {0};
    struct pretok_scratch s;
    struct buf got;
    char *text = malloc(N + 1);
    memset(text, ' ', N);
    text[N] = 'x';
    buf_init(&got, N * 2);
    assert_int_equal(pretok_scratch_init(&s), 0);
    assert_int_equal(pretok_add(&p, "\\s+$", 4, false, PRETOK_ISOLATED, false, NULL), 0);
    assert_int_equal(pretok_run(&p, &s, (const uint8_t *)text, N + 1, true, join, &got, NULL), 0);
    assert_int_equal(got.len_bytes, N + 1);
    pretok_scratch_fini(&s);
    pretok_fini(&p);
    buf_fini(&got);
    free(text);
}

static void gives_up_on_endless_backtracking(void **state) {
    (void)state;
    struct pretok p = {0};
    struct pretok_scratch s;
    struct buf got;
    struct err e = {0};
    buf_init(&got, 1 << 20);
    assert_int_equal(pretok_scratch_init(&s), 0);
    assert_int_equal(pretok_add(&p, "(a+)+$", 6, false, PRETOK_ISOLATED, false, NULL), 0);
    const char *text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
    assert_int_equal(pretok_run(&p, &s, (const uint8_t *)text, strlen(text), true, join, &got, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "match limit"));
    pretok_scratch_fini(&s);
    pretok_fini(&p);
    buf_fini(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaviors),
        cmocka_unit_test(empty_matches_cut),
        cmocka_unit_test(white_space_is_that_of_the_reference),
        cmocka_unit_test(patterns_are_read_as_oniguruma),
        cmocka_unit_test(steps_work_on_what_the_last_one_left),
        cmocka_unit_test(words_are_those_of_the_reference),
        cmocka_unit_test(ends_of_lines),
        cmocka_unit_test(gives_up_on_endless_backtracking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
