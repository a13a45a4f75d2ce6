// Inside of the self-test: what its files share.
#pragma once
#include "compute/selftest.h"

#include "compute/cpu/kv_layout.h"
#include "compute/cpu/sampler.h"

enum {
    FLOATS = 65536, // of each buffer below
    PANEL_BYTES = 16 * 2304 * 4,
    DOT_K = 2304, // two segments and a short one
    DOT_ROWS = 12,
    DOT_TOKENS = 3,
    DOT_BLOCKS = DOT_K / REF_ACT_BLOCK,
    KEYS = 2101,
    KEY_BLOCKS = (KEYS + REF_KEY_BLOCK - 1) / REF_KEY_BLOCK,
    QUERIES = 11,
    TILED_TOKENS = 15 // 8 + 4 + 2 + 1: every tile of the matrix kernels
};

struct selftest {
    const struct kern *k;
    struct selftest_result *r;
    uint32_t n; // hashes made so far
    uint64_t random, hash;
    bool fault;
    float x[FLOATS], w[FLOATS], y[FLOATS];
    int8_t q[FLOATS];
    struct act_block a[DOT_TOKENS * DOT_BLOCKS];
    _Alignas(64) uint8_t panel[PANEL_BYTES];
    uint8_t rows[DOT_ROWS * DOT_K * 4];
    _Alignas(64) uint8_t kv[KEY_BLOCKS * 2 * REF_KEY_BLOCK * (128 + 4)];
    uint32_t blocks[KEY_BLOCKS];
    struct sampler_entry entries[4096];
    uint32_t u[4096];
};

float selftest_random(struct selftest *t); // in (-3, 3), more of them near 0
void selftest_hash(struct selftest *t, const void *data, size_t bytes);
void selftest_end(struct selftest *t); // the hash is complete: the next one begins

// selftest_attention.c
void selftest_attention(struct selftest *t, uint32_t hd); // two hashes: all keys, a window
void selftest_caps(struct selftest *t);                   // three: a cap over int8, f16 without and with one
