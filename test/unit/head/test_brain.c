#include "head/brain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { MS = 1000, VOCAB = 100 };

struct bench {
    struct brain *b;
    uint64_t now;
    uint32_t n_loads, n_steps, n_events, n_drops, n_ups, n_downs;
    struct cluster_action load[8];
    uint64_t fed; // who holds stage 0
    struct gen_event event[64];
    char text[400];
    struct step_result result; // of the last step
};

static struct brain_config config_of(uint32_t n_layers) {
    struct brain_config c = {.n_vocab = VOCAB, .max_context = 256, .chunk_rows = 64, .max_seqs = 8, .min_nodes = 1};
    c.model.n_layers = n_layers;
    for (uint32_t i = 0; i < n_layers; i++) c.model.layer_bytes[i] = 100;
    c.model.kv_block_bytes = 1;
    c.wish = (struct plan_wish){.context = 256, .max_blocks = 20};
    c.wait_for_node_us = 3000 * MS;
    c.heartbeat_us = 100 * MS;
    c.node_timeout_us = 500 * MS;
    c.suspect_us = 250 * MS;
    c.step_deadline_us = 1000 * MS;
    c.load_deadline_us = 1000 * MS;
    return c;
}

static struct bench make(uint32_t n_layers) {
    struct brain_config c = config_of(n_layers);
    struct bench t = {.now = 1};
    struct err e;
    assert_int_equal(brain_new(&c, &t.b, &e), ERR_OK);
    return t;
}

static void take(struct bench *t, const struct cluster_action *a) {
    t->n_loads += a->type == CLUSTER_LOAD;
    t->n_drops += a->type == CLUSTER_DROP_NODE;
    t->n_ups += a->type == CLUSTER_ROUTE_UP;
    t->n_downs += a->type == CLUSTER_ROUTE_DOWN;
    if (a->type == CLUSTER_LOAD) t->load[t->n_loads - 1] = *a;
    if (a->type == CLUSTER_FEED) t->fed = a->next[0].node;
}

// Takes all actions; each step is answered in result with token 40 + its id.
static void drain(struct bench *t) {
    struct brain_action a;
    t->n_loads = t->n_steps = t->n_events = t->n_drops = t->n_ups = t->n_downs = 0;
    while (brain_next(t->b, &a)) {
        switch (a.type) {
        case ACT_CLUSTER:
            take(t, &a.cluster);
            break;
        case ACT_STEP:
            t->n_steps++;
            t->result = (struct step_result){.id = a.step->id, .epoch = a.step->epoch};
            for (uint32_t i = 0; i < a.step->n_seqs; i++) {
                if (!a.step->seqs[i].sample) continue;
                t->result.entry[t->result.n].slot = a.step->seqs[i].slot;
                t->result.entry[t->result.n++].token = 40 + (int32_t)a.step->id;
            }
            break;
        case ACT_EVENT:
            t->event[t->n_events++] = a.event;
            if (a.event.text) snprintf(t->text, sizeof t->text, "%s", a.event.text);
            break;
        }
    }
}

static int submit(struct bench *t, uint64_t id, uint32_t n_prompt, uint32_t max_tokens, struct err *e) {
    int32_t prompt[300];
    for (uint32_t i = 0; i < 300; i++) prompt[i] = (int32_t)i % VOCAB;
    struct gen_request r = {.prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    r.sampling.top_p = 1;
    return brain_submit(t->b, t->now, id, &r, e);
}

static void up(struct bench *t, uint64_t node) {
    brain_node_joined(t->b, t->now, node, 5000);
    brain_tick(t->b, t->now);
    drain(t);
    assert_int_equal(t->n_loads, 1);
    assert_int_equal(t->load[0].node, node);
    brain_node_ready(t->b, t->now, node, t->load[0].epoch, 0);
}

static void test_one_node_answers(void **state) {
    (void)state;
    struct bench t = make(4);
    struct err e;
    assert_int_equal(submit(&t, 1, 5, 2, &e), ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, "no node has joined yet"));
    up(&t, 77);
    drain(&t);
    assert_int_equal(t.n_ups, 1);
    assert_int_equal(submit(&t, 1, 255, 2, &e), ERR_LIMIT);
    assert_string_equal(e.text, "prompt of 255 tokens and max_tokens 2 exceed the context of 256 tokens");
    assert_int_equal(submit(&t, 2, 5, 2, &e), ERR_OK);
    drain(&t);
    assert_int_equal(t.n_steps, 1);
    brain_step_result(t.b, t.now, t.fed, &t.result);
    drain(&t);
    assert_int_equal(t.n_events, 1);
    assert_int_equal(t.event[0].token, 41);
    assert_int_equal(t.event[0].finish, GEN_GOING);
    struct step_result again = t.result;
    brain_step_result(t.b, t.now, t.fed, &again);
    brain_step_result(t.b, t.now, t.fed, &again);
    drain(&t);
    assert_int_equal(t.event[0].token, 42);
    assert_int_equal(t.event[0].finish, GEN_LENGTH);
    assert_int_equal(t.n_events, 1);
    struct brain_status s;
    brain_status(t.b, &s);
    assert_true(s.route_up);
    assert_int_equal(s.n_tokens, 2);
    assert_int_equal(s.n_running + s.n_waiting + s.blocks_used, 0);
    brain_free(t.b);
}

static void test_a_request_survives_its_node(void **state) {
    (void)state;
    struct bench t = make(4);
    struct err e;
    up(&t, 1);
    submit(&t, 9, 5, 3, &e);
    drain(&t);
    brain_step_result(t.b, t.now, t.fed, &t.result);
    drain(&t);
    struct step_result stale = t.result;
    brain_node_lost(t.b, t.now, 1, "reset");
    drain(&t);
    assert_int_equal(t.n_downs, 1);
    assert_int_equal(submit(&t, 10, 5, 3, &e), ERR_UNAVAILABLE);
    t.now += 2900 * MS;
    brain_tick(t.b, t.now);
    drain(&t);
    assert_int_equal(t.n_events, 0);
    up(&t, 2);
    brain_step_result(t.b, t.now, t.fed, &stale);
    drain(&t);
    assert_int_equal(t.n_events, 0);
    assert_int_equal(t.n_steps, 1);
    assert_int_equal(t.result.epoch, 2);
    brain_step_result(t.b, t.now, t.fed, &t.result);
    drain(&t);
    assert_int_equal(t.event[0].index, 1); // goes on where it was
    brain_cancel(t.b, t.now, 9);
    brain_cancel(t.b, t.now, 9);
    drain(&t);
    assert_int_equal(t.n_events, 1);
    assert_int_equal(t.event[0].finish, GEN_CANCELLED);
    brain_free(t.b);
}

static void test_nobody_comes(void **state) {
    (void)state;
    struct bench t = make(4);
    struct err e;
    up(&t, 1);
    submit(&t, 9, 5, 3, &e);
    drain(&t);
    brain_node_lost(t.b, t.now, 1, "reset");
    drain(&t);
    assert_true(brain_deadline_us(t.b) == t.now + 3000 * MS);
    t.now = brain_deadline_us(t.b);
    brain_tick(t.b, t.now);
    drain(&t);
    assert_int_equal(t.n_events, 1);
    assert_int_equal(t.event[0].finish, GEN_FAILED);
    assert_int_equal(t.event[0].code, ERR_UNAVAILABLE);
    assert_non_null(strstr(t.text, "no machine came for 3 s"));
    assert_true(brain_deadline_us(t.b) == UINT64_MAX);
    brain_free(t.b);
}

// A node that joins, fails to load and joins again does not keep those waiting who wait for a machine.
static void test_a_node_that_always_fails_to_load(void **state) {
    (void)state;
    struct bench t = make(2);
    struct err e;
    brain_node_joined(t.b, t.now, 1, 1000);
    drain(&t);
    brain_node_ready(t.b, t.now, 1, t.load[0].epoch, 0);
    drain(&t);
    assert_int_equal(submit(&t, 1, 10, 5, &e), ERR_OK);
    drain(&t);
    brain_node_lost(t.b, t.now, 1, "gone");
    drain(&t);
    assert_int_equal(t.n_events, 0);
    bool failed = false;
    for (uint64_t node = 2; node < 30 && !failed; node++) {
        brain_node_joined(t.b, t.now, node, 1000);
        drain(&t);
        assert_int_equal(t.n_loads, 1);
        t.now += 200 * MS;
        brain_node_lost(t.b, t.now, node, "its disk is full");
        drain(&t);
        failed = t.n_events == 1 && t.event[0].finish == GEN_FAILED && t.event[0].code == ERR_UNAVAILABLE;
        assert_true(failed == (t.now >= 3000 * MS));
    }
    assert_true(failed);
    brain_free(t.b);
}

static void test_nonsense_from_the_last_stage(void **state) {
    (void)state;
    struct bench t = make(4);
    struct err e;
    up(&t, 1);
    submit(&t, 9, 5, 3, &e);
    drain(&t);
    t.result.entry[0].token = VOCAB;
    brain_step_result(t.b, t.now, t.fed, &t.result);
    drain(&t);
    assert_int_equal(t.n_drops, 1);
    assert_int_equal(t.n_events, 0);
    brain_free(t.b);
}

// Two nodes hold the stage: when the first one dies, the request goes on in the same epoch with the same steps.
static void test_a_shadow_goes_on(void **state) {
    (void)state;
    struct brain_config c = config_of(4);
    struct bench t = {.now = 1};
    struct brain_status s;
    struct err e;
    c.redundancy = REDUNDANCY_SHADOW;
    c.wish.max_stages = 1;
    c.min_nodes = 2;
    c.first_epoch = 7;
    assert_int_equal(brain_new(&c, &t.b, &e), ERR_OK);
    brain_node_joined(t.b, t.now, 1, 5000);
    brain_node_joined(t.b, t.now, 2, 5000);
    drain(&t);
    assert_int_equal(t.n_loads, 2);
    assert_int_equal(t.load[0].epoch, 7);
    brain_node_ready(t.b, t.now, 2, 7, 0);
    brain_node_ready(t.b, t.now, 1, 7, 0);
    submit(&t, 9, 5, 3, &e);
    drain(&t);
    assert_int_equal(t.fed, 1);
    brain_step_result(t.b, t.now, 1, &t.result);
    drain(&t);
    assert_int_equal(t.n_events, 1);
    struct cluster_stage_state state1 = {.accepted = 2, .done = 1};
    brain_heartbeat(t.b, t.now, 1, 7, &state1, 1, 0);
    assert_int_equal(brain_stable(t.b), 0); // the shadow did not say that it has the first step
    brain_heartbeat(t.b, t.now, 2, 7, &state1, 1, 0);
    assert_int_equal(brain_stable(t.b), 1);
    brain_node_lost(t.b, t.now, 1, "reset");
    drain(&t);
    assert_int_equal(t.n_downs + t.n_steps, 0);
    assert_int_equal(t.fed, 2);
    brain_step_result(t.b, t.now, 2, &t.result);
    brain_step_result(t.b, t.now, 2, &t.result); // twice is once
    drain(&t);
    assert_int_equal(t.n_events, 1);
    assert_int_equal(t.event[0].index, 1);
    brain_status(t.b, &s);
    assert_int_equal(s.cluster.n_promotions, 1);
    assert_int_equal(s.n_route_changes, 1);
    brain_node_leave(t.b, t.now, 2, true, "pause");
    brain_node_failed(t.b, t.now, 2, 7, 0, true, "nobody asked");
    brain_node_fed(t.b, t.now, 2, 7, 0);
    drain(&t);
    assert_int_equal(t.n_drops + t.n_downs, 0);
    brain_free(t.b);
}

static void test_a_restored_request_waits(void **state) {
    (void)state;
    struct bench t = make(4);
    struct err e;
    int32_t prompt[3] = {1, 2, 3};
    struct gen_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 4, .restored = true};
    r.sampling.top_p = 1;
    assert_int_equal(brain_submit(t.b, t.now, 5, &r, &e), ERR_OK);
    drain(&t);
    assert_int_equal(t.n_steps + t.n_events, 0);
    up(&t, 1);
    drain(&t);
    assert_int_equal(t.n_steps, 1);
    brain_free(t.b);
}

static void test_bad_configuration(void **state) {
    (void)state;
    struct brain *b;
    struct err e;
    struct brain_config c = config_of(4);
    c.chunk_rows = LIMIT_STEP_ROWS + 1;
    assert_int_equal(brain_new(&c, &b, &e), ERR_USAGE);
    c = config_of(4);
    c.node_timeout_us = c.heartbeat_us;
    assert_int_equal(brain_new(&c, &b, &e), ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node_answers),
        cmocka_unit_test(test_a_request_survives_its_node),
        cmocka_unit_test(test_nobody_comes),
        cmocka_unit_test(test_a_node_that_always_fails_to_load),
        cmocka_unit_test(test_nonsense_from_the_last_stage),
        cmocka_unit_test(test_a_shadow_goes_on),
        cmocka_unit_test(test_a_restored_request_waits),
        cmocka_unit_test(test_bad_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
