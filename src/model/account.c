// What a model needs and takes, without loading it: tensors, bytes, and the hash of all that decides its bytes.
#include "base/map.h"
#include "model/family.h"

#include <string.h>

static uint64_t round_up64(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

struct needs {
    int (*fn)(void *arg, const struct tensor_need *n);
    void *arg;
};

static int visit_need(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    const struct needs *n = arg;
    (void)slot;
    return n->fn(n->arg, need);
}

int model_needs(const struct hparams *h, uint32_t a, uint32_t b, int (*fn)(void *arg, const struct tensor_need *n),
                void *arg) {
    ASSERT(a < b && b <= h->n_layers);
    struct needs n = {fn, arg};
    return family_walk(h, a, b, &(struct tensor_visitor){visit_need, &n});
}

enum dtype part_kept_type(const struct run_mode *m, enum dtype file_type, bool is_matrix, uint64_t k) {
    if (!is_matrix) return DT_F32;
    if (!dtype_info(file_type)->is_float) return file_type;
    if (m->verify || m->weights == WEIGHTS_AS_IS) return file_type;
    enum dtype t = DT_L8;
    if (m->weights == WEIGHTS_Q8_0) t = DT_Q8_0;
    if (m->weights == WEIGHTS_Q4_0) t = DT_Q4_0;
    return k % dtype_info(t)->block_values ? DT_L8 : t;
}

struct sum {
    const struct hparams *h;
    const struct run_mode *mode;
    const struct backend_ops *ops;
    uint64_t bytes;
};

static int visit_bytes(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct sum *s = arg;
    (void)slot;
    enum dtype t = part_kept_type(s->mode, s->h->float_type, need->is_matrix, need->dim[1]);
    s->bytes += need->dim[1] ? s->ops->weight_bytes(t, (uint32_t)need->dim[0], (uint32_t)need->dim[1])
                             : round_up64(need->dim[0] * sizeof(float));
    return 0;
}

uint64_t model_layer_bytes(const struct hparams *h, const struct run_mode *m, const struct backend_ops *ops, uint32_t a,
                           uint32_t b) {
    struct sum s = {.h = h, .mode = m, .ops = ops};
    int rc = family_walk(h, a, b, &(struct tensor_visitor){visit_bytes, &s});
    ASSERT(rc == 0);
    return s.bytes;
}

uint64_t model_kv_bytes_per_token(const struct hparams *h, enum kv_type kv, uint32_t n_layers) {
    uint64_t heads = 2ull * n_layers * h->n_kv_heads;
    if (kv == KV_I8) return heads * (h->head_dim + sizeof(float));
    return heads * h->head_dim * (kv == KV_F16 ? 2 : 4);
}

struct hash_text {
    uint8_t bytes[LIMIT_LAYERS * 2 + LIMIT_HEAD_DIM * 4 + 256];
    size_t len;
};

static void hash_add(struct hash_text *t, uint64_t v, size_t bytes) {
    ASSERT(t->len + bytes <= sizeof t->bytes);
    for (size_t i = 0; i < bytes; i++) t->bytes[t->len++] = (uint8_t)(v >> 8 * i);
}

static uint64_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

uint64_t model_plan_hash(const struct hparams *h, const struct run_mode *m) {
    const uint32_t numbers[] = {
        1, // ln: the version of the numeric contract
        m->weights,  m->kv,         m->verify,    h->n_layers, h->hidden, h->n_heads,        h->n_kv_heads,
        h->head_dim, h->ffn,        h->n_vocab,   h->window,   h->n_freq, h->tied_embedding, h->n_experts,
        h->top_k,    h->expert_ffn, h->norm_topk,
    };
    struct hash_text t = {.len = 0};
    for (const char *c = h->family->name; *c; c++) hash_add(&t, (uint8_t)*c, 1);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) hash_add(&t, numbers[i], 4);
    hash_add(&t, f32_bits(h->rms_eps), 4);
    hash_add(&t, f32_bits(h->rope_factor), 4);
    for (uint32_t i = 0; i < h->n_layers; i++) hash_add(&t, (uint64_t)h->dense_layer[i] << 1 | h->window_layer[i], 1);
    for (uint32_t i = 0; i < h->n_freq; i++) {
        uint64_t u;
        memcpy(&u, &h->fq[i], sizeof u);
        hash_add(&t, u, 8);
    }
    return map_hash_bytes(t.bytes, t.len, 0);
}
