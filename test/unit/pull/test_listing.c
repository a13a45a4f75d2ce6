#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pull/hub.h"
#include "pull/listing.h"
#include <stdio.h>
#include <string.h>

#define SHA256 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define SHA1   "0123456789abcdef0123456789abcdef01234567"

static int hf(struct listing *l, const char *json, struct err *e) {
    int rc = listing_add_hf(l, json, strlen(json), e);
    return rc ? rc : listing_finish(l, e);
}

static void reads_hugging_face(void **state) {
    (void)state;
    struct listing l = {0};
    struct err e;
    char text[DIGEST_TEXT_BYTES];
    assert_int_equal(hf(&l,
                        "[{\"type\":\"directory\",\"path\":\"sub\",\"size\":0,\"oid\":\"" SHA1 "\"},"
                        "{\"type\":\"file\",\"path\":\"sub/b.json\",\"size\":7,\"oid\":\"" SHA1 "\"},"
                        "{\"type\":\"file\",\"path\":\"a.gguf\",\"size\":130,\"oid\":\"" SHA1
                        "\",\"lfs\":{\"oid\":\"" SHA256 "\",\"size\":5000000000,\"pointerSize\":130}},"
                        "{\"type\":\"file\",\"path\":\"c\",\"size\":0}]",
                        &e),
                     ERR_OK);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.files[0].path, "a.gguf");
    assert_true(l.files[0].size_bytes == 5000000000u);
    digest_text(&l.files[0].digest, text);
    assert_string_equal(text, "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
    assert_string_equal(l.files[1].path, "c");
    assert_int_equal(l.files[1].digest.kind, DIGEST_NONE);
    assert_string_equal(l.files[2].path, "sub/b.json");
    digest_text(&l.files[2].digest, text);
    assert_string_equal(text, "git-sha1:" SHA1);
    listing_fini(&l);
}

static void reads_modelscope(void **state) {
    (void)state;
    struct listing l = {0};
    struct err e;
    const char *json = "{\"Code\":200,\"Data\":{\"Files\":[{\"Type\":\"tree\",\"Path\":\"s\",\"Size\":0},"
                       "{\"Type\":\"blob\",\"Path\":\"s/x\",\"Size\":3,\"Sha256\":\"" SHA256 "\"},"
                       "{\"Type\":\"blob\",\"Path\":\"y\",\"Size\":4,\"Sha256\":\"\"}]},\"Success\":true}";
    assert_int_equal(listing_add_modelscope(&l, json, strlen(json), &e), ERR_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.files[0].digest.kind, DIGEST_SHA256);
    assert_int_equal(l.files[1].digest.kind, DIGEST_NONE);
    listing_fini(&l);
}

static void refuses(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "{}",
        "[1]",
        "[{}]",
        "[{\"type\":\"file\"}]",
        "[{\"type\":\"file\",\"path\":\"a\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":-1}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1.5}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":9000000000000000}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"12\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":7}]",
        ("[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"lfs\":{\"oid\":\"" SHA1 "\",\"size\":1}}]"),
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1},{\"type\":\"file\",\"path\":\"a\",\"size\":1}]",
        "[{\"type\":\"file\",\"path\":\"a\\u0000b\",\"size\":1}]",
        "[{\"type\":\"file\",\"path\":\"../a\",\"size\":1}]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct listing l = {0};
        struct err e = {0};
        assert_int_equal(hf(&l, bad[i], &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "listing"));
        listing_fini(&l);
    }
    static const char *const paths[] = {"",  "/a",  "a/",  "a//b", "..",   "../a",  "a/..",       "a/../b",
                                        ".", "./a", "a/.", "a\\b", "a\nb", "a\x7f", ".loom-pull", ".Loom-Pull/lock"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_int_equal(listing_check_path(paths[i], NULL), ERR_FORMAT);
    static const char *const good[] = {"a",   "a/b",          "..a",        "a..", ".gitattributes",
                                       "a b", "\xe4\xb8\xad", ".loom-pull2"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(listing_check_path(good[i], NULL), ERR_OK);
    char longer[LIMIT_PULL_PATH + 1];
    memset(longer, 'a', sizeof longer);
    longer[LIMIT_PULL_PATH] = 0;
    assert_int_equal(listing_check_path(longer, NULL), ERR_FORMAT);
    longer[241] = 0;
    assert_int_equal(listing_check_path(longer, NULL), ERR_FORMAT);
    longer[240] = 0;
    assert_int_equal(listing_check_path(longer, NULL), ERR_OK);
}

static void has_a_limit(void **state) {
    (void)state;
    struct listing l = {0};
    struct err e;
    char json[100];
    int rc = ERR_OK;
    for (int i = 0; i < LIMIT_PULL_FILES; i++) {
        snprintf(json, sizeof json, "[{\"type\":\"file\",\"path\":\"f%d\",\"size\":1}]", i);
        rc |= listing_add_hf(&l, json, strlen(json), &e);
    }
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(listing_add_hf(&l, json, strlen(json), &e), ERR_LIMIT);
    listing_fini(&l);
    l = (struct listing){0};
    for (int i = 0; i < 3; i++) {
        snprintf(json, sizeof json, "[{\"type\":\"file\",\"path\":\"f%d\",\"size\":%lld}]", i, 1LL << 49);
        assert_int_equal(listing_add_hf(&l, json, strlen(json), &e), ERR_OK);
    }
    assert_int_equal(listing_finish(&l, &e), ERR_LIMIT);
    listing_fini(&l);
}

static void follows_pages(void **state) {
    (void)state;
    char out[100];
    assert_true(
        hub_next_page("<https://huggingface.co/api/models/a/b/tree/main?cursor=x%3D>; rel=\"next\"", out, sizeof out));
    assert_string_equal(out, "a/b/tree/main?cursor=x%3D");
    assert_true(
        hub_next_page("<http://h/api/models/p>; rel=\"prev\", <http://h/api/models/n>; rel=\"next\"", out, sizeof out));
    assert_string_equal(out, "n");
    static const char *const none[] = {"",
                                       "<",
                                       "<http://h/api/models/a",
                                       "<http://h/api/models/a>; rel=\"prev\"",
                                       "<http://h/other>; rel=\"next\"",
                                       "<http://h/api/models/>; rel=\"next\"",
                                       "<http://h/api/models/a b>; rel=\"next\""};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) assert_false(hub_next_page(none[i], out, sizeof out));
    assert_false(hub_next_page("<http://h/api/models/abcdefgh>; rel=\"next\"", out, 8));
}

static bool never(void *arg) {
    (void)arg;
    return false;
}

static void makes_urls(void **state) {
    (void)state;
    struct pull_config c = {.endpoint = "https://huggingface.co//", .repo = "a/b.c_d-1", .stop = never};
    struct hub h;
    struct err e;
    char url[LIMIT_PULL_URL];
    assert_int_equal(hub_init(&h, &c, &e), ERR_OK);
    assert_int_equal(hub_file_url(&h, "s/x y#?%.json", url, &e), ERR_OK);
    assert_string_equal(url, "https://huggingface.co/a/b.c_d-1/resolve/main/s/x%20y%23%3F%25.json");
    c.revision = "refs/pr/1";
    assert_int_equal(hub_init(&h, &c, &e), ERR_OK);
    assert_int_equal(hub_file_url(&h, "x", url, &e), ERR_OK);
    assert_string_equal(url, "https://huggingface.co/a/b.c_d-1/resolve/refs%2Fpr%2F1/x");
    c.hub = PULL_MODELSCOPE;
    c.revision = NULL;
    assert_int_equal(hub_init(&h, &c, &e), ERR_OK);
    assert_int_equal(hub_file_url(&h, "s/x&y", url, &e), ERR_OK);
    assert_string_equal(url, "https://huggingface.co/api/v1/models/a/b.c_d-1/repo?Revision=master&FilePath=s%2Fx%26y");
    static const char *const bad[] = {"", "/", "a/", "/a", "a/b/c", "a//b", "..", "a/..", "-a", "a b", "a?b", "a/.b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c.repo = bad[i];
        assert_int_equal(hub_init(&h, &c, &e), ERR_USAGE);
    }
    c.repo = "gpt2";
    c.token = "a\r\nX: y";
    assert_int_equal(hub_init(&h, &c, &e), ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_hugging_face), cmocka_unit_test(reads_modelscope), cmocka_unit_test(refuses),
        cmocka_unit_test(has_a_limit),        cmocka_unit_test(follows_pages),    cmocka_unit_test(makes_urls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
