#include "model/family.h"

#include "weights/quantize.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20, CHUNK_ROWS = 16 };

// What a load carries from tensor to tensor.
struct loader {
    struct model_part *p;
    const struct tensors *tensors;
    const struct model_progress *progress;
    uint64_t done_bytes, total_bytes;
    uint8_t *chunk; // rows on their way into the backend's own layout
    uint64_t chunk_cap;
    struct err *e;
};

static int bad_shape(const struct tensor *t, const struct tensor_need *n, struct err *e) {
    char have[128] = "";
    for (uint32_t i = 0; i < t->n_dims; i++) {
        size_t len = strlen(have);
        snprintf(have + len, sizeof have - len, "%s%llu", i ? ", " : "", (unsigned long long)t->dim[i]);
    }
    if (n->dim[1])
        return err_set(e, ERR_FORMAT, "tensor %s: shape [%s], but config.json makes it [%llu, %llu]", n->name, have,
                       (unsigned long long)n->dim[0], (unsigned long long)n->dim[1]);
    return err_set(e, ERR_FORMAT, "tensor %s: shape [%s], but config.json makes it [%llu]", n->name, have,
                   (unsigned long long)n->dim[0]);
}

// First pass: all tensors are there and of the right shape, before the long work begins.
static int visit_check(void *arg, const struct tensor_need *n, const struct tensor_slot *slot) {
    struct loader *l = arg;
    (void)slot;
    const struct tensor *t = tensors_find(l->tensors, n->name);
    if (!t) return err_set(l->e, ERR_NOT_FOUND, "tensor %s is not in the model files", n->name);
    bool vector = n->dim[1] == 0;
    if (t->n_dims != (vector ? 1u : 2u) || t->dim[0] != n->dim[0] || (!vector && t->dim[1] != n->dim[1]))
        return bad_shape(t, n, l->e);
    const struct dtype_info *info = dtype_info(t->type);
    if (!info->is_float && !(n->is_matrix && info->is_block))
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s cannot be a weight here", n->name, info->name);
    uint64_t k = vector ? t->dim[0] : t->dim[1], rows = vector ? 1 : t->dim[0];
    if (t->bytes != rows * dtype_row_bytes(t->type, k))
        return err_set(l->e, ERR_FORMAT, "tensor %s: %llu bytes, but its shape needs %llu", n->name,
                       (unsigned long long)t->bytes, (unsigned long long)(rows * dtype_row_bytes(t->type, k)));
    l->total_bytes += t->bytes;
    return ERR_OK;
}

static void report(struct loader *l, uint64_t bytes) {
    l->done_bytes += bytes;
    if (l->progress && l->progress->fn) l->progress->fn(l->progress->arg, l->done_bytes, l->total_bytes);
}

static int need_chunk(struct loader *l, uint64_t bytes) {
    if (bytes <= l->chunk_cap) return ERR_OK;
    uint8_t *c = realloc(l->chunk, bytes);
    if (!c) return ERR_NOMEM;
    l->chunk = c;
    l->chunk_cap = bytes;
    return ERR_OK;
}

// Rows [row, row + n) of t as type `to` in the chunk.
static int convert_rows(struct loader *l, const struct tensor *t, enum dtype to, uint64_t n, const uint8_t *src) {
    uint64_t k = t->dim[1];
    if (to != t->type && to != DT_F32) return quantize_rows(t->type, src, n, k, to, l->chunk, l->e);
    if (dtype_info(t->type)->is_float) {
        int rc = floats_check(t->type, src, n * k, l->e);
        if (rc) return rc;
    }
    if (to == t->type)
        memcpy(l->chunk, src, n * dtype_row_bytes(to, k));
    else
        floats_to_f32(t->type, src, n * k, (float *)(void *)l->chunk);
    return ERR_OK;
}

static int load_matrix(struct loader *l, const struct tensor *t, bool is_matrix, struct weight **out, bool *has_block) {
    const struct backend_ops *ops = l->p->be->ops;
    enum dtype to = part_kept_type(&l->p->mode, t->type, is_matrix, t->dim[1]);
    uint32_t n_rows = (uint32_t)t->dim[0], k = (uint32_t)t->dim[1];
    uint64_t row_bytes = dtype_row_bytes(to, k), src_row_bytes = dtype_row_bytes(t->type, k);
    uint32_t run = CHUNK_ROWS;
    if (row_bytes * CHUNK_ROWS < CHUNK_BYTES) run = (uint32_t)(CHUNK_BYTES / row_bytes) / CHUNK_ROWS * CHUNK_ROWS;
    if (need_chunk(l, run * row_bytes)) return err_set(l->e, ERR_NOMEM, "no memory to convert tensor %s", t->name);
    struct weight *w = *out = ops->weight_new(l->p->be, to, n_rows, k);
    if (!w)
        return err_set(l->e, ERR_NOMEM, "tensor %s: no memory for its %llu bytes on %s", t->name,
                       (unsigned long long)ops->weight_bytes(to, n_rows, k), ops->name);
    for (uint32_t row = 0; row < n_rows; row += run) {
        uint32_t n = n_rows - row < run ? n_rows - row : run;
        int rc = convert_rows(l, t, to, n, t->data + row * src_row_bytes);
        if (rc) return err_prefix(l->e, "tensor %s, from row %u", t->name, row);
        ops->weight_put(w, row, n, l->chunk);
        report(l, n * src_row_bytes);
    }
    *has_block |= dtype_info(to)->is_block;
    return ERR_OK;
}

static int load_vector(struct loader *l, const struct tensor *t, float **out) {
    uint64_t bytes = t->dim[0] * sizeof(float);
    int rc = floats_check(t->type, t->data, t->dim[0], l->e);
    if (rc) return err_prefix(l->e, "tensor %s", t->name);
    *out = need_chunk(l, bytes) ? NULL : l->p->be->ops->mem_alloc(l->p->be, bytes);
    if (!*out) return err_set(l->e, ERR_NOMEM, "no memory for tensor %s", t->name);
    floats_to_f32(t->type, t->data, t->dim[0], (float *)(void *)l->chunk);
    l->p->be->ops->mem_put(l->p->be, *out, l->chunk, bytes);
    report(l, t->bytes);
    return ERR_OK;
}

static struct layer *layer_of(const struct model_part *p, const struct tensor_slot *slot) {
    ASSERT(slot->layer >= p->a && slot->layer < p->b);
    return &p->layers[slot->layer - p->a];
}

static int load_expert(struct loader *l, const struct tensor *t, const struct tensor_slot *slot) {
    struct layer *layer = layer_of(l->p, slot);
    struct weight ***list = &layer->expert[slot->which];
    if (!*list) *list = calloc(l->p->h.n_experts, sizeof **list);
    if (!*list) return err_set(l->e, ERR_NOMEM, "no memory for tensor %s", t->name);
    return load_matrix(l, t, true, &(*list)[slot->expert], &layer->has_block);
}

static int visit_load(void *arg, const struct tensor_need *n, const struct tensor_slot *slot) {
    struct loader *l = arg;
    struct model_part *p = l->p;
    const struct tensor *t = tensors_find(l->tensors, n->name);
    bool ignored = false;
    switch (slot->place) {
    case PLACE_MATRIX: {
        struct layer *layer = layer_of(p, slot);
        return load_matrix(l, t, n->is_matrix, &layer->matrix[slot->which], &layer->has_block);
    }
    case PLACE_VECTOR:
        return load_vector(l, t, &layer_of(p, slot)->vector[slot->which]);
    case PLACE_EXPERT:
        return load_expert(l, t, slot);
    case PLACE_EMBED:
        return load_matrix(l, t, true, &p->embed, p->h.tied_embedding ? &p->head_has_block : &ignored);
    case PLACE_FINAL_NORM:
        return load_vector(l, t, &p->final_norm);
    case PLACE_HEAD:
        return load_matrix(l, t, true, &p->head, &p->head_has_block);
    }
    return ERR_OK;
}

static struct model_part *part_new(const struct hparams *h, const struct run_mode *m, struct backend *be, uint32_t a,
                                   uint32_t b) {
    struct model_part *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->h = *h;
    p->mode = *m;
    p->be = be;
    p->a = a;
    p->b = b;
    p->layers = calloc(b - a, sizeof *p->layers);
    if (p->layers) return p;
    free(p);
    return NULL;
}

int model_part_load(const struct hparams *h, const struct run_mode *m, const struct tensors *t, struct backend *be,
                    uint32_t a, uint32_t b, const struct model_progress *progress, struct model_part **part,
                    struct err *e) {
    ASSERT(a < b && b <= h->n_layers);
    struct err own; // the visitors put text into it, wanted or not
    struct loader l = {.tensors = t, .progress = progress, .e = e ? e : &own};
    int rc = family_walk(h, a, b, &(struct tensor_visitor){visit_check, &l});
    if (rc) return rc;
    l.p = part_new(h, m, be, a, b);
    if (!l.p) return err_set(e, ERR_NOMEM, "no memory for %u layers", b - a);
    rc = family_walk(h, a, b, &(struct tensor_visitor){visit_load, &l});
    free(l.chunk);
    if (rc) {
        model_part_free(l.p);
        return rc;
    }
    if (b == h->n_layers && h->tied_embedding) l.p->head = l.p->embed;
    *part = l.p;
    return ERR_OK;
}

static void layer_free(const struct model_part *p, struct layer *l) {
    for (uint32_t i = 0; i < MAT_N; i++)
        if (l->matrix[i]) p->be->ops->weight_free(l->matrix[i]);
    for (uint32_t i = 0; i < VEC_N; i++)
        if (l->vector[i]) p->be->ops->mem_free(p->be, l->vector[i]);
    for (uint32_t i = 0; i < EXP_N; i++) {
        for (uint32_t x = 0; l->expert[i] && x < p->h.n_experts; x++)
            if (l->expert[i][x]) p->be->ops->weight_free(l->expert[i][x]);
        free(l->expert[i]);
    }
}

void model_part_free(struct model_part *p) {
    if (!p) return;
    for (uint32_t i = 0; i < p->b - p->a; i++) layer_free(p, &p->layers[i]);
    if (p->head && p->head != p->embed) p->be->ops->weight_free(p->head);
    if (p->embed) p->be->ops->weight_free(p->embed);
    if (p->final_norm) p->be->ops->mem_free(p->be, p->final_norm);
    free(p->layers);
    free(p);
}
