#include "model/layer.h"

#include <math.h>

#define LOG2E 0x1.715476p+0f

// What the pieces of one layer share.
struct run {
    const struct model_part *p;
    const struct layer *l;
    const struct hparams *h;
    const struct backend_ops *ops;
    struct backend *be;
    struct scratch *s;
    const struct batch *b;
    uint32_t layer;
};

static void matmul(const struct run *r, enum layer_matrix m, const float *bias, const float *x, float *y) {
    r->ops->matmul(r->be, r->l->matrix[m], r->s->rows, x, bias, r->b, y);
}

static void quantise(const struct run *r, const float *x, uint32_t k) {
    if (r->l->has_block) r->ops->quant(r->be, x, k, r->b, r->s->rows);
    scratch_time(r->s, OP_QUANT);
}

// The input of attention or MLP, quantised too where the layer has block weights: normed, or as it is (NORM_POST).
static const float *input(const struct run *r, enum layer_vector norm, const float *x) {
    const float *w = r->l->vector[norm];
    if (w) r->ops->rmsnorm(r->be, x, w, 1, r->h->hidden, r->h->rms_eps, r->b, r->s->norm);
    scratch_time(r->s, OP_NORM);
    const float *in = w ? r->s->norm : x;
    quantise(r, in, r->h->hidden);
    return in;
}

// What they make goes through a norm of its own in some families, before it is added to x.
static void post_norm(const struct run *r, enum layer_vector norm) {
    const float *w = r->l->vector[norm];
    if (!w) return;
    r->ops->rmsnorm(r->be, r->s->y, w, 1, r->h->hidden, r->h->rms_eps, r->b, r->s->y);
    scratch_time(r->s, OP_NORM);
}

static struct attention_spec attention_of(const struct run *r) {
    const struct hparams *h = r->h;
    bool pow2 = (h->head_dim & (h->head_dim - 1)) == 0;
    struct attention_spec a = {.n_heads = h->n_heads,
                               .n_kv_heads = h->n_kv_heads,
                               .head_dim = h->head_dim,
                               .window = h->window_layer[r->layer] ? h->window : 0,
                               .scale = h->head_scale != 0 ? LOG2E * h->head_scale : LOG2E / sqrtf((float)h->head_dim),
                               .softcap = h->attn_softcap,
                               .had = r->p->mode.kv == KV_I8 && pow2};
    if (a.had) a.scale = a.scale * (1.0f / (float)h->head_dim); // exact: a power of two (NUMERICS 6.6)
    return a;
}

static void qk_norm(const struct run *r, enum layer_vector which, float *x, uint32_t n_heads) {
    bool wide = r->h->qk_norm == QK_NORM_WIDE;
    uint32_t n = wide ? n_heads * r->h->head_dim : r->h->head_dim;
    r->ops->rmsnorm(r->be, x, r->l->vector[which], wide ? 1 : n_heads, n, r->h->rms_eps, r->b, x);
}

// q and k: normed, turned, and q as it grows with its position.
static void positions(const struct run *r) {
    const struct hparams *h = r->h;
    struct scratch *s = r->s;
    uint32_t set = h->rope_of[r->layer];
    if (h->qk_norm != QK_NORM_NONE) {
        qk_norm(r, VEC_Q_NORM, s->q, h->n_heads);
        qk_norm(r, VEC_K_NORM, s->k, h->n_kv_heads);
        scratch_time(s, OP_NORM);
    }
    if (set != ROPE_NONE) {
        uint32_t n_freq = h->rope[set].n_freq;
        r->ops->rope(r->be, s->q, h->n_heads, h->head_dim, n_freq, s->cos[set], s->sin[set], r->b);
        r->ops->rope(r->be, s->k, h->n_kv_heads, h->head_dim, n_freq, s->cos[set], s->sin[set], r->b);
    }
    if (h->q_beta != 0) r->ops->scale_rows(r->be, s->q, h->n_heads * h->head_dim, s->q_factor, r->b);
    scratch_time(s, OP_ROPE);
}

// s->y = attention of x.
static void attention(const struct run *r, struct kv_cache *kv, const float *x) {
    struct scratch *s = r->s;
    float *const *vector = r->l->vector;
    const struct attention_spec spec = attention_of(r);
    uint32_t kv_layer = r->layer - r->p->a;
    const float *in = input(r, VEC_ATTN_NORM, x);
    matmul(r, MAT_Q, vector[VEC_BIAS_Q], in, s->q);
    matmul(r, MAT_K, vector[VEC_BIAS_K], in, s->k);
    matmul(r, MAT_V, vector[VEC_BIAS_V], in, s->v);
    scratch_time(s, OP_QKV);
    positions(r);
    r->ops->kv_write(r->be, kv, kv_layer, &spec, s->k, s->v, r->b);
    scratch_time(s, OP_KV_WRITE);
    r->ops->attention(r->be, kv, kv_layer, &spec, s->q, r->b, s->attn);
    scratch_time(s, OP_ATTENTION);
    quantise(r, s->attn, r->h->n_heads * r->h->head_dim);
    matmul(r, MAT_O, vector[VEC_BIAS_O], s->attn, s->y);
    scratch_time(s, OP_O);
}

// y = down(act(gate) * up) of in, whose codes are in s->rows. y may be in.
static void mlp(const struct run *r, enum layer_matrix gate, uint32_t ffn, const float *in, float *y) {
    struct scratch *s = r->s;
    float *const *vector = r->l->vector;
    bool shared = gate == MAT_SHARED_GATE;
    enum layer_matrix up = shared ? MAT_SHARED_UP : MAT_UP, down = shared ? MAT_SHARED_DOWN : MAT_DOWN;
    matmul(r, gate, shared ? NULL : vector[VEC_BIAS_GATE], in, s->gate);
    matmul(r, up, shared ? NULL : vector[VEC_BIAS_UP], in, s->up);
    scratch_time(s, OP_FFN);
    r->ops->act_mul(r->be, r->h->act, s->gate, s->up, ffn, r->b, s->gate);
    scratch_time(s, OP_ACT);
    quantise(r, s->gate, ffn);
    matmul(r, down, shared ? NULL : vector[VEC_BIAS_DOWN], s->gate, y);
    scratch_time(s, OP_FFN);
}

// s->y = the chosen experts' sum, and the shared expert last (NUMERICS 7.3). in is s->norm: it is used up.
static void experts(const struct run *r, const float *in) {
    const struct hparams *h = r->h;
    const struct layer *l = r->l;
    struct scratch *s = r->s;
    const struct moe_spec spec = {.n_experts = h->n_experts,
                                  .top_k = h->top_k,
                                  .act = h->act,
                                  .router = h->router,
                                  .norm_topk = h->norm_topk,
                                  .bias = l->vector[VEC_ROUTER_BIAS],
                                  .n_groups = h->n_groups,
                                  .top_groups = h->top_groups,
                                  .weights_scale = h->routed_scale,
                                  .gate = (const struct weight *const *)l->expert[EXP_GATE],
                                  .up = (const struct weight *const *)l->expert[EXP_UP],
                                  .down = (const struct weight *const *)l->expert[EXP_DOWN]};
    r->ops->matmul(r->be, l->matrix[MAT_ROUTER], NULL, in, NULL, r->b, s->router);
    scratch_time(s, OP_ROUTER);
    uint64_t choice_ns = r->be->choice_ns;
    r->ops->moe(r->be, &spec, s->router, l->has_block ? s->rows : NULL, in, r->b, s->y);
    scratch_time_split(s, OP_EXPERTS, OP_ROUTER, r->be->choice_ns - choice_ns);
    if (!h->shared_ffn) return;
    mlp(r, MAT_SHARED_GATE, h->shared_ffn, in, s->norm);
    r->ops->add(r->be, s->y, s->norm, h->hidden, false, r->b, s->y);
    scratch_time(s, OP_REST);
}

void layer_run(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
               const struct batch *b, float *x) {
    const struct run r = {.p = p,
                          .l = &p->layers[layer - p->a],
                          .h = &p->h,
                          .ops = p->be->ops,
                          .be = p->be,
                          .s = s,
                          .b = b,
                          .layer = layer};
    scratch_begin(s);
    attention(&r, kv, x);
    post_norm(&r, VEC_ATTN_POST);
    r.ops->add(r.be, x, s->y, r.h->hidden, false, b, x);
    scratch_time(s, OP_REST);
    const float *in = input(&r, VEC_MLP_NORM, x);
    if (r.h->n_experts && !r.h->dense_layer[layer])
        experts(&r, in);
    else
        mlp(&r, MAT_GATE, r.h->ffn, in, s->y);
    post_norm(&r, VEC_MLP_POST);
    r.ops->add(r.be, x, s->y, r.h->hidden, !p->mode.verify, b, x); // NUMERICS 7.4
    scratch_time(s, OP_REST);
}
