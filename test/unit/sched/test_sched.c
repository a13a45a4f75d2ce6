#include "base/rng.h"
#include "kv/kv.h"
#include "sched/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// A stage that remembers what each slot and each block holds, and draws tokens that depend on all tokens before.
enum { VOCAB = 50, CONTEXT = 1024, FLIGHT_MAX = LIMIT_STEPS_IN_FLIGHT, IDS = 400 };

struct bench {
    struct sched *s;
    uint32_t slot_pos[LIMIT_SEQS];
    uint64_t slot_hash[LIMIT_SEQS];
    uint32_t block_owner[1024]; // slot + 1
    struct step_result flight[FLIGHT_MAX];
    uint32_t n_flight;
    int32_t got[IDS][CONTEXT];
    uint32_t n_got[IDS];
    struct gen_event end[IDS];
    char end_text[IDS][200];
    bool ended[IDS];
};

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9E3779B97F4A7C15u + (h >> 29); }

static struct bench *bench_new(uint32_t chunk_rows, uint32_t max_seqs, uint32_t n_stages, uint32_t n_blocks) {
    struct bench *b = calloc(1, sizeof *b);
    struct sched_config c = {VOCAB, CONTEXT, chunk_rows, max_seqs, 1024};
    struct err e;
    assert_non_null(b);
    assert_int_equal(sched_new(&c, &b->s, &e), ERR_OK);
    sched_route_up(b->s, 1, n_stages, n_blocks);
    return b;
}

static void bench_free(struct bench *b) {
    sched_free(b->s);
    free(b);
}

static void forget_stage(struct bench *b) {
    memset(b->slot_pos, 0, sizeof b->slot_pos);
    memset(b->block_owner, 0, sizeof b->block_owner);
    b->n_flight = 0;
}

static void release(struct bench *b, uint32_t slot) {
    b->slot_pos[slot] = 0;
    for (uint32_t i = 0; i < 1024; i++)
        if (b->block_owner[i] == slot + 1) b->block_owner[i] = 0;
}

// Forms a step if one is due and runs it; its result waits in flight.
static const struct step *go(struct bench *b) {
    const struct step *s = sched_form(b->s);
    sched_check(b->s);
    if (!s) return NULL;
    struct err e;
    assert_int_equal(step_check(s, VOCAB, 1024, &e), ERR_OK);
    for (uint32_t i = 0; i < s->n_releases; i++) release(b, s->releases[i]);
    assert_true(b->n_flight < FLIGHT_MAX);
    struct step_result *r = &b->flight[b->n_flight++];
    *r = (struct step_result){.id = s->id, .epoch = s->epoch};
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *q = &s->seqs[i];
        assert_int_equal(q->pos, b->slot_pos[q->slot]);
        assert_int_equal(q->first_block, kv_blocks_of(q->pos));
        assert_int_equal(q->first_block + q->n_blocks, kv_blocks_of(q->pos + q->n_rows));
        for (uint32_t j = 0; j < q->n_blocks; j++) {
            assert_int_equal(b->block_owner[s->blocks[q->block + j]], 0);
            b->block_owner[s->blocks[q->block + j]] = q->slot + 1;
        }
        if (q->pos == 0) b->slot_hash[q->slot] = q->sampling.seed;
        for (uint32_t j = 0; j < q->n_rows; j++)
            b->slot_hash[q->slot] = mix(b->slot_hash[q->slot], (uint64_t)s->tokens[q->row + j]);
        b->slot_pos[q->slot] += q->n_rows;
        if (!q->sample) continue;
        r->entry[r->n].slot = q->slot;
        r->entry[r->n++].token = (int32_t)((b->slot_hash[q->slot] >> 20) % VOCAB);
    }
    return s;
}

static void take_events(struct bench *b) {
    struct gen_event e;
    while (sched_next_event(b->s, &e)) {
        assert_true(e.id < IDS && !b->ended[e.id]);
        assert_int_equal(e.index, b->n_got[e.id]);
        if (e.token >= 0) b->got[e.id][b->n_got[e.id]++] = e.token;
        if (e.finish == GEN_GOING) continue;
        b->ended[e.id] = true;
        b->end[e.id] = e;
        if (e.text) strcpy(b->end_text[e.id], e.text);
    }
    sched_check(b->s);
}

// The oldest result comes back.
static void back(struct bench *b) {
    bool done;
    struct err e;
    assert_true(b->n_flight > 0);
    assert_int_equal(sched_result(b->s, &b->flight[0], &done, &e), ERR_OK);
    assert_true(done);
    memmove(&b->flight[0], &b->flight[1], --b->n_flight * sizeof b->flight[0]);
    take_events(b);
}

static int submit(struct bench *b, uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    int32_t prompt[CONTEXT + 1];
    for (uint32_t i = 0; i <= CONTEXT; i++) prompt[i] = (int32_t)((i * 7 + id) % VOCAB);
    struct gen_request r = {.prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    r.sampling = (struct sampling){.top_p = 1, .seed = id};
    struct err e;
    return sched_submit(b->s, id, &r, &e);
}

// The answer that request id must get, max_tokens long.
static void assert_answer(const struct bench *b, uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    uint64_t h = id;
    for (uint32_t i = 0; i < n_prompt; i++) h = mix(h, (i * 7 + id) % VOCAB);
    assert_true(b->ended[id]);
    assert_int_equal(b->end[id].finish, GEN_LENGTH);
    assert_int_equal(b->n_got[id], max_tokens);
    for (uint32_t i = 0; i < max_tokens; i++) {
        uint64_t token = (h >> 20) % VOCAB;
        assert_int_equal(b->got[id][i], token);
        h = mix(h, token);
    }
}

static void run_out(struct bench *b) {
    for (int i = 0; i < 100000; i++) {
        while (go(b)) {
        }
        if (b->n_flight == 0) return;
        back(b);
    }
    fail_msg("it never ends");
}

static struct sched_counts counts(const struct bench *b) {
    struct sched_counts c;
    sched_counts(b->s, &c);
    return c;
}

static void test_one_request(void **state) {
    (void)state;
    struct bench *b = bench_new(100, 4, 1, 10);
    assert_null(go(b));
    assert_int_equal(submit(b, 3, 150, 2), ERR_OK);
    const struct step *s = go(b);
    assert_int_equal(s->id, 1);
    assert_int_equal(s->epoch, 1);
    assert_int_equal(s->n_rows, 100);
    assert_int_equal(s->seqs[0].n_blocks, 2);
    assert_false(s->seqs[0].sample);
    s = go(b); // the second chunk follows while the first is in flight
    assert_int_equal(s->id, 2);
    assert_int_equal(s->seqs[0].pos, 100);
    assert_int_equal(s->seqs[0].n_rows, 50);
    assert_int_equal(s->seqs[0].first_block, 2);
    assert_int_equal(s->seqs[0].n_blocks, 1);
    assert_true(s->seqs[0].sample);
    assert_null(go(b)); // two in flight for one stage
    back(b);
    assert_null(go(b)); // waits for its token
    back(b);
    s = go(b);
    assert_int_equal(s->seqs[0].pos, 150);
    assert_int_equal(s->seqs[0].n_blocks, 0);
    assert_int_equal(s->tokens[0], b->got[3][0]);
    back(b);
    assert_answer(b, 3, 150, 2);
    assert_int_equal(counts(b).blocks_used, 0);
    s = go(b); // nothing but the release
    assert_int_equal(s->n_rows, 0);
    assert_int_equal(s->n_releases, 1);
    back(b);
    assert_null(go(b));
    bench_free(b);
}

static void test_finish_by_stop_and_fault(void **state) {
    (void)state;
    struct bench *b = bench_new(100, 4, 1, 10);
    int32_t prompt[3] = {1, 2, 3};
    struct gen_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 9, .sampling = {.top_p = 1}};
    struct err e;
    r.n_stop_ids = 2;
    r.stop_ids[1] = 17;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_OK);
    assert_int_equal(sched_submit(b->s, 2, &r, &e), ERR_OK);
    go(b);
    b->flight[0].entry[0].token = 17;
    b->flight[0].entry[1].token = -1;
    b->flight[0].entry[1].fault = true;
    back(b);
    assert_int_equal(b->end[1].finish, GEN_STOP);
    assert_int_equal(b->got[1][0], 17);
    assert_int_equal(b->end[2].finish, GEN_FAILED);
    assert_int_equal(b->end[2].code, ERR_NUMERIC);
    assert_int_equal(b->n_got[2], 0);
    assert_int_equal(counts(b).blocks_used, 0);
    bench_free(b);
}

static void test_prefill_takes_turns(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 4, 4, 40);
    submit(b, 1, 256, 1);
    submit(b, 2, 256, 1);
    submit(b, 3, 10, 1);
    uint32_t rows[LIMIT_SEQS] = {0};
    for (int i = 0; i < 4; i++) {
        const struct step *s = go(b);
        assert_int_equal(s->n_rows, 64);
        for (uint32_t j = 0; j < s->n_seqs; j++) rows[s->seqs[j].slot] += s->seqs[j].n_rows;
    }
    // A whole step, a whole step, then the short one and the first again, and the second.
    assert_int_equal(rows[0], 64 + 54);
    assert_int_equal(rows[1], 64 + 64);
    assert_int_equal(rows[2], 10);
    assert_non_null(go(b));
    assert_null(go(b)); // five in flight for four stages
    run_out(b);
    assert_answer(b, 1, 256, 1);
    assert_answer(b, 2, 256, 1);
    bench_free(b);
}

static void test_decode_fills_the_pipeline_evenly(void **state) {
    (void)state;
    struct bench *b = bench_new(200, 16, 3, 40);
    for (uint64_t id = 1; id <= 9; id++) submit(b, id, 5, 50);
    for (int i = 0; i < 40; i++) {
        while (go(b)) {
        }
        assert_true(b->n_flight <= 3);
        if (i > 10) { // settled: three steps with three sequences each
            assert_int_equal(b->n_flight, 3);
            for (uint32_t j = 0; j < 3; j++) assert_int_equal(b->flight[j].n, 3);
        }
        back(b);
    }
    run_out(b);
    for (uint64_t id = 1; id <= 9; id++) assert_answer(b, id, 5, 50);
    bench_free(b);
}

// Two stages: a prompt of 960 tokens goes in slices of 128 (960 / 8, whole blocks, and no less than that), three of
// which travel at once; behind a sequence that decodes too.
static void test_a_prompt_is_sliced_for_several_stages(void **state) {
    (void)state;
    struct bench *b = bench_new(512, 8, 2, 100);
    assert_int_equal(submit(b, 1, 960, 4), ERR_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(go(b)->n_rows, 128);
    assert_null(go(b));
    back(b);
    assert_int_equal(go(b)->n_rows, 128);
    bench_free(b);
    b = bench_new(512, 8, 1, 100);
    assert_int_equal(submit(b, 1, 960, 4), ERR_OK);
    assert_int_equal(go(b)->n_rows, 512);
    bench_free(b);
}

static void test_one_stage_decodes_all_at_once(void **state) {
    (void)state;
    struct bench *b = bench_new(200, 16, 1, 40);
    for (uint64_t id = 1; id <= 6; id++) { // they come one after the other, and still end up in one step
        submit(b, id, 5, 60);
        while (go(b)) {
        }
        back(b);
    }
    for (int i = 0; i < 8; i++) {
        while (go(b)) {
        }
        back(b);
    }
    const struct step *s = go(b);
    assert_int_equal(s->n_seqs, 6);
    assert_null(go(b));
    submit(b, 7, 30, 1); // prefill goes beside the decode step
    s = go(b);
    assert_int_equal(s->n_rows, 30);
    run_out(b);
    bench_free(b);
}

static void test_cancel_frees_at_once(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 1, 1, 4);
    submit(b, 1, 200, 10);
    submit(b, 2, 5, 1);
    go(b);
    go(b);
    assert_int_equal(counts(b).n_waiting, 1);
    sched_cancel(b->s, 1);
    sched_cancel(b->s, 1);
    sched_cancel(b->s, 77);
    take_events(b);
    assert_int_equal(b->end[1].finish, GEN_CANCELLED);
    assert_int_equal(counts(b).blocks_used, 0);
    back(b);
    const struct step *s = go(b); // the slot is used again in the step that carries its release
    assert_int_equal(s->n_releases, 1);
    assert_int_equal(s->n_seqs, 1);
    assert_int_equal(s->seqs[0].slot, s->releases[0]);
    run_out(b);
    assert_answer(b, 2, 5, 1);

    submit(b, 3, 60, 4);
    go(b);
    sched_cancel(b->s, 3);
    s = go(b); // nothing is due but the release
    assert_int_equal(s->n_rows, 0);
    assert_int_equal(s->n_releases, 1);
    back(b); // its token is dropped
    back(b);
    take_events(b);
    assert_int_equal(b->n_got[3], 0);
    bench_free(b);
}

static void test_preemption_keeps_every_token(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct rng r;
        rng_init(&r, seed);
        uint32_t n_stages = 1 + rng_below(&r, 4), n_blocks = 5 + rng_below(&r, 8);
        struct bench *b = bench_new(1 + rng_below(&r, 100), 1 + rng_below(&r, 12), n_stages, n_blocks);
        uint32_t n_prompt[30], max_tokens[30];
        for (uint32_t id = 0; id < 30; id++) {
            n_prompt[id] = 1 + rng_below(&r, 100);
            max_tokens[id] = 1 + rng_below(&r, 200);
            assert_int_equal(submit(b, id, n_prompt[id], max_tokens[id]), ERR_OK);
        }
        for (int i = 0; counts(b).n_running + counts(b).n_waiting; i++) {
            assert_true(i < 200000);
            bool formed = rng_below(&r, 3) && go(b);
            if (!formed && b->n_flight && rng_below(&r, 2)) back(b);
        }
        for (uint32_t id = 0; id < 30; id++) assert_answer(b, id, n_prompt[id], max_tokens[id]);
        assert_int_equal(counts(b).blocks_used, 0);
        if (seed == 1) assert_true(counts(b).n_preemptions > 0);
        bench_free(b);
    }
}

static void test_the_youngest_yields_and_comes_first_again(void **state) {
    (void)state;
    struct bench *b = bench_new(200, 2, 1, 5);
    submit(b, 1, 60, 150);
    submit(b, 2, 60, 100);
    submit(b, 3, 60, 1);
    while (!b->ended[3]) {
        while (go(b)) {
        }
        back(b);
    }
    // At 129 tokens each, 2 was sent back. It needs three blocks and two are free: 3 would fit, and yet does not pass
    // it.
    assert_int_equal(counts(b).n_preemptions, 1);
    assert_true(b->ended[1] && b->n_got[2] < 100);
    run_out(b);
    assert_answer(b, 1, 60, 150);
    assert_answer(b, 2, 60, 100);
    bench_free(b);
}

static void test_new_route_computes_again_in_order(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 8, 2, 40);
    for (uint64_t id = 1; id <= 4; id++) submit(b, id, 20, 30);
    for (int i = 0; i < 10; i++) {
        while (go(b)) {
        }
        back(b);
    }
    while (go(b)) {
    }
    struct step_result stale = b->flight[0];
    uint32_t had = b->n_got[1];
    assert_true(had > 0 && had < 30);
    sched_route_down(b->s);
    assert_null(sched_form(b->s));
    assert_int_equal(counts(b).n_waiting, 4);
    sched_route_up(b->s, 2, 1, 40);
    forget_stage(b);
    bool done;
    struct err e;
    const struct step *s = go(b);
    assert_int_equal(s->id, 1);
    assert_int_equal(s->epoch, 2);
    assert_int_equal(s->seqs[0].n_rows, 20 + had); // prompt and what was drawn, the oldest first
    assert_int_equal(s->seqs[0].sampling.seed, 1);
    assert_int_equal(s->seqs[0].first_block, 0);
    assert_int_equal(sched_result(b->s, &stale, &done, &e), ERR_OK);
    assert_false(done);
    stale = b->flight[0]; // it even fits, but for the epoch
    stale.epoch = 1;
    assert_int_equal(sched_result(b->s, &stale, &done, &e), ERR_OK);
    assert_false(done);
    run_out(b);
    for (uint64_t id = 1; id <= 4; id++) assert_answer(b, id, 20, 30);
    bench_free(b);
}

// An answer of which an earlier process told k tokens goes on with token k, and is the same answer.
// Once for each time that its computation begins, whatever the step has beside it.
static void test_who_begins(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 8, 1, 40);
    uint64_t ids[LIMIT_SEQS];
    assert_int_equal(sched_begun_ids(b->s, ids), 0);
    assert_int_equal(submit(b, 7, 100, 10), ERR_OK);
    assert_non_null(go(b));
    assert_int_equal(sched_begun_ids(b->s, ids), 1);
    assert_int_equal(ids[0], 7);
    back(b);
    assert_non_null(go(b)); // the rest of its prompt
    assert_int_equal(sched_begun_ids(b->s, ids), 0);
    back(b);
    assert_int_equal(submit(b, 8, 5, 10), ERR_OK);
    assert_int_equal(go(b)->n_seqs, 2); // one decodes, the other begins
    assert_int_equal(sched_begun_ids(b->s, ids), 1);
    assert_int_equal(ids[0], 8);
    back(b);
    sched_route_down(b->s);
    assert_int_equal(sched_begun_ids(b->s, ids), 0);
    sched_route_up(b->s, 2, 1, 40);
    forget_stage(b);
    assert_non_null(go(b));
    assert_int_equal(sched_begun_ids(b->s, ids), 1); // its chunk is full
    assert_int_equal(ids[0], 7);
    bench_free(b);
}

static void test_an_answer_that_goes_on(void **state) {
    (void)state;
    enum { PROMPT = 70, TOKENS = 90 };
    struct bench *whole = bench_new(64, 8, 2, 40);
    submit(whole, 1, PROMPT, TOKENS);
    run_out(whole);
    int32_t prompt[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)((i * 7 + 1) % VOCAB);
    struct gen_request r = {.prompt = prompt, .n_prompt = PROMPT, .max_tokens = TOKENS, .known = whole->got[1]};
    r.sampling = (struct sampling){.top_p = 1, .seed = 1};
    struct err e;
    for (uint32_t known = 0; known < TOKENS; known += 29) {
        struct bench *b = bench_new(64, 8, 2, 40);
        r.n_known = known;
        assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_OK);
        memcpy(b->got[1], whole->got[1], known * sizeof b->got[1][0]);
        b->n_got[1] = known; // take_events checks that the first index is this
        run_out(b);
        assert_answer(b, 1, PROMPT, TOKENS);
        bench_free(b);
    }
    struct bench *b = bench_new(64, 8, 2, 40);
    r.n_known = TOKENS;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_USAGE);
    int32_t bad = VOCAB;
    r.known = &bad;
    r.n_known = 1;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_USAGE);
    bench_free(b);
    bench_free(whole);
}

static void test_what_can_never_fit(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 8, 1, 5);
    assert_int_equal(submit(b, 1, CONTEXT, 1), ERR_LIMIT);
    assert_int_equal(submit(b, 1, 200, 122), ERR_LIMIT); // 321 rows: six blocks
    assert_int_equal(submit(b, 1, 200, 121), ERR_OK);
    assert_int_equal(submit(b, 2, 100, 10), ERR_OK);
    go(b);
    sched_route_down(b->s);
    assert_int_equal(submit(b, 3, 250, 50), ERR_OK); // nobody knows yet
    forget_stage(b);
    sched_route_up(b->s, 2, 1, 2);
    take_events(b);
    assert_int_equal(b->end[1].finish, GEN_FAILED);
    assert_int_equal(b->end[1].code, ERR_LIMIT);
    assert_string_equal(b->end_text[1], "321 tokens of prompt and answer need 5 KV blocks of 64 tokens; the machines "
                                        "left have 2");
    assert_true(b->ended[3]);
    run_out(b);
    assert_answer(b, 2, 100, 10);
    bench_free(b);
}

static void test_bad_requests(void **state) {
    (void)state;
    struct bench *b = bench_new(64, 8, 1, 5);
    int32_t prompt[2] = {1, VOCAB};
    struct gen_request r = {.prompt = prompt, .n_prompt = 2, .max_tokens = 1, .sampling = {.top_p = 1}};
    struct err e;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_USAGE);
    assert_string_equal(e.text, "prompt: token 50 at 1 is not in 0 .. 49");
    prompt[1] = 0;
    r.sampling.top_p = 0;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_USAGE);
    r.sampling.top_p = 1;
    r.max_tokens = 0;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_USAGE);
    r.max_tokens = UINT32_MAX;
    assert_int_equal(sched_submit(b->s, 1, &r, &e), ERR_LIMIT);
    r.max_tokens = 1;
    for (uint64_t id = 1; id <= LIMIT_QUEUED; id++) assert_int_equal(sched_submit(b->s, id, &r, &e), ERR_OK);
    assert_int_equal(sched_submit(b->s, 9999, &r, &e), ERR_UNAVAILABLE);
    sched_fail_all(b->s, ERR_UNAVAILABLE, "gone");
    struct gen_event ev;
    for (uint64_t id = 1; id <= LIMIT_QUEUED; id++) {
        assert_true(sched_next_event(b->s, &ev));
        assert_int_equal(ev.id, id);
        assert_string_equal(ev.text, "gone");
    }
    assert_false(sched_next_event(b->s, &ev));
    bench_free(b);
}

static void test_results_that_lie(void **state) {
    (void)state;
    struct bench *b = bench_new(8, 8, 1, 5);
    submit(b, 1, 10, 3);
    submit(b, 2, 10, 3);
    for (int i = 0; i < 2; i++) {
        go(b);
        back(b);
    }
    go(b); // the rest of both
    struct step_result good = b->flight[0], r;
    bool done;
    struct err e;
    r = good;
    r.id++;
    assert_int_equal(sched_result(b->s, &r, &done, &e), ERR_OK); // not the oldest: ignored
    assert_false(done);
    r = good;
    r.n = 0;
    assert_int_equal(sched_result(b->s, &r, &done, &e), ERR_FORMAT);
    r = good;
    r.entry[0].token = VOCAB;
    assert_int_equal(sched_result(b->s, &r, &done, &e), ERR_FORMAT);
    r = good;
    r.entry[r.n].slot = 99;
    r.entry[r.n++].token = 1;
    assert_int_equal(sched_result(b->s, &r, &done, &e), ERR_FORMAT);
    r = good;
    r.n = LIMIT_SEQS;
    assert_int_equal(sched_result(b->s, &r, &done, &e), ERR_FORMAT);
    back(b);
    assert_int_equal(sched_result(b->s, &good, &done, &e), ERR_OK); // comes twice
    assert_false(done);
    run_out(b);
    assert_answer(b, 1, 10, 3);
    assert_answer(b, 2, 10, 3);
    bench_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_finish_by_stop_and_fault),
        cmocka_unit_test(test_prefill_takes_turns),
        cmocka_unit_test(test_decode_fills_the_pipeline_evenly),
        cmocka_unit_test(test_a_prompt_is_sliced_for_several_stages),
        cmocka_unit_test(test_one_stage_decodes_all_at_once),
        cmocka_unit_test(test_cancel_frees_at_once),
        cmocka_unit_test(test_preemption_keeps_every_token),
        cmocka_unit_test(test_the_youngest_yields_and_comes_first_again),
        cmocka_unit_test(test_new_route_computes_again_in_order),
        cmocka_unit_test(test_who_begins),
        cmocka_unit_test(test_an_answer_that_goes_on),
        cmocka_unit_test(test_what_can_never_fit),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_results_that_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
