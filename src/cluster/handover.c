#include "cluster/cluster_int.h"

// A stage goes over to another holder while both live, and nobody waits: the heir runs hot beside the one that serves
// until it has done what was sent before, and is first from then on.
//
//   reason                                                          heir
//   the node that serves leaves                                     any holder that is fit
//   it serves two stages more than another node does; losses        that node, one stage at a time: as a shadow that is
//   gather the stages on the nodes that are left                    LEVEL already, or loaded and fed for it

static uint32_t n_served(const struct cluster *c, uint64_t node) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) n += c->plan.stage[s].node == node;
    return n;
}

bool handover_is_heir(const struct cluster *c, uint32_t stage, const struct hold *h) {
    return c->heir_node && c->heir_stage == stage && c->heir_node == h->node;
}

static bool is_fit(struct cluster *c, uint32_t stage, const struct hold *h, uint64_t now_us) {
    const struct member *m = cluster_member(c, h->node);
    ASSERT(m, "a holder without its node");
    bool next_is_level = stage + 1 == c->plan.n_stages || c->post[stage + 1].hold[0].phase == HOLDING_LEVEL;
    return h->phase == HOLDING_LEVEL && !m->leaving && h->failed_us == NEVER && next_is_level &&
           !suspect_is_silent(c, m, now_us);
}

static bool relieves(const struct cluster *c, uint64_t node, uint32_t stage) {
    return n_served(c, c->plan.stage[stage].node) >= n_served(c, node) + 2;
}

// Nothing is lost, in doubt or on its way: there is time for this.
static bool is_calm(const struct cluster *c) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (c->post[s].vacant || c->post[s].hold[0].suspect || c->post[s].hold[0].failed_us != NEVER) return false;
    return holders_all_serve_level(c);
}

void handover_choose(struct cluster *c, uint64_t now_us) {
    if (c->heir_node && holders_find(c, c->heir_stage, c->heir_node) && relieves(c, c->heir_node, c->heir_stage))
        return;
    c->heir_node = 0;
    if (c->config.redundancy != REDUNDANCY_SHADOW || !is_calm(c)) return;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        for (uint32_t k = 1; k < c->post[s].n; k++) {
            const struct hold *h = &c->post[s].hold[k];
            bool steady = h->level_us == NEVER || now_us >= h->level_us + BALANCE_US;
            bool keeps_up = h->behind_us == NEVER || now_us < h->behind_us + BALANCE_US;
            if (!steady || !keeps_up || now_us < h->rest_us || !relieves(c, h->node, s) || !is_fit(c, s, h, now_us))
                continue;
            c->heir_node = h->node;
            c->heir_stage = s;
            return;
        }
    }
}

void handover_refresh(struct cluster *c, uint32_t stage, uint64_t now_us) {
    struct post *p = &c->post[stage];
    for (uint32_t k = p->n; k-- > 1;)
        if (holders_leave(c, &p->hold[k]) && !p->hold[0].suspect) holders_drop(c, now_us, stage, k, false);
    bool leaves = holders_leave(c, &p->hold[0]);
    for (uint32_t k = 1; k < p->n; k++) {
        struct hold *h = &p->hold[k];
        if ((!leaves && !handover_is_heir(c, stage, h)) || !is_fit(c, stage, h, now_us)) {
            h->catch_step = NEVER;
            continue;
        }
        if (h->catch_step == NEVER) h->catch_step = c->sent_step;
        if (h->done < h->catch_step && c->done_step < c->sent_step) continue;
        holders_make_first(c, stage, k);
        if (leaves) holders_drop(c, now_us, stage, k, false);
        c->heir_node = 0;
        return;
    }
}

void handover_place(struct cluster *c, uint64_t now_us) {
    if (c->config.redundancy != REDUNDANCY_SHADOW || c->heir_node || now_us < c->balance_us) return;
    c->balance_us = now_us + BALANCE_US;
    if (!is_calm(c) || !holders_are_enough(c)) return;
    struct plan_room rooms[LIMIT_NODES];
    uint32_t n = holders_fill_rooms(c, rooms, now_us);
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        struct post *p = &c->post[s];
        const struct plan_stage *t = &c->plan.stage[s];
        uint64_t bytes = plan_stage_bytes(c->config.model, t->a, t->b, c->plan.n_blocks);
        if (p->n == LIMIT_HOLDERS || now_us < p->retry_us) continue;
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_room *r = &rooms[i];
            if (r->closed || r->n_stages >= LIMIT_NODE_STAGES || !relieves(c, r->node, s)) continue;
            if (holders_find(c, s, r->node) || r->used_bytes + bytes > r->memory_bytes) continue;
            holders_init(&p->hold[p->n++], now_us, r->node);
            c->heir_node = r->node;
            c->heir_stage = s;
            tell_load(c, s, p->n - 1);
            return;
        }
    }
}

static bool has_no_heir(struct cluster *c, uint32_t stage, const struct plan_room *rooms, uint32_t n, uint64_t now_us) {
    const struct post *p = &c->post[stage];
    const struct plan_stage *t = &c->plan.stage[stage];
    uint64_t exclude[LIMIT_HOLDERS];
    if (p->n == 0 || p->vacant || now_us < p->retry_us) return false; // lost; or it is tried again
    for (uint32_t k = 0; k < p->n; k++) {
        if (!holders_leave(c, &p->hold[k])) return false;
        exclude[k] = p->hold[k].node;
    }
    return plan_place(c->config.model, t->a, t->b, c->plan.n_blocks, rooms, n, exclude, p->n) == n;
}

bool handover_cannot(struct cluster *c, uint64_t now_us) {
    struct plan_room rooms[LIMIT_NODES];
    bool any = false;
    for (uint32_t i = 0; i < c->n_members; i++)
        any |= c->member[i].present && c->member[i].leaving && !c->member[i].may_leave;
    if (!any || !cluster_has_route(c)) return false;
    uint32_t n = holders_fill_rooms(c, rooms, now_us);
    for (uint32_t i = 0; i < n; i++) // who is silent for the moment may take it all the same
        rooms[i].closed = cluster_member(c, rooms[i].node)->leaving;
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (has_no_heir(c, s, rooms, n, now_us)) return true;
    return false;
}
