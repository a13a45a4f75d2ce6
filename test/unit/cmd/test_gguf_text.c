// What the tokenizer of a folder has and GGUF has not is refused by its name, so that no file has other tokens than the
// folder.
#include "cmd/gguf_text.h"
#include "model/gguf_config.h"
#include "model/model.h"
#include "os/file.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/loom_text_XXXXXX";

static const char config[] =
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": 256, \"intermediate_size\": 512, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 16, "
    "\"max_position_embeddings\": 2048, \"rope_theta\": 10000, \"eos_token_id\": 2, \"dtype\": \"bfloat16\"}";

#define VOCAB      "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3}, \"merges\": [\"a b\"]"
#define BPE        "\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, " VOCAB "}"
#define BYTES      "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define MARKED     "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}"
#define META(rest) "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\", " rest "}"

static int export(const char *tokenizer, struct err *e) {
    char path[LIMIT_PATH];
    struct hparams h;
    struct gguf_writer *w;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(file_write(path, tokenizer, strlen(tokenizer), 0600, e), ERR_OK);
    assert_int_equal(model_parse_config(config, strlen(config), &h, e), ERR_OK);
    assert_int_equal(gguf_writer_new(&w), ERR_OK);
    int rc = gguf_text_export(folder, &h, w, NULL, e);
    gguf_writer_free(w);
    return rc;
}

static void test_taken(void **state) {
    (void)state;
    static const char *const good[] = {
        "{" BPE ", " BYTES "}",
        "{" BPE ", \"normalizer\": {\"type\": \"NFC\"}, " BYTES "}",
        "{" BPE ", \"normalizer\": " MARKED "}",
        "{" BPE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "
        "\"\xe2\x96\x81\"}, " MARKED "]}}",
        "{" BPE ", " META("\"prepend_scheme\": \"never\", \"split\": false") "}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err e = {0};
        int rc = export(good[i], &e);
        if (rc) print_message("%s\n", e.text);
        assert_int_equal(rc, ERR_OK);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *tokenizer, *text;
        int rc;
    } bad[] = {
        {"{" BPE ", \"normalizer\": {\"type\": \"Lowercase\"}, " BYTES "}", "normalizer: Lowercase", ERR_UNSUPPORTED},
        {"{" BPE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": "
         "\"Strip\"}]}, " BYTES "}",
         "normalizer: Strip", ERR_UNSUPPORTED},
        {"{" BPE ", \"normalizer\": {\"type\": \"NFKC\"}, " BYTES "}", "normalizer: NFKC", ERR_UNSUPPORTED},
        {"{" BPE ", \"normalizer\": " MARKED ", " BYTES "}", "normalizer: Replace", ERR_UNSUPPORTED},
        {"{" BPE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, " MARKED "]}}",
         "normalizer: NFC", ERR_UNSUPPORTED},
        {"{" BPE ", " META("\"prepend_scheme\": \"first\", \"split\": false") "}", "prepend_scheme", ERR_UNSUPPORTED},
        {"{" BPE ", " META("\"prepend_scheme\": \"always\", \"split\": false") "}", "prepend_scheme", ERR_UNSUPPORTED},
        {"{" BPE "}", "spaces", ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", \"ignore_merges\": true, " VOCAB "}, " BYTES "}", "ignore_merges true",
         ERR_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": \"0\"}, \"merges\": []}, " BYTES "}", "\"a\"", ERR_FORMAT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}, " BYTES "}",
         "both have id 0", ERR_FORMAT},
        {"{" BPE ", \"added_tokens\": [{\"id\": 5, \"content\": \"<x>\"}, {\"id\": 5, \"content\": \"<y>\"}], " BYTES
         "}",
         "id 5", ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        int rc = export(bad[i].tokenizer, &e);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].text)) print_message("%s: %d, %s\n", bad[i].text, rc, e.text);
        assert_int_equal(rc, bad[i].rc);
        assert_non_null(strstr(e.text, bad[i].text));
    }
}

static void test_long_token(void **state) {
    (void)state;
    static char text[LIMIT_TOKEN_BYTES + 1024];
    struct err e = {0};
    const int n = snprintf(text, sizeof text, "{" BPE ", " BYTES ", \"added_tokens\": [{\"id\": 5, \"content\": \"");
    memset(text + n, 'x', LIMIT_TOKEN_BYTES + 1);
    snprintf(text + n + LIMIT_TOKEN_BYTES + 1, 16, "\"}]}");
    assert_int_equal(export(text, &e), ERR_LIMIT);
}

// What a folder's file has as end tokens. eos: the list of config.json; tokenizer: NULL: there is none.
static void ends(const char *tokenizer, const char *eos, struct gguf_text_lacks *lacks, struct gguf **g,
                 struct buf *bytes) {
    char path[LIMIT_PATH], text[1024];
    struct hparams h;
    struct gguf_writer *w;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    if (tokenizer) assert_int_equal(file_write(path, tokenizer, strlen(tokenizer), 0600, &e), ERR_OK);
    const char *at = strstr(config, "\"eos_token_id\": 2");
    snprintf(text, sizeof text, "%.*s\"eos_token_id\": %s%s", (int)(at - config), config, eos,
             at + strlen("\"eos_token_id\": 2"));
    assert_int_equal(model_parse_config(text, strlen(text), &h, &e), ERR_OK);
    assert_int_equal(gguf_writer_new(&w), ERR_OK);
    if (gguf_text_export(folder, &h, w, lacks, &e)) fail_msg("%s", e.text);
    buf_init(bytes, 1 << 20);
    assert_int_equal(gguf_writer_header(w, bytes), ERR_OK);
    gguf_writer_free(w);
    if (gguf_new(bytes->data, bytes->len_bytes, g, &e)) fail_msg("%s", e.text);
}

static void has_id(const struct gguf *g, const char *key, int32_t want) {
    int32_t id;
    assert_int_equal(gguf_get_id(g, key, &id, NULL), ERR_OK);
    assert_int_equal(id, want);
}

static void test_ends(void **state) {
    (void)state;
    static const char controls[] = "{" BPE ", " BYTES ", \"added_tokens\": [{\"id\": 5, \"content\": \"<x>\", "
                                   "\"special\": true}, {\"id\": 6, \"content\": \"<y>\", \"special\": true}, "
                                   "{\"id\": 7, \"content\": \"<z>\", \"special\": true}]}";
    struct gguf_text_lacks lacks;
    struct gguf *g;
    struct buf b;
    ends(controls, "[7, 5, 6]", &lacks, &g, &b);
    assert_false(lacks.ends || lacks.tokenizer);
    has_id(g, "tokenizer.ggml.eos_token_id", 7);
    has_id(g, "tokenizer.ggml.eot_token_id", 5);
    has_id(g, "tokenizer.ggml.eom_token_id", 6);
    assert_null(gguf_find(g, GGUF_END_TOKENS));
    gguf_free(g);
    buf_fini(&b);
    // One that is ordinary text has no place in those keys, whose tokens readers take for control tokens.
    ends(controls, "[7, 1, 6]", &lacks, &g, &b);
    assert_true(lacks.ends);
    has_id(g, "tokenizer.ggml.eot_token_id", 6);
    has_id(g, "tokenizer.ggml.eom_token_id", -1);
    const struct gguf_value *all = gguf_find(g, GGUF_END_TOKENS);
    assert_non_null(all);
    assert_int_equal(all->n_items, 3);
    int64_t id = 0;
    assert_true(gguf_item_integer(all, 1, &id) && id == 1);
    gguf_free(g);
    buf_fini(&b);
    // Without a tokenizer answers end all the same.
    ends(NULL, "[7, 5, 6, 1]", &lacks, &g, &b);
    assert_true(lacks.ends && lacks.tokenizer);
    has_id(g, "tokenizer.ggml.eos_token_id", 7);
    assert_int_equal(gguf_find(g, GGUF_END_TOKENS)->n_items, 4);
    gguf_free(g);
    buf_fini(&b);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    file_remove_tree(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_long_token), cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
