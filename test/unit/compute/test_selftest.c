// The hashes of the contract on every instruction set of this machine.
#include "fixture.h"

#include "compute/selftest.h"

static void all_hashes(void **state) {
    (void)state;
    uint64_t digest = 0;
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        struct selftest_result r;
        struct err e = {0};
        int rc = selftest_run(isa, &r, &e);
        for (int i = 0; i < SELFTEST_HASHES; i++)
            if (r.hash[i] != r.want[i]) print_message("%s: %s differs\n", isa_name(isa), r.name[i]);
        assert_int_equal(rc, ERR_OK);
        assert_int_equal(r.n_wrong, 0);
        if (isa != ISA_REF) assert_true(selftest_digest(&r) == digest);
        digest = selftest_digest(&r);
        r.hash[SELFTEST_HASHES - 1] ^= 1;
        assert_true(selftest_digest(&r) != digest);
    }
}

static void names(void **state) {
    (void)state;
    for (int i = ISA_AUTO; i <= ISA_AVX512; i++) assert_int_equal(isa_from_name(isa_name((enum isa)i)), i);
    assert_int_equal(isa_from_name("sse9"), -1);
    assert_true(isa_best() != ISA_AUTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_hashes), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
