// Qwen3, dense: norm on q and k heads, SwiGLU, sliding windows by layer_types.
#include "model/fields.h"
#include "model/layer_attn.h"

static int parse(const json_t *config, struct hparams *h, struct err *e) {
    if (fields_get(config, "num_experts") || fields_get(config, "num_local_experts"))
        return err_set(e, ERR_FORMAT, "config.json: experts in a Qwen3ForCausalLM");
    if (!h->ffn) return err_set(e, ERR_FORMAT, "config.json: intermediate_size is missing");
    return ERR_OK;
}

static int tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    int rc = layer_attention_tensors(h, layer, v);
    return rc ? rc : layer_mlp_tensors(h, layer, v);
}

static void layer_run(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                      const struct batch *b, float *x) {
    layer_attention(p, s, layer, kv, b, x);
    layer_mlp(p, s, layer, b);
    layer_end(p, s, b, x);
}

const struct family family_qwen3 = {
    .name = "qwen3", .architecture = "Qwen3ForCausalLM", .parse = parse, .tensors = tensors, .layer = layer_run};
