// Gemma 2 and 3: norms before and after, weights of norms without their 1, a scaled embedding, gelu, windows by turns.
#include "model/config.h"

#include <math.h>

// The scalar whose root divides the scores. GGUF files leave it out: it is the head's width, but for the largest model
// of each generation, which divides hidden_size by the heads.
static int parse_head_scale(const json_t *config, struct hparams *h, uint32_t layers_of_largest, struct err *e) {
    double scalar = h->norm_plus_one ? 256 : h->n_layers == layers_of_largest ? h->hidden / h->n_heads : h->head_dim;
    int rc = fields_number(CONFIG_FILE, config, "query_pre_attn_scalar", 1e-3, 1e6, &scalar, e);
    h->head_scale = scalar == h->head_dim ? 0 : (float)(1 / sqrt(scalar));
    return rc;
}

static int parse_gemma(const json_t *config, struct hparams *h, uint32_t layers_of_largest, struct err *e) {
    bool has_one = false, both_ways = false;
    double attn = 0, final = 0;
    int rc = config_attention_bias(config, h, false, true, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "loom_norm_has_one", &has_one, e);
    if (!rc) rc = fields_bool(CONFIG_FILE, config, "use_bidirectional_attention", &both_ways, e);
    if (!rc) rc = fields_number(CONFIG_FILE, config, "attn_logit_softcapping", 1e-3, 1e6, &attn, e);
    if (!rc) rc = fields_number(CONFIG_FILE, config, "final_logit_softcapping", 1e-3, 1e6, &final, e);
    if (rc) return rc;
    if (both_ways)
        return err_set(e, ERR_UNSUPPORTED, "%s: use_bidirectional_attention: a text is read forwards only",
                       CONFIG_FILE);
    h->norms = NORM_PRE_POST;
    h->norm_plus_one = !has_one;
    h->attn_softcap = (float)attn;
    h->final_softcap = (float) final;
    h->embed_scale = sqrtf((float)h->hidden);
    return parse_head_scale(config, h, layers_of_largest, e);
}

static int parse_gemma2(const json_t *config, struct hparams *h, struct err *e) {
    int rc = parse_gemma(config, h, 46, e);
    return rc ? rc : config_windows(config, h, 2, e);
}

static int parse_gemma3(const json_t *config, struct hparams *h, struct err *e) {
    uint32_t every = 6;
    h->qk_norm = QK_NORM_HEAD;
    int rc = parse_gemma(config, h, 62, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "_sliding_window_pattern", 1, LIMIT_LAYERS, &every, e);
    if (!rc) rc = fields_u32(CONFIG_FILE, config, "sliding_window_pattern", 1, LIMIT_LAYERS, &every, e);
    return rc ? rc : config_windows(config, h, every, e);
}

const struct family family_gemma2 = {
    .name = "gemma2",
    .architecture = "Gemma2ForCausalLM",
    .defaults = "{\"hidden_activation\": \"gelu_pytorch_tanh\", \"head_dim\": 256, \"sliding_window\": 4096,"
                " \"tie_word_embeddings\": true, \"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0,"
                " \"max_position_embeddings\": 8192}",
    .parse = parse_gemma2};
// The text model inside of the larger ones names only what differs from these.
const struct family family_gemma3 = {
    .name = "gemma3",
    .architecture = "Gemma3ForCausalLM",
    .defaults = "{\"hidden_activation\": \"gelu_pytorch_tanh\", \"head_dim\": 256, \"sliding_window\": 4096,"
                " \"tie_word_embeddings\": true, \"rope_theta\": 1e6, \"max_position_embeddings\": 131072,"
                " \"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
                " \"num_hidden_layers\": 26, \"num_attention_heads\": 8, \"num_key_value_heads\": 4}",
    .parse = parse_gemma3,
    .window_rope = WINDOW_ROPE_LOCAL};
