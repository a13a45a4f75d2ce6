#include "fixture.h"

#include "base/rng.h"

static void test_first_start_waits(void **state) {
    (void)state;
    struct bench *b = make(2, REDUNDANCY_NONE);
    assert_true(cluster_deadline_us(b->c) == UINT64_MAX);
    join(b, 1, 1300);
    pass(b, 3000 * MS);
    assert_int_equal(view(b).phase, CLUSTER_WAITING); // one is not enough, however long
    join(b, 2, 1300);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(b->n, 2);
    assert_int_equal(b->a[0].type, CLUSTER_LOAD);
    assert_int_equal(b->a[0].node, 1);
    assert_int_equal(b->a[0].n_next, 1);
    assert_int_equal(b->a[0].next[0].node, 2);
    assert_int_equal(b->a[0].b, 6);
    assert_true(b->a[0].hot);
    assert_int_equal(b->a[1].n_next, 0);
    assert_int_equal(b->a[1].n_blocks, 4);
    forget(b);
    load_all(b);
    assert_int_equal(b->n, 2);
    assert_int_equal(b->a[0].type, CLUSTER_FEED);
    assert_int_equal(b->a[0].next[0].node, 1);
    assert_false(b->a[0].next[0].replay);
    assert_int_equal(b->a[1].type, CLUSTER_ROUTE_UP);
    assert_int_equal(b->a[1].epoch, 1);
    cluster_free(b->c);
}

static void test_settling(void **state) {
    (void)state;
    struct bench *b = make(1, REDUNDANCY_NONE);
    join(b, 1, 1300);
    pass(b, 900 * MS);
    join(b, 2, 1300);
    assert_int_equal(view(b).phase, CLUSTER_WAITING);
    pass(b, 100 * MS);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(view(b).plan->n_stages, 2);
    cluster_free(b->c);
}

static void test_first_epoch(void **state) {
    (void)state;
    struct bench *b = make(1, REDUNDANCY_NONE);
    struct err e;
    cluster_free(b->c);
    b->config.first_epoch = 41;
    assert_int_equal(cluster_new(&b->config, &b->c, &e), ERR_OK);
    join(b, 1, 1300);
    pass(b, 1000 * MS);
    assert_int_equal(view(b).epoch, 41);
    assert_int_equal(find(b, CLUSTER_LOAD, 0)->epoch, 41);
    lose(b, 1);
    join(b, 2, 1300);
    assert_int_equal(view(b).epoch, 42);
    cluster_free(b->c);
}

static void test_loss_makes_a_new_epoch(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    lose(b, 2);
    lose(b, 2); // told twice
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(b->n, 3); // no DROP_NODE for what is gone already
    assert_int_equal(b->a[0].type, CLUSTER_ROUTE_DOWN);
    assert_string_equal(b->a[0].why, "loading epoch 2 over 2 nodes: node 2 lost: reset");
    cluster_ready(b->c, b->now, 1, 1, 0); // of the old epoch
    cluster_ready(b->c, b->now, 9, 2, 0); // a stranger
    cluster_ready(b->c, b->now, 1, 2, 1); // of another's stage
    cluster_ready(b->c, b->now, 3, 2, 1);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    cluster_ready(b->c, b->now, 1, 2, 0);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    cluster_free(b->c);
}

static void test_a_newcomer_takes_the_hole(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    join(b, 4, 1300); // a spare
    assert_int_equal(b->n, 0);
    lose(b, 2);
    assert_int_equal(view(b).plan->n_stages, 3);
    assert_int_equal(server(b, 0), 1); // keeps layers 0 .. 4
    assert_int_equal(server(b, 1), 4);
    assert_int_equal(server(b, 2), 3); // keeps layers 8 .. 12
    cluster_free(b->c);
}

static void test_heartbeats(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    b->silent[2] = true;
    pass(b, 480 * MS);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    pass(b, 40 * MS);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(b->a[0].type, CLUSTER_DROP_NODE);
    assert_int_equal(b->a[0].node, 2);
    assert_string_equal(b->a[0].why, "no heartbeat for 500 ms");
    assert_int_equal(view(b).n_nodes_lost, 1);
    assert_int_equal(view(b).n_suspicions, 0); // nobody could have taken over
    cluster_free(b->c);
}

static void test_who_slept_himself_blames_nobody(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_SHADOW);
    cluster_step_sent(b->c, b->now, 1, 1);
    b->now += 60 * 1000 * MS; // the head was stopped; the first thing it sees is one heartbeat
    beat(b, 1);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    assert_int_equal(view(b).n_suspicions, 0);
    b->silent[2] = true;
    pass(b, 1000 * MS); // and yet it finds who is really gone
    assert_int_equal(view(b).n_nodes_lost, 1);
    cluster_free(b->c);
}

static void test_failed_is_believed_late(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    cluster_failed(b->c, b->now, 1, 1, 0, STAGE_BROKEN, "link to the next stage broke");
    b->now += 5 * MS;
    lose(b, 2); // the neighbour was the one
    assert_int_equal(view(b).epoch, 2);
    b->now += 5 * MS;
    pass(b, 400 * MS);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).n_nodes, 2);
    cluster_failed(b->c, b->now, 3, 2, 1, STAGE_BROKEN, "layer 7: checksum is wrong");
    pass(b, 30 * MS);
    assert_int_equal(view(b).epoch, 2);
    pass(b, 20 * MS);
    assert_int_equal(view(b).epoch, 3);
    assert_int_equal(view(b).n_nodes, 1);
    assert_int_equal(find(b, CLUSTER_DROP_NODE, 0)->node, 3);
    assert_string_equal(find(b, CLUSTER_DROP_NODE, 0)->why, "it failed: layer 7: checksum is wrong");
    cluster_free(b->c);
}

static void test_loading_must_go_on(void **state) {
    (void)state;
    struct bench *b = make(2, REDUNDANCY_NONE);
    join(b, 1, 1300);
    join(b, 2, 1300);
    pass(b, 1000 * MS);
    cluster_ready(b->c, b->now, 1, 1, 0);
    for (uint64_t i = 1; i <= 10; i++) { // slow, but it goes on
        pass(b, 1500 * MS);
        cluster_heartbeat(b->c, b->now, 2, 0, NULL, 0, i);
        assert_int_equal(view(b).epoch, 1);
    }
    pass(b, 2100 * MS);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).plan->n_stages, 1);
    assert_int_equal(server(b, 0), 1);
    cluster_free(b->c);
}

static void test_spare_is_taken_in_when_idle(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    join(b, 4, 1300);
    assert_int_equal(view(b).plan->n_left_out, 1); // and it is said at once why it does nothing
    assert_int_equal(view(b).plan->left_out[0].node, 4);
    assert_non_null(strstr(view(b).plan->left_out[0].why, "a spare"));
    pass(b, 5000 * MS);
    assert_int_equal(view(b).epoch, 1); // never with live requests
    cluster_set_live(b->c, b->now, 0);
    pass(b, 900 * MS);
    assert_int_equal(view(b).epoch, 1);
    cluster_set_live(b->c, b->now, 1);
    cluster_set_live(b->c, b->now, 0);
    pass(b, 900 * MS);
    assert_int_equal(view(b).epoch, 1);
    pass(b, 200 * MS);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).plan->n_stages, 4);
    load_all(b);
    join(b, 5, 50); // too small for a layer: no reason to move
    pass(b, 5000 * MS);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).plan->n_left_out, 1);
    assert_non_null(strstr(view(b).plan->left_out[0].why, "needs"));
    lose(b, 5);
    assert_int_equal(view(b).plan->n_left_out, 0);
    cluster_free(b->c);
}

static void test_a_spare_that_fails_is_tried_ever_more_seldom(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    uint64_t last = 0;
    cluster_set_live(b->c, b->now, 0);
    for (uint64_t node = 10; node < 14; node++) {
        join(b, node, 1300);
        uint64_t began = b->now;
        while (view(b).phase == CLUSTER_UP) pass(b, 10 * MS);
        assert_true(b->now - began > last + last / 2);
        last = b->now - began;
        lose(b, node);
        load_all(b);
        assert_int_equal(view(b).phase, CLUSTER_UP);
    }
    cluster_free(b->c);
}

static void test_down_and_up_again(void **state) {
    (void)state;
    struct bench *b = make(2, REDUNDANCY_SHADOW);
    join(b, 1, 700);
    join(b, 2, 700);
    pass(b, 1000 * MS);
    load_all(b);
    forget(b);
    lose(b, 1);
    struct cluster_view v = view(b);
    assert_int_equal(v.phase, CLUSTER_DOWN);
    assert_int_equal(v.down_since_us, b->now);
    assert_non_null(strstr(v.why_down, "a further node of"));
    assert_int_equal(v.stage[0].n, 0);
    assert_int_equal(b->n, 1);
    assert_int_equal(b->a[0].type, CLUSTER_ROUTE_DOWN);
    join(b, 3, 200);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    join(b, 4, 700);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(server(b, view(b).plan->n_stages - 1), 4);
    cluster_free(b->c);
}

static void test_who_is_accused_goes(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    cluster_accuse(b->c, b->now, 3, "nonsense");
    cluster_accuse(b->c, b->now, 63, "nonsense");
    drain(b);
    assert_int_equal(b->a[0].type, CLUSTER_DROP_NODE);
    assert_int_equal(b->a[0].node, 3);
    assert_int_equal(view(b).epoch, 2);
    cluster_free(b->c);
}

static void test_more_nodes_than_places(void **state) {
    (void)state;
    struct bench *b = make(1, REDUNDANCY_NONE);
    struct cluster_action a;
    for (uint64_t i = 1; i <= LIMIT_NODES + 1; i++) cluster_joined(b->c, b->now, i, 1300);
    assert_true(cluster_next(b->c, &a));
    assert_int_equal(a.type, CLUSTER_DROP_NODE);
    assert_int_equal(a.node, LIMIT_NODES + 1);
    assert_false(cluster_next(b->c, &a));
    assert_int_equal(view(b).n_nodes, LIMIT_NODES);
    cluster_free(b->c);
}

// --- any event at any time, most of them senseless

// The route is told as it is.
static void check_told(const struct bench *b, const struct cluster_view *v) {
    for (uint32_t s = 0; s < v->plan->n_stages; s++) {
        assert_true(v->stage[s].n >= 1);
        assert_int_equal(v->stage[s].holder[0].node, v->plan->stage[s].node);
        assert_true(v->stage[s].holder[0].hot);
        for (uint32_t k = 0; k < v->stage[s].n; k++) {
            const struct fake_hold *h = &b->hold[v->stage[s].holder[k].node][s];
            assert_true(b->alive[v->stage[s].holder[k].node] && h->loaded);
            assert_int_equal(h->hot, v->stage[s].holder[k].hot);
            if (s + 1 == v->plan->n_stages || v->stage[s + 1].holder[0].phase != HOLDING_LEVEL) continue;
            assert_int_equal(h->next[0], v->plan->stage[s + 1].node);
            for (uint32_t i = 1; i < v->stage[s + 1].n; i++) {
                if (v->stage[s + 1].holder[i].phase != HOLDING_LEVEL) continue;
                bool knows = false;
                for (uint32_t j = 0; j < h->n_next; j++) knows |= h->next[j] == v->stage[s + 1].holder[i].node;
                assert_true(knows);
            }
        }
    }
}

static void random_event(struct bench *b, struct rng *r) {
    uint64_t node = 1 + rng_below(r, 12);
    uint32_t e = view(b).epoch - (rng_below(r, 4) == 0), stage = rng_below(r, 5);
    switch (rng_below(r, 16)) {
    case 0:
        if (!b->alive[node]) join(b, node, 200 + rng_below(r, 1500));
        break;
    case 1:
        if (rng_below(r, 8) == 0) lose(b, node);
        break;
    case 2:
        if (rng_below(r, 8) == 0)
            cluster_failed(b->c, b->now, rng_below(r, 6) ? node : CLUSTER_HEAD, e, stage,
                           (enum stage_failure)rng_below(r, 3), "failed");
        break;
    case 3:
    case 4:
        load_all(b);
        break;
    case 5:
        feed_all(b);
        break;
    case 6:
    case 7:
    case 8:
        if (view(b).phase == CLUSTER_UP && b->sent < b->done + 20) step(b);
        flow(b);
        break;
    case 9:
        cluster_set_live(b->c, b->now, rng_below(r, 2));
        break;
    case 10:
        if (rng_below(r, 10) == 0) leave(b, node, rng_below(r, 2));
        break;
    case 11:
        if (rng_below(r, 40) == 0) cluster_accuse(b->c, b->now, rng_below(r, 12), "lies");
        break;
    case 12:
        if (rng_below(r, 10) == 0) b->silent[node] = !b->silent[node];
        break;
    case 13:
        cluster_fed(b->c, b->now, node, e, stage);
        if (rng_below(r, 10) == 0) b->hold[node][stage].frozen = !b->hold[node][stage].frozen;
        break;
    default:
        pass(b, rng_below(r, 60) * MS);
    }
    drain(b);
}

static void random_events(enum cluster_redundancy redundancy, uint64_t seed) {
    struct rng r;
    struct bench *b = make(2, redundancy);
    uint64_t stable = 0;
    uint32_t epoch = 0, n_up = 0;
    rng_init(&r, seed);
    for (int i = 0; i < 40000; i++) {
        random_event(b, &r);
        struct cluster_view v = view(b);
        assert_true(v.epoch >= epoch);
        if (v.epoch != epoch) stable = 0;
        assert_true(v.stable >= stable);
        stable = v.stable;
        epoch = v.epoch;
        n_up += v.phase == CLUSTER_UP;
        if (v.phase == CLUSTER_UP) {
            assert_string_equal(v.why_down, "");
            check_told(b, &v);
        }
        assert_true(cluster_deadline_us(b->c) > b->now);
    }
    struct cluster_view v = view(b);
    assert_true(n_up > 500 && v.n_drained > 10);
    if (redundancy == REDUNDANCY_NONE)
        assert_true(epoch > 50);
    else
        assert_true(epoch < 50 && v.n_promotions > 100 && v.n_suspicions > 50 && v.n_false_alarms > 20);
    cluster_free(b->c);
}

static void test_random_events(void **state) {
    (void)state;
    random_events(REDUNDANCY_NONE, 5);
    random_events(REDUNDANCY_SPARE, 6);
    random_events(REDUNDANCY_SHADOW, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_start_waits),
        cmocka_unit_test(test_settling),
        cmocka_unit_test(test_first_epoch),
        cmocka_unit_test(test_loss_makes_a_new_epoch),
        cmocka_unit_test(test_a_newcomer_takes_the_hole),
        cmocka_unit_test(test_heartbeats),
        cmocka_unit_test(test_who_slept_himself_blames_nobody),
        cmocka_unit_test(test_failed_is_believed_late),
        cmocka_unit_test(test_loading_must_go_on),
        cmocka_unit_test(test_spare_is_taken_in_when_idle),
        cmocka_unit_test(test_a_spare_that_fails_is_tried_ever_more_seldom),
        cmocka_unit_test(test_down_and_up_again),
        cmocka_unit_test(test_who_is_accused_goes),
        cmocka_unit_test(test_more_nodes_than_places),
        cmocka_unit_test(test_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
