#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// A config.json is built from parts: what all have, then what a test adds or overrides by adding only what is new.
#define DENSE "\"architectures\":[\"Qwen3ForCausalLM\"],"
#define MOE   "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
#define REST                                                                                                           \
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"intermediate_size\":512,\"vocab_size\":1000,"               \
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5"
#define BODY "\"num_hidden_layers\":6,\"hidden_size\":256," REST

static int parse(const char *text, struct hparams *h, struct err *e) {
    return model_parse_config(text, strlen(text), h, e);
}

static void expect_error(const char *text, int code, const char *what) {
    static struct hparams h;
    struct err e;
    int rc = parse(text, &h, &e);
    if (rc != code || !strstr(e.text, what)) fail_msg("%s -> %d %s", text, rc, rc ? e.text : "");
}

static void expect_good(const char *text, struct hparams *h) {
    struct err e;
    if (parse(text, h, &e)) fail_msg("%s -> %s", text, e.text);
}

static void test_defaults(void **state) {
    (void)state;
    static struct hparams h;
    expect_good("{" DENSE BODY "}", &h);
    assert_int_equal(h.n_layers, 6);
    assert_int_equal(h.head_dim, 32);
    assert_int_equal(h.n_kv_heads, 2);
    assert_int_equal(h.max_context, 4096);
    assert_true(h.rms_eps == 1e-5f);
    assert_false(h.tied_embedding);
    assert_int_equal(h.n_experts, 0);
    assert_int_equal(h.window, 0);
    assert_int_equal(h.n_eos, 0);
    assert_int_equal(h.bos_id, -1);
    assert_int_equal(h.n_freq, 16);
    assert_true(h.rope_factor == 1);
    assert_true(h.fq[0] == 0x1.45f306dc9c883p-1);
    assert_true(h.fq[8] == (double)(float)0.01 * 0x1.45f306dc9c883p-1); // 10000^(-1/2)
}

static void test_experts(void **state) {
    (void)state;
    static struct hparams h;
    expect_good("{" MOE BODY ",\"num_local_experts\":8,\"decoder_sparse_step\":2,\"mlp_only_layers\":[5]}", &h);
    assert_int_equal(h.n_experts, 8);
    assert_int_equal(h.top_k, 2);
    assert_false(h.norm_topk);
    const bool dense[] = {true, false, true, false, true, true};
    for (int i = 0; i < 6; i++) assert_int_equal(h.dense_layer[i], dense[i]);
    expect_good("{" MOE BODY ",\"num_experts\":8,\"norm_topk_prob\":true}", &h);
    assert_int_equal(h.n_experts, 8);
    assert_true(h.norm_topk && !h.dense_layer[0]);
    expect_error("{" MOE BODY "}", ERR_FORMAT, "num_experts");
    expect_error("{" MOE BODY ",\"num_experts\":1}", ERR_FORMAT, "num_experts_per_tok");
    expect_error("{" MOE BODY ",\"num_experts\":100000}", ERR_FORMAT, "num_experts");
    expect_error("{" MOE BODY ",\"num_experts\":8,\"mlp_only_layers\":[6]}", ERR_FORMAT, "mlp_only_layers[0]");
    expect_error("{" MOE BODY ",\"num_experts\":8,\"mlp_only_layers\":[-1]}", ERR_FORMAT, "mlp_only_layers[0]");
    expect_error("{" MOE BODY ",\"num_experts\":8,\"decoder_sparse_step\":0}", ERR_FORMAT, "decoder_sparse_step");
}

static void test_bad_fields(void **state) {
    (void)state;
    expect_error("", ERR_FORMAT, "config.json");
    expect_error("[]", ERR_FORMAT, "not an object");
    expect_error("{\"a\":1,\"a\":2}", ERR_FORMAT, "duplicate");
    expect_error("{}", ERR_FORMAT, "architectures");
    expect_error("{\"architectures\":[\"GPT2LMHeadModel\"]}", ERR_UNSUPPORTED, "GPT2LMHeadModel");
    expect_error("{" DENSE REST "}", ERR_FORMAT, "num_hidden_layers is missing");
    expect_error("{" DENSE "\"num_hidden_layers\":0,\"hidden_size\":256," REST "}", ERR_FORMAT, "num_hidden_layers");
    expect_error("{" DENSE "\"num_hidden_layers\":513,\"hidden_size\":256," REST "}", ERR_FORMAT, "1 to 512");
    expect_error("{" DENSE "\"num_hidden_layers\":6.0,\"hidden_size\":256," REST "}", ERR_FORMAT, "num_hidden_layers");
    expect_error("{" DENSE "\"num_hidden_layers\":\"6\",\"hidden_size\":256," REST "}", ERR_FORMAT, "whole number");
    expect_error("{" DENSE "\"num_hidden_layers\":6,\"hidden_size\":250," REST "}", ERR_UNSUPPORTED, "head_dim");
    expect_error("{" DENSE BODY ",\"head_dim\":257}", ERR_FORMAT, "head_dim");
    expect_error("{" DENSE BODY ",\"head_dim\":63}", ERR_UNSUPPORTED, "head_dim 63");
    expect_error("{" DENSE BODY ",\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED, "hidden_act gelu");
    expect_error("{" DENSE BODY ",\"attention_bias\":true}", ERR_UNSUPPORTED, "attention_bias");
    expect_error("{" DENSE BODY ",\"attention_bias\":1}", ERR_FORMAT, "attention_bias");
    expect_error("{" DENSE BODY ",\"quantization_config\":{}}", ERR_UNSUPPORTED, "quantization_config");
    expect_error("{" DENSE BODY ",\"eos_token_id\":1000}", ERR_FORMAT, "eos_token_id");
    expect_error("{" DENSE BODY ",\"eos_token_id\":[1,\"x\"]}", ERR_FORMAT, "eos_token_id");
    expect_error("{" DENSE BODY ",\"bos_token_id\":1000}", ERR_FORMAT, "bos_token_id");
    expect_error("{" DENSE BODY ",\"num_experts\":8}", ERR_FORMAT, "experts");
}

static void test_window(void **state) {
    (void)state;
    static struct hparams h;
    expect_good("{" DENSE BODY ",\"use_sliding_window\":false,\"sliding_window\":64,\"max_window_layers\":2}", &h);
    assert_int_equal(h.window, 0);
    expect_good("{" DENSE BODY ",\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":2}", &h);
    assert_int_equal(h.window, 64);
    for (int i = 0; i < 6; i++) assert_int_equal(h.window_layer[i], i >= 2);
    expect_good("{" DENSE BODY ",\"use_sliding_window\":true,\"sliding_window\":64,\"layer_types\":["
                "\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
                "\"sliding_attention\"]}",
                &h);
    for (int i = 0; i < 6; i++) assert_int_equal(h.window_layer[i], i == 1 || i == 5);
    expect_good("{" MOE BODY ",\"num_experts\":8,\"use_sliding_window\":true,\"sliding_window\":64}", &h);
    assert_true(h.window_layer[0] && h.window_layer[5]);
    expect_error("{" DENSE BODY ",\"use_sliding_window\":true,\"sliding_window\":64,\"layer_types\":[]}", ERR_FORMAT,
                 "layer_types");
}

#define ROPE(x) "{" DENSE BODY ",\"rope_parameters\":{" x "}}"

static void test_rope_spellings(void **state) {
    (void)state;
    static struct hparams a, b;
    expect_good(ROPE("\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":4"), &a);
    expect_good("{" DENSE BODY ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", &b);
    assert_memory_equal(a.fq, b.fq, sizeof a.fq);
    assert_true(a.fq[0] == 0.25 * 0x1.45f306dc9c883p-1);
    expect_good("{" DENSE BODY ",\"rope_theta\":5e5,\"rope_scaling\":null}", &b);
    assert_true(b.fq[0] == 0x1.45f306dc9c883p-1);
    assert_true(fabs(b.fq[8] - 0.63661977236758134 / sqrt(5e5)) < 1e-9);
    expect_error(ROPE("\"rope_type\":\"dynamic\",\"factor\":2"), ERR_UNSUPPORTED, "rope_type dynamic");
    expect_error(ROPE("\"rope_type\":\"longrope\""), ERR_UNSUPPORTED, "rope_type longrope");
    expect_error(ROPE("\"rope_type\":\"linear\""), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_type\":\"yarn\",\"factor\":0.5"), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_type\":\"yarn\",\"factor\":\"4\""), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_theta\":-1"), ERR_FORMAT, "rope_theta");
    expect_error(ROPE("\"partial_rotary_factor\":0.5"), ERR_UNSUPPORTED, "partial_rotary_factor");
    expect_error("{" DENSE BODY ",\"rope_scaling\":[]}", ERR_FORMAT, "rope_scaling");
}

// Against figures worked out by hand from the definitions, head_dim 32, theta 10000.
static void test_rope_scalings(void **state) {
    (void)state;
    static struct hparams h, plain;
    const double quarter = 0x1.45f306dc9c883p-1;
    expect_good("{" DENSE BODY "}", &plain);
    // llama3: waves below 8192/4 stay, above 8192 are 8 times slower. Pair 15: wave 2 pi 10000^(15/16) = 35334.
    expect_good(ROPE("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                     "\"original_max_position_embeddings\":8192"),
                &h);
    assert_true(h.fq[0] == plain.fq[0] && h.fq[9] == plain.fq[9]);
    assert_true(fabs(h.fq[15] * 8 / plain.fq[15] - 1) < 1e-6);
    // Pair 11: wave 3533, smooth = (8192/3533 - 1)/3 = 0.43955.
    double smooth = (8192 / (2 * M_PI * pow(1e4, 11.0 / 16)) - 1) / 3;
    assert_true(fabs(h.fq[11] / plain.fq[11] - ((1 - smooth) / 8 + smooth)) < 1e-6);
    assert_true(h.rope_factor == 1);
    // yarn over 64 tokens: 32 rotations at pair < 0, one at 32 ln(64/2 pi)/(2 ln 1e4) = 4.03, up to 5.
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64"), &h);
    for (int i = 0; i < 16; i++) {
        double ramp = i < 5 ? i / 5.0 : 1, f = pow(1e4, -i / 16.0) * (ramp / 4 + 1 - ramp);
        assert_true(fabs(h.fq[i] / (f * quarter) - 1) < 1e-6);
    }
    assert_true(fabs(h.rope_factor - (0.1 * log(4) + 1)) < 1e-6);
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":2,\"mscale_all_dim\":1"), &h);
    assert_true(fabs(h.rope_factor - (0.2 * log(4) + 1) / (0.1 * log(4) + 1)) < 1e-6);
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":1.25,\"mscale\":2"), &h);
    assert_true(h.rope_factor == 1.25f);
}

static void test_generation(void **state) {
    (void)state;
    static struct hparams h;
    struct gen_defaults g;
    struct err e;
    expect_good("{" DENSE BODY ",\"eos_token_id\":7}", &h);
    const char *text = "{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"eos_token_id\":[7,8]}";
    assert_int_equal(model_parse_generation(text, strlen(text), &h, &g, &e), ERR_OK);
    assert_true(g.temperature == 0.6f && g.top_p == 0.95f && g.min_p == 0 && g.top_k == 20);
    assert_int_equal(h.n_eos, 2);
    assert_int_equal(h.eos_ids[1], 8);
    text = "{\"do_sample\":false,\"temperature\":0.6}";
    assert_int_equal(model_parse_generation(text, strlen(text), &h, &g, &e), ERR_OK);
    assert_true(g.temperature == 0 && g.top_p == 1);
    assert_int_equal(model_parse_generation(NULL, 0, &h, &g, &e), ERR_OK);
    assert_true(g.temperature == 1);
    text = "{\"top_p\":0}";
    assert_int_equal(model_parse_generation(text, strlen(text), &h, &g, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "generation_config.json: top_p"));
    text = "{\"eos_token_id\":-1}";
    assert_int_equal(model_parse_generation(text, strlen(text), &h, &g, &e), ERR_FORMAT);
}

struct count {
    uint32_t n, embed, head, norm;
    uint64_t matrix_values;
};

static int count_need(void *arg, const struct tensor_need *n) {
    struct count *c = arg;
    c->n++;
    c->embed += strcmp(n->name, "model.embed_tokens.weight") == 0;
    c->head += strcmp(n->name, "lm_head.weight") == 0;
    c->norm += strcmp(n->name, "model.norm.weight") == 0;
    if (n->is_matrix) c->matrix_values += n->dim[0] * n->dim[1];
    return 0;
}

static int stop_at_three(void *arg, const struct tensor_need *n) {
    (void)n;
    return ++*(int *)arg == 3 ? 42 : 0;
}

static void test_needs(void **state) {
    (void)state;
    static struct hparams h;
    expect_good("{" DENSE BODY "}", &h);
    struct count first = {0}, middle = {0}, last = {0};
    assert_int_equal(model_needs(&h, 0, 2, count_need, &first), 0);
    assert_int_equal(model_needs(&h, 2, 3, count_need, &middle), 0);
    assert_int_equal(model_needs(&h, 3, 6, count_need, &last), 0);
    assert_int_equal(middle.n, 11);
    assert_int_equal(middle.matrix_values, 256 * 256 * 2 + 64 * 256 * 2 + 3 * 256 * 512);
    assert_true(first.n == 23 && first.embed == 1 && first.head == 0 && first.norm == 0);
    assert_true(last.n == 35 && last.embed == 0 && last.head == 1 && last.norm == 1);
    h.tied_embedding = true;
    struct count tied = {0};
    assert_int_equal(model_needs(&h, 3, 6, count_need, &tied), 0);
    assert_true(tied.n == 35 && tied.embed == 1 && tied.head == 0);
    int seen = 0;
    assert_int_equal(model_needs(&h, 0, 6, stop_at_three, &seen), 42);
    assert_int_equal(seen, 3);
    assert_int_equal(model_kv_bytes_per_token(&h, KV_I8, 6), 2 * 6 * 2 * (32 + 4));
    assert_int_equal(model_kv_bytes_per_token(&h, KV_F16, 6), 2 * 6 * 2 * 32 * 2);
}

// The hash moves with everything that moves bytes, and with nothing else.
static void test_plan_hash(void **state) {
    (void)state;
    static struct hparams a, b;
    struct run_mode m = {.weights = WEIGHTS_L8, .kv = KV_I8};
    expect_good("{" DENSE BODY "}", &a);
    uint64_t hash = model_plan_hash(&a, &m);
    expect_good("{" DENSE BODY ",\"eos_token_id\":3}", &b);
    assert_true(model_plan_hash(&b, &m) == hash);
    b.fq[3] = nextafter(b.fq[3], 1);
    assert_true(model_plan_hash(&b, &m) != hash);
    b = a;
    b.window_layer[1] = true;
    assert_true(model_plan_hash(&b, &m) != hash);
    m.kv = KV_F16;
    assert_true(model_plan_hash(&a, &m) != hash);
    m = (struct run_mode){.weights = WEIGHTS_Q8_0, .kv = KV_I8};
    assert_true(model_plan_hash(&a, &m) != hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_experts),        cmocka_unit_test(test_bad_fields),
        cmocka_unit_test(test_window),     cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_rope_scalings),
        cmocka_unit_test(test_generation), cmocka_unit_test(test_needs),          cmocka_unit_test(test_plan_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
