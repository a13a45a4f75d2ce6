#include "model/gguf_config.h"

#include "base/limits.h"
#include "model/family.h"
#include "model/gguf_keys.h"
#include "weights/gguf_names.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// How one architecture's settings are called in its folders, and what its files do not say.
static const struct profile {
    const char *arch, *hf;
    bool interleaved;      // rows of q and k lie in RoPE pairs
    bool reads_bias;       // the folder's attention_bias
    uint32_t window;       // where attention.sliding_window is missing
    uint32_t full_every;   // each such layer has no window; 0: all have one
    const char *n_experts; // NULL: no experts
    const char *expert_ffn;
    uint32_t gating;
} PROFILES[] = {
    {.arch = "llama", .hf = "LlamaForCausalLM", .interleaved = true, .reads_bias = true},
    {.arch = "mistral3", .hf = "Ministral3ForCausalLM", .interleaved = true},
    {.arch = "qwen2", .hf = "Qwen2ForCausalLM", .reads_bias = true},
    {.arch = "qwen3", .hf = "Qwen3ForCausalLM", .reads_bias = true},
    {.arch = "qwen3moe",
     .hf = "Qwen3MoeForCausalLM",
     .reads_bias = true,
     .n_experts = "num_experts",
     .expert_ffn = "moe_intermediate_size",
     .gating = GATING_SOFTMAX},
    {.arch = "phi3", .hf = "Phi3ForCausalLM"},
    {.arch = "olmo2", .hf = "Olmo3ForCausalLM", .reads_bias = true, .full_every = 4},
    {.arch = "smollm3", .hf = "SmolLM3ForCausalLM", .interleaved = true, .reads_bias = true},
    {.arch = "seed_oss", .hf = "SeedOssForCausalLM", .reads_bias = true},
    {.arch = "gemma2", .hf = "Gemma2ForCausalLM", .reads_bias = true, .window = 4096, .full_every = 2},
    {.arch = "gemma3", .hf = "Gemma3ForCausalLM", .reads_bias = true, .full_every = 6},
    {.arch = "glm4moe",
     .hf = "Glm4MoeForCausalLM",
     .reads_bias = true,
     .n_experts = "n_routed_experts",
     .expert_ffn = "moe_intermediate_size",
     .gating = GATING_SIGMOID},
    {.arch = "minimax-m2",
     .hf = "MiniMaxM2ForCausalLM",
     .n_experts = "num_local_experts",
     .expert_ffn = "intermediate_size",
     .gating = GATING_SIGMOID},
};
// Llama's architecture with experts, or with a window.
static const struct profile MIXTRAL = {.arch = "llama",
                                       .hf = "MixtralForCausalLM",
                                       .interleaved = true,
                                       .n_experts = "num_local_experts",
                                       .expert_ffn = "intermediate_size",
                                       .gating = GATING_SOFTMAX};
static const struct profile MISTRAL = {.arch = "llama", .hf = "MistralForCausalLM", .interleaved = true};

static bool is_arch(const struct gguf_keys *k, const char *arch) { return strcmp(k->arch, arch) == 0; }

static const struct profile *find_profile(struct gguf_keys *k) {
    struct gguf_string arch = {"", 0};
    k->rc = gguf_get_string(k->g, "general.architecture", &arch, k->e);
    if (k->rc) return NULL;
    const int shown = arch.len_bytes < sizeof k->arch ? (int)arch.len_bytes : (int)sizeof k->arch - 1;
    snprintf(k->arch, sizeof k->arch, "%.*s", shown, arch.text);
    for (size_t i = 0; i < sizeof PROFILES / sizeof *PROFILES; i++) {
        if (arch.len_bytes != strlen(k->arch) || !is_arch(k, PROFILES[i].arch)) continue;
        if (!is_arch(k, "llama")) return &PROFILES[i];
        if (gguf_keys_u32(k, "expert_count", 0, LIMIT_EXPERTS, 0)) return &MIXTRAL;
        return gguf_keys_u32(k, "attention.sliding_window", 0, INT32_MAX, 0) ? &MISTRAL : &PROFILES[i];
    }
    if (arch.len_bytes == 0)
        k->rc = err_set(k->e, ERR_FORMAT, "key general.architecture is missing");
    else
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "general.architecture %s is not computed; this build knows %s", k->arch,
                        gguf_names_known());
    return NULL;
}

static void set_u32(struct gguf_keys *k, const char *key, uint32_t v) { gguf_keys_set(k, k->o, key, json_integer(v)); }

static void set_bool(struct gguf_keys *k, const char *key, bool v) { gguf_keys_set(k, k->o, key, json_boolean(v)); }

static bool layer_has(const struct gguf_keys *k, uint32_t layer, const char *name) {
    char full[LIMIT_TENSOR_NAME];
    snprintf(full, sizeof full, "model.layers.%u.%s", layer, name);
    return tensors_find(k->t, full) != NULL;
}

// Settings of other models in the same architecture that would change the result if they were overlooked.
static void check_neutral(struct gguf_keys *k) {
    static const struct {
        const char *name;
        double neutral;
    } KEYS[] = {{"logit_scale", 1},           {"embedding_scale", 1},          {"residual_scale", 1},
                {"attention.scale", 0},       {"attention.clamp_kqv", 0},      {"attention.max_alibi_bias", 0},
                {"expert_shared_count", 0},   {"router_logit_softcapping", 0}, {"expert_group_count", 1},
                {"attention.value_length", 0}};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && !k->rc; i++) {
        double neutral = KEYS[i].neutral;
        if (is_arch(k, "glm4moe") && strncmp(KEYS[i].name, "expert_", 7) == 0) continue;
        if (strcmp(KEYS[i].name, "attention.value_length") == 0) neutral = k->head_dim;
        double v = gguf_keys_number(k, KEYS[i].name, -DBL_MAX, DBL_MAX, neutral);
        if (!k->rc && v != neutral && v != 0)
            k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.%s: %g is not computed", k->arch, KEYS[i].name, v);
    }
    if (!k->rc && !gguf_keys_bool(k, "attention.causal", true) && !k->rc)
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.attention.causal: false; a text is read forwards only", k->arch);
}

static void check_heads(struct gguf_keys *k, uint32_t heads, uint32_t kv_heads) {
    if (k->rc) return;
    if (k->head_dim < 2 || k->head_dim % 2 || k->head_dim > LIMIT_HEAD_DIM)
        k->rc = err_set(k->e, ERR_UNSUPPORTED,
                        "key %s.attention.%s: heads of %u values; an even number up to %d is supported", k->arch,
                        gguf_keys_find(k, "attention.key_length") ? "key_length" : "head_count", k->head_dim,
                        LIMIT_HEAD_DIM);
    else if (heads % kv_heads)
        k->rc = err_set(k->e, ERR_FORMAT, "key %s.attention.head_count: %u is no multiple of head_count_kv, %u",
                        k->arch, heads, kv_heads);
    else if (heads > LIMIT_HIDDEN / k->head_dim)
        k->rc = err_set(k->e, ERR_LIMIT, "key %s.attention.head_count: %u heads of %u values are over %d", k->arch,
                        heads, k->head_dim, LIMIT_HIDDEN);
}

static void put_shape(struct gguf_keys *k, const struct profile *p) {
    const struct tensor *embed = tensors_find(k->t, "model.embed_tokens.weight");
    const uint32_t hidden = gguf_keys_u32(k, "embedding_length", 1, LIMIT_HIDDEN, 0);
    const uint32_t heads = gguf_keys_layers_u32(k, "attention.head_count", 1, LIMIT_HIDDEN, 0);
    const double eps = gguf_keys_number(k, "attention.layer_norm_rms_epsilon", 0, 1, 0);
    const uint32_t context = gguf_keys_u32(k, "context_length", 1, LIMIT_CONTEXT, 0);
    const uint32_t ffn = gguf_keys_layers_u32(k, "feed_forward_length", 0, LIMIT_FFN, 0);
    if (k->rc) return;
    if (!hidden) k->rc = gguf_keys_missing(k, "embedding_length");
    if (!k->rc && !heads) k->rc = gguf_keys_missing(k, "attention.head_count");
    if (!k->rc && !context) k->rc = gguf_keys_missing(k, "context_length");
    if (!k->rc && !gguf_keys_find(k, "attention.layer_norm_rms_epsilon"))
        k->rc = gguf_keys_missing(k, "attention.layer_norm_rms_epsilon");
    if (!k->rc && (!embed || embed->n_dims != 2))
        k->rc = err_set(k->e, ERR_NOT_FOUND, "tensor token_embd.weight: not there, or no matrix");
    if (!k->rc && embed->dim[0] > LIMIT_VOCAB)
        k->rc = err_set(k->e, ERR_LIMIT, "tensor token_embd.weight: %llu rows; a vocabulary has at most %d",
                        (unsigned long long)embed->dim[0], LIMIT_VOCAB);
    if (!k->rc && !ffn && !p->n_experts) k->rc = gguf_keys_missing(k, "feed_forward_length");
    if (k->rc || !heads) return;
    const uint32_t kv_heads = gguf_keys_layers_u32(k, "attention.head_count_kv", 1, LIMIT_HIDDEN, heads);
    k->head_dim = gguf_keys_u32(k, "attention.key_length", 1, LIMIT_HEAD_DIM, hidden / heads);
    check_heads(k, heads, kv_heads);
    set_u32(k, "num_hidden_layers", k->n_layers);
    set_u32(k, "num_nextn_predict_layers", k->n_blocks - k->n_layers);
    set_u32(k, "hidden_size", hidden);
    set_u32(k, "num_attention_heads", heads);
    set_u32(k, "num_key_value_heads", kv_heads);
    set_u32(k, "head_dim", k->head_dim);
    if (ffn) set_u32(k, "intermediate_size", ffn);
    set_u32(k, "max_position_embeddings", context);
    set_u32(k, "vocab_size", (uint32_t)embed->dim[0]);
    gguf_keys_set(k, k->o, "rms_norm_eps", gguf_keys_real(eps));
    set_bool(k, "tie_word_embeddings", !tensors_find(k->t, "lm_head.weight"));
}

// ---- Types of matrices, for the accounts of machines that have not seen the file

struct mix {
    uint64_t values[DT_N];
};

// The type that most have; of block types the next one of which a value takes no less than the average.
static enum dtype type_of(const struct mix *m) {
    static const enum dtype STEPS[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q8_0};
    enum dtype most = DT_F32;
    double bytes = 0, values = 0;
    for (int i = 0; i < DT_N; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        if (m->values[i] > m->values[most]) most = (enum dtype)i;
        if (!info->is_block) continue;
        values += (double)m->values[i];
        bytes += (double)m->values[i] * info->block_bytes / info->block_values;
    }
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS && dtype_info(most)->is_block; i++) {
        const struct dtype_info *info = dtype_info(STEPS[i]);
        if (bytes <= values * info->block_bytes / info->block_values) return STEPS[i];
    }
    return most;
}

// Of the embedding, of each layer, of the output head.
static void put_types(struct gguf_keys *k) {
    struct mix *mix = calloc(k->n_layers + 2, sizeof *mix);
    json_t *list = json_array();
    if (!mix) k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
    for (uint32_t i = 0; mix && i < tensors_count(k->t); i++) {
        const struct tensor *t = tensors_at(k->t, i);
        const char *rest = NULL;
        uint32_t at;
        if (t->n_dims != 2) continue;
        const uint32_t layer = family_layer_number(t->name, "model.layers.", &rest);
        if (rest && layer < k->n_layers)
            at = layer + 1;
        else if (strcmp(t->name, "model.embed_tokens.weight") == 0)
            at = 0;
        else if (strcmp(t->name, "lm_head.weight") == 0)
            at = k->n_layers + 1;
        else
            continue;
        mix[at].values[t->type] += t->dim[0] * t->dim[1];
    }
    for (uint32_t i = 0; mix && i < k->n_layers + 2; i++)
        if (json_array_append_new(list, json_string(dtype_info(type_of(&mix[i]))->name)) && !k->rc)
            k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
    gguf_keys_set(k, k->o, "loom_types", list);
    free(mix);
}

// Blocks behind the last layer draft tokens; they are not computed.
static void read_layers(struct gguf_keys *k) {
    k->n_blocks = gguf_keys_u32(k, "block_count", 1, LIMIT_LAYERS, 0);
    const uint32_t draft = gguf_keys_u32(k, "nextn_predict_layers", 0, LIMIT_LAYERS, 0);
    if (k->rc) return;
    if (!k->n_blocks) k->rc = gguf_keys_missing(k, "block_count");
    if (!k->rc && draft >= k->n_blocks)
        k->rc = err_set(k->e, ERR_FORMAT, "key %s.nextn_predict_layers: %u of %u blocks", k->arch, draft, k->n_blocks);
    k->n_layers = k->n_blocks - draft;
}

// Whether layer i has a window: a list, a period of which the last layer has none, or the architecture's own.
static bool has_window(struct gguf_keys *k, const struct gguf_value *pattern, uint32_t full_every, uint32_t layer) {
    int64_t n = full_every;
    bool yes = false;
    if (pattern && pattern->type == GGUF_ARRAY && pattern->n_items <= layer) {
        if (!k->rc)
            k->rc =
                err_set(k->e, ERR_FORMAT,
                        "key %s.attention.sliding_window_pattern: %llu items; one for each of the %u layers is right",
                        k->arch, (unsigned long long)pattern->n_items, k->n_layers);
        return false;
    }
    if (pattern && pattern->type == GGUF_ARRAY) {
        bool good = gguf_item_bool(pattern, layer, &yes);
        if (!good && (good = gguf_item_integer(pattern, layer, &n))) yes = n != 0;
        if (!good && !k->rc)
            k->rc = err_set(k->e, ERR_FORMAT, "key %s.attention.sliding_window_pattern: item %u is no bool", k->arch,
                            layer);
        return yes;
    }
    if (pattern && (!gguf_item_integer(pattern, 0, &n) || n < 0 || n > LIMIT_LAYERS) && !k->rc)
        k->rc =
            err_set(k->e, ERR_FORMAT, "key %s.attention.sliding_window_pattern: neither a list nor a period", k->arch);
    return n <= 0 || (layer + 1) % n != 0;
}

static void put_windows(struct gguf_keys *k, const struct profile *p) {
    const struct gguf_value *pattern = gguf_keys_find(k, "attention.sliding_window_pattern");
    const uint32_t window = gguf_keys_u32(k, "attention.sliding_window", 0, INT32_MAX, p->window);
    gguf_keys_set(k, k->o, "sliding_window", window ? json_integer(window) : json_null());
    set_bool(k, "use_sliding_window", window > 0);
    if (!window && !p->full_every) return;
    json_t *types = json_array();
    for (uint32_t i = 0; i < k->n_layers; i++) {
        const bool sliding = window && has_window(k, pattern, p->full_every, i);
        if (json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention")) && !k->rc)
            k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
    }
    gguf_keys_set(k, k->o, "layer_types", types);
}

// Layers of a mixture that have a dense MLP all the same.
static void put_dense_layers(struct gguf_keys *k) {
    json_t *dense = json_array();
    for (uint32_t i = 0; i < k->n_layers; i++)
        if (layer_has(k, i, "mlp.gate_proj.weight") && json_array_append_new(dense, json_integer(i)) && !k->rc)
            k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
    gguf_keys_set(k, k->o, "mlp_only_layers", dense);
}

static void put_experts(struct gguf_keys *k, const struct profile *p) {
    if (!p->n_experts) {
        if (gguf_keys_u32(k, "expert_count", 0, UINT32_MAX, 0) && !k->rc)
            k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.expert_count: there are no experts in this architecture",
                            k->arch);
        return;
    }
    const uint32_t n = gguf_keys_u32(k, "expert_count", 1, LIMIT_EXPERTS, 0);
    const uint32_t used = gguf_keys_u32(k, "expert_used_count", 1, LIMIT_TOP_K, 0);
    const uint32_t gating = gguf_keys_u32(k, "expert_gating_func", 0, UINT32_MAX, p->gating);
    const uint32_t ffn = gguf_keys_layers_u32(k, "feed_forward_length", 0, LIMIT_FFN, 0);
    const uint32_t width = gguf_keys_layers_u32(k, "expert_feed_forward_length", 1, LIMIT_FFN, ffn);
    if (k->rc) return;
    if (!n) k->rc = gguf_keys_missing(k, "expert_count");
    if (!k->rc && !used) k->rc = gguf_keys_missing(k, "expert_used_count");
    if (!k->rc && used > n)
        k->rc = err_set(k->e, ERR_FORMAT, "key %s.expert_used_count: %u of %u experts", k->arch, used, n);
    if (!k->rc && !width)
        k->rc = gguf_keys_missing(k, is_arch(k, "llama") ? "feed_forward_length" : "expert_feed_forward_length");
    if (!k->rc && gating && gating != p->gating)
        k->rc =
            err_set(k->e, ERR_UNSUPPORTED, "key %s.expert_gating_func: %u; %u is computed", k->arch, gating, p->gating);
    set_u32(k, p->n_experts, n);
    set_u32(k, "num_experts_per_tok", used);
    if (width) set_u32(k, p->expert_ffn, width);
    const bool norm = gguf_keys_bool(k, "expert_weights_norm", true);
    const double scale = gguf_keys_number(k, "expert_weights_scale", 0, 1e6, 1);
    if (!k->rc && is_arch(k, "qwen3moe")) put_dense_layers(k);
    set_bool(k, "norm_topk_prob", norm);
    if (is_arch(k, "glm4moe")) {
        set_u32(k, "n_shared_experts", gguf_keys_u32(k, "expert_shared_count", 0, 64, 0));
        set_u32(k, "first_k_dense_replace", gguf_keys_u32(k, "leading_dense_block_count", 0, LIMIT_LAYERS, 0));
        const uint32_t groups = gguf_keys_u32(k, "expert_group_count", 0, LIMIT_EXPERTS, 1);
        const uint32_t best = gguf_keys_u32(k, "expert_group_used_count", 0, LIMIT_EXPERTS, 1);
        set_u32(k, "n_group", groups ? groups : 1);
        set_u32(k, "topk_group", best ? best : 1);
        gguf_keys_set(k, k->o, "routed_scaling_factor", gguf_keys_real(scale != 0 ? scale : 1));
    } else if (!k->rc && scale != 1 && scale != 0) {
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.expert_weights_scale: %g is not computed", k->arch, scale);
    }
}

// Whether any layer has it: that all do is for model_fit_tensors to see. *first: the first that has it.
static bool any_layer_has(const struct gguf_keys *k, const char *name, uint32_t *first) {
    for (uint32_t i = 0; i < k->n_layers; i++) {
        if (!layer_has(k, i, name)) continue;
        *first = i;
        return true;
    }
    return false;
}

// Biases and norms that a family may have or not: as the file has them.
static void put_optional(struct gguf_keys *k, const struct profile *p) {
    static const char *const QKV[] = {"q", "k", "v"};
    const bool out_apart = is_arch(k, "seed_oss") || is_arch(k, "glm4moe");
    uint32_t first = 0, at = 0;
    const bool out = any_layer_has(k, "self_attn.o_proj.bias", &first);
    bool bias = out && !out_apart;
    const char *which = "output";
    for (size_t i = 0; i < sizeof QKV / sizeof *QKV; i++) {
        char name[64];
        snprintf(name, sizeof name, "self_attn.%s_proj.bias", QKV[i]);
        if (!any_layer_has(k, name, &at)) continue;
        if (!bias) first = at;
        if (!bias) which = QKV[i];
        bias = true;
    }
    if (bias && !p->reads_bias && !k->rc)
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "tensor blk.%u.attn_%s.bias: a bias is not computed in a %s", first,
                        which, p->hf);
    if (!is_arch(k, "qwen2")) set_bool(k, "attention_bias", bias);
    if (is_arch(k, "seed_oss")) set_bool(k, "attention_out_bias", out);
    set_bool(k, "mlp_bias",
             any_layer_has(k, "mlp.gate_proj.bias", &at) || any_layer_has(k, "mlp.up_proj.bias", &at) ||
                 any_layer_has(k, "mlp.down_proj.bias", &at));
    set_bool(k, "use_qk_norm",
             any_layer_has(k, "self_attn.q_norm.weight", &at) || any_layer_has(k, "self_attn.k_norm.weight", &at));
    if (is_arch(k, "minimax-m2"))
        set_bool(k, "use_routing_bias", any_layer_has(k, "block_sparse_moe.e_score_correction_bias", &at));
    if (p->interleaved) set_bool(k, "loom_qk_interleaved", true);
    if (strncmp(k->arch, "gemma", 5) != 0) return;
    const double attn = gguf_keys_number(k, "attn_logit_softcapping", 0, 1e6, is_arch(k, "gemma2") ? 50 : 0);
    const double last = gguf_keys_number(k, "final_logit_softcapping", 0, 1e6, is_arch(k, "gemma2") ? 30 : 0);
    gguf_keys_set(k, k->o, "attn_logit_softcapping", attn > 0 ? gguf_keys_real(attn) : json_null());
    gguf_keys_set(k, k->o, "final_logit_softcapping", last > 0 ? gguf_keys_real(last) : json_null());
    set_bool(k, "loom_norm_has_one", true);
}

// ---- Tokens

// Files say one or two of the tokens that end an answer; the others of the published models are known by their text.
static bool ends_answer(const struct gguf_keys *k, const struct gguf_string *s) {
    static const char *const ENDS[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|end|>", "<end_of_turn>",
                                       "<|endoftext|>", "<|end_of_text|>", "<EOT>",      "</s>",    "<eos>",
                                       "[e~["};
    static const char *const GLM[] = {"<|user|>", "<|observation|>"};
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        if (s->len_bytes == strlen(ENDS[i]) && memcmp(s->text, ENDS[i], s->len_bytes) == 0) return true;
    for (size_t i = 0; i < sizeof GLM / sizeof *GLM && is_arch(k, "glm4moe"); i++)
        if (s->len_bytes == strlen(GLM[i]) && memcmp(s->text, GLM[i], s->len_bytes) == 0) return true;
    return false;
}

static void add_end(struct gguf_keys *k, json_t *list, uint32_t id) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)id) return;
    if (json_array_size(list) < LIMIT_STOP_IDS && json_array_append_new(list, json_integer(id)) && !k->rc)
        k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
}

// -1: none.
static int32_t special(struct gguf_keys *k, const char *key, uint32_t n_vocab) {
    int32_t id = -1;
    if (!k->rc) k->rc = gguf_get_id(k->g, key, &id, k->e);
    if (!k->rc && id >= 0 && (uint32_t)id >= n_vocab)
        k->rc = err_set(k->e, ERR_FORMAT, "key %s: %d; 0 to %u is right", key, id, n_vocab - 1);
    return id;
}

static void add_listed_ends(struct gguf_keys *k, json_t *list, const struct gguf_value *v, uint32_t n_vocab) {
    int64_t id;
    for (uint64_t i = 0; i < v->n_items && !k->rc; i++) {
        if (i == LIMIT_STOP_IDS || !gguf_item_integer(v, i, &id) || id < 0 || id >= n_vocab)
            k->rc = err_set(k->e, ERR_FORMAT, "key %s: item %llu; at most %d ids of 0 to %u are right", GGUF_END_TOKENS,
                            (unsigned long long)i, LIMIT_STOP_IDS, n_vocab - 1);
        else
            add_end(k, list, (uint32_t)id);
    }
}

static void put_tokens(struct gguf_keys *k) {
    static const char *const KEYS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    enum { NORMAL = 1 };
    const uint32_t n_vocab = (uint32_t)json_integer_value(json_object_get(k->o, "vocab_size"));
    const int32_t bos = special(k, "tokenizer.ggml.bos_token_id", n_vocab);
    json_t *ends = json_array();
    const struct gguf_value *all = gguf_find(k->g, GGUF_END_TOKENS);
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const int32_t id = special(k, KEYS[i], n_vocab);
        if (id >= 0 && !all) add_end(k, ends, (uint32_t)id);
    }
    if (all) add_listed_ends(k, ends, all, n_vocab);
    const struct gguf_value *tokens = gguf_find(k->g, "tokenizer.ggml.tokens");
    const struct gguf_value *types = gguf_find(k->g, "tokenizer.ggml.token_type");
    const uint8_t *at = tokens ? tokens->data : NULL;
    struct gguf_string s;
    for (uint32_t id = 0; !all && tokens && id < n_vocab && gguf_next_string(tokens, &at, &s); id++) {
        int64_t type = NORMAL;
        if (types && ends_answer(k, &s) && gguf_item_integer(types, id, &type) && type != NORMAL) add_end(k, ends, id);
    }
    if (bos >= 0) set_u32(k, "bos_token_id", (uint32_t)bos);
    gguf_keys_set(k, k->o, "eos_token_id", ends);
}

// NULL: the file recommends nothing.
static json_t *make_generation(struct gguf_keys *k) {
    static const struct {
        const char *key, *name;
        double lo, hi;
    } KEYS[] = {{"general.sampling.temp", "temperature", 0, 100},
                {"general.sampling.top_p", "top_p", 1e-6, 1},
                {"general.sampling.min_p", "min_p", 0, 1}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && !k->rc; i++) {
        const double v = gguf_keys_plain_number(k, KEYS[i].key, KEYS[i].lo, KEYS[i].hi, -1);
        if (v >= 0) gguf_keys_set(k, o, KEYS[i].name, gguf_keys_real(v));
    }
    const double top_k = gguf_keys_plain_number(k, "general.sampling.top_k", INT32_MIN, INT32_MAX, 0);
    if (top_k >= 1) gguf_keys_set(k, o, "top_k", json_integer((json_int_t)top_k));
    if (json_object_size(o)) return o;
    json_decref(o);
    return NULL;
}

static void make_config(struct gguf_keys *k) {
    const struct profile *p = find_profile(k);
    if (!p) return;
    gguf_keys_set(k, k->o, "architectures", json_pack("[s]", p->hf));
    read_layers(k);
    if (!k->rc) put_shape(k, p);
    if (k->rc) return;
    check_neutral(k);
    put_windows(k, p);
    put_experts(k, p);
    put_optional(k, p);
    gguf_keys_rope(k);
    put_tokens(k);
    put_types(k);
}

static void put_out(struct gguf_keys *k, json_t *o, char **text, size_t *bytes) {
    *text = k->rc ? NULL : json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(GGUF_KEYS_DIGITS));
    *bytes = *text ? strlen(*text) : 0;
    if (!*text && !k->rc) k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
}

int gguf_config_make(const struct tensors *t, char **config, size_t *config_bytes, char **generation,
                     size_t *generation_bytes, struct err *e) {
    ASSERT(tensors_gguf(t));
    struct gguf_keys k = {.t = t, .g = tensors_gguf(t), .o = json_object(), .e = e};
    *config = *generation = NULL;
    *config_bytes = *generation_bytes = 0;
    make_config(&k);
    json_t *g = k.rc ? NULL : make_generation(&k);
    put_out(&k, k.o, config, config_bytes);
    if (g) put_out(&k, g, generation, generation_bytes);
    json_decref(k.o);
    json_decref(g);
    if (!k.rc) return ERR_OK;
    free(*config);
    free(*generation);
    *config = *generation = NULL;
    return k.rc;
}
