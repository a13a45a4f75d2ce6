#include "text/detok.h"
#include "tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <unistr.h>

static struct tokenizer *t;
static struct detok *d;

static int setup(void **state) {
    (void)state;
    t = tiny_new(&(struct tiny){
        .added =
            "[{\"id\": 300, \"content\": \"<|end|>\", \"special\": true},"
            " {\"id\": 301, \"content\": \"<think>\", \"special\": true}, {\"id\": 302, \"content\": \"\\u4e2d\"}]"});
    d = detok_new(t);
    return d ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    detok_free(d);
    tokenizer_free(t);
    return 0;
}

// Feeds bytes as single-byte tokens; every event must be whole characters, and all of them joined the wanted text.
static void bytes(const char *in, size_t n, const char *want) {
    struct buf all;
    size_t k;
    buf_init(&all, 4096);
    detok_reset(d);
    for (size_t i = 0; i <= n; i++) {
        const char *text = i < n ? detok_feed(d, tiny_byte((uint8_t)in[i]), &k) : detok_flush(d, &k);
        assert_null(u8_check((const uint8_t *)text, k));
        assert_int_equal(buf_add(&all, text, k), 0);
    }
    assert_string_equal(buf_cstr(&all), want);
    buf_fini(&all);
}

#define BYTES(in, want) bytes(in, sizeof(in) - 1, want)
#define BAD             "\xef\xbf\xbd"

static void holds_back_half_characters(void **state) {
    (void)state;
    size_t n;
    detok_reset(d);
    (void)detok_feed(d, 0xf0, &n);
    assert_int_equal(n, 0);
    (void)detok_feed(d, 0x9f, &n);
    (void)detok_feed(d, 0x98, &n);
    assert_int_equal(n, 0);
    assert_memory_equal(detok_feed(d, 0x80, &n), "\xf0\x9f\x98\x80", 4);
    assert_int_equal(n, 4);
    assert_int_equal((detok_flush(d, &n), n), 0);
    BYTES("a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z", "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z");
}

// One U+FFFD for each longest beginning of a character, as decoders with errors="replace" have it.
static void broken_bytes_become_replacements(void **state) {
    (void)state;
    BYTES("\xff", BAD);
    BYTES("a\x80z", "a" BAD "z");
    BYTES("\xe4\xb8", BAD);
    BYTES("\xe4\xb8z", BAD "z");
    BYTES("\xf0\x9f\x98\xe4\xb8\xad", BAD "\xe4\xb8\xad");
    BYTES("\xed\xa0\x80", BAD BAD BAD);
    BYTES("\xc0\x80", BAD BAD);
    BYTES("\xf4\x90\x80\x80", BAD BAD BAD BAD);
    BYTES("\xe0\x80\x80", BAD BAD BAD);
    BYTES("\xf0\xf0\x9f", BAD BAD);
}

static void leaves_out_control_tokens(void **state) {
    (void)state;
    size_t n;
    detok_reset(d);
    const int32_t none[] = {300, -1, 299, 303, INT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        (void)detok_feed(d, none[i], &n);
        assert_int_equal(n, 0);
    }
    assert_memory_equal(detok_feed(d, 301, &n), "<think>", 7);
    assert_int_equal(n, 7);
    (void)detok_feed(d, 0xe4, &n);
    assert_memory_equal(detok_feed(d, 302, &n), BAD "\xe4\xb8\xad", 6);
    assert_int_equal(n, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_back_half_characters),
        cmocka_unit_test(broken_bytes_become_replacements),
        cmocka_unit_test(leaves_out_control_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
