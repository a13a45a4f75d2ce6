#include "replay/sent.h"

#include "replay/keep.h"
#include "replay/rows.h"

#include <stdlib.h>

// A cursor's life. It is LOST when the bound takes what it needs, from any state.
//
//   open(replay) -> BEFORE ---------------------> REPLAY ----------> STEPS <- open
//                          all up to stable            last piece
//                          was computed here
enum cursor_state { BEFORE, REPLAY, STEPS, LOST };

struct sent_cursor {
    struct list link;
    struct sent *sent;
    enum cursor_state state;
    uint64_t next;   // the step that comes next; in REPLAY the one after the replay
    struct kept *at; // the oldest kept step with next or a later number; NULL: none yet
    bool replay;     // it was opened with one
    bool level;      // it was past stable, so that it may pass over merged steps
    bool begun;      // the first piece of the replay is out
    uint32_t n_parts, part;
    struct rows_reader parts[LIMIT_SEQS];
};

struct sent {
    struct sent_config config;
    struct rows rows;
    struct keep keep;
    struct list cursors;
    struct kept *unstable; // the oldest kept step after stable
    uint64_t last;         // what was computed
    uint64_t kept_last;    // the newest step that was kept; it is beyond last while a stage is filled again
    uint64_t stable;
    uint64_t merged;  // the last step that came merged or by a replay
    uint64_t dropped; // the last step that the bound took or that was never kept
    bool complete;    // a replay is possible
    bool filling;     // pieces are to come
    struct step *piece;
    uint8_t *hidden, *fault; // [max_rows] of a piece
};

int sent_new(const struct sent_config *c, struct sent **out, struct err *e) {
    if (c->max_rows < 1 || c->max_rows > LIMIT_STEP_ROWS)
        return err_set(e, ERR_USAGE, "sent: rows of a piece: %u is not in 1 .. %d", c->max_rows, LIMIT_STEP_ROWS);
    struct sent *s = calloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "sent: no memory");
    s->config = *c;
    s->complete = true;
    rows_init(&s->rows, c->hidden_bytes);
    keep_init(&s->keep, c->hidden_bytes, c->hidden_bytes > 0, c->max_bytes);
    list_init(&s->cursors);
    *out = s;
    return ERR_OK;
}

void sent_reset(struct sent *s) {
    LIST_EACH(it, &s->cursors) sent_close(LIST_ENTRY(it, struct sent_cursor, link));
    while (keep_next(&s->keep, NULL)) keep_pop(&s->keep);
    rows_clear(&s->rows);
    s->unstable = NULL;
    s->last = s->kept_last = s->stable = s->merged = s->dropped = 0;
    s->complete = true;
    s->filling = false;
}

void sent_free(struct sent *s) {
    if (!s) return;
    sent_reset(s);
    rows_fini(&s->rows);
    keep_fini(&s->keep);
    step_free(s->piece);
    free(s->hidden);
    free(s->fault);
    free(s);
}

// Lets go what neither stable nor a cursor holds.
static void sweep(struct sent *s) {
    for (struct kept *r; (r = keep_next(&s->keep, NULL)) && r->step.id <= s->stable;) {
        LIST_EACH(it, &s->cursors) if (LIST_ENTRY(it, struct sent_cursor, link)->at == r) return;
        keep_pop(&s->keep);
    }
}

// --- the bound ------------------------------------------------------------------------------------------------------

static void end_replay(struct sent_cursor *c) {
    for (uint32_t i = 0; i < c->n_parts; i++) rows_unread(&c->parts[i]);
    c->n_parts = c->part = 0;
}

static void lose(struct sent_cursor *c) {
    end_replay(c);
    c->state = LOST;
    c->at = NULL;
}

// Takes from the slowest cursor what stable does not hold. False: no cursor holds anything like that.
static bool lose_slowest(struct sent *s) {
    struct sent_cursor *slowest = NULL;
    LIST_EACH(it, &s->cursors) {
        struct sent_cursor *c = LIST_ENTRY(it, struct sent_cursor, link);
        bool holds =
            (c->state == REPLAY && c->next <= s->stable) || (c->state == STEPS && c->at && c->at->step.id <= s->stable);
        if (holds && (!slowest || c->next < slowest->next)) slowest = c;
    }
    if (!slowest) return false;
    if (slowest->replay) {
        lose(slowest);
    } else { // who needed no replay counts for stable, and has it from somebody else
        slowest->at = s->unstable;
        slowest->next = s->stable + 1;
    }
    sweep(s);
    rows_retire(&s->rows, s->stable);
    return true;
}

static int give_up_rows(struct sent *s, struct err *e) {
    LIST_EACH(it, &s->cursors) {
        struct sent_cursor *c = LIST_ENTRY(it, struct sent_cursor, link);
        if (c->state == BEFORE || c->state == REPLAY) lose(c);
    }
    s->complete = false;
    rows_clear(&s->rows);
    rows_trim(&s->rows);
    sweep(s);
    return err_set(e, ERR_LIMIT, "the log of rows is full at %llu bytes: no replay from here in this epoch",
                   (unsigned long long)s->config.max_bytes);
}

static bool reserve_rows(struct sent *s, const struct step *step) {
    do {
        if (rows_reserve(&s->rows, step, s->config.max_bytes - s->keep.held_bytes)) return true;
        keep_trim(&s->keep);
        if (rows_reserve(&s->rows, step, s->config.max_bytes - s->keep.held_bytes)) return true;
    } while (lose_slowest(s));
    return false;
}

static struct kept *push(struct sent *s, const struct step *step, const void *hidden, const uint8_t *fault) {
    struct kept *r;
    do {
        r = keep_push(&s->keep, step, hidden, fault, s->config.max_bytes - s->rows.held_bytes);
        if (r) return r;
        rows_trim(&s->rows);
        r = keep_push(&s->keep, step, hidden, fault, s->config.max_bytes - s->rows.held_bytes);
        if (r) return r;
    } while (lose_slowest(s));
    return NULL;
}

// Takes the oldest step from everybody. False: there is none.
static bool drop_oldest(struct sent *s) {
    struct kept *r = keep_next(&s->keep, NULL);
    if (!r) return false;
    LIST_EACH(it, &s->cursors) {
        struct sent_cursor *c = LIST_ENTRY(it, struct sent_cursor, link);
        if (c->at == r) lose(c);
    }
    s->dropped = r->step.id;
    if (s->unstable == r) s->unstable = keep_next(&s->keep, r);
    keep_pop(&s->keep);
    return true;
}

// --- what comes in --------------------------------------------------------------------------------------------------

static int take_rows(struct sent *s, const struct step *step, const void *hidden, const uint8_t *fault, struct err *e) {
    if (!s->complete) return ERR_OK;
    if (!reserve_rows(s, step)) return give_up_rows(s, e);
    if (!rows_take(&s->rows, step, hidden, fault, step->id <= s->stable)) return give_up_rows(s, e);
    rows_retire(&s->rows, s->stable);
    return ERR_OK;
}

// Whether a cursor waits for this step, though it is stable: who is being filled does not count for stable.
static bool is_wanted(const struct sent *s, uint64_t step) {
    LIST_EACH(it, &s->cursors) {
        const struct sent_cursor *c = LIST_ENTRY(it, struct sent_cursor, link);
        if ((c->state == REPLAY || c->state == STEPS) && c->next <= step) return true;
    }
    return false;
}

static int keep_step(struct sent *s, const struct step *step, const void *hidden, const uint8_t *fault, struct err *e) {
    int rc = ERR_OK;
    struct kept *r = push(s, step, hidden, fault);
    if (!r && s->complete) {
        rc = give_up_rows(s, e);
        r = push(s, step, hidden, fault);
    }
    while (!r && drop_oldest(s)) r = push(s, step, hidden, fault);
    if (!r) {
        s->dropped = step->id;
        return rc;
    }
    s->kept_last = step->id;
    if (!s->unstable && step->id > s->stable) s->unstable = r;
    LIST_EACH(it, &s->cursors) {
        struct sent_cursor *c = LIST_ENTRY(it, struct sent_cursor, link);
        if ((c->state == REPLAY || c->state == STEPS) && !c->at && c->next <= step->id) c->at = r;
    }
    return rc;
}

int sent_step(struct sent *s, const struct step *step, const void *hidden, const uint8_t *fault, struct err *e) {
    if (step->id <= s->last) return ERR_OK;
    bool single = step->id == s->last + 1;
    ASSERT(single || step->id <= s->stable, "step %llu merged, stable is %llu", (unsigned long long)step->id,
           (unsigned long long)s->stable);
    int rc = take_rows(s, step, hidden, fault, e);
    s->last = step->id;
    if (step->id <= s->kept_last) return rc;
    if (single && (step->id > s->stable || is_wanted(s, step->id))) {
        int rc2 = keep_step(s, step, hidden, fault, e);
        return rc ? rc : rc2;
    }
    s->merged = step->id;
    return rc;
}

void sent_replayed(struct sent *s, uint64_t as_of, bool last, const struct step *piece, const void *hidden,
                   const uint8_t *fault) {
    struct err e;
    struct step step = *piece;
    step.id = as_of;
    sent_stable(s, as_of);
    if (piece->n_releases) rows_end_all(&s->rows); // the first one; some ended in steps after as_of
    // Without rows there is no replay, and nobody needs to be told once more.
    if (take_rows(s, &step, hidden, fault, &e)) s->complete = false;
    s->filling = !last;
    s->last = as_of;
    if (as_of > s->merged) s->merged = as_of;
}

void sent_stable(struct sent *s, uint64_t step) {
    if (step <= s->stable) return;
    s->stable = step;
    // While the stage is filled again, it has not come to all the steps that are kept.
    for (; s->unstable && s->unstable->step.id <= step; s->unstable = keep_next(&s->keep, s->unstable))
        if (s->unstable->step.id <= s->last) rows_stable(&s->rows, &s->unstable->step);
    sweep(s);
    rows_retire(&s->rows, step);
}

// --- cursors --------------------------------------------------------------------------------------------------------

static bool has_piece(const struct sent *s) {
    return s->piece && s->fault && (s->hidden || s->config.hidden_bytes == 0);
}

static int make_piece(struct sent *s, struct err *e) {
    size_t rows = s->config.max_rows;
    if (!s->piece) s->piece = step_new();
    if (!s->fault) s->fault = malloc(rows);
    if (!s->hidden && s->config.hidden_bytes) s->hidden = malloc(rows * s->config.hidden_bytes);
    return has_piece(s) ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the pieces of a replay");
}

int sent_open(struct sent *s, bool replay, struct sent_cursor **out, struct err *e) {
    if (replay && !s->complete)
        return err_set(e, ERR_UNAVAILABLE, "the log of rows was full: no replay from here in this epoch");
    if (!replay && s->dropped > s->stable)
        return err_set(e, ERR_UNAVAILABLE, "step %llu is not here any more", (unsigned long long)s->dropped);
    int rc = replay ? make_piece(s, e) : ERR_OK;
    if (rc) return rc;
    struct sent_cursor *c = calloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "no memory for a cursor");
    c->sent = s;
    c->state = replay ? BEFORE : STEPS;
    c->replay = replay;
    c->level = !replay;
    c->next = s->stable + 1;
    if (!replay) c->at = s->unstable;
    list_push_back(&s->cursors, &c->link);
    *out = c;
    return ERR_OK;
}

void sent_close(struct sent_cursor *c) {
    if (!c) return;
    struct sent *s = c->sent;
    end_replay(c);
    list_remove(&c->link);
    free(c);
    sweep(s);
    rows_retire(&s->rows, s->stable);
}

static bool can_begin(const struct sent *s) { return !s->filling && s->last >= s->stable; }

static void begin_replay(struct sent *s, struct sent_cursor *c) {
    LIST_EACH(it, &s->rows.released) {
        struct rows_seq *q = LIST_ENTRY(it, struct rows_seq, link);
        if (q->release > s->stable && q->stable_rows) rows_read(&c->parts[c->n_parts++], q);
    }
    LIST_EACH(it, &s->rows.live) {
        struct rows_seq *q = LIST_ENTRY(it, struct rows_seq, link);
        if (q->stable_rows) rows_read(&c->parts[c->n_parts++], q);
    }
    c->state = REPLAY;
    c->next = s->stable + 1;
    c->at = s->unstable;
}

static enum sent_kind next_of_replay(struct sent *s, struct sent_cursor *c, struct sent_piece *p) {
    if (c->state == BEFORE) begin_replay(s, c);
    step_clear(s->piece);
    s->piece->id = c->next - 1;
    for (; c->part < c->n_parts; c->part++) {
        struct rows_reader *d = &c->parts[c->part];
        if (!rows_next(&s->rows, d, s->piece, s->hidden, s->fault, s->config.max_rows) || d->at_row < d->n_rows) break;
    }
    bool whole = s->config.hidden_bytes > 0;
    *p = (struct sent_piece){.step = c->next - 1, .first = !c->begun, .last = c->part == c->n_parts, .what = s->piece};
    p->hidden = s->hidden;
    p->fault = whole ? s->fault : NULL;
    c->begun = true;
    if (!p->last) return SENT_REPLAY;
    end_replay(c);
    c->state = STEPS;
    c->level = c->next > s->stable;
    sweep(s);
    rows_retire(&s->rows, s->stable);
    return SENT_REPLAY;
}

// Whether steps are missing between those that the cursor has seen and the next one kept.
static bool has_gap(const struct sent *s, const struct sent_cursor *c) {
    uint64_t gone = s->merged > s->dropped ? s->merged : s->dropped;
    return c->at ? c->at->step.id > c->next : gone >= c->next;
}

static bool is_lost(const struct sent *s, const struct sent_cursor *c) {
    return c->state == LOST || (c->state == STEPS && has_gap(s, c) && (!c->level || s->dropped >= c->next));
}

bool sent_waits(const struct sent_cursor *c) {
    if (c->state == BEFORE) return can_begin(c->sent);
    return c->state == REPLAY || is_lost(c->sent, c) || c->at;
}

enum sent_kind sent_next(struct sent_cursor *c, struct sent_piece *p) {
    struct sent *s = c->sent;
    if (is_lost(s, c)) {
        lose(c);
        sweep(s);
        return SENT_LOST;
    }
    if (c->state == REPLAY || (c->state == BEFORE && can_begin(s))) return next_of_replay(s, c, p);
    if (c->state == BEFORE) return SENT_NOTHING;
    if (has_gap(s, c)) c->next = c->at ? c->at->step.id : s->merged + 1;
    if (!c->at) return SENT_NOTHING;
    const struct kept *r = c->at;
    *p = (struct sent_piece){.step = r->step.id, .what = &r->step, .hidden = r->hidden, .fault = r->fault};
    c->next = r->step.id + 1;
    c->at = keep_next(&s->keep, r);
    c->level |= c->next > s->stable;
    return SENT_STEP;
}

void sent_counts(const struct sent *s, struct sent_counts *c) {
    *c = (struct sent_counts){.bytes = s->rows.held_bytes + s->keep.held_bytes, .complete = s->complete};
    c->n_steps = (uint32_t)list_count(&s->keep.steps);
    c->n_slots = s->rows.n_live;
}
