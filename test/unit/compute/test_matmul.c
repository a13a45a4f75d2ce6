// Matrix products, quantiser and embedding of every instruction set against the rules in compute/ref, by memcmp.
#include "fixture.h"

static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_L8,   DT_Q8_0, DT_Q4_0,
                                   DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q4_K, DT_Q5_K, DT_Q6_K};

struct shape {
    uint32_t rows, k, tokens;
};

// What the reference says: y [tokens][rows].
static void want_products(enum dtype t, const uint8_t *w, const float *x, const float *bias, struct shape s, float *y) {
    uint32_t blocks = ref_n_blocks(s.k);
    struct act_block *a = aligned_alloc(64, blocks * sizeof *a);
    assert_non_null(a);
    bool fault = false;
    for (uint32_t i = 0; i < s.tokens; i++) {
        ref_quant_row(x + (size_t)i * s.k, s.k, a, &fault);
        for (uint32_t r = 0; r < s.rows; r++) {
            const uint8_t *row = w + r * dtype_row_bytes(t, s.k);
            float v =
                dtype_info(t)->is_float ? ref_dot_float(t, row, x + (size_t)i * s.k, s.k) : ref_dot(t, row, a, s.k);
            y[(size_t)i * s.rows + r] = bias ? v + bias[r] : v;
        }
    }
    assert_false(fault);
    free(a);
}

static void check_product(struct rng *r, enum isa isa, enum dtype t, struct shape s, bool with_bias) {
    struct backend *be = new_backend(isa, 2);
    const struct backend_ops *ops = be->ops;
    uint8_t *src = random_weights(r, t, s.rows, s.k);
    size_t n_y = (size_t)s.rows * s.tokens;
    float *x = malloc(4ull * s.k * s.tokens), *bias = malloc(4ull * s.rows), *y = malloc(4 * n_y),
          *want = malloc(4 * n_y);
    float *out = malloc(4ull * s.k), *row = malloc(4ull * s.k);
    random_values(r, x, (size_t)s.k * s.tokens);
    random_values(r, bias, s.rows);
    struct weight *w = new_weight(be, t, s.rows, s.k, src);
    struct qrows *q = ops->qrows_new(be, s.tokens, s.k);
    struct rows_batch b;
    rows_batch(&b, s.tokens);
    memset(y, 0xff, 4 * n_y);
    ops->quant(be, x, s.k, &b.b, q);
    ops->matmul(be, w, q, x, with_bias ? bias : NULL, &b.b, y);
    want_products(t, src, x, with_bias ? bias : NULL, s, want);
    assert_memory_equal(y, want, 4 * n_y);
    for (uint32_t i = 0; i < s.tokens; i++) assert_int_equal(b.fault[i], 0);
    int32_t id = (int32_t)rng_below(r, s.rows); // the embedding of one row
    rows_batch(&b, 1);
    ops->embed(be, w, &id, 1.0f, &b.b, true, out);
    ref_row_f32(t, src + (uint32_t)id * dtype_row_bytes(t, s.k), s.k, row);
    assert_memory_equal(out, row, 4ull * s.k);
    ops->embed(be, w, &id, 13.856406f, &b.b, false, out); // scaled first, then rounded
    for (uint32_t i = 0; i < s.k; i++)
        row[i] = ref_f32_from_bf16(ref_bf16_from_f32(row[i] * 13.856406f, &(bool){false}));
    assert_memory_equal(out, row, 4ull * s.k);
    ops->qrows_free(q);
    ops->weight_free(w);
    ops->free(be);
    free(src);
    free(x);
    free(bias);
    free(y);
    free(want);
    free(out);
    free(row);
}

static void products(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            enum dtype t = types[i];
            uint32_t block = dtype_info(t)->block_values;
            for (uint32_t tokens = 1; tokens <= 5; tokens++) {
                uint32_t k = block == 256 ? 256 * (1 + rng_below(&r, 6)) : 32 * (1 + rng_below(&r, 50));
                if (block == 1 || t == DT_L8) k += rng_below(&r, 31);
                check_product(&r, isa, t, (struct shape){1 + rng_below(&r, 70), k, tokens}, tokens & 1);
            }
            check_product(&r, isa, t, (struct shape){49, block == 256 ? 2304 : 2144, 15}, true);
        }
}

// Inputs of real models: several segments of K with a short one at the end, with a bias and without.
static void long_rows(void **state) {
    (void)state;
    static const uint32_t ks[] = {576, 1025, 2880, 12288};
    struct rng r;
    rng_init(&r, 10);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
            for (size_t j = 0; j < 4; j++) {
                uint32_t block = types[i] == DT_L8 ? 1 : dtype_info(types[i])->block_values;
                if (ks[j] % block == 0)
                    check_product(&r, isa, types[i], (struct shape){33, ks[j], 1 + (uint32_t)j}, j != 2);
            }
}

// More tokens than one block of the driver, and enough panels for several items.
static void many_tokens(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 8);
    for (enum isa isa = ISA_AVX2; isa <= isa_best(); isa++) {
        check_product(&r, isa, DT_L8, (struct shape){300, 640, 133}, false);
        check_product(&r, isa, DT_Q4_0, (struct shape){300, 640, 70}, true);
        check_product(&r, isa, DT_BF16, (struct shape){130, 200, 67}, false);
    }
}

// The extreme codes: -128 in weights, +-127 in activations, largest integer sums.
static void extremes(void **state) {
    (void)state;
    enum { K = 2048, ROWS = 16 };
    static uint8_t w[ROWS * K / 32 * 34];
    static float x[K], y[ROWS], want[ROWS];
    for (int sign = 0; sign < 2; sign++)
        for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
            for (size_t at = 0; at < sizeof w; at += 34) {
                memset(w + at, at / 34 % 3 == 0 ? 127 : 128, 34);
                memcpy(w + at, &(uint16_t){0x3c00}, 2);
            }
            for (uint32_t i = 0; i < K; i++) x[i] = sign ? -1.0f : 1.0f;
            struct backend *be = new_backend(isa, 1);
            struct weight *m = new_weight(be, DT_Q8_0, ROWS, K, w);
            struct qrows *q = be->ops->qrows_new(be, 1, K);
            struct rows_batch b;
            be->ops->quant(be, x, K, rows_batch(&b, 1), q);
            be->ops->matmul(be, m, q, NULL, NULL, &b.b, y);
            want_products(DT_Q8_0, w, x, NULL, (struct shape){ROWS, K, 1}, want);
            assert_memory_equal(y, want, sizeof y);
            be->ops->qrows_free(q);
            be->ops->weight_free(m);
            be->ops->free(be);
        }
}

// A NaN or an Inf marks its row and leaves the others as they were.
static void faults_stay_in_their_row(void **state) {
    (void)state;
    enum { K = 300, ROWS = 40, TOKENS = 7 };
    struct rng r;
    rng_init(&r, 9);
    static float x[TOKENS * K], y[TOKENS * ROWS], want[TOKENS * ROWS];
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        struct backend *be = new_backend(isa, 2);
        uint8_t *src = random_weights(&r, DT_L8, ROWS, K);
        struct weight *w = new_weight(be, DT_L8, ROWS, K, src);
        struct qrows *q = be->ops->qrows_new(be, TOKENS, K);
        struct rows_batch b;
        random_values(&r, x, TOKENS * K);
        want_products(DT_L8, src, x, NULL, (struct shape){ROWS, K, TOKENS}, want);
        x[2 * K + 299] = NAN;
        x[5 * K + 17] = -INFINITY;
        be->ops->quant(be, x, K, rows_batch(&b, TOKENS), q);
        be->ops->matmul(be, w, q, NULL, NULL, &b.b, y);
        for (uint32_t t = 0; t < TOKENS; t++) {
            assert_int_equal(b.fault[t], t == 2 || t == 5);
            if (!b.fault[t]) assert_memory_equal(y + t * ROWS, want + t * ROWS, sizeof(float) * ROWS);
        }
        be->ops->qrows_free(q);
        be->ops->weight_free(w);
        be->ops->free(be);
        free(src);
    }
}

// weight_bytes tells what a matrix takes, and memory comes zeroed and aligned, small and large.
static void memory(void **state) {
    (void)state;
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        struct backend *be = new_backend(isa, 1);
        assert_true(be->ops->weight_bytes(DT_Q4_0, 4096, 4096) >= 4096ull * 4096 / 2);
        assert_true(be->ops->weight_bytes(DT_Q4_0, 4096, 4096) < 4096ull * 4096 * 5 / 8);
        for (uint64_t bytes = 1; bytes < 1u << 24; bytes *= 23) {
            uint8_t *p = be->ops->mem_alloc(be, bytes);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            for (uint64_t i = 0; i < bytes; i++) assert_int_equal(p[i], 0);
            memset(p, 1, bytes);
            be->ops->mem_free(be, p);
        }
        be->ops->free(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products),
                                       cmocka_unit_test(long_rows),
                                       cmocka_unit_test(many_tokens),
                                       cmocka_unit_test(extremes),
                                       cmocka_unit_test(faults_stay_in_their_row),
                                       cmocka_unit_test(memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
