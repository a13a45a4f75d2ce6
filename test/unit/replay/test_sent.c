#include "unit/replay/fixture.h"

#include "replay/holder.h"
#include "replay/sent.h"

static struct sent *fresh(uint32_t hidden_bytes, uint32_t max_rows, uint64_t max_bytes) {
    struct sent_config c = {hidden_bytes, max_rows, max_bytes};
    struct sent *s;
    struct err e;
    assert_int_equal(sent_new(&c, &s, &e), ERR_OK);
    return s;
}

static struct sent_cursor *open_cursor(struct sent *s, bool replay) {
    struct sent_cursor *c;
    struct err e = {0};
    if (sent_open(s, replay, &c, &e)) fail_msg("%s", e.text);
    return c;
}

static struct sent_counts counts(const struct sent *s) {
    struct sent_counts c;
    sent_counts(s, &c);
    return c;
}

static struct step *clear_step(uint64_t id) {
    static struct step *s;
    if (!s) s = step_new();
    assert_non_null(s);
    step_clear(s);
    s->id = id;
    s->epoch = 1;
    return s;
}

// A step of one sequence in one block; slot and block have the same number.
static struct step *one(uint64_t id, uint32_t slot, uint32_t pos, uint32_t n_rows) {
    struct step *s = clear_step(id);
    s->n_seqs = 1;
    s->n_rows = n_rows;
    s->seqs[0] = (struct step_seq){.slot = slot, .pos = pos, .n_rows = n_rows, .sample = true};
    s->seqs[0].sampling.top_p = 1;
    if (pos == 0) s->blocks[s->n_blocks++] = slot;
    s->seqs[0].n_blocks = s->n_blocks;
    for (uint32_t i = 0; i < n_rows; i++) s->tokens[i] = (int32_t)(id * 100 + i);
    return s;
}

static void put(struct sent *s, const struct step *step) {
    struct err e = {0};
    if (sent_step(s, step, NULL, NULL, &e)) fail_msg("%s", e.text);
}

static void takes_step(struct sent_cursor *c, uint64_t id) {
    struct sent_piece p;
    assert_true(sent_waits(c));
    assert_int_equal(sent_next(c, &p), SENT_STEP);
    assert_int_equal(p.step, id);
    assert_int_equal(p.what->id, id);
}

static void takes_nothing(struct sent_cursor *c) {
    struct sent_piece p;
    assert_false(sent_waits(c));
    assert_int_equal(sent_next(c, &p), SENT_NOTHING);
}

static void test_steps(void **state) {
    (void)state;
    struct sent *s = fresh(0, 8, 1 << 20);
    struct sent_cursor *a = open_cursor(s, false);
    takes_nothing(a);
    put(s, one(1, 1, 0, 3));
    put(s, one(1, 1, 0, 3)); // known
    put(s, one(2, 1, 3, 1));
    assert_int_equal(counts(s).n_steps, 2);
    takes_step(a, 1);
    sent_stable(s, 1);
    sent_stable(s, 0); // never goes back
    assert_int_equal(counts(s).n_steps, 1);
    struct sent_cursor *b = open_cursor(s, false); // begins after stable
    takes_step(b, 2);
    takes_nothing(b);
    put(s, one(3, 1, 4, 1));
    sent_stable(s, 3);
    assert_int_equal(counts(s).n_steps, 2); // a has not passed 2
    takes_step(a, 2);
    takes_step(a, 3);
    takes_nothing(a);
    takes_step(b, 3);
    sent_close(a);
    sent_close(NULL);
    assert_int_equal(counts(s).n_steps, 0);
    assert_int_equal(counts(s).n_slots, 1);
    sent_reset(s);
    assert_int_equal(counts(s).n_slots, 0);
    put(s, one(1, 1, 0, 3));
    sent_free(s);
}

static void test_merged_steps_are_passed_over(void **state) {
    (void)state;
    struct sent *s = fresh(0, 8, 1 << 20);
    struct sent_piece p;
    struct sent_cursor *a = open_cursor(s, false);
    sent_stable(s, 5);
    struct sent_cursor *late = open_cursor(s, true);
    put(s, one(4, 1, 0, 8));
    takes_nothing(a);
    takes_nothing(late); // stable is 5, and 5 is not computed
    put(s, one(5, 1, 8, 1));
    put(s, one(6, 1, 9, 1));
    takes_step(a, 5); // nobody knows here whether a counts
    takes_step(a, 6);
    assert_int_equal(sent_next(late, &p), SENT_REPLAY);
    assert_int_equal(p.step, 5);
    assert_true(p.first && !p.last);
    sent_stable(s, 7);
    put(s, one(7, 1, 10, 1)); // stable already, but late needs it
    assert_int_equal(sent_next(late, &p), SENT_REPLAY);
    assert_true(!p.first && p.last);
    assert_int_equal(p.what->n_rows, 1);
    takes_step(late, 6);
    sent_stable(s, 9);
    put(s, one(9, 1, 11, 2));
    takes_step(late, 7);
    assert_int_equal(sent_next(late, &p), SENT_LOST); // 8 came merged, and it never was level
    assert_int_equal(sent_next(late, &p), SENT_LOST);
    sent_close(late);
    sent_free(s);
}

static void test_replay_is_as_of_stable(void **state) {
    (void)state;
    struct sent *s = fresh(0, 64, 1 << 20);
    struct sent_piece p;
    put(s, one(1, 1, 0, 3));
    put(s, one(2, 2, 0, 5));
    put(s, one(3, 1, 3, 2));
    struct step *end = one(4, 3, 0, 1);
    end->n_releases = 2;
    end->releases[0] = 1;
    end->releases[1] = 2;
    put(s, end);
    put(s, one(5, 1, 0, 4)); // the slot again
    sent_stable(s, 2);
    assert_int_equal(counts(s).n_slots, 2);
    struct sent_cursor *c = open_cursor(s, true);
    assert_int_equal(sent_next(c, &p), SENT_REPLAY);
    assert_true(p.first && p.last);
    assert_int_equal(p.step, 2);
    assert_int_equal(p.what->n_seqs, 2);
    assert_int_equal(p.what->n_rows, 8);
    assert_int_equal(p.what->n_releases, 0);
    const struct step_seq *q = &p.what->seqs[p.what->seqs[0].slot == 1 ? 0 : 1];
    assert_int_equal(q->slot, 1);
    assert_int_equal(q->n_rows, 3);
    assert_int_equal(p.what->tokens[q->row + 2], 102);
    assert_int_equal(p.what->blocks[q->block], 1);
    assert_false(q->sample);
    for (uint64_t id = 3; id <= 5; id++) takes_step(c, id);
    sent_close(c);
    sent_stable(s, 4);
    c = open_cursor(s, true);
    assert_int_equal(sent_next(c, &p), SENT_REPLAY);
    assert_int_equal(p.what->n_seqs, 1);
    assert_int_equal(p.what->seqs[0].slot, 3);
    takes_step(c, 5);
    // An empty one is one piece.
    end = clear_step(6);
    end->n_releases = 2;
    end->releases[0] = 1;
    end->releases[1] = 3;
    put(s, end);
    sent_stable(s, 6);
    assert_int_equal(counts(s).n_slots, 0);
    struct sent_cursor *d = open_cursor(s, true);
    assert_int_equal(sent_next(d, &p), SENT_REPLAY);
    assert_true(p.first && p.last);
    assert_int_equal(p.what->n_seqs, 0);
    assert_int_equal(p.step, 6);
    sent_free(s);
}

// The stage goes back to step 2, though it had done step 4.
static void test_filled_again(void **state) {
    (void)state;
    struct sent *s = fresh(0, 64, 1 << 20);
    struct sent_piece p;
    put(s, one(1, 1, 0, 5));
    put(s, one(2, 2, 0, 3));
    sent_stable(s, 2);
    struct sent_cursor *c = open_cursor(s, false);
    struct step *again = one(3, 1, 0, 2);
    again->n_releases = 1;
    again->releases[0] = 1;
    put(s, again);
    put(s, one(4, 1, 2, 1));
    struct step *fill = one(2, 1, 0, 5);
    fill->n_releases = LIMIT_SEQS;
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) fill->releases[i] = i;
    sent_replayed(s, 2, false, fill, NULL, NULL);
    struct sent_cursor *d = open_cursor(s, true);
    takes_nothing(d); // not complete
    sent_replayed(s, 2, true, one(2, 2, 0, 3), NULL, NULL);
    assert_int_equal(counts(s).n_slots, 2);
    assert_int_equal(sent_next(d, &p), SENT_REPLAY);
    assert_int_equal(p.step, 2);
    assert_int_equal(p.what->n_seqs, 2);
    assert_int_equal(p.what->n_rows, 8);
    takes_step(d, 3); // kept from before
    for (uint64_t id = 3; id <= 4; id++) takes_step(c, id);
    sent_stable(s, 4);
    sent_close(d);
    d = open_cursor(s, true);
    takes_nothing(d);
    again = one(3, 1, 0, 2);
    again->n_releases = 1;
    again->releases[0] = 1;
    put(s, again);
    put(s, one(4, 1, 2, 1));
    assert_int_equal(sent_next(d, &p), SENT_REPLAY);
    assert_int_equal(p.step, 4);
    assert_int_equal(p.what->n_rows, 6);
    assert_int_equal(p.what->seqs[1].slot, 1);
    assert_int_equal(p.what->seqs[1].n_rows, 3);
    put(s, one(5, 1, 3, 1));
    takes_step(c, 5);
    takes_step(d, 5);
    sent_free(s);
}

static void slow_cursor(bool replay) {
    struct sent *s = fresh(500, 8, 200000);
    struct err e;
    struct sent_piece p;
    uint8_t hidden[4 * 500] = {0}, fault[4] = {0};
    struct sent_cursor *slow = open_cursor(s, replay), *fast = open_cursor(s, false);
    if (replay) assert_int_equal(sent_next(slow, &p), SENT_REPLAY);
    for (uint64_t id = 1; id <= 60; id++) {
        struct step *t = one(id, (uint32_t)id, 0, 4);
        t->n_releases = 1;
        t->releases[0] = (uint32_t)id - 1;
        assert_int_equal(sent_step(s, t, hidden, fault, &e), ERR_OK);
        sent_stable(s, id - 1);
        takes_step(fast, id);
        assert_true(counts(s).bytes <= 200000);
    }
    assert_true(counts(s).complete);
    if (replay) {
        assert_int_equal(sent_next(slow, &p), SENT_LOST);
        sent_close(slow);
    } else {
        assert_int_equal(sent_next(slow, &p), SENT_STEP);
        assert_in_range(p.step, 2, 60);
        for (uint64_t id = p.step + 1; id <= 60; id++) takes_step(slow, id);
    }
    sent_free(s);
}

static void test_slow_cursor(void **state) {
    (void)state;
    slow_cursor(true);
    slow_cursor(false);
}

static void test_bound_ends_replay_but_not_steps(void **state) {
    (void)state;
    struct sent *s = fresh(500, 8, 120000);
    struct err e;
    struct sent_piece p;
    uint8_t hidden[4 * 500] = {0}, fault[4] = {0};
    struct sent_cursor *c = open_cursor(s, false), *replay = open_cursor(s, true), *none;
    uint64_t id = 1;
    int rc;
    // Nothing becomes stable: rows and steps fill up.
    assert_int_equal(sent_next(replay, &p), SENT_REPLAY);
    for (; (rc = sent_step(s, one(id, (uint32_t)id, 0, 4), hidden, fault, &e)) == ERR_OK; id++) {
    }
    assert_int_equal(rc, ERR_LIMIT);
    assert_false(counts(s).complete);
    assert_int_equal(sent_open(s, true, &none, &e), ERR_UNAVAILABLE);
    for (uint64_t i = 1; i <= id; i++) takes_step(c, i); // not one is missing
    // Nobody takes it back until the next epoch; but steps go on, the newest are kept.
    for (uint64_t last = id + 200; id < last;) {
        id++;
        assert_int_equal(sent_step(s, one(id, (uint32_t)id % 256, 0, 4), hidden, fault, &e), ERR_OK);
        takes_step(c, id);
        assert_true(counts(s).bytes <= 120000);
    }
    assert_int_equal(sent_next(replay, &p), SENT_LOST); // its replay was over, but it did not come for its steps
    assert_int_equal(sent_open(s, false, &none, &e), ERR_UNAVAILABLE);
    sent_stable(s, id - 2);
    struct sent_cursor *d = open_cursor(s, false);
    takes_step(d, id - 1);
    takes_step(d, id);
    takes_nothing(d);
    sent_reset(s);
    assert_true(counts(s).complete);
    sent_close(open_cursor(s, true));
    sent_free(s);
}

// --- a route of two stages, whose holders come and go ---------------------------------------------------------------

enum { FRONT = 2, BACK = 3 };

struct front { // holds stage 0, and feeds stage 1
    struct holder *h;
    struct toy *toy;
    struct sent *sent;
    struct sent_cursor *from; // of the head's; only while it is filled
    bool hot, level;
};

struct back { // holds stage 1
    struct holder *h;
    struct toy *toy;
    struct sent_cursor *from;
    uint32_t feeder;
    bool level, gone;
};

struct route {
    struct stream stream;
    struct sent *head;
    struct front front[FRONT];
    struct back back[BACK];
    struct toy *first[2]; // who runs each step as it comes
    uint64_t expected[2][TOKENS];
    uint64_t stable, last;
    uint32_t n_lost, n_replays, n_swaps, n_full;
};

static struct holder *new_holder(struct route *r, uint32_t hidden_bytes) {
    struct holder_config c = {hidden_bytes, 1 + rng_below(&r->stream.rng, 100), 1 << 22};
    struct holder *h;
    struct err e;
    assert_int_equal(holder_new(&c, &h, &e), ERR_OK);
    return h;
}

static uint64_t accepted(const struct holder *h) {
    struct holder_counts c;
    holder_counts(h, &c);
    return c.fed ? c.accepted : 0;
}

static void new_step(struct route *r, bool last) {
    struct stream *s = &r->stream;
    const struct step *step = last ? stream_last(s) : stream_next(s);
    struct err e;
    r->last = step->id;
    for (int stage = 0; stage < 2; stage++) {
        toy_run(r->first[stage], step, stage ? r->first[0]->out : NULL, stage ? r->first[0]->fault : NULL);
        for (uint32_t i = 0; i < step->n_rows; i++) r->expected[stage][step->tokens[i]] = r->first[stage]->out[i];
    }
    assert_int_equal(sent_step(r->head, step, NULL, NULL, &e), ERR_OK);
    for (int i = 0; i < FRONT; i++)
        if (!r->front[i].from) assert_int_equal(holder_step(r->front[i].h, step, NULL, NULL, &e), ERR_OK);
}

static bool front_works(struct route *r, struct front *f) {
    struct err e;
    const struct holder_job *j = holder_next(f->h);
    if (!j) return false;
    toy_run(f->toy, j->step, NULL, NULL);
    for (uint32_t i = 0; i < j->step->n_rows; i++) assert_int_equal(f->toy->out[i], r->expected[0][j->step->tokens[i]]);
    if (j->replay)
        sent_replayed(f->sent, j->step->id, j->fed, j->step, f->toy->out, f->toy->fault);
    else if (sent_step(f->sent, j->step, f->toy->out, f->toy->fault, &e))
        r->n_full++;
    holder_done(f->h, j);
    return true;
}

// Steps and pieces from a cursor to a holder. Who is level misses nothing.
static bool pump(struct route *r, struct holder *h, struct sent_cursor *c, bool *lost) {
    struct sent_piece p;
    struct err e = {0};
    bool waits = sent_waits(c);
    enum sent_kind kind = sent_next(c, &p);
    assert_int_equal(kind != SENT_NOTHING, waits);
    *lost = kind == SENT_LOST;
    int rc = ERR_OK;
    if (kind == SENT_REPLAY) {
        rc = holder_replay(h, p.step, p.first, p.last, p.what, p.hidden, p.fault, &e);
        r->n_replays += p.last;
    }
    if (kind == SENT_STEP) rc = holder_step(h, p.what, p.hidden, p.fault, &e);
    if (rc) fail_msg("%s", e.text);
    return kind == SENT_STEP || kind == SENT_REPLAY;
}

static void back_opens(struct route *r, struct back *b) {
    struct err e;
    for (b->feeder = 0; !r->front[b->feeder].hot; b->feeder++) {
    }
    if (rng_below(&r->stream.rng, 2) && r->front[FRONT - 1].hot) b->feeder = FRONT - 1;
    int rc = sent_open(r->front[b->feeder].sent, !b->level, &b->from, &e);
    if (rc) {
        assert_int_equal(rc, ERR_UNAVAILABLE);
        b->from = NULL;
        b->gone = true;
        b->level = false;
    }
}

static bool back_works(struct route *r, struct back *b) {
    bool lost, moved = pump(r, b->h, b->from, &lost);
    if (lost) {
        r->n_lost++;
        sent_close(b->from);
        b->level = b->level && rng_below(&r->stream.rng, 2); // it is, but may ask for a replay nevertheless
        back_opens(r, b);
        return true;
    }
    if (rng_below(&r->stream.rng, 3) == 0) return moved;
    const struct holder_job *j = holder_next(b->h);
    if (!j) return moved;
    toy_run(b->toy, j->step, j->hidden, j->fault);
    for (uint32_t i = 0; i < j->step->n_rows; i++) {
        assert_int_equal(b->toy->out[i], r->expected[1][j->step->tokens[i]]);
        assert_int_equal(b->toy->fault[i], 0);
    }
    holder_done(b->h, j);
    return true;
}

// What the head would know, and tell everybody.
static void look(struct route *r) {
    uint64_t stable = r->last;
    for (int i = 0; i < FRONT; i++) {
        struct front *f = &r->front[i];
        f->level |= accepted(f->h) >= r->stable && accepted(f->h) > 0;
        if (f->level && accepted(f->h) < stable) stable = accepted(f->h);
    }
    bool any = false;
    for (int i = 0; i < BACK; i++) {
        struct back *b = &r->back[i];
        if (b->gone) continue;
        b->level |= accepted(b->h) >= r->stable && accepted(b->h) > 0;
        any |= b->level;
        if (b->level && accepted(b->h) < stable) stable = accepted(b->h);
    }
    if (!any || stable <= r->stable) return;
    r->stable = stable;
    sent_stable(r->head, stable);
    for (int i = 0; i < FRONT; i++) {
        holder_stable(r->front[i].h, stable);
        sent_stable(r->front[i].sent, stable);
    }
    for (int i = 0; i < BACK; i++) holder_stable(r->back[i].h, stable);
}

// The one that fed stage 1 runs lazily, or starts empty; the other one feeds.
static void swap(struct route *r) {
    uint32_t old = r->front[0].hot ? 0 : 1;
    struct front *f = &r->front[old], *to = &r->front[1 - old];
    if (!to->level || to->from) return;
    to->hot = true;
    f->hot = false;
    holder_set_hot(to->h, true);
    holder_set_hot(f->h, false);
    for (int i = 0; i < BACK; i++) {
        if (r->back[i].gone) continue;
        sent_close(r->back[i].from);
        back_opens(r, &r->back[i]);
    }
    r->n_swaps++;
    struct err e;
    if (rng_below(&r->stream.rng, 2)) return;
    f->level = false;
    assert_int_equal(sent_open(r->head, true, &f->from, &e), ERR_OK);
}

static void chance(struct route *r) {
    struct rng *rng = &r->stream.rng;
    if (rng_below(rng, 150) == 0) swap(r);
    if (rng_below(rng, 100) == 0) {
        struct back *b = &r->back[rng_below(rng, BACK)];
        bool other = false;
        for (int i = 0; i < BACK; i++) other |= &r->back[i] != b && r->back[i].level;
        if (b->gone || !other) return;
        b->level = false;
        sent_close(b->from);
        back_opens(r, b);
        if (b->gone) return;
        for (bool lost = false; !lost && accepted(b->h) > 0 && sent_waits(b->from);) pump(r, b->h, b->from, &lost);
    }
    if (rng_below(rng, 30) == 0) holder_set_hot(r->back[rng_below(rng, BACK)].h, rng_below(rng, 2));
}

static void fronts_work(struct route *r) {
    for (int i = 0; i < FRONT; i++) {
        struct front *f = &r->front[i];
        bool lost;
        if (f->from && !pump(r, f->h, f->from, &lost)) {
            assert_false(lost);
            sent_close(f->from);
            f->from = NULL;
        }
        for (uint32_t n = rng_below(&r->stream.rng, 4); n; n--) front_works(r, f);
    }
}

static bool all_have_all(const struct route *r) {
    for (int i = 0; i < FRONT; i++)
        if (accepted(r->front[i].h) < r->last) return false;
    for (int i = 0; i < BACK; i++)
        if (!r->back[i].gone && accepted(r->back[i].h) < r->last) return false;
    return true;
}

static void run_route(uint64_t seed, uint64_t max_bytes, uint32_t sum[4]) {
    struct route *r = calloc(1, sizeof *r);
    assert_non_null(r);
    stream_init(&r->stream, seed);
    r->head = fresh(0, 1 + rng_below(&r->stream.rng, 50), 1 << 22);
    r->first[0] = toy_new();
    r->first[1] = toy_new();
    for (int i = 0; i < FRONT; i++)
        r->front[i] = (struct front){
            new_holder(r, 0), toy_new(), fresh(8, 1 + rng_below(&r->stream.rng, 50), max_bytes), NULL, i == 0, false};
    holder_set_hot(r->front[0].h, true);
    for (int i = 0; i < BACK; i++) {
        r->back[i] = (struct back){.h = new_holder(r, 8), .toy = toy_new(), .level = i < 2};
        back_opens(r, &r->back[i]);
    }
    for (int i = 0; i < 800; i++) {
        new_step(r, i == 799);
        fronts_work(r);
        for (int b = 0; b < BACK; b++)
            for (uint32_t n = rng_below(&r->stream.rng, 4); n && !r->back[b].gone; n--) back_works(r, &r->back[b]);
        look(r);
        chance(r);
    }
    for (int i = 0; i < FRONT; i++) holder_set_chunk(r->front[i].h, 1);
    for (int i = 0; i < BACK; i++) holder_set_chunk(r->back[i].h, 1);
    for (int i = 0; i < 3000 && !all_have_all(r); i++) {
        fronts_work(r);
        for (int b = 0; b < BACK; b++)
            if (!r->back[b].gone) back_works(r, &r->back[b]);
        look(r);
    }
    uint32_t n_left = 0;
    for (int b = 0; b < BACK; b++) {
        if (r->back[b].gone) continue;
        for (int i = 0; i < 3000; i++) back_works(r, &r->back[b]);
        n_left++;
    }
    if (n_left) assert_int_equal(r->stable, r->last);
    for (int b = 0; b < BACK; b++)
        if (!r->back[b].gone) toy_same(r->back[b].toy, r->first[1]);
    if (max_bytes > 1 << 20) assert_int_equal(n_left, BACK);
    for (int i = 0; i < FRONT; i++) {
        while (front_works(r, &r->front[i])) {
        }
        if (n_left) toy_same(r->front[i].toy, r->first[0]);
    }
    for (int b = 0; b < BACK; b++) {
        sent_close(r->back[b].from);
        holder_free(r->back[b].h);
        toy_free(r->back[b].toy);
    }
    for (int i = 0; i < FRONT; i++) {
        if (n_left) assert_int_equal(counts(r->front[i].sent).n_slots, 0);
        if (n_left) assert_int_equal(counts(r->front[i].sent).n_steps, 0);
        holder_free(r->front[i].h);
        toy_free(r->front[i].toy);
        sent_free(r->front[i].sent);
    }
    sum[0] += r->n_lost;
    sum[1] += r->n_replays;
    sum[2] += r->n_swaps;
    sum[3] += r->n_full;
    sent_free(r->head);
    toy_free(r->first[0]);
    toy_free(r->first[1]);
    stream_fini(&r->stream);
    free(r);
}

static void test_holders_come_and_go(void **state) {
    (void)state;
    uint32_t sum[4] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) run_route(seed, 1 << 22, sum);
    assert_true(sum[1] > 100 && sum[2] > 20);
    assert_int_equal(sum[3], 0);
}

static void test_holders_come_and_go_in_little_memory(void **state) {
    (void)state;
    uint32_t sum[4] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) run_route(seed, 30000 + 1000 * seed, sum);
    assert_true(sum[0] > 10 && sum[3] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_merged_steps_are_passed_over),
        cmocka_unit_test(test_replay_is_as_of_stable),
        cmocka_unit_test(test_filled_again),
        cmocka_unit_test(test_slow_cursor),
        cmocka_unit_test(test_bound_ends_replay_but_not_steps),
        cmocka_unit_test(test_holders_come_and_go),
        cmocka_unit_test(test_holders_come_and_go_in_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
