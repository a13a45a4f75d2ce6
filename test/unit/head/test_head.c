// The head at work on local stages with the bundled model: real threads, real tokens.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "cmd/reply.h"
#include "head/head.h"
#include "os/clock.h"

static const char model_dir[] = LOOM_SOURCE_DIR "/models/loom-demo";
enum { CONTEXT = 512, ANSWER = 24 };
static const int32_t prompt[] = {3750, 340, 198, 23, 22, 16, 10, 17, 23, 21, 827, 220, 30, 3751, 198, 3750, 339, 198};
enum { N_PROMPT = sizeof prompt / sizeof prompt[0] };

static struct opened_model model;

static struct head *start(uint32_t n_stages, uint32_t sequences, uint32_t chunk) {
    struct head_config c = {.model = &model,
                            .mode = {.weights = WEIGHTS_L8, .kv = KV_I8},
                            .context = CONTEXT,
                            .sequences = sequences,
                            .chunk_rows = chunk,
                            .n_stages = n_stages,
                            .cpu = {.n_threads = 2},
                            .min_nodes = 1,
                            .wait_for_node_ms = 1000,
                            .node_timeout_ms = 60000,
                            .heartbeat_ms = 200,
                            .step_deadline_ms = 60000};
    for (uint32_t i = 0; i < n_stages; i++) c.layers[i] = 12 / n_stages;
    struct head *h;
    struct err e;
    if (head_new(&c, &h, &e) || head_wait_ready(h, 120000, &e)) fail_msg("%s", e.text);
    return h;
}

static struct gen_request request(uint64_t seed) {
    return (struct gen_request){.prompt = prompt,
                                .n_prompt = N_PROMPT,
                                .max_tokens = ANSWER,
                                .sampling = {.temperature = seed ? 1.0f : 0.0f, .top_p = 1, .seed = seed}};
}

static void ask(struct head *h, struct reply *r, uint64_t seed) {
    struct gateway_ops ops = head_gateway_ops(h);
    struct gen_request q = request(seed);
    struct err e;
    if (reply_start(r, &ops, &q, &e)) fail_msg("%s", e.text);
}

static void take(struct reply *r, int32_t out[ANSWER]) {
    int32_t token;
    uint32_t n = 0;
    while (reply_next(r, &token)) out[n++] = token;
    assert_int_equal(n, ANSWER);
    assert_int_equal(r->finish, GEN_LENGTH);
    reply_fini(r);
}

// The KV blocks in use as the status shows them, once it shows none; -1 if that never comes.
static int blocks_after(struct head *h) {
    struct gateway_ops ops = head_gateway_ops(h);
    struct buf b;
    bool none = false;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 500 && !none; i++) {
        clock_sleep_ms(20);
        buf_clear(&b);
        assert_int_equal(ops.status(ops.head, &b), ERR_OK);
        const char *s = buf_cstr(&b);
        none = strstr(s, "\"kv_blocks_used\":0,") && strstr(s, "\"local\":{\"blocks_used\":0,");
    }
    buf_fini(&b);
    return none ? 0 : -1;
}

static void alone_and_together_give_the_same(void **state) {
    (void)state;
    enum { N = 12 };
    int32_t alone[N][ANSWER], together[ANSWER];
    struct head *h = start(1, 4, 64);
    for (uint32_t i = 0; i < N; i++) {
        struct reply r;
        ask(h, &r, i);
        take(&r, alone[i]);
    }
    assert_int_equal(blocks_after(h), 0);
    head_free(h);
    // More sequences than full-length ones have blocks for, over three stages and small chunks.
    struct reply r[N];
    h = start(3, 1, 8);
    for (uint32_t i = 0; i < N; i++) ask(h, &r[i], i);
    for (uint32_t i = 0; i < N; i++) {
        take(&r[i], together);
        assert_memory_equal(together, alone[i], sizeof together);
    }
    assert_int_equal(blocks_after(h), 0);
    head_free(h);
}

static void a_cancelled_request_ends_and_frees(void **state) {
    (void)state;
    struct head *h = start(2, 2, 64);
    struct reply r[4];
    int32_t token;
    for (uint32_t i = 0; i < 4; i++) ask(h, &r[i], i);
    assert_true(reply_next(&r[0], &token));
    for (uint32_t i = 0; i < 4; i++) reply_cancel(&r[i]);
    for (uint32_t i = 0; i < 4; i++) {
        while (reply_next(&r[i], &token)) {
        }
        assert_true(r[i].finish == GEN_CANCELLED || r[i].finish == GEN_LENGTH);
        reply_fini(&r[i]);
    }
    assert_int_equal(blocks_after(h), 0);
    reply_cancel(&(struct reply){.ops = head_gateway_ops(h), .id = 12345678}); // unknown: nothing happens
    head_free(h);
}

static void what_cannot_fit_is_refused(void **state) {
    (void)state;
    struct head *h = start(1, 1, 64);
    struct gateway_ops ops = head_gateway_ops(h);
    struct gen_request q = request(0);
    struct reply r;
    struct err e;
    q.max_tokens = CONTEXT;
    assert_int_equal(reply_start(&r, &ops, &q, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "512"));
    head_free(h);
}

static void stopping_ends_what_runs(void **state) {
    (void)state;
    struct head *h = start(1, 4, 64);
    struct reply r;
    struct gateway_ops ops = head_gateway_ops(h);
    struct gen_request q = request(3);
    struct err e;
    int32_t token;
    q.max_tokens = CONTEXT - N_PROMPT;
    assert_int_equal(reply_start(&r, &ops, &q, &e), ERR_OK);
    assert_true(reply_next(&r, &token));
    head_free(h);
    while (reply_next(&r, &token)) {
    }
    assert_true(r.finish == GEN_FAILED || r.finish == GEN_LENGTH);
    reply_fini(&r);
}

static void a_wrong_split_is_refused(void **state) {
    (void)state;
    struct head_config c = {.model = &model,
                            .context = 64,
                            .sequences = 1,
                            .chunk_rows = 64,
                            .n_stages = 2,
                            .layers = {5, 6},
                            .min_nodes = 1,
                            .node_timeout_ms = 3000,
                            .heartbeat_ms = 200};
    struct head *h;
    struct err e;
    assert_int_equal(head_new(&c, &h, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "11"));
    c.layers[0] = 12;
    c.layers[1] = 0;
    assert_int_equal(head_new(&c, &h, &e), ERR_USAGE);
}

int main(void) {
    struct err e;
    log_set_level(LOG_ERROR);
    if (open_model(model_dir, &model, &e)) {
        print_error("%s\n", e.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_together_give_the_same), cmocka_unit_test(a_cancelled_request_ends_and_frees),
        cmocka_unit_test(what_cannot_fit_is_refused),       cmocka_unit_test(stopping_ends_what_runs),
        cmocka_unit_test(a_wrong_split_is_refused),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    open_model_close(&model);
    return rc;
}
