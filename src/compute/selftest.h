// The self-test of NUMERICS 1.7: 37 hashes over every rule of the contract, run on one set of kernels. A machine
// whose hashes differ may not join: its numbers would be others.
#pragma once
#include "base/err.h"
#include "compute/backend.h"
#include <stdint.h>

enum { SELFTEST_HASHES = 37 };

struct selftest_result {
    const char *name[SELFTEST_HASHES]; // "exp2", "dot_Q8_0", ... static strings
    uint64_t hash[SELFTEST_HASHES], want[SELFTEST_HASHES];
    int n_wrong;
};

// Runs all of it with the kernels of isa. ERR_NUMERIC names the first hash that differs.
int selftest_run(enum isa isa, struct selftest_result *r, struct err *e) MUST_CHECK;
// One hash over all of them, for the join message.
uint64_t selftest_digest(const struct selftest_result *r);
