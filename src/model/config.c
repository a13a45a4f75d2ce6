#include "model/config.h"
#include "model/rope.h"

#include <string.h>

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

// Models that also see images: the text model inside is used, by its model_type.
static const struct {
    const char *outer, *model_type, *architecture;
} WRAPPERS[] = {
    {"Gemma3ForConditionalGeneration", "gemma3_text", "Gemma3ForCausalLM"},
    {"Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"},
    {"Mistral3ForConditionalGeneration", "ministral3", "Ministral3ForCausalLM"},
};

// *text: the object that describes the text model, root itself for most. Names the architecture of it.
static int find_text(json_t *root, json_t **text, const char **name, struct err *e) {
    static const char *const SHARED[] = {"tie_word_embeddings", "bos_token_id", "dtype", "torch_dtype",
                                         "quantization_config"};
    const json_t *list = json_object_get(root, "architectures");
    const char *outer = *name = json_string_value(json_array_get(list, 0));
    *text = root;
    if (json_array_size(list) != 1 || !outer)
        return err_set(e, ERR_FORMAT, "%s: architectures is not a list of one name", CONFIG_FILE);
    json_t *inner = json_object_get(root, "text_config");
    const char *type = json_string_value(json_object_get(inner, "model_type"));
    bool wraps = false;
    for (size_t i = 0; i < sizeof WRAPPERS / sizeof *WRAPPERS; i++) {
        if (strcmp(WRAPPERS[i].outer, outer) != 0) continue;
        wraps = true;
        if (type && strcmp(WRAPPERS[i].model_type, type) == 0) *name = WRAPPERS[i].architecture;
    }
    if (!wraps) return ERR_OK;
    if (*name == outer)
        return err_set(e, ERR_UNSUPPORTED, "%s: %.64s: text_config.model_type is %.64s, which is not known inside it",
                       CONFIG_FILE, outer, type ? type : "missing");
    for (size_t i = 0; i < sizeof SHARED / sizeof *SHARED; i++) {
        json_t *v = json_object_get(root, SHARED[i]);
        if (v && !json_object_get(inner, SHARED[i]) && json_object_set(inner, SHARED[i], v))
            return err_set(e, ERR_NOMEM, "%s: no memory", CONFIG_FILE);
    }
    *text = inner;
    return ERR_OK;
}

static int find_family(json_t *text, const char *name, struct hparams *h, struct err *e) {
    const char *why;
    h->family = family_find(name, &why);
    if (!h->family && why)
        return err_set(e, ERR_UNSUPPORTED, "%s: architecture %.64s: %s; not computed yet", CONFIG_FILE, name, why);
    if (!h->family)
        return err_set(e, ERR_UNSUPPORTED, "%s: architecture %.64s; this build knows %s", CONFIG_FILE, name,
                       family_names());
    if (!h->family->defaults) return ERR_OK;
    json_t *defaults = json_loads(h->family->defaults, 0, NULL);
    int bad = !defaults || json_object_update_missing(text, defaults);
    json_decref(defaults);
    return bad ? err_set(e, ERR_NOMEM, "%s: no memory", CONFIG_FILE) : ERR_OK;
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
        int rc = fields_u32(CONFIG_FILE, root, fields[i].key, 1, fields[i].hi, fields[i].out, e);
        if (rc) return rc;
        // These three have a default or are needed by some families only.
        bool optional = fields[i].out == &h->n_kv_heads || fields[i].out == &h->head_dim || fields[i].out == &h->ffn;
        if (*fields[i].out == 0 && !optional)
            return err_set(e, ERR_FORMAT, "%s: %s is missing", CONFIG_FILE, fields[i].key);
    }
    if (!h->n_kv_heads) h->n_kv_heads = h->n_heads;
    if (!h->head_dim && h->hidden % h->n_heads == 0) h->head_dim = h->hidden / h->n_heads;
    if (h->head_dim == 0 || h->head_dim % 2 || h->head_dim > LIMIT_HEAD_DIM)
        return err_set(e, ERR_UNSUPPORTED, "%s: head_dim %u; an even number up to %d is supported", CONFIG_FILE,
                       h->head_dim, LIMIT_HEAD_DIM);
    if (h->n_heads % h->n_kv_heads)
        return err_set(e, ERR_FORMAT, "%s: num_attention_heads %u is no multiple of num_key_value_heads %u",
                       CONFIG_FILE, h->n_heads, h->n_kv_heads);
    if (h->n_heads > LIMIT_HIDDEN / h->head_dim)
        return err_set(e, ERR_LIMIT, "%s: num_attention_heads * head_dim is over %d", CONFIG_FILE, LIMIT_HIDDEN);
    return ERR_OK;
}

// hidden_activation is Gemma's word, and stands beside a hidden_act that does not count there.
static int parse_activation(const json_t *root, struct hparams *h, struct err *e) {
    const char *key = fields_get(root, "hidden_activation") ? "hidden_activation" : "hidden_act", *act = "silu";
    int rc = fields_string(CONFIG_FILE, root, key, &act, e);
    if (rc) return rc;
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0)
        h->act = ACT_SILU;
    else if (strcmp(act, "gelu_pytorch_tanh") == 0)
        h->act = ACT_GELU_TANH;
    else
        return err_set(e, ERR_UNSUPPORTED, "%s: %s %.64s; silu and gelu_pytorch_tanh are supported", CONFIG_FILE, key,
                       act);
    return ERR_OK;
}

// "loom_types": of the embedding, of each layer, of the output head.
static int parse_mix(const json_t *list, struct hparams *h, struct err *e) {
    if (json_array_size(list) != h->n_layers + 2u)
        return err_set(e, ERR_FORMAT, "%s: loom_types is not a list of %u names", CONFIG_FILE, h->n_layers + 2);
    for (uint32_t i = 0; i < h->n_layers + 2; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        int type = name ? dtype_from_name(name) : -1;
        if (type < 0) return err_set(e, ERR_FORMAT, "%s: loom_types[%u] is no type", CONFIG_FILE, i);
        *(i == 0 ? &h->embed_type : i > h->n_layers ? &h->head_type : &h->layer_type[i - 1]) = (enum dtype)type;
    }
    return ERR_OK;
}

static int parse_types(const json_t *root, struct hparams *h, struct err *e) {
    const json_t *mix = fields_get(root, "loom_types");
    const char *s = "";
    int rc = fields_string(CONFIG_FILE, root, "torch_dtype", &s, e);
    if (!rc) rc = fields_string(CONFIG_FILE, root, "dtype", &s, e);
    if (rc) return rc;
    enum dtype type = strcmp(s, "bfloat16") == 0 ? DT_BF16 : strcmp(s, "float16") == 0 ? DT_F16 : DT_F32;
    h->embed_type = h->head_type = type;
    for (uint32_t i = 0; i < h->n_layers; i++) h->layer_type[i] = type;
    return mix ? parse_mix(mix, h, e) : ERR_OK;
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
    h->embed_scale = h->routed_scale = 1;
    h->n_groups = h->top_groups = 1;
    int rc = fields_number(CONFIG_FILE, root, "rms_norm_eps", 0, 1, &eps, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, root, "tie_word_embeddings", &h->tied_embedding, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, root, "loom_qk_interleaved", &h->qk_interleaved, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, root, "bos_token_id", 0, h->n_vocab - 1, &bos, e);
    if (!rc) rc = parse_eos(CONFIG_FILE, root, h, e);
    if (!rc) rc = parse_activation(root, h, e);
    if (!rc) rc = parse_types(root, h, e);
    h->rms_eps = (float)eps;
    h->bos_id = bos == UINT32_MAX ? -1 : (int32_t)bos;
    return rc;
}

// What the family's own reading may have left open.
static int check_mlp(const json_t *root, const struct hparams *h, struct err *e) {
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    bool dense = h->n_experts == 0;
    for (uint32_t i = 0; i < h->n_layers; i++) dense |= h->dense_layer[i];
    if (dense && !h->ffn) return err_set(e, ERR_FORMAT, "%s: intermediate_size is missing", CONFIG_FILE);
    for (size_t i = 0; i < sizeof EXPERTS / sizeof *EXPERTS && !h->family->moe; i++)
        if (fields_get(root, EXPERTS[i]))
            return err_set(e, ERR_FORMAT, "%s: %s: there are no experts in a %s", CONFIG_FILE, EXPERTS[i],
                           h->family->architecture);
    return ERR_OK;
}

int model_parse_config(const char *json, uint64_t len, struct hparams *h, struct err *e) {
    memset(h, 0, sizeof *h);
    json_t *root = load(CONFIG_FILE, json, len, e), *text;
    const char *name;
    if (!root) return e ? e->code : ERR_FORMAT;
    int rc = find_text(root, &text, &name, e);
    if (!rc) rc = find_family(text, name, h, e);
    if (!rc) rc = parse_shape(text, h, e);
    if (!rc) rc = parse_rest(text, h, e);
    if (!rc && text != root) rc = parse_eos(CONFIG_FILE, root, h, e);
    if (!rc) rc = h->family->parse(text, h, e);
    if (!rc) rc = check_mlp(text, h, e);
    if (!rc) rc = config_fp8(text, h, e);
    if (!rc) rc = rope_parse(text, h, e);
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
