#include "model/family.h"

#include "base/log.h"
#include "weights/dequant.h"
#include "weights/quantize.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20, CHUNK_ROWS = 16 };

struct piece {
    uint8_t *data;
    uint64_t cap;
};

// What a load carries from tensor to tensor.
struct loader {
    struct model_part *p;
    const struct tensors *tensors;
    const struct model_progress *progress;
    uint64_t done_bytes, total_bytes;
    struct piece chunk;  // rows on their way into the backend's own layout
    struct piece turned; // the file's rows in the model's order
    struct piece values; // rows as f32 between two types
    struct err *e;
};

// A matrix on its way.
struct matrix {
    const struct tensor *t;
    const struct tensor *scale; // of F8_E4M3: one for each 128 x 128 values
    enum dtype to;
    uint32_t head_dim; // the rows of a head lie in RoPE pairs (hparams.qk_interleaved); 0: they do not
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

// FP8 comes with its scales.
static int check_scale(struct loader *l, const struct tensor *t) {
    char name[LIMIT_TENSOR_NAME + 16];
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const struct tensor *s = tensors_find(l->tensors, name);
    if (!s) return err_set(l->e, ERR_NOT_FOUND, "tensor %s: F8_E4M3, but there is no %s", t->name, name);
    if (s->n_dims != 2 || s->dim[0] != (t->dim[0] + 127) / 128 || s->dim[1] != (t->dim[1] + 127) / 128 ||
        !dtype_info(s->type)->is_float)
        return err_set(l->e, ERR_FORMAT, "tensor %s: not one float for each 128 x 128 values of %s", name, t->name);
    return ERR_OK;
}

static bool may_be(const struct dtype_info *info, enum tensor_place place, bool is_vector) {
    if (info->is_float) return true;
    return !is_vector && place != PLACE_SCALE && (info->is_block || info->is_converted);
}

// First pass: all tensors are there and of the right shape, before the long work begins.
static int visit_check(void *arg, const struct tensor_need *n, const struct tensor_slot *slot) {
    struct loader *l = arg;
    const struct tensor *t = tensors_find(l->tensors, n->name);
    if (!t) return err_set(l->e, ERR_NOT_FOUND, "tensor %s is not in the model files", n->name);
    bool vector = n->dim[1] == 0;
    if (t->n_dims != (vector ? 1u : 2u) || t->dim[0] != n->dim[0] || (!vector && t->dim[1] != n->dim[1]))
        return bad_shape(t, n, l->e);
    const struct dtype_info *info = dtype_info(t->type);
    if (!may_be(info, slot->place, vector))
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s cannot be a weight here", n->name, info->name);
    uint64_t k = vector ? t->dim[0] : t->dim[1], rows = vector ? 1 : t->dim[0];
    if (t->type != DT_L8 && k % info->block_values)
        return err_set(l->e, ERR_FORMAT, "tensor %s: rows of %llu values; %s has blocks of %u", n->name,
                       (unsigned long long)k, info->name, info->block_values);
    if (t->bytes != rows * dtype_row_bytes(t->type, k))
        return err_set(l->e, ERR_FORMAT, "tensor %s: %llu bytes, but its shape needs %llu", n->name,
                       (unsigned long long)t->bytes, (unsigned long long)(rows * dtype_row_bytes(t->type, k)));
    l->total_bytes += t->bytes;
    return t->type == DT_F8_E4M3 ? check_scale(l, t) : ERR_OK;
}

static void report(struct loader *l, uint64_t bytes) {
    l->done_bytes += bytes;
    if (l->progress && l->progress->fn) l->progress->fn(l->progress->arg, l->done_bytes, l->total_bytes);
}

static bool need(struct piece *p, uint64_t bytes) {
    if (bytes <= p->cap) return true;
    uint8_t *c = realloc(p->data, bytes);
    if (!c) return false;
    p->data = c;
    p->cap = bytes;
    return true;
}

// Where the file has row i of a head of n, if the rows go by pairs that turn together: 0, n/2, 1, n/2 + 1, ...
static uint64_t file_row(uint32_t head_dim, uint64_t row) {
    if (!head_dim) return row;
    uint64_t i = row % head_dim, half = head_dim / 2;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

// Rows [row, row + n) in the model's order, as the file has them.
static int file_rows(struct loader *l, const struct matrix *m, uint64_t row, uint64_t n, const uint8_t **out) {
    const uint64_t row_bytes = dtype_row_bytes(m->t->type, m->t->dim[1]);
    *out = m->t->data + row * row_bytes;
    if (!m->head_dim) return ERR_OK;
    if (!need(&l->turned, n * row_bytes)) return err_set(l->e, ERR_NOMEM, "no memory to order its rows");
    for (uint64_t i = 0; i < n; i++)
        memcpy(l->turned.data + i * row_bytes, m->t->data + file_row(m->head_dim, row + i) * row_bytes, row_bytes);
    *out = l->turned.data;
    return ERR_OK;
}

static int check_finite(struct loader *l, enum dtype type, const uint8_t *src, uint64_t n, uint64_t k) {
    if (dtype_info(type)->is_float) return floats_check(type, src, n * k, l->e);
    for (uint64_t i = 0; i < n; i++, src += dtype_row_bytes(type, k))
        if (!dtype_row_is_finite(type, src, k))
            return err_set(l->e, ERR_FORMAT, "NaN or Inf among the scales of row %llu", (unsigned long long)i);
    return ERR_OK;
}

// Rows of a type that is not kept, as f32: into the chunk if that is what they become, else on to their type.
static int through_f32(struct loader *l, const struct matrix *m, uint64_t row, uint64_t n, const uint8_t *src) {
    const uint64_t k = m->t->dim[1];
    struct piece *p = m->to == DT_F32 ? &l->chunk : &l->values;
    if (!need(p, n * k * sizeof(float))) return err_set(l->e, ERR_NOMEM, "no memory to convert it");
    float *values = (float *)(void *)p->data;
    if (m->scale) {
        ASSERT(!m->head_dim);
        dequant_f8_rows(src, row, n, k, m->scale->type, m->scale->data, values);
    } else {
        for (uint64_t i = 0; i < n; i++)
            dequant_row(m->t->type, src + i * dtype_row_bytes(m->t->type, k), k, values + i * k);
    }
    if (m->to != DT_F32) return quantize_rows(DT_F32, values, n, k, m->to, l->chunk.data, l->e);
    return floats_check(DT_F32, values, n * k, l->e);
}

// Rows [row, row + n) as type m->to in the chunk.
static int convert_rows(struct loader *l, const struct matrix *m, uint64_t row, uint64_t n) {
    const enum dtype from = m->t->type;
    const uint64_t k = m->t->dim[1];
    const uint8_t *src;
    int rc = file_rows(l, m, row, n, &src);
    if (rc) return rc;
    if (m->to == from) {
        rc = check_finite(l, from, src, n, k);
        if (!rc) memcpy(l->chunk.data, src, n * dtype_row_bytes(from, k));
        return rc;
    }
    if (!dtype_info(from)->is_float || m->to == DT_F32) return through_f32(l, m, row, n, src);
    return quantize_rows(from, src, n, k, m->to, l->chunk.data, l->e);
}

static int load_matrix(struct loader *l, const struct tensor *t, bool is_matrix, uint32_t head_dim, struct weight **out,
                       bool *has_block) {
    const struct backend_ops *ops = l->p->be->ops;
    struct matrix m = {.t = t, .to = part_kept_type(&l->p->mode, t->type, is_matrix, t->dim[1]), .head_dim = head_dim};
    uint32_t n_rows = (uint32_t)t->dim[0], k = (uint32_t)t->dim[1];
    uint64_t row_bytes = dtype_row_bytes(m.to, k);
    uint32_t run = CHUNK_ROWS;
    if (t->type == DT_F8_E4M3) {
        char name[LIMIT_TENSOR_NAME + 16];
        snprintf(name, sizeof name, "%s_scale_inv", t->name);
        m.scale = tensors_find(l->tensors, name);
    }
    if (row_bytes * CHUNK_ROWS < CHUNK_BYTES) run = (uint32_t)(CHUNK_BYTES / row_bytes) / CHUNK_ROWS * CHUNK_ROWS;
    if (!need(&l->chunk, run * row_bytes)) return err_set(l->e, ERR_NOMEM, "no memory to convert tensor %s", t->name);
    struct weight *w = *out = ops->weight_new(l->p->be, m.to, n_rows, k);
    if (!w)
        return err_set(l->e, ERR_NOMEM, "tensor %s: no memory for its %llu bytes on %s", t->name,
                       (unsigned long long)ops->weight_bytes(m.to, n_rows, k), ops->name);
    for (uint32_t row = 0; row < n_rows; row += run) {
        uint32_t n = n_rows - row < run ? n_rows - row : run;
        int rc = convert_rows(l, &m, row, n);
        if (rc) return err_prefix(l->e, "tensor %s, from row %u", t->name, row);
        ops->weight_put(w, row, n, l->chunk.data);
        report(l, n * dtype_row_bytes(t->type, k));
    }
    *has_block |= dtype_info(m.to)->is_block;
    return ERR_OK;
}

// add: to each value, what the files leave out (hparams.norm_plus_one).
static int load_vector(struct loader *l, const struct tensor *t, float add, uint32_t head_dim, float **out) {
    const uint64_t n = t->dim[0], bytes = n * sizeof(float);
    int rc = floats_check(t->type, t->data, n, l->e);
    if (rc) return err_prefix(l->e, "tensor %s", t->name);
    bool room = need(&l->values, bytes) && need(&l->chunk, bytes);
    *out = room ? l->p->be->ops->mem_alloc(l->p->be, bytes) : NULL;
    if (!*out) return err_set(l->e, ERR_NOMEM, "no memory for tensor %s", t->name);
    const float *from = (const float *)(void *)l->values.data;
    float *to = (float *)(void *)l->chunk.data;
    floats_to_f32(t->type, t->data, n, (float *)(void *)l->values.data);
    for (uint64_t i = 0; i < n; i++) to[i] = from[file_row(head_dim, i)] + add;
    l->p->be->ops->mem_put(l->p->be, *out, to, bytes);
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
    return load_matrix(l, t, true, 0, &(*list)[slot->expert], &layer->has_block);
}

static int load_layer_matrix(struct loader *l, const struct tensor *t, const struct tensor_need *n,
                             const struct tensor_slot *slot) {
    const struct hparams *h = &l->p->h;
    struct layer *layer = layer_of(l->p, slot);
    bool turned = h->qk_interleaved && (slot->which == MAT_Q || slot->which == MAT_K);
    return load_matrix(l, t, n->is_matrix, turned ? h->head_dim : 0, &layer->matrix[slot->which], &layer->has_block);
}

static int load_layer_vector(struct loader *l, const struct tensor *t, const struct tensor_slot *slot) {
    const struct hparams *h = &l->p->h;
    bool turned = h->qk_interleaved && (slot->which == VEC_BIAS_Q || slot->which == VEC_BIAS_K);
    float add = h->norm_plus_one && slot->which < VEC_NORM_N ? 1 : 0;
    return load_vector(l, t, add, turned ? h->head_dim : 0, &layer_of(l->p, slot)->vector[slot->which]);
}

static int visit_load(void *arg, const struct tensor_need *n, const struct tensor_slot *slot) {
    struct loader *l = arg;
    struct model_part *p = l->p;
    const struct tensor *t = tensors_find(l->tensors, n->name);
    bool ignored = false;
    switch (slot->place) {
    case PLACE_MATRIX:
        return load_layer_matrix(l, t, n, slot);
    case PLACE_VECTOR:
        return load_layer_vector(l, t, slot);
    case PLACE_EXPERT:
        return load_expert(l, t, slot);
    case PLACE_EMBED:
        return load_matrix(l, t, true, 0, &p->embed, p->h.tied_embedding ? &p->head_has_block : &ignored);
    case PLACE_FINAL_NORM:
        return load_vector(l, t, p->h.norm_plus_one ? 1 : 0, 0, &p->final_norm);
    case PLACE_HEAD:
        return load_matrix(l, t, true, 0, &p->head, &p->head_has_block);
    case PLACE_SCALE:
        report(l, t->bytes);
        return ERR_OK;
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
    free(l.chunk.data);
    free(l.turned.data);
    free(l.values.data);
    if (rc) {
        model_part_free(l.p);
        return rc;
    }
    if (b == h->n_layers && h->tied_embedding) l.p->head = l.p->embed;
    char text[256];
    model_conversions(h, m, t, a, b, text, sizeof text);
    if (text[0]) LOG_I("model", "layers %u to %u: converted: %s", a, b - 1, text);
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
