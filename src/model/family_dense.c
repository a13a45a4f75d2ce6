// Families of dense layers. What each reads beyond the common fields, in the order of its reference implementation.
#include "model/config.h"
#include "model/rope.h"

static int parse_llama(const json_t *config, struct hparams *h, struct err *e) {
    int rc = config_attention_bias(config, h, false, true, e);
    return rc ? rc : fields_bool(CONFIG_FILE, config, "mlp_bias", &h->bias_mlp, e);
}

static int parse_qwen2(const json_t *config, struct hparams *h, struct err *e) {
    h->bias_q = h->bias_k = h->bias_v = true;
    return config_windows_from(config, h, e);
}

static int parse_qwen3(const json_t *config, struct hparams *h, struct err *e) {
    h->qk_norm = QK_NORM_HEAD;
    int rc = config_attention_bias(config, h, false, true, e);
    return rc ? rc : config_windows_from(config, h, e);
}

static int parse_mistral(const json_t *config, struct hparams *h, struct err *e) {
    return config_windows(config, h, CONFIG_ALL_LAYERS, e);
}

// Queries far out in the text grow, so that they can pick a key among more of them.
static int parse_ministral3(const json_t *config, struct hparams *h, struct err *e) {
    const json_t *o = rope_object(config);
    double beta = 0, original = 0;
    int rc = config_windows(config, h, CONFIG_ALL_LAYERS, e);
    if (!rc) rc = fields_number(CONFIG_FILE, o, "llama_4_scaling_beta", 0, 100, &beta, e);
    if (!rc) rc = rope_original_context(config, o, h, &original, e);
    h->q_beta = (float)beta;
    h->q_original = (uint32_t)original;
    return rc;
}

// A window in some of them only; norms after attention and MLP instead of before.
static int parse_olmo3(const json_t *config, struct hparams *h, struct err *e) {
    h->norms = NORM_POST;
    h->qk_norm = QK_NORM_WIDE;
    int rc = config_attention_bias(config, h, false, true, e);
    return rc ? rc : config_windows(config, h, 4, e);
}

// no_rope_layers has a 0 for each layer without RoPE; else it is each no_rope_layer_interval-th.
static int parse_no_rope(const json_t *config, struct hparams *h, struct err *e) {
    const json_t *list = fields_get(config, "no_rope_layers");
    uint32_t interval = 4;
    int rc = fields_u32(CONFIG_FILE, config, "no_rope_layer_interval", 1, LIMIT_LAYERS, &interval, e);
    if (rc) return rc;
    if (list && json_array_size(list) != h->n_layers)
        return err_set(e, ERR_FORMAT, "%s: no_rope_layers is not a list of %u numbers", CONFIG_FILE, h->n_layers);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const json_t *v = json_array_get(list, i);
        if (list && !json_is_integer(v))
            return err_set(e, ERR_FORMAT, "%s: no_rope_layers[%u] is neither 0 nor 1", CONFIG_FILE, i);
        bool has_rope = list ? json_integer_value(v) != 0 : (i + 1) % interval != 0;
        h->rope_of[i] = has_rope ? 0 : ROPE_NONE;
    }
    return ERR_OK;
}

// Where layer_types does not say it, the layers without RoPE are those with a window.
static int parse_smollm3(const json_t *config, struct hparams *h, struct err *e) {
    bool use = false;
    int rc = parse_llama(config, h, e);
    if (!rc) rc = parse_no_rope(config, h, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "use_sliding_window", &use, e);
    if (rc || !use) return rc;
    rc = config_windows(config, h, CONFIG_ALL_LAYERS, e);
    for (uint32_t i = 0; i < h->n_layers && !fields_get(config, "layer_types"); i++)
        h->window_layer[i] &= h->rope_of[i] == ROPE_NONE;
    return rc;
}

static int parse_seed_oss(const json_t *config, struct hparams *h, struct err *e) {
    int rc = config_attention_bias(config, h, true, false, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "attention_out_bias", &h->bias_o, e);
    return rc ? rc : fields_bool(CONFIG_FILE, config, "mlp_bias", &h->bias_mlp, e);
}

const struct family family_llama = {.name = "llama", .architecture = "LlamaForCausalLM", .parse = parse_llama};
const struct family family_qwen2 = {.name = "qwen2",
                                    .architecture = "Qwen2ForCausalLM",
                                    .defaults = "{\"max_window_layers\": 28}",
                                    .parse = parse_qwen2};
const struct family family_qwen3 = {.name = "qwen3",
                                    .architecture = "Qwen3ForCausalLM",
                                    .defaults = "{\"max_window_layers\": 28}",
                                    .parse = parse_qwen3};
const struct family family_mistral = {.name = "mistral", .architecture = "MistralForCausalLM", .parse = parse_mistral};
const struct family family_ministral3 = {.name = "ministral3",
                                         .architecture = "Ministral3ForCausalLM",
                                         .defaults = "{\"rope_theta\": 1e6}",
                                         .parse = parse_ministral3};
const struct family family_phi3 = {.name = "phi3",
                                   .architecture = "Phi3ForCausalLM",
                                   .defaults = "{\"rms_norm_eps\": 1e-5}",
                                   .parse = parse_mistral,
                                   .is_fused = true};
const struct family family_olmo3 = {.name = "olmo3",
                                    .architecture = "Olmo3ForCausalLM",
                                    .defaults =
                                        "{\"rms_norm_eps\": 1e-5, \"rope_theta\": 5e5, \"sliding_window\": 4096}",
                                    .parse = parse_olmo3,
                                    .window_rope = WINDOW_ROPE_UNSCALED};
const struct family family_smollm3 = {.name = "smollm3",
                                      .architecture = "SmolLM3ForCausalLM",
                                      .defaults = "{\"rope_theta\": 2e6, \"tie_word_embeddings\": true}",
                                      .parse = parse_smollm3};
const struct family family_seed_oss = {
    .name = "seed_oss", .architecture = "SeedOssForCausalLM", .parse = parse_seed_oss};
