// Files that have a model's tensors in another form than the walk names them: matrices side by side in one, the experts
// of a layer in one stack, the whole model inside a larger one. Rows lie one behind the other in all of these, so that
// a second name is enough.
#include "model/family.h"

#include <stdio.h>
#include <string.h>

struct fit {
    const struct hparams *h;
    struct tensors *t;
    struct err *e;
};

static int bad_rows(const struct fit *f, const struct tensor *base, uint64_t rows) {
    return err_set(f->e, ERR_FORMAT, "tensor %s: %llu rows in %u dimensions, but config.json makes it %llu", base->name,
                   base->n_dims ? (unsigned long long)base->dim[0] : 0ull, base->n_dims, (unsigned long long)rows);
}

// The model inside a larger one: "model.x" is "language_model.model.x", or "model.language_model.x" in later files.
static int from_wrapper(struct fit *f, const struct tensor_need *need, bool *found) {
    static const char *const OUTER[] = {"language_model.", "model.language_model."};
    static const char MODEL[] = "model.";
    char name[LIMIT_TENSOR_NAME];
    const struct tensor *base = NULL;
    for (size_t i = 0; i < sizeof OUTER / sizeof *OUTER && !base; i++) {
        const char *rest = need->name;
        if (i == 1 && strncmp(rest, MODEL, sizeof MODEL - 1) == 0) rest += sizeof MODEL - 1;
        snprintf(name, sizeof name, "%s%s", OUTER[i], rest);
        base = tensors_find(f->t, name);
    }
    *found = base != NULL;
    if (!base) return ERR_OK;
    struct tensor one = *base;
    one.name = need->name;
    return tensors_add(f->t, &one, f->e);
}

// q, k and v lie in one matrix in this order; so do gate and up.
static int from_fused(struct fit *f, const struct tensor_need *need, const struct tensor_slot *slot) {
    const struct hparams *h = f->h;
    uint64_t q = (uint64_t)h->n_heads * h->head_dim, kv = (uint64_t)h->n_kv_heads * h->head_dim;
    const struct {
        enum layer_matrix which;
        const char *name;
        uint64_t row, rows;
    } parts[] = {{MAT_Q, "self_attn.qkv_proj", 0, q + 2 * kv},
                 {MAT_K, "self_attn.qkv_proj", q, q + 2 * kv},
                 {MAT_V, "self_attn.qkv_proj", q + kv, q + 2 * kv},
                 {MAT_GATE, "mlp.gate_up_proj", 0, 2ull * h->ffn},
                 {MAT_UP, "mlp.gate_up_proj", h->ffn, 2ull * h->ffn}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[LIMIT_TENSOR_NAME];
        if (slot->which != parts[i].which) continue;
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", slot->layer, parts[i].name);
        const struct tensor *base = tensors_find(f->t, name);
        if (!base) return ERR_OK;
        if (base->n_dims != 2 || base->dim[0] != parts[i].rows) return bad_rows(f, base, parts[i].rows);
        return tensors_alias(f->t, need->name, base, parts[i].row, need->dim[0], f->e);
    }
    return ERR_OK;
}

// "experts.gate_up_proj" [n_experts][2 * ffn][hidden], gate first, and "experts.down_proj" [n_experts][hidden][ffn].
static int from_stack(struct fit *f, const struct tensor_need *need, const struct tensor_slot *slot) {
    const struct hparams *h = f->h;
    bool down = slot->which == EXP_DOWN;
    char name[LIMIT_TENSOR_NAME];
    snprintf(name, sizeof name, "model.layers.%u.%s.experts.%s", slot->layer, h->family->moe->block,
             down ? "down_proj" : "gate_up_proj");
    const struct tensor *base = tensors_find(f->t, name);
    if (!base) return ERR_OK;
    uint64_t rows = down ? need->dim[0] : 2 * need->dim[0], row_bytes = dtype_row_bytes(base->type, need->dim[1]);
    if (base->n_dims != 3 || base->dim[0] != h->n_experts || base->dim[1] != rows || base->dim[2] != need->dim[1] ||
        base->bytes != h->n_experts * rows * row_bytes)
        return bad_rows(f, base, h->n_experts);
    uint64_t row = slot->expert * rows + (slot->which == EXP_UP ? need->dim[0] : 0);
    const struct tensor one = {.name = need->name,
                               .type = base->type,
                               .n_dims = 2,
                               .dim = {need->dim[0], need->dim[1]},
                               .data = base->data + row * row_bytes,
                               .bytes = need->dim[0] * row_bytes};
    return tensors_add(f->t, &one, f->e);
}

static int fit_one(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct fit *f = arg;
    bool found = tensors_find(f->t, need->name) != NULL;
    int rc = ERR_OK;
    if (!found) rc = from_wrapper(f, need, &found);
    if (rc || found) return rc;
    if (slot->place == PLACE_MATRIX && f->h->family->is_fused) return from_fused(f, need, slot);
    if (slot->place == PLACE_EXPERT) return from_stack(f, need, slot);
    return ERR_OK;
}

int model_fit_tensors(const struct hparams *h, struct tensors *t, struct err *e) {
    struct err own; // the visitors put text into it, wanted or not
    struct fit f = {.h = h, .t = t, .e = e ? e : &own};
    return family_walk(h, 0, h->n_layers, &(struct tensor_visitor){fit_one, &f});
}
