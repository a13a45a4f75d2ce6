#include "model/family.h"
#include "model/fields.h"
#include "model/rope.h"

#include <string.h>

static const char FILE_NAME[] = "config.json";
static const char GENERATION[] = "generation_config.json";

static json_t *load(const char *file, const char *json, uint64_t len, struct err *e) {
    if (len > LIMIT_CONFIG_BYTES) {
        err_set(e, ERR_LIMIT, "%s: %llu bytes; at most %d are read", file, (unsigned long long)len, LIMIT_CONFIG_BYTES);
        return NULL;
    }
    while (len > 0 && json[len - 1] == '\0') len--;
    json_error_t why;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(root)) return root; // false for NULL as well
    if (root)
        err_set(e, ERR_FORMAT, "%s: not an object", file);
    else
        err_set(e, ERR_FORMAT, "%s: %s, line %d", file, why.text, why.line);
    json_decref(root);
    return NULL;
}

static int find_family(const json_t *root, struct hparams *h, struct err *e) {
    const json_t *list = json_object_get(root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) != 1 || !name)
        return err_set(e, ERR_FORMAT, "%s: architectures is not a list of one name", FILE_NAME);
    h->family = family_find(name);
    if (!h->family)
        return err_set(e, ERR_UNSUPPORTED, "%s: architecture %.64s; this build knows %s", FILE_NAME, name,
                       family_names());
    return ERR_OK;
}

static int parse_shape(const json_t *root, struct hparams *h, struct err *e) {
    const struct {
        const char *key;
        uint32_t hi, *out;
    } fields[] = {
        {"num_hidden_layers", LIMIT_LAYERS, &h->n_layers},  {"hidden_size", LIMIT_HIDDEN, &h->hidden},
        {"num_attention_heads", LIMIT_HIDDEN, &h->n_heads}, {"num_key_value_heads", LIMIT_HIDDEN, &h->n_kv_heads},
        {"head_dim", LIMIT_HEAD_DIM, &h->head_dim},         {"intermediate_size", LIMIT_FFN, &h->ffn},
        {"vocab_size", LIMIT_VOCAB, &h->n_vocab},           {"max_position_embeddings", LIMIT_CONTEXT, &h->max_context},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int rc = fields_u32(FILE_NAME, root, fields[i].key, 1, fields[i].hi, fields[i].out, e);
        if (rc) return rc;
        // These three have a default or are needed by some families only.
        bool optional = fields[i].out == &h->n_kv_heads || fields[i].out == &h->head_dim || fields[i].out == &h->ffn;
        if (*fields[i].out == 0 && !optional)
            return err_set(e, ERR_FORMAT, "%s: %s is missing", FILE_NAME, fields[i].key);
    }
    if (!h->n_kv_heads) h->n_kv_heads = h->n_heads;
    if (!h->head_dim && h->hidden % h->n_heads == 0) h->head_dim = h->hidden / h->n_heads;
    if (h->head_dim == 0 || h->head_dim % 2 || h->head_dim > LIMIT_HEAD_DIM)
        return err_set(e, ERR_UNSUPPORTED, "%s: head_dim %u; an even number up to %d is supported", FILE_NAME,
                       h->head_dim, LIMIT_HEAD_DIM);
    if (h->n_heads % h->n_kv_heads)
        return err_set(e, ERR_FORMAT, "%s: num_attention_heads %u is no multiple of num_key_value_heads %u", FILE_NAME,
                       h->n_heads, h->n_kv_heads);
    if (h->n_heads > LIMIT_HIDDEN / h->head_dim)
        return err_set(e, ERR_LIMIT, "%s: num_attention_heads * head_dim is over %d", FILE_NAME, LIMIT_HIDDEN);
    return ERR_OK;
}

// Settings that would change the arithmetic and that no kernel honours.
static int refuse_unsupported(const json_t *root, struct err *e) {
    const char *act = "silu";
    bool bias = false;
    int rc = fields_string(FILE_NAME, root, "hidden_act", &act, e);
    if (!rc) rc = fields_bool(FILE_NAME, root, "attention_bias", &bias, e);
    if (rc) return rc;
    if (strcmp(act, "silu") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: hidden_act %.64s; silu is supported", FILE_NAME, act);
    if (bias) return err_set(e, ERR_UNSUPPORTED, "%s: attention_bias true is not supported", FILE_NAME);
    if (fields_get(root, "quantization_config"))
        return err_set(e, ERR_UNSUPPORTED, "%s: quantization_config is not supported; float weights are", FILE_NAME);
    return ERR_OK;
}

static int parse_float_type(const json_t *root, struct hparams *h, struct err *e) {
    const char *s = "";
    int rc = fields_string(FILE_NAME, root, "torch_dtype", &s, e);
    if (!rc) rc = fields_string(FILE_NAME, root, "dtype", &s, e);
    if (rc) return rc;
    h->float_type = DT_F32;
    if (strcmp(s, "bfloat16") == 0) h->float_type = DT_BF16;
    if (strcmp(s, "float16") == 0) h->float_type = DT_F16;
    return ERR_OK;
}

static int layer_types(const json_t *types, struct hparams *h, struct err *e) {
    if (!json_is_array(types) || json_array_size(types) != h->n_layers)
        return err_set(e, ERR_FORMAT, "%s: layer_types is not a list of %u names", FILE_NAME, h->n_layers);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, i));
        bool window = s && strcmp(s, "sliding_attention") == 0;
        if (!window && (!s || strcmp(s, "full_attention") != 0))
            return err_set(e, s ? ERR_UNSUPPORTED : ERR_FORMAT, "%s: layer_types[%u] is %.64s", FILE_NAME, i,
                           s ? s : "no string");
        h->window_layer[i] = window;
    }
    return ERR_OK;
}

// Which layers look back only so far: layer_types, or, in files without it, those from max_window_layers on (a family
// of experts has no such bound: all of them).
static int parse_window(const json_t *root, struct hparams *h, struct err *e) {
    bool use = false;
    uint32_t from = h->n_layers;
    int rc = fields_bool(FILE_NAME, root, "use_sliding_window", &use, e);
    if (rc || !use) return rc;
    rc = fields_u32(FILE_NAME, root, "sliding_window", 1, 1u << 31, &h->window, e);
    if (h->window >= LIMIT_CONTEXT) h->window = 0; // no text is that long
    if (rc || !h->window) return rc;
    const json_t *types = fields_get(root, "layer_types");
    if (types) return layer_types(types, h, e);
    if (h->n_experts)
        from = 0;
    else
        rc = fields_u32(FILE_NAME, root, "max_window_layers", 0, 1u << 31, &from, e);
    for (uint32_t i = from; !rc && i < h->n_layers; i++) h->window_layer[i] = true;
    return rc;
}

static int add_eos(const char *file, const json_t *v, struct hparams *h, struct err *e) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)h->n_vocab)
        return err_set(e, ERR_FORMAT, "%s: eos_token_id is not a token below %u", file, h->n_vocab);
    int32_t id = (int32_t)json_integer_value(v);
    for (uint32_t i = 0; i < h->n_eos; i++)
        if (h->eos_ids[i] == id) return ERR_OK;
    if (h->n_eos == LIMIT_STOP_IDS)
        return err_set(e, ERR_LIMIT, "%s: eos_token_id: more than %d end tokens", file, LIMIT_STOP_IDS);
    h->eos_ids[h->n_eos++] = id;
    return ERR_OK;
}

static int parse_eos(const char *file, const json_t *root, struct hparams *h, struct err *e) {
    const json_t *v = fields_get(root, "eos_token_id");
    if (!v) return ERR_OK;
    if (!json_is_array(v)) return add_eos(file, v, h, e);
    int rc = ERR_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) rc = add_eos(file, json_array_get(v, i), h, e);
    return rc;
}

static int parse_rest(const json_t *root, struct hparams *h, struct err *e) {
    double eps = 1e-6;
    uint32_t bos = UINT32_MAX;
    int rc = fields_number(FILE_NAME, root, "rms_norm_eps", 0, 1, &eps, e);
    if (!rc) rc = fields_bool(FILE_NAME, root, "tie_word_embeddings", &h->tied_embedding, e);
    if (!rc) rc = fields_u32(FILE_NAME, root, "bos_token_id", 0, h->n_vocab - 1, &bos, e);
    if (!rc) rc = parse_eos(FILE_NAME, root, h, e);
    if (!rc) rc = parse_float_type(root, h, e);
    h->rms_eps = (float)eps;
    h->bos_id = bos == UINT32_MAX ? -1 : (int32_t)bos;
    return rc;
}

int model_parse_config(const char *json, uint64_t len, struct hparams *h, struct err *e) {
    memset(h, 0, sizeof *h);
    json_t *root = load(FILE_NAME, json, len, e);
    if (!root) return e ? e->code : ERR_FORMAT;
    int rc = find_family(root, h, e);
    if (!rc) rc = refuse_unsupported(root, e);
    if (!rc) rc = parse_shape(root, h, e);
    if (!rc) rc = parse_rest(root, h, e);
    if (!rc) rc = h->family->parse(root, h, e);
    if (!rc) rc = parse_window(root, h, e);
    if (!rc) rc = rope_parse(root, h, e);
    json_decref(root);
    return rc;
}

int model_parse_generation(const char *json, uint64_t len, struct hparams *h, struct gen_defaults *g, struct err *e) {
    *g = (struct gen_defaults){.temperature = 1, .top_p = 1};
    if (!json) return ERR_OK;
    json_t *root = load(GENERATION, json, len, e);
    if (!root) return e ? e->code : ERR_FORMAT;
    double temperature = 1, top_p = 1, min_p = 0;
    bool sample = true;
    uint32_t top_k = 0;
    int rc = fields_number(GENERATION, root, "temperature", 0, 100, &temperature, e);
    if (!rc) rc = fields_number(GENERATION, root, "top_p", 1e-6, 1, &top_p, e);
    if (!rc) rc = fields_number(GENERATION, root, "min_p", 0, 1, &min_p, e);
    if (!rc) rc = fields_u32(GENERATION, root, "top_k", 0, INT32_MAX, &top_k, e);
    if (!rc) rc = fields_bool(GENERATION, root, "do_sample", &sample, e);
    if (!rc) rc = parse_eos(GENERATION, root, h, e);
    json_decref(root);
    if (rc) return rc;
    *g = (struct gen_defaults){.temperature = sample ? (float)temperature : 0,
                               .top_p = (float)top_p,
                               .min_p = (float)min_p,
                               .top_k = (int32_t)top_k};
    return ERR_OK;
}
