// What config.json says layer by layer or about a whole group of matrices.
#include "model/config.h"

#include <string.h>

static int layer_types(const json_t *types, struct hparams *h, struct err *e) {
    if (!json_is_array(types) || json_array_size(types) != h->n_layers)
        return err_set(e, ERR_FORMAT, "%s: layer_types is not a list of %u names", CONFIG_FILE, h->n_layers);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, i));
        bool window = s && strcmp(s, "sliding_attention") == 0;
        if (!window && (!s || strcmp(s, "full_attention") != 0))
            return err_set(e, s ? ERR_UNSUPPORTED : ERR_FORMAT, "%s: layer_types[%u] is %.64s", CONFIG_FILE, i,
                           s ? s : "no string");
        h->window_layer[i] = window;
    }
    return ERR_OK;
}

int config_windows(const json_t *config, struct hparams *h, uint32_t full_every, struct err *e) {
    int rc = fields_u32(CONFIG_FILE, config, "sliding_window", 1, 1u << 31, &h->window, e);
    if (h->window >= LIMIT_CONTEXT) h->window = 0; // no text is that long; but the layer's kind may decide on its RoPE
    const json_t *types = fields_get(config, "layer_types");
    if (rc) return rc;
    if (types) return layer_types(types, h, e);
    for (uint32_t i = 0; i < h->n_layers; i++)
        h->window_layer[i] = full_every == CONFIG_ALL_LAYERS ? h->window > 0 : (i + 1) % full_every != 0;
    return ERR_OK;
}

// A family of experts has no first layer with a window: all have one.
int config_windows_from(const json_t *config, struct hparams *h, struct err *e) {
    bool use = false;
    uint32_t from = h->n_experts ? 0 : h->n_layers;
    int rc = fields_bool(CONFIG_FILE, config, "use_sliding_window", &use, e);
    if (rc || !use) return rc;
    rc = config_windows(config, h, CONFIG_ALL_LAYERS, e);
    if (rc || fields_get(config, "layer_types")) return rc;
    if (!h->n_experts) rc = fields_u32(CONFIG_FILE, config, "max_window_layers", 0, 1u << 31, &from, e);
    for (uint32_t i = 0; i < h->n_layers && i < from; i++) h->window_layer[i] = false;
    return rc;
}

int config_attention_bias(const json_t *config, struct hparams *h, bool fallback, bool with_o, struct err *e) {
    bool bias = fallback;
    int rc = fields_bool(CONFIG_FILE, config, "attention_bias", &bias, e);
    h->bias_q = h->bias_k = h->bias_v = bias;
    h->bias_o = bias && with_o;
    return rc;
}

int config_experts(const json_t *config, struct hparams *h, const char *ffn_key, struct err *e) {
    static const char *const COUNT[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    int rc = ERR_OK;
    for (size_t i = 0; i < sizeof COUNT / sizeof *COUNT && !rc; i++)
        rc = fields_u32(CONFIG_FILE, config, COUNT[i], 1, LIMIT_EXPERTS, &h->n_experts, e);
    if (!rc && !h->n_experts) rc = err_set(e, ERR_FORMAT, "%s: num_experts is missing", CONFIG_FILE);
    uint32_t most = h->n_experts < LIMIT_TOP_K ? h->n_experts : LIMIT_TOP_K;
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "num_experts_per_tok", 1, most, &h->top_k, e);
    if (!rc && !h->top_k) rc = err_set(e, ERR_FORMAT, "%s: num_experts_per_tok is missing", CONFIG_FILE);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, ffn_key, 1, LIMIT_FFN, &h->expert_ffn, e);
    if (!rc && !h->expert_ffn) rc = err_set(e, ERR_FORMAT, "%s: %s is missing", CONFIG_FILE, ffn_key);
    return rc;
}

// Whether the path names the module or one that holds it, or the module's last parts do: "mlp", "mlp.gate", "q_proj".
static bool names_module(const char *path, const char *module) {
    size_t n = strlen(path);
    for (const char *at = module; n && (at = strstr(at, path)) != NULL; at++)
        if ((at == module || at[-1] == '.') && (at[n] == 0 || at[n] == '.')) return true;
    return false;
}

// Bits of a layer's matrices that the path names; all of them if it is empty.
static uint16_t matrices_of(const struct family *f, const char *path) {
    uint32_t bits = 0;
    char module[96];
    for (uint32_t i = 0; i < MAT_ROUTER + EXP_N; i++) {
        enum tensor_place place = i < MAT_ROUTER ? PLACE_MATRIX : PLACE_EXPERT;
        uint32_t which = i < MAT_ROUTER ? i : i - MAT_ROUTER;
        if (place == PLACE_EXPERT && !f->moe) break;
        family_matrix_name(f, place, which, module, sizeof module);
        if (!path[0] || names_module(path, module)) bits |= fp8_bit(place, which);
    }
    return (uint16_t)bits;
}

// One entry of modules_to_not_convert: in one layer, or in all of them.
static void leave_alone(struct hparams *h, const char *path) {
    static const char *const PREFIX[] = {"model.layers.", "model.language_model.layers.",
                                         "language_model.model.layers."};
    for (size_t i = 0; i < sizeof PREFIX / sizeof *PREFIX; i++) {
        size_t n = strlen(PREFIX[i]);
        if (strncmp(path, PREFIX[i], n) != 0) continue;
        uint32_t layer = 0;
        const char *at = path + n;
        for (; *at >= '0' && *at <= '9' && layer < LIMIT_LAYERS; at++) layer = layer * 10 + (uint32_t)(*at - '0');
        if (at > path + n && layer < h->n_layers && (*at == '.' || *at == 0))
            h->fp8_not[layer] |= matrices_of(h->family, *at ? at + 1 : at);
        return;
    }
    uint16_t bits = path[0] ? matrices_of(h->family, path) : 0;
    for (uint32_t i = 0; i < h->n_layers; i++) h->fp8_not[i] |= bits;
}

static bool is_128(const json_t *v) { return json_is_integer(v) && json_integer_value(v) == 128; }

int config_fp8(const json_t *config, struct hparams *h, struct err *e) {
    const json_t *q = fields_get(config, "quantization_config"), *block = fields_get(q, "weight_block_size");
    const char *method = "of no quant_method", *format = "e4m3", *scheme = "dynamic";
    if (!q) return ERR_OK;
    if (!json_is_object(q)) return err_set(e, ERR_FORMAT, "%s: quantization_config is not an object", CONFIG_FILE);
    int rc = fields_string(CONFIG_FILE, q, "quant_method", &method, e);
    if (!rc) rc = fields_string(CONFIG_FILE, q, "fmt", &format, e);
    if (!rc) rc = fields_string(CONFIG_FILE, q, "activation_scheme", &scheme, e);
    if (rc) return rc;
    bool blocks = json_array_size(block) == 2 && is_128(json_array_get(block, 0)) && is_128(json_array_get(block, 1));
    if (strcmp(method, "fp8") != 0 || strcmp(format, "e4m3") != 0 || strcmp(scheme, "dynamic") != 0 || !blocks)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: quantization_config %.64s; float weights are supported, and fp8 (e4m3, dynamic) with "
                       "weight_block_size [128, 128]",
                       CONFIG_FILE, method);
    if (h->family->is_fused)
        return err_set(e, ERR_UNSUPPORTED, "%s: quantization_config fp8 of a %s, whose matrices are fused", CONFIG_FILE,
                       h->family->architecture);
    const json_t *list = fields_get(q, "modules_to_not_convert");
    if (list && !json_is_array(list))
        return err_set(e, ERR_FORMAT, "%s: modules_to_not_convert is not a list", CONFIG_FILE);
    h->fp8_blocks = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *path = json_string_value(json_array_get(list, i));
        if (!path) return err_set(e, ERR_FORMAT, "%s: modules_to_not_convert[%zu] is not a string", CONFIG_FILE, i);
        leave_alone(h, path);
    }
    return ERR_OK;
}
