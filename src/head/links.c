#include "head/links_int.h"

#include "base/log.h"
#include "compute/selftest.h"
#include "net/address.h"
#include "net/lock.h"
#include "os/clock.h"
#include "os/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Takes a peer out of everything; its link is the caller's to end. True: it was a node.
static bool forget(struct peer *p) {
    bool node = p->kind == PEER_NODE;
    list_remove(&p->all);
    if (node) map_remove(&p->links->nodes, p->id);
    return node;
}

static void lose(struct peer *p, const char *why) {
    struct links *k = p->links;
    uint64_t id = p->id;
    bool node = forget(p);
    free(p);
    if (!node) return;
    LOG_W("links", "node %lu is lost: %s", id, why);
    k->handlers.lost(k->handlers.arg, id, why);
}

void links_refuse(struct peer *p, const char *why, bool retry) {
    link_send_control(p->link, (struct frame_header){.type = FRAME_REFUSED},
                      control_put_refused(p->links->control, why, retry));
    link_finish(p->link);
    lose(p, why);
}

void links_nonsense(struct peer *p, const char *why) {
    LOG_W("links", "%s (%s): %s", link_peer_address(p->link), link_peer_name(p->link), why);
    link_close(p->link);
    lose(p, why);
}

static void on_closed(void *arg, struct link *l, const char *why) {
    (void)l;
    lose(arg, why);
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
    if (control_get_heartbeat(k->control, f->control, f->h.control_bytes, &m, e)) {
        links_nonsense(p, e->text);
        return;
    }
    p->info.memory_used_bytes = m.memory_used_bytes;
    bool current = f->h.epoch == p->info.epoch; // else it tells of a stage that it is about to give up
    p->info.slots_used = current ? m.slots_used : 0;
    p->info.blocks_used = current ? m.blocks_used : 0;
    p->info.steps = m.steps;
    p->info.busy_us = m.busy_us;
    p->info.rtt_ms = (double)m.rtt_us / 1000;
    struct control_heartbeat echo = {.time_us = m.time_us};
    link_send_control(p->link, (struct frame_header){.type = FRAME_ECHO}, control_put_heartbeat(k->control, &echo));
    k->handlers.heartbeat(k->handlers.arg, p->id, f->h.epoch, f->h.step, m.loading_bytes);
}

static void on_tokens(struct peer *p, const struct link_frame *f, struct err *e) {
    struct links *k = p->links;
    struct step_result r = {.id = f->h.step, .epoch = f->h.epoch};
    if (f->h.epoch != p->info.epoch || !p->is_last) return; // of an older route
    int rc = control_get_tokens(k->control, f->control, f->h.control_bytes, &r, e);
    for (uint32_t i = 0; i < r.n && !rc; i++)
        if (r.entry[i].token >= (int32_t)k->model.hparams->n_vocab)
            rc =
                err_set(e, ERR_FORMAT, "TOKENS: token %d is not below %u", r.entry[i].token, k->model.hparams->n_vocab);
    if (rc)
        links_nonsense(p, e->text);
    else
        k->handlers.result(k->handlers.arg, &r);
}

static void on_node_frame(struct peer *p, const struct link_frame *f) {
    struct links *k = p->links;
    char why[CONTROL_TEXT_MAX];
    struct err e;
    p->heard_us = clock_now_us();
    switch (f->h.type) {
    case FRAME_TOKENS:
        on_tokens(p, f, &e);
        return;
    case FRAME_HEARTBEAT:
        on_heartbeat(p, f, &e);
        return;
    case FRAME_READY:
        k->handlers.ready(k->handlers.arg, p->id, f->h.epoch);
        return;
    case FRAME_FAILED:
        if (control_get_text(k->control, f->control, f->h.control_bytes, why, &e)) break;
        LOG_W("links", "node %lu: epoch %u: %s", p->id, f->h.epoch, why);
        k->handlers.failed(k->handlers.arg, p->id, f->h.epoch, why);
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

static const struct link_handlers peer_handlers = {.frame = on_frame, .closed = on_closed};

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
    k->answers = loop_watch_new(k->loop, queue_fd(&k->serve.answers), on_answers, k);
    if (!k->answers) return err_set(e, ERR_NOMEM, "links: no memory");
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
    k->boot = random_u64() | 1;
    k->lock = -1;
    list_init(&k->peers);
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
        forget(p);
        free(p);
    }
    listener_free(k->listener); // and those that are still shaking hands
    loop_watch_free(k->answers);
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

uint32_t links_port(const struct links *k) { return listener_port(k->listener); }

// The address of `to` as `from` has to dial it. A node on the head's own machine came in by the loopback; others reach
// it where they reach the head.
static void address_between(const struct peer *from, const struct peer *to, char *out, size_t out_bytes) {
    char host[LINK_ADDRESS_MAX], from_host[LINK_ADDRESS_MAX];
    link_peer_host(to->link, host);
    link_peer_host(from->link, from_host);
    if (address_is_loopback(host) && !address_is_loopback(from_host)) link_local_host(from->link, host);
    address_join(host, to->port, out, out_bytes);
}

void links_load(struct links *k, const struct brain_load *load) {
    struct peer *p = map_get(&k->nodes, load->node), *next = map_get(&k->nodes, load->next_node);
    bool last = load->b == k->model.hparams->n_layers;
    if (!p || (!last && !next)) return; // lost meanwhile: the brain hears, or has heard, of it
    if (k->key_epoch != load->epoch) {
        k->key_epoch = load->epoch;
        random_bytes(k->route_key, sizeof k->route_key);
    }
    struct control_load m = {.n_stages = load->n_stages, .a = load->a, .b = load->b, .n_blocks = load->n_blocks};
    memcpy(m.route_key, k->route_key, sizeof m.route_key);
    if (!last) {
        address_between(p, next, m.next_address, sizeof m.next_address);
        snprintf(m.next_name, sizeof m.next_name, "%s", link_peer_name(next->link));
    }
    p->is_last = last;
    p->info.epoch = load->epoch;
    p->info.a = load->a;
    p->info.b = load->b;
    struct frame_header h = {.type = FRAME_LOAD, .epoch = load->epoch, .stage = load->stage};
    link_send_control(p->link, h, control_put_load(k->control, &m));
}

void links_step(struct links *k, uint64_t node, const struct step *s) {
    struct peer *p = map_get(&k->nodes, node);
    if (!p) return;
    struct frame_header h = {.type = FRAME_STEP, .epoch = s->epoch, .step = s->id, .rows = s->n_rows};
    link_send_control(p->link, h, control_put_step(k->control, s));
}

void links_drop(struct links *k, uint64_t node, const char *why) {
    struct peer *p = map_get(&k->nodes, node);
    if (!p) return;
    LOG_W("links", "node %lu is dropped: %s", node, why);
    link_send_control(p->link, (struct frame_header){.type = FRAME_BYE}, control_put_text(k->control, why));
    link_finish(p->link);
    forget(p);
    free(p);
}

uint32_t links_nodes(const struct links *k, struct links_node *out, uint32_t max) {
    uint32_t n = 0;
    for (const struct list *it = k->peers.next; it != &k->peers && n < max; it = it->next) {
        const struct peer *p = LIST_ENTRY(it, const struct peer, all);
        if (p->kind != PEER_NODE) continue;
        out[n] = p->info;
        if (p->info.epoch != k->key_epoch) out[n].blocks_used = out[n].slots_used = 0; // the route goes without it
        out[n].sent_bytes = link_sent_bytes(p->link);
        out[n++].received_bytes = link_received_bytes(p->link);
    }
    return n;
}
