#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/step.h"
#include <math.h>

enum { VOCAB = 100, BLOCKS = 50 };

// Two sequences: a prefill of three rows that opens a block, and a decode row.
static void fill(struct step *s) {
    step_clear(s);
    s->id = 7;
    s->epoch = 2;
    s->n_seqs = 2;
    s->n_rows = 4;
    s->n_blocks = 1;
    s->n_releases = 1;
    struct sampling greedy = {.top_p = 1};
    s->seqs[0] = (struct step_seq){.slot = 3, .n_rows = 3, .n_blocks = 1, .sampling = greedy};
    s->seqs[1] = (struct step_seq){.slot = 5,
                                   .pos = 64,
                                   .row = 3,
                                   .n_rows = 1,
                                   .first_block = 1,
                                   .block = 1, //
                                   .sample = true,
                                   .sampling = greedy};
    for (int i = 0; i < 4; i++) s->tokens[i] = i;
    s->blocks[0] = BLOCKS - 1;
    s->releases[0] = 9;
}

static struct step *s, *t;

static int set_up(void **state) {
    (void)state;
    s = step_new();
    t = step_new();
    return s && t ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    step_free(s);
    step_free(t);
    return 0;
}

static void a_copy_is_equal_and_good(void **state) {
    (void)state;
    struct err e = {0};
    fill(s);
    assert_int_equal(step_check(s, VOCAB, BLOCKS, &e), ERR_OK);
    step_copy(t, s);
    assert_int_equal(step_check(t, VOCAB, BLOCKS, &e), ERR_OK);
    assert_int_equal(t->id, 7);
    assert_int_equal(t->epoch, 2);
    assert_memory_equal(t->seqs, s->seqs, 2 * sizeof *s->seqs);
    assert_memory_equal(t->tokens, s->tokens, 4 * sizeof *s->tokens);
    assert_int_equal(t->blocks[0], BLOCKS - 1);
    assert_int_equal(t->releases[0], 9);
    step_clear(s);
    assert_int_equal(step_check(s, VOCAB, BLOCKS, &e), ERR_OK);
}

#define BAD(spoil)                                                                                                     \
    do {                                                                                                               \
        struct err e = {0};                                                                                            \
        fill(s);                                                                                                       \
        spoil;                                                                                                         \
        assert_int_equal(step_check(s, VOCAB, BLOCKS, &e), ERR_FORMAT);                                                \
        assert_true(e.text[0] != 0);                                                                                   \
    } while (0)

static void every_lie_is_refused(void **state) {
    (void)state;
    BAD(s->n_seqs = LIMIT_SEQS + 1);
    BAD(s->n_rows = LIMIT_STEP_ROWS + 1);
    BAD(s->n_blocks = STEP_BLOCKS_MAX + 1);
    BAD(s->n_releases = LIMIT_SEQS + 1);
    BAD(s->n_rows = 5);
    BAD(s->n_rows = 3);
    BAD(s->n_blocks = 2);
    BAD(s->n_blocks = 0);
    BAD(s->seqs[0].slot = LIMIT_SEQS);
    BAD(s->seqs[1].slot = 3);
    BAD(s->seqs[0].n_rows = 0);
    BAD(s->seqs[1].row = 2);
    BAD(s->seqs[1].n_rows = UINT32_MAX);
    BAD(s->seqs[1].pos = LIMIT_CONTEXT);
    BAD(s->seqs[0].pos = LIMIT_CONTEXT - 2);
    BAD(s->seqs[0].block = 1);
    BAD(s->seqs[0].n_blocks = UINT32_MAX);
    BAD(s->seqs[1].first_block = UINT32_MAX);
    BAD(s->seqs[0].first_block = LIMIT_SEQ_BLOCKS);
    BAD(s->tokens[2] = -1);
    BAD(s->tokens[3] = VOCAB);
    BAD(s->blocks[0] = BLOCKS);
    BAD(s->releases[0] = LIMIT_SEQS);
    BAD(s->seqs[1].sampling.temperature = NAN);
    BAD(s->seqs[1].sampling.temperature = INFINITY);
    BAD(s->seqs[1].sampling.temperature = -1);
    BAD(s->seqs[1].sampling.top_p = 0);
    BAD(s->seqs[1].sampling.top_p = NAN);
    BAD(s->seqs[1].sampling.min_p = 1.5f);
    BAD(s->seqs[1].sampling.min_p = NAN);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_copy_is_equal_and_good),
                                       cmocka_unit_test(every_lie_is_refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
