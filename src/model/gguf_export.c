#include "model/gguf_export.h"

#include "base/text.h"
#include "model/family.h"
#include "model/fields.h"
#include "model/gguf_config.h"
#include "model/rope.h"
#include "weights/gguf_names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char FILE_NAME[] = "config.json";
enum { QUANTIZATION_VERSION = 2, NO_ROPE_EVERY = 4 };

// Keys on their way into a writer; after the first failure nothing more is added.
struct keys {
    struct gguf_writer *w;
    const char *arch;
    int rc;
};

static const char *key_of(const struct keys *k, const char *name, char *out, size_t size) {
    snprintf(out, size, "%s.%s", k->arch, name);
    return out;
}

static void put_u32(struct keys *k, const char *name, uint32_t v) {
    char key[128];
    if (!k->rc) k->rc = gguf_put_u32(k->w, key_of(k, name, key, sizeof key), v);
}

static void put_f32(struct keys *k, const char *name, double v) {
    char key[128];
    if (!k->rc) k->rc = gguf_put_f32(k->w, key_of(k, name, key, sizeof key), (float)v);
}

static void put_bool(struct keys *k, const char *name, bool v) {
    char key[128];
    if (!k->rc) k->rc = gguf_put_bool(k->w, key_of(k, name, key, sizeof key), v);
}

static void put_text(struct keys *k, const char *name, const char *v) {
    char key[128];
    if (!k->rc) k->rc = gguf_put_string(k->w, key_of(k, name, key, sizeof key), v, strlen(v));
}

// The object of config.json that describes the text model, with the family's defaults; the caller's to decref.
static json_t *text_object(const char *config, size_t len, const struct hparams *h) {
    json_t *root = json_loadb(config, len, 0, NULL), *inner = json_object_get(root, "text_config");
    const char *outer = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (json_is_object(inner) && outer && strcmp(outer, h->family->architecture) != 0) {
        json_incref(inner);
        json_decref(root);
        root = inner;
    }
    json_t *defaults = h->family->defaults ? json_loads(h->family->defaults, 0, NULL) : NULL;
    if (root && defaults && json_object_update_missing(root, defaults)) {
        json_decref(root);
        root = NULL;
    }
    json_decref(defaults);
    return root;
}

// A number of the first object that has it.
static double number_of(const json_t *a, const json_t *b, const char *key, double fallback) {
    const json_t *v = fields_get(a, key);
    if (!v) v = fields_get(b, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

// The RoPE parameters of the layers without a window, and of those with one (NULL: not told apart).
static void rope_objects(const json_t *text, const json_t **full, const json_t **window) {
    const json_t *all = rope_object(text);
    *window = fields_get(all, "sliding_attention");
    *full = fields_get(all, "full_attention");
    if (!*full && !*window) *full = all;
}

static const char *rope_type(const json_t *o) {
    const char *type = json_string_value(fields_get(o, "rope_type"));
    if (!type) type = json_string_value(fields_get(o, "type"));
    return type ? type : "default";
}

static bool is_longrope(const char *type) { return strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0; }

static void put_yarn(struct keys *k, const json_t *o, const struct hparams *h) {
    static const char *const same[][2] = {{"attention_factor", "rope.scaling.yarn_attn_factor"},
                                          {"beta_fast", "rope.scaling.yarn_beta_fast"},
                                          {"beta_slow", "rope.scaling.yarn_beta_slow"},
                                          {"mscale_all_dim", "rope.scaling.yarn_log_multiplier"}};
    put_text(k, "rope.scaling.type", "yarn");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const json_t *v = fields_get(o, same[i][0]);
        if (json_is_number(v)) put_f32(k, same[i][1], json_number_value(v));
    }
    if (h->q_beta != 0) put_f32(k, "attention.temperature_scale", h->q_beta);
}

static void put_rope(struct keys *k, const json_t *text, const struct hparams *h) {
    const json_t *full, *window;
    rope_objects(text, &full, &window);
    const char *type = rope_type(full);
    const double theta = number_of(full, text, "rope_theta", 10000);
    double original = number_of(full, text, "original_max_position_embeddings", h->max_context);
    put_u32(k, "rope.dimension_count", 2 * h->rope[0].n_freq);
    put_f32(k, "rope.freq_base", theta);
    if (window)
        put_f32(k, "rope.freq_base_swa", number_of(window, text, "rope_theta", 10000));
    else if (h->rope[1].n_freq)
        put_f32(k, "rope.freq_base_swa",
                h->family->window_rope == WINDOW_ROPE_LOCAL ? number_of(text, NULL, "rope_local_base_freq", 10000)
                                                            : theta);
    bool linear = strcmp(type, "linear") == 0, yarn = strcmp(type, "yarn") == 0, longrope = is_longrope(type);
    if (linear || yarn) put_f32(k, "rope.scaling.factor", number_of(full, NULL, "factor", h->max_context / original));
    if (linear) put_text(k, "rope.scaling.type", "linear");
    if (yarn) put_yarn(k, full, h);
    if (yarn || longrope) put_u32(k, "rope.scaling.original_context_length", (uint32_t)original);
    if (longrope) put_text(k, "rope.scaling.type", "longrope");
    if (longrope) put_f32(k, "rope.scaling.attn_factor", h->rope_long.factor);
}

static void put_window(struct keys *k, const struct hparams *h) {
    bool mixed = false;
    for (uint32_t i = 1; i < h->n_layers; i++) mixed |= h->window_layer[i] != h->window_layer[0];
    // Phi-4 is told from Phi-3 by a window of 0.
    if (h->window || strcmp(k->arch, "phi3") == 0) put_u32(k, "attention.sliding_window", h->window);
    if (!h->window || !mixed) return;
    char key[128];
    uint8_t list[LIMIT_LAYERS];
    for (uint32_t i = 0; i < h->n_layers; i++) list[i] = h->window_layer[i];
    if (!k->rc)
        k->rc = gguf_put_array(k->w, key_of(k, "attention.sliding_window_pattern", key, sizeof key), GGUF_BOOL, list,
                               h->n_layers);
}

static void put_experts(struct keys *k, const struct hparams *h) {
    uint32_t dense = 0;
    if (!h->n_experts) return;
    while (dense < h->n_layers && h->dense_layer[dense]) dense++;
    put_u32(k, "expert_count", h->n_experts);
    put_u32(k, "expert_used_count", h->top_k);
    put_bool(k, "expert_weights_norm", h->norm_topk);
    put_u32(k, "expert_gating_func", h->router == ROUTER_SIGMOID ? GATING_SIGMOID : GATING_SOFTMAX);
    // Mixtral's is feed_forward_length.
    if (strcmp(k->arch, "llama") != 0) put_u32(k, "expert_feed_forward_length", h->expert_ffn);
    if (h->routed_scale != 1) put_f32(k, "expert_weights_scale", h->routed_scale);
    if (dense) put_u32(k, "leading_dense_block_count", dense);
    if (strcmp(k->arch, "glm4moe") == 0) {
        put_u32(k, "expert_shared_count", h->shared_ffn / h->expert_ffn);
        put_u32(k, "expert_group_count", h->n_groups);
        put_u32(k, "expert_group_used_count", h->top_groups);
    }
}

static void put_sampling(struct keys *k, const struct gen_defaults *g) {
    struct keys general = {k->w, "general.sampling", k->rc};
    if (g->temperature != 1) put_f32(&general, "temp", g->temperature);
    if (g->top_k) put_u32(&general, "top_k", (uint32_t)g->top_k);
    if (g->top_p != 1) put_f32(&general, "top_p", g->top_p);
    if (g->min_p != 0) put_f32(&general, "min_p", g->min_p);
    k->rc = general.rc;
}

// What readers of the format take for granted where it has no key.
static int check_silent(const char *arch, const struct hparams *h, struct err *e) {
    const bool gemma2 = strcmp(arch, "gemma2") == 0, gemma = gemma2 || strcmp(arch, "gemma3") == 0;
    if (gemma) {
        const uint32_t scalar = h->n_layers == (gemma2 ? 46u : 62u) ? h->hidden / h->n_heads : h->head_dim;
        const float want = scalar == h->head_dim ? 0 : (float)(1 / sqrt(scalar));
        if (h->head_scale != want)
            return err_set(e, ERR_UNSUPPORTED, "%s: query_pre_attn_scalar: GGUF has no key for it, and readers take %u",
                           FILE_NAME, scalar);
    }
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const bool none = strcmp(arch, "smollm3") == 0 && (i + 1) % NO_ROPE_EVERY == 0;
        if ((h->rope_of[i] == ROPE_NONE) != none)
            return err_set(e, ERR_UNSUPPORTED,
                           "%s: layers without RoPE (no_rope_layers, or null in rope_parameters): GGUF has no key for "
                           "them; layer %u %s RoPE there",
                           FILE_NAME, i, none ? "has no" : "has");
    }
    return ERR_OK;
}

static void put_shape(struct keys *k, const struct hparams *h) {
    put_u32(k, "vocab_size", h->n_vocab);
    put_u32(k, "context_length", h->max_context);
    put_u32(k, "embedding_length", h->hidden);
    put_u32(k, "block_count", h->n_layers);
    put_u32(k, "feed_forward_length", h->ffn ? h->ffn : h->expert_ffn);
    put_u32(k, "attention.head_count", h->n_heads);
    put_u32(k, "attention.head_count_kv", h->n_kv_heads);
    put_u32(k, "attention.key_length", h->head_dim);
    put_u32(k, "attention.value_length", h->head_dim);
    put_f32(k, "attention.layer_norm_rms_epsilon", h->rms_eps);
    if (h->attn_softcap != 0) put_f32(k, "attn_logit_softcapping", h->attn_softcap);
    if (h->final_softcap != 0) put_f32(k, "final_logit_softcapping", h->final_softcap);
}

const char *gguf_export_arch(const struct hparams *h) { return gguf_names_arch(h->family->architecture); }

int gguf_export_config(const char *config, size_t config_bytes, const struct hparams *h, const struct gen_defaults *g,
                       const char *name, struct gguf_writer *w, struct err *e) {
    const char *arch = gguf_export_arch(h);
    if (!arch)
        return err_set(e, ERR_UNSUPPORTED, "%s: GGUF has no architecture for %s", FILE_NAME, h->family->architecture);
    int rc = check_silent(arch, h, e);
    if (rc) return rc;
    json_t *text = text_object(config, config_bytes, h);
    if (!text) return err_set(e, ERR_NOMEM, "%s: no memory", FILE_NAME);
    struct keys general = {w, "general", 0};
    put_text(&general, "architecture", arch);
    put_text(&general, "type", "model");
    put_text(&general, "name", name);
    put_u32(&general, "quantization_version", QUANTIZATION_VERSION);
    struct keys k = {w, arch, general.rc};
    put_sampling(&k, g);
    put_shape(&k, h);
    put_window(&k, h);
    put_rope(&k, text, h);
    put_experts(&k, h);
    json_decref(text);
    return k.rc ? err_set(e, k.rc, "no room for the metadata") : ERR_OK;
}

// ---- Divisors of the frequencies

static uint32_t copy_list(const json_t *list, float *values) {
    uint32_t n = (uint32_t)json_array_size(list);
    if (n > LIMIT_HEAD_DIM / 2) return 0;
    for (uint32_t i = 0; i < n; i++) values[i] = (float)json_number_value(json_array_get(list, i));
    return n;
}

// By the rule of Llama 3: long waves are slowed down, short ones stay, between the two it goes smoothly.
static uint32_t llama3_factors(const json_t *text, const json_t *o, const struct hparams *h, float *values) {
    const double factor = number_of(o, NULL, "factor", 8), low = number_of(o, NULL, "low_freq_factor", 1),
                 high = number_of(o, NULL, "high_freq_factor", 4), theta = number_of(o, text, "rope_theta", 10000),
                 context = number_of(o, text, "original_max_position_embeddings", h->max_context);
    const uint32_t n = h->rope[0].n_freq;
    for (uint32_t i = 0; i < n; i++) {
        double turns = context * pow(theta, -(double)i / n) / (2 * 0x1.921fb54442d18p+1);
        double smooth = (turns - low) / (high - low);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        values[i] = (float)(1 / ((1 - smooth) / factor + smooth));
    }
    return n;
}

bool gguf_export_factors(const char *config, size_t config_bytes, const struct hparams *h, uint32_t i,
                         const char **gguf_name, float *values, uint32_t *n) {
    json_t *text = text_object(config, config_bytes, h);
    const json_t *full, *window;
    *n = 0;
    if (!text) return false;
    rope_objects(text, &full, &window);
    const char *type = rope_type(full);
    if (i == 0 && strcmp(type, "llama3") == 0) {
        *gguf_name = "rope_freqs.weight";
        *n = llama3_factors(text, full, h, values);
    } else if (i < 2 && is_longrope(type)) {
        *gguf_name = i ? "rope_factors_short.weight" : "rope_factors_long.weight";
        *n = copy_list(fields_get(full, i ? "short_factor" : "long_factor"), values);
    }
    json_decref(text);
    return *n > 0;
}

// ---- Rows

static bool interleaves(const struct hparams *h) {
    static const char *const arches[] = {"llama", "mistral3", "smollm3"};
    const char *arch = gguf_export_arch(h);
    for (size_t i = 0; arch && i < sizeof arches / sizeof *arches; i++)
        if (strcmp(arch, arches[i]) == 0) return true;
    return false;
}

uint64_t gguf_export_row(const struct hparams *h, const char *hf_name, uint64_t row) {
    static const char *const names[] = {"q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"};
    bool is_qk = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is_qk |= text_ends(hf_name, names[i]);
    if (!is_qk || !interleaves(h)) return row;
    const uint64_t at = row % h->head_dim;
    return row - at + at / 2 + (at & 1 ? h->head_dim / 2 : 0);
}

bool gguf_export_adds_one(const struct hparams *h, const char *hf_name) {
    return h->norm_plus_one && text_ends(hf_name, "norm.weight");
}
