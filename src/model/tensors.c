// Which tensors a model has, by the names that Hugging Face folders use.
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct moe_names family_moe_names = {
    .block = "mlp", .router_bias = "gate.e_score_correction_bias", .matrix = {"gate_proj", "up_proj", "down_proj"}};
const struct moe_names family_block_sparse_names = {
    .block = "block_sparse_moe", .router_bias = "e_score_correction_bias", .matrix = {"w1", "w3", "w2"}};

static const char *const MATRICES[MAT_ROUTER] = {
    [MAT_Q] = "self_attn.q_proj",
    [MAT_K] = "self_attn.k_proj",
    [MAT_V] = "self_attn.v_proj",
    [MAT_O] = "self_attn.o_proj",
    [MAT_GATE] = "mlp.gate_proj",
    [MAT_UP] = "mlp.up_proj",
    [MAT_DOWN] = "mlp.down_proj",
    [MAT_SHARED_GATE] = "mlp.shared_experts.gate_proj",
    [MAT_SHARED_UP] = "mlp.shared_experts.up_proj",
    [MAT_SHARED_DOWN] = "mlp.shared_experts.down_proj",
};

void family_matrix_name(const struct family *f, enum tensor_place place, uint32_t which, char *out, size_t size) {
    if (place == PLACE_EXPERT)
        snprintf(out, size, "%s.experts.%s", f->moe->block, f->moe->matrix[which]);
    else
        snprintf(out, size, "%s", MATRICES[which]);
}

uint32_t family_layer_number(const char *name, const char *prefix, const char **rest) {
    enum { MOST_DIGITS = 6 };
    const size_t n = strlen(prefix);
    *rest = NULL;
    if (strncmp(name, prefix, n) != 0) return 0;
    const size_t digits = strspn(name + n, "0123456789");
    if (digits == 0 || digits > MOST_DIGITS || name[n + digits] != '.') return 0;
    *rest = name + n + digits + 1;
    return (uint32_t)strtoul(name + n, NULL, 10);
}

// A walk over the tensors of one layer; rc is what the visitor said, and ends it when it is not 0.
struct walk {
    const struct hparams *h;
    const struct tensor_visitor *v;
    uint32_t layer;
    int rc;
};

static void visit(struct walk *w, struct tensor_slot slot, const char *name, uint32_t n, uint32_t k, bool is_matrix) {
    struct tensor_need need = {.dim = {n, k}, .is_matrix = is_matrix};
    slot.layer = w->layer;
    if (w->rc) return;
    snprintf(need.name, sizeof need.name, "model.layers.%u.%s", w->layer, name);
    w->rc = w->v->fn(w->v->arg, &need, &slot);
}

// A matrix, before it the scales of its 128 x 128 blocks if it is FP8.
static void matrix(struct walk *w, enum tensor_place place, uint32_t which, uint32_t expert, const char *module,
                   uint32_t n, uint32_t k) {
    struct tensor_slot slot = {.place = place, .which = which, .expert = expert};
    char name[128];
    if (w->h->fp8_blocks && !(w->h->fp8_not[w->layer] & fp8_bit(place, which))) {
        struct tensor_slot scale = {.place = PLACE_SCALE, .which = which, .expert = expert};
        snprintf(name, sizeof name, "%s.weight_scale_inv", module);
        visit(w, scale, name, (n + 127) / 128, (k + 127) / 128, false);
    }
    snprintf(name, sizeof name, "%s.weight", module);
    visit(w, slot, name, n, k, true);
}

static void plain(struct walk *w, enum layer_matrix which, uint32_t n, uint32_t k) {
    matrix(w, PLACE_MATRIX, which, 0, MATRICES[which], n, k);
}

static void vector(struct walk *w, bool is_there, enum layer_vector which, const char *name, uint32_t n) {
    if (is_there) visit(w, (struct tensor_slot){.place = PLACE_VECTOR, .which = which}, name, n, 0, false);
}

static void attention_tensors(struct walk *w) {
    const struct hparams *h = w->h;
    uint32_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    bool wide = h->qk_norm == QK_NORM_WIDE, normed = h->qk_norm != QK_NORM_NONE;
    plain(w, MAT_Q, q, h->hidden);
    plain(w, MAT_K, kv, h->hidden);
    plain(w, MAT_V, kv, h->hidden);
    plain(w, MAT_O, h->hidden, q);
    vector(w, h->bias_q, VEC_BIAS_Q, "self_attn.q_proj.bias", q);
    vector(w, h->bias_k, VEC_BIAS_K, "self_attn.k_proj.bias", kv);
    vector(w, h->bias_v, VEC_BIAS_V, "self_attn.v_proj.bias", kv);
    vector(w, h->bias_o, VEC_BIAS_O, "self_attn.o_proj.bias", h->hidden);
    vector(w, normed, VEC_Q_NORM, "self_attn.q_norm.weight", wide ? q : h->head_dim);
    vector(w, normed, VEC_K_NORM, "self_attn.k_norm.weight", wide ? kv : h->head_dim);
}

// The same name means another norm where there are norms after attention and MLP.
static void norm_tensors(struct walk *w) {
    const struct hparams *h = w->h;
    bool pre = h->norms != NORM_POST, post = h->norms != NORM_PRE;
    vector(w, pre, VEC_ATTN_NORM, "input_layernorm.weight", h->hidden);
    vector(w, true, post ? VEC_ATTN_POST : VEC_MLP_NORM, "post_attention_layernorm.weight", h->hidden);
    vector(w, pre && post, VEC_MLP_NORM, "pre_feedforward_layernorm.weight", h->hidden);
    vector(w, post, VEC_MLP_POST, "post_feedforward_layernorm.weight", h->hidden);
}

static void mlp_tensors(struct walk *w) {
    const struct hparams *h = w->h;
    plain(w, MAT_GATE, h->ffn, h->hidden);
    plain(w, MAT_UP, h->ffn, h->hidden);
    plain(w, MAT_DOWN, h->hidden, h->ffn);
    vector(w, h->bias_mlp, VEC_BIAS_GATE, "mlp.gate_proj.bias", h->ffn);
    vector(w, h->bias_mlp, VEC_BIAS_UP, "mlp.up_proj.bias", h->ffn);
    vector(w, h->bias_mlp, VEC_BIAS_DOWN, "mlp.down_proj.bias", h->hidden);
}

static void expert_tensors(struct walk *w) {
    const struct hparams *h = w->h;
    const struct moe_names *names = h->family->moe;
    char name[96];
    snprintf(name, sizeof name, "%s.gate.weight", names->block);
    visit(w, (struct tensor_slot){.place = PLACE_MATRIX, .which = MAT_ROUTER}, name, h->n_experts, h->hidden, false);
    snprintf(name, sizeof name, "%s.%s", names->block, names->router_bias);
    vector(w, h->router_bias, VEC_ROUTER_BIAS, name, h->n_experts);
    for (uint32_t i = 0; i < h->n_experts && !w->rc; i++) {
        for (uint32_t which = 0; which < EXP_N; which++) {
            bool down = which == EXP_DOWN;
            snprintf(name, sizeof name, "%s.experts.%u.%s", names->block, i, names->matrix[which]);
            matrix(w, PLACE_EXPERT, which, i, name, down ? h->hidden : h->expert_ffn, down ? h->expert_ffn : h->hidden);
        }
    }
    if (!h->shared_ffn) return;
    plain(w, MAT_SHARED_GATE, h->shared_ffn, h->hidden);
    plain(w, MAT_SHARED_UP, h->shared_ffn, h->hidden);
    plain(w, MAT_SHARED_DOWN, h->hidden, h->shared_ffn);
}

static int layer_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    struct walk w = {.h = h, .v = v, .layer = layer};
    attention_tensors(&w);
    norm_tensors(&w);
    if (h->n_experts && !h->dense_layer[layer])
        expert_tensors(&w);
    else
        mlp_tensors(&w);
    return w.rc;
}

static int visit_outer(const struct tensor_visitor *v, const char *name, uint32_t n, uint32_t k,
                       enum tensor_place place) {
    struct tensor_need need = {.dim = {n, k}, .is_matrix = k > 0};
    struct tensor_slot slot = {.place = place};
    snprintf(need.name, sizeof need.name, "%s", name);
    return v->fn(v->arg, &need, &slot);
}

int family_walk(const struct hparams *h, uint32_t a, uint32_t b, const struct tensor_visitor *v) {
    bool last = b == h->n_layers;
    int rc = 0;
    if (a == 0 || (last && h->tied_embedding))
        rc = visit_outer(v, "model.embed_tokens.weight", h->n_vocab, h->hidden, PLACE_EMBED);
    for (uint32_t i = a; i < b && !rc; i++) rc = layer_tensors(h, i, v);
    if (!rc && last) rc = visit_outer(v, "model.norm.weight", h->hidden, 0, PLACE_FINAL_NORM);
    if (!rc && last && !h->tied_embedding) rc = visit_outer(v, "lm_head.weight", h->n_vocab, h->hidden, PLACE_HEAD);
    return rc;
}
