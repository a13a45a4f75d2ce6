// Joins that are made from scores: how many there may be, and which of two tokens wins. The ids that a file names.
#include "base/buf.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { LONGEST = 256, COPIES = 20000, MOST = 40000 };

struct list {
    struct gguf_string tokens[MOST];
    float scores[MOST];
    uint32_t n;
    struct gguf_writer *w;
};

static char text[2 * LONGEST + 1]; // all a, then all b

static int setup(void **state) {
    struct list *l = calloc(1, sizeof *l);
    assert_non_null(l);
    *state = l;
    memset(text, 'a', LONGEST);
    memset(text + LONGEST, 'b', LONGEST);
    return gguf_writer_new(&l->w);
}

static int teardown(void **state) {
    struct list *l = *state;
    gguf_writer_free(l->w);
    free(l);
    return 0;
}

static void add(struct list *l, const char *token, size_t n) {
    assert_true(l->n < MOST);
    l->scores[l->n] = -(float)l->n;
    l->tokens[l->n++] = (struct gguf_string){token, n};
}

static int load(struct list *l, struct tokenizer **t, struct err *e) {
    struct buf b;
    struct gguf *g = NULL;
    buf_init(&b, 64 << 20);
    assert_int_equal(gguf_put_string(l->w, "tokenizer.ggml.model", "llama", 5), 0);
    assert_int_equal(gguf_put_array(l->w, "tokenizer.ggml.tokens", GGUF_STRING, l->tokens, l->n), 0);
    assert_int_equal(gguf_put_array(l->w, "tokenizer.ggml.scores", GGUF_F32, l->scores, l->n), 0);
    assert_int_equal(gguf_put_bool(l->w, "tokenizer.ggml.add_space_prefix", false), 0);
    assert_int_equal(gguf_writer_header(l->w, &b), 0);
    int rc = gguf_new(b.data, b.len_bytes, &g, e);
    if (!rc) rc = tokenizer_new_gguf(g, t, e);
    gguf_free(g);
    buf_fini(&b);
    return rc;
}

static void first_of_many_copies(void **state) {
    struct list *l = *state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct ids ids;
    for (size_t n = 1; n <= LONGEST; n++) add(l, text, n);
    for (int i = 0; i < COPIES; i++) add(l, text, LONGEST);
    if (load(l, &t, &e)) fail_msg("%s", e.text);
    ids_init(&ids, 16);
    if (tokenizer_encode(t, text, LONGEST, false, &ids, &e)) fail_msg("%s", e.text);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.data[0], LONGEST - 1);
    ids_fini(&ids);
    tokenizer_free(t);
}

static void too_many_joins(void **state) {
    struct list *l = *state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    for (size_t a = 0; a <= LONGEST; a++)
        for (size_t b = 0; a + b <= LONGEST; b++)
            if (a + b) add(l, text + LONGEST - a, a + b);
    assert_int_equal(load(l, &t, &e), ERR_LIMIT);
    assert_null(t);
    if (!strstr(e.text, "tokenizer.ggml.scores") || !strstr(e.text, "pairs")) fail_msg("%s", e.text);
}

// Files say -1 where they mean that there is none.
static void ids_that_are_none(void **state) {
    static const char *const keys[] = {"bos", "eos", "eot", "eom", "padding", "unknown"};
    struct list *l = *state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    char key[64];
    add(l, "a", 1);
    add(l, "b", 1);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const int32_t none = -1;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i]);
        const struct gguf_value v = {.key = {key, strlen(key)},
                                     .type = GGUF_I32,
                                     .item_type = GGUF_I32,
                                     .n_items = 1,
                                     .data = (const uint8_t *)&none,
                                     .data_bytes = sizeof none};
        assert_int_equal(gguf_put_value(l->w, &v), 0);
    }
    if (load(l, &t, &e)) fail_msg("%s", e.text);
    uint32_t n = 1;
    (void)tokenizer_prefix(t, &n);
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_next_special(t, -1), -1);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_of_many_copies, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_joins, setup, teardown),
        cmocka_unit_test_setup_teardown(ids_that_are_none, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
