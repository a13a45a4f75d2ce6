// A stage on a tiny random model: company, chunks and cuts change no token; errors have no effect; a fault stays with
// its sequence.
#include "unit/engine/synth.h"

#include <math.h>

enum { HIDDEN = 48, N_TOKENS = 30 };

struct rig {
    struct synth m;
    struct backend *be;
    struct step *step;
    uint16_t *rows[2];
    uint8_t fault[LIMIT_STEP_ROWS];
};

static int setup_with(void **state, const char *config) {
    struct err e;
    struct rig *r = calloc(1, sizeof *r);
    synth_open(&r->m, config);
    if (backend_cpu_new(&(struct backend_cpu_config){.isa = ISA_AUTO, .n_threads = 2}, &r->be, &e)) return 1;
    r->step = step_new();
    for (int i = 0; i < 2; i++) r->rows[i] = calloc(LIMIT_STEP_ROWS * HIDDEN, sizeof(uint16_t));
    *state = r;
    return 0;
}

static int setup_dense(void **state) { return setup_with(state, SYNTH_DENSE); }
static int setup_moe(void **state) { return setup_with(state, SYNTH_MOE); }

static int teardown(void **state) {
    struct rig *r = *state;
    r->be->ops->free(r->be);
    synth_close(&r->m);
    step_free(r->step);
    free(r->rows[0]);
    free(r->rows[1]);
    free(r);
    return 0;
}

static const struct run_mode L8 = {.weights = WEIGHTS_L8, .kv = KV_I8};

static int run(struct rig *r, struct stage *const *s, uint32_t n, struct step_result *result, struct err *e) {
    memset(r->fault, 0, sizeof r->fault);
    if (step_check(r->step, 100, 32, e)) fail_msg("%s", e->text);
    for (uint32_t i = 0; i < n; i++) {
        int rc = stage_run(s[i], r->step, r->rows[i % 2], r->rows[(i + 1) % 2], r->fault, result, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static void run_good(struct rig *r, struct stage *const *s, uint32_t n, struct step_result *result) {
    struct err e;
    if (run(r, s, n, result, &e)) fail_msg("%s", e.text);
}

// Tokens drawn after each of the positions chunk-1, 2*chunk-1, ... of slot 0, alone.
static void draw_alone(struct rig *r, struct stage *const *s, uint32_t n, uint32_t chunk, int32_t *token) {
    struct step_result result;
    for (uint32_t pos = 0; pos < N_TOKENS; pos += chunk) {
        step_clear(r->step);
        synth_rows(r->step, 0, pos, chunk, 0)->sampling = (struct sampling){.temperature = 3, .top_p = 1, .seed = 5};
        run_good(r, s, n, &result);
        assert_int_equal(result.n, 1);
        token[pos + chunk - 1] = result.entry[0].token;
    }
}

static void test_same_tokens(void **state) {
    struct rig *r = *state;
    struct stage *one = synth_stage(&r->m, r->be, L8, 0, 4);
    struct stage *two[] = {synth_stage(&r->m, r->be, L8, 0, 1), synth_stage(&r->m, r->be, L8, 1, 4)};
    int32_t want[N_TOKENS], have[N_TOKENS];
    draw_alone(r, &one, 1, 1, want);
    stage_reset(one);
    draw_alone(r, &one, 1, 5, have);
    for (uint32_t i = 4; i < N_TOKENS; i += 5) assert_int_equal(have[i], want[i]);
    draw_alone(r, two, 2, 3, have);
    for (uint32_t i = 2; i < N_TOKENS; i += 3) assert_int_equal(have[i], want[i]);
    stage_reset(one);
    struct step_result result;
    for (uint32_t pos = 0; pos < N_TOKENS; pos += 2) { // in company: others before and behind it
        step_clear(r->step);
        synth_rows(r->step, 7, pos, 2, 8);
        synth_rows(r->step, 0, pos, 2, 0)->sampling = (struct sampling){.temperature = 3, .top_p = 1, .seed = 5};
        synth_rows(r->step, 2, pos * 3, 6, 16)->sample = false;
        run_good(r, &one, 1, &result);
        assert_int_equal(result.n, 2);
        assert_int_equal(result.entry[1].slot, 0);
        assert_int_equal(result.entry[1].token, want[pos + 1]);
    }
    stage_free(one);
    stage_free(two[0]);
    stage_free(two[1]);
}

static void test_error_has_no_effect(void **state) {
    struct rig *r = *state;
    struct stage *s = synth_stage(&r->m, r->be, L8, 0, 4);
    struct step_result result;
    struct stage_counts counts;
    struct err e;
    int32_t want[N_TOKENS], have[N_TOKENS];
    draw_alone(r, &s, 1, 10, want);
    stage_reset(s);
    for (uint32_t pos = 0; pos < N_TOKENS; pos += 10) {
        step_clear(r->step);
        synth_rows(r->step, 5, 0, 3, 8);
        synth_rows(r->step, 0, pos + 1, 10, 0); // not where slot 0 is
        if (pos == 0) r->step->seqs[1].first_block = 0;
        assert_int_equal(run(r, &s, 1, &result, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "slot 0"));
        step_clear(r->step);
        synth_rows(r->step, 0, pos, 10, 0)->sampling = (struct sampling){.temperature = 3, .top_p = 1, .seed = 5};
        run_good(r, &s, 1, &result);
        have[pos + 9] = result.entry[0].token;
        assert_int_equal(have[pos + 9], want[pos + 9]);
        stage_counts(s, &counts);
        assert_int_equal(counts.slots_used, 1); // slot 5 never began
        assert_int_equal(counts.blocks_used, 1);
    }
    assert_int_equal(counts.steps, 6);
    assert_int_equal(counts.rows, 60);
    step_clear(r->step);
    for (uint32_t i = 0; i < 2; i++) synth_rows(r->step, 10 + i, 0, 100, 8 + 4 * i);
    assert_int_equal(run(r, &s, 1, &result, &e), ERR_LIMIT); // more rows than the stage was made for
    stage_free(s);
}

static void test_fault_stays(void **state) {
    struct rig *r = *state;
    struct stage *s = synth_stage(&r->m, r->be, L8, 1, 4);
    struct step_result clean, result;
    struct err e;
    for (int i = 0; i < 40 * HIDDEN; i++) r->rows[0][i] = (uint16_t)(0x3e00 + (i * 37) % 200); // small numbers
    for (int bad = 0; bad < 2; bad++) {
        step_clear(r->step);
        for (uint32_t i = 0; i < 4; i++) synth_rows(r->step, i, 0, 10, 4 * i)->sample = i != 1;
        if (bad) r->rows[0][15 * HIDDEN + 3] = 0x7fc0; // a NaN in a row of the second sequence
        if (bad) r->rows[0][39 * HIDDEN + 3] = 0xff80; // an infinity in the last row of the fourth
        memset(r->fault, 0, sizeof r->fault);
        if (bad) r->fault[2] = 1; // the stage before met one in the first
        assert_int_equal(stage_run(s, r->step, r->rows[0], NULL, r->fault, bad ? &result : &clean, &e), ERR_OK);
        stage_reset(s);
    }
    assert_int_equal(clean.n, 3);
    assert_int_equal(result.n, 4);
    assert_true(result.entry[0].fault && result.entry[0].token == -1);
    assert_true(result.entry[1].fault && result.entry[1].slot == 1); // told, though it draws no token
    assert_true(!result.entry[2].fault && result.entry[2].slot == 2);
    assert_int_equal(result.entry[2].token, clean.entry[1].token);
    assert_true(result.entry[3].fault && result.entry[3].token == -1);
    assert_true(r->fault[2] && r->fault[15] && r->fault[39]);
    for (uint32_t i = 20; i < 39; i++) assert_int_equal(r->fault[i], 0);
    stage_free(s);
}

// What is missing, misshapen or not finite is told by name.
static void test_load_errors(void **state) {
    struct rig *r = *state;
    struct model_part *part;
    struct tensors *t;
    struct err e;
    assert_int_equal(tensors_new(&t), ERR_OK);
    assert_int_equal(model_part_load(&r->m.h, &L8, t, r->be, 0, 1, NULL, &part, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "model.embed_tokens.weight"));
    tensors_free(t);
    struct hparams h = r->m.h;
    h.ffn = 96;
    assert_int_equal(model_part_load(&h, &L8, r->m.tensors, r->be, 0, 4, NULL, &part, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "[80, 48], but config.json makes it [96, 48]"));
    float *x = r->m.data[2], saved = x[5]; // q_proj or another matrix of layer 0
    x[5] = INFINITY;
    assert_int_equal(model_part_load(&r->m.h, &L8, r->m.tensors, r->be, 0, 4, NULL, &part, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "model.layers.0."));
    x[5] = saved;
}

struct seen {
    uint64_t calls, done, total;
};

static void see(void *arg, uint64_t done, uint64_t total) {
    struct seen *s = arg;
    assert_true(done > s->done && done <= total && (s->total == 0 || s->total == total));
    *s = (struct seen){s->calls + 1, done, total};
}

static void test_progress(void **state) {
    struct rig *r = *state;
    struct seen seen = {0};
    struct model_part *part;
    struct err e;
    struct model_progress p = {.fn = see, .arg = &seen};
    assert_int_equal(model_part_load(&r->m.h, &L8, r->m.tensors, r->be, 0, 4, &p, &part, &e), ERR_OK);
    assert_true(seen.calls >= r->m.n && seen.done == seen.total);
    model_part_free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_same_tokens, setup_dense, teardown),
                                       cmocka_unit_test_setup_teardown(test_same_tokens, setup_moe, teardown),
                                       cmocka_unit_test_setup_teardown(test_error_has_no_effect, setup_dense, teardown),
                                       cmocka_unit_test_setup_teardown(test_fault_stays, setup_dense, teardown),
                                       cmocka_unit_test_setup_teardown(test_fault_stays, setup_moe, teardown),
                                       cmocka_unit_test_setup_teardown(test_load_errors, setup_moe, teardown),
                                       cmocka_unit_test_setup_teardown(test_progress, setup_moe, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
