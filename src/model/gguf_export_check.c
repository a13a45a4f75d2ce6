// Whether a GGUF file's metadata come to the settings that it was made from: readers have defaults of their own, and
// not every setting has a key.
#include "model/gguf_config.h"
#include "model/gguf_export.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name, field)                                                                                             \
    { name, offsetof(struct hparams, field), sizeof((struct hparams *)NULL)->field }
static const struct {
    const char *name; // as config.json has it
    size_t at, bytes;
} fields[] = {
    FIELD("architectures", family),
    FIELD("num_hidden_layers", n_layers),
    FIELD("hidden_size", hidden),
    FIELD("num_attention_heads", n_heads),
    FIELD("num_key_value_heads", n_kv_heads),
    FIELD("head_dim", head_dim),
    FIELD("intermediate_size", ffn),
    FIELD("vocab_size", n_vocab),
    FIELD("max_position_embeddings", max_context),
    FIELD("sliding_window", window),
    FIELD("layer_types", window_layer),
    FIELD("rms_norm_eps", rms_eps),
    FIELD("tie_word_embeddings", tied_embedding),
    FIELD("num_experts", n_experts),
    FIELD("num_experts_per_tok", top_k),
    FIELD("moe_intermediate_size", expert_ffn),
    FIELD("norm_topk_prob", norm_topk),
    FIELD("first_k_dense_replace", dense_layer),
    FIELD("scoring_func", router),
    FIELD("n_group", n_groups),
    FIELD("topk_group", top_groups),
    FIELD("routed_scaling_factor", routed_scale),
    FIELD("n_shared_experts", shared_ffn),
    FIELD("no_rope_layers", rope_of),
    FIELD("original_max_position_embeddings", rope_short_context),
    FIELD("llama_4_scaling_beta", q_beta),
    FIELD("original_max_position_embeddings", q_original),
    FIELD("hidden_act", act),
    FIELD("use_qk_norm", qk_norm),
    FIELD("attention_bias", bias_q),
    FIELD("query_pre_attn_scalar", head_scale),
    FIELD("attn_logit_softcapping", attn_softcap),
    FIELD("final_logit_softcapping", final_softcap),
};

// But for the last bit of f32, in which GGUF has what the frequencies are made from.
static bool is_near(double a, double b) { return fabs(a - b) <= fabs(a) * 0x1p-23; }

static bool same_rope(const struct rope_set *a, const struct rope_set *b) {
    if (a->n_freq != b->n_freq) return false;
    if (a->n_freq == 0) return true;
    for (uint32_t i = 0; i < a->n_freq; i++)
        if (!is_near(a->fq[i], b->fq[i])) return false;
    return is_near((double)a->factor, (double)b->factor);
}

// What differs, or NULL.
static const char *difference(const struct hparams *h, const struct hparams *back) {
    const struct run_mode mode = {.weights = WEIGHTS_NATIVE, .kv = KV_I8};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (memcmp((const uint8_t *)h + fields[i].at, (const uint8_t *)back + fields[i].at, fields[i].bytes) != 0)
            return fields[i].name;
    bool same = same_rope(&h->rope_short, &back->rope_short) && same_rope(&h->rope_long, &back->rope_long);
    for (uint32_t i = 0; i < ROPE_SETS; i++) same &= same_rope(&h->rope[i], &back->rope[i]);
    if (!same) return "rope_parameters";
    struct hparams near = *back;
    memcpy(near.rope, h->rope, sizeof near.rope);
    near.rope_short = h->rope_short;
    near.rope_long = h->rope_long;
    return model_plan_hash(h, &mode) == model_plan_hash(&near, &mode) ? NULL : "a setting";
}

int gguf_export_check(const struct hparams *h, const struct tensors *t, struct err *e) {
    char *config = NULL, *generation = NULL;
    size_t config_bytes, generation_bytes;
    struct hparams back;
    int rc = gguf_config_make(t, &config, &config_bytes, &generation, &generation_bytes, e);
    if (!rc) rc = model_parse_config(config, config_bytes, &back, e);
    free(config);
    free(generation);
    if (rc) return err_prefix(e, "the metadata for a GGUF file");
    const char *what = difference(h, &back);
    return what ? err_set(e, ERR_UNSUPPORTED,
                          "config.json: %s: GGUF has no way to say it, and readers take another value", what)
                : ERR_OK;
}
