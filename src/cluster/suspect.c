#include "cluster/cluster_int.h"

#include <stdio.h>

// Alarms. A holder that serves is under suspicion while its node is silent for longer than its beats let expect
// (phi.h), while it says that it failed, or while a step is late at it; and after that until it was well for a while:
//
//                    reason, and there is a backup                   its node is lost, or it is slow
//        TRUSTED ----------------------------------> SUSPECT ---------------------------------------> (holders.c)
//           ^                                           |
//           +-------------------------------------------+
//             no reason for calm_us, and it has done what was sent when the last reason ended
//
// A suspect goes on to serve; the backup runs hot beside it, and the first result of each step wins. An alarm whose
// reasons were over within OUTAGE_US was false. calm_us doubles with each false alarm about a node, so that one which
// stumbles every second does not make its backup start and stop; but not by much: two that run the same steps on a
// machine that is full make each other late, and alarms would never end.

bool suspect_is_silent(const struct cluster *c, const struct member *m, uint64_t now_us) {
    return now_us >= phi_due_us(&m->phi, c->config.suspect_us, c->config.node_timeout_us / 2);
}

// --- late steps

// Whether someone who runs hot has done it.
static bool passed(const struct cluster *c, uint32_t stage, uint64_t step) {
    const struct post *p = &c->post[stage];
    for (uint32_t k = 0; k < p->n; k++)
        if (p->hold[k].hot && p->hold[k].done >= step) return true;
    return false;
}

// The first stage that has not sent the step on. If all have, the last one's word did not come through.
static uint32_t guilty_stage(const struct cluster *c, uint64_t step) {
    uint32_t s = 0;
    while (s + 1 < c->plan.n_stages && passed(c, s, step)) s++;
    return s;
}

// What nodes said is up to a heartbeat old, so the verdict waits for two.
void suspect_check_steps(struct cluster *c, uint64_t now_us) {
    uint64_t step, due = steps_due_us(&c->steps, &step);
    if (due == NEVER || now_us < due + 2 * c->config.heartbeat_us) return;
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (c->post[s].vacant) return;
    if (!holders_all_serve_level(c)) return;
    uint32_t s = guilty_stage(c, step);
    char why[128];
    snprintf(why, sizeof why, "step %llu did not pass stage %u in time", (unsigned long long)step, s);
    // Whoever took over did not bring it either: it is not the node.
    if (c->lost_step == step) c->stage_lost = true;
    c->lost_step = step;
    cluster_lose(c, now_us, cluster_member(c, c->post[s].hold[0].node), why, true);
}

// Whether the late step is at stage, or on the way from it: a stage that has sent it on is not out of it as long as the
// next one has not got it.
static bool is_late_at(const struct cluster *c, uint32_t stage, uint64_t now_us) {
    uint64_t step;
    if (now_us < steps_late_us(&c->steps, &step) || !holders_all_serve_level(c)) return false;
    uint32_t s = guilty_stage(c, step);
    return stage == s || (stage + 1 == s && c->post[s].hold[0].accepted < step);
}

// --- alarms

uint32_t suspect_backup(struct cluster *c, uint32_t stage, uint64_t now_us) {
    const struct post *p = &c->post[stage];
    // It would send to one who cannot take single steps yet.
    if (stage + 1 < c->plan.n_stages && c->post[stage + 1].hold[0].phase != HOLDING_LEVEL) return 0;
    uint32_t best = 0, best_rank = 0;
    for (uint32_t k = 1; k < p->n; k++) {
        const struct hold *h = &p->hold[k];
        if (h->phase == HOLDING_LOADING || h->failed_us != NEVER) continue;
        if (suspect_is_silent(c, cluster_member(c, h->node), now_us)) continue;
        // Who runs already goes on, unless another one can do at once what it cannot.
        uint32_t r = 1 + (h->phase == HOLDING_FEEDING) + 2 * h->hot + 4 * (h->phase == HOLDING_LEVEL);
        if (r > best_rank) best = k;
        if (r > best_rank) best_rank = r;
    }
    return best;
}

static void begin_alarm(struct cluster *c, struct hold *h, struct member *m, uint64_t now_us) {
    h->suspect = true;
    h->well_us = NEVER;
    h->alarm_us = now_us;
    c->n_suspicions++;
    if (m->alarm_us == NEVER || now_us >= m->alarm_us + STEADY_US) m->calm_us = CALM_US;
}

static void end_alarm(struct cluster *c, struct hold *h, struct member *m, uint64_t now_us) {
    bool was_out = h->reason_us >= h->alarm_us + OUTAGE_US;
    h->suspect = false;
    if (!was_out) c->n_false_alarms++;
    m->calm_us = was_out ? CALM_US : earlier(2 * m->calm_us, CALM_MAX_US);
    m->alarm_us = now_us;
}

static void refresh_one(struct cluster *c, uint32_t stage, uint64_t now_us) {
    struct hold *h = &c->post[stage].hold[0];
    struct member *m = cluster_member(c, h->node);
    ASSERT(m, "stage %u has no node", stage);
    bool reason = suspect_is_silent(c, m, now_us) || h->failed_us != NEVER || is_late_at(c, stage, now_us);
    if (!h->suspect) {
        if (!reason || !suspect_backup(c, stage, now_us)) return;
        begin_alarm(c, h, m, now_us);
    }
    if (reason) {
        h->well_us = NEVER;
        h->reason_us = now_us;
    } else if (h->well_us == NEVER) {
        h->well_us = now_us;
        h->well_step = c->sent_step;
    } else if (now_us >= h->well_us + m->calm_us && h->done >= h->well_step) {
        end_alarm(c, h, m, now_us);
    }
}

void suspect_refresh(struct cluster *c, uint64_t now_us) {
    uint64_t before = c->n_suspicions, step;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) refresh_one(c, s, now_us);
    // Those behind the backup get the step later than usual, for which they cannot be blamed.
    if (c->n_suspicions > before && now_us >= steps_late_us(&c->steps, &step)) steps_restart(&c->steps, now_us);
}

uint64_t suspect_due_us(struct cluster *c, uint64_t now_us) {
    uint64_t step, late = steps_late_us(&c->steps, &step), due = NEVER;
    if (late > now_us) due = late;
    if (holders_all_serve_level(c)) {
        uint64_t over = steps_due_us(&c->steps, &step);
        if (over != NEVER) due = earlier(due, over + 2 * c->config.heartbeat_us);
    }
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        const struct hold *h = &c->post[s].hold[0];
        const struct member *m = cluster_member(c, h->node);
        ASSERT(m, "stage %u has no node", s);
        uint64_t silent = phi_due_us(&m->phi, c->config.suspect_us, c->config.node_timeout_us / 2);
        if (silent > now_us) due = earlier(due, silent);
        if (h->suspect && h->well_us != NEVER && h->well_us + m->calm_us > now_us)
            due = earlier(due, h->well_us + m->calm_us);
    }
    return due;
}
