// Who holds what within an epoch: nothing here may end it unless it says so.
#include "fixture.h"

static struct bench *up_with_spare(enum cluster_redundancy redundancy) {
    struct bench *b = up(3, redundancy);
    join(b, 4, 1300);
    pass(b, 20 * MS);
    load_all(b);
    feed_all(b);
    pass(b, 40 * MS);
    return b;
}

static void check_whole(const struct bench *b, uint32_t n_holders) {
    struct cluster_view v = view(b);
    assert_int_equal(v.phase, CLUSTER_UP);
    for (uint32_t s = 0; s < v.plan->n_stages; s++) {
        assert_int_equal(v.stage[s].n, n_holders);
        for (uint32_t k = 0; k < n_holders; k++) {
            assert_int_equal(v.stage[s].holder[k].phase, HOLDING_LEVEL);
            assert_int_equal(v.stage[s].holder[k].hot, k == 0);
            assert_false(v.stage[s].holder[k].suspect);
        }
    }
}

// Time for all that is under way to end.
static void recover(struct bench *b) {
    for (int i = 0; i < 8; i++) {
        pass(b, 20 * MS);
        load_all(b);
        feed_all(b);
        flow(b);
    }
    pass(b, 40 * MS);
}

static void test_shadows_from_the_first_step(void **state) {
    (void)state;
    struct bench *b = make(3, REDUNDANCY_SHADOW);
    for (uint64_t i = 1; i <= 3; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    assert_int_equal(count(b, CLUSTER_LOAD), 6);
    for (uint32_t i = 0; i < 6; i++) {
        const struct cluster_action *a = find(b, CLUSTER_LOAD, i);
        assert_int_equal(a->n_next, a->stage == 2 ? 0 : 2);
        assert_int_equal(a->hot, a->node == server(b, a->stage));
        for (uint32_t k = 0; k < a->n_next; k++) assert_false(a->next[k].replay);
    }
    forget(b);
    for (uint32_t k = 2; k-- > 0;) {
        struct cluster_view v = view(b);
        for (uint32_t s = 0; s < 3; s++) {
            b->hold[v.stage[s].holder[k].node][s].ready = true;
            cluster_ready(b->c, b->now, v.stage[s].holder[k].node, 1, s);
        }
    }
    drain(b);
    assert_int_equal(b->n, 2); // ROUTE_UP, and FEED with both
    assert_int_equal(b->n_feed, 2);
    check_whole(b, 2);
    for (uint32_t s = 0; s < 3; s++) assert_true(shadow(b, s) != server(b, s));
    cluster_free(b->c);
}

static void test_the_route_waits_for_no_shadow(void **state) {
    (void)state;
    struct bench *b = make(2, REDUNDANCY_SHADOW);
    for (uint64_t i = 1; i <= 2; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    forget(b);
    for (uint32_t s = 0; s < 2; s++) {
        b->hold[server(b, s)][s].ready = true;
        cluster_ready(b->c, b->now, server(b, s), 1, s);
    }
    drain(b);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    assert_int_equal(b->n_feed, 1); // who is not ready is in no list
    assert_int_equal(find(b, CLUSTER_NEXT, 0)->n_next, 1);
    steps(b, 10);
    assert_true(view(b).stable >= 8); // and holds nobody back
    load_all(b);                      // now it must be fed: what was sent is not sent again
    assert_int_equal(b->n_feed, 2);
    assert_int_equal(b->hold[shadow(b, 0)][0].n_replays, 1);
    assert_int_equal(b->hold[shadow(b, 1)][1].n_replays, 1);
    assert_int_equal(view(b).stage[1].holder[1].phase, HOLDING_FEEDING);
    feed_all(b);
    pass(b, 40 * MS);
    check_whole(b, 2);
    cluster_free(b->c);
}

static void promote(uint32_t stage) {
    struct bench *b = up(3, REDUNDANCY_SHADOW);
    recover(b);
    check_whole(b, 2);
    steps(b, 5);
    uint64_t was = server(b, stage), heir = shadow(b, stage);
    forget(b);
    lose(b, was);
    assert_int_equal(server(b, stage), heir);
    assert_true(b->hold[heir][stage].hot);
    assert_int_equal(view(b).n_promotions, 1);
    const struct cluster_action *hot = find(b, CLUSTER_HOT, 0);
    assert_int_equal(hot->node, heir);
    assert_int_equal(hot->stage, stage);
    if (stage == 0) {
        assert_int_equal(b->feed[0], heir);
        assert_false(find(b, CLUSTER_FEED, 0)->next[0].replay);
    } else {
        const struct fake_hold *before = &b->hold[server(b, stage - 1)][stage - 1];
        assert_int_equal(before->next[0], heir);
        assert_int_equal(before->n_next, 1);
    }
    flow(b);
    steps(b, 5);
    recover(b);
    assert_int_equal(view(b).epoch, 1);
    assert_int_equal(b->n_up, 1);
    assert_int_equal(b->n_down, 0);
    cluster_free(b->c);
}

static void test_promotion(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage < 3; stage++) promote(stage);
}

// Any two of five nodes at once; five stages with a spare for each.
static void test_two_losses_at_once(void **state) {
    (void)state;
    for (uint64_t one = 1; one <= 5; one++) {
        for (uint64_t two = one + 1; two <= 5; two++) {
            struct bench *b = up(5, REDUNDANCY_SHADOW);
            bool both = false; // who serves a stage, and its shadow
            recover(b);
            check_whole(b, 2);
            for (uint32_t s = 0; s < 5; s++)
                both |= server(b, s) + shadow(b, s) == one + two && (server(b, s) == one || server(b, s) == two);
            steps(b, 3);
            lose(b, one);
            lose(b, two);
            assert_int_equal(view(b).phase, both ? CLUSTER_LOADING : CLUSTER_UP);
            assert_int_equal(view(b).epoch, 1 + both);
            recover(b);
            steps(b, 3);
            check_whole(b, 2);
            cluster_free(b->c);
        }
    }
}

static void test_redundancy_comes_back_while_requests_run(void **state) {
    (void)state;
    struct bench *b = up_with_spare(REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 5);
    lose(b, 2);
    struct cluster_view v = view(b);
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t k = 1; k < v.stage[s].n; k++)
            if (v.stage[s].holder[k].phase == HOLDING_LOADING) assert_false(v.stage[s].holder[k].hot);
    }
    for (int i = 0; i < 20; i++) {
        steps(b, 1);
        load_all(b);
        feed_all(b);
    }
    recover(b);
    check_whole(b, 2);
    assert_int_equal(view(b).epoch, 1);
    join(b, 5, 1300); // nothing is left to do for it
    recover(b);
    assert_int_equal(view(b).n_nodes, 4);
    const struct plan *p = view(b).plan;
    for (uint32_t i = 0; i < p->n_left_out; i++)
        if (p->left_out[i].node == 5) assert_non_null(strstr(p->left_out[i].why, "a spare"));
    cluster_free(b->c);
}

// A node that is back takes a stage over; meanwhile no stage is without a second holder that could go on.
static void test_a_handover_never_thins_out(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 5);
    lose(b, 3);
    for (int i = 0; i < 200; i++) {
        steps(b, 1);
        load_all(b);
        feed_all(b);
    }
    check_whole(b, 2);
    join(b, 4, 1300);
    bool serves = false;
    for (int i = 0; i < 400 && !serves; i++) {
        steps(b, 1);
        if (i % 8 == 7) load_all(b); // loading takes its time
        if (i % 8 == 3) feed_all(b);
        struct cluster_view v = view(b);
        for (uint32_t s = 0; s < v.plan->n_stages; s++) {
            uint32_t level = 0;
            for (uint32_t k = 0; k < v.stage[s].n; k++) level += v.stage[s].holder[k].phase == HOLDING_LEVEL;
            assert_true(level >= 2);
            serves |= server(b, s) == 4;
        }
    }
    assert_true(serves);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

static void test_a_spare_takes_over_with_a_replay(void **state) {
    (void)state;
    for (uint32_t stage = 0; stage < 3; stage++) {
        struct bench *b = up_with_spare(REDUNDANCY_SPARE);
        steps(b, 10);
        uint64_t heir = shadow(b, stage);
        assert_int_equal(view(b).stage[stage].holder[1].phase, HOLDING_RESIDENT);
        assert_int_equal(b->hold[heir][stage].n_replays, 0);
        lose(b, server(b, stage));
        assert_int_equal(server(b, stage), heir);
        assert_true(b->hold[heir][stage].hot);
        assert_int_equal(b->hold[heir][stage].n_replays, 1);
        assert_int_equal(view(b).stage[stage].holder[0].phase, HOLDING_FEEDING);
        uint64_t stable = view(b).stable;
        assert_false(step(b));
        pass(b, 1500 * MS); // longer than a step may take: it is being filled
        assert_int_equal(view(b).stable, stable);
        assert_int_equal(view(b).n_nodes_lost, 1);
        feed_all(b);
        flow(b);
        assert_int_equal(b->done, b->sent);
        pass(b, 40 * MS);
        assert_int_equal(view(b).stage[stage].holder[0].phase, HOLDING_LEVEL);
        assert_int_equal(view(b).epoch, 1);
        cluster_free(b->c);
    }
}

// Neighbours at once, with spares only: the second one is filled when the first one is.
static void test_spares_are_filled_one_after_the_other(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_NONE);
    struct err e;
    cluster_free(b->c);
    b->config.redundancy = REDUNDANCY_SPARE;
    b->config.wish.max_stages = 3;
    b->config.min_nodes = 5;
    assert_int_equal(cluster_new(&b->config, &b->c, &e), ERR_OK);
    b->epoch = 0;
    for (uint64_t i = 1; i <= 5; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    load_all(b);
    cluster_set_live(b->c, b->now, 1);
    steps(b, 5);
    uint64_t one = shadow(b, 1), two = shadow(b, 2);
    assert_true(one != two);
    lose(b, server(b, 1));
    lose(b, server(b, 2));
    assert_int_equal(b->hold[one][1].n_replays, 1);
    assert_int_equal(b->hold[two][2].n_replays, 0);
    feed_all(b);
    pass(b, 40 * MS);
    assert_int_equal(b->hold[two][2].n_replays, 1);
    feed_all(b);
    flow(b);
    assert_int_equal(b->done, b->sent);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

// Two stages on `n` nodes, the others beside the route.
static struct bench *up_two_stages(uint64_t n, enum cluster_redundancy redundancy) {
    struct bench *b = make((uint32_t)n, redundancy);
    struct err e;
    b->config.wish.max_stages = 2;
    cluster_free(b->c);
    assert_int_equal(cluster_new(&b->config, &b->c, &e), ERR_OK);
    for (uint64_t i = 1; i <= n; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    load_all(b);
    cluster_set_live(b->c, b->now, 1);
    recover(b);
    check_whole(b, 2);
    return b;
}

// The one who feeds is lost: the feed begins anew from its heir, and only for those who were not level.
static void test_loss_of_the_feeder(void **state) {
    (void)state;
    struct bench *b = up_two_stages(5, REDUNDANCY_SHADOW);
    uint64_t feeder = server(b, 0), heir = shadow(b, 0), kept = server(b, 1);
    steps(b, 5);
    lose(b, shadow(b, 1));
    assert_true(b->alive[heir]);
    load_all(b);
    uint64_t fed = shadow(b, 1);
    assert_int_equal(view(b).stage[1].holder[1].phase, HOLDING_FEEDING);
    assert_int_equal(b->hold[fed][1].n_replays, 1);
    assert_int_equal(b->hold[feeder][0].n_next, 2);
    assert_int_equal(b->hold[heir][0].n_next, 1); // it hears of the new one when that is level
    lose(b, feeder);
    assert_int_equal(server(b, 0), heir);
    assert_int_equal(b->hold[fed][1].n_replays, 2);
    assert_int_equal(b->hold[kept][1].n_replays, 0);
    recover(b);
    steps(b, 3);
    check_whole(b, 2);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

// A shadow that is being filled is lost, or who serves it: by then it may go on as it is.
static void test_loss_while_it_is_fed(void **state) {
    (void)state;
    for (int serves = 0; serves < 2; serves++) {
        struct bench *b = make(1, REDUNDANCY_SHADOW);
        join(b, 1, 1300);
        pass(b, 1000 * MS);
        load_all(b);
        cluster_set_live(b->c, b->now, 1);
        steps(b, 5);
        join(b, 2, 1300);
        assert_int_equal(shadow(b, 0), 2);
        load_all(b);
        assert_int_equal(b->hold[2][0].n_replays, 1);
        assert_int_equal(view(b).stage[0].holder[1].phase, HOLDING_FEEDING);
        lose(b, serves ? 1 : 2);
        assert_int_equal(view(b).epoch, 1);
        assert_int_equal(server(b, 0), serves ? 2 : 1);
        assert_int_equal(b->hold[2][0].n_replays, 1); // the head feeds it already
        feed_all(b);
        flow(b);
        steps(b, 3);
        assert_int_equal(view(b).n_promotions, serves);
        cluster_free(b->c);
    }
}

static void test_stable_is_the_least_of_all(void **state) {
    (void)state;
    struct bench *b = up(2, REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 10);
    pass(b, 20 * MS);
    assert_int_equal(view(b).stable, 10);
    b->hold[shadow(b, 1)][1].frozen = true;
    steps(b, 10);
    pass(b, 20 * MS);
    assert_int_equal(view(b).stable, 10);
    b->hold[shadow(b, 1)][1].frozen = false;
    flow(b);
    assert_int_equal(view(b).stable, 10); // as far as the head knows
    pass(b, 20 * MS);
    assert_int_equal(view(b).stable, 20);
    // All holders have a step; but its result is not here. It must not be taken for settled.
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    for (uint32_t s = 0; s < 2; s++)
        for (uint64_t i = 1; i <= 2; i++) b->hold[i][s].accepted = b->hold[i][s].done = 21;
    pass(b, 20 * MS);
    assert_int_equal(view(b).stable, 20);
    cluster_step_done(b->c, b->now, b->done = 21);
    assert_int_equal(view(b).stable, 21);
    cluster_free(b->c);
}

static void test_who_starts_again_does_not_count(void **state) {
    (void)state;
    struct bench *b = up(1, REDUNDANCY_SHADOW);
    join(b, 2, 1300);
    recover(b);
    steps(b, 10);
    pass(b, 20 * MS);
    b->hold[2][0].accepted = b->hold[2][0].done = 0; // its feeder lost steps, and replays
    b->hold[2][0].frozen = b->hold[2][0].replays = true;
    pass(b, 20 * MS);
    assert_int_equal(view(b).stage[0].holder[1].phase, HOLDING_FEEDING);
    steps(b, 10);
    pass(b, 20 * MS);
    assert_int_equal(view(b).stable, 20);
    assert_int_equal(b->hold[2][0].n_replays, 1); // nobody was asked for another one
    b->hold[2][0].frozen = false;
    feed_all(b);
    pass(b, 20 * MS);
    check_whole(b, 2);
    cluster_free(b->c);
}

static void test_a_slow_shadow_goes(void **state) {
    (void)state;
    struct bench *b = up(2, REDUNDANCY_SHADOW);
    recover(b);
    uint64_t slow = shadow(b, 1), last = 0;
    for (int round = 0; round < 4; round++) {
        uint64_t began = b->now;
        assert_int_equal(view(b).stage[1].holder[1].phase, HOLDING_LEVEL);
        b->hold[slow][1].frozen = true;
        forget(b);
        while (count(b, CLUSTER_UNLOAD) == 0) steps(b, 1);
        assert_in_range(b->now - began, 1900 * MS, 2300 * MS);
        assert_int_equal(find(b, CLUSTER_UNLOAD, 0)->node, slow);
        steps(b, 3);
        assert_true(view(b).stable + 5 > b->sent);
        uint64_t dropped = b->now;
        while (view(b).stage[1].n == 1) steps(b, 1);
        assert_true(b->now - dropped > last + last / 2); // ever more seldom
        last = b->now - dropped;
        recover(b);
    }
    assert_int_equal(view(b).epoch, 1);
    assert_int_equal(view(b).n_nodes_lost, 0);
    cluster_free(b->c);
}

static void test_a_slow_server_becomes_the_shadow(void **state) {
    (void)state;
    struct bench *b = up(2, REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 20);
    uint64_t slow = server(b, 0), heir = shadow(b, 0);
    b->hold[slow][0].frozen = true;
    assert_false(step(b));
    pass(b, 30 * MS); // late: the shadow runs beside it
    assert_true(b->hold[heir][0].hot);
    assert_int_equal(view(b).n_suspicions, 1);
    flow(b);
    assert_int_equal(b->done, b->sent);
    for (int i = 0; i < 230; i++) steps(b, 1);
    assert_int_equal(server(b, 0), heir);
    assert_false(b->hold[slow][0].hot);
    assert_int_equal(view(b).n_nodes_lost, 0);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

static void test_no_replay(void **state) {
    (void)state;
    for (int serves = 0; serves < 2; serves++) {
        struct bench *b = up_with_spare(REDUNDANCY_SPARE);
        steps(b, 3);
        if (serves) {
            uint64_t before = server(b, 0);
            lose(b, server(b, 1));
            assert_int_equal(view(b).stage[1].holder[0].phase, HOLDING_FEEDING);
            cluster_failed(b->c, b->now, before, 1, 0, STAGE_NO_REPLAY, "the log was too small");
            drain(b);
            assert_int_equal(view(b).epoch, 2);
            assert_non_null(strstr(view(b).why_down, "stage 1 cannot be filled: the log was too small"));
            cluster_free(b->c);
            continue;
        }
        cluster_failed(b->c, b->now, server(b, 0), 1, 0, STAGE_NO_REPLAY, "nobody asked");
        assert_int_equal(view(b).epoch, 1);
        cluster_free(b->c);
        b = up(2, REDUNDANCY_SHADOW);
        recover(b);
        steps(b, 3);
        lose(b, 2);
        join(b, 3, 1300);
        load_all(b);
        assert_int_equal(view(b).stage[0].holder[1].phase, HOLDING_FEEDING);
        assert_int_equal(view(b).stage[1].holder[1].phase, HOLDING_FEEDING);
        forget(b);
        cluster_failed(b->c, b->now, CLUSTER_HEAD, 1, 0, STAGE_NO_REPLAY, "the log was too small");
        cluster_failed(b->c, b->now, server(b, 0), 1, 0, STAGE_NO_REPLAY, "the log was too small");
        drain(b);
        assert_int_equal(count(b, CLUSTER_UNLOAD), 2);
        assert_int_equal(view(b).stage[0].n, 1);
        assert_int_equal(view(b).stage[1].n, 1);
        pass(b, 900 * MS);
        assert_int_equal(view(b).stage[0].n, 1);
        pass(b, 200 * MS);
        assert_int_equal(view(b).stage[0].n, 2); // tried again later
        recover(b);
        check_whole(b, 2);
        assert_int_equal(view(b).epoch, 1);
        cluster_free(b->c);
    }
}

static void gap(struct bench *b, uint64_t node, uint32_t stage) {
    b->hold[node][stage].accepted = b->hold[node][stage].done = 0;
    cluster_failed(b->c, b->now, node, 1, stage, STAGE_GAP, "step 9 does not follow on step 5");
    drain(b);
}

// Who lacks steps is filled anew, and needs neither to load again nor to wait.
static void test_a_gap(void **state) {
    (void)state;
    for (int serves = 0; serves < 2; serves++) {
        for (uint32_t stage = 0; stage < 2; stage++) {
            struct bench *b = up_with_spare(REDUNDANCY_SHADOW);
            recover(b);
            steps(b, 3);
            uint64_t node = serves ? server(b, stage) : shadow(b, stage);
            struct fake_hold *h = &b->hold[node][stage];
            uint32_t n_loads = h->n_loads;
            for (uint32_t i = 1; i <= 3; i++) {
                gap(b, node, stage);
                assert_int_equal(h->n_replays, i);
                assert_int_equal(view(b).stage[stage].holder[!serves].phase, HOLDING_FEEDING);
                gap(b, node, stage); // while it is filled
                assert_int_equal(h->n_replays, ++i);
                if (!serves) steps(b, 1); // the route waits for no shadow
                recover(b);
                check_whole(b, 2);
            }
            assert_int_equal(h->n_loads, n_loads);
            assert_int_equal(server(b, stage) == node, serves);
            assert_int_equal(view(b).epoch, 1);
            assert_int_equal(view(b).n_nodes_lost, 0);
            cluster_free(b->c);
        }
    }
}

// Not for ever: what is wrong with it is not mended by filling it.
static void test_gaps_without_end(void **state) {
    (void)state;
    struct bench *b = up_with_spare(REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 3);
    uint64_t node = shadow(b, 1);
    struct fake_hold *h = &b->hold[node][1];
    for (uint32_t i = 1; i <= 8; i++) {
        gap(b, node, 1);
        assert_int_equal(h->n_replays, i);
        assert_true(h->loaded);
        recover(b);
    }
    gap(b, node, 1);
    for (int i = 0; i < 4 && h->loaded; i++) pass(b, 20 * MS);
    assert_false(h->loaded);
    recover(b);
    for (int i = 0; i < 80; i++) steps(b, 1);
    recover(b);
    check_whole(b, 2);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);

    // Long ago counts no more.
    b = up_with_spare(REDUNDANCY_SHADOW);
    recover(b);
    node = shadow(b, 1);
    for (uint32_t i = 1; i <= 8; i++) gap(b, node, 1);
    recover(b);
    for (int i = 0; i < 3200; i++) pass(b, 20 * MS);
    gap(b, node, 1);
    recover(b);
    assert_true(b->hold[node][1].loaded);
    check_whole(b, 2);
    cluster_free(b->c);
}

static void test_a_failed_shadow_is_replaced(void **state) {
    (void)state;
    struct bench *b = up_with_spare(REDUNDANCY_SHADOW);
    recover(b);
    uint64_t bad = shadow(b, 1);
    cluster_failed(b->c, b->now, bad, 1, 1, STAGE_BROKEN, "no memory");
    pass(b, 60 * MS);
    assert_int_equal(view(b).stage[1].n, 1);
    assert_false(b->hold[bad][1].loaded);
    pass(b, 1000 * MS);
    assert_true(shadow(b, 1) != bad); // another one first
    recover(b);
    check_whole(b, 2);
    assert_int_equal(view(b).n_nodes_lost, 0);
    cluster_free(b->c);
}

static void test_a_failure_that_a_neighbours_loss_explains(void **state) {
    (void)state;
    struct bench *b = up(3, REDUNDANCY_SHADOW);
    recover(b);
    uint64_t before = server(b, 0);
    lose(b, server(b, 1));
    forget(b);
    cluster_failed(b->c, b->now, before, 1, 0, STAGE_BROKEN, "the link broke");
    drain(b);
    if (b->alive[before]) assert_int_equal(find(b, CLUSTER_NEXT, 0)->node, before); // told again
    pass(b, 100 * MS);
    assert_true(b->alive[before]);
    assert_int_equal(view(b).n_nodes_lost, 1);
    pass(b, 500 * MS);
    cluster_failed(b->c, b->now, before, 1, 0, STAGE_BROKEN, "the link broke again");
    pass(b, 100 * MS);
    assert_false(b->alive[before]);
    cluster_free(b->c);
}

// The node behind it is cut off, which its own link notices first.
static void test_a_failure_that_silence_explains(void **state) {
    (void)state;
    struct bench *b = up(5, REDUNDANCY_SHADOW);
    recover(b);
    uint64_t before = server(b, 1), cut = server(b, 2);
    b->silent[cut] = true;
    pass(b, 40 * MS);
    cluster_failed(b->c, b->now, before, 1, 1, STAGE_BROKEN, "the link broke");
    pass(b, TIMEOUT + 100 * MS);
    assert_true(b->alive[before]);
    assert_false(b->alive[cut]);
    assert_int_equal(view(b).n_nodes_lost, 1);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

// --- handing over

static void hand_over(enum cluster_redundancy redundancy) {
    for (uint64_t node = 1; node <= 3; node++) {
        struct bench *b = up_with_spare(redundancy);
        steps(b, 5);
        uint32_t n_steps = 5;
        leave(b, node, true);
        while (!b->may_leave[node]) {
            assert_true(step(b)); // no gap: each step comes out at once
            pass(b, 10 * MS);
            load_all(b);
            feed_all(b);
            assert_true(++n_steps < 100);
        }
        for (uint32_t s = 0; s < 3; s++) assert_true(server(b, s) != node);
        assert_int_equal(view(b).n_drained, 1);
        assert_int_equal(view(b).epoch, 1);
        lose(b, node);
        assert_int_equal(view(b).n_nodes_lost, 0);
        steps(b, 5);
        recover(b);
        assert_int_equal(view(b).epoch, 1);
        cluster_free(b->c);
    }
}

static void test_leaving_without_a_gap(void **state) {
    (void)state;
    hand_over(REDUNDANCY_NONE);
    hand_over(REDUNDANCY_SPARE);
    hand_over(REDUNDANCY_SHADOW);
}

// What was sent before must be done by the heir before the old one may go.
static void test_leaving_waits_for_the_heir(void **state) {
    (void)state;
    struct bench *b = up(2, REDUNDANCY_SHADOW);
    recover(b);
    steps(b, 5);
    uint64_t heir = shadow(b, 0);
    b->hold[heir][0].frozen = true;
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    leave(b, server(b, 0), true);
    assert_true(b->hold[heir][0].hot);
    pass(b, 15 * MS);
    assert_true(server(b, 0) != heir);
    b->hold[heir][0].frozen = false;
    b->hold[heir][0].accepted = b->hold[heir][0].done = b->sent;
    pass(b, 20 * MS);
    assert_int_equal(server(b, 0), heir);
    cluster_free(b->c);
}

static void test_nobody_can_take_it(void **state) {
    (void)state;
    struct bench *b = make(2, REDUNDANCY_SHADOW);
    join(b, 1, 700);
    join(b, 2, 700);
    pass(b, 1000 * MS);
    load_all(b);
    cluster_set_live(b->c, b->now, 1);
    leave(b, 1, true);
    pass(b, 3000 * MS);
    assert_false(b->may_leave[1]);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    join(b, 3, 700); // somebody can
    recover(b);
    assert_true(b->may_leave[1]);
    leave(b, 1, false); // and it is free again: it takes what it can
    recover(b);
    assert_int_equal(view(b).n_drained, 1);
    assert_int_equal(view(b).epoch, 1);
    assert_int_equal(shadow(b, 0) == 1 || shadow(b, 1) == 1, 1);
    cluster_free(b->c);
}

// Two nodes that both are needed.
static struct bench *two_needed(uint32_t n_live) {
    struct bench *b = make(2, REDUNDANCY_SHADOW);
    join(b, 1, 700);
    join(b, 2, 700);
    pass(b, 1000 * MS);
    load_all(b);
    cluster_set_live(b->c, b->now, n_live);
    forget(b);
    return b;
}

static void test_nobody_needs_it(void **state) {
    (void)state;
    // Nobody can take it, and nobody asks for anything: it goes at once.
    struct bench *b = two_needed(0);
    leave(b, 1, true);
    assert_true(b->may_leave[1]);
    assert_false(b->may_leave[2]);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    assert_int_equal(b->n_down, 1);
    memset(b->hold[2], 0, sizeof b->hold[2]); // of an epoch that is over
    leave(b, 2, true);
    assert_true(b->may_leave[2]);
    cluster_set_live(b->c, b->now, 1); // too late
    pass(b, 200 * MS);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    assert_int_equal(view(b).n_nodes_lost, 0);
    leave(b, 1, false);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    leave(b, 2, false);
    load_all(b);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    cluster_free(b->c);

    // A request runs: until that ends.
    b = two_needed(1);
    leave(b, 1, true);
    steps(b, 20);
    assert_false(b->may_leave[1]);
    assert_int_equal(count(b, CLUSTER_UNLOAD), 0);
    cluster_set_live(b->c, b->now, 0);
    assert_true(cluster_deadline_us(b->c) <= b->now + 1); // nothing else may happen for long
    pass(b, 1);
    assert_true(b->may_leave[1]);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    cluster_free(b->c);

    // While it loads.
    b = make(2, REDUNDANCY_NONE);
    join(b, 1, 700);
    join(b, 2, 700);
    pass(b, 1000 * MS);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    leave(b, 2, true);
    assert_true(b->may_leave[2]);
    assert_int_equal(view(b).phase, CLUSTER_DOWN);
    cluster_free(b->c);
}

// Nobody has room for a whole stage of it, but cut otherwise the model fits.
static void test_others_can_in_a_new_epoch(void **state) {
    (void)state;
    struct bench *b = make(3, REDUNDANCY_NONE);
    for (uint64_t i = 1; i <= 3; i++) join(b, i, 700);
    pass(b, 1000 * MS);
    load_all(b);
    assert_int_equal(view(b).plan->n_stages, 3);
    cluster_set_live(b->c, b->now, 1);
    steps(b, 5);
    uint64_t node = server(b, 1);
    leave(b, node, true);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).plan->n_stages, 2);
    assert_true(b->may_leave[node]);
    load_all(b);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    steps(b, 5);
    assert_int_equal(view(b).epoch, 2);
    cluster_free(b->c);

    // One that could take it is silent for a moment: it is waited for.
    b = up_with_spare(REDUNDANCY_NONE);
    uint64_t spare = 0;
    for (uint64_t i = 1; i < NODES && !spare; i++) {
        bool serves = false;
        for (uint32_t s = 0; s < view(b).plan->n_stages; s++) serves |= server(b, s) == i;
        if (b->alive[i] && !serves) spare = i;
    }
    b->silent[spare] = true;
    pass(b, 200 * MS);
    uint32_t epoch = view(b).epoch;
    leave(b, server(b, 0), true);
    pass(b, 40 * MS);
    assert_int_equal(view(b).epoch, epoch);
    cluster_free(b->c);
}

static void test_a_change_of_mind(void **state) {
    (void)state;
    struct bench *b = up_with_spare(REDUNDANCY_NONE);
    leave(b, 2, true);
    pass(b, 20 * MS);
    load_all(b);
    assert_int_equal(view(b).stage[1].n, 2);
    leave(b, 2, false);
    pass(b, 20 * MS);
    assert_int_equal(view(b).stage[1].n, 1);
    assert_int_equal(server(b, 1), 2);
    assert_int_equal(view(b).n_drained, 0);
    check_whole(b, 1);
    cluster_free(b->c);
}

static void test_leaving_while_it_loads(void **state) {
    (void)state;
    struct bench *b = make(3, REDUNDANCY_NONE);
    for (uint64_t i = 1; i <= 3; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    leave(b, 2, true);
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).plan->n_stages, 2);
    assert_true(b->may_leave[2]);
    load_all(b);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    lose(b, 1);
    lose(b, 3);
    assert_int_equal(view(b).phase, CLUSTER_DOWN); // it was let go
    leave(b, 2, false);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    cluster_free(b->c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shadows_from_the_first_step),
        cmocka_unit_test(test_the_route_waits_for_no_shadow),
        cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_two_losses_at_once),
        cmocka_unit_test(test_redundancy_comes_back_while_requests_run),
        cmocka_unit_test(test_a_handover_never_thins_out),
        cmocka_unit_test(test_a_spare_takes_over_with_a_replay),
        cmocka_unit_test(test_spares_are_filled_one_after_the_other),
        cmocka_unit_test(test_loss_of_the_feeder),
        cmocka_unit_test(test_loss_while_it_is_fed),
        cmocka_unit_test(test_stable_is_the_least_of_all),
        cmocka_unit_test(test_who_starts_again_does_not_count),
        cmocka_unit_test(test_a_slow_shadow_goes),
        cmocka_unit_test(test_a_slow_server_becomes_the_shadow),
        cmocka_unit_test(test_no_replay),
        cmocka_unit_test(test_a_gap),
        cmocka_unit_test(test_gaps_without_end),
        cmocka_unit_test(test_a_failed_shadow_is_replaced),
        cmocka_unit_test(test_a_failure_that_a_neighbours_loss_explains),
        cmocka_unit_test(test_a_failure_that_silence_explains),
        cmocka_unit_test(test_leaving_without_a_gap),
        cmocka_unit_test(test_leaving_waits_for_the_heir),
        cmocka_unit_test(test_nobody_can_take_it),
        cmocka_unit_test(test_nobody_needs_it),
        cmocka_unit_test(test_others_can_in_a_new_epoch),
        cmocka_unit_test(test_a_change_of_mind),
        cmocka_unit_test(test_leaving_while_it_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
