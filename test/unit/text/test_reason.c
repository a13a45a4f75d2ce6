#include "text/reason.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// Feeds text in calls of every size: what comes out must never differ.
static void check(const char *prompt, const char *text, const char *reasoning, const char *content) {
    size_t len = strlen(text);
    for (size_t step = 1; step <= len; step++) {
        struct reason r;
        struct buf thought, said;
        buf_init(&thought, 4096);
        buf_init(&said, 4096);
        reason_init(&r, prompt, prompt ? strlen(prompt) : 0);
        for (size_t at = 0; at < len; at += step)
            assert_int_equal(reason_feed(&r, text + at, at + step < len ? step : len - at, &thought, &said), 0);
        assert_int_equal(reason_flush(&r, &thought, &said), 0);
        assert_string_equal(buf_cstr(&thought), reasoning);
        assert_string_equal(buf_cstr(&said), content);
        buf_fini(&thought);
        buf_fini(&said);
    }
}

static const char fresh[] = "<|im_start|>assistant\n", opened[] = "<|im_start|>assistant\n<think>\n",
                  closed[] = "<|im_start|>assistant\n<think>\n\n</think>\n\n";

static void the_answer_opens(void **state) {
    (void)state;
    check(fresh, "<think>\nWell.\n</think>\n\nYes", "Well.", "Yes");
    check(fresh, "\n <think>a</think>b", "a", "b");
    check(fresh, "<think>\n\n</think>\n\nYes", "", "Yes");
    check(fresh, "<think></think>\n\n\nYes", "", "\nYes");
    check(fresh, "<think>\n\na\n\n</think>b", "\na\n", "b");
    check(fresh, "<think>never ends\n", "never ends\n", "");
    check(fresh, "<think>a </thin", "a </thin", "");
    check(fresh, "<think>a\n\n</</think></think>", "a\n\n</", "</think>");
}

static void the_answer_does_not_think(void **state) {
    (void)state;
    check(fresh, "Yes", "", "Yes");
    check(fresh, "  Yes", "", "  Yes");
    check(fresh, "<thin air>", "", "<thin air>");
    check(fresh, "a <think>b</think> c", "", "a <think>b</think> c");
    check(fresh, "<thi", "", "<thi");
    check(fresh,
          "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"
          "\n\n\n\n\n\n\n\n\n\nx",
          "",
          "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"
          "\n\n\n\n\n\n\n\n\n\nx");
}

static void the_prompt_decides(void **state) {
    (void)state;
    check(opened, "Well.\n</think>\n\nYes", "Well.", "Yes");
    check(opened, "\nWell.</think>Yes", "\nWell.", "Yes");
    check("<think>", "\nWell.</think>Yes", "Well.", "Yes");
    check(closed, "<think>a</think>b", "", "<think>a</think>b");
    check(NULL, "<think>a</think>b", "", "<think>a</think>b");
}

static void a_full_buffer_is_told(void **state) {
    (void)state;
    struct reason r;
    struct buf small, other;
    buf_init(&small, 4);
    buf_init(&other, 4);
    reason_init(&r, opened, strlen(opened));
    assert_int_equal(reason_feed(&r, "abcde", 5, &small, &other), ERR_NOMEM);
    buf_fini(&small);
    buf_fini(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_opens),
        cmocka_unit_test(the_answer_does_not_think),
        cmocka_unit_test(the_prompt_decides),
        cmocka_unit_test(a_full_buffer_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
