// loom-demo's tokenizer.json against the same tokenizer as GGUF metadata: the same ids for the same texts.
#include "gguf/gguf.h"
#include "os/file.h"
#include "text/tokenizer.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define FOLDER LOOM_SOURCE_DIR "/models/loom-demo/"

static struct buf as_gguf(const json_t *root) {
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *merges = json_object_get(model, "merges");
    size_t n = json_object_size(json_object_get(model, "vocab")) + json_array_size(added), i, n_merges = 0;
    struct gguf_string *tokens = calloc(n, sizeof *tokens), *list = calloc(json_array_size(merges), sizeof *list);
    int32_t *types = calloc(n, sizeof *types);
    const char *key;
    json_t *v;
    struct buf b;
    struct gguf_writer *w = NULL;
    buf_init(&b, 64 << 20);
    assert_true(tokens && types && list);
    json_object_foreach(json_object_get(model, "vocab"), key, v) {
        size_t id = (size_t)json_integer_value(v);
        assert_true(id < n);
        tokens[id] = (struct gguf_string){key, strlen(key)};
        types[id] = 1;
    }
    json_array_foreach(added, i, v) {
        const json_t *content = json_object_get(v, "content");
        size_t id = (size_t)json_integer_value(json_object_get(v, "id"));
        assert_true(id < n);
        tokens[id] = (struct gguf_string){json_string_value(content), json_string_length(content)};
        types[id] = json_is_true(json_object_get(v, "special")) ? 3 : 4;
    }
    while (n > 0 && !tokens[n - 1].text) n--;
    for (i = 0; i < n; i++)
        if (!tokens[i].text) fail_msg("id %zu is no token", i);
    json_array_foreach(merges, i, v) {
        char *both = malloc(512);
        assert_non_null(both);
        int len = json_is_string(v) ? snprintf(both, 512, "%s", json_string_value(v))
                                    : snprintf(both, 512, "%s %s", json_string_value(json_array_get(v, 0)),
                                               json_string_value(json_array_get(v, 1)));
        list[n_merges++] = (struct gguf_string){both, (uint64_t)len};
    }
    int rc = gguf_writer_new(&w);
    if (!rc) rc = gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    if (!rc) rc = gguf_put_string(w, "tokenizer.ggml.pre", "qwen2", 5);
    if (!rc) rc = gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, tokens, n);
    if (!rc) rc = gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    if (!rc) rc = gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, list, n_merges);
    if (!rc) rc = gguf_writer_header(w, &b);
    assert_int_equal(rc, 0);
    gguf_writer_free(w);
    for (i = 0; i < n_merges; i++) free((char *)list[i].text);
    free(list);
    free(tokens);
    free(types);
    return b;
}

static void same(const struct tokenizer *a, const struct tokenizer *b, const char *text, size_t n, bool special) {
    struct ids x, y;
    struct err e = {0};
    ids_init(&x, 1 << 22);
    ids_init(&y, 1 << 22);
    if (tokenizer_encode(a, text, n, special, &x, &e) || tokenizer_encode(b, text, n, special, &y, &e))
        fail_msg("%s", e.text);
    assert_int_equal(x.n, y.n);
    assert_true(tokenizer_least_tokens(a, text, n) <= x.n);
    assert_memory_equal(x.data, y.data, x.n * sizeof *x.data);
    ids_fini(&x);
    ids_fini(&y);
}

static void gguf_and_json_agree(void **state) {
    (void)state;
    char *json, *prose;
    size_t json_bytes, prose_bytes;
    struct err e = {0};
    struct tokenizer *a = NULL, *b = NULL;
    struct gguf *g = NULL;
    if (file_read(FOLDER "tokenizer.json", 64 << 20, &json, &json_bytes, &e)) fail_msg("%s", e.text);
    if (file_read(LOOM_SOURCE_DIR "/README.md", 1 << 20, &prose, &prose_bytes, &e)) fail_msg("%s", e.text);
    json_t *root = json_loadb(json, json_bytes, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    struct buf meta = as_gguf(root);
    if (tokenizer_new(json, json_bytes, &a, &e) || gguf_new(meta.data, meta.len_bytes, &g, &e) ||
        tokenizer_new_gguf(g, &b, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tokenizer_n_vocab(a), tokenizer_n_vocab(b));
    for (int32_t id = 0; id < (int32_t)tokenizer_n_vocab(a); id++) {
        size_t n, m;
        const uint8_t *p = tokenizer_token_bytes(a, id, &n), *q = tokenizer_token_bytes(b, id, &m);
        assert_int_equal(n, m);
        if (n) assert_memory_equal(p, q, n);
        assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
    }
    static const char *const texts[] = {"e\xcc\x81 caf\xc3\xa9", "<|im_start|>user\nhi<|im_end|>",
                                        "<think>\n\n</think>", "\xe4\xb8\xad\xe6\x96\x87\xe3\x80\x82 123456 \r\n\t x",
                                        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int special = 0; special < 2; special++) same(a, b, texts[i], strlen(texts[i]), special);
    same(a, b, prose, prose_bytes, true);
    size_t some = json_bytes < 200000 ? json_bytes : 200000;
    while (some < json_bytes && (json[some] & 0xc0) == 0x80) some--;
    same(a, b, json, some, false);
    tokenizer_free(a);
    tokenizer_free(b);
    gguf_free(g);
    buf_fini(&meta);
    json_decref(root);
    free(json);
    free(prose);
}

// A file with some of the keys: what it is refused for ("": it is not), and what is doubtful about it.
static void keys(const char *pre, bool tokens, bool types, bool merges, const char *refusal, const char *doubt) {
    static const struct gguf_string list[] = {{"a", 1}, {"b", 1}, {"ab", 2}, {"<e>", 3}}, merge = {"a b", 3};
    struct gguf_writer *w;
    struct gguf *g;
    struct tokenizer *one = NULL;
    struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 16);
    int rc = gguf_writer_new(&w);
    if (!rc) rc = gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    if (!rc && pre) rc = gguf_put_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    if (!rc && tokens) rc = gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, list, 4);
    if (!rc && types) rc = gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){1, 1, 1, 3}, 4);
    if (!rc && merges) rc = gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, &merge, 1);
    if (!rc) rc = gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 3);
    if (!rc) rc = gguf_writer_header(w, &b);
    assert_int_equal(rc, 0);
    gguf_writer_free(w);
    if (gguf_new(b.data, b.len_bytes, &g, &e)) fail_msg("%s", e.text);
    rc = tokenizer_new_gguf(g, &one, &e);
    if (rc ? !refusal[0] || !strstr(e.text, refusal) : refusal[0]) fail_msg("%s: %d %s", refusal, rc, e.text);
    if (!rc) assert_true(tokenizer_is_special(one, 3)); // by its type, or as the end token
    const char *have = tokenizer_gguf_doubt(g);
    if (doubt ? !have || !strstr(have, doubt) : have != NULL) fail_msg("%s", have ? have : "no doubt");
    tokenizer_free(one);
    gguf_free(g);
    buf_fini(&b);
}

static void keys_that_are_missing(void **state) {
    (void)state;
    keys("qwen2", true, true, true, "", NULL);
    keys("qwen2", true, false, true, "", "tokenizer.ggml.token_type is missing");
    keys(NULL, true, true, true, "", "tokenizer.ggml.pre is missing");
    keys("qwen2", false, true, true, "tokenizer.ggml.tokens is missing", NULL);
    keys("qwen2", true, true, false, "tokenizer.ggml.merges is missing", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf_and_json_agree), cmocka_unit_test(keys_that_are_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
