// The node's place in the route of an epoch: LOAD, the link to the next stage, links that upstream nodes attach.
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dial_next(struct node *n);

static void drop_next(struct node *n) {
    link_close(n->next);
    n->next = NULL;
    loop_timer_set(n->next_timer, UINT64_MAX);
    loop_timer_set(n->blame_timer, UINT64_MAX);
}

static void on_next_up(void *arg, struct link *l) {
    struct node *n = arg;
    loop_timer_set(n->next_timer, UINT64_MAX);
    link_settle(l);
    link_set_limits(l, LINK_FIRST_CONTROL, 0, NODE_QUEUE_BYTES);
    struct frame_header h = {.type = FRAME_ATTACH, .epoch = n->epoch, .stage = n->stage_index};
    link_send_control(l, h, control_put_attach(n->control, n->route.route_key));
    route_check_ready(n);
}

static void on_next_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct node *n = arg;
    LOG_W("node", "the next stage sent a frame %s upstream", frame_name(f->h.type));
    link_close(l);
    n->next = NULL;
    session_send_failed(n, "the next stage sends nonsense");
}

// Before READY this node tries again, for a while. After it, the head mostly sees the death of that node itself and
// changes the route; only if a heartbeat later nothing has changed, this node says what it knows.
static void next_is_gone(struct node *n, const char *why) {
    uint64_t again_us = clock_now_us() + NODE_NEXT_RETRY_MS * 1000;
    loop_timer_set(n->next_timer, UINT64_MAX);
    snprintf(n->blame, sizeof n->blame, "the link to the next stage at %s: %.120s", n->route.next_address, why);
    if (n->ready_sent)
        loop_timer_set(n->blame_timer, clock_now_us() + n->heartbeat_us);
    else if (again_us < n->next_until_us)
        loop_timer_set(n->next_timer, again_us);
    else
        session_send_failed(n, n->blame);
}

static void on_next_closed(void *arg, struct link *l, const char *why) {
    struct node *n = arg;
    // One that was up shows that the way there is good: the time begins anew.
    if (link_was_up(l)) n->next_until_us = clock_now_us() + NODE_NEXT_MS * 1000;
    n->next = NULL;
    next_is_gone(n, why);
}

static void blame(void *arg) {
    struct node *n = arg;
    session_send_failed(n, n->blame);
}

// Time for another attempt, or the one that is under way took too long.
static void on_next_timer(void *arg) {
    struct node *n = arg;
    if (!n->next) {
        dial_next(n);
        return;
    }
    link_close(n->next);
    n->next = NULL;
    next_is_gone(n, "no answer");
}

static const struct link_handlers next_handlers = {.up = on_next_up, .frame = on_next_frame, .closed = on_next_closed};

static void dial_next(struct node *n) {
    struct err e;
    if (link_connect(n->loop, n->tls_connect, n->route.next_address, n->route.next_name, &next_handlers, n, &n->next,
                     &e)) {
        session_send_failed(n, e.text);
        return;
    }
    uint64_t until_us = clock_now_us() + NODE_NEXT_CONNECT_MS * 1000;
    loop_timer_set(n->next_timer, until_us < n->next_until_us ? until_us : n->next_until_us);
}

static void use_attach(struct node *n, struct node_attach *a) {
    link_close(n->prev);
    n->prev = a->link;
    uint64_t payload = (uint64_t)n->model.max_rows * (2ull * n->model.hparams.hidden + 1);
    link_set_limits(n->prev, NODE_CONTROL_BYTES,
                    payload < LIMIT_FRAME_PAYLOAD ? (uint32_t)payload : LIMIT_FRAME_PAYLOAD, LINK_QUEUE_BYTES);
    a->link = NULL;
}

// Uses what waits for this epoch, drops what waits for an older one or shows a wrong key.
static void settle_attaches(struct node *n) {
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING && n->assigned; i++) {
        struct node_attach *a = &n->attach[i];
        if (!a->link || a->epoch > n->epoch) continue;
        if (a->epoch == n->epoch && n->stage_index > 0 &&
            CRYPTO_memcmp(a->key, n->route.route_key, sizeof a->key) == 0) {
            use_attach(n, a);
        } else {
            link_close(a->link);
            a->link = NULL;
        }
    }
}

static bool add_attach(struct node *n, struct link *l, const struct link_frame *f, struct err *e) {
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING; i++) {
        struct node_attach *a = &n->attach[i];
        if (a->link) continue;
        if (control_get_attach(n->control, f->control, f->h.control_bytes, a->key, e)) return false;
        a->epoch = f->h.epoch;
        a->link = l;
        a->until_us = clock_now_us() + NODE_ATTACH_MS * 1000;
        loop_timer_set(n->attach_timer, clock_now_us() + NODE_ATTACH_MS * 1000);
        link_settle(l);
        return true;
    }
    err_set(e, ERR_LIMIT, "%d links wait for their epoch already", NODE_ATTACH_WAITING);
    return false;
}

// Links whose epoch did not come: their other end dials again if it still wants to.
static void on_attach_timer(void *arg) {
    struct node *n = arg;
    uint64_t now_us = clock_now_us(), next_us = UINT64_MAX;
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING; i++) {
        struct node_attach *a = &n->attach[i];
        if (!a->link) continue;
        if (a->until_us <= now_us) {
            LOG_W("node", "%s: the LOAD of epoch %u did not come", link_peer_address(a->link), a->epoch);
            link_close(a->link);
            a->link = NULL;
        } else if (a->until_us < next_us) {
            next_us = a->until_us;
        }
    }
    loop_timer_set(n->attach_timer, next_us);
}

static void on_peer_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct node *n = arg;
    struct err e;
    if (l == n->prev && f->h.type == FRAME_STEP) {
        route_step(n, f);
        return;
    }
    if (l != n->prev && f->h.type == FRAME_ATTACH && add_attach(n, l, f, &e)) {
        settle_attaches(n);
        return;
    }
    LOG_W("node", "%s: a frame %s out of place", link_peer_address(l), frame_name(f->h.type));
    if (l == n->prev) n->prev = NULL;
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING; i++)
        if (n->attach[i].link == l) n->attach[i].link = NULL;
    link_close(l);
}

static void on_peer_closed(void *arg, struct link *l, const char *why) {
    struct node *n = arg;
    LOG_D("node", "%s: %s", link_peer_address(l), why);
    if (l == n->prev) n->prev = NULL; // its head hears it from that node, or sees it die
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING; i++)
        if (n->attach[i].link == l) n->attach[i].link = NULL;
}

static const struct link_handlers peer_handlers = {.frame = on_peer_frame, .closed = on_peer_closed};

void route_forget(struct node *n) {
    n->assigned = n->failed = n->ready_sent = false;
    n->stage = NULL;
    n->load++;
    fetch_want(&n->compute.fetch, n->load);
    n->accepted_step = n->done_step = 0;
    drop_next(n);
    link_close(n->prev);
    n->prev = NULL;
}

static int check_load(const struct node *n, const struct frame_header *h, const struct control_load *m, struct err *e) {
    bool last = m->b == n->model.hparams.n_layers;
    if (m->b > n->model.hparams.n_layers || h->stage >= m->n_stages || last != (h->stage + 1 == m->n_stages) ||
        (m->a == 0) != (h->stage == 0) || last != (m->next_address[0] == 0) || m->n_blocks < 1)
        return err_set(e, ERR_FORMAT, "LOAD: stage %u of %u with layers [%u, %u) of %u makes no sense", h->stage,
                       m->n_stages, m->a, m->b, n->model.hparams.n_layers);
    return ERR_OK;
}

static int push_load(struct node *n) {
    if (n->n_loads >= NODE_LOADS) return ERR_LIMIT;
    struct work *w = calloc(1, sizeof *w);
    struct node_model *model = malloc(sizeof *model);
    if (w && model) {
        *model = n->model;
        *w = (struct work){.type = WORK_LOAD,
                           .load = n->load,
                           .model = model,
                           .a = n->route.a,
                           .b = n->route.b,
                           .n_blocks = n->route.n_blocks};
        if (compute_push(&n->compute, w) == ERR_OK) {
            n->n_loads++;
            return ERR_OK;
        }
    }
    free(model);
    free(w);
    return ERR_NOMEM;
}

void route_load(struct node *n, const struct frame_header *h, const struct control_load *m) {
    struct err e;
    route_forget(n);
    n->epoch = h->epoch;
    n->stage_index = h->stage;
    n->route = *m;
    n->is_last = m->next_address[0] == 0;
    n->assigned = true;
    n->next_until_us = clock_now_us() + NODE_NEXT_MS * 1000;
    if (check_load(n, h, m, &e)) {
        session_send_failed(n, e.text);
        return;
    }
    LOG_I("node", "epoch %u: stage %u of %u, layers [%u, %u), %u KV blocks", h->epoch, h->stage, m->n_stages, m->a,
          m->b, m->n_blocks);
    if (push_load(n)) {
        session_send_failed(n, "too many loads wait for this node's compute thread");
        return;
    }
    if (!n->is_last) dial_next(n);
    settle_attaches(n);
}

void route_check_ready(struct node *n) {
    if (n->ready_sent || n->failed || !n->assigned || !n->stage) return;
    if (!n->is_last && !(n->next && link_is_up(n->next))) return;
    n->ready_sent = true;
    session_send_ready(n);
}

int route_init(struct node *n, struct err *e) {
    const char *address = n->config->listen_addr ? n->config->listen_addr : "0.0.0.0:0";
    n->next_timer = loop_timer_new(n->loop, on_next_timer, n);
    n->attach_timer = loop_timer_new(n->loop, on_attach_timer, n);
    n->blame_timer = loop_timer_new(n->loop, blame, n);
    n->done_watch = loop_watch_new(n->loop, queue_fd(&n->compute.done), route_done, n);
    if (!n->next_timer || !n->blame_timer || !n->attach_timer || !n->done_watch || route_steps_init(n))
        return err_set(e, ERR_NOMEM, "node: no memory");
    return listener_new(n->loop, n->tls_listen, address, &peer_handlers, n, &n->listener, e);
}

void route_fini(struct node *n) {
    link_close(n->next);
    link_close(n->prev);
    for (uint32_t i = 0; i < NODE_ATTACH_WAITING; i++) link_close(n->attach[i].link);
    listener_free(n->listener);
    loop_timer_free(n->next_timer);
    loop_timer_free(n->blame_timer);
    loop_timer_free(n->attach_timer);
    loop_watch_free(n->done_watch);
    for (uint32_t i = 0; i < n->n_idle; i++) compute_free_work(n->idle[i]);
}
