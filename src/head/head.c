#include "head/head.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "head/brain.h"
#include "head/head_internal.h"
#include "head/links.h"
#include "head/local.h"
#include "head/model_id.h"
#include "net/loop.h"
#include "os/clock.h"
#include "os/random.h"
#include "os/thread.h"

enum { PUBLISH_US = 100000 };
// The local stages are one node to the brain (h->local_node). They cannot go away, so no step of theirs is ever late.
static const uint64_t local_patience_us = 365 * 86400 * 1000000ull;
// ---- the canary

static void start_canary(struct head *h) {
    if (h->canary_runs) return;
    static const int32_t prompt[1] = {0};
    struct gen_request r = {.prompt = prompt, .n_prompt = 1, .max_tokens = 1, .sampling = {.top_p = 1}};
    struct err e;
    h->canary_runs = true;
    h->canary_err = (struct err){0};
    int rc = brain_submit(h->brain, clock_now_us(), HEAD_CANARY_ID, &r, &e);
    if (rc) {
        h->canary_runs = false;
        head_canary_failed(h, rc, e.text);
    }
}

// ---- what the brain decided

// To the local stages an epoch is all that counts: they hold all layers, and there is nobody beside them.
static void act_on_local(struct head *h, const struct cluster_action *a) {
    if (a->type == CLUSTER_LOAD) {
        h->local_done = 0;
        local_load(h->local, a->epoch, a->n_blocks);
    } else if (a->type == CLUSTER_DROP_NODE) {
        h->local_lost = true; // a step failed: they join anew at the next beat
    }
}

static void act_on_cluster(struct head *h, const struct cluster_action *a) {
    if (a->type == CLUSTER_ROUTE_UP) {
        LOG_I("head", "route of epoch %u is up: %u stage%s", a->epoch, a->n_stages, a->n_stages == 1 ? "" : "s");
        h->route_up = true;
        h->epoch = a->epoch;
        h->n_stages = a->n_stages;
        h->wants_canary = true;
    } else if (a->type == CLUSTER_ROUTE_DOWN) {
        LOG_W("head", "no route: %s", a->why);
        h->route_up = h->ready = false;
    } else if (h->links) {
        if (a->type == CLUSTER_LOAD && h->journal) journal_epoch(h->journal, a->epoch);
        links_act(h->links, a);
    } else {
        act_on_local(h, a);
    }
}

// Told to the journal before the step is on its way.
static void note_tried(struct head *h) {
    uint64_t ids[LIMIT_SEQS];
    uint32_t n = h->journal ? brain_begun_ids(h->brain, ids) : 0;
    for (uint32_t i = 0; i < n; i++) journal_tried(h->journal, ids[i]);
    if (n) journal_flush(h->journal);
}

static void carry_out(struct head *h, const struct brain_action *a) {
    switch (a->type) {
    case ACT_CLUSTER:
        act_on_cluster(h, &a->cluster);
        break;
    case ACT_STEP:
        note_tried(h);
        if (h->local)
            local_step(h->local, a->step);
        else
            links_step(h->links, a->step);
        h->sent_us = clock_now_us();
        break;
    case ACT_EVENT:
        head_take_event(h, &a->event);
        break;
    }
}

static bool changes_route(const struct brain_action *a) {
    return a->type == ACT_CLUSTER && (a->cluster.type == CLUSTER_ROUTE_UP || a->cluster.type == CLUSTER_ROUTE_DOWN);
}

// Carries out everything that an event led to, then sets the clock for the next one. A journal has what a step brought
// before the next one goes out; without one the next step does not wait until all readers were woken.
void head_act(struct head *h) {
    struct brain_action a;
    bool route_changed = false;
    do {
        while (brain_next(h->brain, &a)) {
            route_changed |= changes_route(&a);
            if (a.type != ACT_EVENT && (h->journal || a.type != ACT_STEP)) head_tell(h);
            carry_out(h, &a);
        }
        head_tell(h);
        if (!h->wants_canary) break;
        h->wants_canary = false;
        start_canary(h);
    } while (true);
    if (route_changed) head_publish(h);
    if (h->links) links_stable(h->links, brain_stable(h->brain));
    loop_timer_set(h->tick, brain_deadline_us(h->brain));
}

// ---- events from the stages

static void on_tick(void *arg) {
    struct head *h = arg;
    brain_tick(h->brain, clock_now_us());
    head_act(h);
}

static void on_publish(void *arg) {
    struct head *h = arg;
    head_publish(h);
    loop_timer_set(h->publish, clock_now_us() + PUBLISH_US);
}

static void on_joined(void *arg, uint64_t node, uint64_t memory_bytes) {
    struct head *h = arg;
    brain_node_joined(h->brain, clock_now_us(), node, memory_bytes);
    head_act(h);
}

static void on_lost(void *arg, uint64_t node, const char *why) {
    struct head *h = arg;
    brain_node_lost(h->brain, clock_now_us(), node, why);
    head_act(h);
}

static void on_heartbeat(void *arg, uint64_t node, uint32_t epoch, const struct cluster_stage_state *states,
                         uint32_t n_states, uint64_t loading_bytes) {
    struct head *h = arg;
    brain_heartbeat(h->brain, clock_now_us(), node, epoch, states, n_states, loading_bytes);
    head_act(h);
}

static void on_ready(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    struct head *h = arg;
    brain_node_ready(h->brain, clock_now_us(), node, epoch, stage);
    head_act(h);
}

static void on_fed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    struct head *h = arg;
    brain_node_fed(h->brain, clock_now_us(), node, epoch, stage);
    head_act(h);
}

static void on_failed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage, enum stage_failure what,
                      const char *why) {
    struct head *h = arg;
    brain_node_failed(h->brain, clock_now_us(), node, epoch, stage, what, why);
    head_act(h);
}

static void on_leave(void *arg, uint64_t node, bool leave, const char *why) {
    struct head *h = arg;
    brain_node_leave(h->brain, clock_now_us(), node, leave, why);
    head_act(h);
}

static void on_result(void *arg, uint64_t node, const struct step_result *r) {
    struct head *h = arg;
    uint64_t t0 = clock_now_us();
    h->sent_us = 0;
    brain_step_result(h->brain, t0, node, r);
    head_act(h);
    if (!h->sent_us) h->sent_us = clock_now_us(); // nothing follows
    atomic_fetch_add_explicit(&h->result_us, h->sent_us - t0, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->n_results, 1, memory_order_relaxed);
}

static void on_local_beat(void *arg) {
    struct head *h = arg;
    if (h->local_lost) {
        h->local_lost = false;
        h->local_node++;
        on_joined(h, h->local_node, h->local_memory_bytes);
    }
    struct cluster_stage_state state = {.accepted = h->local_done, .done = h->local_done};
    on_heartbeat(h, h->local_node, h->epoch, &state, 1, 0);
    loop_timer_set(h->local_beat, clock_now_us() + h->heartbeat_us);
}

static void on_local_ready(void *arg, uint32_t epoch) { on_ready(arg, ((struct head *)arg)->local_node, epoch, 0); }

static void on_local_failed(void *arg, uint32_t epoch, const char *why) {
    LOG_W("head", "local stages, epoch %u: %s", epoch, why);
    on_failed(arg, ((struct head *)arg)->local_node, epoch, 0, false, why);
}

static void on_local_result(void *arg, const struct step_result *r) {
    struct head *h = arg;
    h->local_done = r->id;
    on_result(h, h->local_node, r);
}

static void on_start(void *arg) {
    struct head *h = arg;
    h->local_lost = h->local != NULL; // joins at the first beat
    if (h->local) on_local_beat(h);
    on_publish(h);
    head_act(h);
}

// ---- life

static int start_local(struct head *h, const struct head_config *c, struct err *e) {
    struct local_config lc = {.model = c->model,
                              .mode = c->mode,
                              .cpu = c->cpu,
                              .n_stages = c->n_stages,
                              .max_rows = c->chunk_rows,
                              .max_context = c->context,
                              .progress = c->progress};
    memcpy(lc.layers, c->layers, sizeof lc.layers);
    struct local_handlers lh = {
        .arg = h, .ready = on_local_ready, .failed = on_local_failed, .result = on_local_result};
    h->local_memory_bytes = head_local_memory_bytes(c);
    return local_new(h->loop, &lc, &lh, &h->local, e);
}

static int start_links(struct head *h, const struct head_config *c, struct err *e) {
    struct links_config lc = {.state_dir = c->state_dir,
                              .listen_addr = c->cluster_addr,
                              .heartbeat_us = h->heartbeat_us,
                              .boot = h->journal ? journal_boot(h->journal) : 0,
                              .model = {.name = c->model->name,
                                        .config_json = c->model->config_json,
                                        .config_bytes = c->model->config_bytes,
                                        .hparams = &c->model->hparams,
                                        .mode = c->mode,
                                        .max_rows = c->chunk_rows,
                                        .max_context = c->context,
                                        .tensors = c->model->tensors}};
    struct links_handlers lh = {.arg = h,
                                .joined = on_joined,
                                .lost = on_lost,
                                .heartbeat = on_heartbeat,
                                .ready = on_ready,
                                .fed = on_fed,
                                .failed = on_failed,
                                .leave = on_leave,
                                .result = on_result};
    return links_new(h->loop, &lc, &lh, &h->links, e);
}

static int start_journal(struct head *h, const struct head_config *c, struct err *e) {
    struct journal_config jc = {.state_dir = c->state_dir, .n_vocab = c->model->hparams.n_vocab};
    model_id_digest(c->model, &c->mode, jc.model);
    int rc = journal_open(&jc, &h->journal, e);
    if (rc) return rc;
    atomic_store(&h->next_id, journal_next_id(h->journal));
    if (journal_list(h->journal, &h->restored, &h->n_restored))
        return err_set(e, ERR_NOMEM, "no memory for what the journal holds");
    return ERR_OK;
}

// How long to wait for more nodes after the first. Those of a head that is started again are all there at once, and
// streams wait for them.
static uint64_t settle_us(const struct head *h, const struct head_config *c) {
    if (!c->cluster_addr) return 0;
    return h->n_restored ? 150000 : 500000;
}

static int start_brain(struct head *h, const struct head_config *c, struct err *e) {
    const struct hparams *p = &c->model->hparams;
    struct brain_config bc = {.wish = {.context = c->context,
                                       .max_blocks = head_max_blocks(c),
                                       .redundant = c->cluster_addr && c->redundancy_first},
                              .n_vocab = p->n_vocab,
                              .max_context = c->context,
                              .chunk_rows = c->chunk_rows,
                              .max_seqs = LIMIT_SEQS,
                              .redundancy = c->cluster_addr ? c->redundancy : REDUNDANCY_NONE,
                              .min_nodes = c->min_nodes,
                              .first_epoch = h->journal ? journal_last_epoch(h->journal) + 1 : 1,
                              .settle_us = settle_us(h, c),
                              .wait_for_node_us = c->wait_for_node_ms * 1000ull,
                              .heartbeat_us = h->heartbeat_us,
                              .node_timeout_us = c->node_timeout_ms * 1000ull,
                              .suspect_us = c->cluster_addr ? c->suspect_ms * 1000ull : local_patience_us,
                              .restore_us = 1000000,
                              .step_deadline_us = c->cluster_addr ? c->step_deadline_ms * 1000ull : local_patience_us,
                              .load_deadline_us = 60 * 1000000ull};
    int rc = head_plan_model(p, &c->mode, c->chunk_rows, &bc.model, e);
    return rc ? rc : brain_new(&bc, &h->brain, e);
}

static void run_loop(void *arg) {
    struct head *h = arg;
    loop_run(h->loop);
}

int head_new(const struct head_config *c, struct head **out, struct err *e) {
    struct head *h = calloc(1, sizeof *h);
    if (!h) return err_set(e, ERR_NOMEM, "no memory for the head");
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_condattr_destroy(&attr);
    map_init(&h->sinks, 2 * LIMIT_QUEUED, random_u64());
    h->context = c->context;
    h->model_name = c->model->name;
    h->heartbeat_us = c->heartbeat_ms * 1000ull;
    atomic_store(&h->next_id, 1);
    int rc = loop_new(&h->loop, e);
    if (!rc && c->cluster_addr && c->state_dir) rc = start_journal(h, c, e);
    if (!rc) rc = start_brain(h, c, e);
    if (!rc) rc = c->cluster_addr ? start_links(h, c, e) : start_local(h, c, e);
    if (!rc) {
        h->tick = loop_timer_new(h->loop, on_tick, h);
        h->publish = loop_timer_new(h->loop, on_publish, h);
        h->local_beat = loop_timer_new(h->loop, on_local_beat, h);
        if (!h->tick || !h->publish || !h->local_beat) rc = err_set(e, ERR_NOMEM, "no memory for timers");
    }
    if (!rc) rc = loop_post(h->loop, on_start, h);
    if (!rc) rc = thread_start(&h->thread, "loom-head", run_loop, h, e);
    h->thread_runs = !rc;
    if (rc) {
        head_free(h);
        return rc;
    }
    *out = h;
    return ERR_OK;
}

static void stop_on_loop(void *arg) {
    struct head *h = arg;
    h->stopping = true;
    size_t at = 0;
    uint64_t id;
    void *sink;
    while (map_next(&h->sinks, &at, &id, &sink)) {
        struct gen_event ev = {
            .id = id, .token = -1, .finish = GEN_FAILED, .code = ERR_UNAVAILABLE, .text = "the server is stopping"};
        ((struct gateway_sink *)sink)->event(sink, &ev);
    }
    map_fini(&h->sinks);
    map_init(&h->sinks, 2 * LIMIT_QUEUED, 0);
    loop_stop(h->loop);
}

void head_free(struct head *h) {
    if (!h) return;
    if (h->thread_runs) {
        while (loop_post(h->loop, stop_on_loop, h)) clock_sleep_ms(1);
        thread_join(&h->thread);
    }
    local_free(h->local);
    if (h->links) links_free(h->links);
    if (h->tick) loop_timer_free(h->tick);
    if (h->publish) loop_timer_free(h->publish);
    if (h->local_beat) loop_timer_free(h->local_beat);
    if (h->brain) brain_free(h->brain);
    if (h->loop) loop_free(h->loop);
    journal_close(h->journal);
    free(h->restored);
    map_fini(&h->sinks);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

uint32_t head_cluster_port(const struct head *h) { return h->links ? links_port(h->links) : 0; }
