#include "cluster/cluster_int.h"

#include <stdio.h>
#include <stdlib.h>

// Every event does the same three things: it takes back time in which we slept, notes what is new, and then settles:
// all that has become due is decided, and what holders have to know is told.

enum { LATE_US = 2 * 1000 }; // we are never sooner than that for certain

int cluster_new(const struct cluster_config *config, struct cluster **out, struct err *e) {
    struct cluster *c = calloc(1, sizeof *c);
    if (c) c->actions = calloc(ACTIONS_MAX, sizeof *c->actions);
    if (!c || !c->actions) {
        cluster_free(c);
        return err_set(e, ERR_NOMEM, "cluster: no memory");
    }
    c->config = *config;
    c->epoch = config->first_epoch ? config->first_epoch - 1 : 0;
    c->improve_us = IMPROVE_US;
    c->due_us = c->down_since_us = c->retry_due_us = NEVER;
    snprintf(c->why_down, sizeof c->why_down, "no node has joined yet");
    *out = c;
    return ERR_OK;
}

void cluster_free(struct cluster *c) {
    if (!c) return;
    free(c->actions);
    free(c);
}

struct member *cluster_member(struct cluster *c, uint64_t node) {
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->member[i].present && c->member[i].id == node) return &c->member[i];
    return NULL;
}

uint32_t cluster_n_present(const struct cluster *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_members; i++) n += c->member[i].present;
    return n;
}

bool cluster_has_route(const struct cluster *c) { return c->phase == CLUSTER_LOADING || c->phase == CLUSTER_UP; }

void cluster_lose(struct cluster *c, uint64_t now_us, struct member *m, const char *why, bool tell) {
    if (holders_serve(c, m->id)) {
        if (c->improving && c->improve_us < IMPROVE_MAX_US) c->improve_us *= 2;
        snprintf(c->lost_why, sizeof c->lost_why, "node %llu lost: %s", (unsigned long long)m->id, why);
    }
    holders_node_gone(c, now_us, m->id);
    m->present = false;
    if (!m->may_leave) c->n_nodes_lost++;
    c->changed = c->look = true;
    if (tell) tell_why(c, CLUSTER_DROP_NODE, m->id, why);
}

static void check_silence(struct cluster *c, uint64_t now_us) {
    for (uint32_t i = 0; i < c->n_members; i++) {
        struct member *m = &c->member[i];
        if (!m->present || now_us < m->seen_us + c->config.node_timeout_us) continue;
        char why[64];
        snprintf(why, sizeof why, "no heartbeat for %llu ms", (unsigned long long)(now_us - m->seen_us) / 1000);
        cluster_lose(c, now_us, m, why, true);
    }
}

static void check_loading(struct cluster *c, uint64_t now_us) {
    bool late = now_us >= c->progress_us + c->config.load_deadline_us, all = true;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        const struct post *p = &c->post[s];
        bool ready = !p->vacant && p->hold[0].phase != HOLDING_LOADING;
        all &= ready;
        if (late && !ready && !p->vacant)
            cluster_lose(c, now_us, cluster_member(c, p->hold[0].node), "no progress in loading its layers", true);
        c->stage_lost |= p->vacant;
    }
    if (all) epoch_go_up(c, now_us);
}

// New epochs.
static void settle_epoch(struct cluster *c, uint64_t now_us) {
    if (c->stage_lost) {
        c->improving = false;
        char why[200];
        snprintf(why, sizeof why, "%.199s", c->lost_why);
        epoch_replan(c, now_us, why);
    }
    if (handover_cannot(c, now_us) && (c->n_live == 0 || epoch_fits_without_leaving(c))) {
        c->improving = false;
        epoch_replan(c, now_us, "a node leaves, and no other one has room for its layers");
    }
    uint32_t n = cluster_n_present(c);
    if (c->phase == CLUSTER_WAITING && n && n >= c->config.min_nodes &&
        now_us >= c->first_join_us + c->config.settle_us)
        epoch_replan(c, now_us, "first start");
    if (c->look) epoch_look_at_spares(c);
    c->look = false;
    if (c->phase == CLUSTER_UP && c->n_live == 0 && c->spare_useful && now_us >= c->idle_since_us + c->improve_us) {
        c->improving = true;
        epoch_replan(c, now_us, "the nodes that are there can share the work better");
    }
}

static uint64_t next_due_us(struct cluster *c, uint64_t now_us) {
    uint64_t due = NEVER;
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->member[i].present) due = earlier(due, c->member[i].seen_us + c->config.node_timeout_us);
    uint32_t n = cluster_n_present(c);
    if (c->phase == CLUSTER_WAITING && n && n >= c->config.min_nodes)
        due = earlier(due, c->first_join_us + c->config.settle_us);
    if (c->phase == CLUSTER_LOADING) due = earlier(due, c->progress_us + c->config.load_deadline_us);
    if (cluster_has_route(c)) due = earlier(due, holders_due_us(c, now_us));
    if (c->phase == CLUSTER_UP) due = earlier(due, suspect_due_us(c, now_us));
    if (c->phase == CLUSTER_UP && c->n_live == 0 && c->spare_useful)
        due = earlier(due, c->idle_since_us + c->improve_us);
    return due > now_us ? due : now_us + 1;
}

// After each event: everything that has become due.
static void settle(struct cluster *c, uint64_t now_us) {
    check_silence(c, now_us);
    if (cluster_has_route(c)) holders_check(c, now_us);
    if (c->phase == CLUSTER_UP) suspect_check_steps(c, now_us);
    if (c->phase == CLUSTER_UP) holders_promote(c, now_us);
    if (c->phase == CLUSTER_LOADING) check_loading(c, now_us);
    settle_epoch(c, now_us);
    if (c->phase == CLUSTER_UP) {
        suspect_refresh(c, now_us);
        holders_refresh(c, now_us);
        tell_changes(c);
    }
    tell_endings(c);
    if (c->phase == CLUSTER_UP) {
        holders_restore(c, now_us); // what was unloaded makes room for it
        holders_set_stable(c);
    }
    c->due_us = next_due_us(c, now_us);
}

// What came in while we were late is still unread: once for each silence and each step that much time is given.
static void excuse(struct cluster *c, uint64_t by_us) {
    uint64_t step = 0;
    for (uint32_t i = 0; i < c->n_members; i++) {
        if (!c->member[i].excused) phi_shift(&c->member[i].phi, by_us);
        c->member[i].excused = true;
    }
    if (steps_due_us(&c->steps, &step) == NEVER || step == c->excused_step) return;
    steps_shift(&c->steps, by_us);
    c->excused_step = step;
}

// Before each event. If we were not called although something was due, it was we who slept (a stopped process, a
// suspended machine), and what the nodes sent meanwhile is still unread: that time counts against nobody.
static void wake(struct cluster *c, uint64_t now_us) {
    if (c->due_us == NEVER || now_us <= c->due_us + LATE_US) return;
    uint64_t late = now_us - c->due_us, slack = c->config.node_timeout_us / 8;
    if (slack < c->config.heartbeat_us) slack = c->config.heartbeat_us;
    if (late <= slack) {
        excuse(c, late + LATE_US);
        return;
    }
    uint64_t slept = late + 2 * c->config.heartbeat_us;
    for (uint32_t i = 0; i < c->n_members; i++) {
        c->member[i].seen_us += slept;
        phi_shift(&c->member[i].phi, slept);
    }
    for (uint32_t s = 0; s < LIMIT_STAGES; s++) {
        for (uint32_t k = 0; k < c->post[s].n; k++) {
            struct hold *h = &c->post[s].hold[k];
            h->progress_us += slept;
            if (h->failed_us != NEVER) h->failed_us += slept;
            if (h->behind_us != NEVER) h->behind_us += slept;
            if (h->well_us != NEVER) h->well_us += slept;
        }
    }
    steps_shift(&c->steps, slept);
    c->progress_us += slept;
    c->due_us = NEVER;
}

void cluster_joined(struct cluster *c, uint64_t now_us, uint64_t node, uint64_t memory_bytes) {
    wake(c, now_us);
    if (!cluster_member(c, node)) {
        uint32_t at = 0;
        while (at < c->n_members && c->member[at].present) at++;
        if (at == LIMIT_NODES) {
            tell_why(c, CLUSTER_DROP_NODE, node, "the cluster has as many nodes as it can have");
            return;
        }
        if (cluster_n_present(c) == 0) c->first_join_us = now_us;
        struct member *m = &c->member[at];
        *m = (struct member){.present = true, .id = node, .memory_bytes = memory_bytes, .seen_us = now_us};
        phi_init(&m->phi, now_us, c->config.heartbeat_us);
        m->calm_us = CALM_US;
        m->alarm_us = NEVER;
        if (at == c->n_members) c->n_members++;
        c->changed = c->look = true;
        if (c->phase == CLUSTER_WAITING)
            snprintf(c->why_down, sizeof c->why_down, "%u of the %u nodes to start with have joined",
                     cluster_n_present(c), c->config.min_nodes);
        if (c->phase == CLUSTER_DOWN) epoch_replan(c, now_us, "a node joined");
    }
    settle(c, now_us);
}

void cluster_lost(struct cluster *c, uint64_t now_us, uint64_t node, const char *why) {
    wake(c, now_us);
    struct member *m = cluster_member(c, node);
    if (m) cluster_lose(c, now_us, m, why, false);
    settle(c, now_us);
}

static void note_loading(struct cluster *c, uint64_t now_us, struct member *m, uint64_t loading_bytes) {
    if (loading_bytes <= m->loading_bytes) {
        m->loading_bytes = loading_bytes; // the next load counts from there
        return;
    }
    m->loading_bytes = loading_bytes;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        struct hold *h = holders_find(c, s, m->id);
        if (!h || h->phase != HOLDING_LOADING) continue;
        h->progress_us = now_us;
        if (c->plan.stage[s].node == m->id && now_us > c->progress_us) c->progress_us = now_us;
    }
}

void cluster_heartbeat(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch,
                       const struct cluster_stage_state *states, uint32_t n_states, uint64_t loading_bytes) {
    wake(c, now_us);
    struct member *m = cluster_member(c, node);
    if (m) {
        if (now_us > m->seen_us) m->seen_us = now_us;
        phi_beat(&m->phi, now_us);
        m->excused = false;
        note_loading(c, now_us, m, loading_bytes);
        for (uint32_t i = 0; i < n_states && epoch == c->epoch; i++) {
            struct hold *h = holders_find(c, states[i].stage, node);
            if (h) holders_state(c, now_us, h, &states[i]);
        }
    }
    settle(c, now_us);
}

void cluster_ready(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage) {
    wake(c, now_us);
    struct hold *h = epoch == c->epoch ? holders_find(c, stage, node) : NULL;
    if (h) h->failed_us = NEVER;
    if (h && h->phase == HOLDING_LOADING) {
        h->phase = HOLDING_RESIDENT;
        h->progress_us = now_us;
        if (c->plan.stage[stage].node == node && now_us > c->progress_us) c->progress_us = now_us;
    }
    settle(c, now_us);
}

void cluster_fed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage) {
    wake(c, now_us);
    struct hold *h = epoch == c->epoch ? holders_find(c, stage, node) : NULL;
    if (h && h->phase == HOLDING_FEEDING && !h->fed) {
        h->fed = true;
        h->accepted = 0; // the next heartbeat tells what it has now
        h->progress_us = now_us;
    }
    settle(c, now_us);
}

// What a holder says just after the stage behind it lost one is most often about the broken link. It is told again whom
// to send to; if it fails then too, it means it.
static void note_failed(struct cluster *c, uint64_t now_us, struct hold *h, uint32_t stage, const char *why) {
    const struct post *p = &c->post[stage];
    if (p->shaken_us != NEVER && now_us < p->shaken_us + SHAKEN_US && c->phase == CLUSTER_UP) {
        h->n_told = 0;
    } else if (h->failed_us == NEVER) {
        h->failed_us = now_us;
        snprintf(h->failed_why, sizeof h->failed_why, "%s", why);
    }
}

void cluster_failed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage,
                    enum stage_failure what, const char *why) {
    wake(c, now_us);
    struct hold *h = epoch == c->epoch ? holders_find(c, stage, node) : NULL;
    if (what == STAGE_NO_REPLAY && c->phase == CLUSTER_UP && epoch == c->epoch) {
        uint32_t to = node == CLUSTER_HEAD ? 0 : stage + 1;
        if (to < c->plan.n_stages && (h || node == CLUSTER_HEAD)) holders_no_replay(c, now_us, to, node, why);
    } else if (h && what == STAGE_BROKEN) {
        note_failed(c, now_us, h, stage, why);
    } else if (h && what == STAGE_GAP && c->phase == CLUSTER_UP && !holders_feed_anew(now_us, h)) {
        note_failed(c, now_us, h, stage, why);
    }
    settle(c, now_us);
}

void cluster_leave(struct cluster *c, uint64_t now_us, uint64_t node, bool leave, const char *why) {
    wake(c, now_us);
    struct member *m = cluster_member(c, node);
    if (m && m->leaving != leave) {
        m->leaving = leave;
        m->may_leave = false;
        c->changed = c->look = true;
        if (c->phase == CLUSTER_DOWN && !leave) epoch_replan(c, now_us, "a node is free again");
        if (c->phase == CLUSTER_LOADING && leave && holders_serve(c, node) && epoch_fits_without_leaving(c)) {
            char text[200];
            snprintf(text, sizeof text, "node %llu leaves: %.120s", (unsigned long long)node, why);
            epoch_replan(c, now_us, text);
        }
    }
    settle(c, now_us);
}

void cluster_step_sent(struct cluster *c, uint64_t now_us, uint64_t step, uint32_t n_rows) {
    if (c->phase != CLUSTER_UP) return;
    wake(c, now_us);
    steps_sent(&c->steps, now_us, step, n_rows);
    c->sent_step = step;
    c->due_us = next_due_us(c, now_us);
}

void cluster_step_done(struct cluster *c, uint64_t now_us, uint64_t step) {
    wake(c, now_us);
    if (c->phase == CLUSTER_UP && step <= c->sent_step && step > c->done_step) {
        steps_done(&c->steps, now_us, step);
        c->done_step = step;
    }
    settle(c, now_us);
}

void cluster_accuse(struct cluster *c, uint64_t now_us, uint64_t node, const char *why) {
    wake(c, now_us);
    struct member *m = cluster_member(c, node);
    if (m) cluster_lose(c, now_us, m, why, true);
    settle(c, now_us);
}

void cluster_set_live(struct cluster *c, uint64_t now_us, uint32_t n_live) {
    if (n_live == c->n_live) return;
    wake(c, now_us);
    if (n_live == 0) c->idle_since_us = now_us;
    c->n_live = n_live;
    c->due_us = next_due_us(c, now_us);
    if (n_live == 0 && handover_cannot(c, now_us)) c->due_us = now_us + 1; // it need not wait any more
}

void cluster_tick(struct cluster *c, uint64_t now_us) {
    wake(c, now_us);
    settle(c, now_us);
}

uint64_t cluster_deadline_us(const struct cluster *c) { return c->due_us; }

void cluster_view(const struct cluster *c, struct cluster_view *v) {
    *v = (struct cluster_view){.phase = c->phase, .epoch = c->epoch, .n_nodes = cluster_n_present(c)};
    v->plan = &c->plan;
    v->stable = c->stable;
    v->n_route_changes = c->n_route_changes;
    v->n_nodes_lost = c->n_nodes_lost;
    v->n_promotions = c->n_promotions;
    v->n_suspicions = c->n_suspicions;
    v->n_false_alarms = c->n_false_alarms;
    v->n_drained = c->n_drained;
    v->down_since_us = c->down_since_us;
    v->why_down = c->why_down;
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (!m->present || !m->leaving) continue;
        v->leaving[v->n_leaving].node = m->id;
        v->leaving[v->n_leaving++].away = m->may_leave;
    }
    for (uint32_t s = 0; cluster_has_route(c) && s < c->plan.n_stages; s++) {
        v->stage[s].n = c->post[s].n;
        for (uint32_t k = 0; k < c->post[s].n; k++) {
            const struct hold *h = &c->post[s].hold[k];
            v->stage[s].holder[k].node = h->node;
            v->stage[s].holder[k].phase = h->phase;
            v->stage[s].holder[k].hot = h->hot;
            v->stage[s].holder[k].suspect = h->suspect;
        }
    }
}
