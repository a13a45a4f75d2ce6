#include "cluster/cluster.h"

#include "cluster/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Phases. Each way into LOADING is a new epoch with a new plan.
//
//              min_nodes, settled                all stages ready
//   WAITING ------------------------> LOADING --------------------> UP
//      |                               ^ | ^ |                      | |
//      | the plan                      | | | |  a stage is lost, or | |
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

enum {
    ACTIONS_MAX = 4 * LIMIT_NODES,
    IMPROVE_US = 1000 * 1000,           // idle for so long before a spare is taken in
    IMPROVE_MAX_US = 300 * 1000 * 1000, // after spares failed again and again
};

static const uint64_t NEVER = UINT64_MAX;

struct member {
    bool present; // false: a hole that a lost node left
    uint64_t id, memory_bytes;
    uint64_t seen_us;
    uint64_t done_step, loading_bytes; // in the current epoch
    bool ready;
    uint64_t failed_us; // NEVER, or when it said that it failed
    char failed_why[160];
};

struct cluster {
    struct cluster_config config;
    enum cluster_phase phase;
    uint32_t epoch;
    // In the order of the route. A node that joins takes the first hole, so that the others keep their layers.
    struct member member[LIMIT_NODES];
    uint32_t n_members; // holes included
    struct plan plan;
    struct steps steps;
    uint64_t first_join_us, progress_us, idle_since_us;
    uint64_t down_since_us; // NEVER, or when nothing fitted for the first time since a route was up
    uint64_t improve_us;    // how long to be idle before a spare is taken in
    bool improving;         // LOADING in order to take in a spare
    bool spare_useful;      // a plan with all nodes uses one that the route does not
    bool stage_lost;        // the route needs a new plan
    uint32_t n_live;
    uint64_t due_us; // the deadline as of the last event
    uint64_t n_route_changes, n_nodes_lost;
    char why_down[256];
    struct cluster_action *actions; // [ACTIONS_MAX] a ring
    uint32_t action_at, n_actions;
};

int cluster_new(const struct cluster_config *config, struct cluster **out, struct err *e) {
    struct cluster *c = calloc(1, sizeof *c);
    if (c) c->actions = calloc(ACTIONS_MAX, sizeof *c->actions);
    if (!c || !c->actions) {
        cluster_free(c);
        return err_set(e, ERR_NOMEM, "cluster: no memory");
    }
    c->config = *config;
    c->improve_us = IMPROVE_US;
    c->due_us = c->down_since_us = NEVER;
    snprintf(c->why_down, sizeof c->why_down, "no node has joined yet");
    *out = c;
    return ERR_OK;
}

void cluster_free(struct cluster *c) {
    if (!c) return;
    free(c->actions);
    free(c);
}

bool cluster_next(struct cluster *c, struct cluster_action *a) {
    if (c->n_actions == 0) return false;
    *a = c->actions[c->action_at];
    c->action_at = (c->action_at + 1) % ACTIONS_MAX;
    c->n_actions--;
    return true;
}

static struct cluster_action *push(struct cluster *c, enum cluster_act type) {
    ASSERT(c->n_actions < ACTIONS_MAX, "actions are not taken");
    struct cluster_action *a = &c->actions[(c->action_at + c->n_actions++) % ACTIONS_MAX];
    memset(a, 0, sizeof *a);
    a->type = type;
    a->epoch = c->epoch;
    a->n_stages = c->plan.n_stages;
    a->n_blocks = c->plan.n_blocks;
    return a;
}

static struct member *find(struct cluster *c, uint64_t node) {
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->member[i].present && c->member[i].id == node) return &c->member[i];
    return NULL;
}

static uint32_t n_present(const struct cluster *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_members; i++) n += c->member[i].present;
    return n;
}

static bool has_route(const struct cluster *c) { return c->phase == CLUSTER_LOADING || c->phase == CLUSTER_UP; }

static bool in_plan(const struct plan *p, uint64_t node) {
    for (uint32_t i = 0; i < p->n_stages; i++)
        if (p->stage[i].node == node) return true;
    return false;
}

static bool in_route(const struct cluster *c, uint64_t node) { return has_route(c) && in_plan(&c->plan, node); }

static void enter(struct cluster *c, enum cluster_phase phase) {
    ASSERT(allowed[c->phase][phase], "from phase %d to %d", c->phase, phase);
    c->phase = phase;
}

// Moves spares into the holes that lost stages left, so that the stages around them keep their place.
static void fill_holes(struct cluster *c) {
    for (uint32_t hole = 0; hole < c->n_members; hole++) {
        if (c->member[hole].present) continue;
        for (uint32_t i = hole + 1; i < c->n_members; i++) {
            if (!c->member[i].present || in_plan(&c->plan, c->member[i].id)) continue;
            c->member[hole] = c->member[i];
            c->member[i].present = false;
            break;
        }
    }
    while (c->n_members && !c->member[c->n_members - 1].present) c->n_members--;
}

// Plans in the order of the members. Whole layers do not always pack in that order though they would in another: before
// giving up, the largest nodes are tried first.
static int make_plan(const struct cluster *c, struct plan *p, struct err *e) {
    struct plan_node nodes[LIMIT_NODES] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->member[i].present) nodes[n++] = (struct plan_node){c->member[i].id, c->member[i].memory_bytes};
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

static void push_why(struct cluster *c, enum cluster_act type, uint64_t node, const char *why) {
    struct cluster_action *a = push(c, type);
    a->node = node;
    snprintf(a->why, sizeof a->why, "%s", why);
}

static void go_down(struct cluster *c, uint64_t now_us, const char *why) {
    snprintf(c->why_down, sizeof c->why_down, "%s", why);
    if (c->phase == CLUSTER_DOWN) return; // still; the clock of those who wait goes on
    enter(c, CLUSTER_DOWN);
    // A node that joins and fails again and again must not start the clock of those who wait anew each time.
    if (c->down_since_us == NEVER) c->down_since_us = now_us;
    push_why(c, CLUSTER_ROUTE_DOWN, 0, why);
}

static void go_load(struct cluster *c, uint64_t now_us, const struct plan *p, const char *why) {
    bool was_up = c->phase == CLUSTER_UP;
    enter(c, CLUSTER_LOADING);
    c->plan = *p;
    c->epoch++;
    c->n_route_changes++;
    c->progress_us = now_us;
    snprintf(c->why_down, sizeof c->why_down, "loading epoch %u over %u nodes: %s", c->epoch, p->n_stages, why);
    if (was_up) push_why(c, CLUSTER_ROUTE_DOWN, 0, c->why_down);
    for (uint32_t i = 0; i < c->n_members; i++) {
        struct member *m = &c->member[i];
        m->ready = false;
        m->done_step = m->loading_bytes = 0;
        m->failed_us = NEVER;
    }
    for (uint32_t i = 0; i < p->n_stages; i++) {
        struct cluster_action *a = push(c, CLUSTER_LOAD);
        a->node = p->stage[i].node;
        a->stage = i;
        a->a = p->stage[i].a;
        a->b = p->stage[i].b;
        a->next_node = p->stage[(i + 1) % p->n_stages].node;
    }
}

static void replan(struct cluster *c, uint64_t now_us, const char *why) {
    struct plan p;
    struct err e;
    if (c->stage_lost) fill_holes(c);
    c->stage_lost = c->spare_useful = false;
    steps_reset(&c->steps, c->config.step_deadline_us);
    if (make_plan(c, &p, &e))
        go_down(c, now_us, e.text);
    else
        go_load(c, now_us, &p, why);
}

// The node is gone; settle() makes a new plan if the route needs one. tell: its link is still open.
static void lose(struct cluster *c, struct member *m, const char *why, bool tell) {
    if (in_route(c, m->id)) {
        c->stage_lost = true;
        if (c->improving && c->improve_us < IMPROVE_MAX_US) c->improve_us *= 2;
        snprintf(c->why_down, sizeof c->why_down, "node %llu lost: %s", (unsigned long long)m->id, why);
    }
    m->present = false;
    c->n_nodes_lost++;
    if (tell) push_why(c, CLUSTER_DROP_NODE, m->id, why);
}

static void check_heartbeats(struct cluster *c, uint64_t now_us) {
    for (uint32_t i = 0; i < c->n_members; i++) {
        struct member *m = &c->member[i];
        if (!m->present) continue;
        char why[200];
        if (now_us >= m->seen_us + c->config.node_timeout_us) {
            snprintf(why, sizeof why, "no heartbeat for %llu ms", (unsigned long long)(now_us - m->seen_us) / 1000);
            lose(c, m, why, true);
        } else if (m->failed_us != NEVER && now_us >= m->failed_us + 2 * c->config.heartbeat_us) {
            snprintf(why, sizeof why, "it failed: %s", m->failed_why);
            lose(c, m, why, true);
        }
    }
}

// A step is late: the guilty stage is the first one that has not sent it on. If all have, the last one's word did not
// come through. What nodes said is up to a heartbeat old, so the verdict waits for two.
static void check_steps(struct cluster *c, uint64_t now_us) {
    uint64_t step, due = steps_due_us(&c->steps, &step);
    if (c->stage_lost || due == NEVER || now_us < due + 2 * c->config.heartbeat_us) return;
    uint32_t stage = 0;
    while (stage + 1 < c->plan.n_stages) {
        struct member *m = find(c, c->plan.stage[stage].node);
        ASSERT(m, "stage %u has no node", stage);
        if (m->done_step < step) break;
        stage++;
    }
    char why[128];
    snprintf(why, sizeof why, "step %llu did not pass stage %u in time", (unsigned long long)step, stage);
    lose(c, find(c, c->plan.stage[stage].node), why, true);
}

static void check_loading(struct cluster *c, uint64_t now_us) {
    bool late = now_us >= c->progress_us + c->config.load_deadline_us, all = true;
    for (uint32_t i = 0; i < c->plan.n_stages; i++) {
        struct member *m = find(c, c->plan.stage[i].node);
        ASSERT(m || c->stage_lost, "stage %u has no node", i);
        if (!m || m->ready) continue;
        all = false;
        if (late) lose(c, m, "no progress in loading its layers", true);
    }
    if (!all || c->stage_lost) return;
    enter(c, CLUSTER_UP);
    if (c->improving) c->improve_us = IMPROVE_US;
    c->improving = false;
    c->why_down[0] = 0;
    c->down_since_us = NEVER;
    c->idle_since_us = now_us;
    push(c, CLUSTER_ROUTE_UP);
}

static const char *reason_to_leave_out(const struct plan *p, uint64_t node) {
    for (uint32_t i = 0; i < p->n_left_out; i++)
        if (p->left_out[i].node == node) return p->left_out[i].why;
    return "a spare: it serves when a node is lost, or when no request has run for a second";
}

// Whether a plan with all nodes would use one that the route leaves aside; and why each of those is left aside now.
static void look_at_spares(struct cluster *c) {
    struct plan p;
    c->spare_useful = false;
    if (!has_route(c) || c->stage_lost) return;
    c->plan.n_left_out = 0;
    if (n_present(c) == c->plan.n_stages || make_plan(c, &p, NULL)) return;
    for (uint32_t i = 0; i < p.n_stages; i++) c->spare_useful |= !in_plan(&c->plan, p.stage[i].node);
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (!m->present || in_plan(&c->plan, m->id)) continue;
        uint32_t k = c->plan.n_left_out++;
        c->plan.left_out[k].node = m->id;
        snprintf(c->plan.left_out[k].why, sizeof c->plan.left_out[k].why, "%s", reason_to_leave_out(&p, m->id));
    }
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t next_due_us(const struct cluster *c) {
    uint64_t due = NEVER, step;
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (!m->present) continue;
        due = min_u64(due, m->seen_us + c->config.node_timeout_us);
        if (m->failed_us != NEVER) due = min_u64(due, m->failed_us + 2 * c->config.heartbeat_us);
    }
    if (c->phase == CLUSTER_WAITING && n_present(c) >= c->config.min_nodes && n_present(c))
        due = min_u64(due, c->first_join_us + c->config.settle_us);
    if (c->phase == CLUSTER_LOADING) due = min_u64(due, c->progress_us + c->config.load_deadline_us);
    if (c->phase == CLUSTER_UP && c->n_live == 0 && c->spare_useful)
        due = min_u64(due, c->idle_since_us + c->improve_us);
    if (c->phase == CLUSTER_UP && steps_due_us(&c->steps, &step) != NEVER)
        due = min_u64(due, steps_due_us(&c->steps, &step) + 2 * c->config.heartbeat_us);
    return due;
}

// After each event: everything that has become due.
static void settle(struct cluster *c, uint64_t now_us) {
    check_heartbeats(c, now_us);
    if (c->phase == CLUSTER_UP) check_steps(c, now_us);
    if (c->phase == CLUSTER_LOADING) check_loading(c, now_us);
    if (c->stage_lost) {
        c->improving = false;
        char why[200];
        snprintf(why, sizeof why, "%.199s", c->why_down);
        replan(c, now_us, why);
    }
    uint32_t n = n_present(c);
    if (c->phase == CLUSTER_WAITING && n && n >= c->config.min_nodes &&
        now_us >= c->first_join_us + c->config.settle_us)
        replan(c, now_us, "first start");
    if (c->phase == CLUSTER_UP && c->n_live == 0 && c->spare_useful && now_us >= c->idle_since_us + c->improve_us) {
        look_at_spares(c); // the spare itself may be lost by now
        c->improving = c->spare_useful;
        if (c->improving) replan(c, now_us, "a further node is there");
    }
    c->due_us = next_due_us(c);
}

// Before each event. If we were not called although something was due, it was we who slept (a stopped process, a
// suspended machine), and what the nodes sent meanwhile is still unread: that time counts against nobody.
static void wake(struct cluster *c, uint64_t now_us) {
    if (c->due_us == NEVER || now_us <= c->due_us + c->config.heartbeat_us) return;
    uint64_t slept = now_us - c->due_us + 2 * c->config.heartbeat_us;
    for (uint32_t i = 0; i < c->n_members; i++) {
        c->member[i].seen_us += slept;
        if (c->member[i].failed_us != NEVER) c->member[i].failed_us += slept;
    }
    steps_shift(&c->steps, slept);
    c->progress_us += slept;
    c->due_us = NEVER;
}

void cluster_joined(struct cluster *c, uint64_t now_us, uint64_t node, uint64_t memory_bytes) {
    wake(c, now_us);
    if (!find(c, node)) {
        uint32_t at = 0;
        while (at < c->n_members && c->member[at].present) at++;
        if (at == LIMIT_NODES) {
            push_why(c, CLUSTER_DROP_NODE, node, "the cluster has as many nodes as it can have");
            return;
        }
        if (n_present(c) == 0) c->first_join_us = now_us;
        c->member[at] = (struct member){.present = true, .id = node, .memory_bytes = memory_bytes};
        c->member[at].seen_us = now_us;
        c->member[at].failed_us = NEVER;
        if (at == c->n_members) c->n_members++;
        if (c->phase == CLUSTER_WAITING)
            snprintf(c->why_down, sizeof c->why_down, "%u of the %u nodes to start with have joined", n_present(c),
                     c->config.min_nodes);
        if (c->phase == CLUSTER_DOWN) replan(c, now_us, "a node joined");
        look_at_spares(c);
    }
    settle(c, now_us);
}

void cluster_lost(struct cluster *c, uint64_t now_us, uint64_t node, const char *why) {
    wake(c, now_us);
    struct member *m = find(c, node);
    if (m) lose(c, m, why, false);
    if (m) look_at_spares(c);
    settle(c, now_us);
}

void cluster_heartbeat(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint64_t done_step,
                       uint64_t loading_bytes) {
    wake(c, now_us);
    struct member *m = find(c, node);
    if (m) {
        if (now_us > m->seen_us) m->seen_us = now_us;
        if (epoch == c->epoch && done_step > m->done_step) m->done_step = done_step;
        if (in_route(c, node) && loading_bytes > m->loading_bytes) {
            m->loading_bytes = loading_bytes;
            if (now_us > c->progress_us) c->progress_us = now_us;
        }
    }
    settle(c, now_us);
}

void cluster_ready(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch) {
    wake(c, now_us);
    struct member *m = find(c, node);
    if (m && c->phase == CLUSTER_LOADING && epoch == c->epoch && in_route(c, node) && !m->ready) {
        m->ready = true;
        if (now_us > c->progress_us) c->progress_us = now_us;
    }
    settle(c, now_us);
}

void cluster_failed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, const char *why) {
    wake(c, now_us);
    struct member *m = find(c, node);
    if (m && epoch == c->epoch && in_route(c, node) && m->failed_us == NEVER) {
        m->failed_us = now_us;
        snprintf(m->failed_why, sizeof m->failed_why, "%s", why);
    }
    settle(c, now_us);
}

void cluster_step_sent(struct cluster *c, uint64_t now_us, uint64_t step, uint32_t n_rows) {
    if (c->phase != CLUSTER_UP) return;
    steps_sent(&c->steps, now_us, step, n_rows);
    c->due_us = next_due_us(c);
}

void cluster_step_done(struct cluster *c, uint64_t now_us, uint64_t step) {
    wake(c, now_us);
    if (c->phase == CLUSTER_UP) steps_done(&c->steps, now_us, step);
    settle(c, now_us);
}

void cluster_accuse(struct cluster *c, uint64_t now_us, uint32_t stage, const char *why) {
    wake(c, now_us);
    if (has_route(c) && stage < c->plan.n_stages) {
        struct member *m = find(c, c->plan.stage[stage].node);
        ASSERT(m, "stage %u has no node", stage);
        lose(c, m, why, true);
    }
    settle(c, now_us);
}

void cluster_set_live(struct cluster *c, uint64_t now_us, uint32_t n_live) {
    if (n_live == c->n_live) return;
    if (n_live == 0) c->idle_since_us = now_us;
    c->n_live = n_live;
    c->due_us = next_due_us(c);
}

void cluster_tick(struct cluster *c, uint64_t now_us) {
    wake(c, now_us);
    settle(c, now_us);
}

uint64_t cluster_deadline_us(const struct cluster *c) { return c->due_us; }

void cluster_view(const struct cluster *c, struct cluster_view *v) {
    *v = (struct cluster_view){.phase = c->phase, .epoch = c->epoch, .n_nodes = n_present(c), .plan = &c->plan};
    v->n_route_changes = c->n_route_changes;
    v->n_nodes_lost = c->n_nodes_lost;
    v->down_since_us = c->down_since_us;
    v->why_down = c->why_down;
}
