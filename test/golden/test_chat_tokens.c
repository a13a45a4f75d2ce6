// The whole way from messages to ids and from ids to text, against what the reference made for the demo models.
#include "text/chat.h"
#include "text/detok.h"
#include "os/file.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SHARED LOOM_SOURCE_DIR "/../shared/"

static void check_prompt(const struct tokenizer *t, struct chat_template *ct, const json_t *c, size_t i) {
    json_t *body = json_pack("{s:O, s:O, s:{s:b}}", "messages", json_object_get(c, "messages"), "tools",
                             json_object_get(c, "tools"), "chat_template_kwargs", "enable_thinking", 0);
    char *raw = json_dumps(body, 0);
    struct ids ids;
    ids_init(&ids, LIMIT_CONTEXT);
    struct chat_prompt prompt = {0};
    struct err e = {0};
    int rc = chat_encode(t, ct, raw, strlen(raw), NULL, true, &ids, &prompt, &e);
    if (rc) fail_msg("chat %zu: %s", i, e.text);
    assert_string_equal(prompt.text, json_string_value(json_object_get(c, "prompt")));
    assert_int_equal(prompt.n_breaks, 0);
    const json_t *want = json_object_get(c, "prompt_ids");
    if (ids.n != json_array_size(want)) fail_msg("chat %zu: %zu ids, not %zu", i, ids.n, json_array_size(want));
    for (size_t k = 0; k < ids.n; k++)
        if (ids.data[k] != json_integer_value(json_array_get(want, k))) fail_msg("chat %zu: id %zu", i, k);
    chat_prompt_fini(&prompt);
    ids_fini(&ids);
    free(raw);
    json_decref(body);
}

static void check_answer(struct detok *d, const json_t *c) {
    const char *want = json_string_value(json_object_get(c, "greedy_text"));
    struct buf text;
    buf_init(&text, 1 << 20);
    size_t i, n;
    json_t *id;
    detok_reset(d);
    json_array_foreach(json_object_get(c, "greedy_ids"), i, id) {
        const char *part = detok_feed(d, (int32_t)json_integer_value(id), &n);
        assert_int_equal(buf_add(&text, part, n), 0);
    }
    const char *part = detok_flush(d, &n);
    assert_int_equal(buf_add(&text, part, n), 0);
    assert_string_equal(buf_cstr(&text), want);
    buf_fini(&text);
}

static void check_model(const char *name, size_t n_chats) {
    char path[512];
    struct err e = {0};
    struct tokenizer *t = NULL;
    struct chat_template *ct = NULL;
    snprintf(path, sizeof path, SHARED "models/%s/tokenizer.json", name);
    if (tokenizer_open(path, &t, &e)) fail_msg("%s", e.text);
    snprintf(path, sizeof path, SHARED "models/%s", name);
    if (chat_template_open(path, NULL, t, NULL, &ct, &e)) fail_msg("%s", e.text);
    struct detok *d = detok_new(t);
    assert_non_null(d);
    snprintf(path, sizeof path, SHARED "fixtures/chat/%s.greedy.json", name);
    json_t *chats = json_load_file(path, 0, NULL);
    assert_int_equal(json_array_size(chats), n_chats);
    for (size_t i = 0; i < n_chats; i++) {
        check_prompt(t, ct, json_array_get(chats, i), i);
        check_answer(d, json_array_get(chats, i));
    }
    json_decref(chats);
    detok_free(d);
    chat_template_free(ct);
    tokenizer_free(t);
}

static void dense(void **state) {
    (void)state;
    check_model("loom-demo", 27);
}

static void moe(void **state) {
    (void)state;
    check_model("loom-demo-moe", 30);
}

int main(void) {
    if (!file_exists(SHARED "fixtures/chat") || !file_exists(SHARED "models/loom-demo")) {
        puts("skipped: needs ../shared/fixtures/chat and ../shared/models");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(dense), cmocka_unit_test(moe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
