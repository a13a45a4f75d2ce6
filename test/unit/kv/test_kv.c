#include "base/rng.h"
#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct kv *make(uint32_t n_blocks, uint32_t n_slots, uint32_t max_seq_blocks) {
    struct kv *k = NULL;
    assert_int_equal(kv_new(n_blocks, n_slots, max_seq_blocks, &k), ERR_OK);
    assert_int_equal(kv_n_free(k), 0);
    kv_reset(k, n_blocks);
    return k;
}

static void test_blocks_of(void **state) {
    (void)state;
    assert_int_equal(kv_blocks_of(0), 0);
    assert_int_equal(kv_blocks_of(1), 1);
    assert_int_equal(kv_blocks_of(64), 1);
    assert_int_equal(kv_blocks_of(65), 2);
}

static void test_grow_is_all_or_nothing(void **state) {
    (void)state;
    struct kv *k = make(5, 2, 8);
    uint32_t a = kv_slot_take(k), b = kv_slot_take(k), n;
    assert_int_not_equal(a, b);
    assert_int_equal(kv_slot_take(k), KV_NONE);
    assert_true(kv_grow(k, a, 3));
    assert_false(kv_grow(k, b, 3));
    assert_int_equal(kv_n_free(k), 2);
    kv_table(k, b, &n);
    assert_int_equal(n, 0);
    assert_true(kv_grow(k, a, 2)); // shorter than it is: nothing to do
    const uint32_t *table = kv_table(k, a, &n);
    assert_int_equal(n, 3);
    assert_true(table[0] != table[1] && table[1] != table[2] && table[0] != table[2]);
    kv_slot_drop(k, a, true);
    assert_true(kv_grow(k, b, 5));
    kv_check(k);
    kv_free(k);
}

static void test_a_release_is_owed_once(void **state) {
    (void)state;
    struct kv *k = make(4, 4, 4);
    uint32_t slots[LIMIT_SEQS];
    uint32_t a = kv_slot_take(k), b = kv_slot_take(k);
    kv_slot_drop(k, b, false); // no stage ever heard of it
    assert_false(kv_owes_releases(k));
    kv_slot_drop(k, a, true);
    assert_int_equal(kv_slot_take(k), a); // taken and dropped again before any step left
    kv_slot_drop(k, a, true);
    assert_true(kv_owes_releases(k));
    assert_int_equal(kv_take_releases(k, slots), 1);
    assert_int_equal(slots[0], a);
    assert_int_equal(kv_take_releases(k, slots), 0);
    kv_slot_take(k);
    kv_slot_drop(k, a, true);
    kv_reset(k, 3); // a new epoch: stages are empty
    assert_false(kv_owes_releases(k));
    assert_int_equal(kv_n_free(k), 3);
    kv_check(k);
    kv_free(k);
}

static void test_random_walk(void **state) {
    (void)state;
    enum { SLOTS = 9, BLOCKS = 23 };
    struct kv *k = make(BLOCKS, SLOTS, 7);
    struct rng r;
    rng_init(&r, 42);
    bool live[SLOTS] = {0};
    uint32_t held[SLOTS] = {0}, slots[LIMIT_SEQS];
    for (int i = 0; i < 20000; i++) {
        uint32_t s = rng_below(&r, SLOTS), used = 0;
        if (!live[s]) {
            s = kv_slot_take(k);
            assert_true(s < SLOTS && !live[s]);
            live[s] = true;
        } else if (rng_below(&r, 4) == 0) {
            kv_slot_drop(k, s, rng_below(&r, 2));
            live[s] = false;
            held[s] = 0;
        } else {
            uint32_t want = rng_below(&r, 8);
            bool fits = want <= held[s] || want - held[s] <= kv_n_free(k);
            assert_int_equal(kv_grow(k, s, want), fits);
            if (fits && want > held[s]) held[s] = want;
        }
        if (rng_below(&r, 8) == 0) kv_take_releases(k, slots);
        for (uint32_t j = 0; j < SLOTS; j++) used += held[j];
        assert_int_equal(kv_n_free(k), BLOCKS - used);
        kv_check(k);
    }
    kv_free(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_of),
        cmocka_unit_test(test_grow_is_all_or_nothing),
        cmocka_unit_test(test_a_release_is_owed_once),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
