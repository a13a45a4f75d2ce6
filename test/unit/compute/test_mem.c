// Memory of the CPU backend: zeros, apart from each other, and given back.
#include "compute/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 200, MANY_BYTES = 3 << 20 };

static uint64_t status_bytes(const char *key) {
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) kb = strtoull(line + strlen(key), NULL, 10);
    fclose(f);
    return kb << 10;
}

static int count_mappings(void) {
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    for (int c = fgetc(f); c != EOF; c = fgetc(f)) n += c == '\n';
    fclose(f);
    return n;
}

static void fill(uint8_t *p, uint64_t bytes, int value) { memset(p, value, bytes); }

static void has_only(const uint8_t *p, uint64_t bytes, int value) {
    assert_int_equal(p[0], value);
    assert_int_equal(memcmp(p, p + 1, bytes - 1), 0);
}

static void all_sizes_are_zeros_and_apart(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1,
                                     63,
                                     64,
                                     65,
                                     4096,
                                     (1 << 20) - 65,
                                     1 << 20,
                                     1 << 20,
                                     (1 << 20) + 1,
                                     2 << 20,
                                     (2 << 20) - 64,
                                     5000001,
                                     15 << 20,
                                     (16 << 20) - 64,
                                     16 << 20,
                                     20000001,
                                     60 << 20,
                                     3 << 20};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    uint8_t *p[SIZES];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIZES; i++) {
            p[i] = cpu_mem_alloc(NULL, sizes[i]);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 64, 0);
            has_only(p[i], sizes[i], 0);
            fill(p[i], sizes[i], i + 1);
        }
        for (int i = 0; i < SIZES; i++) has_only(p[i], sizes[i], i + 1);
        for (int i = 0; i < SIZES; i += 2) cpu_mem_free(NULL, p[i]);
        for (int i = 1; i < SIZES; i += 2) has_only(p[i], sizes[i], i + 1); // freeing hits nobody else
        for (int i = 1; i < SIZES; i += 2) cpu_mem_free(NULL, p[i]);
    }
    cpu_mem_free(NULL, NULL);
    assert_null(cpu_mem_alloc(NULL, UINT64_MAX));
    assert_null(cpu_mem_alloc(NULL, 1ull << 60));
}

static void what_is_freed_goes_back(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); // the resident memory that it reads is mostly the sanitizer's own
#endif
    static uint8_t *p[N];
    uint64_t before_bytes = status_bytes("VmRSS:"), address_bytes = status_bytes("VmSize:");
    int mappings = count_mappings();
    for (int i = 0; i < N; i++) {
        p[i] = cpu_mem_alloc(NULL, MANY_BYTES);
        assert_non_null(p[i]);
        fill(p[i], MANY_BYTES, 7);
    }
    uint64_t used_bytes = status_bytes("VmRSS:") - before_bytes;
    assert_true(used_bytes >= (uint64_t)N * MANY_BYTES);
    assert_true(used_bytes < (uint64_t)N * (MANY_BYTES + 64) + (8 << 20)); // what was asked for, and a huge page or two
    assert_true(count_mappings() - mappings < N / 4);
    for (int i = 0; i < N; i += 2) cpu_mem_free(NULL, p[i]); // no chunk is free
    uint64_t half_bytes = status_bytes("VmRSS:") - before_bytes;
    assert_true(half_bytes < (uint64_t)N * MANY_BYTES * 6 / 10);
    for (int i = 1; i < N; i += 2) has_only(p[i], MANY_BYTES, 7);
    for (int i = 1; i < N; i += 2) cpu_mem_free(NULL, p[i]);
    assert_true(status_bytes("VmRSS:") < before_bytes + (8 << 20));
    assert_true(status_bytes("VmSize:") < address_bytes + (8 << 20));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_are_zeros_and_apart),
        cmocka_unit_test(what_is_freed_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
