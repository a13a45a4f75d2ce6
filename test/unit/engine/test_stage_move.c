// A stage that is fed in chunks by one backend and goes on step by step on another gives the same bytes as one that ran
// step by step from the start: what a shadow does before and after it serves.
#include "unit/engine/synth.h"

enum { HIDDEN = 48, N_SEQS = 3, N_STEPS = 40, MAX_ROWS = 128 };

struct rig {
    struct synth m;
    struct backend *be[2];
    struct step *step;
    uint8_t fault[MAX_ROWS];
    // What the two stages give when they run step by step.
    uint16_t rows[N_STEPS][N_SEQS][HIDDEN]; // that the first one sends
    int32_t token[N_STEPS][N_SEQS];
    struct stage *first, *second; // of the one that is fed in chunks
    uint16_t in[MAX_ROWS * HIDDEN], out[MAX_ROWS * HIDDEN];
};

static const struct run_mode L8 = {.weights = WEIGHTS_L8, .kv = KV_I8};

static struct stage *make(struct rig *r, struct backend *be, bool second) {
    return second ? synth_stage(&r->m, be, L8, 2, 4) : synth_stage(&r->m, be, L8, 0, 2);
}

// Positions [pos, pos + n) of each sequence.
static void make_step(struct rig *r, uint32_t pos, uint32_t n, bool sample) {
    step_clear(r->step);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        struct step_seq *q = synth_rows(r->step, 5 + i, pos, n, 4 * i);
        q->sampling = (struct sampling){.temperature = 2, .top_p = 1, .seed = i};
        q->sample = sample;
        for (uint32_t p = 0; p < n; p++)
            for (uint32_t k = 0; k < HIDDEN && pos + p < N_STEPS; k++)
                r->in[(i * n + p) * HIDDEN + k] = r->rows[pos + p][i][k];
    }
    memset(r->fault, 0, sizeof r->fault);
}

static void run(struct rig *r, struct stage *s, const uint16_t *in, uint16_t *out, struct step_result *result) {
    struct err e;
    if (stage_run(s, r->step, in, out, r->fault, result, &e)) fail_msg("%s", e.text);
}

static int setup_with(void **state, const char *config) {
    struct err e;
    struct rig *r = calloc(1, sizeof *r);
    struct step_result result;
    synth_open(&r->m, config);
    for (uint32_t i = 0; i < 2; i++)
        if (backend_cpu_new(&(struct backend_cpu_config){.isa = ISA_AUTO, .n_threads = i + 1}, &r->be[i], &e)) return 1;
    r->step = step_new();
    struct stage *first = make(r, r->be[0], false), *second = make(r, r->be[0], true);
    for (uint32_t pos = 0; pos < N_STEPS; pos++) {
        make_step(r, pos, 1, true);
        run(r, first, NULL, &r->rows[pos][0][0], NULL);
        run(r, second, &r->rows[pos][0][0], NULL, &result);
        assert_int_equal(result.n, N_SEQS);
        for (uint32_t i = 0; i < N_SEQS; i++) r->token[pos][i] = result.entry[i].token;
    }
    stage_free(first);
    stage_free(second);
    r->first = make(r, r->be[1], false);
    r->second = make(r, r->be[1], true);
    *state = r;
    return 0;
}

static int setup_dense(void **state) { return setup_with(state, SYNTH_DENSE); }
static int setup_moe(void **state) { return setup_with(state, SYNTH_MOE); }

static int teardown(void **state) {
    struct rig *r = *state;
    stage_free(r->first);
    stage_free(r->second);
    for (uint32_t i = 0; i < 2; i++) r->be[i]->ops->free(r->be[i]);
    step_free(r->step);
    synth_close(&r->m);
    free(r);
    return 0;
}

// Many positions at once, no tokens wanted; the first stage's rows are kept all the same.
static void feed_chunk(struct rig *r, uint32_t pos, uint32_t n) {
    make_step(r, pos, n, false);
    run(r, r->first, NULL, r->out, NULL);
    assert_memory_equal(r->out, r->in, N_SEQS * n * HIDDEN * sizeof r->in[0]);
    run(r, r->second, r->in, NULL, NULL);
}

static void run_steps(struct rig *r, uint32_t from, uint32_t to) {
    struct step_result result;
    for (uint32_t pos = from; pos < to; pos++) {
        make_step(r, pos, 1, true);
        run(r, r->first, NULL, r->out, NULL);
        assert_memory_equal(r->out, r->rows[pos], sizeof r->rows[pos]);
        run(r, r->second, r->in, NULL, &result);
        for (uint32_t i = 0; i < N_SEQS; i++) assert_int_equal(result.entry[i].token, r->token[pos][i]);
    }
}

static void move(struct rig *r, uint32_t to) {
    stage_move(r->first, r->be[to]);
    stage_move(r->second, r->be[to]);
}

static void test_chunks_then_steps(void **state) {
    struct rig *r = *state;
    feed_chunk(r, 0, 13);
    feed_chunk(r, 13, 4);
    move(r, 0); // it serves from here on
    run_steps(r, 17, 25);
    move(r, 1); // a false alarm
    feed_chunk(r, 25, 9);
    move(r, 0);
    run_steps(r, 34, N_STEPS);
}

// Filled from the rows of its sequences, after it had held others.
static void test_reset_and_replay(void **state) {
    struct rig *r = *state;
    feed_chunk(r, 0, 20);
    step_clear(r->step);
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) r->step->releases[r->step->n_releases++] = i;
    run(r, r->first, NULL, r->out, NULL);
    run(r, r->second, r->in, NULL, NULL);
    move(r, 0);
    feed_chunk(r, 0, 30);
    run_steps(r, 30, N_STEPS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chunks_then_steps, setup_dense, teardown),
        cmocka_unit_test_setup_teardown(test_chunks_then_steps, setup_moe, teardown),
        cmocka_unit_test_setup_teardown(test_reset_and_replay, setup_dense, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
