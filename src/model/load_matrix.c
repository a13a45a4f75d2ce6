// A matrix on its way from a file to the backend. The rows are cut into pieces that stay in a core's cache from the
// read to the store, and the threads take one after the other, so that the file is read once and in order, and nothing
// of it is left in memory but what the backend keeps.
#include "model/load_int.h"

#include "weights/dequant.h"
#include "weights/quantize.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 256 << 10, PIECE_ROWS = 16 };

struct matrix {
    struct loader *l;
    const struct tensor *t;
    const struct tensor *scale; // of F8_E4M3: one for each 128 x 128 values
    enum dtype to;
    uint32_t head_dim; // of load_matrix
    uint32_t run;      // rows of a piece
    struct weight *w;
    atomic_uint_least64_t bad_row; // the first row of which it is known that it cannot be put
};

bool piece_need(struct piece *p, uint64_t bytes) {
    if (bytes <= p->cap) return true;
    uint8_t *c = realloc(p->data, bytes);
    if (!c) return false;
    p->data = c;
    p->cap = bytes;
    return true;
}

uint64_t load_file_row(uint32_t head_dim, uint64_t row) {
    if (!head_dim) return row;
    uint64_t i = row % head_dim, half = head_dim / 2;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

// Rows [row, row + n) in the model's order, as the file has them. Where they go by pairs, these are whole heads.
static int read_rows(struct load_thread *k, const struct matrix *m, uint64_t row, uint64_t n) {
    const uint64_t row_bytes = dtype_row_bytes(m->t->type, m->t->dim[1]);
    struct piece *p = m->head_dim ? &k->heads : &k->raw;
    if (!piece_need(p, n * row_bytes) || !piece_need(&k->raw, n * row_bytes))
        return err_set(&k->e, ERR_NOMEM, "no memory to read it");
    int rc = tensors_read(m->l->tensors, m->t, row * row_bytes, p->data, n * row_bytes, &k->e);
    for (uint64_t i = 0; m->head_dim && i < n && !rc; i++)
        memcpy(k->raw.data + i * row_bytes, p->data + load_file_row(m->head_dim, i) * row_bytes, row_bytes);
    return rc;
}

static int check_finite(struct load_thread *k, enum dtype type, const uint8_t *src, uint64_t n, uint64_t width) {
    if (dtype_info(type)->is_float) return floats_check(type, src, n * width, &k->e);
    for (uint64_t i = 0; i < n; i++, src += dtype_row_bytes(type, width))
        if (!dtype_row_is_finite(type, src, width))
            return err_set(&k->e, ERR_FORMAT, "NaN or Inf among the scales of row %llu", (unsigned long long)i);
    return ERR_OK;
}

// Rows of a type that is not kept, as f32: into what the backend gets if that is what they become, else on to their
// type.
static int through_f32(struct load_thread *k, const struct matrix *m, uint64_t row, uint64_t n) {
    const uint64_t width = m->t->dim[1];
    struct piece *p = m->to == DT_F32 ? &k->made : &k->values;
    if (!piece_need(p, n * width * sizeof(float))) return err_set(&k->e, ERR_NOMEM, "no memory to convert it");
    float *values = (float *)(void *)p->data;
    if (m->scale) {
        ASSERT(!m->head_dim);
        dequant_f8_rows(k->raw.data, row, n, width, m->scale->type, m->scale->data, values);
    } else {
        for (uint64_t i = 0; i < n; i++)
            dequant_row(m->t->type, k->raw.data + i * dtype_row_bytes(m->t->type, width), width, values + i * width);
    }
    if (m->to != DT_F32) return quantize_rows(DT_F32, values, n, width, m->to, k->made.data, &k->e);
    return floats_check(DT_F32, values, n * width, &k->e);
}

// Rows [row, row + n) as type m->to; *out is one of k's pieces.
static int make_rows(struct load_thread *k, const struct matrix *m, uint64_t row, uint64_t n, const uint8_t **out) {
    const enum dtype from = m->t->type;
    const uint64_t width = m->t->dim[1];
    int rc = read_rows(k, m, row, n);
    if (rc) return rc;
    *out = k->raw.data;
    if (m->to == from) return check_finite(k, from, k->raw.data, n, width);
    if (!piece_need(&k->made, n * dtype_row_bytes(m->to, width)))
        return err_set(&k->e, ERR_NOMEM, "no memory to convert it");
    bool direct = dtype_info(from)->is_float && m->to != DT_F32;
    rc = direct ? quantize_rows(from, k->raw.data, n, width, m->to, k->made.data, &k->e) : through_f32(k, m, row, n);
    *out = k->made.data;
    return rc;
}

// Pieces are taken in their order. One behind a row that failed is left out, one before it is not: so the error that is
// told is the same with any number of threads.
static void put_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct matrix *m = arg;
    struct loader *l = m->l;
    struct load_thread *k = &l->threads[thread];
    const uint32_t n_rows = (uint32_t)m->t->dim[0];
    for (uint32_t i = begin; i < end; i++) {
        uint32_t row = i * m->run, n = n_rows - row < m->run ? n_rows - row : m->run;
        const uint8_t *rows;
        if (k->rc || row > atomic_load(&m->bad_row)) return;
        k->rc = make_rows(k, m, row, n, &rows);
        if (k->rc) {
            uint_least64_t bad = atomic_load(&m->bad_row);
            k->bad_row = row;
            while (row < bad && !atomic_compare_exchange_weak(&m->bad_row, &bad, row)) {
            }
            return;
        }
        l->p->be->ops->weight_put(m->w, row, n, rows);
        atomic_fetch_add(&l->done_bytes, n * dtype_row_bytes(m->t->type, m->t->dim[1]));
        if (thread == 0) load_report(l);
    }
}

static int first_error(struct loader *l, const struct matrix *m) {
    const struct load_thread *first = NULL;
    for (uint32_t i = 0; i < l->n_threads; i++)
        if (l->threads[i].rc && (!first || l->threads[i].bad_row < first->bad_row)) first = &l->threads[i];
    if (!first) return ERR_OK;
    *l->e = first->e;
    char name[LIMIT_TENSOR_NAME];
    return err_prefix(l->e, "tensor %s, from row %llu", tensors_file_tensor(l->tensors, m->t->name, name),
                      (unsigned long long)first->bad_row);
}

// A multiple of PIECE_ROWS, and of the rows of a head.
static uint32_t piece_rows(uint64_t row_bytes, uint32_t head_dim) {
    uint32_t step = head_dim ? head_dim : PIECE_ROWS;
    while (step % PIECE_ROWS) step += head_dim;
    return row_bytes * step < PIECE_BYTES ? (uint32_t)(PIECE_BYTES / row_bytes) / step * step : step;
}

int load_matrix(struct loader *l, const struct tensor *t, bool is_matrix, uint32_t head_dim, struct weight **out,
                bool *has_block) {
    const struct backend_ops *ops = l->p->be->ops;
    struct matrix m = {.l = l,
                       .t = t,
                       .to = part_kept_type(&l->p->mode, t->type, is_matrix, t->dim[1]),
                       .head_dim = head_dim,
                       .bad_row = UINT64_MAX};
    const uint32_t n_rows = (uint32_t)t->dim[0], k = (uint32_t)t->dim[1];
    const uint64_t row_bytes = dtype_row_bytes(t->type, k);
    if (t->type == DT_F8_E4M3) {
        char name[LIMIT_TENSOR_NAME + 16];
        snprintf(name, sizeof name, "%s_scale_inv", t->name);
        m.scale = tensors_find(l->tensors, name);
        int rc = load_await(l, m.scale);
        if (rc) return rc;
    }
    m.run = piece_rows(row_bytes, head_dim);
    m.w = *out = ops->weight_new(l->p->be, m.to, n_rows, k);
    if (!m.w)
        return err_set(l->e, ERR_NOMEM, "tensor %s: no memory for its %llu bytes on %s", t->name,
                       (unsigned long long)ops->weight_bytes(m.to, n_rows, k), ops->name);
    ops->spread(l->p->be, put_pieces, &m, (n_rows + m.run - 1) / m.run, 1);
    int rc = first_error(l, &m);
    if (rc) return rc;
    load_report(l);
    *has_block |= dtype_info(m.to)->is_block;
    return ERR_OK;
}
