// Families whose layers are a router and experts.
#include "model/config.h"

#include <string.h>

static int parse_dense_layers(const json_t *config, struct hparams *h, struct err *e) {
    uint32_t step = 1;
    int rc = fields_u32(CONFIG_FILE, config, "decoder_sparse_step", 1, LIMIT_LAYERS, &step, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < h->n_layers; i++) h->dense_layer[i] = (i + 1) % step != 0;
    const json_t *only = fields_get(config, "mlp_only_layers");
    if (only && !json_is_array(only)) return err_set(e, ERR_FORMAT, "%s: mlp_only_layers is not an array", CONFIG_FILE);
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *v = json_array_get(only, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)h->n_layers)
            return err_set(e, ERR_FORMAT, "%s: mlp_only_layers[%zu] is not a layer", CONFIG_FILE, i);
        h->dense_layer[json_integer_value(v)] = true;
    }
    return ERR_OK;
}

// The attention of Qwen3.
static int parse_qwen3_moe(const json_t *config, struct hparams *h, struct err *e) {
    h->qk_norm = QK_NORM_HEAD;
    int rc = config_experts(config, h, "moe_intermediate_size", e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "norm_topk_prob", &h->norm_topk, e);
    if (!rc) rc = config_attention_bias(config, h, false, true, e);
    if (!rc) rc = parse_dense_layers(config, h, e);
    return rc ? rc : config_windows_from(config, h, e);
}

static int parse_mixtral(const json_t *config, struct hparams *h, struct err *e) {
    h->norm_topk = true;
    int rc = config_experts(config, h, "intermediate_size", e);
    return rc ? rc : config_windows(config, h, CONFIG_ALL_LAYERS, e);
}

// Experts are chosen within the best groups; a group is rated by its two best.
static int parse_groups(const json_t *config, struct hparams *h, struct err *e) {
    int rc = fields_u32(CONFIG_FILE, config, "n_group", 1, h->n_experts, &h->n_groups, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "topk_group", 1, h->n_groups, &h->top_groups, e);
    if (rc) return rc;
    uint32_t size = h->n_experts / h->n_groups;
    if (h->n_experts % h->n_groups || (h->n_groups > 1 && size < 2) || h->top_k > size * h->top_groups)
        return err_set(e, ERR_FORMAT, "%s: n_group %u and topk_group %u do not fit %u experts, %u of a token",
                       CONFIG_FILE, h->n_groups, h->top_groups, h->n_experts, h->top_k);
    return ERR_OK;
}

static int parse_shared(const json_t *config, struct hparams *h, struct err *e) {
    uint32_t n = 1;
    int rc = fields_u32(CONFIG_FILE, config, "n_shared_experts", 0, 64, &n, e);
    if (!rc && n && h->expert_ffn > LIMIT_FFN / n)
        rc = err_set(e, ERR_LIMIT, "%s: n_shared_experts * moe_intermediate_size is over %d", CONFIG_FILE, LIMIT_FFN);
    h->shared_ffn = rc ? 0 : n * h->expert_ffn;
    return rc;
}

static int parse_glm4_moe(const json_t *config, struct hparams *h, struct err *e) {
    bool qk_norm = false;
    uint32_t first = 1;
    double scale = 1;
    h->router = ROUTER_SIGMOID;
    h->router_bias = h->norm_topk = true;
    int rc = config_attention_bias(config, h, false, false, e);
    if (!rc) rc = config_experts(config, h, "moe_intermediate_size", e);
    if (!rc) rc = parse_groups(config, h, e);
    if (!rc) rc = parse_shared(config, h, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "use_qk_norm", &qk_norm, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "norm_topk_prob", &h->norm_topk, e);
    if (!rc) rc = fields_number(CONFIG_FILE, config, "routed_scaling_factor", 1e-6, 1e6, &scale, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "first_k_dense_replace", 0, LIMIT_LAYERS, &first, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "num_nextn_predict_layers", 0, 64, &h->n_ignored_layers, e);
    if (rc) return rc;
    h->qk_norm = qk_norm ? QK_NORM_HEAD : QK_NORM_NONE;
    h->routed_scale = (float)scale;
    for (uint32_t i = 0; i < h->n_layers && i < first; i++) h->dense_layer[i] = true;
    return ERR_OK;
}

// Settings of which the published models have one value only.
static int check_minimax(const json_t *config, struct err *e) {
    const char *scoring = "sigmoid", *norm = "per_layer";
    uint32_t shared = 0;
    int rc = fields_string(CONFIG_FILE, config, "scoring_func", &scoring, e);
    if (!rc) rc = fields_string(CONFIG_FILE, config, "qk_norm_type", &norm, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "shared_intermediate_size", 0, LIMIT_FFN, &shared, e);
    if (rc) return rc;
    if (strcmp(scoring, "sigmoid") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: scoring_func %.64s; sigmoid is supported", CONFIG_FILE, scoring);
    if (strcmp(norm, "per_layer") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: qk_norm_type %.64s; per_layer is supported", CONFIG_FILE, norm);
    if (shared)
        return err_set(e, ERR_UNSUPPORTED, "%s: shared_intermediate_size %u; 0 is supported", CONFIG_FILE, shared);
    const json_t *kinds = fields_get(config, "attn_type_list");
    for (size_t i = 0; i < json_array_size(kinds); i++)
        if (json_integer_value(json_array_get(kinds, i)) != 1)
            return err_set(e, ERR_UNSUPPORTED, "%s: attn_type_list[%zu] is not 1, full attention", CONFIG_FILE, i);
    return ERR_OK;
}

static int parse_minimax_m2(const json_t *config, struct hparams *h, struct err *e) {
    bool qk_norm = true;
    h->router = ROUTER_SIGMOID;
    h->router_bias = h->norm_topk = true;
    int rc = check_minimax(config, e);
    if (!rc) rc = config_experts(config, h, "intermediate_size", e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "use_qk_norm", &qk_norm, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "use_routing_bias", &h->router_bias, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "num_mtp_modules", 0, 64, &h->n_ignored_layers, e);
    h->qk_norm = qk_norm ? QK_NORM_WIDE : QK_NORM_NONE;
    return rc;
}

const struct family family_qwen3_moe = {
    .name = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM", .parse = parse_qwen3_moe, .moe = &family_moe_names};
const struct family family_mixtral = {.name = "mixtral",
                                      .architecture = "MixtralForCausalLM",
                                      .defaults = "{\"rms_norm_eps\": 1e-5, \"rope_theta\": 1e6}",
                                      .parse = parse_mixtral,
                                      .moe = &family_block_sparse_names};
const struct family family_glm4_moe = {.name = "glm4_moe",
                                       .architecture = "Glm4MoeForCausalLM",
                                       .defaults = "{\"rms_norm_eps\": 1e-5, \"partial_rotary_factor\": 0.5}",
                                       .parse = parse_glm4_moe,
                                       .moe = &family_moe_names};
const struct family family_minimax_m2 = {.name = "minimax_m2",
                                         .architecture = "MiniMaxM2ForCausalLM",
                                         .defaults = "{\"rope_theta\": 5e6}",
                                         .parse = parse_minimax_m2,
                                         .moe = &family_block_sparse_names};
