// The session with the head.
//
//      IDLE --dial--> BULK DIALLED --up--> HEAD DIALLED --up: JOIN--> JOINING --WELCOME--> JOINED
//        ^                 |                    |                       |                    |
//        +--- retry in 100 ms .. 5 s -----------+------- REFUSED: the process ends, or retry |
//        +-------------------------- link lost, no echo: stages are kept for a while --------+
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// told: the head has said why, or it was this end that gave up; else the head's process ended, or the way to it.
static void lose(struct node *n, const char *why, bool told) {
    bool was = n->joined;
    link_close(n->head);
    link_close(n->bulk);
    n->head = n->bulk = NULL;
    n->joined = false;
    loop_timer_set(n->heartbeat_timer, UINT64_MAX);
    if (n->stopping) return;
    if (n->ending) { // there is nobody left to hand over to
        node_stop(n, ERR_OK, "");
        return;
    }
    assign_keep_all(n);
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
    // Whoever is dropped again and again comes back ever more slowly, but not who lost a head that is started again.
    bool steady = clock_now_us() - n->good_since_us >= NODE_STEADY_MS * 1000ull;
    if (was && (steady || !told)) n->retry_ms = NODE_RETRY_MIN_MS;
    loop_timer_set(n->retry_timer, clock_now_us() + n->retry_ms * 1000);
    // A head that is started again is found within a quarter of the time that it was away: streams wait for it.
    uint64_t longer_ms = n->config->once ? n->retry_ms * 2 : n->retry_ms * 5 / 4;
    n->retry_ms = longer_ms < NODE_RETRY_MAX_MS ? longer_ms : NODE_RETRY_MAX_MS;
}

static void on_closed(void *arg, struct link *l, const char *why) {
    struct node *n = arg;
    if (l == n->head) n->head = NULL;
    if (l == n->bulk) n->bulk = NULL;
    lose(n, why, false);
}

// Frames that make no sense here: the head is broken or not a head.
static void nonsense(struct node *n, const char *what) {
    LOG_W("node", "the head sent nonsense: %s", what);
    lose(n, what, true);
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
        lose(n, e.text, true);
}

static void on_bulk_up(void *arg, struct link *l) {
    struct node *n = arg;
    struct err e;
    link_settle(l); // the head's answers need no deadline: the urgent link tells whether the head lives
    link_set_limits(l, NODE_CONTROL_BYTES, LIMIT_CHUNK_BYTES, LINK_QUEUE_BYTES);
    link_send_control(l, (struct frame_header){.type = FRAME_BULK}, (struct control_bytes){0});
    if (link_connect(n->loop, n->tls_connect, n->head_address, CA_HEAD_NAME, &head_handlers, n, &n->head, &e))
        lose(n, e.text, true);
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
    // A libm may round differently on another machine: the head's bits count everywhere (NUMERICS 5).
    rc = model_rope_put(&model->hparams, m.rope, m.n_rope, e);
    if (rc) return err_prefix(e, "WELCOME");
    model->mode = (struct run_mode){.weights = (enum weight_mode)m.weights, .kv = (enum kv_type)m.kv};
    model->max_rows = m.max_rows;
    model->max_context = m.max_context;
    model->head_boot = m.boot;
    model->plan_hash = model_plan_hash(&model->hparams, &model->mode);
    if (model->plan_hash != m.plan_hash)
        return err_set(e, ERR_UNSUPPORTED, "the plan's hash is %016lx here and %016lx at the head: other programs",
                       model->plan_hash, m.plan_hash);
    n->heartbeat_us = m.heartbeat_us;
    n->number = m.node;
    LOG_I("node", "joined %s as node %lu: model %s", n->head_address, m.node, m.model);
    return ERR_OK;
}

static void describe_stages(const struct node *n, struct control_heartbeat *m) {
    LIST_EACH(it, &n->assignments) {
        const struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state == ASSIGN_ENDED || a->state == ASSIGN_FAILED || m->n_stages == LIMIT_NODE_STAGES) continue;
        jobs_describe(a, &m->stage[m->n_stages++]);
        if (!a->has_run) continue;
        struct stage_counts c;
        stage_counts(a->hold->stage, &c);
        m->steps += c.steps;
        m->busy_us += c.busy_us;
        if (c.slots_used > m->slots_used) m->slots_used = c.slots_used;
        if (c.blocks_used > m->blocks_used) m->blocks_used = c.blocks_used;
    }
}

static void send_heartbeat(void *arg) {
    struct node *n = arg;
    uint64_t now = clock_now_us(), silent = 20 * n->heartbeat_us;
    if (silent < NODE_SILENT_MS * 1000ull) silent = NODE_SILENT_MS * 1000ull;
    if (now - n->echo_at_us > silent) {
        lose(n, "it echoes no heartbeat", true);
        return;
    }
    peers_check(n, now);
    jobs_check_idle(n, now);
    struct control_heartbeat m = {.time_us = now,
                                  .rtt_us = n->rtt_us,
                                  .loading_bytes = atomic_load(&n->compute.loading_bytes),
                                  .memory_used_bytes = hold_bytes(&n->holds),
                                  .waited = atomic_load(&n->compute.waited)};
    describe_stages(n, &m);
    struct frame_header h = {.type = FRAME_HEARTBEAT, .epoch = m.n_stages ? n->epoch : 0};
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
    assign_end_foreign(n);
    link_settle(l);
    n->joined = true;
    n->echo_at_us = n->good_since_us = clock_now_us();
    send_heartbeat(n);
    if (n->away) session_send_leave(n);
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
        lose(n, why, true);
        return;
    }
    snprintf(text, sizeof text, "the head refused this node: %.400s", why);
    node_stop(n, ERR_UNSUPPORTED, text);
}

static int on_route_frame(struct node *n, const struct link_frame *f, struct err *e) {
    struct control_load load;
    struct control_next next;
    bool hot;
    int rc = ERR_OK;
    switch (f->h.type) {
    case FRAME_LOAD:
        rc = control_get_load(n->control, f->control, f->h.control_bytes, &load, e);
        if (!rc) assign_load(n, &f->h, &load);
        return rc;
    case FRAME_NEXT:
        rc = control_get_next(n->control, f->control, f->h.control_bytes, &next, e);
        if (!rc) assign_next(n, &f->h, &next);
        return rc;
    case FRAME_HOT:
        rc = control_get_hot(n->control, f->control, f->h.control_bytes, &hot, e);
        if (!rc) assign_hot(n, &f->h, hot);
        return rc;
    case FRAME_UNLOAD:
        assign_unload(n, &f->h);
        return ERR_OK;
    default:
        return err_set(e, ERR_FORMAT, "a frame %s", frame_name(f->h.type));
    }
}

static void on_joined_frame(struct node *n, const struct link_frame *f) {
    struct err e;
    struct control_heartbeat beat;
    char why[CONTROL_TEXT_MAX];
    int rc = ERR_OK;
    switch (f->h.type) {
    case FRAME_STEP:
    case FRAME_REPLAY:
        if (f->h.stage == 0)
            feed_arrived(n, NODE_SENDER_HEAD, f);
        else
            rc = err_set(&e, ERR_FORMAT, "a step for stage %u", f->h.stage);
        break;
    case FRAME_ECHO:
        rc = control_get_heartbeat(n->control, f->control, f->h.control_bytes, &beat, &e);
        if (rc) break;
        n->echo_at_us = clock_now_us();
        if (beat.time_us <= n->echo_at_us) n->rtt_us = n->echo_at_us - beat.time_us;
        if (f->h.epoch == n->epoch) feed_stable(n, f->h.step);
        break;
    case FRAME_MAY_LEAVE:
        node_may_leave(n);
        break;
    case FRAME_BYE:
        rc = control_get_text(n->control, f->control, f->h.control_bytes, why, &e);
        if (!rc) lose(n, why, true);
        break;
    default:
        rc = on_route_frame(n, f, &e);
    }
    if (rc) nonsense(n, e.text);
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

// The lazy thread's questions, on their way to the bulk link.
static void on_asks(void *arg) {
    struct node *n = arg;
    for (struct fetch_message *m = queue_pop(&n->compute.fetch.asks, 0); m; m = queue_pop(&n->compute.fetch.asks, 0)) {
        if (n->bulk) link_send_control(n->bulk, m->h, (struct control_bytes){m->data, m->bytes});
        free(m);
    }
}

void session_send(struct node *n, enum frame_type t, uint32_t epoch, uint32_t stage, uint64_t step) {
    struct frame_header h = {.type = t, .epoch = epoch, .stage = stage, .step = step};
    if (n->joined) link_send_control(n->head, h, (struct control_bytes){0});
}

void session_send_failed(struct node *n, uint32_t epoch, uint32_t stage, enum stage_failure what, const char *why) {
    if (!n->joined) return;
    n->good_since_us = clock_now_us();
    LOG_W("node", "epoch %u, stage %u: %s", epoch, stage, why);
    struct frame_header h = {.type = FRAME_FAILED, .epoch = epoch, .stage = stage};
    link_send_control(n->head, h, control_put_failed(n->control, why, what));
}

void session_send_tokens(struct node *n, const struct assignment *a, const struct step_result *r) {
    struct frame_header h = {.type = FRAME_TOKENS, .epoch = a->epoch, .stage = a->stage, .step = r->id};
    if (n->joined) link_send_control(n->head, h, control_put_tokens(n->control, r));
}

void session_send_leave(struct node *n) {
    if (n->joined)
        link_send_control(n->head, (struct frame_header){.type = FRAME_LEAVE},
                          control_put_leave(n->control, n->away, n->away_why));
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
}

void session_fini(struct node *n) {
    link_close(n->head);
    link_close(n->bulk);
    loop_timer_free(n->heartbeat_timer);
    loop_timer_free(n->retry_timer);
    loop_watch_free(n->ask_watch);
}
