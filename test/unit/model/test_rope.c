// RoPE frequencies and what goes with them against vectors from the published formulas.
#include "model/model.h"
#include "model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "unit/model/rope_vectors.h"

#define TWO_OVER_PI 0.636619772367581343075535053490057448

static void parse(const char *text, struct hparams *h) {
    struct err e;
    if (model_parse_config(text, strlen(text), h, &e)) fail_msg("%s -> %s", text, e.text);
}

static void parse_rope(const char *architecture, const struct rope_vector *v, struct hparams *h) {
    char text[4096];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"%s\"],\"num_hidden_layers\":2,\"hidden_size\":256,\"num_attention_heads\":2,"
             "\"num_key_value_heads\":2,\"intermediate_size\":512,\"vocab_size\":1000,\"head_dim\":%u,"
             "\"max_position_embeddings\":%u,%s%s\"rope_parameters\":%s}",
             architecture, v->head_dim, v->window, v->fields, v->fields[0] ? "," : "", v->parameters);
    parse(text, h);
}

// The frequencies are those of the formula, rounded once to f32; the double that travels has them in quarter turns.
static void check_set(const char *name, const struct rope_set *r, const struct rope_vector *v) {
    if (r->n_freq != v->n) fail_msg("%s: %u frequencies, not %u", name, r->n_freq, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        double want = v->inv_freq[i], have = r->fq[i] / TWO_OVER_PI;
        if (!(fabs(have / want - 1) <= 0x1.01p-24))
            fail_msg("%s: frequency %u is %.17g, not %.17g", name, i, have, want);
    }
    if (!(fabs((double)r->factor / v->factor - 1) <= 0x1.01p-24)) fail_msg("%s: factor %.9g", name, (double)r->factor);
}

static void test_scalings(void **state) {
    (void)state;
    static struct hparams h;
    for (size_t i = 0; i < sizeof ROPE_VECTORS / sizeof *ROPE_VECTORS; i++) {
        const struct rope_vector *v = &ROPE_VECTORS[i];
        parse_rope("LlamaForCausalLM", v, &h);
        model_set_context(&h, v->context);
        check_set(v->name, &h.rope[0], v);
        assert_int_equal(h.rope[1].n_freq, 0);
    }
}

// The choice of longrope moves the hash, can be taken back, and travels.
static void test_longrope_choice(void **state) {
    (void)state;
    static struct hparams h, node;
    const struct rope_vector *shorter = NULL, *longer = NULL;
    for (size_t i = 0; i < sizeof ROPE_VECTORS / sizeof *ROPE_VECTORS; i++) {
        if (strcmp(ROPE_VECTORS[i].name, "longrope, short") == 0) shorter = &ROPE_VECTORS[i];
        if (strcmp(ROPE_VECTORS[i].name, "longrope, long") == 0) longer = &ROPE_VECTORS[i];
    }
    assert_true(shorter && longer);
    const struct run_mode m = {.kv = KV_I8};
    double values[LIMIT_ROPE_VALUES];
    struct err e;
    parse_rope("Phi3ForCausalLM", shorter, &h);
    check_set("the model's own window", &h.rope[0], longer);
    uint64_t hash = model_plan_hash(&h, &m);
    model_set_context(&h, 4096);
    check_set("4096", &h.rope[0], shorter);
    assert_true(model_plan_hash(&h, &m) != hash);
    model_set_context(&h, 131072);
    assert_true(model_plan_hash(&h, &m) == hash);
    model_set_context(&h, 100);
    uint32_t n = model_rope_get(&h, values);
    assert_int_equal(n, 49);
    parse_rope("Phi3ForCausalLM", shorter, &node);
    assert_int_equal(model_rope_put(&node, values, n, &e), ERR_OK);
    assert_true(model_plan_hash(&node, &m) == model_plan_hash(&h, &m));
    assert_int_equal(model_rope_put(&node, values, n - 1, &e), ERR_FORMAT);
    // Where the bound stands twice the outer one counts.
    struct rope_vector both = *shorter;
    char parameters[2048];
    snprintf(parameters, sizeof parameters, "{\"original_max_position_embeddings\":64,%s", shorter->parameters + 1);
    both.parameters = parameters;
    parse_rope("Phi3ForCausalLM", &both, &node);
    model_set_context(&node, 4096);
    assert_true(model_plan_hash(&node, &m) == model_plan_hash(&h, &m));
    values[3] = NAN;
    assert_int_equal(model_rope_put(&node, values, n, &e), ERR_FORMAT);
}

#define SHAPE                                                                                                          \
    "\"num_hidden_layers\":6,\"hidden_size\":256,\"num_attention_heads\":2,\"num_key_value_heads\":2,"                 \
    "\"intermediate_size\":512,\"vocab_size\":1000,\"head_dim\":128,\"max_position_embeddings\":65536,"

// OLMo 3: the scaling is for the full layers, in both spellings; a model without one has one set.
static void test_layer_types(void **state) {
    (void)state;
    static struct hparams a, b;
    static const char scaling[] =
        "\"rope_type\":\"yarn\",\"factor\":8.0,\"original_max_position_embeddings\":8192,\"beta_fast\":32.0,"
        "\"beta_slow\":1.0,\"attention_factor\":1.2079441541679836";
    char text[2048];
    const struct run_mode m = {.kv = KV_I8};
    snprintf(text, sizeof text,
             "{\"architectures\":[\"Olmo3ForCausalLM\"]," SHAPE "\"rope_theta\":5e5,\"rope_scaling\":{%s}}", scaling);
    parse(text, &a);
    snprintf(
        text, sizeof text,
        "{\"architectures\":[\"Olmo3ForCausalLM\"]," SHAPE
        "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5,%s},\"sliding_attention\":{\"rope_theta\":5e5}}}",
        scaling);
    parse(text, &b);
    assert_true(model_plan_hash(&a, &m) == model_plan_hash(&b, &m));
    for (size_t i = 0; i < sizeof ROPE_VECTORS / sizeof *ROPE_VECTORS; i++)
        if (strcmp(ROPE_VECTORS[i].name, "yarn, attention factor") == 0)
            check_set("full", &a.rope[0], &ROPE_VECTORS[i]);
    assert_true(a.rope[1].factor == 1 && a.rope[1].n_freq == 64);
    assert_true(fabs(a.rope[1].fq[32] / (TWO_OVER_PI / sqrt(5e5)) - 1) < 1e-7);
    for (int i = 0; i < 6; i++) assert_int_equal(a.rope_of[i], i == 3 ? 0 : 1);
    parse("{\"architectures\":[\"Olmo3ForCausalLM\"]," SHAPE "\"rope_theta\":5e5}", &a);
    assert_int_equal(a.rope[1].n_freq, 0);
    for (int i = 0; i < 6; i++) assert_int_equal(a.rope_of[i], 0);
    assert_int_equal(model_rope_get(&a, (double[LIMIT_ROPE_VALUES]){0}), 65);
    // Gemma 3: another theta near by; the scaling is for the full ones here too.
    parse("{\"architectures\":[\"Gemma3ForCausalLM\"]," SHAPE
          "\"rope_theta\":1e6,\"rope_local_base_freq\":1e4,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
          &a);
    parse("{\"architectures\":[\"Gemma3ForCausalLM\"]," SHAPE
          "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,\"rope_type\":\"linear\",\"factor\":8.0},"
          "\"sliding_attention\":{\"rope_theta\":1e4,\"rope_type\":\"default\"}}}",
          &b);
    assert_true(model_plan_hash(&a, &m) == model_plan_hash(&b, &m));
    assert_true(fabs(a.rope[0].fq[32] / (TWO_OVER_PI / 8000) - 1) < 1e-7);
    assert_true(fabs(a.rope[1].fq[32] / (TWO_OVER_PI / 100) - 1) < 1e-7);
    assert_int_equal(a.rope_of[0], 1);
    assert_int_equal(a.rope_of[5], 0);
}

// Divisors that GGUF files have in place of a scaling.
static void test_gguf_factors(void **state) {
    (void)state;
    static struct hparams h, plain;
    struct err e;
    static const char head[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":16,"
                               "\"num_attention_heads\":2,\"intermediate_size\":32,\"vocab_size\":10,"
                               "\"max_position_embeddings\":128";
    char text[1024];
    snprintf(text, sizeof text, "%s}", head);
    parse(text, &plain);
    snprintf(text, sizeof text, "%s,\"loom_rope_factors\":[1,2,4.5,8]}", head);
    parse(text, &h);
    const double by[] = {1, 2, 4.5, 8};
    for (int i = 0; i < 4; i++) assert_true(fabs(h.rope[0].fq[i] * by[i] / plain.rope[0].fq[i] - 1) < 1e-7);
    snprintf(text, sizeof text, "%s,\"loom_rope_factors\":[1,2,4]}", head);
    assert_int_equal(model_parse_config(text, strlen(text), &h, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "loom_rope_factors"));
    snprintf(text, sizeof text, "%s,\"loom_rope_factors\":[1,2,4,0]}", head);
    assert_int_equal(model_parse_config(text, strlen(text), &h, &e), ERR_FORMAT);
}

static void test_growth(void **state) {
    (void)state;
    struct hparams *h = calloc(1, sizeof *h);
    h->q_beta = 0.1f;
    h->q_original = 16384;
    for (size_t i = 0; i < sizeof GROWTH_VECTORS / sizeof *GROWTH_VECTORS; i++) {
        double have = (double)rope_q_factor(h, GROWTH_VECTORS[i].pos), want = GROWTH_VECTORS[i].growth;
        if (!(fabs(have - want) <= 1e-7 * want))
            fail_msg("position %u: %.9g, not %.9g", GROWTH_VECTORS[i].pos, have, want);
    }
    // The logarithm itself, by its differences over a beta that hides nothing.
    h->q_beta = 1;
    h->q_original = 1;
    for (uint32_t pos = 0; pos < 100000; pos = pos * 3 / 2 + 1)
        assert_true(fabs((double)rope_q_factor(h, pos) - (1 + log(1.0 + pos))) <= 1e-7 * (1 + log(1.0 + pos)));
    free(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scalings), cmocka_unit_test(test_longrope_choice),
                                       cmocka_unit_test(test_layer_types), cmocka_unit_test(test_gguf_factors),
                                       cmocka_unit_test(test_growth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
