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
#include "net/loop.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/random.h"
#include "os/thread.h"

enum { PUBLISH_US = 100000 };
// The local stages are one node to the brain (h->local_node). They cannot go away, so no step of theirs is ever late.
static const uint64_t local_patience_us = 365 * 86400 * 1000000ull;
// The canary is a request of the head's own: one token through all stages before /health says ready.
static const uint64_t canary_id = UINT64_MAX;

// One request on its way from a gateway thread to the loop; owns a copy of the prompt.
struct submission {
    struct head *head;
    uint64_t id;
    struct gateway_sink *sink;
    struct gen_request request;
    int32_t prompt[];
};

struct cancellation {
    struct head *head;
    uint64_t id;
};

static void act(struct head *h);

// ---- events to the one who asked

static void canary_failed(struct head *h, int code, const char *text) {
    LOG_W("head", "the first token did not come: %s", text);
    err_set(&h->canary_err, code, "%s", text);
    head_publish(h);
}

static void hand_over(struct head *h, const struct gen_event *ev) {
    if (ev->token >= 0 && !h->ready && h->route_up) {
        h->ready = true;
        LOG_I("head", "ready: a token came through all %u stages of epoch %u", h->n_stages, h->epoch);
        head_publish(h);
    }
    if (ev->id == canary_id) {
        if (ev->finish != GEN_GOING) h->canary_runs = false;
        if (ev->finish == GEN_FAILED) canary_failed(h, ev->code, ev->text);
        return;
    }
    struct gateway_sink *sink = ev->finish == GEN_GOING ? map_get(&h->sinks, ev->id) : map_remove(&h->sinks, ev->id);
    if (sink) sink->event(sink, ev);
}

static void fail(struct head *h, uint64_t id, int code, const char *text) {
    struct gen_event ev = {.id = id, .token = -1, .finish = GEN_FAILED, .code = code, .text = text};
    hand_over(h, &ev);
}

static void start_canary(struct head *h) {
    if (h->canary_runs) return;
    static const int32_t prompt[1] = {0};
    struct gen_request r = {.prompt = prompt, .n_prompt = 1, .max_tokens = 1, .sampling = {.top_p = 1}};
    struct err e;
    h->canary_runs = true;
    h->canary_err = (struct err){0};
    int rc = brain_submit(h->brain, clock_now_us(), canary_id, &r, &e);
    if (rc) {
        h->canary_runs = false;
        canary_failed(h, rc, e.text);
    }
}

// ---- what the brain decided

static void carry_out(struct head *h, const struct brain_action *a) {
    switch (a->type) {
    case ACT_LOAD:
        if (h->local)
            local_load(h->local, a->load.epoch, a->load.n_blocks);
        else
            links_load(h->links, &a->load);
        break;
    case ACT_STEP:
        if (h->local)
            local_step(h->local, a->step);
        else
            links_step(h->links, a->node, a->step);
        break;
    case ACT_EVENT:
        hand_over(h, &a->event);
        break;
    case ACT_DROP_NODE:
        if (h->links)
            links_drop(h->links, a->node, a->why);
        else
            h->local_lost = true; // a step failed: they join anew at the next beat
        break;
    case ACT_ROUTE_UP:
        LOG_I("head", "route of epoch %u is up: %u stage%s", a->epoch, a->n_stages, a->n_stages == 1 ? "" : "s");
        h->route_up = true;
        h->epoch = a->epoch;
        h->n_stages = a->n_stages;
        h->wants_canary = true;
        break;
    case ACT_ROUTE_DOWN:
        LOG_W("head", "no route: %s", a->why);
        h->route_up = h->ready = false;
        break;
    }
}

// Carries out everything that an event led to, then sets the clock for the next one.
static void act(struct head *h) {
    struct brain_action a;
    bool route_changed = false;
    do {
        while (brain_next(h->brain, &a)) {
            route_changed |= a.type == ACT_ROUTE_UP || a.type == ACT_ROUTE_DOWN;
            carry_out(h, &a);
        }
        if (!h->wants_canary) break;
        h->wants_canary = false;
        start_canary(h);
    } while (true);
    if (route_changed) head_publish(h);
    loop_timer_set(h->tick, brain_deadline_us(h->brain));
}

// ---- events from the stages

static void on_tick(void *arg) {
    struct head *h = arg;
    brain_tick(h->brain, clock_now_us());
    act(h);
}

static void on_publish(void *arg) {
    struct head *h = arg;
    head_publish(h);
    loop_timer_set(h->publish, clock_now_us() + PUBLISH_US);
}

static void on_joined(void *arg, uint64_t node, uint64_t memory_bytes) {
    struct head *h = arg;
    brain_node_joined(h->brain, clock_now_us(), node, memory_bytes);
    act(h);
}

static void on_lost(void *arg, uint64_t node, const char *why) {
    struct head *h = arg;
    brain_node_lost(h->brain, clock_now_us(), node, why);
    act(h);
}

static void on_heartbeat(void *arg, uint64_t node, uint32_t epoch, uint64_t done_step, uint64_t loading_bytes) {
    struct head *h = arg;
    brain_heartbeat(h->brain, clock_now_us(), node, epoch, done_step, loading_bytes);
    act(h);
}

static void on_ready(void *arg, uint64_t node, uint32_t epoch) {
    struct head *h = arg;
    brain_node_ready(h->brain, clock_now_us(), node, epoch);
    act(h);
}

static void on_failed(void *arg, uint64_t node, uint32_t epoch, const char *why) {
    struct head *h = arg;
    brain_node_failed(h->brain, clock_now_us(), node, epoch, why);
    act(h);
}

static void on_result(void *arg, const struct step_result *r) {
    struct head *h = arg;
    uint64_t t0 = clock_now_us();
    brain_step_result(h->brain, t0, r);
    act(h);
    atomic_fetch_add_explicit(&h->result_us, clock_now_us() - t0, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->n_results, 1, memory_order_relaxed);
}

static void on_local_beat(void *arg) {
    struct head *h = arg;
    if (h->local_lost) {
        h->local_lost = false;
        h->local_node++;
        on_joined(h, h->local_node, h->local_memory_bytes);
    }
    brain_heartbeat(h->brain, clock_now_us(), h->local_node, h->epoch, 0, 0);
    act(h);
    loop_timer_set(h->local_beat, clock_now_us() + h->heartbeat_us);
}

static void on_local_ready(void *arg, uint32_t epoch) { on_ready(arg, ((struct head *)arg)->local_node, epoch); }

static void on_local_failed(void *arg, uint32_t epoch, const char *why) {
    LOG_W("head", "local stages, epoch %u: %s", epoch, why);
    on_failed(arg, ((struct head *)arg)->local_node, epoch, why);
}

static void on_start(void *arg) {
    struct head *h = arg;
    h->local_lost = h->local != NULL; // joins at the first beat
    if (h->local) on_local_beat(h);
    on_publish(h);
    act(h);
}

// ---- requests from gateway threads

static void take_submission(void *arg) {
    struct submission *s = arg;
    struct head *h = s->head;
    struct err e;
    int rc = map_put(&h->sinks, s->id, s->sink);
    if (rc) {
        // Without a place in the map the sink would never hear of its request: tell it here.
        struct gen_event ev = {.id = s->id,
                               .token = -1,
                               .finish = GEN_FAILED,
                               .code = ERR_UNAVAILABLE,
                               .text = "too many requests are open"};
        s->sink->event(s->sink, &ev);
        free(s);
        return;
    }
    rc = h->stopping ? err_set(&e, ERR_UNAVAILABLE, "the server is stopping")
                     : brain_submit(h->brain, clock_now_us(), s->id, &s->request, &e);
    if (rc) fail(h, s->id, rc, e.text);
    free(s);
    act(h);
}

static int op_submit(void *head, const struct gen_request *r, struct gateway_sink *sink, uint64_t *id, struct err *e) {
    struct head *h = head;
    if (r->n_prompt < 1 || r->max_tokens < 1)
        return err_set(e, ERR_USAGE, "%u prompt tokens and %u to answer: each has to be at least 1", r->n_prompt,
                       r->max_tokens);
    if (r->n_prompt > h->context || r->max_tokens > h->context - r->n_prompt)
        return err_set(e, ERR_LIMIT, "%u prompt tokens and %u to answer are over the window of %u", r->n_prompt,
                       r->max_tokens, h->context);
    struct submission *s = malloc(sizeof *s + r->n_prompt * sizeof s->prompt[0]);
    if (!s) return err_set(e, ERR_NOMEM, "no memory for the prompt");
    memcpy(s->prompt, r->prompt, r->n_prompt * sizeof s->prompt[0]);
    s->request = *r;
    s->request.prompt = s->prompt;
    s->head = h;
    s->sink = sink;
    s->id = *id = atomic_fetch_add(&h->next_id, 1);
    int rc = loop_post(h->loop, take_submission, s);
    if (rc) {
        free(s);
        return err_set(e, ERR_UNAVAILABLE, "too many requests wait");
    }
    return ERR_OK;
}

static void take_cancellation(void *arg) {
    struct cancellation *c = arg;
    brain_cancel(c->head->brain, clock_now_us(), c->id);
    act(c->head);
    free(c);
}

static void op_cancel(void *head, uint64_t id) {
    struct head *h = head;
    struct cancellation *c = malloc(sizeof *c);
    if (c) {
        *c = (struct cancellation){.head = h, .id = id};
        if (!loop_post(h->loop, take_cancellation, c)) return;
        free(c);
    }
    LOG_E("head", "request %llu could not be cancelled: it will run to its end", (unsigned long long)id);
}

struct gateway_ops head_gateway_ops(struct head *h) {
    return (struct gateway_ops){.head = h,
                                .submit = op_submit,
                                .cancel = op_cancel,
                                .health = head_health,
                                .metrics = head_metrics,
                                .status = head_status};
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
    struct local_handlers lh = {.arg = h, .ready = on_local_ready, .failed = on_local_failed, .result = on_result};
    h->local_memory_bytes = c->memory_bytes ? c->memory_bytes : cpu_memory_available_bytes() / 10 * 9;
    return local_new(h->loop, &lc, &lh, &h->local, e);
}

static int start_links(struct head *h, const struct head_config *c, struct err *e) {
    struct links_config lc = {.state_dir = c->state_dir,
                              .listen_addr = c->cluster_addr,
                              .heartbeat_us = h->heartbeat_us,
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
                                .failed = on_failed,
                                .result = on_result};
    return links_new(h->loop, &lc, &lh, &h->links, e);
}

static int start_brain(struct head *h, const struct head_config *c, struct err *e) {
    const struct hparams *p = &c->model->hparams;
    uint32_t blocks_of_one = (c->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    struct brain_config bc = {.wish = {.context = c->context, .max_blocks = blocks_of_one * c->sequences},
                              .n_vocab = p->n_vocab,
                              .max_context = c->context,
                              .chunk_rows = c->chunk_rows,
                              .max_seqs = LIMIT_SEQS,
                              .min_nodes = c->min_nodes,
                              .settle_us = c->cluster_addr ? 500000 : 0,
                              .wait_for_node_us = c->wait_for_node_ms * 1000ull,
                              .heartbeat_us = h->heartbeat_us,
                              .node_timeout_us = c->node_timeout_ms * 1000ull,
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
    map_fini(&h->sinks);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

uint32_t head_cluster_port(const struct head *h) { return h->links ? links_port(h->links) : 0; }
