#include "cluster/cluster_int.h"

#include <stdio.h>
#include <string.h>

bool cluster_next(struct cluster *c, struct cluster_action *a) {
    if (c->n_actions == 0) return false;
    *a = c->actions[c->action_at];
    c->action_at = (c->action_at + 1) % ACTIONS_MAX;
    c->n_actions--;
    return true;
}

struct cluster_action *tell_push(struct cluster *c, enum cluster_act type) {
    ASSERT(c->n_actions < ACTIONS_MAX, "actions are not taken");
    struct cluster_action *a = &c->actions[(c->action_at + c->n_actions++) % ACTIONS_MAX];
    memset(a, 0, sizeof *a);
    a->type = type;
    a->epoch = c->epoch;
    a->n_stages = c->plan.n_stages;
    a->n_blocks = c->plan.n_blocks;
    return a;
}

void tell_why(struct cluster *c, enum cluster_act type, uint64_t node, const char *why) {
    struct cluster_action *a = tell_push(c, type);
    a->node = node;
    snprintf(a->why, sizeof a->why, "%s", why);
}

// Those of stage who are to get what `from` sends. While the epoch loads: all that will be level when it begins.
static uint32_t wanted(const struct cluster *c, uint32_t stage, uint64_t from, struct told *out) {
    const struct post *p = &c->post[stage];
    bool loading = c->phase == CLUSTER_LOADING, shadows = c->config.redundancy == REDUNDANCY_SHADOW;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct hold *h = &p->hold[i];
        bool feeds = h->phase == HOLDING_FEEDING && h->feeder == from;
        if (i > 0 && !(loading ? shadows : h->phase == HOLDING_LEVEL || feeds)) continue;
        out[n++] = (struct told){h->node, feeds ? h->feed : 0};
    }
    return n;
}

static bool knows(const struct told *told, uint32_t n_told, const struct told *want) {
    for (uint32_t i = 0; i < n_told; i++)
        if (told[i].node == want->node) return want->feed == 0 || told[i].feed == want->feed;
    return false;
}

static bool same(const struct told *told, uint32_t n_told, const struct told *want, uint32_t n_want) {
    if (n_told != n_want) return false;
    for (uint32_t i = 0; i < n_want; i++)
        if (told[i].node != want[i].node || !knows(told, n_told, &want[i])) return false;
    return true;
}

// Writes want into the action, and into what is told now.
static void put_next(struct cluster_action *a, struct told *told, uint32_t *n_told, const struct told *want,
                     uint32_t n_want) {
    a->n_next = n_want;
    for (uint32_t i = 0; i < n_want; i++)
        a->next[i] = (struct cluster_holder){want[i].node, want[i].feed && !knows(told, *n_told, &want[i])};
    memcpy(told, want, n_want * sizeof *want);
    *n_told = n_want;
}

// What a node has to forget; NEVER: all of them.
static void tell_unloads(struct cluster *c, uint64_t node) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_unloads; i++) {
        struct unload u = c->unload[i];
        if (node != NEVER && u.node != node) {
            c->unload[n++] = u;
            continue;
        }
        if (!cluster_member(c, u.node)) continue;
        struct cluster_action *a = tell_push(c, CLUSTER_UNLOAD);
        a->node = u.node;
        a->epoch = u.epoch;
        a->stage = u.stage;
    }
    c->n_unloads = n;
}

void tell_load(struct cluster *c, uint32_t stage, uint32_t k) {
    struct hold *h = &c->post[stage].hold[k];
    tell_unloads(c, h->node); // so that there is room
    struct told want[LIMIT_HOLDERS] = {0};
    uint32_t n = stage + 1 < c->plan.n_stages ? wanted(c, stage + 1, h->node, want) : 0;
    struct cluster_action *a = tell_push(c, CLUSTER_LOAD);
    a->node = h->node;
    a->stage = stage;
    a->a = c->plan.stage[stage].a;
    a->b = c->plan.stage[stage].b;
    a->hot = h->hot = h->wants_hot;
    put_next(a, h->told, &h->n_told, want, n);
}

static void tell_hot(struct cluster *c, uint32_t stage, struct hold *h) {
    if (h->hot == h->wants_hot) return;
    h->hot = h->wants_hot;
    struct cluster_action *a = tell_push(c, CLUSTER_HOT);
    a->node = h->node;
    a->stage = stage;
    a->hot = h->hot;
}

// While the one that serves the next stage has to be fed, only the one who feeds it is told of it.
static void tell_next(struct cluster *c, uint32_t stage, struct hold *h) {
    const struct hold *serves = &c->post[stage + 1].hold[0];
    struct told want[LIMIT_HOLDERS] = {0};
    uint32_t n = wanted(c, stage + 1, h->node, want);
    if (serves->phase != HOLDING_LEVEL && want[0].feed == 0 && !knows(h->told, h->n_told, &want[0])) return;
    if (same(h->told, h->n_told, want, n)) return;
    struct cluster_action *a = tell_push(c, CLUSTER_NEXT);
    a->node = h->node;
    a->stage = stage;
    put_next(a, h->told, &h->n_told, want, n);
}

static void tell_feed(struct cluster *c) {
    struct told want[LIMIT_HOLDERS] = {0};
    uint32_t n = wanted(c, 0, CLUSTER_HEAD, want);
    if (!same(c->fed_told, c->n_fed_told, want, n))
        put_next(tell_push(c, CLUSTER_FEED), c->fed_told, &c->n_fed_told, want, n);
}

// First those who are to compute, since that is what everybody waits for.
void tell_changes(struct cluster *c) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        for (uint32_t k = 0; k < c->post[s].n; k++) tell_hot(c, s, &c->post[s].hold[k]);
    tell_feed(c);
    for (uint32_t s = 0; s + 1 < c->plan.n_stages; s++)
        for (uint32_t k = 0; k < c->post[s].n; k++) tell_next(c, s, &c->post[s].hold[k]);
}

static bool holds_something(struct cluster *c, uint64_t node) {
    for (uint32_t s = 0; cluster_has_route(c) && s < c->plan.n_stages; s++)
        if (holders_find(c, s, node)) return true;
    return false;
}

void tell_endings(struct cluster *c) {
    tell_unloads(c, NEVER);
    for (uint32_t i = 0; i < c->n_members; i++) {
        struct member *m = &c->member[i];
        if (!m->present || !m->leaving || m->may_leave || holds_something(c, m->id)) continue;
        m->may_leave = true;
        c->n_drained++;
        tell_push(c, CLUSTER_MAY_LEAVE)->node = m->id;
    }
}
