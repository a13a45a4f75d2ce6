// The pieces of a pass: embedding, RoPE tables of the batch, a layer, the output head.
#include "model/layer.h"
#include "model/rope.h"

void model_move(struct model_part *p, struct scratch *s, struct backend *be) {
    p->be = be;
    s->be = be;
}

void model_embed(const struct model_part *p, struct scratch *s, const int32_t *tokens, const struct batch *b,
                 float *x) {
    scratch_begin(s);
    p->be->ops->embed(p->be, p->embed, tokens, p->h.embed_scale, b, p->mode.verify, x);
    scratch_time(s, OP_REST);
}

void model_begin(const struct model_part *p, struct scratch *s, const struct batch *b) {
    const struct hparams *h = &p->h;
    ASSERT(b->n_rows <= s->max_rows);
    scratch_begin(s);
    for (uint32_t i = 0; i < ROPE_SETS; i++) {
        const struct rope_set *r = &h->rope[i];
        if (r->n_freq) p->be->ops->rope_table(p->be, r->fq, r->n_freq, r->factor, b, s->cos[i], s->sin[i]);
    }
    for (uint32_t i = 0; h->q_beta != 0 && i < b->n_rows; i++) s->q_factor[i] = rope_q_factor(h, b->row_pos[i]);
    scratch_time(s, OP_ROPE);
}

void model_layer(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                 const struct batch *b, float *x) {
    ASSERT(layer >= p->a && layer < p->b);
    layer_run(p, s, layer, kv, b, x);
}

void model_head(const struct model_part *p, struct scratch *s, const uint32_t *index, uint32_t n_out,
                const struct batch *b, const float *x, float *logits, float *normed) {
    const struct backend_ops *ops = p->be->ops;
    ASSERT(n_out <= s->max_rows);
    scratch_begin(s);
    for (uint32_t i = 0; i < n_out; i++) {
        s->head_fault[i] = 0;
        s->head_pos[i] = b->row_pos[index[i]];
    }
    struct batch rows = {.n_rows = n_out, .row_pos = s->head_pos, .fault = s->head_fault};
    float *norm = normed ? normed : s->norm;
    ops->gather_rows(p->be, x, p->h.hidden, index, n_out, s->y);
    ops->rmsnorm(p->be, s->y, p->final_norm, 1, p->h.hidden, p->h.rms_eps, &rows, norm);
    scratch_time(s, OP_NORM);
    if (p->head_has_block) ops->quant(p->be, norm, p->h.hidden, &rows, s->rows);
    scratch_time(s, OP_QUANT);
    ops->matmul(p->be, p->head, s->rows, norm, NULL, &rows, logits);
    scratch_time(s, OP_HEAD);
    if (p->h.final_softcap != 0) ops->softcap(p->be, logits, p->h.n_vocab, p->h.final_softcap, &rows);
    for (uint32_t i = 0; i < n_out; i++) b->fault[index[i]] |= s->head_fault[i];
    scratch_time(s, OP_REST);
}
