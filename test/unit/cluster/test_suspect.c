// Silence, late steps, false alarms.
#include "fixture.h"

#include "base/rng.h"
#include "cluster/phi.h"
#include "cluster/steps.h"

#include <math.h>

static void test_phi_is_eight_when_it_is_due(void **state) {
    (void)state;
    struct rng r;
    struct phi p;
    rng_init(&r, 3);
    double interval[PHI_WINDOW], sum = 0, square = 0;
    uint64_t now = 1000;
    phi_init(&p, now, 20000);
    for (int i = 0; i < 1000; i++) { // what is older than the window is forgotten
        uint64_t us = 15000 + rng_below(&r, 10000) + (i < 500 ? 100000 : 0);
        interval[i % PHI_WINDOW] = (double)us;
        phi_beat(&p, now += us);
    }
    for (int i = 0; i < PHI_WINDOW; i++) sum += interval[i];
    for (int i = 0; i < PHI_WINDOW; i++) square += (interval[i] - sum / PHI_WINDOW) * (interval[i] - sum / PHI_WINDOW);
    double mean = sum / PHI_WINDOW, deviation = sqrt(square / PHI_WINDOW);
    double silence = (double)(phi_due_us(&p, 0, 1000000) - now);
    double phi = -log10(0.5 * erfc((silence - mean) / (deviation * sqrt(2))));
    assert_true(fabs(phi - 8) < 0.01);
    assert_int_equal(phi_due_us(&p, 90000, 1000000), now + 90000);
    assert_int_equal(phi_due_us(&p, 10, 1000), now + 1000);
    assert_int_equal(phi_due_us(&p, 90000, 1000), now + 90000);
    phi_shift(&p, 500);
    assert_int_equal(phi_due_us(&p, 90000, 1000000), now + 90500);
}

static void test_phi_follows_jitter(void **state) {
    (void)state;
    struct phi even, odd;
    uint64_t now = 0;
    phi_init(&even, 0, 20000);
    phi_init(&odd, 0, 20000);
    for (int i = 0; i < 200; i++) {
        now += 20000;
        phi_beat(&even, now);
        phi_beat(&odd, now + (i % 4 ? 0 : 30000));
    }
    assert_true(phi_due_us(&even, 0, 1000000) - now < 21000);
    assert_true(phi_due_us(&odd, 0, 1000000) - now > 60000);
    phi_init(&even, 0, 20000); // with little known it is patient
    assert_in_range(phi_due_us(&even, 0, 1000000), 30000, 60000);
}

// An outage is over when it is over: the next one is seen as soon as the first.
static void test_outages_do_not_blunt_it(void **state) {
    (void)state;
    struct phi p;
    struct steps s;
    uint64_t id, now = 0;
    phi_init(&p, 0, 20000);
    steps_reset(&s, 1000);
    for (int i = 1; i < 400; i++) {
        uint64_t us = i % 50 ? 20000 : 1000000;
        phi_beat(&p, now + us);
        steps_sent(&s, now, (uint64_t)i, 4);
        steps_done(&s, now += us, (uint64_t)i);
    }
    assert_in_range(phi_due_us(&p, 0, 1000000) - now, 20000, 200000);
    steps_sent(&s, now, 400, 4);
    assert_in_range(steps_late_us(&s, &id) - now, 40000, 200000);
    for (int i = 0; i < 400; i++) { // but what is slow all the time is not late
        phi_beat(&p, now + 60000);
        steps_done(&s, now += 60000, 400 + (uint64_t)i);
        steps_sent(&s, now, 401 + (uint64_t)i, 4);
    }
    assert_true(phi_due_us(&p, 0, 10000000) - now >= 60000);
    assert_true(steps_late_us(&s, &id) - now > 60000);
}

static void test_step_bound_follows_history(void **state) {
    (void)state;
    struct steps s;
    uint64_t id = 0, now = 0;
    steps_reset(&s, 1000);
    assert_true(steps_due_us(&s, &id) == UINT64_MAX);
    steps_sent(&s, now, 0, 4);
    assert_true(steps_late_us(&s, &id) == UINT64_MAX); // nothing is known yet
    steps_done(&s, now += 500, 0);
    for (uint64_t i = 1; i <= 50; i++) {
        steps_sent(&s, now, i, 4);
        steps_done(&s, now += 500, i);
    }
    steps_sent(&s, now, 51, 4);
    uint64_t due = steps_due_us(&s, &id) - now;
    assert_int_equal(id, 51);
    assert_true(due >= 8 * 500 && due < 12 * 500);
    assert_in_range(steps_late_us(&s, &id) - now, 20000 + 2 * 500, 20000 + 3 * 500);
    steps_done(&s, now += 500, 51);
    steps_sent(&s, now, 52, 64); // sixteen times the rows, never seen yet
    assert_true(steps_due_us(&s, &id) - now >= 16 * 8 * 500);
    steps_sent(&s, now, 53, 4);
    steps_done(&s, now += 8000, 52);
    assert_true(steps_due_us(&s, &id) - now < 12 * 500); // it waited behind the large one: counted from there
    steps_done(&s, now, 99);
    assert_int_equal(s.n, 1);
    uint64_t was = steps_due_us(&s, &id);
    steps_restart(&s, now + 700);
    assert_int_equal(steps_due_us(&s, &id), was + 700);
}

static struct bench *up_level(uint32_t n) {
    struct bench *b = up(n, REDUNDANCY_SHADOW);
    load_all(b);
    feed_all(b);
    pass(b, 3000 * MS);
    assert_int_equal(view(b).stage[n - 1].holder[1].phase, HOLDING_LEVEL);
    return b;
}

static void test_silence_makes_the_shadow_hot(void **state) {
    (void)state;
    struct bench *b = up_level(3);
    uint64_t node = server(b, 1), heir = shadow(b, 1), began = b->now;
    b->silent[node] = true;
    forget(b);
    while (view(b).n_suspicions == 0) pass(b, 1 * MS);
    assert_in_range(b->now - began, SUSPECT - HEARTBEAT, SUSPECT + 2 * MS);
    assert_true(view(b).stage[1].holder[0].suspect);
    assert_true(view(b).stage[1].holder[1].hot);
    assert_int_equal(count(b, CLUSTER_HOT), 1);
    assert_int_equal(find(b, CLUSTER_HOT, 0)->node, heir);
    assert_int_equal(server(b, 1), node); // it is not lost yet
    steps(b, 5);                          // and nobody misses it
    pass(b, TIMEOUT);
    assert_int_equal(server(b, 1), heir);
    assert_int_equal(view(b).n_promotions, 1);
    assert_int_equal(view(b).n_false_alarms, 0);
    assert_int_equal(view(b).epoch, 1);
    assert_int_equal(count(b, CLUSTER_DROP_NODE), 1);
    cluster_free(b->c);
}

static void false_alarm(struct bench *b, uint64_t node, uint64_t silence, uint64_t *calm_us) {
    uint64_t alarms = view(b).n_false_alarms;
    b->silent[node] = true;
    pass(b, silence);
    b->silent[node] = false;
    assert_true(view(b).stage[0].holder[0].suspect);
    uint64_t began = b->now;
    while (view(b).n_false_alarms == alarms) {
        assert_true(view(b).stage[0].holder[1].hot);
        steps(b, 1);
        assert_true(b->now - began < 10000 * MS);
    }
    *calm_us = b->now - began;
    assert_false(view(b).stage[0].holder[0].suspect);
    assert_false(view(b).stage[0].holder[1].hot);
}

static void test_false_alarms(void **state) {
    (void)state;
    struct bench *b = up_level(3);
    uint64_t node = server(b, 0), first, second, third;
    steps(b, 10);
    false_alarm(b, node, 200 * MS, &first);
    assert_in_range(first, 500 * MS, 560 * MS);
    pass(b, 4000 * MS); // the silence leaves the window
    false_alarm(b, node, 200 * MS, &second);
    pass(b, 4000 * MS);
    false_alarm(b, node, 200 * MS, &third);
    assert_true(second > first * 3 / 2 && third > second * 3 / 2); // it does not flap
    assert_int_equal(view(b).n_nodes_lost, 0);
    assert_int_equal(view(b).n_promotions, 0);
    assert_int_equal(server(b, 0), node);
    cluster_free(b->c);
}

// Heard again, but it does not get on: the alarm goes on.
static void test_a_suspect_must_get_on(void **state) {
    (void)state;
    struct bench *b = up_level(2);
    uint64_t node = server(b, 0);
    steps(b, 10);
    b->silent[node] = b->hold[node][0].frozen = true;
    pass(b, 100 * MS);
    b->silent[node] = false;
    steps(b, 100);
    assert_int_equal(view(b).n_false_alarms, 0);
    assert_true(view(b).stage[0].holder[0].suspect);
    b->hold[node][0].frozen = false;
    steps(b, 60);
    assert_int_equal(view(b).n_false_alarms, 1);
    cluster_free(b->c);
}

static void test_both_neighbours_silent(void **state) {
    (void)state;
    struct bench *b = up(5, REDUNDANCY_SHADOW);
    for (int i = 0; i < 5; i++) {
        load_all(b);
        feed_all(b);
        pass(b, 40 * MS);
    }
    uint64_t one = 0, two = 0;
    uint32_t stage = 0;
    for (uint32_t s = 0; s + 1 < 5; s++) {
        one = server(b, s);
        two = server(b, s + 1);
        stage = s;
        if (shadow(b, s) != two && shadow(b, s + 1) != one) break;
    }
    assert_true(shadow(b, stage) != two && shadow(b, stage + 1) != one);
    b->silent[one] = b->silent[two] = true;
    pass(b, 100 * MS);
    assert_true(view(b).stage[stage].holder[1].hot && view(b).stage[stage + 1].holder[1].hot);
    steps(b, 5);
    pass(b, TIMEOUT);
    assert_int_equal(view(b).n_nodes_lost, 2);
    assert_int_equal(view(b).n_promotions, 2);
    assert_int_equal(view(b).epoch, 1);
    steps(b, 5);
    cluster_free(b->c);
}

static void test_no_alarm_for_our_own_sleep(void **state) {
    (void)state;
    struct bench *b = up_level(3);
    for (int i = 0; i < 50; i++) {
        b->now += 30 * MS + (uint64_t)i * MS; // busy elsewhere; what was due meanwhile comes first
        cluster_tick(b->c, b->now);
        for (uint64_t k = 1; k <= 3; k++) beat(b, k);
        pass(b, 20 * MS);
    }
    assert_int_equal(view(b).n_suspicions, 0);
    cluster_free(b->c);
}

// done: how far each of three stages came with step 11, which is late. Returns the suspects as bits.
static uint32_t suspects(const uint64_t *done, const uint64_t *accepted) {
    struct bench *b = up_level(3);
    uint32_t bits = 0;
    for (int i = 0; i < 10; i++) {
        cluster_step_sent(b->c, b->now, ++b->sent, 1);
        pass(b, 10 * MS);
        flow(b);
    }
    pass(b, 20 * MS);
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    for (uint32_t s = 0; s < 3; s++) {
        b->hold[server(b, s)][s].done = done[s];
        b->hold[server(b, s)][s].accepted = accepted[s];
    }
    pass(b, 80 * MS);
    struct cluster_view v = view(b);
    for (uint32_t s = 0; s < 3; s++) bits |= v.stage[s].holder[0].suspect ? 1u << s : 0;
    assert_int_equal(v.n_nodes_lost, 0);
    cluster_free(b->c);
    return bits;
}

static void test_suspects_of_a_late_step(void **state) {
    (void)state;
    assert_int_equal(suspects((uint64_t[]){10, 10, 10}, (uint64_t[]){11, 10, 10}), 1);
    assert_int_equal(suspects((uint64_t[]){11, 10, 10}, (uint64_t[]){11, 11, 10}), 2);
    assert_int_equal(suspects((uint64_t[]){11, 10, 10}, (uint64_t[]){11, 10, 10}), 3); // the way between them
    assert_int_equal(suspects((uint64_t[]){11, 11, 10}, (uint64_t[]){11, 11, 11}), 4);
    assert_int_equal(suspects((uint64_t[]){11, 11, 11}, (uint64_t[]){11, 11, 11}), 4); // its word did not come
}

// A step is overdue, nobody can take over; done says how far each of three stages came.
static uint64_t guilty(const uint64_t *done) {
    struct bench *b = up(3, REDUNDANCY_NONE);
    assert_true(step(b));
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    for (uint32_t s = 0; s < 3; s++) b->hold[server(b, s)][s].done = done[s];
    pass(b, 990 * MS);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    pass(b, 100 * MS);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    assert_int_equal(b->a[0].type, CLUSTER_DROP_NODE);
    uint64_t node = b->a[0].node;
    cluster_free(b->c);
    return node;
}

static void test_the_guilty_stage(void **state) {
    (void)state;
    assert_int_equal(guilty((uint64_t[]){1, 1, 1}), 1);
    assert_int_equal(guilty((uint64_t[]){2, 1, 1}), 2);
    assert_int_equal(guilty((uint64_t[]){2, 2, 1}), 3);
    assert_int_equal(guilty((uint64_t[]){2, 2, 2}), 3); // it was sent on and did not come
}

// Everybody computed it and no result came: the one who takes over is as innocent as the one who was dropped.
static void test_a_step_that_nobody_brings(void **state) {
    (void)state;
    struct bench *b = up_level(5);
    assert_true(step(b));
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    for (uint32_t s = 0; s < 5; s++)
        for (uint64_t i = 1; i < NODES; i++)
            if (b->hold[i][s].loaded) b->hold[i][s].accepted = b->hold[i][s].done = b->sent;
    for (int i = 0; i < 100 && view(b).epoch == 1; i++) {
        pass(b, 100 * MS);
        load_all(b);
        feed_all(b);
    }
    assert_int_equal(view(b).epoch, 2);
    assert_int_equal(view(b).n_nodes_lost, 2);
    cluster_free(b->c);
}

static void test_who_says_that_it_fails_is_suspect_at_once(void **state) {
    (void)state;
    struct bench *b = up_level(3);
    uint64_t node = server(b, 2), heir = shadow(b, 2);
    steps(b, 5);
    cluster_failed(b->c, b->now, node, 1, 2, STAGE_BROKEN, "out of memory");
    drain(b);
    assert_true(b->hold[heir][2].hot);
    pass(b, 100 * MS);
    assert_int_equal(server(b, 2), heir);
    assert_false(b->alive[node]);
    steps(b, 5);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

// A spare begins to be filled on a suspicion, and stops when it was none.
static void test_suspicion_with_a_spare(void **state) {
    (void)state;
    struct bench *b = up(2, REDUNDANCY_SPARE);
    load_all(b);
    steps(b, 10);
    uint64_t node = server(b, 0), heir = shadow(b, 0);
    assert_int_equal(b->n_feed, 1);
    b->silent[node] = true;
    pass(b, 100 * MS);
    assert_int_equal(b->n_feed, 2);
    assert_true(b->hold[heir][0].hot);
    assert_int_equal(b->hold[heir][0].n_replays, 1);
    b->silent[node] = false;
    feed_all(b);
    steps(b, 100);
    assert_int_equal(view(b).n_false_alarms, 1);
    assert_int_equal(view(b).stage[0].holder[1].phase, HOLDING_RESIDENT);
    assert_false(b->hold[heir][0].hot);
    assert_int_equal(b->n_feed, 1);
    b->silent[node] = true; // this time it is true
    pass(b, 1000 * MS);
    assert_int_equal(server(b, 0), heir);
    assert_int_equal(b->hold[heir][0].n_replays, 2);
    feed_all(b);
    flow(b);
    steps(b, 5);
    assert_int_equal(view(b).epoch, 1);
    cluster_free(b->c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phi_is_eight_when_it_is_due),
        cmocka_unit_test(test_phi_follows_jitter),
        cmocka_unit_test(test_outages_do_not_blunt_it),
        cmocka_unit_test(test_step_bound_follows_history),
        cmocka_unit_test(test_silence_makes_the_shadow_hot),
        cmocka_unit_test(test_false_alarms),
        cmocka_unit_test(test_a_suspect_must_get_on),
        cmocka_unit_test(test_both_neighbours_silent),
        cmocka_unit_test(test_no_alarm_for_our_own_sleep),
        cmocka_unit_test(test_suspects_of_a_late_step),
        cmocka_unit_test(test_the_guilty_stage),
        cmocka_unit_test(test_a_step_that_nobody_brings),
        cmocka_unit_test(test_who_says_that_it_fails_is_suspect_at_once),
        cmocka_unit_test(test_suspicion_with_a_spare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
