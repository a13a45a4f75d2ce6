#include "cmd/gguf_recipe.h"
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const struct recipe_model small = {.n_layers = 32};

static enum dtype of(const char *recipe, const struct recipe_model *m, const char *name, uint64_t k) {
    return recipe_type(recipe_find(recipe), m, name, k);
}

static void test_names(void **state) {
    (void)state;
    char copy[256];
    snprintf(copy, sizeof copy, "%s", recipe_names());
    int n = 0;
    for (char *s = strtok(copy, ", "); s; s = strtok(NULL, ", "), n++) {
        assert_non_null(recipe_find(s));
        assert_string_equal(recipe_find(s)->name, s);
    }
    assert_int_equal(n, 14);
    assert_null(recipe_find("q3_k_m"));
    // As files on hubs are called.
    assert_non_null(recipe_find("Q4_K_M"));
    assert_string_equal(recipe_find("Q4_K_M")->name, "q4_k_m");
}

// Of 32 layers the first and last four, and every third between them, have more bits of attn_v and ffn_down.
static void test_q4_k_m(void **state) {
    (void)state;
    int more = 0;
    for (uint32_t i = 0; i < 32; i++) {
        char name[64];
        bool edge = i < 4 || i >= 28, third = (i - 4) % 3 == 2;
        snprintf(name, sizeof name, "blk.%u.attn_v.weight", i);
        assert_int_equal(of("q4_k_m", &small, name, 4096), edge || third ? DT_Q6_K : DT_Q4_K);
        assert_int_equal(of("q5_k_m", &small, name, 4096), edge || third ? DT_Q6_K : DT_Q5_K);
        snprintf(name, sizeof name, "blk.%u.ffn_down.weight", i);
        assert_int_equal(of("q4_k_m", &small, name, 14336), edge || third ? DT_Q6_K : DT_Q4_K);
        more += edge || third;
        snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", i);
        assert_int_equal(of("q4_k_m", &small, name, 768), edge || third ? DT_Q6_K : DT_Q4_K);
        snprintf(name, sizeof name, "blk.%u.attn_q.weight", i);
        assert_int_equal(of("q4_k_m", &small, name, 4096), DT_Q4_K);
    }
    assert_int_equal(more, 16);
    assert_int_equal(of("q4_k_m", &small, "blk.3.attn_qkv.weight", 3072), DT_Q5_K);
    assert_int_equal(of("q5_k_m", &small, "blk.3.attn_qkv.weight", 3072), DT_Q6_K);
    const struct recipe_model eight = {.n_layers = 32, .n_experts = 8}, large = {.n_layers = 80, .is_70b = true};
    assert_int_equal(of("q4_k_m", &eight, "blk.5.attn_v.weight", 4096), DT_Q8_0);
    assert_int_equal(of("q4_k_m", &eight, "blk.5.attn_k.weight", 4096), DT_Q8_0);
    assert_int_equal(of("q4_k_m", &eight, "blk.5.attn_output.weight", 4096), DT_Q5_K);
    assert_int_equal(of("q4_k_m", &large, "blk.11.attn_v.weight", 8192), DT_Q5_K);
}

static void test_head(void **state) {
    (void)state;
    const struct recipe_model tied = {.n_layers = 28, .tied_embedding = true};
    assert_int_equal(of("q4_k_m", &small, "output.weight", 4096), DT_Q6_K);
    assert_int_equal(of("q4_0", &small, "output.weight", 4096), DT_Q6_K);
    assert_int_equal(of("q8_0", &small, "output.weight", 4096), DT_Q8_0);
    assert_int_equal(of("l8", &small, "output.weight", 4096), DT_L8);
    assert_int_equal(of("bf16", &small, "output.weight", 4096), DT_BF16);
    assert_int_equal(of("q4_k_m", &small, "token_embd.weight", 4096), DT_Q4_K);
    assert_int_equal(of("q4_k_m", &tied, "token_embd.weight", 4096), DT_Q6_K);
    assert_int_equal(of("q4_k_m", &tied, "token_embd.weight", 96), DT_Q8_0);
}

static void test_rows_that_do_not_divide(void **state) {
    (void)state;
    assert_int_equal(of("q4_k_m", &small, "blk.9.attn_q.weight", 896), DT_Q5_0);
    assert_int_equal(of("q5_k_m", &small, "blk.9.attn_q.weight", 896), DT_Q5_1);
    assert_int_equal(of("q6_k", &small, "blk.9.attn_q.weight", 896), DT_Q8_0);
    assert_int_equal(of("q4_k_m", &small, "blk.9.attn_q.weight", 100), DT_F16);
    assert_int_equal(of("q8_0", &small, "blk.9.attn_q.weight", 100), DT_F16);
    assert_int_equal(of("l8", &small, "blk.9.attn_q.weight", 100), DT_L8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_q4_k_m),
                                       cmocka_unit_test(test_head), cmocka_unit_test(test_rows_that_do_not_divide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
