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
    assert_string_equal(p.left_out[0].why, "286.1 MiB free, one layer with KV for 6400 tokens needs 619.9 MiB");
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
    assert_non_null(at);
    char *unit;
    const double n = strtod(at + strlen("a further node of "), &unit);
    const double unit_bytes = strncmp(unit, " GiB", 4) == 0 ? 0x1p30 : 0x1p20;
    nodes[2] = (struct plan_node){3, (uint64_t)(n * unit_bytes)};
    assert_int_equal(plan_make(nodes, 3, &m, &w, &p, &e), ERR_OK);
    nodes[2].memory_bytes = (uint64_t)((n - 0.101) * unit_bytes);
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
    uint64_t block = (b - a) * f->m->kv_block_bytes + (b < f->m->n_layers ? f->m->log_block_bytes : 0);
    return (f->nodes[node].memory_bytes - bytes) / block;
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
        uint64_t bytes = s->weight_bytes + s->kv_bytes + s->log_bytes + s->scratch_bytes;
        assert_int_equal(bytes, plan_stage_bytes(f->m, s->a, s->b, p->n_blocks));
        assert_true(bytes <= f->nodes[node].memory_bytes);
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
        m.log_block_bytes = rng_below(&r, 2) ? rng_below(&r, 30) : 0; // at times more than a layer takes
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

// --- second holders

// The rule, said once more: nodes that serve nothing first, then the most memory left, then the order.
static uint32_t best_place(const struct plan_room *rooms, uint32_t n, uint64_t need, const uint64_t *exclude,
                           uint32_t n_exclude) {
    uint32_t best = n;
    for (int serves = 0; serves < 2 && best == n; serves++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_room *r = &rooms[i];
            bool out = r->closed || r->serves != (serves == 1) || r->n_stages == LIMIT_NODE_STAGES ||
                       r->used_bytes + need > r->memory_bytes;
            for (uint32_t k = 0; k < n_exclude; k++) out |= exclude[k] == r->node;
            if (out) continue;
            if (best == n || r->memory_bytes - r->used_bytes > rooms[best].memory_bytes - rooms[best].used_bytes)
                best = i;
        }
    }
    return best;
}

static void test_place_against_brute_force(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 9);
    uint32_t n_found = 0, n_none = 0;
    for (int round = 0; round < 20000; round++) {
        struct plan_model m = {
            .n_layers = 6, .kv_block_bytes = 1 + rng_below(&r, 4), .embed_bytes = 7, .head_bytes = 9};
        for (uint32_t i = 0; i < 6; i++) m.layer_bytes[i] = 5 + rng_below(&r, 20);
        m.scratch_bytes = rng_below(&r, 5);
        m.log_block_bytes = rng_below(&r, 9);
        struct plan_room rooms[6];
        uint32_t n = rng_below(&r, 7), a = rng_below(&r, 6), b = a + 1 + rng_below(&r, 6 - a);
        for (uint32_t i = 0; i < n; i++) {
            rooms[i] = (struct plan_room){.node = 50 + i, .memory_bytes = rng_below(&r, 300)};
            rooms[i].used_bytes = rng_below(&r, 100);
            rooms[i].serves = rng_below(&r, 2);
            rooms[i].closed = rng_below(&r, 5) == 0;
            rooms[i].n_stages = rng_below(&r, 8) ? 1 : LIMIT_NODE_STAGES;
        }
        uint64_t exclude[2] = {50 + rng_below(&r, 8), 50 + rng_below(&r, 8)}, need = m.scratch_bytes;
        uint32_t n_exclude = rng_below(&r, 3), n_blocks = 1 + rng_below(&r, 8);
        for (uint32_t i = a; i < b; i++) need += m.layer_bytes[i] + n_blocks * m.kv_block_bytes;
        need += (a == 0 ? 7 : 0) + (b == 6 ? 9 : n_blocks * m.log_block_bytes);
        uint32_t at = plan_place(&m, a, b, n_blocks, rooms, n, exclude, n_exclude);
        assert_int_equal(at, best_place(rooms, n, need, exclude, n_exclude));
        n_found += at < n;
        n_none += at == n;
    }
    assert_true(n_found > 3000 && n_none > 3000);
}

static uint32_t seconds_of(const struct plan_model *m, const struct plan *p, const struct plan_node *nodes, uint32_t n,
                           uint32_t *second) {
    struct plan_room rooms[8];
    uint64_t used[8] = {0};
    for (uint32_t i = 0; i < n; i++)
        rooms[i] = (struct plan_room){nodes[i].id, nodes[i].memory_bytes, 0, 0, false, false};
    for (uint32_t s = 0; s < p->n_stages; s++) {
        for (uint32_t i = 0; i < n; i++) {
            if (nodes[i].id != p->stage[s].node) continue;
            rooms[i].serves = true;
            rooms[i].n_stages = 1;
            used[i] = rooms[i].used_bytes = plan_stage_bytes(m, p->stage[s].a, p->stage[s].b, p->n_blocks);
        }
    }
    uint32_t found = plan_seconds(m, p, rooms, n, second), counted = 0;
    for (uint32_t s = 0; s < p->n_stages; s++) {
        if (second[s] == n) continue;
        assert_true(nodes[second[s]].id != p->stage[s].node);
        used[second[s]] += plan_stage_bytes(m, p->stage[s].a, p->stage[s].b, p->n_blocks);
        counted++;
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(used[i], rooms[i].used_bytes);
        assert_true(used[i] <= nodes[i].memory_bytes);
    }
    assert_int_equal(found, counted);
    return found;
}

static void test_seconds_fit_and_blocks_make_room_for_them(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 10);
    uint32_t n_all = 0, n_fewer = 0, n_never = 0;
    for (int round = 0; round < 5000; round++) {
        struct plan_model m = {.n_layers = 2 + rng_below(&r, 8), .kv_block_bytes = 1 + rng_below(&r, 4)};
        for (uint32_t i = 0; i < m.n_layers; i++) m.layer_bytes[i] = 10 + rng_below(&r, 5);
        m.embed_bytes = m.head_bytes = rng_below(&r, 20);
        m.log_block_bytes = rng_below(&r, 3);
        struct plan_node nodes[6] = {0};
        uint32_t n = 1 + rng_below(&r, 6), second[LIMIT_STAGES], base = 2;
        for (uint32_t i = 0; i < n; i++) nodes[i] = (struct plan_node){100 + i, 50 + rng_below(&r, 250)};
        struct plan_wish w = {.context = base * LIMIT_BLOCK_TOKENS, .max_blocks = 40, .max_stages = rng_below(&r, 4)};
        struct plan plain, p;
        if (plan_make(nodes, n, &m, &w, &plain, NULL)) continue;
        w.redundant = true;
        assert_int_equal(plan_make(nodes, n, &m, &w, &p, NULL), ERR_OK);
        bool all = seconds_of(&m, &p, nodes, n, second) == p.n_stages;
        assert_int_equal(p.n_stages, plain.n_stages);
        assert_true(p.n_blocks >= base && p.n_blocks <= plain.n_blocks);
        struct plan fewer = plain;
        if (!all) { // not even with the least
            assert_int_equal(p.n_blocks, plain.n_blocks);
            fewer.n_blocks = base;
            assert_true(seconds_of(&m, &fewer, nodes, n, second) < p.n_stages);
            n_never++;
        } else if (p.n_blocks < plain.n_blocks) { // not one more
            fewer.n_blocks = p.n_blocks + 1;
            assert_true(seconds_of(&m, &fewer, nodes, n, second) < p.n_stages);
            n_fewer++;
        } else {
            n_all++;
        }
    }
    assert_true(n_all > 100 && n_fewer > 100 && n_never > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_nodes_share_equally),
        cmocka_unit_test(test_split_follows_memory),
        cmocka_unit_test(test_small_node_is_left_out_with_numbers),
        cmocka_unit_test(test_refusal_says_what_would_fit),
        cmocka_unit_test(test_bad_wishes),
        cmocka_unit_test(test_against_brute_force),
        cmocka_unit_test(test_place_against_brute_force),
        cmocka_unit_test(test_seconds_fit_and_blocks_make_room_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
