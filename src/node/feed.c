// Steps and replays: what comes in goes to a holder, what a holder computed goes to all holders of the next stage.
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"

#include <string.h>

void feed_stable(struct node *n, uint64_t stable) {
    if (stable <= n->stable) return;
    n->stable = stable;
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state == ASSIGN_ENDED) continue;
        holder_stable(a->holder, stable);
        if (a->sent) sent_stable(a->sent, stable);
    }
    jobs_pump(n);
}

struct piece {
    bool replay, first, last;
    const struct step *step;
    const void *hidden;
    const uint8_t *fault;
};

// Whether somebody will send what is missing before this step. A holder that starts empty may hear steps from one who
// does not know that yet, until a replay comes. And with two holders of the stage before that both send, one may be
// ahead of what the other one's replay brings: that one comes with what is between. All of it has its time.
static bool will_be_closed(struct assignment *a, uint64_t sender) {
    struct holder_counts c;
    uint64_t now_us = clock_now_us();
    holder_counts(a->holder, &c);
    if (!a->filled_by && !c.fed) {
        if (!a->empty_since_us) a->empty_since_us = now_us;
        return now_us < a->empty_since_us + NODE_EMPTY_MS * 1000ull;
    }
    bool is_silent = !a->full && now_us >= a->filled_at_us + NODE_GAP_MS * 1000ull;
    return a->filled_by && a->filled_by != sender && !is_silent;
}

// A replay comes as fast as the link is. A stage that computes more slowly lets the senders wait, before the bound says
// that it has failed; half of the bound is for what they sent meanwhile.
static bool is_full(const struct assignment *a) {
    struct holder_counts c;
    holder_counts(a->holder, &c);
    return assign_takes_steps(a) && c.used_bytes > a->max_in_bytes / (a->full ? 4 : 2);
}

static void pump_local(struct node *n, uint32_t epoch, uint32_t stage);

void feed_check_room(struct assignment *a) {
    if (!a->full || is_full(a)) return;
    a->full = false;
    a->filled_at_us = clock_now_us(); // whoever fills it could say nothing
    peers_hold(a);
    pump_local(a->node, a->epoch, a->stage);
}

static int take_replay(struct assignment *a, uint64_t sender, const struct piece *p, struct err *e) {
    if (p->first) {
        a->filled_by = sender;
        a->filling = true;
        a->empty_since_us = 0;
    }
    if (!a->filling || a->filled_by != sender) return ERR_OK; // another one began since
    a->filling = !p->last;
    return holder_replay(a->holder, p->step->id, p->first, p->last, p->step, p->hidden, p->fault, e);
}

// Steps are missing for good: who fills it has passed over them (it was far behind and computed them as one chunk, or a
// link broke), or is silent. Only a replay helps. Until it comes the holder is empty.
static void ask_for_replay(struct assignment *a, const char *why) {
    holder_forget(a->holder);
    a->filled_by = 0;
    a->filling = false;
    a->empty_since_us = clock_now_us();
    session_send_failed(a->node, a->epoch, a->stage, STAGE_GAP, why);
}

static void take(struct assignment *a, uint64_t sender, const struct piece *p) {
    struct err e;
    if (!assign_takes_steps(a)) return;
    int rc = p->replay ? take_replay(a, sender, p, &e) : holder_step(a->holder, p->step, p->hidden, p->fault, &e);
    if (a->filled_by == sender) a->filled_at_us = clock_now_us();
    if (!a->full && is_full(a)) {
        a->full = true;
        peers_hold(a);
    }
    if (rc == ERR_FORMAT && !p->replay) {
        if (!will_be_closed(a, sender)) ask_for_replay(a, e.text);
    } else if (rc) {
        assign_fail(a, e.text);
    }
}

static int unpack(struct node *n, const struct assignment *a, const struct link_frame *f, struct control_step_mark *m,
                  struct piece *p, struct err *e) {
    struct step *s = n->step;
    uint64_t row_bytes = a->stage > 0 ? 2ull * a->hidden + 1 : 0;
    int rc = control_get_step(n->control, f->control, f->h.control_bytes, s, m, e);
    if (rc) return rc;
    s->id = f->h.step;
    s->epoch = f->h.epoch;
    rc = step_check(s, a->n_vocab, a->key.n_blocks, e);
    if (rc) return rc;
    if (s->n_rows > a->key.max_rows)
        return err_set(e, ERR_LIMIT, "step: %u rows, at most %u are agreed", s->n_rows, a->key.max_rows);
    if (f->h.rows != s->n_rows || f->h.payload_bytes != s->n_rows * row_bytes ||
        (f->h.payload_bytes && f->h.dtype != DT_BF16))
        return err_set(e, ERR_FORMAT, "step: %u rows with %u payload bytes, %lu are right", s->n_rows,
                       f->h.payload_bytes, s->n_rows * row_bytes);
    *p = (struct piece){.replay = f->h.type == FRAME_REPLAY, .first = m->first, .last = m->last, .step = s};
    if (!row_bytes || !s->n_rows) return ERR_OK;
    const uint8_t *fault = f->payload + (size_t)s->n_rows * a->hidden * 2;
    for (uint32_t i = 0; i < s->n_rows; i++) n->fault[i] = fault[i] != 0;
    p->hidden = f->payload;
    p->fault = n->fault;
    return ERR_OK;
}

void feed_arrived(struct node *n, uint64_t sender, const struct link_frame *f) {
    struct err e;
    struct control_step_mark mark;
    struct piece p;
    // Frames of another epoch, or for a stage that is not here any more, are what a change of route leaves behind.
    struct assignment *a = assign_find(n, f->h.epoch, f->h.stage);
    if (!a || !assign_takes_steps(a)) return;
    if (unpack(n, a, f, &mark, &p, &e)) {
        assign_fail(a, e.text);
        return;
    }
    take(a, sender, &p);
    feed_stable(n, mark.stable);
    jobs_pump(n);
}

// The cursor begins anew. A replay that cannot be given is the head's to know.
static void open_cursor(struct next_holder *h) {
    struct assignment *a = h->owner;
    struct err e;
    sent_close(h->cursor);
    h->cursor = NULL;
    h->has_begun = false;
    h->replay_sent_us = 0;
    h->sender = ++a->node->senders;
    int rc = sent_open(a->sent, h->owes_replay, &h->cursor, &e);
    if (!rc) return;
    h->cursor = NULL;
    LOG_W("node", "stage %u: nothing for %s: %s", a->stage, h->who.name, e.text);
    session_send_failed(a->node, a->epoch, a->stage, STAGE_NO_REPLAY, e.text);
}

void feed_open_all(struct assignment *a) {
    if (!a->hot || !assign_takes_steps(a)) return;
    for (uint32_t i = 0; i < a->n_next; i++)
        if (!a->next[i]->cursor) open_cursor(a->next[i]);
}

void feed_close_all(struct assignment *a) {
    for (uint32_t i = 0; i < a->n_next; i++) {
        sent_close(a->next[i]->cursor);
        a->next[i]->cursor = NULL;
    }
}

void feed_break(struct next_holder *h) {
    bool waits = h->cursor && !h->has_begun; // nothing of it is lost
    if (waits) return;
    sent_close(h->cursor);
    h->cursor = NULL;
}

void feed_renew_local(struct node *n, uint32_t epoch, uint32_t stage) {
    struct assignment *a = stage ? assign_find(n, epoch, stage - 1) : NULL;
    for (uint32_t i = 0; a && i < a->n_next; i++) {
        if (!a->next[i]->is_local) continue;
        feed_break(a->next[i]);
        feed_open_all(a);
        feed_pump_one(a->next[i]);
    }
}

static struct assignment *local_receiver(const struct next_holder *h) {
    struct assignment *a = assign_find(h->owner->node, h->owner->epoch, h->owner->stage + 1);
    return a && assign_takes_steps(a) ? a : NULL;
}

static bool has_room(const struct next_holder *h) {
    if (h->is_local) {
        const struct assignment *to = local_receiver(h);
        return to && !to->full;
    }
    return h->attached && link_waiting_bytes(h->link) < LINK_LOW_BYTES;
}

static void send(struct next_holder *h, const struct sent_piece *p, bool replay) {
    struct assignment *a = h->owner;
    struct node *n = a->node;
    if (h->is_local) {
        const struct piece local = {.replay = replay,
                                    .first = p->first,
                                    .last = p->last,
                                    .step = p->what,
                                    .hidden = p->hidden,
                                    .fault = p->fault};
        take(local_receiver(h), h->sender, &local);
        return;
    }
    const struct control_step_mark mark = {.stable = n->stable, .first = p->first, .last = p->last};
    uint32_t rows = p->what->n_rows;
    const struct frame_header f = {.type = replay ? FRAME_REPLAY : FRAME_STEP,
                                   .epoch = a->epoch,
                                   .stage = a->stage + 1,
                                   .step = p->step,
                                   .rows = rows,
                                   .dtype = rows ? DT_BF16 : 0};
    link_send(h->link, f, control_put_step(n->control, p->what, &mark), p->hidden, rows * a->hidden * 2, p->fault,
              rows);
}

void feed_confirm_replay(struct next_holder *h, uint64_t now_us) {
    if (!h->replay_sent_us || now_us < h->replay_sent_us + NODE_REPLAY_OWED_MS * 1000ull) return;
    if (h->is_local || (h->attached && link_waiting_bytes(h->link) == 0)) {
        h->owes_replay = false;
        h->replay_sent_us = 0;
    }
}

void feed_pump_one(struct next_holder *h) {
    while (h->cursor && has_room(h)) {
        struct sent_piece p;
        enum sent_kind kind = sent_next(h->cursor, &p);
        if (kind == SENT_NOTHING) return;
        if (kind == SENT_LOST) {
            LOG_W("node", "stage %u: %s was too slow and is filled anew", h->owner->stage, h->who.name);
            h->owes_replay = true;
            open_cursor(h);
            continue;
        }
        h->has_begun = true;
        send(h, &p, kind == SENT_REPLAY);
        if (kind == SENT_REPLAY && p.last) h->replay_sent_us = clock_now_us();
    }
}

void feed_pump(struct assignment *a) {
    if (!assign_computes(a)) return;
    for (uint32_t i = 0; i < a->n_next; i++) feed_pump_one(a->next[i]);
}

// Those of this node that send to the stage.
static void pump_local(struct node *n, uint32_t epoch, uint32_t stage) {
    struct assignment *a = stage ? assign_find(n, epoch, stage - 1) : NULL;
    if (!a || !assign_computes(a)) return;
    for (uint32_t i = 0; i < a->n_next; i++)
        if (a->next[i]->is_local) feed_pump_one(a->next[i]);
}
