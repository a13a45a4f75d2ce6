#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "os/cpu.h"
#include "os/random.h"
#include <sched.h>
#include <string.h>

#if defined(__x86_64__)
// The compiler's run-time library asks the same questions in its own way.
static void features_agree_with_the_compiler(void **state) {
    (void)state;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni");
    assert_int_equal(cpu_features()->avx2, avx2);
    assert_int_equal(cpu_features()->avx512, avx512);
    assert_true(strlen(cpu_model_name()) > 0);
}
#endif

static void counts_follow_the_affinity_mask(void **state) {
    (void)state;
    assert_true(cpu_count_online() >= 1);
    assert_true(cpu_count_physical() >= 1);
    assert_in_range(cpu_count_usable(), 1, cpu_count_online());
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    int first = 0;
    while (!CPU_ISSET(first, &old)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpu_count_usable(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

static void memory_makes_sense(void **state) {
    (void)state;
    uint64_t total = cpu_memory_total_bytes(), limit = cpu_memory_cgroup_limit_bytes();
    assert_true(total > 64u << 20);
    assert_in_range(cpu_memory_available_bytes(), 1, total);
    if (limit) assert_true(cpu_memory_available_bytes() <= limit);
}

static void random_differs(void **state) {
    (void)state;
    uint8_t a[40] = {0}, b[40] = {0};
    random_bytes(a, 39);
    random_bytes(b, 39);
    assert_memory_not_equal(a, b, 39);
    assert_int_equal(a[39], 0);
    assert_true(random_u64() != random_u64());
}

int main(void) {
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
        cmocka_unit_test(features_agree_with_the_compiler),
#endif
        cmocka_unit_test(counts_follow_the_affinity_mask),
        cmocka_unit_test(memory_makes_sense),
        cmocka_unit_test(random_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
