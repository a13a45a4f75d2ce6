#include "model/family.h"

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
    assert_int_equal(h.rope[0].n_freq, 16);
    assert_true(h.rope[0].factor == 1);
    assert_true(h.rope[0].fq[0] == 0x1.45f306dc9c883p-1);
    assert_true(h.rope[0].fq[8] == (double)(float)0.01 * 0x1.45f306dc9c883p-1); // 10000^(-1/2)
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
    assert_memory_equal(a.rope[0].fq, b.rope[0].fq, sizeof a.rope[0].fq);
    assert_true(a.rope[0].fq[0] == 0.25 * 0x1.45f306dc9c883p-1);
    expect_good("{" DENSE BODY ",\"rope_theta\":5e5,\"rope_scaling\":null}", &b);
    assert_true(b.rope[0].fq[0] == 0x1.45f306dc9c883p-1);
    assert_true(fabs(b.rope[0].fq[8] - 0.63661977236758134 / sqrt(5e5)) < 1e-9);
    expect_error(ROPE("\"rope_type\":\"dynamic\",\"factor\":2"), ERR_UNSUPPORTED, "rope_type dynamic");
    expect_error(ROPE("\"rope_type\":\"longrope\""), ERR_FORMAT, "short_factor");
    expect_error(ROPE("\"rope_type\":\"linear\""), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_type\":\"yarn\",\"factor\":0.5"), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_type\":\"yarn\",\"factor\":\"4\""), ERR_FORMAT, "factor");
    expect_error(ROPE("\"rope_theta\":-1"), ERR_FORMAT, "rope_theta");
    expect_error(ROPE("\"partial_rotary_factor\":0.05"), ERR_UNSUPPORTED, "RoPE over 1 of 32");
    expect_error(ROPE("\"partial_rotary_factor\":1.5"), ERR_FORMAT, "partial_rotary_factor");
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
    assert_true(h.rope[0].fq[0] == plain.rope[0].fq[0] && h.rope[0].fq[9] == plain.rope[0].fq[9]);
    assert_true(fabs(h.rope[0].fq[15] * 8 / plain.rope[0].fq[15] - 1) < 1e-6);
    // Pair 11: wave 3533, smooth = (8192/3533 - 1)/3 = 0.43955.
    double smooth = (8192 / (2 * M_PI * pow(1e4, 11.0 / 16)) - 1) / 3;
    assert_true(fabs(h.rope[0].fq[11] / plain.rope[0].fq[11] - ((1 - smooth) / 8 + smooth)) < 1e-6);
    assert_true(h.rope[0].factor == 1);
    // yarn over 64 tokens: 32 rotations at pair < 0, one at 32 ln(64/2 pi)/(2 ln 1e4) = 4.03, up to 5.
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64"), &h);
    for (int i = 0; i < 16; i++) {
        double ramp = i < 5 ? i / 5.0 : 1, f = pow(1e4, -i / 16.0) * (ramp / 4 + 1 - ramp);
        assert_true(fabs(h.rope[0].fq[i] / (f * quarter) - 1) < 1e-6);
    }
    assert_true(fabs(h.rope[0].factor - (0.1 * log(4) + 1)) < 1e-6);
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":2,\"mscale_all_dim\":1"), &h);
    assert_true(fabs(h.rope[0].factor - (0.2 * log(4) + 1) / (0.1 * log(4) + 1)) < 1e-6);
    expect_good(ROPE("\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":1.25,\"mscale\":2"), &h);
    assert_true(h.rope[0].factor == 1.25f);
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
    b.rope[0].fq[3] = nextafter(b.rope[0].fq[3], 1);
    assert_true(model_plan_hash(&b, &m) != hash);
    b = a;
    b.window_layer[1] = true;
    assert_true(model_plan_hash(&b, &m) != hash);
#define MOVES(field, value)                                                                                            \
    b = a;                                                                                                             \
    b.field = value;                                                                                                   \
    assert_true(model_plan_hash(&b, &m) != hash)
    MOVES(rope_of[2], ROPE_NONE);
    MOVES(rope[0].factor, 1.5f);
    MOVES(act, ACT_GELU_TANH);
    MOVES(qk_norm, QK_NORM_WIDE);
    MOVES(norms, NORM_POST);
    MOVES(bias_q, true);
    MOVES(bias_mlp, true);
    MOVES(head_scale, 0.5f);
    MOVES(attn_softcap, 50);
    MOVES(final_softcap, 30);
    MOVES(embed_scale, 8);
    MOVES(router, ROUTER_SIGMOID);
    MOVES(router_bias, true);
    MOVES(n_groups, 2);
    MOVES(top_groups, 2);
    MOVES(routed_scale, 2);
    MOVES(shared_ffn, 64);
    MOVES(q_beta, 0.1f);
    MOVES(q_original, 100);
    m.kv = KV_F16;
    assert_true(model_plan_hash(&a, &m) != hash);
    m = (struct run_mode){.weights = WEIGHTS_Q8_0, .kv = KV_I8};
    assert_true(model_plan_hash(&a, &m) != hash);
}

// What a family reads beyond the common fields.
static void test_families(void **state) {
    (void)state;
    static struct hparams h;
#define OF(x) "{\"architectures\":[\"" x "\"],"
    expect_good(OF("LlamaForCausalLM") BODY ",\"attention_bias\":true,\"mlp_bias\":true}", &h);
    assert_true(h.bias_q && h.bias_o && h.bias_mlp && h.qk_norm == QK_NORM_NONE);
    expect_good(OF("Qwen2ForCausalLM") BODY ",\"use_sliding_window\":true,\"sliding_window\":64}", &h);
    assert_true(h.bias_q && h.bias_v && !h.bias_o && !h.window_layer[5]); // max_window_layers is 28 where it is missing
    expect_good(OF("MistralForCausalLM") BODY ",\"sliding_window\":64}", &h);
    assert_true(h.window == 64 && h.window_layer[0] && h.window_layer[5]);
    expect_good(OF("MistralForCausalLM") BODY ",\"sliding_window\":null}", &h);
    assert_true(h.window == 0 && !h.window_layer[0]);
    expect_good(OF("Ministral3ForCausalLM") BODY
                ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16,"
                "\"original_max_position_embeddings\":256,\"llama_4_scaling_beta\":0.1}}",
                &h);
    assert_true(h.q_beta == 0.1f && h.q_original == 256);
    expect_good(OF("SmolLM3ForCausalLM") BODY "}", &h);
    assert_true(h.tied_embedding && h.rope_of[2] == 0 && h.rope_of[3] == ROPE_NONE && h.rope_of[4] == 0);
    expect_good(OF("SmolLM3ForCausalLM") BODY ",\"no_rope_layers\":[0,1,1,1,1,1],\"use_sliding_window\":true,"
                                              "\"sliding_window\":64}",
                &h);
    assert_true(h.rope_of[0] == ROPE_NONE && h.rope_of[3] == 0 && h.window_layer[0] && !h.window_layer[1]);
    expect_error(OF("SmolLM3ForCausalLM") BODY ",\"no_rope_layers\":[0,1]}", ERR_FORMAT, "no_rope_layers");
    expect_good(OF("SeedOssForCausalLM") BODY ",\"attention_out_bias\":true}", &h);
    assert_true(h.bias_q && h.bias_o && !h.bias_mlp);
    expect_good(OF("Olmo3ForCausalLM") BODY "}", &h);
    assert_true(h.norms == NORM_POST && h.qk_norm == QK_NORM_WIDE && h.window == 4096);
    assert_true(h.window_layer[0] && !h.window_layer[3]);
    expect_good(OF("Gemma2ForCausalLM") BODY "}", &h);
    assert_true(h.tied_embedding && h.head_dim == 256 && h.act == ACT_GELU_TANH && h.norm_plus_one);
    assert_true(h.attn_softcap == 50 && h.final_softcap == 30 && h.embed_scale == 16 && h.head_scale == 0);
    assert_true(h.window_layer[0] && !h.window_layer[1] && h.norms == NORM_PRE_POST);
    expect_good(OF("Gemma2ForCausalLM") BODY ",\"attn_logit_softcapping\":null,\"query_pre_attn_scalar\":144,"
                                             "\"loom_norm_has_one\":true}",
                &h);
    assert_true(h.attn_softcap == 0 && h.final_softcap == 30 && h.head_scale == (float)(1 / 12.0) && !h.norm_plus_one);
    expect_good(OF("Gemma3ForCausalLM") BODY ",\"sliding_window_pattern\":2}", &h);
    assert_true(h.qk_norm == QK_NORM_HEAD && h.window_layer[0] && !h.window_layer[1] && h.final_softcap == 0);
    expect_error(OF("Gemma3ForCausalLM") BODY ",\"use_bidirectional_attention\":true}", ERR_UNSUPPORTED,
                 "use_bidirectional_attention");
}

#define GLM                                                                                                            \
    OF("Glm4MoeForCausalLM")                                                                                           \
    BODY ",\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"num_experts_per_tok\":4"

static void test_sigmoid_routers(void **state) {
    (void)state;
    static struct hparams h;
    expect_good(GLM ",\"n_shared_experts\":2,\"first_k_dense_replace\":2,\"n_group\":4,\"topk_group\":2,"
                    "\"routed_scaling_factor\":2.5,\"num_nextn_predict_layers\":1,\"use_qk_norm\":true,"
                    "\"attention_bias\":true}",
                &h);
    assert_true(h.router == ROUTER_SIGMOID && h.router_bias && h.norm_topk && h.shared_ffn == 64);
    assert_true(h.n_groups == 4 && h.top_groups == 2 && h.routed_scale == 2.5f && h.n_ignored_layers == 1);
    assert_true(h.dense_layer[1] && !h.dense_layer[2] && h.qk_norm == QK_NORM_HEAD && h.bias_k && !h.bias_o);
    assert_int_equal(h.rope[0].n_freq, 8); // half of a head where nothing is said
    expect_error(GLM ",\"n_group\":3,\"topk_group\":1}", ERR_FORMAT, "n_group 3");
    expect_error(GLM ",\"n_group\":4,\"topk_group\":1}", ERR_FORMAT, "4 of a token");
    expect_error(GLM ",\"n_group\":8,\"topk_group\":8}", ERR_FORMAT, "n_group 8");
    expect_good(OF("MiniMaxM2ForCausalLM") BODY
                ",\"num_local_experts\":8,\"num_experts_per_tok\":4,\"rotary_dim\":16,"
                "\"use_routing_bias\":true,\"scoring_func\":\"sigmoid\",\"attn_type_list\":[1,1,1,1,1,1]}",
                &h);
    assert_true(h.qk_norm == QK_NORM_WIDE && h.norm_topk && h.expert_ffn == 512 && h.rope[0].n_freq == 8);
    expect_good(OF("MiniMaxM2ForCausalLM") BODY ",\"num_local_experts\":8,\"num_experts_per_tok\":4,\"rotary_dim\":16,"
                                                "\"rope_parameters\":{\"rope_theta\":5e6}}",
                &h);
    assert_int_equal(h.rope[0].n_freq, 16); // files of today say it in rope_parameters alone
    expect_error(OF("MiniMaxM2ForCausalLM") BODY ",\"num_local_experts\":8,\"num_experts_per_tok\":4,"
                                                 "\"attn_type_list\":[1,0,1,1,1,1]}",
                 ERR_UNSUPPORTED, "attn_type_list[1]");
    expect_error(OF("MiniMaxM2ForCausalLM") BODY ",\"num_local_experts\":8,\"num_experts_per_tok\":4,"
                                                 "\"scoring_func\":\"softmax\"}",
                 ERR_UNSUPPORTED, "scoring_func softmax");
}

// The text model inside a larger one; its own settings count before those of the whole.
static void test_wrapped(void **state) {
    (void)state;
    static struct hparams h;
    expect_good("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":[1,106],\"torch_dtype\":"
                "\"bfloat16\",\"vision_config\":{\"hidden_size\":1152},\"text_config\":{\"model_type\":\"gemma3_text\","
                "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,\"sliding_window\":1024,"
                "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}",
                &h);
    assert_string_equal(h.family->name, "gemma3");
    assert_true(h.n_layers == 34 && h.n_heads == 8 && h.n_kv_heads == 4 && h.head_dim == 256 && h.n_vocab == 262208);
    assert_true(h.n_eos == 2 && h.layer_type[0] == DT_BF16 && h.tied_embedding && h.max_context == 131072);
    expect_good(
        "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"tie_word_embeddings\":true,\"text_config\":{"
        "\"model_type\":\"ministral3\",\"tie_word_embeddings\":false," BODY "}}",
        &h);
    assert_string_equal(h.family->name, "ministral3");
    assert_false(h.tied_embedding);
    expect_error(
        "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"text_config\":{\"model_type\":\"qwen2\"}}",
        ERR_UNSUPPORTED, "qwen2");
    expect_error("{\"architectures\":[\"Gemma3ForConditionalGeneration\"]}", ERR_UNSUPPORTED, "missing");
}

static void test_refused(void **state) {
    (void)state;
    expect_error("{\"architectures\":[\"DeepseekV3ForCausalLM\"]}", ERR_UNSUPPORTED, "MLA");
    expect_error("{\"architectures\":[\"Qwen3NextForCausalLM\"]}", ERR_UNSUPPORTED, "delta rule");
    expect_error("{\"architectures\":[\"GptOssForCausalLM\"]}", ERR_UNSUPPORTED, "sinks");
    expect_error("{\"architectures\":[\"Gemma4ForCausalLM\"]}", ERR_UNSUPPORTED, "later");
}

struct scales {
    uint32_t n, q, gate;
    uint64_t dim[2];
};

static int count_scale(void *arg, const struct tensor_need *n) {
    struct scales *s = arg;
    if (!strstr(n->name, "_scale_inv")) return 0;
    assert_false(n->is_matrix);
    s->n++;
    if (strstr(n->name, "layers.1.self_attn.q_proj.weight_scale_inv")) s->q++;
    if (strcmp(n->name, "model.layers.0.mlp.gate_proj.weight_scale_inv") == 0) {
        s->gate++;
        memcpy(s->dim, n->dim, sizeof s->dim);
    }
    return 0;
}

#define FP8 "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"activation_scheme\":\"dynamic\""

static void test_fp8(void **state) {
    (void)state;
    static struct hparams h, plain;
    struct scales s = {0};
    expect_good("{" DENSE BODY ",\"quantization_config\":{" FP8 "}}", &h);
    assert_true(h.fp8_blocks);
    assert_int_equal(model_needs(&h, 0, 6, count_scale, &s), 0);
    assert_true(s.n == 6 * 7 && s.gate == 1 && s.dim[0] == 4 && s.dim[1] == 2);
    expect_good("{" DENSE BODY ",\"quantization_config\":{" FP8 ",\"modules_to_not_convert\":[\"lm_head\","
                "\"model.layers.0.mlp.gate_proj\",\"model.layers.1.self_attn\",\"model.layers.5\",\"k_proj\","
                "\"model.layers.77.mlp\",\"vision_tower.layers.2.mlp\",\"gate\"]}}",
                &h);
    s = (struct scales){0};
    assert_int_equal(model_needs(&h, 0, 6, count_scale, &s), 0);
    assert_true(s.n == 6 * 7 - 1 - 4 - 7 - 4 && s.gate == 0 && s.q == 0);
    // It is how files have the weights, and moves nothing else.
    expect_good("{" DENSE BODY "}", &plain);
    const struct run_mode m = {.kv = KV_I8};
    assert_true(model_plan_hash(&h, &m) == model_plan_hash(&plain, &m));
    expect_error("{" DENSE BODY ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", ERR_UNSUPPORTED,
                 "gptq");
    expect_error("{" DENSE BODY ",\"quantization_config\":{\"quant_method\":\"fp8\"}}", ERR_UNSUPPORTED, "fp8");
    expect_error("{" DENSE BODY ",\"quantization_config\":{" FP8 ",\"modules_to_not_convert\":7}}", ERR_FORMAT,
                 "modules_to_not_convert");
    expect_error(OF("Phi3ForCausalLM") BODY ",\"quantization_config\":{" FP8 "}}", ERR_UNSUPPORTED, "fused");
}

// Files that have the tensors in another form.
static void add_tensor(struct tensors *t, const char *name, uint64_t a, uint64_t b, uint64_t c, const float *data) {
    struct err e;
    uint32_t dims = c ? 3 : b ? 2 : 1;
    struct tensor one = {.name = name, .type = DT_F32, .n_dims = dims, .dim = {a, b, c}, .data = (const uint8_t *)data};
    one.bytes = a * (b ? b : 1) * (c ? c : 1) * sizeof *data;
    assert_int_equal(tensors_add(t, &one, &e), ERR_OK);
}

static void expect_rows(const struct tensors *t, const char *name, uint64_t rows, const float *at) {
    const struct tensor *one = tensors_find(t, name);
    if (!one) {
        fail_msg("%s is missing", name);
        return;
    }
    assert_int_equal(one->dim[0], rows);
    assert_ptr_equal(one->data, at);
}

#define TINY                                                                                                           \
    "\"num_hidden_layers\":1,\"hidden_size\":16,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":4,"   \
    "\"intermediate_size\":8,\"vocab_size\":10,\"max_position_embeddings\":64"

static void test_fit(void **state) {
    (void)state;
    static struct hparams h;
    struct tensors *t;
    struct err e;
    static float w[4096];
    expect_good(OF("Phi3ForCausalLM") TINY "}", &h);
    assert_int_equal(tensors_new(&t), ERR_OK);
    add_tensor(t, "model.layers.0.self_attn.qkv_proj.weight", 32, 16, 0, w);
    add_tensor(t, "model.layers.0.mlp.gate_up_proj.weight", 16, 16, 0, w);
    assert_int_equal(model_fit_tensors(&h, t, &e), ERR_OK);
    expect_rows(t, "model.layers.0.self_attn.q_proj.weight", 16, w);
    expect_rows(t, "model.layers.0.self_attn.k_proj.weight", 8, w + 16 * 16);
    expect_rows(t, "model.layers.0.self_attn.v_proj.weight", 8, w + 24 * 16);
    expect_rows(t, "model.layers.0.mlp.gate_proj.weight", 8, w);
    expect_rows(t, "model.layers.0.mlp.up_proj.weight", 8, w + 8 * 16);
    tensors_free(t);
    assert_int_equal(tensors_new(&t), ERR_OK);
    add_tensor(t, "model.layers.0.self_attn.qkv_proj.weight", 31, 16, 0, w);
    assert_int_equal(model_fit_tensors(&h, t, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "qkv_proj"));
    tensors_free(t);
    expect_good(OF("MixtralForCausalLM") TINY ",\"num_local_experts\":4,\"num_experts_per_tok\":2}", &h);
    assert_int_equal(tensors_new(&t), ERR_OK);
    add_tensor(t, "model.layers.0.block_sparse_moe.experts.gate_up_proj", 4, 16, 16, w);
    add_tensor(t, "model.layers.0.block_sparse_moe.experts.down_proj", 4, 16, 8, w);
    assert_int_equal(model_fit_tensors(&h, t, &e), ERR_OK);
    expect_rows(t, "model.layers.0.block_sparse_moe.experts.3.w1.weight", 8, w + 3 * 256);
    expect_rows(t, "model.layers.0.block_sparse_moe.experts.3.w3.weight", 8, w + 3 * 256 + 128);
    expect_rows(t, "model.layers.0.block_sparse_moe.experts.2.w2.weight", 16, w + 2 * 128);
    tensors_free(t);
    assert_int_equal(tensors_new(&t), ERR_OK);
    add_tensor(t, "model.layers.0.block_sparse_moe.experts.down_proj", 3, 16, 8, w);
    assert_int_equal(model_fit_tensors(&h, t, &e), ERR_FORMAT);
    tensors_free(t);
    expect_good(OF("MistralForCausalLM") TINY "}", &h);
    assert_int_equal(tensors_new(&t), ERR_OK);
    add_tensor(t, "language_model.model.norm.weight", 16, 0, 0, w);
    add_tensor(t, "model.language_model.embed_tokens.weight", 10, 16, 0, w + 64);
    add_tensor(t, "language_model.lm_head.weight", 10, 16, 0, w + 512);
    assert_int_equal(model_fit_tensors(&h, t, &e), ERR_OK);
    expect_rows(t, "model.norm.weight", 16, w);
    expect_rows(t, "model.embed_tokens.weight", 10, w + 64);
    expect_rows(t, "lm_head.weight", 10, w + 512);
    tensors_free(t);
}

// A tensor in a layer that no need names would change the result, whatever it is; what has no effect may be there.
static void test_unknown_tensors(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int rc;
    } cases[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", ERR_OK},
                 {"model.layers.0.self_attn.masked_bias", ERR_OK},
                 {"model.layers.1.self_attn.q_proj.bias", ERR_OK}, // a layer beyond: head/open.c looks at these
                 {"lm_head.weight", ERR_OK},                       // tied all the same
                 {"vision_tower.layers.0.self_attn.q_proj.bias", ERR_OK},
                 {"model.layers.0.self_attn.q_proj.weight_scale_inv", ERR_OK},
                 {"model.layers.0.self_attn.q_proj.bias", ERR_UNSUPPORTED},
                 {"model.layers.0.self_attn.q_norm.weight", ERR_UNSUPPORTED},
                 {"model.layers.0.mlp.gate_proj.weight_scale_inv", ERR_UNSUPPORTED},
                 {"language_model.model.layers.0.self_attn.o_proj.bias", ERR_UNSUPPORTED},
                 {"model.norm.bias", ERR_UNSUPPORTED},
                 {"lm_head.bias", ERR_UNSUPPORTED}};
    static struct hparams h;
    static float w[4096];
    expect_good(OF("MistralForCausalLM") TINY ",\"tie_word_embeddings\":true}", &h);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensors *t;
        struct err e = {0};
        assert_int_equal(tensors_new(&t), ERR_OK);
        add_tensor(t, "model.layers.0.self_attn.q_proj.weight", 16, 16, 0, w);
        add_tensor(t, cases[i].name, 16, 0, 0, w);
        int rc = model_fit_tensors(&h, t, &e);
        if (rc != cases[i].rc || (rc && !strstr(e.text, cases[i].name)))
            fail_msg("%s: %d %s", cases[i].name, rc, rc ? e.text : "");
        tensors_free(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_bad_fields),
                                       cmocka_unit_test(test_window),
                                       cmocka_unit_test(test_rope_spellings),
                                       cmocka_unit_test(test_rope_scalings),
                                       cmocka_unit_test(test_generation),
                                       cmocka_unit_test(test_needs),
                                       cmocka_unit_test(test_plan_hash),
                                       cmocka_unit_test(test_families),
                                       cmocka_unit_test(test_sigmoid_routers),
                                       cmocka_unit_test(test_wrapped),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_fp8),
                                       cmocka_unit_test(test_fit),
                                       cmocka_unit_test(test_unknown_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
