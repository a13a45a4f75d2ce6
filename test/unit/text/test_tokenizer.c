#include "text/tokenizer.h"
#include "tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "Ġ Ġ", "a a", "aa aa", NULL};
enum { HE = 256, LL, HELL, HELLO, SPACE2, AA, AAAA, END = -1 };

// Encodes and compares with ids, a list that ends with END.
static void expect(const struct tokenizer *t, const char *text, size_t n, bool special, const int32_t *want) {
    struct ids ids;
    struct err e = {0};
    ids_init(&ids, 1 << 20);
    if (tokenizer_encode(t, text, n, special, &ids, &e)) fail_msg("%s", e.text);
    size_t k = 0;
    while (want[k] != END) k++;
    if (ids.n != k) fail_msg("\"%s\": %zu ids, not %zu", text, ids.n, k);
    for (size_t i = 0; i < k; i++)
        if (ids.data[i] != want[i]) fail_msg("\"%s\": id %zu is %d, not %d", text, i, ids.data[i], want[i]);
    ids_fini(&ids);
}

#define EXPECT(t, text, special, ...) expect(t, text, sizeof(text) - 1, special, (int32_t[]){__VA_ARGS__, END})

static void merges_join_lowest_rank_first(void **state) {
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges, .merges_as_pairs = pairs});
        EXPECT(t, "hello", true, HELLO);
        EXPECT(t, "hell", true, HELL);
        EXPECT(t, "ohello hel", true, 'o', HELLO, ' ', HE, 'l');
        EXPECT(t, "lll", true, LL, 'l');
        EXPECT(t, "aaaaaaa", true, AAAA, AA, 'a');
        expect(t, "", 0, true, (int32_t[]){END});
        EXPECT(t, "a\0b", true, 'a', 0, 'b');
        tokenizer_free(t);
    }
}

static void ignore_merges_takes_whole_pieces(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges, .whole = "xyz", .ignore_merges = true});
    EXPECT(t, "xyz", true, 263);
    EXPECT(t, "xyzx", true, 'x', 'y', 'z', 'x');
    tokenizer_free(t);
    t = tiny_new(&(struct tiny){.merges = merges, .whole = "xyz"});
    EXPECT(t, "xyz", true, 'x', 'y', 'z');
    tokenizer_free(t);
}

static void control_tokens_only_where_allowed(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges});
    EXPECT(t, "x<|a|><|ab|>", true, 'x', 1000, 1001);
    EXPECT(t, "<|a|>", false, '<', '|', 'a', '|', '>');
    EXPECT(t, "<think>", false, 1002);
    const char text[] = "<|a|><|a|><|ab|>";
    const size_t breaks[] = {6, 11}; // behind the < of the second, of the third
    struct ids ids;
    ids_init(&ids, 100);
    assert_int_equal(tokenizer_encode_breaks(t, text, sizeof text - 1, breaks, 2, &ids, NULL), 0);
    assert_int_equal(ids.n, 1 + 5 + 6);
    assert_int_equal(ids.data[0], 1000);
    ids_clear(&ids);
    // A break behind its last character refuses a token, one before its first does not.
    assert_int_equal(tokenizer_encode_breaks(t, "<|a|><|a|>", 10, (const size_t[]){5}, 1, &ids, NULL), 0);
    assert_int_equal(ids.n, 5 + 1);
    assert_int_equal(ids.data[5], 1000);
    ids_fini(&ids);
    tokenizer_free(t);
}

static void breaks_move_with_normalisation(void **state) {
    (void)state;
    // A control token that is matched in the normalised text, behind letters that NFC makes shorter.
    struct tokenizer *t = tiny_new(
        &(struct tiny){.added = "[{\"id\": 500, \"content\": \"[x]\", \"special\": true, \"normalized\": true}]"});
    const char text[] = "e\xcc\x81[x]e\xcc\x81[x]";
    struct ids ids;
    ids_init(&ids, 100);
    assert_int_equal(tokenizer_encode_breaks(t, text, 12, (const size_t[]){10}, 1, &ids, NULL), 0);
    assert_int_equal(ids.n, 2 + 1 + 2 + 3);
    assert_int_equal(ids.data[0], 0xc3);
    assert_int_equal(ids.data[2], 500);
    assert_int_equal(ids.data[5], '[');
    ids_fini(&ids);
    tokenizer_free(t);
}

static void added_token_flags(void **state) {
    (void)state;
    static const char added[] =
        "[{\"id\": 400, \"content\": \"AB\", \"single_word\": true, \"normalized\": false},"
        " {\"id\": 401, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false},"
        " {\"id\": 402, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false, \"special\": true},"
        " {\"id\": 60, \"content\": \"<\", \"normalized\": false}, {\"id\": 404, \"content\": \"\"}]";
    struct tokenizer *t = tiny_new(&(struct tiny){.added = added});
    EXPECT(t, "AB", true, 400);
    EXPECT(t, "xAB", true, 'x', 'A', 'B');
    EXPECT(t, "AB\xc3\xa9", true, 'A', 'B', 0xc3, 0xa9);
    EXPECT(t, "x AB.", true, 'x', ' ', 400, '.');
    EXPECT(t, "x \xe3\x80\x80 <l> y", true, 'x', 401, ' ', 'y');
    EXPECT(t, "x<r> \t y", true, 'x', 402, 'y');
    EXPECT(t, "<r>  <l>", true, 402, 401);
    EXPECT(t, "<<l", true, '<', '<', 'l');
    // The control token is refused as a whole: no shorter token is looked for inside it.
    EXPECT(t, "<r>", false, '<', 'r', '>');
    tokenizer_free(t);
}

static void normalises_to_nfc(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){0});
    EXPECT(t, "e\xcc\x81", true, 0xc3, 0xa9);
    tokenizer_free(t);
    t = tiny_new(&(struct tiny){.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}"});
    EXPECT(t, "e\xcc\x81", true, 0xc3, 0xa9);
    tokenizer_free(t);
    t = tiny_new(&(struct tiny){.normalizer = "null"});
    EXPECT(t, "e\xcc\x81", true, 'e', 0xcc, 0x81);
    tokenizer_free(t);
}

static void post_processor_says_what_goes_around(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){
        .post_processor =
            "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": \"TemplateProcessing\", "
            "\"single\": [{\"SpecialToken\": {\"id\": \"<|a|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\"}}, "
            "{\"SpecialToken\": {\"id\": \"<|ab|>\"}}], \"special_tokens\": {\"<|a|>\": {\"ids\": [1000]}, "
            "\"<|ab|>\": {\"ids\": [1001, 1000]}}}]}"});
    uint32_t n;
    const int32_t *ids = tokenizer_prefix(t, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 1000);
    ids = tokenizer_suffix(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], 1000);
    tokenizer_free(t);
}

static void answers_about_tokens(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges});
    size_t n;
    assert_int_equal(tokenizer_n_vocab(t), 1003);
    assert_memory_equal(tokenizer_token_bytes(t, SPACE2, &n), "  ", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_token_bytes(t, 0xff, &n), "\xff", 1);
    assert_memory_equal(tokenizer_token_bytes(t, 1002, &n), "<think>", 7);
    const int32_t none[] = {-1, INT32_MIN, 300, 999, 1003, INT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_null(tokenizer_token_bytes(t, none[i], &n));
        assert_int_equal(n, 0);
        assert_false(tokenizer_is_special(t, none[i]));
    }
    assert_true(tokenizer_is_special(t, 1000));
    assert_false(tokenizer_is_special(t, 1002));
    assert_int_equal(tokenizer_id_of(t, "<|ab|>"), 1001);
    assert_int_equal(tokenizer_id_of(t, "ĠĠ"), SPACE2);
    assert_int_equal(tokenizer_id_of(t, "hello"), HELLO);
    assert_int_equal(tokenizer_id_of(t, "nope"), -1);
    assert_int_equal(tokenizer_next_special(t, -1), 1000);
    assert_int_equal(tokenizer_next_special(t, 1000), 1001);
    assert_int_equal(tokenizer_next_special(t, 1001), -1);
    tokenizer_free(t);
}

static void refuses_text_that_is_not_utf8(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){0});
    static const char *const bad[] = {"ab\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe2\x82"};
    struct ids ids;
    struct err e;
    ids_init(&ids, 10);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tokenizer_encode(t, bad[i], strlen(bad[i]), true, &ids, &e), ERR_FORMAT);
    assert_int_equal(tokenizer_encode(t, "12345678901", 11, true, &ids, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "10 tokens"));
    ids_fini(&ids);
    tokenizer_free(t);
}

// Two megabytes without a border: the merge loop must not be quadratic (that would take hours).
static void giant_pieces(void **state) {
    (void)state;
    enum { N = 2 << 20 };
    struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges});
    char *text = malloc(N);
    struct ids ids;
    ids_init(&ids, N);
    const char fill[] = {'a', ' ', '!', '\n'};
    for (size_t k = 0; k < sizeof fill; k++) {
        memset(text, fill[k], N);
        ids_clear(&ids);
        assert_int_equal(tokenizer_encode(t, text, N, true, &ids, NULL), 0);
        if (fill[k] == 'a') assert_int_equal(ids.n, N / 4);
        if (fill[k] == ' ') assert_int_equal(ids.n, N / 2);
        if (fill[k] == '!') assert_int_equal(ids.n, N);
    }
    for (size_t i = 0; i < N; i++) text[i] = "hellohe"[i % 7];
    ids_clear(&ids);
    assert_int_equal(tokenizer_encode(t, text, N, true, &ids, NULL), 0);
    assert_int_equal(ids.data[0], HELLO);
    assert_int_equal(ids.data[1], HE);
    assert_int_equal(ids.data[ids.n - 3], HELLO);
    ids_fini(&ids);
    free(text);
    tokenizer_free(t);
}

// The result of a piece does not depend on the cache that long texts have.
static void cache_changes_nothing(void **state) {
    (void)state;
    struct tokenizer *t = tiny_new(&(struct tiny){.merges = merges});
    static const char *const words[] = {"hello ",          "hell", "aaa ", "  ", "123 ", "aaaaaaaaaaaaaaaaaaaaaaaaaaa ",
                                        "zzzzzzzzzzzzzzz "};
    struct buf text;
    struct ids whole, parts;
    buf_init(&text, 1 << 20);
    ids_init(&whole, 1 << 20);
    ids_init(&parts, 1 << 20);
    for (uint32_t i = 0, x = 1; i < 4000; i++, x = x * 1103515245u + 12345u) {
        const char *w = words[(x >> 16) % 7];
        assert_int_equal(buf_addf(&text, "%s<think>", w), 0);
        assert_int_equal(tokenizer_encode(t, w, strlen(w), true, &parts, NULL), 0);
        assert_int_equal(ids_add(&parts, 1002), 0);
    }
    assert_int_equal(tokenizer_encode(t, (char *)text.data, text.len_bytes, true, &whole, NULL), 0);
    assert_int_equal(whole.n, parts.n);
    assert_memory_equal(whole.data, parts.data, whole.n * sizeof *whole.data);
    buf_fini(&text);
    ids_fini(&whole);
    ids_fini(&parts);
    tokenizer_free(t);
}

static void refused(const struct tiny *y, int code, const char *word) {
    struct buf j = tiny_json(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_new((char *)j.data, j.len_bytes, &t, &e), code);
    assert_null(t);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not name \"%s\"", e.text, word);
    buf_fini(&j);
}

static void refuses_what_it_cannot_honour(void **state) {
    (void)state;
    refused(&(struct tiny){.normalizer = "{\"type\": \"BertNormalizer\"}"}, ERR_UNSUPPORTED, "BertNormalizer");
    refused(&(struct tiny){.pre_tokenizer = "{\"type\": \"BertPreTokenizer\"}"}, ERR_UNSUPPORTED, "BertPreTokenizer");
    refused(&(struct tiny){.pre_tokenizer = "null"}, ERR_UNSUPPORTED, "decoder");
    refused(&(struct tiny){.pre_tokenizer = "{\"type\": \"Sequence\"}"}, ERR_FORMAT,
            "list \"pretokenizers\" is missing");
    refused(&(struct tiny){.post_processor = "{\"type\": \"BertProcessing\"}"}, ERR_UNSUPPORTED, "BertProcessing");
    refused(&(struct tiny){.added = "[{\"id\": 1048576, \"content\": \"x\"}]"}, ERR_FORMAT, "1048575");
    refused(&(struct tiny){.added = "[{\"id\": -1, \"content\": \"x\"}]"}, ERR_FORMAT, "integer");
    refused(&(struct tiny){.added = "[{\"id\": 1, \"content\": \"xx\"}]"}, ERR_FORMAT, "added_tokens[0]");
    refused(&(struct tiny){.added = "[{\"id\": 300, \"content\": \"x\"}]"}, ERR_FORMAT, "added_tokens[0]");
    refused(&(struct tiny){.added = "[{\"id\": 300, \"content\": \"xx\"}, {\"id\": 300, \"content\": \"yy\"}]"},
            ERR_FORMAT, "added_tokens[1]");
    refused(&(struct tiny){.merges = (const char *const[]){"a b c", NULL}}, ERR_FORMAT, "merges[0]");

    refused(&(struct tiny){.pre_tokenizer = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&[b]]\"}, "
                                            "\"behavior\": \"Isolated\"}"},
            ERR_UNSUPPORTED, "&&");
    struct tokenizer *t = NULL;
    struct err e;
    static const char *const bad[] = {"", "{", "[]", "{}", "{\"model\": {}}", "{\"model\": 1}", "null"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_not_equal(tokenizer_new(bad[i], strlen(bad[i]), &t, &e), 0);
    static const char twice[] = "{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}, "
                                "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}";
    assert_int_equal(tokenizer_new(twice, sizeof twice - 1, &t, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "id 1 is given twice"));
    assert_int_equal(tokenizer_open("/nonexistent/tokenizer.json", &t, &e), ERR_NOT_FOUND);
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_join_lowest_rank_first),
        cmocka_unit_test(ignore_merges_takes_whole_pieces),
        cmocka_unit_test(control_tokens_only_where_allowed),
        cmocka_unit_test(breaks_move_with_normalisation),
        cmocka_unit_test(added_token_flags),
        cmocka_unit_test(normalises_to_nfc),
        cmocka_unit_test(post_processor_says_what_goes_around),
        cmocka_unit_test(answers_about_tokens),
        cmocka_unit_test(refuses_text_that_is_not_utf8),
        cmocka_unit_test(giant_pieces),
        cmocka_unit_test(cache_changes_nothing),
        cmocka_unit_test(refuses_what_it_cannot_honour),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
