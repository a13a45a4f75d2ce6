#include "head/links_int.h"

#include "base/log.h"
#include "compute/selftest.h"
#include "net/lock.h"
#include "os/clock.h"
#include "os/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool links_forget(struct peer *p) {
    struct links *k = p->links;
    bool node = p->kind == PEER_NODE;
    list_remove(&p->all);
    if (node) map_remove(&k->nodes, p->id);
    k->waited_gone += p->info.waited;
    p->kind = PEER_GONE;
    p->link = NULL;
    list_push_back(&k->gone, &p->all);
    loop_timer_set(k->later, 0);
    return node;
}

static void lose(struct peer *p, const char *why) {
    struct links *k = p->links;
    if (!links_forget(p)) return;
    LOG_W("links", "node %lu is lost: %s", p->id, why);
    k->handlers.lost(k->handlers.arg, p->id, why);
}

static void on_later(void *arg) {
    struct links *k = arg;
    LIST_EACH(it, &k->gone) free(LIST_ENTRY(it, struct peer, all));
    list_init(&k->gone);
    LIST_EACH(it, &k->peers) {
        struct peer *p = LIST_ENTRY(it, struct peer, all);
        if (!p->fails) continue;
        p->fails = false;
        loop_timer_set(k->later, 0); // what follows may change the list: one at a time
        k->handlers.failed(k->handlers.arg, p->id, p->fails_epoch, p->fails_stage, STAGE_BROKEN,
                           "it holds as many stages as a node can hold");
        return;
    }
    if (!k->feed_fails) return;
    k->feed_fails = false;
    LOG_W("links", "epoch %u: stage 0 cannot be filled: %s", k->epoch, k->feed_e.text);
    k->handlers.failed(k->handlers.arg, CLUSTER_HEAD, k->epoch, 0, STAGE_NO_REPLAY, k->feed_e.text);
}

void links_refuse(struct peer *p, const char *why, bool retry) {
    link_send_control(p->link, (struct frame_header){.type = FRAME_REFUSED},
                      control_put_refused(p->links->control, why, retry));
    link_finish(p->link);
    lose(p, why);
}

void links_say_bye(struct peer *p, const char *why) {
    struct control_bytes text = control_put_text(p->links->control, why);
    link_send_control(p->link, (struct frame_header){.type = FRAME_BYE}, text);
    link_finish(p->link);
}

void links_nonsense(struct peer *p, const char *why) {
    LOG_W("links", "%s (%s): %s", link_peer_address(p->link), link_peer_name(p->link), why);
    if (p->kind == PEER_NODE)
        links_say_bye(p, why);
    else
        link_close(p->link);
    lose(p, why);
}

static void on_closed(void *arg, struct link *l, const char *why) {
    struct peer *p = arg;
    if (p->kind == PEER_NEW && !p->enrolled) LOG_I("links", "%s: no link: %s", link_peer_address(l), why);
    lose(p, why);
}

static void on_new_frame(struct peer *p, const struct link_frame *f) {
    bool proven = link_peer_name(p->link)[0] != 0;
    if (f->h.type == FRAME_ENROL && !proven) {
        links_enrol(p, f);
    } else if (f->h.type == FRAME_JOIN && proven) {
        links_join(p, f);
    } else if (f->h.type == FRAME_BULK && proven) {
        p->kind = PEER_BULK;
        link_settle(p->link);
        link_set_limits(p->link, LINKS_BULK_CONTROL, 0, LINKS_QUEUE_BYTES);
        link_set_bulk(p->link, true);
    } else {
        links_nonsense(p, "its first frame is not one that it may send");
    }
}

static void on_bulk_frame(struct peer *p, const struct link_frame *f) {
    if (f->h.type != FRAME_ASK && f->h.type != FRAME_FETCH) {
        links_nonsense(p, "a frame on a bulk link that asks for nothing");
    } else if (++p->asks > LIMIT_BULK_ASKS) {
        links_nonsense(p, "it has too many questions at once");
    } else if (serve_push(&p->links->serve, p->id, f)) {
        links_nonsense(p, "no room for its questions");
    }
}

static void on_heartbeat(struct peer *p, const struct link_frame *f, struct err *e) {
    struct links *k = p->links;
    struct control_heartbeat m;
    struct cluster_stage_state state[LIMIT_NODE_STAGES];
    if (control_get_heartbeat(k->control, f->control, f->h.control_bytes, &m, e)) {
        links_nonsense(p, e->text);
        return;
    }
    p->info.memory_used_bytes = m.memory_used_bytes;
    bool current = f->h.epoch == p->info.epoch; // else it tells of stages that it is about to give up
    p->info.slots_used = current ? m.slots_used : 0;
    p->info.blocks_used = current ? m.blocks_used : 0;
    p->info.steps = m.steps;
    p->info.busy_us = m.busy_us;
    p->info.waited = m.waited;
    p->info.rtt_ms = (double)m.rtt_us / 1000;
    for (uint32_t i = 0; i < m.n_stages; i++) {
        const struct control_stage_state *s = &m.stage[i];
        state[i] = (struct cluster_stage_state){
            .stage = s->stage, .accepted = s->accepted, .done = s->done, .lag_us = s->lag_us};
        struct links_stage *held = current ? links_stage_of(&p->info, s->stage) : NULL;
        if (!held) continue;
        held->accepted = s->accepted;
        held->done = s->done;
        held->lag_us = s->lag_us;
        held->waiting_rows = s->waiting_rows;
    }
    struct control_heartbeat echo = {.time_us = m.time_us};
    struct frame_header h = {.type = FRAME_ECHO, .epoch = k->epoch, .step = k->stable};
    link_send_control(p->link, h, control_put_heartbeat(k->control, &echo));
    k->handlers.heartbeat(k->handlers.arg, p->id, f->h.epoch, state, m.n_stages, m.loading_bytes);
}

static void on_tokens(struct peer *p, const struct link_frame *f, struct err *e) {
    struct links *k = p->links;
    struct step_result r = {.id = f->h.step, .epoch = f->h.epoch};
    if (f->h.epoch != k->epoch || f->h.epoch != p->info.epoch || !links_holds_last(&p->info)) return; // is, or was
    int rc = control_get_tokens(k->control, f->control, f->h.control_bytes, &r, e);
    for (uint32_t i = 0; i < r.n && !rc; i++)
        if (r.entry[i].token >= (int32_t)k->model.hparams->n_vocab)
            rc =
                err_set(e, ERR_FORMAT, "TOKENS: token %d is not below %u", r.entry[i].token, k->model.hparams->n_vocab);
    if (rc)
        links_nonsense(p, e->text);
    else
        k->handlers.result(k->handlers.arg, p->id, &r);
}

static void on_failed(struct peer *p, const struct link_frame *f, struct err *e) {
    struct links *k = p->links;
    char why[CONTROL_TEXT_MAX];
    enum stage_failure what;
    if (control_get_failed(k->control, f->control, f->h.control_bytes, why, &what, e)) {
        links_nonsense(p, e->text);
        return;
    }
    LOG_W("links", "node %lu: stage %u of epoch %u: %s", p->id, f->h.stage, f->h.epoch, why);
    k->handlers.failed(k->handlers.arg, p->id, f->h.epoch, f->h.stage, what, why);
}

static void on_node_frame(struct peer *p, const struct link_frame *f) {
    struct links *k = p->links;
    char why[CONTROL_TEXT_MAX];
    bool leave;
    struct err e;
    p->heard_us = clock_now_us();
    if (f->h.stage >= LIMIT_STAGES) {
        links_nonsense(p, "it speaks of a stage that cannot be");
        return;
    }
    switch (f->h.type) {
    case FRAME_TOKENS:
        on_tokens(p, f, &e);
        return;
    case FRAME_HEARTBEAT:
        on_heartbeat(p, f, &e);
        return;
    case FRAME_READY:
        k->handlers.ready(k->handlers.arg, p->id, f->h.epoch, f->h.stage);
        return;
    case FRAME_FED:
        k->handlers.fed(k->handlers.arg, p->id, f->h.epoch, f->h.stage);
        return;
    case FRAME_FAILED:
        on_failed(p, f, &e);
        return;
    case FRAME_LEAVE:
        if (control_get_leave(k->control, f->control, f->h.control_bytes, &leave, why, &e)) break;
        LOG_I("links", "node %lu %s: %s", p->id, leave ? "wants to leave" : "stays", why);
        k->handlers.leave(k->handlers.arg, p->id, leave, why);
        return;
    case FRAME_BYE:
        if (control_get_text(k->control, f->control, f->h.control_bytes, why, &e)) break;
        link_close(p->link);
        lose(p, why);
        return;
    default:
        err_set(&e, ERR_FORMAT, "a node does not send %s here", frame_name(f->h.type));
    }
    links_nonsense(p, e.text);
}

static void on_frame(void *arg, struct link *l, const struct link_frame *f) {
    (void)l;
    struct peer *p = arg;
    if (p->kind == PEER_NODE)
        on_node_frame(p, f);
    else if (p->kind == PEER_BULK)
        on_bulk_frame(p, f);
    else
        on_new_frame(p, f);
}

static void on_drained(void *arg, struct link *l) {
    struct peer *p = arg;
    (void)l;
    if (p->kind == PEER_NODE) links_pump(p->links, p->id);
}

static const struct link_handlers peer_handlers = {.frame = on_frame, .closed = on_closed, .drained = on_drained};

static void on_accepted_up(void *arg, struct link *l) {
    struct links *k = arg;
    struct peer *p = calloc(1, sizeof *p);
    if (!p) {
        link_close(l);
        return;
    }
    p->links = k;
    p->link = l;
    p->id = k->next_id++;
    list_push_back(&k->peers, &p->all);
    link_set_handlers(l, &peer_handlers, p);
}

static void on_accepted_frame(void *arg, struct link *l, const struct link_frame *f) {
    (void)arg;
    (void)f;
    link_close(l); // cannot be: up() changed the handlers
}

static void on_accepted_closed(void *arg, struct link *l, const char *why) {
    (void)arg;
    LOG_I("links", "%s: no link: %s", link_peer_address(l), why);
}

static const struct link_handlers accepted_handlers = {
    .up = on_accepted_up, .frame = on_accepted_frame, .closed = on_accepted_closed};

static struct peer *peer_by_id(struct links *k, uint64_t id) {
    LIST_EACH(it, &k->peers) {
        struct peer *p = LIST_ENTRY(it, struct peer, all);
        if (p->id == id) return p;
    }
    return NULL;
}

static void on_answers(void *arg) {
    struct links *k = arg;
    for (struct serve_job *j = queue_pop(&k->serve.answers, 0); j; j = queue_pop(&k->serve.answers, 0)) {
        struct peer *p = peer_by_id(k, j->peer); // NULL: it went away meanwhile
        if (p && j->rc) {
            links_nonsense(p, j->e.text);
        } else if (p) {
            p->asks--;
            if (j->payload)
                link_send_owned(p->link, j->h, j->payload, j->payload_bytes, j->payload_crc);
            else
                link_send_control(p->link, j->h, (struct control_bytes){j->control, j->control_bytes});
            j->payload = NULL;
        }
        serve_free_job(j);
    }
}

static int own_selftest(struct links *k, struct err *e) {
    struct selftest_result *r = malloc(sizeof *r);
    int rc = r ? selftest_run(isa_best(), r, e) : err_set(e, ERR_NOMEM, "links: no memory");
    if (!rc) k->selftest = selftest_digest(r);
    free(r);
    return rc;
}

static int open_links(struct links *k, const struct links_config *c, struct err *e) {
    k->control = control_new();
    k->state_dir = strdup(c->state_dir);
    if (!k->control || !k->state_dir) return err_set(e, ERR_NOMEM, "links: no memory");
    int rc = lock_take(c->state_dir, "head.lock", false, &k->lock, e);
    if (rc == ERR_UNAVAILABLE) return err_set(e, rc, "%s: another head runs with this state folder", c->state_dir);
    if (!rc) rc = own_selftest(k, e);
    if (!rc) rc = serve_init(&k->serve, c->model.tensors, e);
    if (!rc) rc = ca_open(c->state_dir, &k->ca, e);
    if (!rc) rc = ident_new_head(k->ca, &k->ident, e);
    if (!rc) rc = tls_new(k->ident, TLS_LISTEN_OPEN, &k->tls, e);
    if (rc) return rc;
    struct sent_config sent = {.max_rows = c->model.max_rows, .max_bytes = LINKS_SENT_BYTES};
    rc = sent_new(&sent, &k->sent, e);
    if (rc) return rc;
    k->answers = loop_watch_new(k->loop, queue_fd(&k->serve.answers), on_answers, k);
    k->later = loop_timer_new(k->loop, on_later, k);
    if (!k->answers || !k->later) return err_set(e, ERR_NOMEM, "links: no memory");
    return listener_new(k->loop, k->tls, c->listen_addr, &accepted_handlers, k, &k->listener, e);
}

int links_new(struct loop *l, const struct links_config *c, const struct links_handlers *h, struct links **out,
              struct err *e) {
    struct links *k = calloc(1, sizeof *k);
    if (!k) return err_set(e, ERR_NOMEM, "links: no memory");
    k->loop = l;
    k->handlers = *h;
    k->model = c->model;
    k->heartbeat_us = c->heartbeat_us;
    k->next_id = 1;
    k->boot = c->boot ? c->boot : random_u64() | 1;
    k->lock = -1;
    list_init(&k->peers);
    list_init(&k->gone);
    map_init(&k->nodes, LIMIT_NODES, random_u64());
    int rc = open_links(k, c, e);
    if (rc) {
        links_free(k);
        return rc;
    }
    *out = k;
    return ERR_OK;
}

void links_free(struct links *k) {
    if (!k) return;
    LIST_EACH(it, &k->peers) {
        struct peer *p = LIST_ENTRY(it, struct peer, all);
        link_close(p->link);
        free(p);
    }
    LIST_EACH(it, &k->gone) free(LIST_ENTRY(it, struct peer, all));
    listener_free(k->listener); // and those that are still shaking hands
    loop_watch_free(k->answers);
    loop_timer_free(k->later);
    sent_free(k->sent);
    serve_fini(&k->serve);
    tls_free(k->tls);
    ident_free(k->ident);
    ca_free(k->ca);
    map_fini(&k->nodes);
    control_free(k->control);
    free(k->state_dir);
    lock_release(k->lock);
    free(k);
}

struct links_stage *links_stage_of(struct links_node *n, uint32_t stage) {
    for (uint32_t i = 0; i < n->n_stages; i++)
        if (n->stage[i].stage == stage) return &n->stage[i];
    return NULL;
}

uint32_t links_port(const struct links *k) { return listener_port(k->listener); }

uint32_t links_nodes(const struct links *k, struct links_node *out, uint32_t max) {
    uint32_t n = 0;
    uint64_t now_us = clock_now_us();
    for (const struct list *it = k->peers.next; it != &k->peers && n < max; it = it->next) {
        const struct peer *p = LIST_ENTRY(it, const struct peer, all);
        if (p->kind != PEER_NODE) continue;
        out[n] = p->info;
        if (p->info.epoch != k->epoch) out[n].blocks_used = out[n].slots_used = 0; // the route goes without it
        out[n].silent_us = now_us - p->heard_us;
        out[n].sent_bytes = link_sent_bytes(p->link);
        out[n++].received_bytes = link_received_bytes(p->link);
    }
    return n;
}

uint64_t links_waited(const struct links *k) {
    uint64_t sum = k->waited_gone;
    for (const struct list *it = k->peers.next; it != &k->peers; it = it->next)
        sum += LIST_ENTRY(it, const struct peer, all)->info.waited;
    return sum;
}
