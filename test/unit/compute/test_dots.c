// Dot products in great number: every weight type, random shapes and codes, the kernels of each instruction set against
// ref_dot by memcmp. An argument says how many products a type gets (`make dots` takes ten million), a second one the
// seed.
#include "compute/cpu/kern.h"
#include "fixture.h"

#include <stdio.h>

enum { MAX_ROWS = 40, MAX_TOKENS = 140, MAX_BLOCKS = 20 };

static const enum dtype types[] = {DT_L8,   DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1,
                                   DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_F32,  DT_F16,  DT_BF16};

static uint64_t n_wanted = 20000, seed = 1;

struct product {
    enum dtype type;
    uint32_t rows, k, tokens, n_inputs; // inputs: rows of activations, of which each token names one
    uint8_t *src;
    struct act_block *a;
    float *x, *bias, *want;
    uint32_t *input_of; // [tokens] or NULL
};

static void *exactly(uint64_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

// Codes of several characters: spread, at the two ends, all at one end, few that are not zero.
static void random_codes(struct rng *r, struct act_block *a) {
    uint32_t kind = rng_below(r, 5);
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        int32_t q = (int32_t)rng_below(r, 255) - 127;
        if (kind == 0) q = q < 0 ? -127 : 127;
        if (kind == 1) q = 127;
        if (kind == 2) q = -127;
        if (kind == 3 && rng_below(r, 20)) q = 0;
        a->q[i] = (int8_t)q;
    }
    a->d = kind == 3 && rng_below(r, 4) == 0 ? 0.0f : random_value(r);
    ref_act_sums(a);
}

static void pick_shape(struct rng *r, struct product *p) {
    uint32_t block = p->type == DT_L8 ? 1 : dtype_info(p->type)->block_values;
    uint32_t most = rng_below(r, 8) == 0 ? MAX_BLOCKS : 4;
    p->rows = 1 + rng_below(r, MAX_ROWS);
    p->k = (1 + rng_below(r, most * REF_ACT_BLOCK / block)) * block;
    p->tokens = rng_below(r, 3) == 0 ? 1 + rng_below(r, 9) : 1 + rng_below(r, MAX_TOKENS);
    p->n_inputs = p->tokens;
}

static void make(struct rng *r, struct product *p) {
    bool is_float = dtype_info(p->type)->is_float;
    pick_shape(r, p);
    uint32_t blocks = ref_n_blocks(p->k), tail = p->k % REF_ACT_BLOCK;
    p->src = random_weights(r, p->type, p->rows, p->k);
    p->a = is_float ? NULL : exactly((uint64_t)p->n_inputs * blocks * sizeof *p->a);
    p->x = is_float ? malloc(4ull * p->n_inputs * p->k) : NULL;
    if (is_float) random_values(r, p->x, (size_t)p->n_inputs * p->k);
    for (uint32_t i = 0; !is_float && i < p->n_inputs * blocks; i++) {
        random_codes(r, &p->a[i]);
        if (tail == 0 || i % blocks != blocks - 1) continue;
        memset(p->a[i].q + tail, 0, REF_ACT_BLOCK - tail); // padding codes are zero
        ref_act_sums(&p->a[i]);
    }
    p->bias = rng_below(r, 2) ? malloc(4ull * p->rows) : NULL;
    if (p->bias) random_values(r, p->bias, p->rows);
    p->input_of = rng_below(r, 2) ? malloc(4ull * p->tokens) : NULL;
    for (uint32_t t = 0; p->input_of && t < p->tokens; t++) p->input_of[t] = rng_below(r, p->n_inputs);
    p->want = malloc(4ull * p->rows * p->tokens);
    for (uint32_t t = 0; t < p->tokens; t++)
        for (uint32_t row = 0; row < p->rows; row++) {
            uint32_t in = p->input_of ? p->input_of[t] : t;
            const uint8_t *w = p->src + row * dtype_row_bytes(p->type, p->k);
            float v = is_float ? ref_dot_float(p->type, w, p->x + (size_t)in * p->k, p->k)
                               : ref_dot(p->type, w, p->a + (size_t)in * blocks, p->k);
            p->want[(size_t)t * p->rows + row] = p->bias ? v + p->bias[row] : v;
        }
}

static void clear(struct product *p) {
    free(p->src);
    free(p->a);
    free(p->x);
    free(p->bias);
    free(p->input_of);
    free(p->want);
}

static void check(struct rng *r, const struct product *p, const struct kern *kern) {
    struct weight w = {.type = p->type,
                       .n_rows = p->rows,
                       .k = p->k,
                       .n_panels = (p->rows + PANEL_ROWS - 1) / PANEL_ROWS,
                       .n_blocks = ref_n_blocks(p->k),
                       .panels = true,
                       .code_xor = kern->code_xor,
                       .panel_bytes = weight_panel_bytes(p->type, p->k)};
    uint64_t bytes = weight_data_bytes(p->type, p->rows, p->k, true), n_y = (uint64_t)p->rows * p->tokens;
    float *y = malloc(4 * n_y);
    w.data = exactly(bytes);
    memset(w.data, 0xa5, bytes); // what was in memory before must not matter
    if (dtype_info(p->type)->is_float) memset(w.data, 0, bytes);
    memset(y, 0xff, 4 * n_y);
    weight_store(&w, 0, p->rows, p->src);
    struct matmul_job j = {.w = &w,
                           .a = p->a,
                           .x = p->x,
                           .x_stride = p->k,
                           .rows = p->input_of,
                           .bias = p->bias,
                           .y = y,
                           .y_stride = p->rows};
    uint32_t cut = rng_below(r, p->tokens + 1); // in two calls
    for (uint32_t panel = 0; panel < w.n_panels; panel++) {
        if (cut) kern->matmul(&j, panel, 0, cut);
        if (cut < p->tokens) kern->matmul(&j, panel, cut, p->tokens - cut);
    }
    assert_memory_equal(y, p->want, 4 * n_y);
    free(w.data);
    free(y);
}

static void dots(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, seed);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint64_t done = 0;
        for (struct product p = {.type = types[i]}; done < n_wanted; done += (uint64_t)p.rows * p.tokens, clear(&p)) {
            make(&r, &p);
            for (enum isa isa = ISA_AVX2; isa <= isa_best(); isa++) check(&r, &p, kern_find(isa));
        }
        printf("%-5s %llu products\n", dtype_info(types[i])->name, (unsigned long long)done);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(dots)};
    if (argc > 1) n_wanted = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    if (isa_best() < ISA_AVX2) {
        printf("skipped: needs AVX2\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
