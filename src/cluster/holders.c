#include "cluster/cluster_int.h"

#include <stdio.h>
#include <string.h>

// A holder of a stage, within an epoch that is up.
//
//              READY                 a feed begins               FED, and it has `stable`
//   LOADING ----------> RESIDENT ----------------------> FEEDING ------------------------> LEVEL
//                        ^    ^                           | |  ^                            | |
//                        |    +---------------------------+ |  |  it went back in its steps | |
//                        |     nobody needs it fed          +--+ <--------------------------+ |
//                        |                  another feeder, or it lacks steps: anew           |
//                        +--------------------------------------------------------------------+
//
// Those of the first moment are LEVEL as soon as the epoch is up: every step from 1 on is on its way to them.
//
// The first holder serves. It goes with its node, or in favour of another one:
//
//   its node is lost             the best of the others: LEVEL before FEEDING before RESIDENT; none: a new epoch
//   it is behind for SLOW_US     one that runs beside it (see suspect.c) and has done what it has not
//   its node leaves              one that is LEVEL, as soon as it runs beside it and has done what was sent before
//
// A feed comes from the one who serves the stage before, once that one is LEVEL itself; a new one begins the feed anew.

void holders_init(struct hold *h, uint64_t now_us, uint64_t node) {
    *h = (struct hold){.node = node, .phase = HOLDING_LOADING, .progress_us = now_us};
    h->level_us = h->failed_us = h->behind_us = h->well_us = h->catch_step = NEVER;
}

struct hold *holders_find(struct cluster *c, uint32_t stage, uint64_t node) {
    if (!cluster_has_route(c) || stage >= c->plan.n_stages) return NULL;
    for (uint32_t k = 0; k < c->post[stage].n; k++)
        if (c->post[stage].hold[k].node == node) return &c->post[stage].hold[k];
    return NULL;
}

bool holders_serve(const struct cluster *c, uint64_t node) {
    if (!cluster_has_route(c)) return false;
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (c->plan.stage[s].node == node) return true;
    return false;
}

bool holders_leave(struct cluster *c, const struct hold *h) {
    const struct member *m = cluster_member(c, h->node);
    ASSERT(m, "a holder without its node");
    return m->leaving;
}

bool holders_all_serve_level(const struct cluster *c) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (c->post[s].n == 0 || c->post[s].hold[0].phase != HOLDING_LEVEL) return false;
    return true;
}

static void queue_unload(struct cluster *c, uint32_t stage, uint64_t node) {
    ASSERT(c->n_unloads < LIMIT_STAGES * LIMIT_HOLDERS, "UNLOADs are not told");
    c->unload[c->n_unloads++] = (struct unload){node, c->epoch, stage};
}

static void take_out(struct cluster *c, uint32_t stage, uint32_t k) {
    struct post *p = &c->post[stage];
    p->n--;
    memmove(&p->hold[k], &p->hold[k + 1], (p->n - k) * sizeof p->hold[0]);
    c->changed = c->look = true;
}

void holders_clear(struct cluster *c) {
    for (uint32_t s = 0; cluster_has_route(c) && s < c->plan.n_stages; s++)
        for (uint32_t k = 0; k < c->post[s].n; k++)
            if (holders_leave(c, &c->post[s].hold[k])) queue_unload(c, s, c->post[s].hold[k].node);
    memset(c->post, 0, sizeof c->post);
}

void holders_node_gone(struct cluster *c, uint64_t now_us, uint64_t node) {
    for (uint32_t s = 0; cluster_has_route(c) && s < c->plan.n_stages; s++) {
        struct post *p = &c->post[s];
        for (uint32_t k = p->n; k-- > 0;) {
            if (p->hold[k].node != node) continue;
            if (k == 0) p->vacant = true;
            take_out(c, s, k);
            uint64_t calm_us = now_us + c->config.restore_us;
            if (calm_us > p->retry_us) p->retry_us = calm_us;
            if (s == 0) continue;
            struct post *before = &c->post[s - 1];
            before->shaken_us = now_us;
            for (uint32_t i = 0; i < before->n; i++) before->hold[i].failed_us = NEVER;
        }
    }
}

void holders_drop(struct cluster *c, uint64_t now_us, uint32_t stage, uint32_t k, bool failed) {
    struct post *p = &c->post[stage];
    const struct hold *h = &p->hold[k];
    ASSERT(k > 0 && k < p->n, "holder %u of %u", k, p->n);
    if (failed) {
        bool was_steady = h->level_us != NEVER && now_us >= h->level_us + STEADY_US;
        if (was_steady || p->backoff_us == 0) p->backoff_us = RETRY_US;
        p->retry_us = now_us + p->backoff_us;
        p->backoff_us = earlier(2 * p->backoff_us, RETRY_MAX_US);
        p->avoid = h->node;
    }
    queue_unload(c, stage, h->node);
    take_out(c, stage, k);
}

void holders_no_replay(struct cluster *c, uint64_t now_us, uint32_t stage, uint64_t feeder, const char *why) {
    struct post *p = &c->post[stage];
    for (uint32_t k = p->n; k-- > 0;) {
        if (p->hold[k].phase != HOLDING_FEEDING || p->hold[k].feeder != feeder) continue;
        if (k > 0) {
            holders_drop(c, now_us, stage, k, true);
        } else {
            c->stage_lost = true;
            snprintf(c->lost_why, sizeof c->lost_why, "stage %u cannot be filled: %s", stage, why);
        }
    }
}

static uint64_t feeder_of(const struct cluster *c, uint32_t stage) {
    return stage ? c->post[stage - 1].hold[0].node : CLUSTER_HEAD;
}

static bool can_feed(const struct cluster *c, uint32_t stage) {
    return stage == 0 || c->post[stage - 1].hold[0].phase == HOLDING_LEVEL;
}

void holders_state(struct cluster *c, uint64_t now_us, struct hold *h, const struct cluster_stage_state *s) {
    if (h->phase != HOLDING_FEEDING && h->phase != HOLDING_LEVEL) return;
    if (s->accepted != h->accepted || s->done != h->done || s->lag_us != h->lag_us) h->progress_us = now_us;
    if (h->phase == HOLDING_LEVEL && s->accepted < h->accepted) {
        // Its feeder lost what was still to be sent, and began again with a replay; it need not be asked for one.
        h->phase = HOLDING_FEEDING;
        h->fed = false;
        h->feed = 0;
        h->feeder = feeder_of(c, s->stage);
        h->progress_us = now_us;
    }
    h->accepted = s->accepted;
    h->done = s->done;
    h->lag_us = s->lag_us;
}

bool holders_feed_anew(uint64_t now_us, struct hold *h) {
    if (h->phase != HOLDING_FEEDING && h->phase != HOLDING_LEVEL) return true; // of a feed that is over
    if (h->level_us != NEVER && now_us >= h->level_us + STEADY_US) h->n_gaps = 0;
    if (++h->n_gaps > GAPS_MAX) return false;
    h->phase = HOLDING_RESIDENT;
    h->progress_us = now_us;
    return true;
}

static int rank(struct cluster *c, const struct hold *h, uint64_t now_us) {
    if (h->phase == HOLDING_LOADING) return 0;
    const struct member *m = cluster_member(c, h->node);
    ASSERT(m, "a holder without its node");
    int r = h->failed_us == NEVER ? 64 : 0;
    r += h->phase == HOLDING_LEVEL ? 32 : h->phase == HOLDING_FEEDING ? 16 : 8;
    return r + 4 * !suspect_is_silent(c, m, now_us) + 2 * h->hot + !m->leaving;
}

void holders_make_first(struct cluster *c, uint32_t stage, uint32_t k) {
    struct post *p = &c->post[stage];
    struct hold first = p->hold[k];
    p->hold[k] = p->hold[0];
    first.suspect = p->hold[k].suspect = false; // the word is about the one that serves
    first.behind_us = first.well_us = first.catch_step = NEVER;
    p->hold[0] = first;
    p->vacant = false;
    c->plan.stage[stage].node = first.node;
    c->changed = c->look = true;
}

void holders_promote(struct cluster *c, uint64_t now_us) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        struct post *p = &c->post[s];
        uint32_t best = 0;
        if (!p->vacant) continue;
        for (uint32_t k = 1; k < p->n; k++)
            if (rank(c, &p->hold[k], now_us) > rank(c, &p->hold[best], now_us)) best = k;
        if (p->n == 0 || rank(c, &p->hold[best], now_us) == 0) {
            c->stage_lost = true;
            return;
        }
        holders_make_first(c, s, best);
        c->n_promotions++;
        p->hold[0].progress_us = now_us;
        steps_restart(&c->steps, now_us);
    }
}

// --- what does not go on

static bool is_stuck(const struct cluster *c, uint32_t stage, uint32_t k, uint64_t *due_us) {
    const struct hold *h = &c->post[stage].hold[k];
    *due_us = h->progress_us + c->config.load_deadline_us;
    if (h->phase == HOLDING_LOADING) return c->phase == CLUSTER_UP;
    return h->phase == HOLDING_FEEDING && (stage == 0 || !c->post[stage - 1].vacant) && can_feed(c, stage);
}

// A holder says that it fails when it does not reach the one that serves the next stage. As long as that one's node is
// silent, it is left open who is to blame.
static bool is_explained(struct cluster *c, uint32_t stage, uint64_t now_us) {
    if (stage + 1 == c->plan.n_stages || c->post[stage + 1].vacant || c->post[stage + 1].n == 0) return false;
    return suspect_is_silent(c, cluster_member(c, c->post[stage + 1].hold[0].node), now_us);
}

static void check_one(struct cluster *c, uint64_t now_us, uint32_t s, uint32_t k) {
    struct hold *h = &c->post[s].hold[k];
    bool serves = k == 0 && !c->post[s].vacant;
    char why[200];
    uint64_t due;
    if (h->failed_us != NEVER && now_us >= h->failed_us + 2 * c->config.heartbeat_us && !is_explained(c, s, now_us))
        snprintf(why, sizeof why, "it failed: %s", h->failed_why);
    else if (is_stuck(c, s, k, &due) && now_us >= due)
        snprintf(why, sizeof why, "it does not get on with taking over stage %u", s);
    else
        return;
    if (serves)
        cluster_lose(c, now_us, cluster_member(c, h->node), why, true);
    else if (k > 0)
        holders_drop(c, now_us, s, k, true);
}

void holders_check(struct cluster *c, uint64_t now_us) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        for (uint32_t k = c->post[s].n; k-- > 0;)
            if (k < c->post[s].n) check_one(c, now_us, s, k);
}

// Whether h, which serves or not, has gone without a step for SLOW_US that is done.
static bool is_slow(const struct cluster *c, struct hold *h, bool serves, uint64_t now_us) {
    uint64_t has = serves ? h->done : h->accepted;
    if (h->phase != HOLDING_LEVEL || has >= c->done_step) {
        h->behind_us = NEVER;
    } else if (h->behind_us == NEVER || has >= h->behind_step) {
        h->behind_us = now_us;
        h->behind_step = c->done_step;
    }
    return h->behind_us != NEVER && now_us >= h->behind_us + SLOW_US;
}

// One that serves is never dropped for being slow, but another may take its place.
static void check_slow(struct cluster *c, uint32_t s, uint64_t now_us) {
    struct post *p = &c->post[s];
    for (uint32_t k = p->n; k-- > 1;)
        if (is_slow(c, &p->hold[k], false, now_us)) holders_drop(c, now_us, s, k, true);
    if (!is_slow(c, &p->hold[0], true, now_us)) return;
    uint64_t missing = p->hold[0].behind_step;
    p->hold[0].behind_us = NEVER;
    for (uint32_t k = 1; k < p->n; k++) {
        if (!p->hold[k].hot || p->hold[k].phase != HOLDING_LEVEL || p->hold[k].done < missing) continue;
        holders_make_first(c, s, k);
        c->n_promotions++;
        p->hold[k].suspect = false;
        p->hold[k].rest_us = now_us + REST_US;
        return;
    }
}

// --- feeding

static bool wants_feed(struct cluster *c, uint32_t s, uint32_t k, uint64_t now_us) {
    const struct hold *first = &c->post[s].hold[0];
    if (k == 0 || c->config.redundancy == REDUNDANCY_SHADOW || holders_leave(c, first)) return true;
    return first->suspect && suspect_backup(c, s, now_us) == k;
}

static void feed_one(struct cluster *c, uint32_t s, uint32_t k, uint64_t now_us) {
    struct hold *h = &c->post[s].hold[k];
    if (h->phase == HOLDING_LOADING) return;
    if (!wants_feed(c, s, k, now_us)) {
        h->phase = HOLDING_RESIDENT;
        return;
    }
    if (h->phase == HOLDING_LEVEL) return;
    if (!can_feed(c, s)) {
        h->progress_us = now_us;
    } else if (h->phase == HOLDING_RESIDENT || h->feeder != feeder_of(c, s)) {
        h->phase = HOLDING_FEEDING;
        h->fed = false;
        h->accepted = h->done = 0;
        h->feed = ++c->n_feeds;
        h->feeder = feeder_of(c, s);
        h->progress_us = now_us;
    } else if (h->fed && h->accepted >= c->stable) {
        h->phase = HOLDING_LEVEL;
        h->level_us = now_us;
        h->behind_us = NEVER;
        c->changed = c->look = true;
        if (k == 0) steps_restart(&c->steps, now_us);
    }
}

// --- redundancy

uint32_t holders_fill_rooms(struct cluster *c, struct plan_room *rooms, uint64_t now_us) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_members; i++) {
        const struct member *m = &c->member[i];
        if (!m->present) continue;
        struct plan_room *r = &rooms[n++];
        *r = (struct plan_room){.node = m->id, .memory_bytes = m->memory_bytes, .serves = holders_serve(c, m->id)};
        r->closed = m->leaving || suspect_is_silent(c, m, now_us);
        for (uint32_t s = 0; s < c->plan.n_stages; s++) {
            if (!holders_find(c, s, m->id)) continue;
            const struct plan_stage *t = &c->plan.stage[s];
            r->used_bytes += plan_stage_bytes(c->config.model, t->a, t->b, c->plan.n_blocks);
            r->n_stages++;
        }
    }
    return n;
}

void holders_add_seconds(struct cluster *c, uint64_t now_us) {
    struct plan_room rooms[LIMIT_NODES];
    uint32_t second[LIMIT_STAGES], n = holders_fill_rooms(c, rooms, now_us);
    if (c->config.redundancy == REDUNDANCY_NONE) return;
    plan_seconds(c->config.model, &c->plan, rooms, n, second);
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        struct post *p = &c->post[s];
        if (second[s] < n) holders_init(&p->hold[p->n++], now_us, rooms[second[s]].node);
    }
}

static void place(struct cluster *c, uint32_t s, const struct plan_room *rooms, uint32_t n, uint64_t now_us) {
    struct post *p = &c->post[s];
    const struct plan_stage *t = &c->plan.stage[s];
    uint64_t exclude[LIMIT_HOLDERS + 1];
    for (uint32_t k = 0; k < p->n; k++) exclude[k] = p->hold[k].node;
    exclude[p->n] = p->avoid; // another one first
    uint32_t at =
        plan_place(c->config.model, t->a, t->b, c->plan.n_blocks, rooms, n, exclude, p->n + (p->backoff_us > 0));
    if (at == n) at = plan_place(c->config.model, t->a, t->b, c->plan.n_blocks, rooms, n, exclude, p->n);
    if (at == n) return;
    holders_init(&p->hold[p->n++], now_us, rooms[at].node);
    c->look = true;
    tell_load(c, s, p->n - 1);
}

// Holders that a stage should have, of nodes that do not leave.
static uint32_t n_needed(const struct cluster *c) { return c->config.redundancy == REDUNDANCY_NONE ? 1 : 2; }

static uint32_t n_staying(struct cluster *c, uint32_t s) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->post[s].n; k++) n += !holders_leave(c, &c->post[s].hold[k]);
    return n;
}

// Holders beside k that could go on if the one that serves was lost now, that one included.
static uint32_t n_fit_without(struct cluster *c, uint32_t s, uint32_t k) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->post[s].n; i++) {
        const struct hold *h = &c->post[s].hold[i];
        bool fit = c->config.redundancy == REDUNDANCY_SHADOW ? h->phase == HOLDING_LEVEL : h->phase != HOLDING_LOADING;
        n += i != k && fit && !holders_leave(c, h);
    }
    return n;
}

// One more than needed is there after a handover, and while one is on its way: the old one stays until the new one is
// as good.
static void trim(struct cluster *c, uint32_t s, uint64_t now_us) {
    struct post *p = &c->post[s];
    if (n_staying(c, s) <= n_needed(c) || holders_leave(c, &p->hold[0])) return;
    for (uint32_t k = p->n; k-- > 1;) {
        if (p->hold[k].wants_hot || handover_is_heir(c, s, &p->hold[k]) || n_fit_without(c, s, k) < n_needed(c))
            continue;
        holders_drop(c, now_us, s, k, false);
        return;
    }
}

bool holders_are_enough(struct cluster *c) {
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        if (n_staying(c, s) < n_needed(c)) return false;
    return true;
}

void holders_restore(struct cluster *c, uint64_t now_us) {
    handover_place(c, now_us);
    if (!c->changed && now_us < c->retry_due_us) return;
    c->changed = false;
    c->retry_due_us = NEVER;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        const struct post *p = &c->post[s];
        if (p->n == LIMIT_HOLDERS || n_staying(c, s) >= n_needed(c)) continue;
        if (now_us < p->retry_us) {
            c->retry_due_us = earlier(c->retry_due_us, p->retry_us);
            continue;
        }
        struct plan_room rooms[LIMIT_NODES];
        uint32_t n = holders_fill_rooms(c, rooms, now_us);
        place(c, s, rooms, n, now_us);
    }
}

void holders_refresh(struct cluster *c, uint64_t now_us) {
    handover_choose(c, now_us);
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        check_slow(c, s, now_us);
        for (uint32_t k = 0; k < c->post[s].n; k++) feed_one(c, s, k, now_us);
        handover_refresh(c, s, now_us);
        trim(c, s, now_us);
    }
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        struct post *p = &c->post[s];
        uint32_t backup = p->hold[0].suspect ? suspect_backup(c, s, now_us) : 0;
        for (uint32_t k = 0; k < p->n; k++)
            p->hold[k].wants_hot = k == 0 || k == backup || p->hold[k].catch_step != NEVER;
    }
}

void holders_set_stable(struct cluster *c) {
    uint64_t stable = c->done_step; // the head is the one behind the last stage: it must have the results
    for (uint32_t s = 0; s < c->plan.n_stages; s++)
        for (uint32_t k = 0; k < c->post[s].n; k++)
            if (c->post[s].hold[k].phase == HOLDING_LEVEL) stable = earlier(stable, c->post[s].hold[k].accepted);
    if (stable > c->stable) c->stable = stable;
}

uint64_t holders_due_us(struct cluster *c, uint64_t now_us) {
    uint64_t due = c->phase == CLUSTER_UP ? c->retry_due_us : NEVER, stuck;
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        for (uint32_t k = 0; k < c->post[s].n; k++) {
            const struct hold *h = &c->post[s].hold[k];
            uint64_t believed_us = h->failed_us == NEVER ? NEVER : h->failed_us + 2 * c->config.heartbeat_us;
            if (believed_us > now_us) due = earlier(due, believed_us);
            if (h->behind_us != NEVER) due = earlier(due, h->behind_us + SLOW_US);
            if (is_stuck(c, s, k, &stuck)) due = earlier(due, stuck);
        }
    }
    return due;
}
