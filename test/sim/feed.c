#include "state.h"

// Steps and replays between nodes: connections, cursors, and what arrives.

static struct next *by_connection(struct machine *m, uint64_t connection, struct part **part) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        for (uint32_t k = 0; p->id && k < p->n_next; k++) {
            if (p->next[k].connection != connection) continue;
            *part = p;
            return &p->next[k];
        }
    }
    return NULL;
}

// --- what arrives

static void take_stable(struct world *w, struct machine *m, uint64_t stable) {
    if (w->fault == TOY_STABLE_HIGH && stable) stable++;
    if (stable <= m->stable) return;
    m->stable = stable;
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        if (!p->id || p->state == PART_ENDED) continue;
        holder_stable(p->holder, stable);
        if (p->sent) sent_stable(p->sent, stable);
    }
}

// As the node does it: what will come from another sender, or by a replay that is on its way, is waited for.
static bool will_be_closed(struct world *w, struct part *p, uint64_t sender) {
    struct holder_counts c;
    holder_counts(p->holder, &c);
    if (!p->filled_by && !c.fed) {
        if (!p->empty_since_us) p->empty_since_us = w->net.now_us;
        return w->net.now_us < p->empty_since_us + EMPTY;
    }
    return p->filled_by && p->filled_by != sender && w->net.now_us < p->filled_at_us + GAP;
}

static void ask_for_replay(struct world *w, struct part *p, const char *why) {
    world_tell(w, p->machine->who, "stage %u of epoch %u: %s", p->stage, p->epoch, why);
    w->stats->n_gaps++;
    holder_forget(p->holder);
    p->filled_by = 0;
    p->filling = false;
    p->empty_since_us = w->net.now_us;
    struct msg *g = msg_new(MSG_FAILED, p->machine->session, p->epoch, p->stage);
    g->failure = STAGE_GAP;
    net_send(&w->net, p->machine->who, 0, g);
}

static int take_replay(struct part *p, uint64_t sender, const struct msg *g, struct err *e) {
    if (g->first) {
        p->filled_by = sender;
        p->filling = true;
        p->empty_since_us = 0;
    }
    if (!p->filling || p->filled_by != sender) return ERR_OK;
    p->filling = !g->last;
    return holder_replay(p->holder, g->step.id, g->first, g->last, &g->step, g->hidden, g->fault, e);
}

static void take(struct world *w, struct part *p, uint64_t sender, const struct msg *g) {
    struct err e;
    if (!part_takes_steps(p)) return;
    bool is_step = g->type == MSG_STEP;
    int rc = is_step ? holder_step(p->holder, &g->step, g->hidden, g->fault, &e) : take_replay(p, sender, g, &e);
    if (p->filled_by == sender) p->filled_at_us = w->net.now_us;
    if (rc == ERR_FORMAT && is_step) {
        if (!will_be_closed(w, p, sender)) ask_for_replay(w, p, e.text);
    } else if (rc) {
        part_fail(w, p, e.text);
    }
}

static struct incoming *incoming_of(struct machine *m, uint64_t connection) {
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++)
        if (m->incoming[i].connection == connection) return &m->incoming[i];
    return NULL;
}

void feed_arrived(struct world *w, struct machine *m, const struct msg *g) {
    struct part *p = part_find(m, g->epoch, g->stage);
    const struct incoming *in = incoming_of(m, g->connection);
    bool known = g->connection == HEAD_CONNECTION || (in && in->attached && in->epoch == g->epoch);
    if (!p || !part_takes_steps(p) || !known) {
        w->stats->n_stale_frames++;
        return;
    }
    take(w, p, g->connection, g);
    take_stable(w, m, g->stable);
    part_pump(w, m);
}

// --- connections, seen from the one that is called

void feed_settle(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        struct incoming *in = &m->incoming[i];
        if (!in->connection || in->attached) continue;
        if (in->epoch < m->epoch) *in = (struct incoming){0};
        if (!in->connection || !part_find(m, in->epoch, in->stage)) continue;
        in->attached = true;
        struct msg *g = msg_new(MSG_ATTACHED, w->machine[in->from]->session, in->epoch, in->stage);
        g->connection = in->connection;
        net_send(&w->net, m->who, in->from, g);
    }
}

void feed_attach(struct world *w, struct machine *m, uint32_t from, const struct msg *g) {
    struct incoming *in = incoming_of(m, 0);
    // Those that ended are not told apart here: the oldest makes room.
    if (!in) in = &m->incoming[g->connection % CONNECTIONS_MAX];
    *in = (struct incoming){g->connection, from, g->epoch, g->stage, false};
    feed_settle(w, m);
}

void feed_detach(struct world *w, struct machine *m, uint32_t epoch, uint32_t stage) {
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        struct incoming *in = &m->incoming[i];
        if (!in->attached || in->epoch != epoch || in->stage != stage) continue;
        machine_at(w, w->machine[in->from], world_between(w, 100, 3000), EV_DOWN, (uint32_t)in->connection);
        *in = (struct incoming){0};
    }
}

// --- connections, seen from the one that calls

static void dial(struct world *w, struct part *p, struct next *x) {
    uint32_t to = machine_of(w, x->node);
    x->connection = ++w->connection;
    machine_at(w, p->machine, REDIAL, EV_DIAL, (uint32_t)x->connection);
    if (!to) return;
    struct msg *g = msg_new(MSG_ATTACH, x->node, p->epoch, p->stage + 1);
    g->connection = x->connection;
    net_send(&w->net, p->machine->who, to, g);
}

static void close_cursor(struct next *x) {
    sent_close(x->cursor);
    x->cursor = NULL;
}

static void trust_link(struct world *w, struct part *p) {
    if (p->link_blamed && p->state == PART_SERVING) machine_send(w, p->machine, MSG_READY, p->epoch, p->stage);
    p->link_blamed = false;
}

void feed_attached(struct world *w, struct machine *m, uint64_t connection) {
    struct part *p;
    struct next *x = by_connection(m, connection, &p);
    if (!x || x->attached) return;
    x->attached = true;
    x->down_since_us = 0;
    if (x->is_first) trust_link(w, p);
    feed_open_all(w, p);
    feed_pump(w, p);
    part_check_ready(w, p);
    part_pump(w, m);
}

// What was under way is lost. A cursor of which nothing was taken goes on to wait.
static void forget_connection(struct world *w, struct machine *m, struct next *x) {
    uint32_t to = machine_of(w, x->node);
    if (to) net_break(&w->net, m->who, to, x->connection);
    if (to) net_break(&w->net, to, m->who, x->connection);
    struct incoming *in = to ? incoming_of(w->machine[to], x->connection) : NULL;
    if (in) *in = (struct incoming){0};
    if (x->has_begun) close_cursor(x);
    x->attached = false;
}

void feed_down(struct world *w, struct machine *m, uint64_t connection) {
    struct part *p;
    struct next *x = by_connection(m, connection, &p);
    if (!x) return;
    world_tell(w, m->who, "stage %u: the link to node %llu is down", p->stage, (unsigned long long)x->node);
    if (!x->down_since_us) x->down_since_us = w->net.now_us;
    forget_connection(w, m, x);
    dial(w, p, x);
}

void feed_dial(struct world *w, struct machine *m, uint64_t connection) {
    struct part *p;
    struct next *x = by_connection(m, connection, &p);
    if (!x || x->attached) return;
    forget_connection(w, m, x);
    dial(w, p, x);
}

void feed_break(struct world *w, struct machine *m, struct next *x) {
    uint64_t connection = x->connection;
    world_tell(w, m->who, "the link to node %llu breaks", (unsigned long long)x->node);
    forget_connection(w, m, x);
    machine_at(w, m, world_between(w, 0, 3000), EV_DOWN, (uint32_t)connection);
}

// The stage is well, but the head should know that nothing gets to the one who serves the next one.
void feed_check(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        const struct next *x = &p->next[0];
        if (!p->id || !p->n_next || x->is_local || x->attached || !p->hot || p->link_blamed) continue;
        if (p->state != PART_SERVING || w->net.now_us < x->down_since_us + 2 * HEARTBEAT) continue;
        p->link_blamed = true;
        world_tell(w, m->who, "stage %u: no link to node %llu", p->stage, (unsigned long long)x->node);
        machine_send(w, m, MSG_FAILED, p->epoch, p->stage);
    }
}

// --- who the next ones are

static void drop(struct world *w, struct part *p, struct next *x) {
    close_cursor(x);
    if (!x->is_local) forget_connection(w, p->machine, x);
}

void feed_drop_next(struct world *w, struct part *p) {
    for (uint32_t i = 0; i < p->n_next; i++) drop(w, p, &p->next[i]);
    p->n_next = 0;
}

static bool take_known(struct part *p, uint64_t node, struct next *out) {
    for (uint32_t i = 0; i < p->n_next; i++) {
        if (p->next[i].node != node) continue;
        *out = p->next[i];
        p->next[i] = p->next[--p->n_next];
        return true;
    }
    return false;
}

void feed_set_next(struct world *w, struct part *p, const struct cluster_action *a) {
    struct next list[LIMIT_HOLDERS];
    bool is_new[LIMIT_HOLDERS];
    for (uint32_t i = 0; i < a->n_next; i++) {
        is_new[i] = !take_known(p, a->next[i].node, &list[i]);
        if (is_new[i]) list[i] = (struct next){.node = a->next[i].node, .down_since_us = w->net.now_us};
        list[i].is_first = i == 0;
        list[i].is_local = a->next[i].node == p->machine->session;
        if (!a->next[i].replay) continue;
        close_cursor(&list[i]);
        list[i].owes_replay = true;
    }
    feed_drop_next(w, p);
    p->n_next = a->n_next;
    trust_link(w, p);
    for (uint32_t i = 0; i < p->n_next; i++) {
        p->next[i] = list[i];
        if (is_new[i] && !list[i].is_local) dial(w, p, &p->next[i]);
    }
    feed_open_all(w, p);
    feed_pump(w, p);
}

// --- cursors

static void open_cursor(struct world *w, struct part *p, struct next *x) {
    struct err e;
    close_cursor(x);
    x->has_begun = x->replay_sent = false;
    if (x->is_local) x->connection = ++w->connection;
    if (!sent_open(p->sent, x->owes_replay, &x->cursor, &e)) return;
    x->cursor = NULL;
    world_tell(w, p->machine->who, "stage %u: nothing for node %llu: %s", p->stage, (unsigned long long)x->node,
               e.text);
    w->stats->n_no_replay++;
    struct msg *g = msg_new(MSG_FAILED, p->machine->session, p->epoch, p->stage);
    g->failure = STAGE_NO_REPLAY;
    net_send(&w->net, p->machine->who, 0, g);
}

void feed_open_all(struct world *w, struct part *p) {
    if (!p->hot || !part_takes_steps(p)) return;
    for (uint32_t i = 0; i < p->n_next; i++)
        if (!p->next[i].cursor) open_cursor(w, p, &p->next[i]);
}

void feed_close_all(struct part *p) {
    for (uint32_t i = 0; i < p->n_next; i++) close_cursor(&p->next[i]);
}

void feed_renew_local(struct world *w, struct machine *m, uint32_t epoch, uint32_t stage) {
    struct part *p = stage ? part_find(m, epoch, stage - 1) : NULL;
    for (uint32_t i = 0; p && i < p->n_next; i++) {
        if (!p->next[i].is_local) continue;
        if (p->next[i].has_begun) close_cursor(&p->next[i]);
        feed_open_all(w, p);
        feed_pump(w, p);
    }
}

static struct part *local_receiver(const struct part *p) {
    struct part *r = part_find(p->machine, p->epoch, p->stage + 1);
    return r && part_takes_steps(r) ? r : NULL;
}

static bool has_room(struct world *w, const struct part *p, const struct next *x) {
    if (x->is_local) return local_receiver(p) != NULL;
    uint32_t to = machine_of(w, x->node);
    return x->attached && to && net_waiting(&w->net, p->machine->who, to) < ROOM;
}

// One that is far behind computes stable steps as one chunk, and passes over them, which is a gap to who is filled.
// Here it happens now and then to shadows.
static bool passes_over(struct world *w, const struct next *x) {
    return w->passes_over && !x->is_first && rng_below(&w->rng, 200) == 0;
}

static void send(struct world *w, struct part *p, struct next *x, const struct sent_piece *piece, bool replay) {
    const struct step *s = piece->what;
    if (!replay && passes_over(w, x)) return;
    if (replay && w->fault == TOY_REPLAY_FORGETS && s->n_seqs > 1) {
        step_copy(w->scratch, s);
        const struct step_seq *q = &s->seqs[s->n_seqs - 1];
        w->scratch->n_seqs--;
        w->scratch->n_rows -= q->n_rows;
        w->scratch->n_blocks -= q->n_blocks;
        s = w->scratch;
    }
    struct msg *g = msg_step(replay ? MSG_REPLAY : MSG_STEP, x->node, p->stage + 1, s, piece->hidden, piece->fault);
    g->epoch = g->step.epoch = p->epoch;
    g->step.id = piece->step;
    g->connection = x->connection;
    g->stable = p->machine->stable;
    g->first = piece->first;
    g->last = piece->last;
    if (x->is_local) {
        take(w, local_receiver(p), x->connection, g);
        msg_free(g);
    } else {
        net_send(&w->net, p->machine->who, machine_of(w, x->node), g);
    }
}

static void pump_one(struct world *w, struct part *p, struct next *x) {
    uint32_t to = machine_of(w, x->node);
    if (x->replay_sent && (x->is_local || (x->attached && to && net_waiting(&w->net, p->machine->who, to) == 0)))
        x->owes_replay = x->replay_sent = false;
    while (x->cursor && has_room(w, p, x)) {
        struct sent_piece piece;
        enum sent_kind kind = sent_next(x->cursor, &piece);
        if (kind == SENT_NOTHING) return;
        if (kind == SENT_LOST) {
            world_tell(w, p->machine->who, "stage %u: node %llu was too slow", p->stage, (unsigned long long)x->node);
            w->stats->n_lost_cursors++;
            x->owes_replay = true;
            open_cursor(w, p, x);
            continue;
        }
        x->has_begun = true;
        send(w, p, x, &piece, kind == SENT_REPLAY);
        if (kind == SENT_REPLAY && piece.last) x->replay_sent = true;
    }
}

void feed_pump(struct world *w, struct part *p) {
    if (!part_computes(p)) return;
    for (uint32_t i = 0; i < p->n_next; i++) pump_one(w, p, &p->next[i]);
}

void feed_pump_all(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (m->parts[i].id) feed_pump(w, &m->parts[i]);
}
