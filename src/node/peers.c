// Links between nodes: those that other nodes attach to this one, and those to the holders of the next stage.
//
//   dialled --up: ATTACH--> waits for the other end's LOAD --ATTACH comes back--> attached: steps may go
//      ^                                 |                                            |
//      +---- retry ----- closed, no answer in time -----------------------------------+
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- to the holders of the next stage

static const struct link_handlers next_handlers;

static uint64_t in_ms(uint64_t ms) { return clock_now_us() + ms * 1000; }

static void is_down(struct next_holder *h, const char *why) {
    uint32_t max_ms = h->is_first ? NODE_NEXT_RETRY_FIRST_MS : NODE_NEXT_RETRY_MAX_MS;
    h->link = NULL;
    h->attached = false;
    if (!h->down_since_us) h->down_since_us = clock_now_us();
    snprintf(h->why, sizeof h->why, "%s", why);
    feed_break(h);
    loop_timer_set(h->timer, in_ms(h->retry_ms));
    h->retry_ms = h->retry_ms * 2 < max_ms ? h->retry_ms * 2 : max_ms;
}

static void dial(struct next_holder *h) {
    struct node *n = h->owner->node;
    struct err e;
    if (link_connect(n->loop, n->tls_connect, h->who.address, h->who.name, &next_handlers, h, &h->link, &e))
        is_down(h, e.text);
    else
        loop_timer_set(h->timer, in_ms(NODE_NEXT_CONNECT_MS));
}

// Time for another attempt, or the one that is under way took too long.
static void on_next_timer(void *arg) {
    struct next_holder *h = arg;
    if (!h->link) {
        dial(h);
        return;
    }
    link_close(h->link);
    is_down(h, "no answer");
}

static void on_next_up(void *arg, struct link *l) {
    struct next_holder *h = arg;
    const struct assignment *a = h->owner;
    link_settle(l);
    link_set_limits(l, LINK_FIRST_CONTROL, 0, NODE_QUEUE_BYTES);
    link_set_bulk(l, !h->is_first);
    link_send_control(l, (struct frame_header){.type = FRAME_ATTACH, .epoch = a->epoch, .stage = a->stage},
                      control_put_attach(a->node->control, a->route_key));
    loop_timer_set(h->timer, in_ms(2 * NODE_ATTACH_MS)); // the other end gives up before
}

// What was said about the link to the first one is over: that link stands, or another one is first.
static void trust_link(struct assignment *a) {
    if (a->link_blamed && a->state == ASSIGN_SERVING) session_send(a->node, FRAME_READY, a->epoch, a->stage, 0);
    a->link_blamed = false;
}

static void on_next_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct next_holder *h = arg;
    struct assignment *a = h->owner;
    if (f->h.type != FRAME_ATTACH || h->attached) {
        LOG_W("node", "%s sent a frame %s upstream", link_peer_address(l), frame_name(f->h.type));
        link_close(l);
        is_down(h, "it sends nonsense");
        return;
    }
    h->attached = true;
    h->down_since_us = 0;
    h->retry_ms = NODE_NEXT_RETRY_MIN_MS;
    loop_timer_set(h->timer, UINT64_MAX);
    if (h->is_first) trust_link(a);
    feed_open_all(a);
    feed_pump_one(h);
    assign_check_ready(a);
}

static void on_next_closed(void *arg, struct link *l, const char *why) {
    struct next_holder *h = arg;
    (void)l;
    // One that stood shows that the way there is good: the time begins anew.
    if (h->attached && h->is_first) h->owner->link_by_us = in_ms(NODE_NEXT_MS);
    is_down(h, why);
}

static void on_next_drained(void *arg, struct link *l) {
    (void)l;
    feed_pump_one(arg);
}

static const struct link_handlers next_handlers = {
    .up = on_next_up, .frame = on_next_frame, .closed = on_next_closed, .drained = on_next_drained};

static void drop(struct next_holder *h) {
    sent_close(h->cursor);
    link_close(h->link);
    loop_timer_free(h->timer);
    free(h);
}

void peers_drop_next(struct assignment *a) {
    for (uint32_t i = 0; i < a->n_next; i++) drop(a->next[i]);
    a->n_next = 0;
}

static struct next_holder *create(struct assignment *a, const struct control_holder *who) {
    struct next_holder *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    *h = (struct next_holder){.owner = a,
                              .who = *who,
                              .is_local = who->node == a->node->number,
                              .retry_ms = NODE_NEXT_RETRY_MIN_MS,
                              .down_since_us = clock_now_us()};
    snprintf(h->why, sizeof h->why, "no answer");
    h->timer = loop_timer_new(a->node->loop, on_next_timer, h);
    if (h->timer) return h;
    free(h);
    return NULL;
}

// The holder that is known already, taken out of the list; or NULL.
static struct next_holder *take_known(struct assignment *a, const struct control_holder *who) {
    for (uint32_t i = 0; i < a->n_next; i++) {
        struct next_holder *h = a->next[i];
        if (h->who.node != who->node || strcmp(h->who.address, who->address) || strcmp(h->who.name, who->name))
            continue;
        a->next[i] = a->next[--a->n_next];
        return h;
    }
    return NULL;
}

void peers_set_next(struct assignment *a, const struct control_next *m) {
    struct next_holder *list[LIMIT_HOLDERS];
    uint32_t n = 0;
    const struct next_holder *was_first = a->n_next ? a->next[0] : NULL;
    for (uint32_t i = 0; i < m->n && !a->is_last; i++) {
        struct next_holder *h = take_known(a, &m->holder[i]);
        bool is_new = !h;
        if (is_new) h = create(a, &m->holder[i]);
        if (!h) {
            assign_fail(a, "no memory for a holder of the next stage");
            break;
        }
        h->is_first = i == 0;
        if (m->holder[i].replay) { // also of one that is fed already: it begins anew
            sent_close(h->cursor);
            h->cursor = NULL;
            h->owes_replay = true;
        }
        if (is_new && !h->is_local) dial(h);
        if (!is_new && h->attached) link_set_bulk(h->link, !h->is_first);
        list[n++] = h;
    }
    peers_drop_next(a);
    memcpy(a->next, list, n * sizeof list[0]);
    a->n_next = n;
    if (n && list[0] != was_first) {
        a->link_by_us = in_ms(NODE_NEXT_MS);
        trust_link(a);
    }
    feed_open_all(a);
    feed_pump(a);
}

static bool is_overdue(const struct assignment *a, uint64_t now_us) {
    const struct next_holder *h = a->n_next ? a->next[0] : NULL;
    uint64_t blame_us = 2 * a->node->heartbeat_us;
    if (!h || h->is_local || h->attached || !a->hot || a->link_blamed) return false;
    if (blame_us < NODE_BLAME_MIN_MS * 1000ull) blame_us = NODE_BLAME_MIN_MS * 1000ull;
    if (a->state == ASSIGN_SERVING) return now_us - h->down_since_us > blame_us;
    return assign_takes_steps(a) && now_us > a->link_by_us;
}

// The stage itself is well and goes on trying. Mostly the head sees the death of the other node itself and changes the
// list in time; else it hears what this node knows.
void peers_check(struct node *n, uint64_t now_us) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        for (uint32_t i = 0; i < a->n_next; i++) feed_confirm_replay(a->next[i], now_us);
        if (!is_overdue(a, now_us)) continue;
        char text[320];
        snprintf(text, sizeof text, "the link to the next stage at %s: %s", a->next[0]->who.address, a->next[0]->why);
        a->link_blamed = true;
        session_send_failed(n, a->epoch, a->stage, STAGE_BROKEN, text);
    }
}

// --- from the nodes before this one

static struct node_attached *find_attached(struct node *n, const struct link *l) {
    for (uint32_t i = 0; i < NODE_ATTACHED; i++)
        if (n->attached[i].link == l) return &n->attached[i];
    return NULL;
}

static void close_attached(struct node_attached *t) {
    link_close(t->link);
    t->link = NULL;
}

static void settle(struct node *n, struct node_attached *t, const struct assignment *a) {
    uint64_t payload = (uint64_t)a->key.max_rows * (2ull * a->hidden + 1);
    link_set_limits(t->link, NODE_CONTROL_BYTES,
                    payload < LIMIT_FRAME_PAYLOAD ? (uint32_t)payload : LIMIT_FRAME_PAYLOAD, LINK_QUEUE_BYTES);
    t->settled = true;
    t->sender = ++n->senders;
    link_hold(t->link, a->full);
    link_send_control(t->link, (struct frame_header){.type = FRAME_ATTACH, .epoch = t->epoch, .stage = t->stage},
                      (struct control_bytes){0});
}

// Its key is wrong, or it is of an epoch that is over.
static void turn_away(struct node_attached *t, const struct assignment *a) {
    if (a && !t->settled)
        LOG_I("node", "%s: no link: its key is not that of epoch %u", link_peer_address(t->link), t->epoch);
    close_attached(t);
}

void peers_settle(struct node *n) {
    for (uint32_t i = 0; i < NODE_ATTACHED; i++) {
        struct node_attached *t = &n->attached[i];
        if (!t->link || (t->settled && t->epoch == n->epoch)) continue;
        const struct assignment *a = assign_find(n, t->epoch, t->stage + 1);
        if (a && !t->settled && CRYPTO_memcmp(t->key, a->route_key, sizeof t->key) == 0)
            settle(n, t, a);
        else if (a || t->settled || t->epoch < n->epoch)
            turn_away(t, a);
    }
}

void peers_detach(struct node *n, uint32_t epoch, uint32_t stage) {
    for (uint32_t i = 0; i < NODE_ATTACHED; i++) {
        struct node_attached *t = &n->attached[i];
        if (t->link && t->settled && t->epoch == epoch && t->stage + 1 == stage) close_attached(t);
    }
}

void peers_hold(struct assignment *a) {
    struct node *n = a->node;
    for (uint32_t i = 0; i < NODE_ATTACHED; i++) {
        struct node_attached *t = &n->attached[i];
        if (t->link && t->settled && t->epoch == a->epoch && t->stage + 1 == a->stage) link_hold(t->link, a->full);
    }
}

static bool add_attached(struct node *n, struct link *l, const struct link_frame *f, struct err *e) {
    struct node_attached *t = find_attached(n, NULL);
    if (!t) {
        err_set(e, ERR_LIMIT, "%d links are attached already", NODE_ATTACHED);
        return false;
    }
    if (control_get_attach(n->control, f->control, f->h.control_bytes, t->key, e)) return false;
    if (f->h.stage >= LIMIT_STAGES) {
        err_set(e, ERR_FORMAT, "ATTACH: stage %u", f->h.stage);
        return false;
    }
    t->link = l;
    t->epoch = f->h.epoch;
    t->stage = f->h.stage;
    t->settled = false;
    t->until_us = in_ms(NODE_ATTACH_MS);
    loop_timer_set(n->attach_timer, t->until_us);
    link_settle(l);
    return true;
}

// Links whose LOAD did not come: their other end dials again if it still wants to.
static void on_attach_timer(void *arg) {
    struct node *n = arg;
    uint64_t now_us = clock_now_us(), next_us = UINT64_MAX;
    for (uint32_t i = 0; i < NODE_ATTACHED; i++) {
        struct node_attached *t = &n->attached[i];
        if (!t->link || t->settled) continue;
        if (t->until_us <= now_us) {
            LOG_W("node", "%s: the LOAD of epoch %u did not come", link_peer_address(t->link), t->epoch);
            close_attached(t);
        } else if (t->until_us < next_us) {
            next_us = t->until_us;
        }
    }
    loop_timer_set(n->attach_timer, next_us);
}

static void on_peer_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct node *n = arg;
    struct err e = {0};
    struct node_attached *t = find_attached(n, l);
    bool is_step = f->h.type == FRAME_STEP || f->h.type == FRAME_REPLAY;
    if (t && t->settled && is_step && f->h.epoch == t->epoch && f->h.stage == t->stage + 1) {
        feed_arrived(n, t->sender, f);
        return;
    }
    if (!t && f->h.type == FRAME_ATTACH && add_attached(n, l, f, &e)) {
        peers_settle(n);
        return;
    }
    LOG_W("node", "%s: a frame %s out of place. %s", link_peer_address(l), frame_name(f->h.type), e.text);
    if (t) t->link = NULL;
    link_close(l);
}

static void on_peer_closed(void *arg, struct link *l, const char *why) {
    struct node *n = arg;
    struct node_attached *t = find_attached(n, l);
    if (t && t->settled)
        LOG_D("node", "%s: %s", link_peer_address(l), why);
    else
        LOG_I("node", "%s: no link: %s", link_peer_address(l), why);
    if (t) t->link = NULL; // the head hears it from that node, or sees it die
}

static const struct link_handlers peer_handlers = {.frame = on_peer_frame, .closed = on_peer_closed};

int peers_init(struct node *n, struct err *e) {
    const char *address = n->config->listen_addr ? n->config->listen_addr : "0.0.0.0:0";
    n->attach_timer = loop_timer_new(n->loop, on_attach_timer, n);
    n->senders = NODE_SENDER_HEAD;
    if (!n->attach_timer) return err_set(e, ERR_NOMEM, "node: no memory");
    return listener_new(n->loop, n->tls_listen, address, &peer_handlers, n, &n->listener, e);
}

void peers_fini(struct node *n) {
    for (uint32_t i = 0; i < NODE_ATTACHED; i++) link_close(n->attached[i].link);
    if (n->listener) listener_free(n->listener);
    loop_timer_free(n->attach_timer);
}
