// Metadata -> config.json -> hyper-parameters, for what the files of the fixtures' families do not reach.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf/gguf.h"
#include "model/family.h"
#include "model/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, Q4_0 = 2, Q4_K = 12, Q6_K = 14 };

struct file {
    struct gguf_writer *w;
    char arch[16];
    struct buf out;
    struct tensors *t;
    char *config, *generation;
    size_t config_bytes, generation_bytes;
    struct hparams h;
    struct gen_defaults g;
};

static const char *key_of(const struct file *f, const char *name) {
    static char key[128];
    if (strncmp(name, "general.", 8) == 0 || strncmp(name, "tokenizer.", 10) == 0) return name;
    snprintf(key, sizeof key, "%s.%s", f->arch, name);
    return key;
}

static void u32(struct file *f, const char *name, uint32_t v) {
    assert_int_equal(gguf_put_u32(f->w, key_of(f, name), v), 0);
}
static void f32(struct file *f, const char *name, float v) {
    assert_int_equal(gguf_put_f32(f->w, key_of(f, name), v), 0);
}
static void text(struct file *f, const char *name, const char *v) {
    assert_int_equal(gguf_put_string(f->w, key_of(f, name), v, strlen(v)), 0);
}
static void u32s(struct file *f, const char *name, const uint32_t *v, uint64_t n) {
    assert_int_equal(gguf_put_array(f->w, key_of(f, name), GGUF_U32, v, n), 0);
}

static void tensor(struct file *f, const char *name, uint32_t type, uint64_t k, uint64_t rows) {
    static const uint64_t bytes_of[] = {[F32] = 4, [Q4_0] = 18, [Q4_K] = 144, [Q6_K] = 210};
    static const uint64_t values_of[] = {[F32] = 1, [Q4_0] = 32, [Q4_K] = 256, [Q6_K] = 256};
    uint64_t at;
    assert_int_equal(gguf_put_tensor(f->w, name, (uint64_t[]){k, rows}, rows ? 2 : 1, type,
                                     k / values_of[type] * bytes_of[type] * (rows ? rows : 1), &at),
                     0);
}

// Four layers, width 64, 4 heads of 16; the norm's epsilon comes with finish unless a test has put its own.
static void begin(struct file *f, const char *arch) {
    memset(f, 0, sizeof *f);
    snprintf(f->arch, sizeof f->arch, "%s", arch);
    assert_int_equal(gguf_writer_new(&f->w), 0);
    text(f, "general.architecture", arch);
    u32(f, "block_count", 4);
    u32(f, "context_length", 4096);
    u32(f, "embedding_length", 64);
    f32(f, "attention.layer_norm_rms_epsilon", 1e-5f);
    f32(f, "rope.freq_base", 1e6f);
}

static void usual(struct file *f) {
    u32(f, "attention.head_count", 4);
    u32(f, "attention.head_count_kv", 2);
    u32(f, "feed_forward_length", 128);
    tensor(f, "token_embd.weight", F32, 64, 10);
}

static int finish(struct file *f, struct err *e) {
    buf_init(&f->out, 1 << 20);
    assert_int_equal(gguf_writer_header(f->w, &f->out), 0);
    for (uint64_t n = gguf_writer_data_bytes(f->w) / 4; n > 0; n--) {
        const float two = 2;
        assert_int_equal(buf_add(&f->out, &two, sizeof two), 0);
    }
    gguf_writer_free(f->w);
    if (tensors_open_memory(f->out.data, f->out.len_bytes, &f->t, e)) fail_msg("%s", e->text);
    int rc = gguf_config_make(f->t, &f->config, &f->config_bytes, &f->generation, &f->generation_bytes, e);
    if (!rc) rc = model_parse_config(f->config, f->config_bytes, &f->h, e);
    if (!rc) rc = model_parse_generation(f->generation, f->generation_bytes, &f->h, &f->g, e);
    return rc;
}

static void end(struct file *f) {
    free(f->config);
    free(f->generation);
    tensors_free(f->t);
    buf_fini(&f->out);
}

static void good(struct file *f) {
    struct err e;
    if (finish(f, &e)) fail_msg("%s: %s", f->arch, e.text);
}

static void refused(struct file *f, int code, const char *word, const char *other) {
    struct err e;
    int rc = finish(f, &e);
    if (rc != code || !strstr(e.text, word) || !strstr(e.text, other))
        fail_msg("%s: %d %s", f->arch, rc, rc ? e.text : "");
    end(f);
}

static void plain(void **state) {
    (void)state;
    struct file f;
    begin(&f, "llama");
    usual(&f);
    text(&f, "general.name", "x");
    good(&f);
    assert_string_equal(f.h.family->architecture, "LlamaForCausalLM");
    assert_true(f.h.n_layers == 4 && f.h.hidden == 64 && f.h.n_heads == 4 && f.h.n_kv_heads == 2 && f.h.head_dim == 16);
    assert_true(f.h.ffn == 128 && f.h.n_vocab == 10 && f.h.max_context == 4096 && f.h.tied_embedding);
    assert_true(f.h.rms_eps == 1e-5f && f.h.qk_interleaved && !f.h.bias_q && f.h.n_eos == 0 && f.h.bos_id == -1);
    assert_true(f.h.rope[0].n_freq == 8 && f.h.rope[0].factor == 1);
    assert_non_null(strstr(f.config, "\"rms_norm_eps\": 1e-5,")); // the shortest decimal, as folders have it
    assert_null(f.generation);
    end(&f);
    // Numbers of each layer that are all the same, an own head, biases; the head's width of its own.
    begin(&f, "llama");
    u32s(&f, "attention.head_count", (uint32_t[]){4, 4, 4, 4}, 4);
    u32s(&f, "attention.head_count_kv", (uint32_t[]){1, 1, 1, 1}, 4);
    u32s(&f, "feed_forward_length", (uint32_t[]){96, 96, 96, 96}, 4);
    u32(&f, "attention.key_length", 32);
    u32(&f, "attention.value_length", 32);
    tensor(&f, "token_embd.weight", F32, 64, 10);
    tensor(&f, "output.weight", F32, 64, 10);
    tensor(&f, "blk.0.attn_q.bias", F32, 128, 0);
    good(&f);
    assert_true(f.h.n_kv_heads == 1 && f.h.ffn == 96 && f.h.head_dim == 32 && !f.h.tied_embedding && f.h.bias_q);
    end(&f);
    begin(&f, "llama");
    usual(&f);
    u32(&f, "attention.sliding_window", 1024);
    good(&f);
    assert_string_equal(f.h.family->architecture, "MistralForCausalLM");
    assert_true(f.h.window == 1024 && f.h.window_layer[0] && f.h.window_layer[3]);
    end(&f);
}

static void tokens(void **state) {
    (void)state;
    struct file f;
    const struct gguf_string list[] = {{"a", 1}, {"<s>", 3}, {"</s>", 4}, {"<|eot_id|>", 10}, {"<|im_end|>", 10}};
    begin(&f, "qwen2");
    usual(&f);
    assert_int_equal(gguf_put_array(f.w, "tokenizer.ggml.tokens", GGUF_STRING, list, 5), 0);
    assert_int_equal(gguf_put_array(f.w, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){1, 3, 3, 4, 1}, 5), 0);
    u32(&f, "tokenizer.ggml.bos_token_id", 1);
    u32(&f, "tokenizer.ggml.eos_token_id", 0);
    u32(&f, "tokenizer.ggml.eom_token_id", 9);
    u32(&f, "tokenizer.ggml.eot_token_id", UINT32_MAX);
    f32(&f, "general.sampling.temp", 0.7f);
    u32(&f, "general.sampling.top_k", 20);
    f32(&f, "general.sampling.top_p", 0.8f);
    good(&f);
    // What the keys say, then what is no ordinary text and known to end an answer.
    assert_int_equal(f.h.n_eos, 4);
    assert_true(f.h.eos_ids[0] == 0 && f.h.eos_ids[1] == 9 && f.h.eos_ids[2] == 2 && f.h.eos_ids[3] == 3);
    assert_int_equal(f.h.bos_id, 1);
    assert_true(f.g.temperature == 0.7f && f.g.top_k == 20 && f.g.top_p == 0.8f && f.g.min_p == 0);
    end(&f);
    begin(&f, "qwen2");
    usual(&f);
    assert_int_equal(gguf_put_value(f.w, &(struct gguf_value){.key = {"tokenizer.ggml.bos_token_id", 27},
                                                              .type = GGUF_I32,
                                                              .item_type = GGUF_I32,
                                                              .n_items = 1,
                                                              .data = (const uint8_t *)&(int32_t){-1},
                                                              .data_bytes = 4}),
                     0);
    good(&f);
    assert_int_equal(f.h.bos_id, -1);
    end(&f);
    begin(&f, "qwen2");
    usual(&f);
    u32(&f, "tokenizer.ggml.eos_token_id", 10);
    refused(&f, ERR_FORMAT, "tokenizer.ggml.eos_token_id", "0 to 9");
    // A list of ours is all of them.
    begin(&f, "qwen2");
    usual(&f);
    u32(&f, "tokenizer.ggml.eos_token_id", 1);
    assert_int_equal(gguf_put_array(f.w, GGUF_END_TOKENS, GGUF_I32, (int32_t[]){7, 3, 5, 2, 9}, 5), 0);
    good(&f);
    assert_int_equal(f.h.n_eos, 5);
    assert_memory_equal(f.h.eos_ids, ((int32_t[]){7, 3, 5, 2, 9}), 5 * sizeof(int32_t));
    end(&f);
    begin(&f, "qwen2");
    usual(&f);
    assert_int_equal(gguf_put_array(f.w, GGUF_END_TOKENS, GGUF_I32, (int32_t[]){7, 10}, 2), 0);
    refused(&f, ERR_FORMAT, GGUF_END_TOKENS, "item 1");
}

static void windows(void **state) {
    (void)state;
    struct file f;
    begin(&f, "gemma3");
    usual(&f);
    u32(&f, "attention.sliding_window", 512);
    u32(&f, "attention.sliding_window_pattern", 2);
    f32(&f, "rope.freq_base_swa", 20000);
    good(&f);
    assert_true(f.h.window == 512 && f.h.window_layer[0] && !f.h.window_layer[1] && f.h.window_layer[2]);
    assert_true(f.h.rope_of[0] == 1 && f.h.rope_of[1] == 0);
    assert_true(fabs(f.h.rope[1].fq[1] / f.h.rope[0].fq[1] - pow(1e6 / 20000, 1.0 / 8)) < 1e-6);
    assert_true(!f.h.norm_plus_one && f.h.embed_scale == 8 && f.h.attn_softcap == 0);
    end(&f);
    begin(&f, "gemma3"); // no window at all
    usual(&f);
    good(&f);
    assert_true(f.h.window == 0 && !f.h.window_layer[0] && !f.h.window_layer[3]);
    end(&f);
    begin(&f, "gemma2"); // its defaults
    usual(&f);
    good(&f);
    assert_true(f.h.window == 4096 && f.h.window_layer[0] && !f.h.window_layer[1]);
    assert_true(f.h.attn_softcap == 50 && f.h.final_softcap == 30);
    end(&f);
    begin(&f, "olmo2");
    usual(&f);
    u32(&f, "attention.sliding_window", 64);
    const uint8_t list[] = {0, 1, 1, 0};
    assert_int_equal(gguf_put_array(f.w, "olmo2.attention.sliding_window_pattern", GGUF_BOOL, list, 4), 0);
    good(&f);
    assert_true(!f.h.window_layer[0] && f.h.window_layer[1] && f.h.window_layer[2] && !f.h.window_layer[3]);
    end(&f);
    begin(&f, "olmo2"); // OLMo 2: the same layer without windows
    usual(&f);
    good(&f);
    assert_true(f.h.window == 0 && !f.h.window_layer[0] && f.h.norms == NORM_POST);
    end(&f);
    begin(&f, "olmo2");
    usual(&f);
    u32(&f, "attention.sliding_window", 64);
    assert_int_equal(gguf_put_array(f.w, "olmo2.attention.sliding_window_pattern", GGUF_BOOL, list, 3), 0);
    refused(&f, ERR_FORMAT, "sliding_window_pattern: 3 items", "each of the 4 layers");
}

static void ropes(void **state) {
    (void)state;
    struct file f;
    begin(&f, "llama");
    usual(&f);
    tensor(&f, "rope_freqs.weight", F32, 8, 0); // all 2
    good(&f);
    assert_true(fabs(f.h.rope[0].fq[0] * 3.14159265358979 - 1) < 1e-6);
    end(&f);
    begin(&f, "llama");
    usual(&f);
    tensor(&f, "rope_freqs.weight", F32, 9, 0);
    refused(&f, ERR_FORMAT, "rope_freqs.weight", "8 floats");
    begin(&f, "qwen3");
    usual(&f);
    text(&f, "rope.scaling.type", "linear");
    f32(&f, "rope.scaling.factor", 4);
    u32(&f, "rope.dimension_count", 8);
    good(&f);
    assert_true(f.h.rope[0].n_freq == 4 && fabs(f.h.rope[0].fq[0] * 3.14159265358979 / 2 - 0.25) < 1e-6);
    end(&f);
    begin(&f, "mistral3");
    usual(&f);
    text(&f, "rope.scaling.type", "yarn");
    f32(&f, "rope.scaling.factor", 16);
    u32(&f, "rope.scaling.original_context_length", 256);
    f32(&f, "rope.scaling.yarn_log_multiplier", 1);
    f32(&f, "attention.temperature_scale", 0.1f);
    good(&f);
    assert_true(f.h.rope[0].factor == 1 && f.h.q_beta == 0.1f && f.h.q_original == 256);
    end(&f);
    begin(&f, "qwen3");
    usual(&f);
    text(&f, "rope.scaling.type", "yarn");
    f32(&f, "rope.scaling.factor", 16);
    u32(&f, "rope.scaling.original_context_length", 256);
    good(&f);
    assert_true(fabs((double)f.h.rope[0].factor - (0.1 * log(16) + 1)) < 1e-6);
    end(&f);
    begin(&f, "qwen3"); // a second factor, on top of the first
    usual(&f);
    text(&f, "rope.scaling.type", "yarn");
    f32(&f, "rope.scaling.factor", 16);
    u32(&f, "rope.scaling.original_context_length", 256);
    f32(&f, "rope.scaling.attn_factor", 0.5f);
    good(&f);
    assert_true(fabs((double)f.h.rope[0].factor - 0.5 * (0.1 * log(16) + 1)) < 1e-6);
    end(&f);
    begin(&f, "qwen3");
    usual(&f);
    text(&f, "rope.scaling.type", "yarn");
    text(&f, "rope.scaling.attn_factor", "1");
    refused(&f, ERR_FORMAT, "qwen3.rope.scaling.attn_factor", "a finite number");
    begin(&f, "qwen3");
    usual(&f);
    f32(&f, "rope.scaling.attn_factor", 0.5f);
    refused(&f, ERR_UNSUPPORTED, "qwen3.rope.scaling.attn_factor", "0.5");
    begin(&f, "phi3");
    usual(&f);
    u32(&f, "rope.scaling.original_context_length", 1024);
    f32(&f, "rope.scaling.attn_factor", 1.25f);
    u32(&f, "attention.sliding_window", 0);
    tensor(&f, "rope_factors_long.weight", F32, 8, 0);
    tensor(&f, "rope_factors_short.weight", F32, 8, 0);
    good(&f);
    assert_true(f.h.rope_short_context == 1024 && f.h.rope_long.factor == 1.25f && f.h.window == 0);
    end(&f);
    begin(&f, "phi3");
    usual(&f);
    text(&f, "rope.scaling.type", "longrope");
    tensor(&f, "rope_factors_long.weight", F32, 8, 0);
    refused(&f, ERR_FORMAT, "longrope", "rope_factors_short.weight");
    begin(&f, "llama");
    usual(&f);
    text(&f, "rope.scaling.type", "spiral");
    refused(&f, ERR_UNSUPPORTED, "llama.rope.scaling.type", "spiral");
}

// Any even part of a head turns, also where the share has no short decimal.
static void parts_of_heads(void **state) {
    (void)state;
    static const uint32_t heads[] = {96, 112, 192};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (uint32_t dim = 2; dim <= heads[i]; dim += 2) {
            struct file f;
            begin(&f, "qwen3");
            usual(&f);
            u32(&f, "attention.key_length", heads[i]);
            u32(&f, "rope.dimension_count", dim);
            good(&f);
            assert_int_equal(f.h.rope[0].n_freq, dim / 2);
            end(&f);
        }
}

// A whole model but for the tensor `without` ("*.bias": of all layers), with `more` beside it.
static void whole(struct file *f, const char *without, const char *more) {
    static const struct {
        const char *name;
        uint64_t k, rows;
    } list[] = {{"attn_norm.weight", 64, 0},  {"attn_q.weight", 64, 64},      {"attn_k.weight", 64, 32},
                {"attn_v.weight", 64, 32},    {"attn_output.weight", 64, 64}, {"ffn_norm.weight", 64, 0},
                {"ffn_gate.weight", 64, 128}, {"ffn_up.weight", 64, 128},     {"ffn_down.weight", 128, 64},
                {"attn_q.bias", 64, 0},       {"attn_k.bias", 32, 0},         {"attn_v.bias", 32, 0},
                {"attn_output.bias", 64, 0}};
    begin(f, "llama");
    usual(f);
    tensor(f, "output_norm.weight", F32, 64, 0);
    for (uint32_t layer = 0; layer < 4; layer++)
        for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, list[i].name);
            const char *rest = strchr(name + 4, '.');
            bool left_out = without && (strcmp(without, name) == 0 || (without[0] == '*' && strstr(rest, without + 1)));
            if (!left_out) tensor(f, name, F32, list[i].k, list[i].rows);
        }
    if (more) tensor(f, more, F32, 64, 0);
}

static void fit(const char *without, const char *more, int code, const char *word) {
    struct file f;
    struct err e = {0};
    whole(&f, without, more);
    good(&f);
    int rc = model_fit_tensors(&f.h, f.t, &e);
    if (rc != code || (rc && !strstr(e.text, word)))
        fail_msg("without %s, with %s: %d %s", without ? without : "-", more ? more : "-", rc, rc ? e.text : "");
    end(&f);
}

// A tensor that nothing takes would change the result without a word.
static void all_tensors_count(void **state) {
    (void)state;
    static const char *const foreign[] = {"blk.2.attn_q.biax",   "blk.0.attn_q_norm.weight", "blk.3.attn_qkv.bias",
                                          "rope_freks.weight",   "outputs.weight",           "output_norm.bias",
                                          "blk.1.ffn_norm.bias", "rope_factors_long.weight", "blk.7.attn_q.weights"};
    fit(NULL, NULL, 0, "");
    fit("*.bias", NULL, 0, "");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        struct file f;
        struct err e = {0};
        whole(&f, NULL, NULL);
        // Longrope needs both, so that one alone is refused before.
        const bool longrope = strncmp(foreign[i], "rope_factors", 12) == 0;
        if (longrope) text(&f, "rope.scaling.type", "linear");
        tensor(&f, foreign[i], F32, 64, 0);
        good(&f);
        assert_int_equal(model_fit_tensors(&f.h, f.t, &e), ERR_UNSUPPORTED);
        if (!strstr(e.text, foreign[i])) fail_msg("%s: %s", foreign[i], e.text);
        end(&f);
    }
    fit(NULL, "v.blk.0.attn_q.weight", 0, "");
    fit(NULL, "blk.0.attn_rot_embd", 0, "");
    // A layer that lacks what others have; one kind of bias alone.
    fit("blk.0.attn_q.bias", NULL, ERR_NOT_FOUND, "tensor blk.0.attn_q.bias ");
    fit("blk.2.attn_v.bias", NULL, ERR_NOT_FOUND, "tensor blk.2.attn_v.bias ");
    fit("blk.3.ffn_down.weight", NULL, ERR_NOT_FOUND, "tensor blk.3.ffn_down.weight ");
    fit("*attn_q.bias", NULL, ERR_NOT_FOUND, "tensor blk.0.attn_q.bias ");
    fit("*.bias", "blk.1.attn_output.bias", ERR_NOT_FOUND, "tensor blk.0.attn_q.bias ");
    fit("*.bias", "blk.1.ffn_up.bias", ERR_NOT_FOUND, "tensor blk.0.ffn_gate.bias ");
}

static void experts(void **state) {
    (void)state;
    struct file f;
    begin(&f, "llama");
    usual(&f);
    u32(&f, "expert_count", 8);
    u32(&f, "expert_used_count", 2);
    good(&f);
    assert_string_equal(f.h.family->architecture, "MixtralForCausalLM");
    assert_true(f.h.n_experts == 8 && f.h.top_k == 2 && f.h.expert_ffn == 128 && f.h.qk_interleaved);
    end(&f);
    begin(&f, "qwen3moe");
    usual(&f);
    u32(&f, "expert_count", 8);
    u32(&f, "expert_used_count", 2);
    u32(&f, "expert_feed_forward_length", 32);
    tensor(&f, "blk.2.ffn_gate.weight", F32, 64, 128);
    good(&f);
    assert_true(f.h.expert_ffn == 32 && f.h.norm_topk && !f.h.dense_layer[1] && f.h.dense_layer[2]);
    end(&f);
    begin(&f, "glm4moe");
    usual(&f);
    u32(&f, "nextn_predict_layers", 1);
    u32(&f, "expert_count", 8);
    u32(&f, "expert_used_count", 2);
    u32(&f, "expert_feed_forward_length", 32);
    u32(&f, "expert_shared_count", 1);
    u32(&f, "leading_dense_block_count", 2);
    f32(&f, "expert_weights_scale", 2.5f);
    good(&f);
    assert_true(f.h.n_layers == 3 && f.h.n_ignored_layers == 1 && f.h.shared_ffn == 32 && f.h.routed_scale == 2.5f);
    assert_true(f.h.dense_layer[1] && !f.h.dense_layer[2] && f.h.router == ROUTER_SIGMOID);
    end(&f);
    begin(&f, "glm4moe");
    usual(&f);
    u32(&f, "expert_count", 8);
    u32(&f, "expert_used_count", 2);
    u32(&f, "expert_gating_func", 1);
    refused(&f, ERR_UNSUPPORTED, "glm4moe.expert_gating_func", "1");
    begin(&f, "minimax-m2");
    usual(&f);
    u32(&f, "expert_count", 8);
    refused(&f, ERR_FORMAT, "minimax-m2.expert_used_count", "missing");
    begin(&f, "qwen3");
    usual(&f);
    u32(&f, "expert_count", 8);
    refused(&f, ERR_UNSUPPORTED, "qwen3.expert_count", "");
}

static void types(void **state) {
    (void)state;
    struct file f;
    begin(&f, "qwen3");
    u32(&f, "attention.head_count", 4);
    u32(&f, "feed_forward_length", 128);
    tensor(&f, "token_embd.weight", Q6_K, 256, 10);
    tensor(&f, "blk.0.attn_q.weight", Q4_K, 256, 30);
    tensor(&f, "blk.0.attn_v.weight", Q6_K, 256, 2);
    tensor(&f, "blk.1.attn_q.weight", Q4_0, 64, 3);
    tensor(&f, "blk.2.attn_q.weight", F32, 64, 3);
    good(&f);
    assert_int_equal(f.h.embed_type, DT_Q6_K);
    assert_int_equal(f.h.layer_type[0], DT_Q5_K); // no less than the mix
    assert_int_equal(f.h.layer_type[1], DT_Q4_K); // as many bits
    assert_int_equal(f.h.layer_type[2], DT_F32);
    end(&f);
}

static void refuses(void **state) {
    (void)state;
    struct file f;
    begin(&f, "gpt-oss");
    usual(&f);
    refused(&f, ERR_UNSUPPORTED, "general.architecture gpt-oss", "qwen3moe");
    begin(&f, "llama");
    refused(&f, ERR_FORMAT, "llama.attention.head_count", "missing");
    begin(&f, "llama");
    u32(&f, "attention.head_count", 4);
    refused(&f, ERR_NOT_FOUND, "token_embd.weight", "");
    begin(&f, "llama");
    usual(&f);
    u32(&f, "attention.value_length", 8);
    refused(&f, ERR_UNSUPPORTED, "llama.attention.value_length", "8");
    begin(&f, "llama");
    usual(&f);
    f32(&f, "logit_scale", 0.5f);
    refused(&f, ERR_UNSUPPORTED, "llama.logit_scale", "0.5");
    begin(&f, "llama");
    u32s(&f, "attention.head_count", (uint32_t[]){4, 4, 2, 4}, 4);
    refused(&f, ERR_UNSUPPORTED, "llama.attention.head_count", "layers differ");
    begin(&f, "llama");
    u32s(&f, "attention.head_count", (uint32_t[]){4, 4}, 2);
    refused(&f, ERR_FORMAT, "llama.attention.head_count", "2 numbers");
    // By the name of the key, not by that of the field which it becomes.
    begin(&f, "llama");
    u32(&f, "attention.head_count", 4);
    tensor(&f, "token_embd.weight", F32, 64, 10);
    refused(&f, ERR_FORMAT, "llama.feed_forward_length", "missing");
    begin(&f, "llama");
    u32(&f, "attention.head_count", 4);
    u32(&f, "attention.head_count_kv", 3);
    u32(&f, "feed_forward_length", 128);
    tensor(&f, "token_embd.weight", F32, 64, 10);
    refused(&f, ERR_FORMAT, "llama.attention.head_count", "head_count_kv, 3");
    begin(&f, "llama");
    usual(&f);
    u32(&f, "attention.key_length", 15);
    u32(&f, "attention.value_length", 15);
    refused(&f, ERR_UNSUPPORTED, "llama.attention.key_length", "15");
    begin(&f, "llama");
    usual(&f);
    f32(&f, "general.sampling.top_p", 1.5f);
    refused(&f, ERR_FORMAT, "general.sampling.top_p", "1.5");
    begin(&f, "llama");
    usual(&f);
    f32(&f, "rope.freq_base_swa", 0.5f);
    refused(&f, ERR_FORMAT, "llama.rope.freq_base_swa", "0.5");
    begin(&f, "mistral3");
    usual(&f);
    tensor(&f, "blk.0.attn_q.bias", F32, 64, 0);
    refused(&f, ERR_UNSUPPORTED, "blk.0.attn_q.bias", "");
    begin(&f, "mistral3");
    usual(&f);
    tensor(&f, "blk.2.attn_v.bias", F32, 32, 0);
    refused(&f, ERR_UNSUPPORTED, "blk.2.attn_v.bias", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),   cmocka_unit_test(tokens),         cmocka_unit_test(windows),
        cmocka_unit_test(ropes),   cmocka_unit_test(experts),        cmocka_unit_test(types),
        cmocka_unit_test(refuses), cmocka_unit_test(parts_of_heads), cmocka_unit_test(all_tensors_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
