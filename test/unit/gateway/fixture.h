// A gateway over the fake head with the bundled model's tokenizer and template, for tests.
#pragma once
#include "base/log.h"
#include "fake_head.h"
#include "http.h"
#include "os/file.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct fixture {
    struct fake_head head;
    struct gateway_config config;
    struct gateway *gateway;
    uint32_t port;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
};

static struct fixture fx;

static const char fx_model_dir[] = LOOM_SOURCE_DIR "/models/loom-demo";

// Once a binary: tokenizer and template.
static inline void fx_load(void) {
    struct err e;
    char path[512];
    const char *dir = fx_model_dir;
    log_set_level(LOG_ERROR);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (tokenizer_open(path, &fx.tokenizer, &e)) err_assert_failed(__FILE__, __LINE__, "tokenizer", "%s", e.text);
    if (chat_template_open(dir, NULL, fx.tokenizer, NULL, &fx.chat_template, &e)) {
        err_assert_failed(__FILE__, __LINE__, "template", "%s", e.text);
    }
}

static inline void fx_unload(void) {
    chat_template_free(fx.chat_template);
    tokenizer_free(fx.tokenizer);
}

static inline int fx_start(void **state) {
    (void)state;
    struct err e;
    fake_init(&fx.head);
    fx.config = (struct gateway_config){
        .listen_addr = "127.0.0.1:0",
        .n_threads = 2,
        .header_ms = fx.config.header_ms,
        .idle_ms = fx.config.idle_ms,
        .stall_ms = fx.config.stall_ms,
        .heartbeat_ms = fx.config.heartbeat_ms,
        .resume_ms = fx.config.resume_ms,
        .model = {.id = "demo",
                  .created_s = 1700000000,
                  .context = 512,
                  .n_vocab = tokenizer_n_vocab(fx.tokenizer),
                  .tokenizer = fx.tokenizer,
                  .chat_template = fx.chat_template,
                  .defaults = {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20},
                  .n_stop_ids = 1},
        .ops = fake_ops(&fx.head),
    };
    fx.config.model.stop_ids[0] = tokenizer_id_of(fx.tokenizer, "<|im_end|>");
    if (gateway_new(&fx.config, &fx.gateway, &e)) err_assert_failed(__FILE__, __LINE__, "gateway", "%s", e.text);
    fx.port = gateway_port(fx.gateway);
    return 0;
}

static inline int fx_stop(void **state) {
    (void)state;
    gateway_free(fx.gateway);
    fx.gateway = NULL;
    fake_fini(&fx.head);
    return 0;
}

// What the head will say, and whether it ends there. Returns the number of tokens.
static inline uint32_t fx_script(const char *text, bool end) {
    struct ids ids;
    struct err e;
    ids_init(&ids, FAKE_SCRIPT_MAX);
    ASSERT(tokenizer_encode(fx.tokenizer, text, strlen(text), false, &ids, &e) == ERR_OK);
    pthread_mutex_lock(&fx.head.lock);
    memcpy(fx.head.script, ids.data, ids.n * sizeof *ids.data);
    fx.head.n_script = (uint32_t)ids.n;
    fx.head.end = end ? fx.config.model.stop_ids[0] : -1;
    pthread_mutex_unlock(&fx.head.lock);
    uint32_t n = (uint32_t)ids.n;
    ids_fini(&ids);
    return n;
}

// One request on a connection of its own. The caller frees the JSON; NULL if it is none.
static inline json_t *fx_post(const char *path, const char *body, struct response *r) {
    int fd = http_connect(fx.port);
    assert_true(http_post(fd, path, body));
    http_read(fd, r);
    close(fd);
    return json_loads(http_text(r), 0, NULL);
}

static inline json_t *fx_ask(const char *path, const char *body, int status) {
    struct response r;
    json_t *j = fx_post(path, body, &r);
    if (r.status != status) print_message("%s\n-> %d %s\n", body, r.status, http_text(&r));
    assert_int_equal(r.status, status);
    assert_non_null(j);
    http_fini(&r);
    return j;
}

// A value by a path of keys and indices: "choices.0.message.content".
static inline json_t *fx_at(json_t *j, const char *path) {
    char key[64];
    for (const char *at = path; *at;) {
        size_t n = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, at);
        j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
        at += n + (at[n] == '.');
    }
    return j;
}

static inline const char *fx_string(json_t *j, const char *path) {
    const char *s = json_string_value(fx_at(j, path));
    return s ? s : "(none)";
}

static inline json_int_t fx_int(json_t *j, const char *path) { return json_integer_value(fx_at(j, path)); }
