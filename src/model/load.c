#include "model/family.h"
#include "model/load_int.h"

#include "base/log.h"
#include "weights/quantize.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad_shape(const struct loader *l, const struct tensor *t, const struct tensor_need *n) {
    char have[128] = "", want[64], name[LIMIT_TENSOR_NAME];
    for (uint32_t i = 0; i < t->n_dims; i++) {
        size_t len = strlen(have);
        snprintf(have + len, sizeof have - len, "%s%llu", i ? ", " : "", (unsigned long long)t->dim[i]);
    }
    int at = snprintf(want, sizeof want, "%llu", (unsigned long long)n->dim[0]);
    if (n->dim[1]) snprintf(want + at, sizeof want - (size_t)at, ", %llu", (unsigned long long)n->dim[1]);
    return err_set(l->e, ERR_FORMAT, "tensor %s: shape [%s], but %s it [%s]",
                   tensors_file_tensor(l->tensors, n->name, name), have,
                   tensors_gguf(l->tensors) ? "the keys of the file make" : "config.json makes", want);
}

static int missing(const struct loader *l, const char *name) {
    char own[LIMIT_TENSOR_NAME];
    if (strcmp(name, "lm_head.weight") == 0 && !tensors_gguf(l->tensors))
        return err_set(l->e, ERR_NOT_FOUND,
                       "tensor %s is not in the model files; where the embedding is the output head too, config.json "
                       "has \"tie_word_embeddings\": true",
                       name);
    return err_set(l->e, ERR_NOT_FOUND, "tensor %s is not in the model files",
                   tensors_file_tensor(l->tensors, name, own));
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
    char name[LIMIT_TENSOR_NAME];
    const struct tensor *t = tensors_find(l->tensors, n->name);
    if (!t) return missing(l, n->name);
    bool vector = n->dim[1] == 0;
    if (t->n_dims != (vector ? 1u : 2u) || t->dim[0] != n->dim[0] || (!vector && t->dim[1] != n->dim[1]))
        return bad_shape(l, t, n);
    const struct dtype_info *info = dtype_info(t->type);
    if (!may_be(info, slot->place, vector))
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s: type %s cannot be a weight here",
                       tensors_file_tensor(l->tensors, n->name, name), info->name);
    uint64_t k = vector ? t->dim[0] : t->dim[1], rows = vector ? 1 : t->dim[0];
    if (t->type != DT_L8 && k % info->block_values)
        return err_set(l->e, ERR_FORMAT, "tensor %s: rows of %llu values; %s has blocks of %u",
                       tensors_file_tensor(l->tensors, n->name, name), (unsigned long long)k, info->name,
                       info->block_values);
    if (t->bytes != rows * dtype_row_bytes(t->type, k))
        return err_set(l->e, ERR_FORMAT, "tensor %s: %llu bytes, but its shape needs %llu",
                       tensors_file_tensor(l->tensors, n->name, name), (unsigned long long)t->bytes,
                       (unsigned long long)(rows * dtype_row_bytes(t->type, k)));
    l->total_bytes += t->bytes;
    return t->type == DT_F8_E4M3 ? check_scale(l, t) : ERR_OK;
}

void load_report(struct loader *l) {
    uint64_t done_bytes = atomic_load(&l->done_bytes);
    if (done_bytes == l->told_bytes) return;
    l->told_bytes = done_bytes;
    if (l->progress && l->progress->fn) l->progress->fn(l->progress->arg, done_bytes, l->total_bytes);
}

int load_await(const struct loader *l, const struct tensor *t) {
    return l->progress && l->progress->await ? l->progress->await(l->progress->arg, t->name, l->e) : ERR_OK;
}

// add: to each value, what the files leave out (hparams.norm_plus_one).
static int load_vector(struct loader *l, const struct tensor *t, float add, uint32_t head_dim, float **out) {
    const uint64_t n = t->dim[0], bytes = n * sizeof(float);
    struct load_thread *k = &l->threads[0];
    char name[LIMIT_TENSOR_NAME];
    if (!piece_need(&k->raw, t->bytes) || !piece_need(&k->values, bytes) || !piece_need(&k->made, bytes) ||
        !(*out = l->p->be->ops->mem_alloc(l->p->be, bytes)))
        return err_set(l->e, ERR_NOMEM, "no memory for tensor %s", t->name);
    int rc = tensors_read(l->tensors, t, 0, k->raw.data, t->bytes, l->e);
    if (rc) return rc; // it names the tensor
    rc = floats_check(t->type, k->raw.data, n, l->e);
    if (rc) return err_prefix(l->e, "tensor %s", tensors_file_tensor(l->tensors, t->name, name));
    const float *from = (const float *)(void *)k->values.data;
    float *to = (float *)(void *)k->made.data;
    floats_to_f32(t->type, k->raw.data, n, (float *)(void *)k->values.data);
    for (uint64_t i = 0; i < n; i++) to[i] = from[load_file_row(head_dim, i)] + add;
    l->p->be->ops->mem_put(l->p->be, *out, to, bytes);
    atomic_fetch_add(&l->done_bytes, t->bytes);
    load_report(l);
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
    int rc = load_await(l, t);
    if (rc) return rc;
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
        atomic_fetch_add(&l->done_bytes, t->bytes);
        return ERR_OK;
    }
    return ERR_OK;
}

static int threads_new(struct loader *l, const struct backend *be) {
    l->n_threads = be->ops->threads(be);
    const size_t bytes = l->n_threads * sizeof *l->threads;
    l->threads = aligned_alloc(_Alignof(struct load_thread), bytes);
    if (!l->threads) return err_set(l->e, ERR_NOMEM, "no memory to load with");
    memset(l->threads, 0, bytes);
    return ERR_OK;
}

static void threads_free(struct loader *l) {
    for (uint32_t i = 0; i < l->n_threads; i++) {
        free(l->threads[i].raw.data);
        free(l->threads[i].heads.data);
        free(l->threads[i].values.data);
        free(l->threads[i].made.data);
    }
    free(l->threads);
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

int model_check_tensors(const struct hparams *h, const struct tensors *t, struct err *e) {
    struct err own; // the visitor puts text into it, wanted or not
    struct loader l = {.tensors = t, .e = e ? e : &own};
    return family_walk(h, 0, h->n_layers, &(struct tensor_visitor){visit_check, &l});
}

int model_part_load(const struct hparams *h, const struct run_mode *m, const struct tensors *t, struct backend *be,
                    uint32_t a, uint32_t b, const struct model_progress *progress, struct model_part **part,
                    struct err *e) {
    ASSERT(a < b && b <= h->n_layers);
    struct err own; // the visitors put text into it, wanted or not
    struct loader l = {.tensors = t, .progress = progress, .e = e ? e : &own};
    int rc = family_walk(h, a, b, &(struct tensor_visitor){visit_check, &l});
    if (rc) return rc;
    rc = threads_new(&l, be);
    if (rc) return rc;
    l.p = part_new(h, m, be, a, b);
    if (!l.p)
        rc = err_set(e, ERR_NOMEM, "no memory for %u layers", b - a);
    else
        rc = family_walk(h, a, b, &(struct tensor_visitor){visit_load, &l});
    threads_free(&l);
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
