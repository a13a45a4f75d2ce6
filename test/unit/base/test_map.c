#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/map.h"
#include "base/rng.h"
#include <stdio.h>
#include <string.h>

enum { KEYS = 512 };

// Random puts, replacements and removals beside a plain array as the model; keys collide often in a small table.
static void behaves_like_an_array(void **state) {
    (void)state;
    static char objects[KEYS * 2];
    void *model[KEYS] = {0};
    size_t n = 0;
    struct map m;
    struct rng r;
    rng_init(&r, 11);
    map_init(&m, KEYS, 0);
    for (int step = 0; step < 200000; step++) {
        uint32_t k = rng_below(&r, KEYS);
        uint64_t key = (uint64_t)k << 32; // low bits all equal
        if (rng_below(&r, 100) < (step / 50000 % 2 ? 70u : 30u)) {
            assert_ptr_equal(map_remove(&m, key), model[k]);
            n -= model[k] != NULL;
            model[k] = NULL;
        } else {
            void *v = &objects[rng_below(&r, sizeof objects)];
            assert_int_equal(map_put(&m, key, v), ERR_OK);
            n += model[k] == NULL;
            model[k] = v;
        }
        uint32_t look = rng_below(&r, KEYS);
        assert_ptr_equal(map_get(&m, (uint64_t)look << 32), model[look]);
        assert_int_equal(m.count, n);
    }
    size_t at = 0, seen = 0;
    uint64_t key;
    void *v;
    while (map_next(&m, &at, &key, &v)) {
        assert_ptr_equal(v, model[key >> 32]);
        seen++;
    }
    assert_int_equal(seen, n);
    map_fini(&m);
}

static void stops_at_its_maximum(void **state) {
    (void)state;
    struct map m;
    int x, y;
    map_init(&m, 100, 5);
    assert_null(map_get(&m, 1));
    assert_null(map_remove(&m, 1));
    for (uint64_t k = 0; k < 100; k++) assert_int_equal(map_put(&m, k, &x), ERR_OK);
    assert_int_equal(map_put(&m, 100, &x), ERR_LIMIT);
    assert_int_equal(map_put(&m, 99, &y), ERR_OK);
    assert_ptr_equal(map_get(&m, 99), &y);
    assert_null(map_get(&m, 100));
    assert_ptr_equal(map_remove(&m, 0), &x);
    assert_int_equal(map_put(&m, 100, &x), ERR_OK);
    map_fini(&m);
}

static void strings_are_found_again(void **state) {
    (void)state;
    struct strmap m;
    char key[32];
    uint32_t v;
    strmap_init(&m, 20000, 1 << 20, 0x1234);
    for (uint32_t i = 0; i < 20000; i++) {
        int n = snprintf(key, sizeof key, "%x", i * 2654435761u);
        assert_int_equal(strmap_put(&m, key, (size_t)n, i), ERR_OK);
    }
    for (uint32_t i = 0; i < 20000; i++) {
        int n = snprintf(key, sizeof key, "%x", i * 2654435761u);
        assert_true(strmap_get(&m, key, (size_t)n, &v));
        assert_int_equal(v, i);
        assert_false(strmap_get(&m, key, (size_t)n - 1, &v) && v == i);
    }
    assert_false(strmap_get(&m, "zz", 2, &v));
    assert_int_equal(strmap_put(&m, "zz", 2, 1), ERR_LIMIT);
    strmap_fini(&m);
}

static void string_keys_are_bytes(void **state) {
    (void)state;
    struct strmap m;
    uint32_t v = 0;
    strmap_init(&m, 10, 9, 0);
    assert_false(strmap_get(&m, "a", 1, &v));
    assert_int_equal(strmap_put(&m, "", 0, 7), ERR_OK);
    assert_int_equal(strmap_put(&m, "a\0b", 3, 8), ERR_OK);
    assert_int_equal(strmap_put(&m, "a\0c", 3, 9), ERR_OK);
    assert_int_equal(strmap_put(&m, "a\0b", 3, 10), ERR_OK);
    assert_true(strmap_get(&m, "", 0, &v) && v == 7);
    assert_true(strmap_get(&m, "a\0b", 3, &v) && v == 10);
    assert_true(strmap_get(&m, "a\0c", 3, &v) && v == 9);
    assert_int_equal(m.count, 3);
    assert_int_equal(strmap_put(&m, "1234", 4, 1), ERR_LIMIT); // 6 of the 9 bytes are taken
    assert_false(strmap_get(&m, "1234", 4, &v));
    assert_int_equal(strmap_put(&m, "123", 3, 1), ERR_OK);
    strmap_fini(&m);
}

// Every bit of the key moves about half of the low bits, which choose the slot.
static void hash_mixes_and_depends_on_the_seed(void **state) {
    (void)state;
    assert_true(map_hash_u64(1, 1) != map_hash_u64(1, 2));
    assert_true(map_hash_bytes("a", 1, 1) != map_hash_bytes("a", 1, 2));
    assert_true(map_hash_bytes("a\0", 2, 1) != map_hash_bytes("a", 1, 1));
    for (int bit = 0; bit < 64; bit++) {
        int flips = 0;
        for (uint64_t k = 0; k < 64; k++) {
            uint64_t x = k * 0x9E3779B97F4A7C15u;
            flips += __builtin_popcountll((map_hash_u64(x, 9) ^ map_hash_u64(x ^ 1ull << bit, 9)) & 0xffff);
        }
        assert_in_range(flips, 64 * 5, 64 * 11);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(behaves_like_an_array), cmocka_unit_test(stops_at_its_maximum),
                                       cmocka_unit_test(strings_are_found_again),
                                       cmocka_unit_test(string_keys_are_bytes),
                                       cmocka_unit_test(hash_mixes_and_depends_on_the_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
