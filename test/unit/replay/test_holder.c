#include "unit/replay/fixture.h"

#include "replay/holder.h"

static struct holder *fresh(uint32_t hidden_bytes, uint32_t max_rows, uint64_t max_bytes) {
    struct holder_config c = {hidden_bytes, max_rows, max_bytes};
    struct holder *h;
    struct err e;
    assert_int_equal(holder_new(&c, &h, &e), ERR_OK);
    return h;
}

// A step of one sequence.
static struct step *one(uint64_t id, uint32_t slot, uint32_t pos, uint32_t n_rows, const uint32_t *block) {
    static struct step *s;
    if (!s) s = step_new();
    assert_non_null(s);
    step_clear(s);
    s->id = id;
    s->epoch = 1;
    if (!n_rows) return s;
    s->n_seqs = 1;
    s->n_rows = n_rows;
    s->seqs[0] = (struct step_seq){.slot = slot, .pos = pos, .n_rows = n_rows, .sample = true};
    s->seqs[0].sampling.top_p = 1;
    if (block) s->blocks[s->n_blocks++] = *block;
    s->seqs[0].n_blocks = s->n_blocks;
    for (uint32_t i = 0; i < n_rows; i++) s->tokens[i] = (int32_t)(id * 100 + i);
    return s;
}

static void give(struct holder *h, struct step *s) {
    struct err e = {0};
    if (holder_step(h, s, NULL, NULL, &e)) fail_msg("%s", e.text);
}

static struct holder_counts counts(const struct holder *h) {
    struct holder_counts c;
    holder_counts(h, &c);
    return c;
}

static void test_order(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    struct err e;
    uint32_t block = 4;
    assert_int_equal(holder_step(h, one(2, 1, 0, 1, &block), NULL, NULL, &e), ERR_FORMAT);
    assert_false(counts(h).fed);
    give(h, one(1, 1, 0, 3, &block));
    assert_true(counts(h).fed);
    assert_int_equal(holder_step(h, one(3, 1, 3, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    give(h, one(2, 1, 3, 1, NULL));
    give(h, one(1, 1, 0, 3, &block)); // known
    give(h, one(2, 1, 3, 1, NULL));
    assert_int_equal(counts(h).accepted, 2);
    assert_int_equal(counts(h).waiting_rows, 4);
    holder_reset(h);
    assert_int_equal(counts(h).accepted, 0);
    assert_int_equal(counts(h).waiting_rows, 0);
    give(h, one(1, 1, 0, 3, &block));
    holder_free(h);
}

static void test_hot_runs_alone_and_sends(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t block = 4;
    holder_set_hot(h, true);
    for (uint64_t id = 1; id <= 6; id++) give(h, one(id, 1, (uint32_t)id - 1, 1, id == 1 ? &block : NULL));
    const struct holder_job *job[4];
    for (uint64_t i = 0; i < 4; i++) {
        job[i] = holder_next(h);
        assert_non_null(job[i]);
        assert_int_equal(job[i]->step->id, i + 1);
        assert_true(job[i]->send && job[i]->step->seqs[0].sample && !job[i]->replay);
        assert_null(job[i]->hidden);
        assert_int_equal(job[i]->fault[0], 0);
    }
    assert_null(holder_next(h)); // no more may be out
    assert_int_equal(counts(h).jobs_out, 4);
    for (int i = 0; i < 4; i++) holder_done(h, job[i]);
    assert_int_equal(counts(h).done, 4);
    assert_int_equal(counts(h).waiting_rows, 2);
    holder_free(h);
}

static void test_lazy_waits_for_stable_rows(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t block = 4;
    holder_set_chunk(h, 4);
    for (uint64_t id = 1; id <= 8; id++) give(h, one(id, 1, (uint32_t)id - 1, 1, id == 1 ? &block : NULL));
    assert_null(holder_next(h));
    holder_stable(h, 3);
    assert_null(holder_next(h));
    holder_stable(h, 5);
    const struct holder_job *j = holder_next(h);
    assert_non_null(j);
    assert_int_equal(j->step->id, 4); // small chunks: one that becomes hot waits for the one in hand
    assert_int_equal(j->step->n_seqs, 1);
    assert_int_equal(j->step->n_rows, 4);
    assert_int_equal(j->step->n_blocks, 1);
    assert_int_equal(j->step->blocks[0], 4);
    assert_int_equal(j->step->tokens[3], 400);
    assert_false(j->send || j->step->seqs[0].sample);
    holder_stable(h, 6);
    assert_null(holder_next(h));
    // Hot: what is stable first, the rest alone.
    holder_set_hot(h, true);
    const struct holder_job *k = holder_next(h);
    assert_int_equal(k->step->id, 6);
    assert_false(k->send || k->step->seqs[0].sample);
    const struct holder_job *l = holder_next(h);
    assert_int_equal(l->step->id, 7);
    assert_true(l->send && l->step->seqs[0].sample);
    holder_done(h, j);
    assert_int_equal(counts(h).done, 4);
    holder_done(h, k);
    holder_done(h, l);
    assert_int_equal(counts(h).done, 7);
    assert_int_equal(counts(h).replayed_rows, 6);
    holder_set_hot(h, false);
    assert_null(holder_next(h));
    holder_free(h);
}

// What becomes stable once it is hot is sent nevertheless, for those who do not count yet; unless it is far behind.
static void test_hot_sends_what_became_stable(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t block = 4;
    const struct holder_job *j;
    for (uint64_t id = 1; id <= 10; id++) give(h, one(id, 1, (uint32_t)id - 1, 1, id == 1 ? &block : NULL));
    holder_set_chunk(h, 16);
    holder_stable(h, 3);
    holder_set_hot(h, true);
    holder_set_hot(h, true);
    holder_stable(h, 9);
    j = holder_next(h);
    assert_int_equal(j->step->id, 3);
    assert_false(j->send);
    holder_done(h, j);
    for (uint64_t id = 4; id <= 10; id++) {
        j = holder_next(h);
        assert_int_equal(j->step->id, id);
        assert_true(j->send && j->step->seqs[0].sample);
        holder_done(h, j);
    }
    for (uint64_t id = 11; id <= 11 + LIMIT_STEPS_IN_FLIGHT; id++) give(h, one(id, 1, (uint32_t)id - 1, 1, NULL));
    holder_stable(h, 20);
    j = holder_next(h);
    assert_int_equal(j->step->id, 20);
    assert_false(j->send);
    holder_done(h, j);
    holder_free(h);
}

static void test_ended_sequences_are_dropped(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t a = 4, b = 5;
    holder_set_chunk(h, 7);
    give(h, one(1, 1, 0, 3, &a));
    give(h, one(2, 1, 3, 1, NULL));
    struct step *s = one(3, 1, 0, 2, &b); // the slot is used again at once
    s->n_releases = 1;
    s->releases[0] = 1;
    give(h, s);
    give(h, one(4, 1, 2, 1, NULL));
    s = one(5, 0, 0, 0, NULL);
    s->n_releases = 2;
    s->releases[0] = 1;
    s->releases[1] = 1; // told twice: no harm
    holder_stable(h, 4);
    const struct holder_job *j = holder_next(h);
    assert_int_equal(j->step->id, 4);
    assert_int_equal(j->step->n_releases, 1);
    assert_int_equal(j->step->releases[0], 1);
    assert_int_equal(j->step->n_rows, 3);
    assert_int_equal(j->step->seqs[0].pos, 0);
    assert_int_equal(j->step->n_blocks, 1);
    assert_int_equal(j->step->blocks[0], 5);
    assert_int_equal(j->step->tokens[0], 300);
    assert_int_equal(j->step->tokens[2], 400);
    assert_int_equal(counts(h).dropped_rows, 4);
    holder_done(h, j);
    give(h, s);
    holder_set_chunk(h, 2);
    holder_stable(h, 5);
    assert_null(holder_next(h)); // a step without rows counts as one
    holder_set_chunk(h, 1);
    j = holder_next(h);
    assert_int_equal(j->step->n_releases, 2);
    holder_done(h, j);
    holder_free(h);
}

// What waits when no more steps come runs at once, and still as one chunk.
static void test_idle_runs_what_waits(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t block = 4;
    holder_set_chunk(h, 16);
    for (uint64_t id = 1; id <= 5; id++) give(h, one(id, 1, (uint32_t)id - 1, 1, id == 1 ? &block : NULL));
    holder_stable(h, 5);
    assert_null(holder_next(h));
    holder_set_idle(h, true);
    const struct holder_job *j = holder_next(h);
    assert_non_null(j);
    assert_int_equal(j->step->n_rows, 5);
    holder_done(h, j);
    holder_free(h);
}

// A chunk's first rows may need no new block, and say nothing of where the next one goes.
static void test_blocks_that_come_later(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    uint32_t a = 4, b = 5;
    const struct holder_job *j;
    give(h, one(1, 1, 0, 3, &a));
    holder_stable(h, 1);
    holder_done(h, holder_next(h));
    holder_set_chunk(h, 2);
    give(h, one(2, 1, 3, 1, NULL));
    struct step *s = one(3, 1, 4, 1, &b);
    s->seqs[0].first_block = 1;
    give(h, s);
    holder_stable(h, 3);
    j = holder_next(h);
    assert_int_equal(j->step->n_rows, 2);
    assert_int_equal(j->step->n_blocks, 1);
    assert_int_equal(j->step->seqs[0].first_block, 1);
    holder_done(h, j);
    holder_free(h);
}

static void test_chunks_have_a_limit(void **state) {
    (void)state;
    struct holder *h = fresh(0, 8, 1 << 20);
    uint32_t block = 4;
    give(h, one(1, 1, 0, 5, &block));
    give(h, one(2, 1, 5, 3, NULL));
    give(h, one(3, 1, 8, 1, NULL));
    give(h, one(4, 1, 9, 20, NULL));
    give(h, one(5, 1, 29, 1, NULL));
    holder_stable(h, 5);
    holder_set_hot(h, true); // it catches up in the largest chunks
    uint64_t id[4] = {2, 3, 4, 5};
    uint32_t rows[4] = {8, 1, 20, 1};
    for (int i = 0; i < 4; i++) {
        const struct holder_job *j = holder_next(h);
        assert_int_equal(j->step->id, id[i]);
        assert_int_equal(j->step->n_rows, rows[i]);
        holder_done(h, j);
    }
    holder_free(h);
}

static void test_bound(void **state) {
    (void)state;
    struct holder *h = fresh(64, 8, 40000);
    struct err e;
    uint8_t hidden[64 * 4] = {0}, fault[4] = {0};
    uint32_t block = 4;
    uint64_t id = 1;
    int rc;
    while ((rc = holder_step(h, one(id, 1, (uint32_t)(id - 1) * 4, 4, id == 1 ? &block : NULL), hidden, fault, &e)) ==
           ERR_OK)
        id++;
    assert_int_equal(rc, ERR_LIMIT);
    assert_in_range(id, 20, 100);
    assert_int_equal(counts(h).accepted, id - 1);
    // What is taken out makes room again.
    holder_set_hot(h, true);
    for (int i = 0; i < 15; i++) holder_done(h, holder_next(h));
    assert_int_equal(holder_step(h, one(id, 1, (uint32_t)(id - 1) * 4, 4, NULL), hidden, fault, &e), ERR_OK);
    holder_free(h);
}

static void test_replay(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    struct err e;
    uint32_t block = 4;
    holder_set_hot(h, true);
    give(h, one(1, 1, 0, 3, &block));
    give(h, one(2, 1, 3, 3, NULL));
    const struct holder_job *old = holder_next(h);
    assert_int_equal(holder_replay(h, 7, false, true, one(0, 2, 0, 3, &block), NULL, NULL, &e), ERR_FORMAT);
    assert_int_equal(holder_replay(h, 7, true, false, one(0, 2, 0, 3, &block), NULL, NULL, &e), ERR_OK);
    assert_false(counts(h).fed);
    assert_int_equal(counts(h).accepted, 0);
    assert_int_equal(holder_step(h, one(8, 2, 5, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    assert_int_equal(holder_step(h, one(1, 2, 5, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    holder_done(h, old);
    assert_int_equal(counts(h).done, 0);
    assert_int_equal(holder_replay(h, 7, false, true, one(0, 2, 3, 2, NULL), NULL, NULL, &e), ERR_OK);
    assert_true(counts(h).fed);
    assert_int_equal(counts(h).accepted, 7);
    give(h, one(5, 2, 1, 1, NULL)); // known
    give(h, one(8, 2, 5, 1, NULL));
    const struct holder_job *j = holder_next(h);
    assert_true(j->replay && !j->send && !j->fed);
    assert_int_equal(j->step->n_releases, LIMIT_SEQS);
    assert_int_equal(j->step->n_rows, 3);
    const struct holder_job *k = holder_next(h);
    assert_true(k->replay && !k->send && k->fed);
    assert_int_equal(k->step->id, 7);
    assert_int_equal(k->step->n_releases, 0);
    const struct holder_job *l = holder_next(h);
    assert_true(l->send && !l->replay);
    assert_int_equal(l->step->id, 8);
    holder_done(h, j);
    assert_int_equal(counts(h).done, 0);
    holder_done(h, k);
    assert_int_equal(counts(h).done, 7);
    holder_done(h, l);
    assert_int_equal(counts(h).done, 8);
    // A piece that does not go on where the one before ended spoils the replay until the next one begins.
    assert_int_equal(holder_replay(h, 9, true, false, one(0, 2, 0, 3, &block), NULL, NULL, &e), ERR_OK);
    assert_int_equal(holder_replay(h, 9, false, false, one(0, 2, 4, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    assert_int_equal(holder_replay(h, 9, false, true, one(0, 2, 3, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    assert_int_equal(holder_replay(h, 0, true, true, one(0, 0, 0, 0, NULL), NULL, NULL, &e), ERR_OK);
    assert_true(counts(h).fed);
    give(h, one(1, 1, 0, 3, &block));
    while ((j = holder_next(h))) holder_done(h, j);
    holder_free(h);
}

// After a gap nothing counts that came before it, and no step is a start: its blocks were used already.
static void test_forgetting(void **state) {
    (void)state;
    struct holder *h = fresh(0, 32, 1 << 20);
    struct err e;
    uint32_t block = 4;
    holder_set_hot(h, true);
    give(h, one(1, 1, 0, 3, &block));
    give(h, one(2, 1, 3, 1, NULL));
    const struct holder_job *out = holder_next(h);
    holder_forget(h);
    assert_int_equal(counts(h).accepted, 0);
    assert_int_equal(counts(h).waiting_rows, 0);
    assert_false(counts(h).fed);
    assert_int_equal(holder_step(h, one(1, 1, 0, 3, &block), NULL, NULL, &e), ERR_FORMAT);
    assert_int_equal(holder_step(h, one(3, 1, 4, 1, NULL), NULL, NULL, &e), ERR_FORMAT);
    holder_done(h, out);
    assert_int_equal(counts(h).done, 0);
    assert_null(holder_next(h));
    assert_int_equal(holder_replay(h, 3, true, true, one(0, 1, 0, 5, &block), NULL, NULL, &e), ERR_OK);
    const struct holder_job *j = holder_next(h);
    assert_true(j->replay && j->fed);
    // The replay too can be void before it is computed.
    holder_forget(h);
    holder_done(h, j);
    assert_int_equal(counts(h).done, 0);
    holder_reset(h);
    give(h, one(1, 1, 0, 3, &block));
    holder_free(h);
}

// --- against a stage that runs each step as it comes ----------------------------------------------------------------

struct twin {
    struct holder *h;
    struct toy *toy;
    const struct holder_job *out[HOLDER_JOBS];
    uint32_t n_out;
    uint64_t done, sent_from; // the last step run; steps from here on must have been sent
};

// Runs one job, if there is one, and compares each row.
static bool work(struct twin *t, const uint64_t *expected, bool with_rows) {
    const struct holder_job *j = holder_next(t->h);
    if (j) t->out[t->n_out++] = j;
    if (!t->n_out) return false;
    j = t->out[0];
    assert_true(j->step->id > t->done);
    assert_true(j->send ? j->step->id == t->done + 1 : true);
    assert_int_equal(j->hidden != NULL, with_rows);
    toy_run(t->toy, j->step, j->hidden, j->fault);
    for (uint32_t i = 0; i < j->step->n_rows; i++) {
        assert_int_equal(t->toy->out[i], expected[j->step->tokens[i]]);
        assert_int_equal(j->fault[i], with_rows && j->step->tokens[i] % 997 == 0);
        j->fault[i] = 9; // it may be written to
    }
    for (uint32_t i = 0; i < j->step->n_seqs; i++) assert_int_equal(j->step->seqs[i].sample, j->send);
    t->done = j->step->id;
    holder_done(t->h, j);
    memmove(t->out, t->out + 1, --t->n_out * sizeof t->out[0]);
    return true;
}

static void run_twin(uint64_t seed, bool with_rows) {
    struct stream s;
    stream_init(&s, seed);
    static uint64_t expected[TOKENS];
    struct toy *first = toy_new();
    struct twin t = {.h = fresh(with_rows ? 8 : 0, 1 + rng_below(&s.rng, 100), 1 << 20), .toy = toy_new()};
    uint32_t max_lag = 1 + rng_below(&s.rng, 30);
    uint64_t n_steps = 600;
    for (uint64_t id = 1; id <= n_steps; id++) {
        const struct step *step = id == n_steps ? stream_last(&s) : stream_next(&s);
        toy_run(first, step, s.hidden, with_rows ? s.fault : NULL);
        for (uint32_t i = 0; i < step->n_rows; i++) expected[step->tokens[i]] = first->out[i];
        struct err e;
        assert_int_equal(holder_step(t.h, step, with_rows ? s.hidden : NULL, with_rows ? s.fault : NULL, &e), ERR_OK);
        uint32_t lag = rng_below(&s.rng, max_lag);
        if (id > lag) holder_stable(t.h, id - lag);
        if (rng_below(&s.rng, 40) == 0) holder_set_hot(t.h, rng_below(&s.rng, 2));
        for (uint32_t n = rng_below(&s.rng, 3); n; n--) work(&t, expected, with_rows);
        struct holder_counts c = counts(t.h);
        assert_int_equal(c.accepted, id);
        assert_int_equal(c.done, t.done);
    }
    holder_stable(t.h, n_steps);
    holder_set_chunk(t.h, 1);
    while (work(&t, expected, with_rows)) {
    }
    assert_int_equal(t.done, n_steps);
    struct holder_counts c = counts(t.h);
    assert_int_equal(c.waiting_rows, 0);
    assert_int_equal(c.waiting_bytes, 0);
    toy_same(first, t.toy);
    holder_free(t.h);
    toy_free(t.toy);
    toy_free(first);
    stream_fini(&s);
}

static void test_same_rows_in_any_chunks(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) run_twin(seed, seed % 3 != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_hot_runs_alone_and_sends),
        cmocka_unit_test(test_lazy_waits_for_stable_rows),
        cmocka_unit_test(test_hot_sends_what_became_stable),
        cmocka_unit_test(test_ended_sequences_are_dropped),
        cmocka_unit_test(test_idle_runs_what_waits),
        cmocka_unit_test(test_blocks_that_come_later),
        cmocka_unit_test(test_chunks_have_a_limit),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_forgetting),
        cmocka_unit_test(test_same_rows_in_any_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
