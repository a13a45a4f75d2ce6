// Qwen3-MoE: the attention of Qwen3; the MLP is a router and experts, but for the layers that are dense by
// mlp_only_layers or decoder_sparse_step.
#include "model/fields.h"
#include "model/layer_attn.h"

#include <stdio.h>

static const char FILE_NAME[] = "config.json";

static int parse_dense_layers(const json_t *config, struct hparams *h, struct err *e) {
    uint32_t step = 1;
    int rc = fields_u32(FILE_NAME, config, "decoder_sparse_step", 1, LIMIT_LAYERS, &step, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < h->n_layers; i++) h->dense_layer[i] = (i + 1) % step != 0;
    const json_t *only = fields_get(config, "mlp_only_layers");
    if (only && !json_is_array(only)) return err_set(e, ERR_FORMAT, "%s: mlp_only_layers is not an array", FILE_NAME);
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *v = json_array_get(only, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)h->n_layers)
            return err_set(e, ERR_FORMAT, "%s: mlp_only_layers[%zu] is not a layer", FILE_NAME, i);
        h->dense_layer[json_integer_value(v)] = true;
    }
    for (uint32_t i = 0; i < h->n_layers; i++)
        if (h->dense_layer[i] && !h->ffn) return err_set(e, ERR_FORMAT, "%s: intermediate_size is missing", FILE_NAME);
    return ERR_OK;
}

static int parse(const json_t *config, struct hparams *h, struct err *e) {
    int rc = fields_u32(FILE_NAME, config, "num_local_experts", 1, LIMIT_EXPERTS, &h->n_experts, e);
    if (!rc) rc = fields_u32(FILE_NAME, config, "num_experts", 1, LIMIT_EXPERTS, &h->n_experts, e);
    if (!rc && !h->n_experts) rc = err_set(e, ERR_FORMAT, "%s: num_experts is missing", FILE_NAME);
    if (!rc) rc = fields_u32(FILE_NAME, config, "num_experts_per_tok", 1, h->n_experts, &h->top_k, e);
    if (!rc && !h->top_k) rc = err_set(e, ERR_FORMAT, "%s: num_experts_per_tok is missing", FILE_NAME);
    if (!rc) rc = fields_u32(FILE_NAME, config, "moe_intermediate_size", 1, LIMIT_FFN, &h->expert_ffn, e);
    if (!rc && !h->expert_ffn) rc = err_set(e, ERR_FORMAT, "%s: moe_intermediate_size is missing", FILE_NAME);
    if (!rc) rc = fields_bool(FILE_NAME, config, "norm_topk_prob", &h->norm_topk, e);
    return rc ? rc : parse_dense_layers(config, h, e);
}

static int expert_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    static const char *const NAMES[EXP_N] = {"gate_proj", "up_proj", "down_proj"};
    for (uint32_t i = 0; i < h->n_experts; i++) {
        for (uint32_t which = 0; which < EXP_N; which++) {
            struct tensor_slot slot = {.place = PLACE_EXPERT, .layer = layer, .which = which, .expert = i};
            char name[64];
            snprintf(name, sizeof name, "mlp.experts.%u.%s.weight", i, NAMES[which]);
            bool down = which == EXP_DOWN;
            int rc =
                layer_visit(v, &slot, name, down ? h->hidden : h->expert_ffn, down ? h->expert_ffn : h->hidden, true);
            if (rc) return rc;
        }
    }
    return 0;
}

static int tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    int rc = layer_attention_tensors(h, layer, v);
    if (rc) return rc;
    if (h->dense_layer[layer]) return layer_mlp_tensors(h, layer, v);
    struct tensor_slot router = {.place = PLACE_MATRIX, .layer = layer, .which = MAT_ROUTER};
    rc = layer_visit(v, &router, "mlp.gate.weight", h->n_experts, h->hidden, false);
    return rc ? rc : expert_tensors(h, layer, v);
}

static void experts_run(const struct model_part *p, struct scratch *s, uint32_t layer, const struct batch *b) {
    const struct layer *l = &p->layers[layer - p->a];
    struct moe_spec spec = {.n_experts = p->h.n_experts,
                            .top_k = p->h.top_k,
                            .norm_topk = p->h.norm_topk,
                            .gate = (const struct weight *const *)l->expert[EXP_GATE],
                            .up = (const struct weight *const *)l->expert[EXP_UP],
                            .down = (const struct weight *const *)l->expert[EXP_DOWN]};
    p->be->ops->matmul(p->be, l->matrix[MAT_ROUTER], NULL, s->norm, NULL, b, s->router);
    p->be->ops->moe(p->be, &spec, s->router, l->has_block ? s->rows : NULL, l->has_block ? NULL : s->norm, b, s->y);
    scratch_time(s, OP_MOE);
}

static void layer_run(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                      const struct batch *b, float *x) {
    layer_attention(p, s, layer, kv, b, x);
    if (p->h.dense_layer[layer])
        layer_mlp(p, s, layer, b);
    else
        experts_run(p, s, layer, b);
    layer_end(p, s, b, x);
}

const struct family family_qwen3_moe = {
    .name = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM", .parse = parse, .tensors = tensors, .layer = layer_run};
