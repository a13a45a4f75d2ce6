// A cluster with nodes that do what they are told, as far as the cluster can see it: they load, are fed, take steps and
// beat. What is told is checked as it comes.
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "cluster/cluster.h"

enum {
    MS = 1000,
    HEARTBEAT = 20 * MS,
    TIMEOUT = 500 * MS,
    SUSPECT = 60 * MS,
    STEP = 1000 * MS,
    LOAD = 2000 * MS,
    NODES = 16,
    ACTIONS = 600
};

struct fake_hold {
    bool loaded, ready, hot, replays, frozen; // frozen: takes no more steps
    uint32_t n_loads, n_replays, n_next;
    uint64_t next[LIMIT_HOLDERS];
    uint64_t accepted, done;
};

struct bench {
    struct cluster_config config;
    struct cluster *c;
    uint64_t now;
    bool alive[NODES], silent[NODES];
    uint64_t memory[NODES];
    struct fake_hold hold[NODES][LIMIT_STAGES]; // of the epoch
    uint32_t epoch;
    uint64_t sent, done; // steps
    bool may_leave[NODES];
    uint64_t feed[LIMIT_HOLDERS];
    uint32_t n_feed, n_up, n_down;
    struct cluster_action a[ACTIONS]; // since `forget`
    uint32_t n;
};

// Twelve layers of 100 bytes; a node of 700 holds six with a little KV, one of 1300 all.
static struct plan_model model;
static struct bench bench;

static inline struct cluster_view view(const struct bench *b) {
    struct cluster_view v;
    cluster_view(b->c, &v);
    for (uint32_t s = 0; s < LIMIT_STAGES; s++) // only who serves can be under suspicion
        for (uint32_t k = 1; k < v.stage[s].n; k++) assert_false(v.stage[s].holder[k].suspect);
    return v;
}

static inline void check_next(struct bench *b, const struct cluster_action *a, uint32_t stage) {
    struct cluster_view v = view(b);
    assert_true(a->n_next >= 1 && a->n_next <= LIMIT_HOLDERS);
    assert_int_equal(a->next[0].node, v.plan->stage[stage].node);
    for (uint32_t i = 0; i < a->n_next; i++) {
        struct fake_hold *h = &b->hold[a->next[i].node][stage];
        assert_true(b->alive[a->next[i].node]);
        if (a->next[i].replay) {
            assert_int_equal(v.phase, CLUSTER_UP);
            if (a->type == CLUSTER_NEXT && stage > 0) {
                assert_int_equal(v.plan->stage[stage - 1].node, a->node); // only who serves is asked
                assert_int_equal(v.stage[stage - 1].holder[0].phase, HOLDING_LEVEL);
            }
            h->replays = true;
            h->n_replays++;
            h->accepted = h->done = 0;
        }
    }
}

static inline void check_memory(struct bench *b, const struct cluster_action *a) {
    const struct plan *p = view(b).plan;
    uint64_t used = 0;
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (b->hold[a->node][s].loaded) used += plan_stage_bytes(&model, p->stage[s].a, p->stage[s].b, p->n_blocks);
    assert_true(used <= b->memory[a->node]);
}

static inline void obey(struct bench *b, const struct cluster_action *a) {
    struct fake_hold *h = &b->hold[a->node % NODES][a->stage];
    switch (a->type) {
    case CLUSTER_LOAD:
        if (a->epoch != b->epoch) memset(b->hold, 0, sizeof b->hold);
        if (a->epoch != b->epoch) b->sent = b->done = b->n_feed = 0;
        b->epoch = a->epoch;
        assert_true(b->alive[a->node] && !b->may_leave[a->node] && !h->loaded);
        *h = (struct fake_hold){.loaded = true, .hot = a->hot, .n_loads = h->n_loads + 1};
        check_memory(b, a);
        break;
    case CLUSTER_UNLOAD:
        if (a->epoch == b->epoch) h->loaded = false;
        return;
    case CLUSTER_HOT:
        assert_true(h->loaded && h->hot != a->hot);
        h->hot = a->hot;
        return;
    case CLUSTER_DROP_NODE:
        b->alive[a->node] = false;
        return;
    case CLUSTER_MAY_LEAVE:
        for (uint32_t s = 0; s < LIMIT_STAGES; s++) assert_false(b->hold[a->node][s].loaded);
        b->may_leave[a->node] = true;
        return;
    case CLUSTER_ROUTE_UP:
        b->n_up++;
        assert_true(b->n_feed > 0);
        return;
    case CLUSTER_ROUTE_DOWN:
        b->n_down++;
        return;
    case CLUSTER_FEED:
        check_next(b, a, 0);
        b->n_feed = a->n_next;
        for (uint32_t i = 0; i < a->n_next; i++) b->feed[i] = a->next[i].node;
        return;
    case CLUSTER_NEXT:
        assert_true(h->loaded);
        break;
    }
    assert_int_equal(a->n_next == 0, a->stage + 1 == a->n_stages);
    h->n_next = a->n_next;
    for (uint32_t i = 0; i < a->n_next; i++) h->next[i] = a->next[i].node;
    if (a->n_next && a->type == CLUSTER_NEXT) check_next(b, a, a->stage + 1);
}

static inline void drain(struct bench *b) {
    struct cluster_action a;
    while (cluster_next(b->c, &a)) {
        obey(b, &a);
        if (b->n == ACTIONS) b->n = 0;
        b->a[b->n++] = a;
    }
}

static inline void forget(struct bench *b) { b->n = 0; }

static inline uint32_t count(const struct bench *b, enum cluster_act type) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n; i++) n += b->a[i].type == type;
    return n;
}

static inline const struct cluster_action *find(const struct bench *b, enum cluster_act type, uint32_t nth) {
    for (uint32_t i = 0; i < b->n; i++)
        if (b->a[i].type == type && nth-- == 0) return &b->a[i];
    fail_msg("no such action");
    return NULL;
}

static inline void beat(struct bench *b, uint64_t node) {
    struct cluster_stage_state s[LIMIT_STAGES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < LIMIT_STAGES; i++)
        if (b->hold[node][i].loaded)
            s[n++] = (struct cluster_stage_state){i, b->hold[node][i].accepted, b->hold[node][i].done, 0};
    cluster_heartbeat(b->c, b->now, node, b->epoch, s, n, 0);
    drain(b);
}

static inline void pass(struct bench *b, uint64_t us) {
    uint64_t until = b->now + us;
    while (b->now < until) {
        uint64_t next = b->now - b->now % HEARTBEAT + HEARTBEAT, due = cluster_deadline_us(b->c);
        if (due < next && due > b->now) next = due;
        b->now = next < until ? next : until;
        for (uint64_t i = 1; i < NODES && b->now % HEARTBEAT == 0; i++)
            if (b->alive[i] && !b->silent[i]) beat(b, i);
        cluster_tick(b->c, b->now);
        drain(b);
    }
}

static inline void join(struct bench *b, uint64_t node, uint64_t memory) {
    b->alive[node] = true;
    b->silent[node] = b->may_leave[node] = false;
    b->memory[node] = memory;
    for (uint32_t s = 0; s < LIMIT_STAGES; s++) b->hold[node][s] = (struct fake_hold){0};
    cluster_joined(b->c, b->now, node, memory);
    drain(b);
}

static inline void lose(struct bench *b, uint64_t node) {
    b->alive[node] = false;
    cluster_lost(b->c, b->now, node, "reset");
    drain(b);
}

static inline void leave(struct bench *b, uint64_t node, bool leaves) {
    if (!leaves) b->may_leave[node] = false;
    cluster_leave(b->c, b->now, node, leaves, "its owner came back");
    drain(b);
}

// All that is loaded becomes ready; all that is replayed to, fed.
static inline void load_all(struct bench *b) {
    for (uint64_t i = 1; i < NODES; i++) {
        for (uint32_t s = 0; s < LIMIT_STAGES && b->alive[i]; s++) {
            struct fake_hold *h = &b->hold[i][s];
            if (!h->loaded || h->ready) continue;
            h->ready = true;
            cluster_ready(b->c, b->now, i, b->epoch, s);
            cluster_ready(b->c, b->now, i, b->epoch, s);
            drain(b);
        }
    }
}

static inline void feed_all(struct bench *b) {
    for (uint64_t i = 1; i < NODES; i++) {
        for (uint32_t s = 0; s < LIMIT_STAGES && b->alive[i]; s++) {
            struct fake_hold *h = &b->hold[i][s];
            if (!h->loaded || !h->ready || !h->replays || b->silent[i]) continue;
            h->replays = false;
            h->accepted = h->done = view(b).stable;
            cluster_fed(b->c, b->now, i, b->epoch, s);
            drain(b);
            if (!h->frozen) h->accepted = h->done = b->sent;
        }
    }
}

// Steps go on as far as those who serve let them.
static inline void flow(struct bench *b) {
    struct cluster_view v = view(b);
    uint64_t out = b->sent;
    for (uint32_t s = 0; v.phase == CLUSTER_UP && s < v.plan->n_stages; s++) {
        uint64_t came = 0;
        for (uint64_t i = 1; i < NODES; i++) {
            struct fake_hold *h = &b->hold[i][s];
            if (!b->alive[i] || b->silent[i] || !h->loaded || !h->ready || h->frozen || h->replays) continue;
            if (h->accepted < out) h->accepted = h->done = out;
            if (h->hot && h->done > came) came = h->done;
        }
        if (came < out) out = came;
    }
    while (v.phase == CLUSTER_UP && b->done < out) cluster_step_done(b->c, b->now, ++b->done);
    drain(b);
}

// One more step; whether all came out.
static inline bool step(struct bench *b) {
    cluster_step_sent(b->c, b->now, ++b->sent, 1);
    flow(b);
    return b->done == b->sent;
}

static inline void steps(struct bench *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        assert_true(step(b));
        pass(b, 10 * MS);
    }
}

static inline struct bench *make(uint32_t min_nodes, enum cluster_redundancy redundancy) {
    struct err e;
    model = (struct plan_model){.n_layers = 12, .kv_block_bytes = 1};
    for (int i = 0; i < 12; i++) model.layer_bytes[i] = 100;
    memset(&bench, 0, sizeof bench);
    struct cluster_config *c = &bench.config;
    *c = (struct cluster_config){.model = &model, .wish = {.context = 64, .max_blocks = 4}, .min_nodes = min_nodes};
    c->redundancy = redundancy;
    c->settle_us = 1000 * MS;
    c->heartbeat_us = HEARTBEAT;
    c->node_timeout_us = TIMEOUT;
    c->suspect_us = SUSPECT;
    c->step_deadline_us = STEP;
    c->load_deadline_us = LOAD;
    bench.now = 1;
    assert_int_equal(cluster_new(c, &bench.c, &e), ERR_OK);
    return &bench;
}

// n nodes of 1300, numbered from 1, each serves a stage; with redundancy each has also room for a second one.
static inline struct bench *up(uint32_t n, enum cluster_redundancy redundancy) {
    struct bench *b = make(n, redundancy);
    for (uint64_t i = 1; i <= n; i++) join(b, i, 1300);
    pass(b, 1000 * MS);
    assert_int_equal(view(b).phase, CLUSTER_LOADING);
    load_all(b);
    assert_int_equal(view(b).phase, CLUSTER_UP);
    cluster_set_live(b->c, b->now, 1);
    forget(b);
    return b;
}

static inline uint64_t server(const struct bench *b, uint32_t stage) { return view(b).plan->stage[stage].node; }

static inline uint64_t shadow(const struct bench *b, uint32_t stage) {
    struct cluster_view v = view(b);
    assert_int_equal(v.stage[stage].n, 2);
    return v.stage[stage].holder[1].node;
}
