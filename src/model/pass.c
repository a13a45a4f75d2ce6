// The pieces of a pass: embedding, RoPE tables of the batch, a layer, the output head.
#include "model/family.h"

void model_move(struct model_part *p, struct scratch *s, struct backend *be) {
    p->be = be;
    s->be = be;
}

void model_embed(const struct model_part *p, struct scratch *s, const int32_t *tokens, const struct batch *b,
                 float *x) {
    scratch_begin(s);
    p->be->ops->embed(p->be, p->embed, tokens, b, p->mode.verify, x);
    scratch_time(s, OP_OTHER);
}

void model_begin(const struct model_part *p, struct scratch *s, const struct batch *b) {
    ASSERT(b->n_rows <= s->max_rows);
    scratch_begin(s);
    p->be->ops->rope_table(p->be, p->h.fq, p->h.n_freq, p->h.rope_factor, b, s->cos, s->sin);
    scratch_time(s, OP_OTHER);
}

void model_layer(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                 const struct batch *b, float *x) {
    ASSERT(layer >= p->a && layer < p->b);
    p->h.family->layer(p, s, layer, kv, b, x);
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
    if (p->head_has_block) ops->quant(p->be, norm, p->h.hidden, &rows, s->rows);
    ops->matmul(p->be, p->head, s->rows, norm, NULL, &rows, logits);
    for (uint32_t i = 0; i < n_out; i++) b->fault[index[i]] |= s->head_fault[i];
    scratch_time(s, OP_HEAD);
}
