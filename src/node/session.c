// The session with the head.
//
//      IDLE --dial--> BULK DIALLED --up--> HEAD DIALLED --up: JOIN--> JOINING --WELCOME--> JOINED
//        ^                 |                    |                       |                    |
//        +--- retry in 100 ms .. 5 s -----------+------- REFUSED: the process ends, or retry |
//        +-------------------------- link lost, no echo: the epoch is forgotten -------------+
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void lose(struct node *n, const char *why) {
    bool was = n->joined;
    link_close(n->head);
    link_close(n->bulk);
    n->head = n->bulk = NULL;
    n->joined = false;
    loop_timer_set(n->heartbeat_timer, UINT64_MAX);
    route_forget(n);
    if (n->stopping) return;
    if (n->config->once && was) { // its time is over, which is no failure
        LOG_I("node", "the head at %s is gone: %s", n->head_address, why);
        node_stop(n, ERR_OK, "");
        return;
    }
    if (n->config->once && n->retry_ms >= NODE_RETRY_MAX_MS) {
        char text[ERR_TEXT_MAX];
        snprintf(text, sizeof text, "no head at %s: %s", n->head_address, why);
        node_stop(n, ERR_NET, text);
        return;
    }
    if (was || n->retry_ms >= NODE_RETRY_MAX_MS) LOG_W("node", "no head at %s: %s", n->head_address, why);
    // Whoever is dropped again and again comes back ever more slowly.
    if (was && clock_now_us() - n->good_since_us >= NODE_STEADY_MS * 1000ull) n->retry_ms = NODE_RETRY_MIN_MS;
    loop_timer_set(n->retry_timer, clock_now_us() + n->retry_ms * 1000);
    n->retry_ms = n->retry_ms * 2 < NODE_RETRY_MAX_MS ? n->retry_ms * 2 : NODE_RETRY_MAX_MS;
}

static void on_closed(void *arg, struct link *l, const char *why) {
    struct node *n = arg;
    if (l == n->head) n->head = NULL;
    if (l == n->bulk) n->bulk = NULL;
    lose(n, why);
}

// Frames that make no sense here: the head is broken or not a head.
static void nonsense(struct node *n, const char *what) {
    LOG_W("node", "the head sent nonsense: %s", what);
    lose(n, what);
}

static void on_bulk_frame(void *arg, struct link *l, const struct link_frame *f) {
    (void)l;
    struct node *n = arg;
    int rc = ERR_FORMAT;
    if (f->h.type == FRAME_MANIFEST)
        rc = fetch_answer(&n->compute.fetch, &f->h, f->control, f->h.control_bytes);
    else if (f->h.type == FRAME_CHUNK)
        rc = fetch_answer(&n->compute.fetch, &f->h, f->payload, f->h.payload_bytes);
    if (rc) nonsense(n, "a bulk answer that nobody asked for");
}

static void on_bulk_up(void *arg, struct link *l);
static void on_head_up(void *arg, struct link *l);
static void on_head_frame(void *arg, struct link *l, const struct link_frame *f);

static const struct link_handlers bulk_handlers = {.up = on_bulk_up, .frame = on_bulk_frame, .closed = on_closed};
static const struct link_handlers head_handlers = {.up = on_head_up, .frame = on_head_frame, .closed = on_closed};

void session_dial(void *arg) {
    struct node *n = arg;
    struct err e;
    if (link_connect(n->loop, n->tls_connect, n->head_address, CA_HEAD_NAME, &bulk_handlers, n, &n->bulk, &e))
        lose(n, e.text);
}

static void on_bulk_up(void *arg, struct link *l) {
    struct node *n = arg;
    struct err e;
    link_settle(l); // the head's answers need no deadline: the urgent link tells whether the head lives
    link_set_limits(l, NODE_CONTROL_BYTES, LIMIT_CHUNK_BYTES, LINK_QUEUE_BYTES);
    link_send_control(l, (struct frame_header){.type = FRAME_BULK}, (struct control_bytes){0});
    if (link_connect(n->loop, n->tls_connect, n->head_address, CA_HEAD_NAME, &head_handlers, n, &n->head, &e))
        lose(n, e.text);
}

static void on_head_up(void *arg, struct link *l) {
    struct node *n = arg;
    struct control_join m = {.ln = CONTROL_LN,
                             .port = listener_port(n->listener),
                             .selftest = n->selftest,
                             .memory_bytes = n->memory_bytes,
                             .boot = n->boot};
    snprintf(m.isa, sizeof m.isa, "%s", isa_name(n->isa));
    memcpy(m.name, n->name, sizeof m.name);
    link_set_limits(l, NODE_CONTROL_BYTES, LIMIT_CONFIG_BYTES, LINK_QUEUE_BYTES);
    link_send_control(l, (struct frame_header){.type = FRAME_JOIN}, control_put_join(n->control, &m));
}

// The head's word on the model, checked by making the same of it here.
static int take_welcome(struct node *n, const struct link_frame *f, struct err *e) {
    struct control_welcome m;
    int rc = control_get_welcome(n->control, f->control, f->h.control_bytes, &m, e);
    struct node_model *model = &n->model;
    memset(model, 0, sizeof *model);
    if (!rc) rc = model_parse_config((const char *)f->payload, f->h.payload_bytes, &model->hparams, e);
    if (rc) return rc;
    if (m.weights > WEIGHTS_Q4_0 || m.kv > KV_F16 || m.verify)
        return err_set(e, ERR_UNSUPPORTED, "the head asks for a run mode that this program does not know");
    if (m.n_freq != model->hparams.n_freq)
        return err_set(e, ERR_FORMAT, "WELCOME: %u frequencies, the model has %u", m.n_freq, model->hparams.n_freq);
    // A libm may round differently on another machine: the head's bits count everywhere (NUMERICS 5).
    memcpy(model->hparams.fq, m.fq, m.n_freq * sizeof m.fq[0]);
    model->hparams.rope_factor = m.rope_factor;
    model->mode = (struct run_mode){.weights = (enum weight_mode)m.weights, .kv = (enum kv_type)m.kv};
    model->max_rows = m.max_rows;
    model->max_context = m.max_context;
    model->head_boot = m.boot;
    model->plan_hash = model_plan_hash(&model->hparams, &model->mode);
    if (model->plan_hash != m.plan_hash)
        return err_set(e, ERR_UNSUPPORTED, "the plan's hash is %016lx here and %016lx at the head: other programs",
                       model->plan_hash, m.plan_hash);
    n->heartbeat_us = m.heartbeat_us;
    LOG_I("node", "joined %s as node %lu: model %s", n->head_address, m.node, m.model);
    return ERR_OK;
}

static void send_heartbeat(void *arg) {
    struct node *n = arg;
    uint64_t now = clock_now_us(), silent = 20 * n->heartbeat_us;
    if (silent < NODE_SILENT_MS * 1000ull) silent = NODE_SILENT_MS * 1000ull;
    if (now - n->echo_at_us > silent) {
        lose(n, "it echoes no heartbeat");
        return;
    }
    struct stage_counts counts = {0};
    if (n->assigned && !n->failed && n->stage) stage_counts(n->stage, &counts);
    struct control_heartbeat m = {.time_us = now,
                                  .rtt_us = n->rtt_us,
                                  .loading_bytes = atomic_load(&n->compute.loading_bytes),
                                  .memory_used_bytes = n->stage ? n->stage_bytes : 0,
                                  .steps = counts.steps,
                                  .busy_us = counts.busy_us,
                                  .slots_used = counts.slots_used,
                                  .blocks_used = counts.blocks_used};
    struct frame_header h = {
        .type = FRAME_HEARTBEAT, .epoch = n->assigned ? n->epoch : 0, .stage = n->stage_index, .step = n->done_step};
    link_send_control(n->head, h, control_put_heartbeat(n->control, &m));
    loop_timer_set(n->heartbeat_timer, now + n->heartbeat_us);
}

static void on_welcome(struct node *n, struct link *l, const struct link_frame *f) {
    struct err e;
    int rc = take_welcome(n, f, &e);
    if (rc) {
        node_stop(n, rc, e.text);
        return;
    }
    link_settle(l);
    n->joined = true;
    n->echo_at_us = n->good_since_us = clock_now_us();
    send_heartbeat(n);
}

static void on_refused(struct node *n, const struct link_frame *f) {
    char why[CONTROL_TEXT_MAX], text[ERR_TEXT_MAX];
    bool retry;
    struct err e;
    if (control_get_refused(n->control, f->control, f->h.control_bytes, why, &retry, &e)) {
        nonsense(n, e.text);
        return;
    }
    if (retry) {
        LOG_W("node", "the head refused this node, which tries again: %s", why);
        lose(n, why);
        return;
    }
    snprintf(text, sizeof text, "the head refused this node: %.400s", why);
    node_stop(n, ERR_UNSUPPORTED, text);
}

static void on_joined_frame(struct node *n, const struct link_frame *f) {
    struct err e;
    struct control_load load;
    struct control_heartbeat beat;
    char why[CONTROL_TEXT_MAX];
    switch (f->h.type) {
    case FRAME_STEP:
        route_step(n, f);
        return;
    case FRAME_ECHO:
        if (control_get_heartbeat(n->control, f->control, f->h.control_bytes, &beat, &e)) break;
        n->echo_at_us = clock_now_us();
        if (beat.time_us <= n->echo_at_us) n->rtt_us = n->echo_at_us - beat.time_us;
        return;
    case FRAME_LOAD:
        if (control_get_load(n->control, f->control, f->h.control_bytes, &load, &e)) break;
        route_load(n, &f->h, &load);
        return;
    case FRAME_BYE:
        if (control_get_text(n->control, f->control, f->h.control_bytes, why, &e)) break;
        lose(n, why);
        return;
    default:
        err_set(&e, ERR_FORMAT, "a frame %s", frame_name(f->h.type));
    }
    nonsense(n, e.text);
}

static void on_head_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct node *n = arg;
    if (n->joined)
        on_joined_frame(n, f);
    else if (f->h.type == FRAME_WELCOME)
        on_welcome(n, l, f);
    else if (f->h.type == FRAME_REFUSED)
        on_refused(n, f);
    else
        nonsense(n, "a frame before WELCOME");
}

// The compute thread's questions, on their way to the bulk link.
static void on_asks(void *arg) {
    struct node *n = arg;
    for (struct fetch_message *m = queue_pop(&n->compute.fetch.asks, 0); m; m = queue_pop(&n->compute.fetch.asks, 0)) {
        if (n->bulk) link_send_control(n->bulk, m->h, (struct control_bytes){m->data, m->bytes});
        free(m);
    }
}

void session_send_ready(struct node *n) {
    struct frame_header h = {.type = FRAME_READY, .epoch = n->epoch, .stage = n->stage_index};
    if (n->head) link_send_control(n->head, h, (struct control_bytes){0});
}

void session_send_failed(struct node *n, const char *why) {
    if (n->failed || !n->head) return;
    n->failed = true;
    n->good_since_us = clock_now_us();
    LOG_W("node", "epoch %u: %s", n->epoch, why);
    struct frame_header h = {.type = FRAME_FAILED, .epoch = n->epoch, .stage = n->stage_index};
    link_send_control(n->head, h, control_put_text(n->control, why));
}

int session_init(struct node *n, struct err *e) {
    n->retry_ms = NODE_RETRY_MIN_MS;
    n->heartbeat_timer = loop_timer_new(n->loop, send_heartbeat, n);
    n->retry_timer = loop_timer_new(n->loop, session_dial, n);
    n->ask_watch = loop_watch_new(n->loop, queue_fd(&n->compute.fetch.asks), on_asks, n);
    if (!n->heartbeat_timer || !n->retry_timer || !n->ask_watch) return err_set(e, ERR_NOMEM, "node: no memory");
    session_dial(n);
    return ERR_OK;
}

void session_bye(struct node *n) {
    if (n->joined)
        link_send_control(n->head, (struct frame_header){.type = FRAME_BYE},
                          control_put_text(n->control, "it was told to stop"));
    link_finish(n->head);
    link_close(n->bulk);
    n->head = n->bulk = NULL;
    n->joined = false;
    loop_timer_set(n->heartbeat_timer, UINT64_MAX);
    loop_timer_set(n->retry_timer, UINT64_MAX);
    route_forget(n);
}

void session_fini(struct node *n) {
    link_close(n->head);
    link_close(n->bulk);
    loop_timer_free(n->heartbeat_timer);
    loop_timer_free(n->retry_timer);
    loop_watch_free(n->ask_watch);
}
