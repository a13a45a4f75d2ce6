// Greedy answers of the two bundled models against those of a reference implementation in f32, by weight mode. A prompt
// counts if all its tokens are equal; near-ties may go the other way in a few.
#include "golden/golden.h"
#include <stdio.h>
#include "os/clock.h"

enum { MAX_ROWS = 512, CONTEXT = 4096, N_BLOCKS = 512, CHUNK = 256 };

struct chat {
    json_t *root;
    uint32_t n;
    struct talk *talks;
    int32_t **want;
    uint32_t *n_want;
};

static void chat_open(struct chat *c, const char *what) {
    c->root = json_open(what);
    c->n = (uint32_t)json_array_size(c->root);
    c->talks = calloc(c->n, sizeof *c->talks);
    c->want = calloc(c->n, sizeof *c->want);
    c->n_want = calloc(c->n, sizeof *c->n_want);
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *one = json_array_get(c->root, i);
        struct talk *t = &c->talks[i];
        t->prompt = ids_of(json_object_get(one, "prompt_ids"), &t->n_prompt);
        c->want[i] = ids_of(json_object_get(one, "greedy_ids"), &c->n_want[i]);
        t->max_new = c->n_want[i];
        t->sampling = (struct sampling){.top_p = 1};
        t->out = calloc(t->max_new, sizeof *t->out);
    }
}

static void chat_close(struct chat *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        free((int32_t *)c->talks[i].prompt);
        free(c->talks[i].out);
        free(c->want[i]);
    }
    free(c->talks);
    free(c->want);
    free(c->n_want);
    json_decref(c->root);
}

static void score(const char *name, const char *text, enum weight_mode weights, uint32_t at_least) {
    char path[128];
    struct model m;
    struct chat c;
    struct chain ch;
    struct chain_config cc = {.mode = {.weights = weights, .kv = KV_I8},
                              .n_stages = 1,
                              .max_rows = MAX_ROWS,
                              .n_blocks = N_BLOCKS,
                              .max_context = CONTEXT};
    snprintf(path, sizeof path, "models/%s", name);
    model_open(&m, path);
    snprintf(path, sizeof path, "fixtures/chat/%s.greedy.json", name);
    chat_open(&c, path);
    struct backend *be = backend_of(ISA_AUTO);
    chain_open(&ch, &m, be, &cc);
    uint64_t begin = clock_now_ms();
    talks_run(&ch, c.talks, c.n, CHUNK, N_BLOCKS, MAX_ROWS);
    uint32_t same = 0;
    for (uint32_t i = 0; i < c.n; i++)
        same +=
            c.talks[i].n_out == c.n_want[i] && memcmp(c.talks[i].out, c.want[i], c.n_want[i] * sizeof(int32_t)) == 0;
    printf("%-14s %-6s %u of %u answers equal (%llu ms)\n", name, text, same, c.n,
           (unsigned long long)(clock_now_ms() - begin));
    chain_close(&ch);
    be->ops->free(be);
    chat_close(&c);
    model_close(&m);
    if (same < at_least) fail_msg("%s, %s: %u answers equal; at least %u are right", name, text, same, at_least);
}

static void test_dense(void **state) {
    (void)state;
    score("loom-demo", "as-is", WEIGHTS_AS_IS, 26);
    score("loom-demo", "l8", WEIGHTS_L8, 25);
    score("loom-demo", "q8_0", WEIGHTS_Q8_0, 25);
}

static void test_moe(void **state) {
    (void)state;
    score("loom-demo-moe", "as-is", WEIGHTS_AS_IS, 28);
    score("loom-demo-moe", "l8", WEIGHTS_L8, 27);
    score("loom-demo-moe", "q8_0", WEIGHTS_Q8_0, 27);
}

int main(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("skipped: needs a build without sanitizers, for its length\n");
    return 77;
#endif
    golden_need("models/loom-demo");
    golden_need("models/loom-demo-moe");
    golden_need("fixtures/chat/loom-demo.greedy.json");
    thread_fp_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_moe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
