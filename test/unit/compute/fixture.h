// Random inputs, backends side by side and batches for the tests of compute/.
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "compute/backend.h"
#include "compute/ref/ref.h"

#include <stdlib.h>
#include <string.h>

static inline float random_value(struct rng *r) {
    float a = (float)rng_unit(r) * 2.0f - 1.0f, b = (float)rng_unit(r) * 2.0f - 1.0f;
    return a * b * (rng_below(r, 60) == 0 ? 60.0f : 3.0f);
}

static inline void random_values(struct rng *r, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = random_value(r);
}

// n rows of k weights of any weight type: random codes, sane scales.
static inline uint8_t *random_weights(struct rng *r, enum dtype t, uint32_t n, uint32_t k) {
    uint64_t bytes = n * dtype_row_bytes(t, k);
    const struct dtype_info *info = dtype_info(t);
    uint8_t *w = malloc(bytes);
    assert_non_null(w);
    for (uint64_t i = 0; i < bytes; i++) w[i] = (uint8_t)rng_u32(r);
    for (uint64_t at = 0; at < bytes; at += info->block_bytes) {
        uint16_t half[2];
        for (int i = 0; i < 2; i++) {
            half[i] = (uint16_t)((0x1800 + rng_below(r, 0x800)) | (rng_u32(r) & 0x8000u));
            if (rng_below(r, 17) == 0) half[i] = (uint16_t)rng_below(r, 64); // subnormal
        }
        float f = random_value(r);
        uint16_t bf16 = (uint16_t)(ref_bits(f) >> 16);
        bool fault = false;
        uint16_t f16 = ref_f16_from_f32(f, &fault);
        switch (t) {
        case DT_F32:
            memcpy(w + at, &f, 4);
            break;
        case DT_BF16:
            memcpy(w + at, &bf16, 2);
            break;
        case DT_F16:
            memcpy(w + at, &f16, 2);
            break;
        case DT_L8:
            f = 0.01f * (float)rng_unit(r);
            memcpy(w + at, &f, 4);
            break;
        case DT_Q4_1:
        case DT_Q5_1:
        case DT_Q4_K:
        case DT_Q5_K:
            memcpy(w + at, half, 4);
            break;
        case DT_Q6_K:
            memcpy(w + at + 208, half, 2);
            break;
        default:
            memcpy(w + at, half, 2);
        }
    }
    return w;
}

static inline struct backend *new_backend(enum isa isa, uint32_t n_threads) {
    struct backend *be = NULL;
    struct err e;
    struct backend_cpu_config c = {.isa = isa, .n_threads = n_threads};
    assert_int_equal(backend_cpu_new(&c, &be, &e), ERR_OK);
    return be;
}

static inline struct weight *new_weight(struct backend *be, enum dtype t, uint32_t n, uint32_t k, const uint8_t *src) {
    struct weight *w = be->ops->weight_new(be, t, n, k);
    assert_non_null(w);
    uint32_t first = n > 32 ? 32 : n; // two runs, put in the wrong order
    if (n > first) be->ops->weight_put(w, first, n - first, src + first * dtype_row_bytes(t, k));
    be->ops->weight_put(w, 0, first, src);
    return w;
}

// A batch of one row a sequence is enough for operations that know nothing of positions.
struct rows_batch {
    struct batch b;
    uint8_t fault[LIMIT_STEP_ROWS];
};

static inline const struct batch *rows_batch(struct rows_batch *r, uint32_t n) {
    memset(r->fault, 0, sizeof r->fault);
    r->b = (struct batch){.n_rows = n, .fault = r->fault};
    return &r->b;
}
