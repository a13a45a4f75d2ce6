#include "engine/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CONTEXT = 256, N_BLOCKS = 12 };

struct rig {
    struct slots slots;
    struct step *step;
};

static int setup(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    r->step = step_new();
    *state = r;
    return slots_init(&r->slots, CONTEXT, N_BLOCKS);
}

static int teardown(void **state) {
    struct rig *r = *state;
    slots_fini(&r->slots);
    step_free(r->step);
    free(r);
    return 0;
}

// One sequence with its new blocks first_id, first_id + 1, ...
static void add(struct rig *r, uint32_t slot, uint32_t pos, uint32_t n, uint32_t first_block, uint32_t n_blocks,
                uint32_t first_id) {
    struct step *s = r->step;
    s->seqs[s->n_seqs++] = (struct step_seq){.slot = slot,
                                             .pos = pos,
                                             .row = s->n_rows,
                                             .n_rows = n,
                                             .first_block = first_block,
                                             .block = s->n_blocks,
                                             .n_blocks = n_blocks,
                                             .sampling = {.top_p = 1}};
    s->n_rows += n;
    for (uint32_t i = 0; i < n_blocks; i++) s->blocks[s->n_blocks++] = first_id + i;
}

// Applies the step if it fits; a step that does not fit must leave the slots as they are.
static int go(struct rig *r) {
    struct err e;
    struct slots before = r->slots;
    int rc = slots_check(&r->slots, r->step, &e);
    assert_memory_equal(&before, &r->slots, sizeof before);
    if (!rc) slots_apply(&r->slots, r->step);
    step_clear(r->step);
    return rc;
}

static int go_one(struct rig *r, uint32_t slot, uint32_t pos, uint32_t n, uint32_t first_block, uint32_t n_blocks,
                  uint32_t first_id) {
    add(r, slot, pos, n, first_block, n_blocks, first_id);
    return go(r);
}

static void test_goes_on(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 3, 0, 70, 0, 2, 4), ERR_OK);
    assert_int_equal(go_one(r, 3, 70, 1, 0, 0, 0), ERR_OK);
    assert_int_equal(r->slots.list[3].n_tokens, 71);
    assert_int_equal(go_one(r, 3, 71, 60, 2, 1, 9), ERR_OK);
    assert_int_equal(r->slots.list[3].blocks[2], 9);
    assert_int_equal(r->slots.n_blocks_used, 3);
    assert_int_equal(r->slots.n_used, 1);
}

static void test_unexpected_position(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 3, 5, 1, 0, 1, 0), ERR_FORMAT); // new, but not at the start
    assert_int_equal(go_one(r, 3, 0, 10, 0, 1, 0), ERR_OK);
    assert_int_equal(go_one(r, 3, 0, 10, 0, 1, 0), ERR_FORMAT); // the same step again
    assert_int_equal(go_one(r, 3, 0, 10, 0, 0, 0), ERR_FORMAT);
    assert_int_equal(go_one(r, 3, 9, 1, 0, 0, 0), ERR_FORMAT);
    assert_int_equal(go_one(r, 3, 11, 1, 0, 0, 0), ERR_FORMAT);
    assert_int_equal(go_one(r, 3, 10, 1, 0, 0, 0), ERR_OK);
}

static void test_tables(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 0, 0, 65, 0, 1, 0), ERR_FORMAT);  // a block too few
    assert_int_equal(go_one(r, 0, 0, 10, 1, 1, 0), ERR_FORMAT);  // a hole
    assert_int_equal(go_one(r, 0, 0, 10, 0, 0, 0), ERR_FORMAT);  // none at all
    assert_int_equal(go_one(r, 0, 0, 10, 0, 5, 0), ERR_FORMAT);  // more than the context has
    assert_int_equal(go_one(r, 0, 0, 257, 0, 4, 0), ERR_FORMAT); // over the context
    assert_int_equal(go_one(r, 0, 0, 10, 0, 4, 0), ERR_OK);      // some in advance
    assert_int_equal(go_one(r, 0, 10, 10, 0, 1, 7), ERR_FORMAT); // an entry rewritten
    assert_int_equal(go_one(r, 0, 10, 10, 4, 1, 7), ERR_FORMAT); // a fifth block
    assert_int_equal(go_one(r, 0, 10, 246, 0, 0, 0), ERR_OK);    // up to the last token
    assert_int_equal(go_one(r, 0, 256, 1, 0, 0, 0), ERR_FORMAT);
}

static void test_release(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 1, 0, 64, 0, 1, 2), ERR_OK);
    r->step->releases[r->step->n_releases++] = 1;
    add(r, 1, 64, 1, 1, 1, 3); // it is new after the release: its table starts anew
    assert_int_equal(go(r), ERR_FORMAT);
    assert_int_equal(r->slots.list[1].n_tokens, 64);
    r->step->releases[r->step->n_releases++] = 1;
    r->step->releases[r->step->n_releases++] = 200; // never used: no harm
    add(r, 1, 0, 5, 0, 1, 3);
    assert_int_equal(go(r), ERR_OK);
    assert_int_equal(r->slots.list[1].n_tokens, 5);
    assert_int_equal(r->slots.n_blocks_used, 1);
    r->step->releases[r->step->n_releases++] = 1;
    r->step->releases[r->step->n_releases++] = 1;
    assert_int_equal(go(r), ERR_OK);
    assert_int_equal(r->slots.n_used, 0);
    assert_int_equal(r->slots.n_blocks_used, 0);
}

static void test_shared_prefix(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 0, 0, 128 + 10, 0, 3, 0), ERR_OK); // blocks 0 and 1 are full, 2 is not
    add(r, 1, 128, 4, 0, 2, 0);                                   // starts behind them, but has no block to write into
    assert_int_equal(go(r), ERR_FORMAT);
    add(r, 1, 192, 4, 0, 4, 0);
    assert_int_equal(go(r), ERR_FORMAT);
    add(r, 1, 128, 4, 0, 3, 0);
    r->step->blocks[2] = 5;
    assert_int_equal(go(r), ERR_OK);
    assert_int_equal(r->slots.n_blocks_used, 4);
    r->step->releases[r->step->n_releases++] = 0;
    assert_int_equal(go(r), ERR_OK);
    assert_int_equal(r->slots.n_blocks_used, 3);
    assert_int_equal(go_one(r, 1, 132, 1, 0, 0, 0), ERR_OK);
}

static void test_block_taken_away(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 0, 0, 10, 0, 1, 6), ERR_OK);
    assert_int_equal(go_one(r, 1, 0, 3, 0, 1, 6), ERR_OK); // the scheduler gave block 6 away
    assert_int_equal(go_one(r, 0, 10, 1, 0, 0, 0), ERR_FORMAT);
    assert_int_equal(go_one(r, 1, 3, 1, 0, 0, 0), ERR_OK);
}

static void test_reset(void **state) {
    struct rig *r = *state;
    assert_int_equal(go_one(r, 0, 0, 64, 0, 1, 6), ERR_OK);
    slots_reset(&r->slots);
    assert_int_equal(r->slots.n_used, 0);
    assert_int_equal(r->slots.n_blocks_used, 0);
    assert_int_equal(go_one(r, 0, 64, 1, 0, 2, 6), ERR_FORMAT); // what was written does not count any more
    assert_int_equal(go_one(r, 0, 0, 64, 0, 1, 6), ERR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_goes_on, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_unexpected_position, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_tables, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_release, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_shared_prefix, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_block_taken_away, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_reset, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
