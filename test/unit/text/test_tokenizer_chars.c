// SentencePiece-like tokenizers, from all three kinds of file.
#include "small.h"
#include "text/detok.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { END = -1 };

static struct tokenizer *from_json(const struct small_json *y) {
    struct buf b = small_json(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_new((const char *)b.data, b.len_bytes, &t, &e)) fail_msg("%s", e.text);
    buf_fini(&b);
    return t;
}

static struct tokenizer *from_proto(const struct small_proto *y, const char *config) {
    struct buf b = small_proto(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_new_spm(b.data, b.len_bytes, config, &t, &e)) fail_msg("%s", e.text);
    buf_fini(&b);
    return t;
}

static int gguf_load(const struct small_gguf *y, struct tokenizer **t, struct err *e) {
    struct buf b = small_gguf(y);
    struct gguf *g = NULL;
    int rc = gguf_new(b.data, b.len_bytes, &g, e);
    if (!rc) rc = tokenizer_new_gguf(g, t, e);
    gguf_free(g);
    buf_fini(&b);
    return rc;
}

static struct tokenizer *from_gguf(const struct small_gguf *y) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (gguf_load(y, &t, &e)) fail_msg("%s", e.text);
    return t;
}

static void expect(const struct tokenizer *t, const char *text, size_t n, bool special, const int32_t *want) {
    struct ids ids;
    struct err e = {0};
    ids_init(&ids, 1 << 20);
    if (tokenizer_encode(t, text, n, special, &ids, &e)) fail_msg("%s", e.text);
    size_t k = 0;
    while (want[k] != END) k++;
    for (size_t i = 0; i < k && i < ids.n; i++)
        if (ids.data[i] != want[i]) fail_msg("\"%s\": id %zu is %d, not %d", text, i, ids.data[i], want[i]);
    if (ids.n != k) fail_msg("\"%s\": %zu ids, not %zu", text, ids.n, k);
    ids_fini(&ids);
}

#define EXPECT(t, text, special, ...) expect(t, text, sizeof(text) - 1, special, (int32_t[]){__VA_ARGS__, END})
#define BYTE(b)                       (SMALL_BYTE0 + (b))

// What holds whatever the file was: each begins every part of a text with a space.
static void common(struct tokenizer *t) {
    EXPECT(t, "hello", true, M_HELLO);
    EXPECT(t, "hello hello", true, M_HELLO, M_HELLO);
    EXPECT(t, " hello", true, MARK, M_HELLO);
    EXPECT(t, "   w", true, MM, MARK, M_W);
    EXPECT(t, "ohello", true, MARK, O, HELLO);
    EXPECT(t, "a\xc3\xa9", true, MARK, A, BYTE(0xc3), BYTE(0xa9));
    EXPECT(t, "\xf0\x9f\x98\x80\n", true, MARK, BYTE(0xf0), BYTE(0x9f), BYTE(0x98), BYTE(0x80), BYTE('\n'));
    EXPECT(t, "<0x41>", true, MARK, BYTE('<'), BYTE('0'), BYTE('x'), BYTE('4'), BYTE('1'), BYTE('>'));
    EXPECT(t, "w</s>w", true, M_W, 2, M_W);
    EXPECT(t, "w</s>w", false, M_W, BYTE('<'), BYTE('/'), BYTE('s'), BYTE('>'), W);
    expect(t, "", 0, true, (int32_t[]){END});
    assert_int_equal(tokenizer_id_of(t, "</s>"), 2);
    assert_int_equal(tokenizer_id_of(t, M "hello"), M_HELLO);
    assert_true(tokenizer_is_special(t, 0) && tokenizer_is_special(t, 2) && !tokenizer_is_special(t, SMALL_USER));
    size_t n;
    assert_memory_equal(tokenizer_token_bytes(t, M_HELLO, &n), " hello", 6);
    assert_int_equal(n, 6);
    assert_memory_equal(tokenizer_token_bytes(t, BYTE(0xff), &n), "\xff", 1);
    assert_int_equal(n, 1);
}

static void the_same_from_each_file(void **state) {
    (void)state;
    struct tokenizer *t = from_json(&(struct small_json){0});
    common(t);
    EXPECT(t, "w[u]w", true, M_W, SMALL_USER, M_W);
    tokenizer_free(t);
    t = from_proto(&(struct small_proto){0}, NULL);
    common(t);
    // SentencePiece puts its space before the text, not before what follows a token of the user's.
    EXPECT(t, "w[u]w", true, M_W, SMALL_USER, W);
    EXPECT(t,
           "\xc3\xa9"
           "a",
           true, MARK, EA); // a character that is no token joins all the same
    tokenizer_free(t);
    t = from_gguf(&(struct small_gguf){0});
    common(t);
    EXPECT(t, "w[u]w", true, M_W, SMALL_USER, M_W);
    EXPECT(t,
           "\xc3\xa9"
           "a",
           true, MARK, EA);
    tokenizer_free(t);
}

static void goes_around_a_text(void **state) {
    (void)state;
    uint32_t n;
    struct tokenizer *t = from_gguf(&(struct small_gguf){0});
    assert_int_equal(tokenizer_prefix(t, &n)[0], 1);
    assert_int_equal(n, 1);
    (void)tokenizer_suffix(t, &n);
    assert_int_equal(n, 0);
    tokenizer_free(t);
    t = from_proto(&(struct small_proto){0}, "{\"add_bos_token\": false, \"add_eos_token\": true}");
    (void)tokenizer_prefix(t, &n);
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_suffix(t, &n)[0], 2);
    tokenizer_free(t);
}

static void no_space_in_front(void **state) {
    (void)state;
    struct tokenizer *t = from_proto(&(struct small_proto){.no_prefix = true}, NULL);
    EXPECT(t, "hello hello", true, HELLO, M_HELLO);
    tokenizer_free(t);
    t = from_gguf(&(struct small_gguf){.no_prefix = true});
    EXPECT(t, "hello hello", true, HELLO, M_HELLO);
    tokenizer_free(t);
    t = from_gguf(&(struct small_gguf){.model = "gemma4"});
    EXPECT(t, "hello hello", true, HELLO, M_HELLO);
    tokenizer_free(t);
}

#define META(scheme, split)                                                                                            \
    "{\"type\": \"Metaspace\", \"replacement\": \"" M "\", \"prepend_scheme\": \"" scheme "\", \"split\": " split "}"

static void metaspace_schemes(void **state) {
    (void)state;
    static const char *const split[] = {META("always", "true"), META("first", "true"), META("never", "true")};
    static const char *const whole[] = {META("always", "false"), META("first", "false"), META("never", "false")};
    for (int i = 0; i < 3; i++) {
        struct small_json y = {.normalizer = "null", .pre_tokenizer = split[i], .decoder = split[i]};
        struct tokenizer *t = from_json(&y);
        EXPECT(t, "w  w", true, i == 2 ? W : M_W, MARK, M_W); // "▁▁" is cut
        if (i == 0) EXPECT(t, "</s>w", true, 2, M_W);
        if (i > 0) EXPECT(t, "</s>w", true, 2, W);
        EXPECT(t, " w", true, M_W);
        tokenizer_free(t);
        y.pre_tokenizer = whole[i];
        t = from_json(&y);
        EXPECT(t, "w  w", true, i == 2 ? W : M_W, MARK, M_W);
        EXPECT(t, "w   a", true, i == 2 ? W : M_W, MM, MARK, A);
        tokenizer_free(t);
    }
}

static void unknown_characters(void **state) {
    (void)state;
    struct small_json y = {.model = "\"unk_token\": \"<unk>\", \"fuse_unk\": true"};
    struct tokenizer *t = from_json(&y);
    EXPECT(t, "xyzaxy", true, MARK, 0, A, 0);
    assert_int_equal(tokenizer_least_tokens(t, "xyzaxy", 6), 0); // all of x may be one
    tokenizer_free(t);
    y.model = "\"unk_token\": \"<unk>\"";
    t = from_json(&y);
    EXPECT(t, "xya", true, MARK, 0, 0, A);
    tokenizer_free(t);
    y.model = "\"unk_token\": null"; // dropped, as the reference does
    t = from_json(&y);
    EXPECT(t, "xya", true, MARK, A);
    tokenizer_free(t);
    y.model = "\"byte_fallback\": true, \"ignore_merges\": true";
    t = from_json(&y);
    EXPECT(t, "hello", true, M_HELLO);
    tokenizer_free(t);
}

static void later_tokens_of_the_config(void **state) {
    (void)state;
    struct tokenizer *t = from_proto(
        &(struct small_proto){0},
        "{\"legacy\": false, \"added_tokens_decoder\": {\"2\": {\"content\": \"</s>\", \"special\": true, \"rstrip\": "
        "true}, \"300\": {\"content\": \"<|user|>\", \"special\": true}}}");
    EXPECT(t, "w<|user|>w</s>  w", true, M_W, 300, W, 2, W);
    assert_int_equal(tokenizer_n_vocab(t), 301);
    assert_true(tokenizer_is_special(t, 300));
    tokenizer_free(t);
    t = from_gguf(&(struct small_gguf){.arch = "phi3"});
    EXPECT(t, "w</s>  w", true, M_W, 2, M_W);
    EXPECT(t, "w<s> w", true, M_W, 1, MARK, M_W);
    tokenizer_free(t);
}

static void text_of(const struct tokenizer *t, bool go_on, const int32_t *ids, const char *want) {
    struct detok *d = detok_new(t);
    struct buf all;
    size_t n = 0;
    buf_init(&all, 4096);
    if (go_on) detok_continue(d);
    const char *text;
    for (; *ids != END; ids++) {
        text = detok_feed(d, *ids, &n);
        assert_int_equal(buf_add(&all, text, n), 0);
    }
    text = detok_flush(d, &n);
    assert_int_equal(buf_add(&all, text, n), 0);
    assert_string_equal(buf_cstr(&all), want);
    buf_fini(&all);
    detok_free(d);
}

#define TEXT(t, want, ...) text_of(t, false, (int32_t[]){__VA_ARGS__, END}, want)
#define BAD                "\xef\xbf\xbd"

static void decodes(void **state) {
    (void)state;
    struct tokenizer *t = from_gguf(&(struct small_gguf){0});
    TEXT(t, "hello w", M_HELLO, M_W);
    TEXT(t, " hello", MARK, M_HELLO);
    TEXT(t, "hello", 1, M_HELLO, 2);
    TEXT(t, "a\xc3\xa9", A, BYTE(0xc3), BYTE(0xa9));
    TEXT(t, BAD BAD "a", BYTE(0xe4), BYTE(0xb8), A); // each byte by itself
    TEXT(t, "[u] w", SMALL_USER, M_W);
    TEXT(t, "", BYTE(' '));
    text_of(t, true, (int32_t[]){M_HELLO, END}, " hello");
    tokenizer_free(t);
    t = from_gguf(&(struct small_gguf){.no_prefix = true});
    TEXT(t, " hello", M_HELLO);
    tokenizer_free(t);
    t = from_json(&(struct small_json){
        .normalizer = "null", .pre_tokenizer = META("first", "true"), .decoder = META("first", "true")});
    TEXT(t, "w ", MM, W, MARK); // a Metaspace decoder drops all of the first token's
    tokenizer_free(t);
}

static void gguf_refused(const struct small_gguf *y, int code, const char *word) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(gguf_load(y, &t, &e), code);
    assert_null(t);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not name \"%s\"", e.text, word);
}

static void proto_refused(const struct small_proto *y, size_t cut, int code, const char *word) {
    struct buf b = small_proto(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_new_spm(b.data, b.len_bytes - cut, NULL, &t, &e), code);
    assert_null(t);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not name \"%s\"", e.text, word);
    buf_fini(&b);
}

static void json_refused(const struct small_json *y, const char *word) {
    struct buf b = small_json(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_new((const char *)b.data, b.len_bytes, &t, &e), ERR_UNSUPPORTED);
    assert_null(t);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not name \"%s\"", e.text, word);
    buf_fini(&b);
}

static void refuses_by_name(void **state) {
    (void)state;
    gguf_refused(&(struct small_gguf){.model = "bert"}, ERR_UNSUPPORTED, "bert");
    gguf_refused(&(struct small_gguf){.model = "gpt2", .pre = "nobody-knows"}, ERR_UNSUPPORTED, "nobody-knows");
    gguf_refused(&(struct small_gguf){.no_scores = true}, ERR_FORMAT, "tokenizer.ggml.scores");
    proto_refused(&(struct small_proto){.model_type = 1}, 0, ERR_UNSUPPORTED, "UNIGRAM");
    proto_refused(&(struct small_proto){.squeeze = true}, 0, ERR_UNSUPPORTED, "remove_extra_whitespaces");
    proto_refused(&(struct small_proto){.charsmap = "x"}, 0, ERR_UNSUPPORTED, "normalizer_spec");
    proto_refused(&(struct small_proto){0}, 3, ERR_FORMAT, "the file");
    json_refused(&(struct small_json){.decoder = "null"}, "decoder");
    json_refused(&(struct small_json){.decoder = "{\"type\": \"WordPiece\"}"}, "WordPiece");
    json_refused(&(struct small_json){.normalizer = "{\"type\": \"Precompiled\"}"}, "Precompiled");
    json_refused(&(struct small_json){.pre_tokenizer = "{\"type\": \"UnicodeScripts\"}"}, "UnicodeScripts");
    json_refused(&(struct small_json){.model = "\"dropout\": 0.1"}, "dropout");
}

// Without a border anywhere, and with one everywhere: neither may be quadratic.
static void giant_texts(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { N = 32 << 10 }; // each byte costs a hundred times as much there
#else
    enum { N = 2 << 20 };
#endif
    struct tokenizer *t = from_gguf(&(struct small_gguf){0});
    char *text = malloc(N);
    struct ids ids;
    ids_init(&ids, 2 * N);
    static const char *const fills[] = {"a", " ", "hello", "[u]", "\xcc\x81", "</s>", "w "};
    for (size_t k = 0; k < sizeof fills / sizeof *fills; k++) {
        size_t n = strlen(fills[k]), len = N - N % n;
        for (size_t i = 0; i < len; i++) text[i] = fills[k][i % n];
        ids_clear(&ids);
        assert_int_equal(tokenizer_encode(t, text, len, true, &ids, NULL), 0);
        size_t least = tokenizer_least_tokens(t, text, len);
        assert_true(least <= ids.n && least > len / 20);
        if (k == 1) assert_int_equal(ids.n, N / 2 + 1);
        if (k == 2) assert_int_equal(ids.n, len / 5);
        if (k == 5) assert_int_equal(ids.n, len / 4);
    }
    ids_fini(&ids);
    free(text);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_from_each_file),
        cmocka_unit_test(goes_around_a_text),
        cmocka_unit_test(no_space_in_front),
        cmocka_unit_test(metaspace_schemes),
        cmocka_unit_test(unknown_characters),
        cmocka_unit_test(later_tokens_of_the_config),
        cmocka_unit_test(decodes),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(giant_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
