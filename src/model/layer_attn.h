// Pieces of a layer that families share.
#pragma once
#include "model/family.h"

// x = x + attention(norm(x)), not rounded; then s->norm holds the row normed for the MLP, quantised into s->rows too
// where the layer has block weights.
void layer_attention(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                     const struct batch *b, float *x);
// s->y = down(silu(gate) * up) of s->norm.
void layer_mlp(const struct model_part *p, struct scratch *s, uint32_t layer, const struct batch *b);
// x = bf16(x + s->y): the end of each layer (NUMERICS 7.4).
void layer_end(const struct model_part *p, struct scratch *s, const struct batch *b, float *x);

// The tensors of attention and of the two norms, with the names that Llama-like files use.
int layer_attention_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v);
int layer_mlp_tensors(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v);
// One tensor "model.layers.<layer>.<name>".
int layer_visit(const struct tensor_visitor *v, const struct tensor_slot *slot, const char *name, uint32_t n,
                uint32_t k, bool is_matrix);
