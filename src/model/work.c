// What a step reads and multiplies, by operation: for measurements, which compare speeds with what the machine can do.
#include "model/family.h"

#include <math.h>

static const char *const NAMES[OP_N] = {
    [OP_QKV] = "qkv",
    [OP_O] = "o",
    [OP_FFN] = "ffn",
    [OP_HEAD] = "head",
    [OP_QUANT] = "quant",
    [OP_NORM] = "norm",
    [OP_ROPE] = "rope",
    [OP_KV_WRITE] = "kv_write",
    [OP_ATTENTION] = "attention",
    [OP_ACT] = "act",
    [OP_ROUTER] = "router",
    [OP_EXPERTS] = "experts",
    [OP_SAMPLE] = "sample",
    [OP_REST] = "rest",
};

const char *model_op_name(enum model_op op) {
    ASSERT(op < OP_N);
    return NAMES[op];
}

struct matrices {
    const struct hparams *h;
    const struct run_mode *mode;
    const struct backend_ops *ops;
    const struct tensors *tensors;
    struct model_matrices *out;
    double type_bytes[DT_N];
};

// The operation that multiplies by a matrix; OP_N: none does.
static enum model_op op_of(const struct hparams *h, const struct tensor_slot *slot) {
    if (slot->place == PLACE_EMBED) return h->tied_embedding ? OP_HEAD : OP_N; // else looked up row by row
    if (slot->place == PLACE_HEAD) return OP_HEAD;
    if (slot->place == PLACE_EXPERT) return OP_EXPERTS;
    if (slot->place != PLACE_MATRIX) return OP_N;
    if (slot->which == MAT_ROUTER) return OP_ROUTER;
    if (slot->which == MAT_O) return OP_O;
    return slot->which <= MAT_V ? OP_QKV : OP_FFN;
}

static int visit_matrix(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct matrices *m = arg;
    enum model_op op = op_of(m->h, slot);
    const struct tensor *file = op == OP_N ? NULL : tensors_find(m->tensors, need->name);
    if (!file) return 0;
    enum dtype t = part_kept_type(m->mode, file->type, need->is_matrix, need->dim[1]);
    double bytes = (double)m->ops->weight_bytes(t, (uint32_t)need->dim[0], (uint32_t)need->dim[1]);
    m->out->bytes[op] += bytes;
    if (op != OP_ROUTER) m->out->macs[op] += (double)need->dim[0] * (double)need->dim[1]; // the router is in f32
    m->type_bytes[t] += bytes;
    return 0;
}

void model_matrices(const struct hparams *h, const struct run_mode *mode, const struct backend_ops *ops,
                    const struct tensors *t, struct model_matrices *out) {
    struct matrices m = {.h = h, .mode = mode, .ops = ops, .tensors = t, .out = out};
    *out = (struct model_matrices){.most = DT_F32};
    int rc = family_walk(h, 0, h->n_layers, &(struct tensor_visitor){visit_matrix, &m});
    ASSERT(rc == 0);
    for (int i = 0; i < DT_N; i++)
        if (m.type_bytes[i] > m.type_bytes[out->most]) out->most = (enum dtype)i;
}

// Keys that the n queries from pos on look at together, and (query, key) pairs, of a layer with this window.
static void count_keys(uint32_t window, double pos, double n, double *keys, double *pairs) {
    double w = window ? (double)window : (double)INFINITY, last = pos + n;
    double first_kept = pos + 1 < w ? 0 : pos + 1 - w; // the first key of the first query
    double growing = fmin(fmax(w - pos, 0), n);        // queries that still see all keys
    *keys = last - first_kept;
    *pairs = growing * pos + growing * (growing + 1) / 2;
    if (growing < n) *pairs += (n - growing) * w;
}

void model_add_step(const struct hparams *h, enum kv_type kv, const struct model_matrices *m,
                    const struct model_step *s, struct model_work *w) {
    double rows = (double)s->n_seqs * s->n_rows, kv_bytes = (double)model_kv_bytes_per_token(h, kv, 1);
    double chosen = h->n_experts ? (double)h->top_k / h->n_experts : 0;
    for (int i = 0; i < OP_N; i++) {
        double through = rows, read = rows > 0;
        if (i == OP_EXPERTS) {
            through = rows * chosen;
            read = 1 - pow(1 - chosen, rows);
        }
        if (i == OP_HEAD) {
            through = s->draws ? s->n_seqs : 0;
            read = through > 0;
        }
        w->bytes[i] += m->bytes[i] * read;
        w->macs[i] += m->macs[i] * through;
    }
    for (uint32_t i = 0; i < h->n_layers; i++) {
        double keys, pairs;
        count_keys(h->window_layer[i] ? h->window : 0, s->pos, s->n_rows, &keys, &pairs);
        w->bytes[OP_ATTENTION] += s->n_seqs * keys * kv_bytes;
        if (kv == KV_I8) w->macs[OP_ATTENTION] += 2.0 * s->n_seqs * pairs * h->n_heads * h->head_dim;
    }
}
