// What the cluster decided, carried out: who holds which stage, and the steps that go to those who hold stage 0.
#include "head/links_int.h"

#include "base/log.h"
#include "net/address.h"
#include "os/random.h"

#include <stdio.h>
#include <string.h>

// ---- stages of nodes

// The address of `to` as `from` has to dial it. A node on the head's own machine came in by the loopback; others reach
// it where they reach the head.
static void address_between(const struct peer *from, const struct peer *to, char *out, size_t out_bytes) {
    char host[LINK_ADDRESS_MAX], from_host[LINK_ADDRESS_MAX];
    link_peer_host(to->link, host);
    link_peer_host(from->link, from_host);
    if (address_is_loopback(host) && !address_is_loopback(from_host)) link_local_host(from->link, host);
    address_join(host, to->port, out, out_bytes);
}

// Holders of the stage after one of p's. False: of those that there should be, none is linked any more, and a list of
// nobody would make it the last stage.
static bool name_next(const struct links *k, const struct peer *p, const struct cluster_action *a,
                      struct control_next *next) {
    *next = (struct control_next){0};
    for (uint32_t i = 0; i < a->n_next; i++) {
        const struct peer *to = map_get(&k->nodes, a->next[i].node);
        if (!to) continue; // lost meanwhile: the brain hears, or has heard, of it
        struct control_holder *h = &next->holder[next->n++];
        h->node = to->id;
        h->replay = a->next[i].replay;
        if (to == p) continue;
        address_between(p, to, h->address, sizeof h->address);
        snprintf(h->name, sizeof h->name, "%s", link_peer_name(to->link));
    }
    return next->n > 0 || a->stage + 1 == a->n_stages;
}

bool links_holds_last(const struct links_node *n) {
    for (uint32_t i = 0; i < n->n_stages; i++)
        if (n->stage[i].last) return true;
    return false;
}

// Tells the brain later, when it is not at work, that the node holds as many stages as it can.
static void fail_later(struct peer *p, const struct cluster_action *a) {
    p->fails = true;
    p->fails_epoch = a->epoch;
    p->fails_stage = a->stage;
    loop_timer_set(p->links->later, 0);
}

static void close_feeds(struct links *k) {
    for (uint32_t i = 0; i < k->n_feeds; i++) sent_close(k->feed[i].cursor);
    k->n_feeds = 0;
}

static void enter_epoch(struct links *k, uint32_t epoch) {
    if (k->epoch == epoch) return;
    k->epoch = epoch;
    random_bytes(k->route_key, sizeof k->route_key);
    close_feeds(k);
    sent_reset(k->sent);
    k->stable = 0;
    k->sent_full = k->feed_fails = false;
}

static void load(struct links *k, struct peer *p, const struct cluster_action *a) {
    struct control_load m = {.n_stages = a->n_stages, .a = a->a, .b = a->b, .n_blocks = a->n_blocks, .hot = a->hot};
    enter_epoch(k, a->epoch);
    if (!name_next(k, p, a, &m.next)) return;
    if (p->info.epoch != a->epoch) p->info.n_stages = 0;
    p->info.epoch = a->epoch;
    struct links_stage *s = links_stage_of(&p->info, a->stage);
    if (!s && p->info.n_stages == LIMIT_NODE_STAGES) {
        fail_later(p, a);
        return;
    }
    if (!s) s = &p->info.stage[p->info.n_stages++];
    *s = (struct links_stage){.stage = a->stage, .a = a->a, .b = a->b, .hot = a->hot};
    s->last = a->stage + 1 == a->n_stages;
    memcpy(m.route_key, k->route_key, sizeof m.route_key);
    LOG_I("links", "node %lu: load layers %u-%u, stage %u of epoch %u%s", p->id, a->a, a->b - 1, a->stage, a->epoch,
          a->hot ? "" : ", in reserve");
    struct frame_header h = {.type = FRAME_LOAD, .epoch = a->epoch, .stage = a->stage};
    link_send_control(p->link, h, control_put_load(k->control, &m));
}

static void change_next(struct links *k, struct peer *p, const struct cluster_action *a) {
    struct control_next m;
    if (!name_next(k, p, a, &m)) return;
    struct frame_header h = {.type = FRAME_NEXT, .epoch = a->epoch, .stage = a->stage};
    link_send_control(p->link, h, control_put_next(k->control, &m));
}

static void set_hot(struct links *k, struct peer *p, const struct cluster_action *a) {
    struct links_stage *s = links_stage_of(&p->info, a->stage);
    if (s) s->hot = a->hot;
    LOG_D("links", "node %lu: stage %u of epoch %u runs %s", p->id, a->stage, a->epoch, a->hot ? "hot" : "lazily");
    struct frame_header h = {.type = FRAME_HOT, .epoch = a->epoch, .stage = a->stage};
    link_send_control(p->link, h, control_put_hot(k->control, a->hot));
}

static void unload(struct peer *p, const struct cluster_action *a) {
    struct links_stage *s = a->epoch == p->info.epoch ? links_stage_of(&p->info, a->stage) : NULL;
    if (s) *s = p->info.stage[--p->info.n_stages];
    struct frame_header h = {.type = FRAME_UNLOAD, .epoch = a->epoch, .stage = a->stage};
    link_send_control(p->link, h, (struct control_bytes){0});
}

static void drop(struct peer *p, const char *why) {
    LOG_W("links", "node %lu is dropped: %s", p->id, why);
    links_say_bye(p, why);
    links_forget(p);
}

// ---- the feed of stage 0

static void open_feed(struct links *k, struct feed *f, bool replay) {
    sent_close(f->cursor);
    f->cursor = NULL;
    if (!sent_open(k->sent, replay, &f->cursor, &k->feed_e)) return;
    f->cursor = NULL;
    k->feed_fails = true;
    loop_timer_set(k->later, 0);
}

static void send_piece(struct links *k, struct peer *p, const struct sent_piece *piece, bool replay) {
    struct control_step_mark mark = {.stable = k->stable, .first = piece->first, .last = piece->last};
    if (!replay) mark.first = mark.last = false;
    struct frame_header h = {.type = replay ? FRAME_REPLAY : FRAME_STEP,
                             .epoch = k->epoch,
                             .step = piece->step,
                             .rows = piece->what->n_rows};
    link_send_control(p->link, h, control_put_step(k->control, piece->what, &mark));
}

// Sends as long as little waits: what a slow node has not got lies in `sent`, once for all of them.
static void pump(struct links *k, struct feed *f) {
    struct peer *p = map_get(&k->nodes, f->node);
    struct sent_piece piece;
    while (p && f->cursor && link_waiting_bytes(p->link) < LINK_LOW_BYTES) {
        enum sent_kind kind = sent_next(f->cursor, &piece);
        if (kind == SENT_NOTHING) return;
        if (kind == SENT_LOST)
            open_feed(k, f, true);
        else
            send_piece(k, p, &piece, kind == SENT_REPLAY);
    }
}

void links_pump(struct links *k, uint64_t node) {
    for (uint32_t i = 0; i < k->n_feeds; i++)
        if (k->feed[i].node == node) pump(k, &k->feed[i]);
}

// Who was fed before goes on where it is, unless it starts empty again.
static void feed(struct links *k, const struct cluster_action *a) {
    struct feed old[LIMIT_HOLDERS];
    enter_epoch(k, a->epoch);
    uint32_t n_old = k->n_feeds;
    memcpy(old, k->feed, sizeof old);
    k->n_feeds = 0;
    for (uint32_t i = 0; i < a->n_next; i++) {
        struct feed *f = &k->feed[k->n_feeds++];
        *f = (struct feed){.node = a->next[i].node};
        for (uint32_t j = 0; j < n_old; j++) {
            if (old[j].node != f->node) continue;
            f->cursor = old[j].cursor;
            old[j].cursor = NULL;
        }
        if (!f->cursor || a->next[i].replay) open_feed(k, f, a->next[i].replay);
    }
    for (uint32_t j = 0; j < n_old; j++) sent_close(old[j].cursor);
    for (uint32_t i = 0; i < k->n_feeds; i++) pump(k, &k->feed[i]);
}

// ---- doors

void links_act(struct links *k, const struct cluster_action *a) {
    if (a->type == CLUSTER_FEED) {
        feed(k, a);
        return;
    }
    struct peer *p = map_get(&k->nodes, a->node);
    if (!p) return;
    switch (a->type) {
    case CLUSTER_LOAD:
        load(k, p, a);
        break;
    case CLUSTER_NEXT:
        change_next(k, p, a);
        break;
    case CLUSTER_HOT:
        set_hot(k, p, a);
        break;
    case CLUSTER_UNLOAD:
        unload(p, a);
        break;
    case CLUSTER_MAY_LEAVE:
        link_send_control(p->link, (struct frame_header){.type = FRAME_MAY_LEAVE, .epoch = a->epoch},
                          (struct control_bytes){0});
        break;
    case CLUSTER_DROP_NODE:
        drop(p, a->why);
        break;
    default:
        ASSERT(false, "action %d is not for the links", (int)a->type);
    }
}

void links_stable(struct links *k, uint64_t step) {
    if (step <= k->stable) return;
    k->stable = step;
    sent_stable(k->sent, step);
}

void links_step(struct links *k, const struct step *s) {
    struct err e;
    if (sent_step(k->sent, s, NULL, NULL, &e) && !k->sent_full) {
        k->sent_full = true;
        LOG_W("links", "no further node can be filled in epoch %u: %s", k->epoch, e.text);
    }
    for (uint32_t i = 0; i < k->n_feeds; i++) pump(k, &k->feed[i]);
}
