#include "cluster/cluster_int.h"

#include <stdio.h>
#include <string.h>

// Phases. Each way into LOADING is a new epoch with a new plan.
//
//              min_nodes, settled              all that serve are ready
//   WAITING ------------------------> LOADING --------------------> UP <--+ a holder is lost or comes,
//      |                               ^ | ^ |                      | | --+ another one serves
//      | the plan                      | | | |  a stage has nobody, | |
//      | does not fit                  +-+ | +--- idle with a spare + |
//      |                          stage    |                          |
//      v                          lost     | a node joined, it fits   |
//    DOWN <--------------------------------+--------------------------+
//                            the nodes left do not fit
static const bool allowed[4][4] = {
    [CLUSTER_WAITING] = {[CLUSTER_LOADING] = true, [CLUSTER_DOWN] = true},
    [CLUSTER_LOADING] = {[CLUSTER_LOADING] = true, [CLUSTER_UP] = true, [CLUSTER_DOWN] = true},
    [CLUSTER_UP] = {[CLUSTER_LOADING] = true, [CLUSTER_DOWN] = true},
    [CLUSTER_DOWN] = {[CLUSTER_LOADING] = true},
};

static void enter(struct cluster *c, enum cluster_phase phase) {
    ASSERT(allowed[c->phase][phase], "from phase %d to %d", c->phase, phase);
    c->phase = phase;
}

// Where in the list there is a node for what stage s did: the one that serves it now, else one that serves nothing,
// best one that holds the stage already. from: those before are placed. UINT32_MAX: nobody.
static uint32_t successor(struct cluster *c, uint32_t s, const struct member *m, uint32_t from, uint32_t n) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = from; i < n; i++) {
        if (c->plan.stage[s].node == m[i].id && !c->post[s].vacant) return i;
        if (holders_serve(c, m[i].id)) continue;
        if (best == UINT32_MAX || (holders_find(c, s, m[i].id) && !holders_find(c, s, m[best].id))) best = i;
    }
    return best;
}

// Brings the nodes into the order of the route, with spares in the places of those that were lost, so that the others
// keep their layers when a plan is made.
static void order_members(struct cluster *c) {
    uint32_t n = 0, at = 0;
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->member[i].present) c->member[n++] = c->member[i];
    for (uint32_t i = n; i < c->n_members; i++) c->member[i].present = false;
    c->n_members = n;
    for (uint32_t s = 0; cluster_has_route(c) && s < c->plan.n_stages; s++) {
        bool placed = false;
        for (uint32_t i = 0; i < at; i++) placed |= !c->post[s].vacant && c->plan.stage[s].node == c->member[i].id;
        uint32_t i = placed ? UINT32_MAX : successor(c, s, c->member, at, n);
        if (i == UINT32_MAX) continue;
        if (!c->post[s].vacant && c->plan.stage[s].node != c->member[i].id) continue;
        struct member m = c->member[i];
        memmove(&c->member[at + 1], &c->member[at], (i - at) * sizeof m);
        c->member[at++] = m;
    }
}

// Plans in the order of the members. Whole layers do not always pack in that order though they would in another: before
// giving up, the largest nodes are tried first.
static int plan_with(const struct cluster *c, bool leaving, struct plan *p, struct err *e) {
    struct plan_node nodes[LIMIT_NODES] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (m->present && !m->may_leave && (leaving || !m->leaving))
            nodes[n++] = (struct plan_node){m->id, m->memory_bytes};
    }
    int rc = plan_make(nodes, n, c->config.model, &c->config.wish, p, e);
    if (rc == ERR_OK) return ERR_OK;
    for (uint32_t i = 1; i < n; i++) {
        struct plan_node node = nodes[i];
        uint32_t at = i;
        for (; at > 0 && nodes[at - 1].memory_bytes < node.memory_bytes; at--) nodes[at] = nodes[at - 1];
        nodes[at] = node;
    }
    return plan_make(nodes, n, c->config.model, &c->config.wish, p, e);
}

// Without those that leave, if that is possible. They stay for requests, not for the sake of being there.
static int make_plan(const struct cluster *c, struct plan *p, struct err *e) {
    if (c->n_live == 0) return plan_with(c, false, p, e);
    return plan_with(c, false, p, NULL) == ERR_OK ? ERR_OK : plan_with(c, true, p, e);
}

bool epoch_fits_without_leaving(struct cluster *c) {
    struct plan p;
    return plan_with(c, false, &p, NULL) == ERR_OK;
}

static void go_down(struct cluster *c, uint64_t now_us, const char *why) {
    snprintf(c->why_down, sizeof c->why_down, "%s", why);
    if (c->phase == CLUSTER_DOWN) return; // still; the clock of those who wait goes on
    holders_clear(c);
    enter(c, CLUSTER_DOWN);
    // A node that joins and fails again and again must not start the clock of those who wait anew each time.
    if (c->down_since_us == NEVER) c->down_since_us = now_us;
    tell_why(c, CLUSTER_ROUTE_DOWN, 0, why);
}

static void go_load(struct cluster *c, uint64_t now_us, const struct plan *p, const char *why) {
    bool was_up = c->phase == CLUSTER_UP;
    holders_clear(c);
    enter(c, CLUSTER_LOADING);
    c->plan = *p;
    c->epoch++;
    c->n_route_changes++;
    c->progress_us = now_us;
    c->sent_step = c->done_step = c->stable = c->excused_step = c->lost_step = 0;
    c->n_fed_told = 0;
    snprintf(c->why_down, sizeof c->why_down, "loading epoch %u over %u nodes: %s", c->epoch, p->n_stages, why);
    if (was_up) tell_why(c, CLUSTER_ROUTE_DOWN, 0, c->why_down);
    for (uint32_t i = 0; i < c->n_members; i++) c->member[i].loading_bytes = 0;
    for (uint32_t s = 0; s < p->n_stages; s++) {
        c->post[s].n = 1;
        c->post[s].shaken_us = NEVER;
        holders_init(&c->post[s].hold[0], now_us, p->stage[s].node);
        c->post[s].hold[0].wants_hot = true;
    }
    holders_add_seconds(c, now_us);
    for (uint32_t s = 0; s < p->n_stages; s++)
        for (uint32_t k = 0; k < c->post[s].n; k++) tell_load(c, s, k);
}

void epoch_replan(struct cluster *c, uint64_t now_us, const char *why) {
    struct plan p;
    struct err e;
    order_members(c);
    c->stage_lost = c->spare_useful = false;
    steps_reset(&c->steps, c->config.step_deadline_us);
    if (make_plan(c, &p, &e))
        go_down(c, now_us, e.text);
    else
        go_load(c, now_us, &p, why);
}

void epoch_go_up(struct cluster *c, uint64_t now_us) {
    enter(c, CLUSTER_UP);
    if (c->improving) c->improve_us = IMPROVE_US;
    c->improving = false;
    c->why_down[0] = 0;
    c->down_since_us = c->retry_due_us = NEVER;
    c->idle_since_us = now_us;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        for (uint32_t k = 0; k < c->post[s].n; k++) {
            struct hold *h = &c->post[s].hold[k];
            if (h->phase != HOLDING_RESIDENT || (k > 0 && c->config.redundancy != REDUNDANCY_SHADOW)) continue;
            h->phase = HOLDING_LEVEL; // nothing was sent yet
            h->level_us = now_us;
        }
    }
    c->changed = c->look = true;
    tell_changes(c);
    tell_push(c, CLUSTER_ROUTE_UP);
}

// --- nodes beside the route

static void explain(struct cluster *c, const struct plan *p, const struct member *m, char *why, size_t why_bytes) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        if (m->leaving || !holders_find(c, s, m->id)) continue;
        snprintf(why, why_bytes, "it holds stage %u beside the node that serves it", s);
        return;
    }
    const char *text = "a spare: it serves when a node is lost, or when no request has run for a second";
    for (uint32_t i = 0; i < p->n_left_out; i++)
        if (p->left_out[i].node == m->id) text = p->left_out[i].why;
    snprintf(why, why_bytes, "%s", m->leaving ? "its machine is wanted back" : text);
}

// The route asks more of one node than a new plan would, or it needs one that leaves and that nobody can replace.
static bool is_lopsided(struct cluster *c) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        for (uint32_t i = 0; i < s; i++)
            if (c->plan.stage[i].node == c->plan.stage[s].node) return true;
        bool stays = false;
        for (uint32_t k = 0; k < c->post[s].n; k++) stays |= !holders_leave(c, &c->post[s].hold[k]);
        if (!stays) return true;
    }
    return false;
}

void epoch_look_at_spares(struct cluster *c) {
    struct plan p;
    c->spare_useful = false;
    if (!cluster_has_route(c) || c->stage_lost) return;
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (c->post[s].vacant || c->post[s].n == 0) return;
    order_members(c);
    c->plan.n_left_out = 0;
    if (plan_with(c, false, &p, NULL)) p.n_stages = p.n_left_out = 0;
    for (uint32_t i = 0; i < p.n_stages; i++) c->spare_useful |= !holders_serve(c, p.stage[i].node);
    if (p.n_stages) c->spare_useful |= is_lopsided(c);
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (!m->present || holders_serve(c, m->id)) continue;
        uint32_t k = c->plan.n_left_out++;
        c->plan.left_out[k].node = m->id;
        explain(c, &p, m, c->plan.left_out[k].why, sizeof c->plan.left_out[k].why);
    }
}
