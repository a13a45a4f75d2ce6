#include "base/rng.h"
#include "cluster/cluster.h"
#include "cluster/steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { MS = 1000, HEARTBEAT = 100 * MS, TIMEOUT = 500 * MS, STEP = 1000 * MS, LOAD = 2000 * MS };

// Twelve layers of 100 bytes; a node of 700 holds six with a little KV, one of 1300 all.
static struct plan_model model;

struct bench {
    struct cluster *c;
    uint64_t now;
    struct cluster_action a[300];
    uint32_t n;
};

static struct bench make(uint32_t min_nodes) {
    model = (struct plan_model){.n_layers = 12, .kv_block_bytes = 1};
    for (int i = 0; i < 12; i++) model.layer_bytes[i] = 100;
    struct cluster_config config = {.model = &model, .wish = {.context = 64, .max_blocks = 4}, .min_nodes = min_nodes};
    config.settle_us = 1000 * MS;
    config.heartbeat_us = HEARTBEAT;
    config.node_timeout_us = TIMEOUT;
    config.step_deadline_us = STEP;
    config.load_deadline_us = LOAD;
    struct bench b = {.now = 1};
    struct err e;
    assert_int_equal(cluster_new(&config, &b.c, &e), ERR_OK);
    return b;
}

static void drain(struct bench *b) {
    b->n = 0;
    while (cluster_next(b->c, &b->a[b->n])) b->n++;
}

static struct cluster_view view(const struct bench *b) {
    struct cluster_view v;
    cluster_view(b->c, &v);
    return v;
}

static void join(struct bench *b, uint64_t node, uint64_t memory) { cluster_joined(b->c, b->now, node, memory); }

// Time passes while the named nodes (zero ends) send heartbeats with the step that each has done.
static void pass(struct bench *b, uint64_t us, const uint64_t *nodes, const uint64_t *done) {
    uint64_t until = b->now + us;
    while (b->now < until) {
        uint64_t next = b->now - b->now % HEARTBEAT + HEARTBEAT, due = cluster_deadline_us(b->c);
        if (due < next && due > b->now) next = due;
        b->now = next < until ? next : until;
        for (int i = 0; nodes && nodes[i]; i++)
            cluster_heartbeat(b->c, b->now, nodes[i], view(b).epoch, done ? done[i] : 0, 0);
        cluster_tick(b->c, b->now);
    }
}

static void ready_all(struct bench *b) {
    struct cluster_view v = view(b);
    assert_int_equal(v.phase, CLUSTER_LOADING);
    uint32_t n = v.plan->n_stages, epoch = v.epoch;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(view(b).phase, CLUSTER_LOADING);
        cluster_ready(b->c, b->now, v.plan->stage[i].node, epoch);
        cluster_ready(b->c, b->now, v.plan->stage[i].node, epoch);
    }
    assert_int_equal(view(b).phase, CLUSTER_UP);
}

// Three nodes, up; nobody waits and nothing is due.
static struct bench up3(void) {
    struct bench b = make(3);
    for (uint64_t i = 1; i <= 3; i++) join(&b, i, 1300);
    pass(&b, 1000 * MS, (uint64_t[]){1, 2, 3, 0}, NULL);
    ready_all(&b);
    drain(&b);
    return b;
}

static uint64_t stage_node(const struct bench *b, uint32_t i) { return view(b).plan->stage[i].node; }

static void test_first_start_waits(void **state) {
    (void)state;
    struct bench b = make(2);
    assert_true(cluster_deadline_us(b.c) == UINT64_MAX);
    join(&b, 1, 1300);
    pass(&b, 3000 * MS, (uint64_t[]){1, 0}, NULL);
    assert_int_equal(view(&b).phase, CLUSTER_WAITING); // one is not enough, however long
    join(&b, 2, 1300);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    drain(&b);
    assert_int_equal(b.n, 2);
    assert_int_equal(b.a[0].type, CLUSTER_LOAD);
    assert_int_equal(b.a[0].node, 1);
    assert_int_equal(b.a[0].next_node, 2);
    assert_int_equal(b.a[0].b, 6);
    assert_int_equal(b.a[1].next_node, 1);
    assert_int_equal(b.a[1].n_blocks, 4);
    ready_all(&b);
    drain(&b);
    assert_int_equal(b.a[0].type, CLUSTER_ROUTE_UP);
    assert_int_equal(b.a[0].epoch, 1);
    cluster_free(b.c);
}

static void test_settling(void **state) {
    (void)state;
    struct bench b = make(1);
    join(&b, 1, 1300);
    pass(&b, 900 * MS, (uint64_t[]){1, 0}, NULL);
    join(&b, 2, 1300);
    assert_int_equal(view(&b).phase, CLUSTER_WAITING);
    pass(&b, 100 * MS, (uint64_t[]){1, 2, 0}, NULL);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    assert_int_equal(view(&b).plan->n_stages, 2);
    cluster_free(b.c);
}

static void test_loss_makes_a_new_epoch(void **state) {
    (void)state;
    struct bench b = up3();
    cluster_lost(b.c, b.now, 2, "reset");
    cluster_lost(b.c, b.now, 2, "reset"); // told twice
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    assert_int_equal(view(&b).epoch, 2);
    drain(&b);
    assert_int_equal(b.n, 3); // no DROP_NODE for what is gone already
    assert_int_equal(b.a[0].type, CLUSTER_ROUTE_DOWN);
    assert_string_equal(b.a[0].why, "loading epoch 2 over 2 nodes: node 2 lost: reset");
    cluster_ready(b.c, b.now, 1, 1); // of the old epoch
    cluster_ready(b.c, b.now, 9, 2); // a stranger
    cluster_ready(b.c, b.now, 3, 2);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    cluster_ready(b.c, b.now, 1, 2);
    assert_int_equal(view(&b).phase, CLUSTER_UP);
    cluster_free(b.c);
}

static void test_a_newcomer_takes_the_hole(void **state) {
    (void)state;
    struct bench b = up3();
    join(&b, 4, 1300); // a spare
    cluster_set_live(b.c, b.now, 1);
    drain(&b);
    assert_int_equal(b.n, 0);
    cluster_lost(b.c, b.now, 2, "reset");
    assert_int_equal(view(&b).plan->n_stages, 3);
    assert_int_equal(stage_node(&b, 0), 1); // keeps layers 0 .. 4
    assert_int_equal(stage_node(&b, 1), 4);
    assert_int_equal(stage_node(&b, 2), 3); // keeps layers 8 .. 12
    cluster_free(b.c);
}

static void test_heartbeats(void **state) {
    (void)state;
    struct bench b = up3();
    pass(&b, 400 * MS, (uint64_t[]){1, 3, 0}, NULL);
    assert_int_equal(view(&b).phase, CLUSTER_UP);
    pass(&b, 200 * MS, (uint64_t[]){1, 3, 0}, NULL);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    drain(&b);
    assert_int_equal(b.a[0].type, CLUSTER_DROP_NODE);
    assert_int_equal(b.a[0].node, 2);
    assert_string_equal(b.a[0].why, "no heartbeat for 500 ms");
    assert_int_equal(view(&b).n_nodes_lost, 1);
    cluster_free(b.c);
}

static void test_who_slept_himself_blames_nobody(void **state) {
    (void)state;
    struct bench b = up3();
    cluster_step_sent(b.c, b.now, 1, 1);
    b.now += 60 * 1000 * MS; // the head was stopped; the first thing it sees is one heartbeat
    cluster_heartbeat(b.c, b.now, 1, 1, 0, 0);
    assert_int_equal(view(&b).phase, CLUSTER_UP);
    pass(&b, 1000 * MS, (uint64_t[]){1, 3, 0}, NULL); // and yet it finds who is really gone
    assert_int_equal(view(&b).n_nodes_lost, 1);
    cluster_free(b.c);
}

static void test_failed_is_believed_late(void **state) {
    (void)state;
    struct bench b = up3();
    cluster_failed(b.c, b.now, 1, 1, "link to the next stage broke");
    cluster_lost(b.c, b.now + 5 * MS, 2, "reset"); // the neighbour was the one
    assert_int_equal(view(&b).epoch, 2);
    b.now += 5 * MS;
    pass(&b, 400 * MS, (uint64_t[]){1, 3, 0}, NULL);
    assert_int_equal(view(&b).epoch, 2);
    assert_int_equal(view(&b).n_nodes, 2);
    cluster_failed(b.c, b.now, 3, 2, "layer 7: checksum is wrong");
    pass(&b, 300 * MS, (uint64_t[]){1, 3, 0}, NULL);
    assert_int_equal(view(&b).epoch, 3);
    assert_int_equal(view(&b).n_nodes, 1);
    drain(&b);
    uint32_t i = 0;
    while (b.a[i].type != CLUSTER_DROP_NODE) i++;
    assert_int_equal(b.a[i].node, 3);
    assert_string_equal(b.a[i].why, "it failed: layer 7: checksum is wrong");
    cluster_free(b.c);
}

static void test_loading_must_go_on(void **state) {
    (void)state;
    struct bench b = make(2);
    join(&b, 1, 1300);
    join(&b, 2, 1300);
    pass(&b, 1000 * MS, (uint64_t[]){1, 2, 0}, NULL);
    cluster_ready(b.c, b.now, 1, 1);
    for (uint64_t i = 1; i <= 10; i++) { // slow, but it goes on
        pass(&b, 1500 * MS, (uint64_t[]){1, 2, 0}, NULL);
        cluster_heartbeat(b.c, b.now, 2, 0, 0, i);
        assert_int_equal(view(&b).epoch, 1);
    }
    pass(&b, 2100 * MS, (uint64_t[]){1, 2, 0}, NULL);
    assert_int_equal(view(&b).epoch, 2);
    assert_int_equal(view(&b).plan->n_stages, 1);
    assert_int_equal(stage_node(&b, 0), 1);
    cluster_free(b.c);
}

// A step is late; done says how far each of three stages came.
static uint64_t guilty(const uint64_t *done) {
    struct bench b = up3();
    cluster_set_live(b.c, b.now, 1);
    cluster_step_sent(b.c, b.now, 1, 10);
    cluster_step_done(b.c, b.now + 1, 1);
    cluster_step_sent(b.c, b.now + 2, 2, 10);
    pass(&b, 900 * MS, (uint64_t[]){1, 2, 3, 0}, done);
    assert_int_equal(view(&b).phase, CLUSTER_UP);
    pass(&b, 500 * MS, (uint64_t[]){1, 2, 3, 0}, done);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    drain(&b);
    assert_int_equal(b.a[0].type, CLUSTER_DROP_NODE);
    uint64_t node = b.a[0].node;
    cluster_free(b.c);
    return node;
}

static void test_the_guilty_stage(void **state) {
    (void)state;
    assert_int_equal(guilty((uint64_t[]){1, 1, 1}), 1);
    assert_int_equal(guilty((uint64_t[]){2, 1, 1}), 2);
    assert_int_equal(guilty((uint64_t[]){2, 2, 1}), 3);
    assert_int_equal(guilty((uint64_t[]){2, 2, 2}), 3); // it was sent on and did not come
}

static void test_step_bound_follows_history(void **state) {
    (void)state;
    struct steps s;
    uint64_t id = 0, now = 0;
    steps_reset(&s, 1000);
    assert_true(steps_due_us(&s, &id) == UINT64_MAX);
    for (uint64_t i = 1; i <= 50; i++) {
        steps_sent(&s, now, i, 4);
        steps_done(&s, now += 500, i);
    }
    steps_sent(&s, now, 51, 4);
    uint64_t due = steps_due_us(&s, &id) - now;
    assert_int_equal(id, 51);
    assert_true(due >= 8 * 500 && due < 12 * 500);
    steps_done(&s, now += 500, 51);
    steps_sent(&s, now, 52, 64); // sixteen times the rows, never seen yet
    assert_true(steps_due_us(&s, &id) - now >= 16 * 8 * 500);
    steps_sent(&s, now, 53, 4);
    steps_done(&s, now += 8000, 52);
    assert_true(steps_due_us(&s, &id) - now < 12 * 500); // it waited behind the large one: counted from there
    steps_done(&s, now, 99);
    assert_int_equal(s.n, 1);
}

static void test_spare_is_taken_in_when_idle(void **state) {
    (void)state;
    const uint64_t all[] = {1, 2, 3, 4, 0};
    struct bench b = up3();
    cluster_set_live(b.c, b.now, 2);
    join(&b, 4, 1300);
    assert_int_equal(view(&b).plan->n_left_out, 1); // and it is said at once why it does nothing
    assert_int_equal(view(&b).plan->left_out[0].node, 4);
    assert_non_null(strstr(view(&b).plan->left_out[0].why, "a spare"));
    pass(&b, 5000 * MS, all, NULL);
    assert_int_equal(view(&b).epoch, 1); // never with live requests
    cluster_set_live(b.c, b.now, 0);
    pass(&b, 900 * MS, all, NULL);
    assert_int_equal(view(&b).epoch, 1);
    cluster_set_live(b.c, b.now, 1);
    cluster_set_live(b.c, b.now, 0);
    pass(&b, 900 * MS, all, NULL);
    assert_int_equal(view(&b).epoch, 1);
    pass(&b, 200 * MS, all, NULL);
    assert_int_equal(view(&b).epoch, 2);
    assert_int_equal(view(&b).plan->n_stages, 4);
    ready_all(&b);
    join(&b, 5, 50); // too small for a layer: no reason to move
    pass(&b, 5000 * MS, (uint64_t[]){1, 2, 3, 4, 5, 0}, NULL);
    assert_int_equal(view(&b).epoch, 2);
    assert_int_equal(view(&b).plan->n_left_out, 1);
    assert_non_null(strstr(view(&b).plan->left_out[0].why, "needs"));
    cluster_lost(b.c, b.now, 5, "gone");
    assert_int_equal(view(&b).plan->n_left_out, 0);
    cluster_free(b.c);
}

static void test_a_spare_that_fails_is_tried_ever_more_seldom(void **state) {
    (void)state;
    struct bench b = up3();
    uint64_t last = 0;
    for (uint64_t node = 10; node < 14; node++) {
        join(&b, node, 1300);
        uint64_t began = b.now;
        while (view(&b).phase == CLUSTER_UP) pass(&b, 10 * MS, (uint64_t[]){1, 2, 3, node, 0}, NULL);
        assert_true(b.now - began > last + last / 2);
        last = b.now - began;
        cluster_lost(b.c, b.now, node, "crashed while loading");
        ready_all(&b);
        drain(&b);
    }
    cluster_free(b.c);
}

static void test_down_and_up_again(void **state) {
    (void)state;
    struct bench b = make(2);
    join(&b, 1, 700);
    join(&b, 2, 700);
    pass(&b, 1000 * MS, (uint64_t[]){1, 2, 0}, NULL);
    ready_all(&b);
    drain(&b);
    cluster_lost(b.c, b.now, 1, "reset");
    struct cluster_view v = view(&b);
    assert_int_equal(v.phase, CLUSTER_DOWN);
    assert_int_equal(v.down_since_us, b.now);
    assert_non_null(strstr(v.why_down, "a further node of"));
    drain(&b);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.a[0].type, CLUSTER_ROUTE_DOWN);
    join(&b, 3, 200);
    assert_int_equal(view(&b).phase, CLUSTER_DOWN);
    join(&b, 4, 700);
    assert_int_equal(view(&b).phase, CLUSTER_LOADING);
    assert_int_equal(view(&b).epoch, 2);
    assert_int_equal(stage_node(&b, view(&b).plan->n_stages - 1), 4);
    cluster_free(b.c);
}

static void test_accused_last_stage(void **state) {
    (void)state;
    struct bench b = up3();
    cluster_accuse(b.c, b.now, 2, "nonsense");
    cluster_accuse(b.c, b.now, 63, "nonsense");
    drain(&b);
    assert_int_equal(b.a[0].type, CLUSTER_DROP_NODE);
    assert_int_equal(b.a[0].node, 3);
    assert_int_equal(view(&b).epoch, 2);
    cluster_free(b.c);
}

static void test_more_nodes_than_places(void **state) {
    (void)state;
    struct bench b = make(1);
    for (uint64_t i = 1; i <= LIMIT_NODES + 1; i++) join(&b, i, 1300);
    drain(&b);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.a[0].type, CLUSTER_DROP_NODE);
    assert_int_equal(b.a[0].node, LIMIT_NODES + 1);
    assert_int_equal(view(&b).n_nodes, LIMIT_NODES);
    cluster_free(b.c);
}

// Any event at any time, most of them senseless: no assertion breaks, epochs only grow, stages are there.
static void test_random_events(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 5);
    struct bench b = make(2);
    uint64_t sent = 0;
    uint32_t epoch = 0, n_up = 0;
    for (int i = 0; i < 60000; i++) {
        uint64_t node = 1 + rng_below(&r, 12);
        uint32_t e = view(&b).epoch - (rng_below(&r, 4) == 0);
        b.now += rng_below(&r, 30) * MS;
        switch (rng_below(&r, 12)) {
        case 0:
            join(&b, node, 200 + rng_below(&r, 1500));
            break;
        case 1:
            if (rng_below(&r, 4) == 0) cluster_lost(b.c, b.now, node, "gone");
            break;
        case 2:
            if (rng_below(&r, 8) == 0) cluster_failed(b.c, b.now, node, e, "failed");
            break;
        case 3:
        case 4:
            cluster_ready(b.c, b.now, node, e);
            break;
        case 5:
            if (view(&b).phase == CLUSTER_UP && sent < 20) cluster_step_sent(b.c, b.now, ++sent, 1);
            break;
        case 6:
            cluster_step_done(b.c, b.now, 1 + rng_below(&r, 5));
            break;
        case 7:
            cluster_set_live(b.c, b.now, rng_below(&r, 2));
            break;
        case 8:
            cluster_tick(b.c, b.now);
            break;
        case 9:
            if (rng_below(&r, 20) == 0) cluster_accuse(b.c, b.now, rng_below(&r, 5), "lies");
            break;
        default:
            for (node = 1; node <= 12; node++) cluster_heartbeat(b.c, b.now, node, e, sent, rng_below(&r, 99));
        }
        drain(&b);
        struct cluster_view v = view(&b);
        assert_true(v.epoch >= epoch);
        if (v.epoch != epoch) sent = 0;
        epoch = v.epoch;
        n_up += v.phase == CLUSTER_UP;
        if (v.phase == CLUSTER_UP) assert_string_equal(v.why_down, "");
        if (v.phase == CLUSTER_UP || v.phase == CLUSTER_LOADING) assert_true(v.n_nodes >= v.plan->n_stages);
    }
    assert_true(epoch > 50 && n_up > 500);
    cluster_free(b.c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_start_waits),
        cmocka_unit_test(test_settling),
        cmocka_unit_test(test_loss_makes_a_new_epoch),
        cmocka_unit_test(test_a_newcomer_takes_the_hole),
        cmocka_unit_test(test_heartbeats),
        cmocka_unit_test(test_who_slept_himself_blames_nobody),
        cmocka_unit_test(test_failed_is_believed_late),
        cmocka_unit_test(test_loading_must_go_on),
        cmocka_unit_test(test_the_guilty_stage),
        cmocka_unit_test(test_step_bound_follows_history),
        cmocka_unit_test(test_spare_is_taken_in_when_idle),
        cmocka_unit_test(test_a_spare_that_fails_is_tried_ever_more_seldom),
        cmocka_unit_test(test_down_and_up_again),
        cmocka_unit_test(test_accused_last_stage),
        cmocka_unit_test(test_more_nodes_than_places),
        cmocka_unit_test(test_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
