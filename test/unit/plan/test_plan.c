#include "base/rng.h"
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const uint64_t GB = 1000000000;

static struct plan_model alike(uint32_t n_layers) {
    struct plan_model m = {.n_layers = n_layers, .embed_bytes = GB / 10, .head_bytes = GB / 10};
    for (uint32_t i = 0; i < n_layers; i++) m.layer_bytes[i] = GB / 2;
    m.kv_block_bytes = GB / 1000;
    m.scratch_bytes = GB / 20;
    return m;
}

static void test_equal_nodes_share_equally(void **state) {
    (void)state;
    struct plan_model m = alike(12);
    struct plan_node nodes[3] = {{7, 20 * GB}, {8, 20 * GB}, {9, 20 * GB}};
    struct plan_wish w = {.context = 1024, .max_blocks = 100};
    struct plan p;
    struct err e;
    assert_int_equal(plan_make(nodes, 3, &m, &w, &p, &e), ERR_OK);
    assert_int_equal(p.n_stages, 3);
    assert_int_equal(p.n_blocks, 100);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(p.stage[i].node, 7 + i);
        assert_int_equal(p.stage[i].b - p.stage[i].a, 4);
        assert_int_equal(p.stage[i].kv_bytes, 4 * 100 * m.kv_block_bytes);
        assert_int_equal(p.stage[i].weight_bytes, 4 * (GB / 2) + (i == 1 ? 0 : GB / 10));
    }
}

static void test_split_follows_memory(void **state) {
    (void)state;
    struct plan_model m = alike(12);
    struct plan_node nodes[2] = {{1, 30 * GB}, {2, 10 * GB}};
    struct plan_wish w = {.context = 64, .max_blocks = 10};
    struct plan p;
    assert_int_equal(plan_make(nodes, 2, &m, &w, &p, NULL), ERR_OK);
    assert_int_equal(p.stage[0].b, 9);
    w.max_stages = 1;
    assert_int_equal(plan_make(nodes, 2, &m, &w, &p, NULL), ERR_OK);
    assert_int_equal(p.n_stages, 1);
    assert_int_equal(p.stage[0].node, 1);
    assert_non_null(strstr(p.left_out[0].why, "no more are wished"));
}

static void test_small_node_is_left_out_with_numbers(void **state) {
    (void)state;
    struct plan_model m = alike(4);
    struct plan_node nodes[3] = {{1, 5 * GB}, {2, 3 * GB / 10}, {3, 5 * GB}};
    struct plan_wish w = {.context = 6400, .max_blocks = 1000};
    struct plan p;
    assert_int_equal(plan_make(nodes, 3, &m, &w, &p, NULL), ERR_OK);
    assert_int_equal(p.n_left_out, 1);
    assert_int_equal(p.left_out[0].node, 2);
    assert_string_equal(p.left_out[0].why, "0.30 GB free, one layer with KV for 6400 tokens needs 0.65 GB");
}

static void test_refusal_says_what_would_fit(void **state) {
    (void)state;
    struct plan_model m = alike(12);
    struct plan_node nodes[3] = {{1, 3 * GB}, {2, 3 * GB}};
    struct plan_wish w = {.context = 64 * 200, .max_blocks = 1000};
    struct plan p;
    struct err e;
    assert_int_equal(plan_make(nodes, 2, &m, &w, &p, &e), ERR_LIMIT);
    const char *at = strstr(e.text, "a further node of ");
    double gb = 0;
    assert_non_null(at);
    gb = strtod(at + strlen("a further node of "), NULL);
    nodes[2] = (struct plan_node){3, (uint64_t)(gb * 1e9)};
    assert_int_equal(plan_make(nodes, 3, &m, &w, &p, &e), ERR_OK);
    nodes[2].memory_bytes = (uint64_t)((gb - 0.02) * 1e9);
    assert_int_equal(plan_make(nodes, 3, &m, &w, &p, &e), ERR_LIMIT);

    struct plan_node large[2] = {{1, 36 * GB / 10}, {2, 36 * GB / 10}};
    assert_int_equal(plan_make(large, 2, &m, &w, &p, &e), ERR_LIMIT);
    uint32_t context = 0;
    at = strstr(e.text, "or a context of ");
    assert_non_null(at);
    context = (uint32_t)strtoul(at + strlen("or a context of "), NULL, 10);
    w.context = context;
    assert_int_equal(plan_make(large, 2, &m, &w, &p, &e), ERR_OK);
    w.context = context + 1;
    assert_int_equal(plan_make(large, 2, &m, &w, &p, &e), ERR_LIMIT);
    assert_int_equal(plan_make(NULL, 0, &m, &w, &p, &e), ERR_LIMIT);
}

static void test_bad_wishes(void **state) {
    (void)state;
    struct plan_model m = alike(2);
    struct plan_node node = {1, 30 * GB};
    struct plan_wish w = {.context = 6400, .max_blocks = 99};
    struct plan p;
    struct err e;
    assert_int_equal(plan_make(&node, 1, &m, &w, &p, &e), ERR_USAGE);
    assert_string_equal(e.text, "plan: at most 99 KV blocks are wished, a context of 6400 tokens needs 100");
    w.max_blocks = 100;
    assert_int_equal(plan_make(&node, 1, &m, &w, &p, &e), ERR_OK);
    m.n_layers = 0;
    assert_int_equal(plan_make(&node, 1, &m, &w, &p, &e), ERR_USAGE);
}

// --- against brute force ---

struct brute {
    const struct plan_node *nodes;
    uint32_t n_nodes, max_stages, max_blocks;
    const struct plan_model *m;
    uint32_t best_blocks, best_stages; // 0: none
};

// The most blocks with layers [a, b) on a node; 0 if not even the weights fit.
static uint64_t blocks_on(const struct brute *f, uint32_t node, uint32_t a, uint32_t b) {
    uint64_t bytes = f->m->scratch_bytes + (a == 0 ? f->m->embed_bytes : 0);
    if (b == f->m->n_layers) bytes += f->m->head_bytes;
    for (uint32_t i = a; i < b; i++) bytes += f->m->layer_bytes[i];
    ASSERT(a < b, "no layers");
    if (bytes > f->nodes[node].memory_bytes) return 0;
    return (f->nodes[node].memory_bytes - bytes) / ((b - a) * f->m->kv_block_bytes);
}

static void brute(struct brute *f, uint32_t node, uint32_t a, uint32_t stages, uint64_t blocks) {
    if (a == f->m->n_layers) {
        uint32_t n = blocks < f->max_blocks ? (uint32_t)blocks : f->max_blocks;
        if (n > f->best_blocks || (n == f->best_blocks && stages > f->best_stages)) f->best_stages = stages;
        if (n > f->best_blocks) f->best_blocks = n;
        return;
    }
    if (node == f->n_nodes || stages == f->max_stages) return;
    brute(f, node + 1, a, stages, blocks);
    for (uint32_t b = a + 1; b <= f->m->n_layers; b++) {
        uint64_t n = blocks_on(f, node, a, b);
        brute(f, node + 1, b, stages + 1, n < blocks ? n : blocks);
    }
}

static void check_plan(const struct brute *f, const struct plan *p) {
    uint32_t at = 0, node = 0;
    assert_int_equal(p->n_stages + p->n_left_out, f->n_nodes);
    ASSERT(p->n_stages <= LIMIT_STAGES, "%u stages", p->n_stages);
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct plan_stage *s = &p->stage[i];
        assert_int_equal(s->a, at);
        assert_true(s->b > s->a);
        at = s->b;
        while (node < f->n_nodes && f->nodes[node].id != s->node) node++;
        assert_true(node < f->n_nodes); // in the order given
        assert_true(s->weight_bytes + s->kv_bytes + s->scratch_bytes <= f->nodes[node].memory_bytes);
        assert_true(blocks_on(f, node, s->a, s->b) >= p->n_blocks);
    }
    assert_int_equal(at, f->m->n_layers);
    for (uint32_t i = 0; i < p->n_left_out; i++) assert_true(strlen(p->left_out[i].why) > 10);
}

static void test_against_brute_force(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    uint32_t n_ok = 0, n_refused = 0;
    for (int round = 0; round < 20000; round++) {
        struct plan_model m = {.n_layers = 1 + rng_below(&r, 6), .kv_block_bytes = 1 + rng_below(&r, 4)};
        bool layers_alike = rng_below(&r, 2);
        for (uint32_t i = 0; i < m.n_layers; i++)
            m.layer_bytes[i] = i && layers_alike ? m.layer_bytes[0] : 5 + rng_below(&r, 20);
        m.embed_bytes = rng_below(&r, 20);
        m.head_bytes = rng_below(&r, 20);
        m.scratch_bytes = rng_below(&r, 5);
        struct plan_node nodes[5] = {0};
        uint32_t n = rng_below(&r, 6);
        for (uint32_t i = 0; i < n; i++) nodes[i] = (struct plan_node){100 + i, rng_below(&r, 90)};
        struct plan_wish w = {.context = 1 + rng_below(&r, 300), .max_stages = rng_below(&r, 4)};
        uint32_t base = (w.context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
        w.max_blocks = base + rng_below(&r, 10);
        struct brute f = {.nodes = nodes, .n_nodes = n, .max_blocks = w.max_blocks, .m = &m};
        f.max_stages = w.max_stages ? w.max_stages : LIMIT_STAGES;
        brute(&f, 0, 0, 0, UINT64_MAX);
        struct plan p;
        struct err e;
        int rc = plan_make(nodes, n, &m, &w, &p, &e);
        assert_int_equal(rc, f.best_blocks >= base ? ERR_OK : ERR_LIMIT);
        if (rc == ERR_OK) {
            check_plan(&f, &p);
            assert_int_equal(p.n_blocks, f.best_blocks);
            assert_true(p.n_stages <= f.best_stages);
            if (layers_alike) assert_int_equal(p.n_stages, f.best_stages);
            n_ok++;
        } else {
            assert_non_null(strstr(e.text, "a further node of"));
            n_refused++;
        }
    }
    assert_true(n_ok > 1000 && n_refused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_nodes_share_equally),
        cmocka_unit_test(test_split_follows_memory),
        cmocka_unit_test(test_small_node_is_left_out_with_numbers),
        cmocka_unit_test(test_refusal_says_what_would_fit),
        cmocka_unit_test(test_bad_wishes),
        cmocka_unit_test(test_against_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
