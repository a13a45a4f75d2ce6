#include "head/brain.h"

#include "sched/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Two deciders behind one door. The cluster decides which route serves, the scheduler what travels on it; after each
// event sync() tells each what it must know of the other. The scheduler follows the cluster at the moment of the event,
// not when the caller takes the action, so that nothing of an old route is ever taken for the new one.
struct brain {
    struct brain_config config;
    struct cluster *cluster;
    struct sched *sched;
    bool route_up;   // what the scheduler was told
    uint32_t epoch;  // of that route
    uint64_t now_us; // of the last event
};

int brain_new(const struct brain_config *config, struct brain **out, struct err *e) {
    if (config->heartbeat_us == 0 || config->node_timeout_us < 2 * config->heartbeat_us)
        return err_set(e, ERR_USAGE, "cluster: node timeout %llu us: at least two heartbeats of %llu us are needed",
                       (unsigned long long)config->node_timeout_us, (unsigned long long)config->heartbeat_us);
    struct brain *b = calloc(1, sizeof *b);
    if (!b) return err_set(e, ERR_NOMEM, "head: no memory");
    b->config = *config;
    struct cluster_config cc = {.model = &b->config.model, .wish = config->wish, .min_nodes = config->min_nodes};
    cc.redundancy = config->redundancy;
    cc.first_epoch = config->first_epoch;
    cc.settle_us = config->settle_us;
    cc.heartbeat_us = config->heartbeat_us;
    cc.node_timeout_us = config->node_timeout_us;
    cc.suspect_us = config->suspect_us;
    cc.restore_us = config->restore_us;
    cc.step_deadline_us = config->step_deadline_us;
    cc.load_deadline_us = config->load_deadline_us;
    struct sched_config sc = {.n_vocab = config->n_vocab, .max_context = config->max_context};
    sc.chunk_rows = config->chunk_rows;
    sc.max_seqs = config->max_seqs;
    sc.max_blocks = config->wish.max_blocks;
    int rc = cluster_new(&cc, &b->cluster, e);
    if (!rc) rc = sched_new(&sc, &b->sched, e);
    if (rc) {
        brain_free(b);
        return rc;
    }
    *out = b;
    return ERR_OK;
}

void brain_free(struct brain *b) {
    if (!b) return;
    cluster_free(b->cluster);
    sched_free(b->sched);
    free(b);
}

static uint32_t n_live(const struct brain *b) {
    struct sched_counts n;
    sched_counts(b->sched, &n);
    return n.n_running + n.n_waiting;
}

static void sync(struct brain *b, uint64_t now_us) {
    b->now_us = now_us;
    struct cluster_view v;
    cluster_view(b->cluster, &v);
    bool up = v.phase == CLUSTER_UP;
    if (b->route_up && !up) {
        sched_route_down(b->sched);
        b->route_up = false;
    }
    ASSERT(!b->route_up || v.epoch == b->epoch, "epoch %u became %u without loading", b->epoch, v.epoch);
    if (up && !b->route_up) {
        sched_route_up(b->sched, v.epoch, v.plan->n_stages, v.plan->n_blocks);
        b->route_up = true;
        b->epoch = v.epoch;
    }
    if (v.phase == CLUSTER_DOWN && now_us >= v.down_since_us + b->config.wait_for_node_us && n_live(b)) {
        char text[300];
        snprintf(text, sizeof text, "no machine came for %llu s: %s",
                 (unsigned long long)(b->config.wait_for_node_us / 1000000), v.why_down);
        sched_fail_all(b->sched, ERR_UNAVAILABLE, text);
    }
    cluster_set_live(b->cluster, now_us, n_live(b));
}

bool brain_next(struct brain *b, struct brain_action *a) {
    memset(a, 0, sizeof *a);
    if (cluster_next(b->cluster, &a->cluster)) {
        a->type = ACT_CLUSTER;
        return true;
    }
    if (sched_next_event(b->sched, &a->event)) {
        a->type = ACT_EVENT;
        return true;
    }
    a->step = sched_form(b->sched);
    if (!a->step) return false;
    a->type = ACT_STEP;
    cluster_step_sent(b->cluster, b->now_us, a->step->id, a->step->n_rows);
    return true;
}

uint32_t brain_begun_ids(const struct brain *b, uint64_t *ids) { return sched_begun_ids(b->sched, ids); }

uint64_t brain_deadline_us(const struct brain *b) {
    uint64_t due = cluster_deadline_us(b->cluster);
    struct cluster_view v;
    cluster_view(b->cluster, &v);
    if (v.phase == CLUSTER_DOWN && n_live(b) && v.down_since_us + b->config.wait_for_node_us < due)
        due = v.down_since_us + b->config.wait_for_node_us;
    return due;
}

int brain_submit(struct brain *b, uint64_t now_us, uint64_t id, const struct gen_request *r, struct err *e) {
    struct cluster_view v;
    cluster_view(b->cluster, &v);
    if (!r->restored && (v.phase == CLUSTER_WAITING || v.phase == CLUSTER_DOWN))
        return err_set(e, ERR_UNAVAILABLE, "no machines serve the model now: %s", v.why_down);
    int rc = sched_submit(b->sched, id, r, e);
    sync(b, now_us);
    return rc;
}

void brain_cancel(struct brain *b, uint64_t now_us, uint64_t id) {
    sched_cancel(b->sched, id);
    sync(b, now_us);
}

void brain_node_joined(struct brain *b, uint64_t now_us, uint64_t node, uint64_t memory_bytes) {
    cluster_joined(b->cluster, now_us, node, memory_bytes);
    sync(b, now_us);
}

void brain_node_lost(struct brain *b, uint64_t now_us, uint64_t node, const char *why) {
    cluster_lost(b->cluster, now_us, node, why);
    sync(b, now_us);
}

void brain_heartbeat(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch,
                     const struct cluster_stage_state *states, uint32_t n_states, uint64_t loading_bytes) {
    cluster_heartbeat(b->cluster, now_us, node, epoch, states, n_states, loading_bytes);
    sync(b, now_us);
}

void brain_node_ready(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage) {
    cluster_ready(b->cluster, now_us, node, epoch, stage);
    sync(b, now_us);
}

void brain_node_fed(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage) {
    cluster_fed(b->cluster, now_us, node, epoch, stage);
    sync(b, now_us);
}

void brain_node_failed(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage,
                       enum stage_failure what, const char *why) {
    cluster_failed(b->cluster, now_us, node, epoch, stage, what, why);
    sync(b, now_us);
}

void brain_node_leave(struct brain *b, uint64_t now_us, uint64_t node, bool leave, const char *why) {
    cluster_leave(b->cluster, now_us, node, leave, why);
    sync(b, now_us);
}

void brain_step_result(struct brain *b, uint64_t now_us, uint64_t node, const struct step_result *r) {
    struct err e;
    bool done;
    if (sched_result(b->sched, r, &done, &e))
        cluster_accuse(b->cluster, now_us, node, e.text);
    else if (done)
        cluster_step_done(b->cluster, now_us, r->id);
    sync(b, now_us);
}

uint64_t brain_stable(const struct brain *b) {
    struct cluster_view v;
    cluster_view(b->cluster, &v);
    return v.stable;
}

void brain_tick(struct brain *b, uint64_t now_us) {
    cluster_tick(b->cluster, now_us);
    sync(b, now_us);
}

void brain_status(const struct brain *b, struct brain_status *s) {
    struct cluster_view v;
    struct sched_counts n;
    cluster_view(b->cluster, &v);
    sched_counts(b->sched, &n);
    *s = (struct brain_status){.route_up = b->route_up, .epoch = v.epoch, .n_nodes = v.n_nodes, .plan = *v.plan};
    s->n_stages = v.plan->n_stages;
    s->n_blocks = n.n_blocks;
    s->blocks_used = n.blocks_used;
    s->n_running = n.n_running;
    s->n_waiting = n.n_waiting;
    s->n_route_changes = v.n_route_changes;
    s->n_nodes_lost = v.n_nodes_lost;
    s->cluster = v;
    s->cluster.plan = NULL;
    s->cluster.why_down = NULL;
    s->n_preemptions = n.n_preemptions;
    s->n_steps = n.n_steps;
    s->n_tokens = n.n_tokens;
    s->n_prefill_rows = n.n_prefill_rows;
    if (b->route_up) return;
    s->stuck = v.phase == CLUSTER_DOWN;
    // Loading most often ends within seconds; where no plan fits, somebody has to bring a machine.
    s->retry_after_us = v.phase == CLUSTER_LOADING ? 5000000 : 30000000;
    snprintf(s->why_down, sizeof s->why_down, "%s", v.why_down);
}
