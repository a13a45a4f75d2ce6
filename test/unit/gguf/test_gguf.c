#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "gguf/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A header by hand, so that the reader is not only held against our own writer.
struct bytes {
    uint8_t data[8192];
    size_t n;
};

static void add(struct bytes *b, const void *data, size_t n) {
    assert_true(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void add_u32(struct bytes *b, uint32_t v) { add(b, &v, 4); }
static void add_u64(struct bytes *b, uint64_t v) { add(b, &v, 8); }

static void add_text(struct bytes *b, const char *s) {
    add_u64(b, strlen(s));
    add(b, s, strlen(s));
}

static void start(struct bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_values) {
    b->n = 0;
    add(b, "GGUF", 4);
    add_u32(b, version);
    add_u64(b, n_tensors);
    add_u64(b, n_values);
}

static void add_key_u32(struct bytes *b, const char *key, uint32_t v) {
    add_text(b, key);
    add_u32(b, GGUF_U32);
    add_u32(b, v);
}

static void add_tensor(struct bytes *b, const char *name, uint64_t k, uint64_t rows, uint64_t offset) {
    add_text(b, name);
    add_u32(b, 2);
    add_u64(b, k);
    add_u64(b, rows);
    add_u32(b, 0);
    add_u64(b, offset);
}

static void pad(struct bytes *b, size_t to) {
    while (b->n % to) add(b, "", 1);
}

// Refused, with all of the words in the text.
static void refused(const struct bytes *b, int code, const char *word, const char *other) {
    struct gguf *g;
    struct err e = {0};
    // A copy of its own, so that a sanitizer sees a read behind the end.
    uint8_t *copy = malloc(b->n ? b->n : 1);
    memcpy(copy, b->data, b->n);
    assert_int_equal(gguf_new(copy, b->n, &g, &e), code);
    free(copy);
    assert_int_equal(e.code, code);
    if (!strstr(e.text, word) || !strstr(e.text, other)) fail_msg("\"%s\": neither %s nor %s", e.text, word, other);
}

static void by_hand(void **state) {
    (void)state;
    struct bytes b;
    for (uint32_t version = 2; version <= 3; version++) {
        start(&b, version, 2, 5);
        add_key_u32(&b, "general.alignment", 64);
        add_text(&b, "name");
        add_u32(&b, GGUF_STRING);
        add_text(&b, "ein Modell");
        add_text(&b, "list");
        add_u32(&b, GGUF_ARRAY);
        add_u32(&b, GGUF_I16);
        add_u64(&b, 3);
        add(&b, (int16_t[]){-1, 2, 300}, 6);
        add_text(&b, "words");
        add_u32(&b, GGUF_ARRAY);
        add_u32(&b, GGUF_STRING);
        add_u64(&b, 2);
        add_text(&b, "");
        add_text(&b, "two");
        add_text(&b, "yes");
        add_u32(&b, GGUF_BOOL);
        add(&b, "\1", 1);
        add_tensor(&b, "a.weight", 8, 2, 0);
        add_tensor(&b, "b.weight", 8, 3, 64);
        pad(&b, 64);
        size_t data = b.n;
        for (int i = 0; i < 40; i++) add_u32(&b, 0);
        struct gguf *g;
        struct err e;
        assert_int_equal(gguf_new(b.data, b.n, &g, &e), 0);
        assert_int_equal(gguf_version(g), version);
        assert_int_equal(gguf_data_offset(g), data);
        assert_int_equal(gguf_alignment(g), 64);
        assert_int_equal(gguf_n_values(g), 5);
        assert_int_equal(gguf_n_tensors(g), 2);
        const struct gguf_tensor *t = gguf_tensor_at(g, 1);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->dim[0], 8);
        assert_int_equal(t->dim[1], 3);
        assert_int_equal(t->dim[2], 1);
        assert_int_equal(t->offset, 64);
        assert_memory_equal(t->name.text, "b.weight", 8);

        struct gguf_string s = {0};
        assert_int_equal(gguf_get_string(g, "name", &s, &e), 0);
        assert_int_equal(s.len_bytes, 10);
        int64_t n = 0;
        const struct gguf_value *list = gguf_find(g, "list");
        assert_true(gguf_item_integer(list, 0, &n));
        assert_int_equal(n, -1);
        assert_true(gguf_item_integer(list, 2, &n));
        assert_int_equal(n, 300);
        assert_false(gguf_item_integer(list, 3, &n));
        const struct gguf_value *words = gguf_find(g, "words");
        const uint8_t *at = words->data;
        assert_true(gguf_next_string(words, &at, &s));
        assert_int_equal(s.len_bytes, 0);
        assert_true(gguf_next_string(words, &at, &s));
        assert_memory_equal(s.text, "two", 3);
        assert_false(gguf_next_string(words, &at, &s));
        bool yes = false;
        assert_int_equal(gguf_get_bool(g, "yes", &yes, &e), 0);
        assert_true(yes);
        assert_null(gguf_find(g, "nam"));
        assert_null(gguf_find(g, "names"));
        gguf_free(g);
    }
}

static void refuses_versions(void **state) {
    (void)state;
    struct bytes b;
    start(&b, 1, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "version 1", "converted");
    start(&b, 4, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "version 4", "2 and 3");
    start(&b, 0x03000000, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "big-endian", "");
    b.data[0] = 'g';
    refused(&b, ERR_FORMAT, "GGUF", "");
    b.n = 0;
    refused(&b, ERR_FORMAT, "GGUF", "");
}

static void refuses_counts(void **state) {
    (void)state;
    struct bytes b;
    start(&b, 3, 0, 1000);
    refused(&b, ERR_FORMAT, "1000 metadata keys", "do not fit");
    start(&b, 3, 0, 1ull << 60);
    refused(&b, ERR_LIMIT, "metadata keys", "");
    start(&b, 3, 1000, 0);
    refused(&b, ERR_FORMAT, "1000 tensors", "do not fit");
    start(&b, 3, UINT64_MAX, 0);
    refused(&b, ERR_LIMIT, "tensors", "");
    for (int strings = 0; strings < 2; strings++) {
        start(&b, 3, 0, 1);
        add_text(&b, "list");
        add_u32(&b, GGUF_ARRAY);
        add_u32(&b, strings ? GGUF_STRING : GGUF_U64);
        add_u64(&b, strings ? 1ull << 61 : (1ull << 61) + 1);
        add_u64(&b, 0);
        refused(&b, ERR_FORMAT, "key list", "ends");
    }
}

static void refuses_values(void **state) {
    (void)state;
    struct bytes b;
    start(&b, 3, 0, 2);
    add_key_u32(&b, "same", 1);
    add_key_u32(&b, "same", 1);
    refused(&b, ERR_FORMAT, "key same", "twice");
    start(&b, 3, 0, 1);
    add_text(&b, "odd");
    add_u32(&b, 13);
    add_u32(&b, 0);
    refused(&b, ERR_FORMAT, "key odd", "type 13");
    start(&b, 3, 0, 1);
    add_text(&b, "nested");
    add_u32(&b, GGUF_ARRAY);
    add_u32(&b, GGUF_ARRAY);
    add_u64(&b, 1);
    refused(&b, ERR_UNSUPPORTED, "key nested", "array of arrays");
    start(&b, 3, 0, 1);
    add_key_u32(&b, "", 1);
    add_u32(&b, 0);
    refused(&b, ERR_FORMAT, "key 0", "");
    start(&b, 3, 0, 1);
    add_key_u32(&b, "\033[2J", 1);
    refused(&b, ERR_FORMAT, "control", "");
    const uint32_t alignments[] = {0, 1, 4, 24, 33, 1u << 31};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        start(&b, 3, 0, 1);
        add_key_u32(&b, "general.alignment", alignments[i]);
        pad(&b, 64);
        refused(&b, ERR_FORMAT, "general.alignment", "");
    }
}

static void refuses_tensors(void **state) {
    (void)state;
    struct bytes b;
    start(&b, 3, 2, 0);
    add_tensor(&b, "same", 1, 1, 0);
    add_tensor(&b, "same", 1, 1, 32);
    pad(&b, 32);
    refused(&b, ERR_FORMAT, "tensor same", "twice");
    start(&b, 3, 1, 0);
    add_text(&b, "deep");
    add_u32(&b, 5);
    for (int i = 0; i < 8; i++) add_u64(&b, 1);
    refused(&b, ERR_UNSUPPORTED, "tensor deep", "5 dimensions");
    start(&b, 3, 1, 0);
    char name[LIMIT_TENSOR_NAME + 1];
    memset(name, 'n', LIMIT_TENSOR_NAME);
    name[LIMIT_TENSOR_NAME] = 0;
    add_tensor(&b, name, 1, 1, 0);
    refused(&b, ERR_FORMAT, "tensor 0", "256 bytes");
    start(&b, 3, 1, 0);
    add_tensor(&b, "no data", 1, 1, 0);
    refused(&b, ERR_FORMAT, "data should begin", "");
}

static void truncated(void **state) {
    (void)state;
    struct bytes b;
    start(&b, 3, 1, 2);
    add_key_u32(&b, "one", 1);
    add_text(&b, "words");
    add_u32(&b, GGUF_ARRAY);
    add_u32(&b, GGUF_STRING);
    add_u64(&b, 2);
    add_text(&b, "x");
    add_text(&b, "y");
    add_tensor(&b, "t", 8, 1, 0);
    pad(&b, 32);
    size_t whole = b.n;
    for (size_t n = 0; n < whole; n++) {
        b.n = n;
        refused(&b, ERR_FORMAT, "", "");
    }
    struct gguf *g;
    assert_int_equal(gguf_new(b.data, whole, &g, NULL), 0);
    gguf_free(g);
}

static void kinds(void **state) {
    (void)state;
    struct gguf_writer *w;
    struct buf out;
    struct gguf *g;
    struct err e;
    uint32_t u = 7;
    double d = 0;
    bool yes = false;
    struct gguf_string s;
    buf_init(&out, 1 << 20);
    assert_int_equal(gguf_writer_new(&w), 0);
    assert_int_equal(gguf_put_u32(w, "u32", 5), 0);
    assert_int_equal(gguf_put_u64(w, "u64", UINT64_MAX), 0);
    assert_int_equal(gguf_put_f32(w, "f32", 0.5f), 0);
    assert_int_equal(gguf_put_f32(w, "nan", NAN), 0);
    assert_int_equal(gguf_put_bool(w, "bool", true), 0);
    assert_int_equal(gguf_put_string(w, "string", "a\0b", 3), 0);
    assert_int_equal(gguf_put_array(w, "i32s", GGUF_I32, (int32_t[]){-5}, 1), 0);
    assert_int_equal(gguf_put_u32(w, "u32", 6), ERR_FORMAT);
    assert_int_equal(gguf_writer_header(w, &out), 0);
    gguf_writer_free(w);
    assert_int_equal(gguf_new(out.data, out.len_bytes, &g, &e), 0);
    assert_int_equal(gguf_get_u32(g, "missing", 0, 9, &u, &e), 0);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_get_u32(g, "u32", 0, 9, &u, &e), 0);
    assert_int_equal(u, 5);
    assert_int_equal(gguf_get_u32(g, "u32", 6, 9, &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "u32: 5"));
    assert_int_equal(gguf_get_u32(g, "u64", 0, 9, &u, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_u32(g, "f32", 0, 9, &u, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_u32(g, "i32s", 0, 9, &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "array"));
    assert_int_equal(gguf_get_number(g, "f32", &d, &e), 0);
    assert_true(d == 0.5);
    assert_int_equal(gguf_get_number(g, "u32", &d, &e), 0);
    assert_true(d == 5);
    assert_int_equal(gguf_get_number(g, "nan", &d, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_number(g, "string", &d, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_bool(g, "u32", &yes, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_bool(g, "bool", &yes, &e), 0);
    assert_int_equal(gguf_get_string(g, "bool", &s, &e), ERR_FORMAT);
    assert_int_equal(gguf_get_string(g, "string", &s, &e), 0);
    assert_int_equal(s.len_bytes, 3);
    assert_int_equal(u, 5);
    gguf_free(g);
    buf_fini(&out);
}

// What is written is read back, what is copied out of another file is the same there.
static void round_trip(void **state) {
    (void)state;
    struct gguf_writer *w, *copy;
    struct buf a, b;
    struct gguf *g, *h;
    uint64_t at[2];
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    const struct gguf_string words[] = {{"one", 3}, {"", 0}, {"drei", 4}};
    assert_int_equal(gguf_writer_new(&w), 0);
    assert_int_equal(gguf_put_string(w, "general.architecture", "test", 4), 0);
    assert_int_equal(gguf_put_array(w, "words", GGUF_STRING, words, 3), 0);
    assert_int_equal(gguf_put_array(w, "none", GGUF_F32, NULL, 0), 0);
    assert_int_equal(gguf_put_tensor(w, "t", (uint64_t[]){5}, 1, 0, 20, &at[0]), 0);
    assert_int_equal(gguf_put_tensor(w, "u", (uint64_t[]){256, 3}, 2, 12, 432, &at[1]), 0);
    assert_int_equal(gguf_put_tensor(w, "u", (uint64_t[]){256, 3}, 2, 12, 432, &at[1]), ERR_FORMAT);
    assert_int_equal(at[0], 0);
    assert_int_equal(at[1], 32);
    assert_int_equal(gguf_writer_data_bytes(w), 32 + 448);
    assert_int_equal(gguf_writer_header(w, &a), 0);
    assert_int_equal(a.len_bytes % GGUF_ALIGNMENT, 0);
    gguf_writer_free(w);

    assert_int_equal(gguf_new(a.data, a.len_bytes, &g, NULL), 0);
    assert_int_equal(gguf_data_offset(g), a.len_bytes);
    assert_int_equal(gguf_tensor_at(g, 1)->type, 12);
    assert_int_equal(gguf_tensor_at(g, 1)->offset, 32);
    assert_int_equal(gguf_writer_new(&copy), 0);
    for (uint64_t i = 0; i < gguf_n_values(g); i++) assert_int_equal(gguf_put_value(copy, gguf_value_at(g, i)), 0);
    assert_int_equal(gguf_put_tensor(copy, "t", (uint64_t[]){5}, 1, 0, 20, &at[0]), 0);
    assert_int_equal(gguf_put_tensor(copy, "u", (uint64_t[]){256, 3}, 2, 12, 432, &at[1]), 0);
    assert_int_equal(gguf_writer_header(copy, &b), 0);
    gguf_writer_free(copy);
    assert_int_equal(a.len_bytes, b.len_bytes);
    assert_memory_equal(a.data, b.data, a.len_bytes);

    assert_int_equal(gguf_new(b.data, b.len_bytes, &h, NULL), 0);
    const struct gguf_value *v = gguf_find(h, "words");
    const uint8_t *p = v->data;
    struct gguf_string s;
    for (int i = 0; i < 3; i++) {
        assert_true(gguf_next_string(v, &p, &s));
        assert_int_equal(s.len_bytes, words[i].len_bytes);
        if (s.len_bytes) assert_memory_equal(s.text, words[i].text, s.len_bytes);
    }
    assert_false(gguf_next_string(v, &p, &s));
    assert_int_equal(gguf_find(h, "none")->n_items, 0);
    gguf_free(g);
    gguf_free(h);
    buf_fini(&a);
    buf_fini(&b);
}

// Token ids: there, not there, and the two ways in which writers say that there is none.
static void ids(void **state) {
    (void)state;
    struct bytes b;
    struct gguf *g;
    struct err e = {0};
    int32_t id = 5;
    start(&b, 3, 0, 4);
    add_key_u32(&b, "id", 7);
    add_key_u32(&b, "none", UINT32_MAX);
    add_key_u32(&b, "large", 1u << 31);
    add_text(&b, "minus");
    add_u32(&b, GGUF_I32);
    add_u32(&b, UINT32_MAX);
    assert_int_equal(gguf_new(b.data, b.n, &g, &e), 0);
    assert_true(gguf_get_id(g, "id", &id, &e) == 0 && id == 7);
    assert_true(gguf_get_id(g, "none", &id, &e) == 0 && id == -1);
    id = 5;
    assert_true(gguf_get_id(g, "minus", &id, &e) == 0 && id == -1);
    id = 5;
    assert_true(gguf_get_id(g, "missing", &id, &e) == 0 && id == -1);
    assert_int_equal(gguf_get_id(g, "large", &id, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "large"));
    gguf_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_hand),         cmocka_unit_test(refuses_versions),
                                       cmocka_unit_test(refuses_counts),  cmocka_unit_test(refuses_values),
                                       cmocka_unit_test(refuses_tensors), cmocka_unit_test(truncated),
                                       cmocka_unit_test(kinds),           cmocka_unit_test(ids),
                                       cmocka_unit_test(round_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
