#include "model/layer_attn.h"

#include <math.h>
#include <stdio.h>

#define LOG2E 0x1.715476p+0f

static void matmul(const struct model_part *p, const struct scratch *s, const struct weight *w, const float *x,
                   const struct batch *b, float *y) {
    p->be->ops->matmul(p->be, w, s->rows, x, NULL, b, y);
}

static void quantise(const struct model_part *p, const struct layer *l, struct scratch *s, const float *x, uint32_t k,
                     const struct batch *b) {
    if (l->has_block) p->be->ops->quant(p->be, x, k, b, s->rows);
    scratch_time(s, OP_NORM_QUANT);
}

static struct attention_spec attention_of(const struct model_part *p, uint32_t layer) {
    const struct hparams *h = &p->h;
    struct attention_spec a = {.n_heads = h->n_heads,
                               .n_kv_heads = h->n_kv_heads,
                               .head_dim = h->head_dim,
                               .window = h->window_layer[layer] ? h->window : 0,
                               .scale = LOG2E / sqrtf((float)h->head_dim),
                               .had = p->mode.kv == KV_I8 && (h->head_dim & (h->head_dim - 1)) == 0};
    if (a.had) a.scale = a.scale * (1.0f / (float)h->head_dim); // exact: a power of two (NUMERICS 6.6)
    return a;
}

void layer_attention(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                     const struct batch *b, float *x) {
    const struct hparams *h = &p->h;
    const struct layer *l = &p->layers[layer - p->a];
    const struct backend_ops *ops = p->be->ops;
    struct attention_spec spec = attention_of(p, layer);

    scratch_begin(s);
    ops->rmsnorm(p->be, x, l->vector[VEC_ATTN_NORM], 1, h->hidden, h->rms_eps, b, s->norm);
    quantise(p, l, s, s->norm, h->hidden, b);
    matmul(p, s, l->matrix[MAT_Q], s->norm, b, s->q);
    matmul(p, s, l->matrix[MAT_K], s->norm, b, s->k);
    matmul(p, s, l->matrix[MAT_V], s->norm, b, s->v);
    scratch_time(s, OP_MATMUL);
    ops->rmsnorm(p->be, s->q, l->vector[VEC_Q_NORM], h->n_heads, h->head_dim, h->rms_eps, b, s->q);
    ops->rmsnorm(p->be, s->k, l->vector[VEC_K_NORM], h->n_kv_heads, h->head_dim, h->rms_eps, b, s->k);
    scratch_time(s, OP_NORM_QUANT);
    ops->rope(p->be, s->q, h->n_heads, h->head_dim, h->n_freq, s->cos, s->sin, b);
    ops->rope(p->be, s->k, h->n_kv_heads, h->head_dim, h->n_freq, s->cos, s->sin, b);
    scratch_time(s, OP_OTHER);
    ops->kv_write(p->be, kv, layer - p->a, &spec, s->k, s->v, b);
    ops->attention(p->be, kv, layer - p->a, &spec, s->q, b, s->attn);
    scratch_time(s, OP_ATTENTION);
    quantise(p, l, s, s->attn, h->n_heads * h->head_dim, b);
    matmul(p, s, l->matrix[MAT_O], s->attn, b, s->y);
    scratch_time(s, OP_MATMUL);
    ops->add(p->be, x, s->y, h->hidden, false, b, x);
    scratch_time(s, OP_OTHER);
    ops->rmsnorm(p->be, x, l->vector[VEC_MLP_NORM], 1, h->hidden, h->rms_eps, b, s->norm);
    quantise(p, l, s, s->norm, h->hidden, b);
}

void layer_mlp(const struct model_part *p, struct scratch *s, uint32_t layer, const struct batch *b) {
    const struct layer *l = &p->layers[layer - p->a];
    matmul(p, s, l->matrix[MAT_GATE], s->norm, b, s->gate);
    matmul(p, s, l->matrix[MAT_UP], s->norm, b, s->up);
    scratch_time(s, OP_MATMUL);
    p->be->ops->silu_mul(p->be, s->gate, s->up, p->h.ffn, b, s->gate);
    scratch_time(s, OP_OTHER);
    quantise(p, l, s, s->gate, p->h.ffn, b);
    matmul(p, s, l->matrix[MAT_DOWN], s->gate, b, s->y);
    scratch_time(s, OP_MATMUL);
}

void layer_end(const struct model_part *p, struct scratch *s, const struct batch *b, float *x) {
    p->be->ops->add(p->be, x, s->y, p->h.hidden, !p->mode.verify, b, x);
    scratch_time(s, OP_OTHER);
}

int layer_visit(const struct tensor_visitor *v, const struct tensor_slot *slot, const char *name, uint32_t n,
                uint32_t k, bool is_matrix) {
    struct tensor_need need = {.dim = {n, k}, .is_matrix = is_matrix};
    snprintf(need.name, sizeof need.name, "model.layers.%u.%s", slot->layer, name);
    return v->fn(v->arg, &need, slot);
}

// A row of a table of tensors: matrices have two dimensions, vectors k = 0.
struct layer_tensor {
    enum tensor_place place;
    uint32_t which;
    const char *name;
    uint32_t n, k;
};

static int visit_table(const struct tensor_visitor *v, uint32_t layer, const struct layer_tensor *t, size_t n) {
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        struct tensor_slot slot = {.place = t[i].place, .layer = layer, .which = t[i].which};
        rc = layer_visit(v, &slot, t[i].name, t[i].n, t[i].k, t[i].k > 0);
    }
    return rc;
}

int layer_attention_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    uint32_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    const struct layer_tensor table[] = {
        {PLACE_VECTOR, VEC_ATTN_NORM, "input_layernorm.weight", h->hidden, 0},
        {PLACE_MATRIX, MAT_Q, "self_attn.q_proj.weight", q, h->hidden},
        {PLACE_MATRIX, MAT_K, "self_attn.k_proj.weight", kv, h->hidden},
        {PLACE_MATRIX, MAT_V, "self_attn.v_proj.weight", kv, h->hidden},
        {PLACE_MATRIX, MAT_O, "self_attn.o_proj.weight", h->hidden, q},
        {PLACE_VECTOR, VEC_Q_NORM, "self_attn.q_norm.weight", h->head_dim, 0},
        {PLACE_VECTOR, VEC_K_NORM, "self_attn.k_norm.weight", h->head_dim, 0},
        {PLACE_VECTOR, VEC_MLP_NORM, "post_attention_layernorm.weight", h->hidden, 0},
    };
    return visit_table(v, layer, table, sizeof table / sizeof *table);
}

int layer_mlp_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v) {
    const struct layer_tensor table[] = {
        {PLACE_MATRIX, MAT_GATE, "mlp.gate_proj.weight", h->ffn, h->hidden},
        {PLACE_MATRIX, MAT_UP, "mlp.up_proj.weight", h->ffn, h->hidden},
        {PLACE_MATRIX, MAT_DOWN, "mlp.down_proj.weight", h->hidden, h->ffn},
    };
    return visit_table(v, layer, table, sizeof table / sizeof *table);
}
