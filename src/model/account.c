// What a model needs and takes, without loading it: tensors, bytes, and the hash of all that decides its bytes.
#include "base/map.h"
#include "model/family.h"

#include <stdio.h>
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
    const struct dtype_info *info = dtype_info(file_type);
    if (!is_matrix) return DT_F32;
    if (m->verify) return info->is_float ? file_type : DT_F32;
    if (info->is_block) return file_type;
    if (m->weights == WEIGHTS_AS_IS) return info->is_float ? file_type : DT_F32;
    enum dtype t = DT_L8;
    if (m->weights == WEIGHTS_Q8_0) t = DT_Q8_0;
    if (m->weights == WEIGHTS_Q4_0) t = DT_Q4_0;
    return k % dtype_info(t)->block_values ? DT_L8 : t;
}

struct tally {
    const struct run_mode *mode;
    const struct tensors *tensors;
    uint32_t n[DT_N][DT_N]; // matrices from one type to another
};

static int visit_tally(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct tally *y = arg;
    const struct tensor *t = tensors_find(y->tensors, need->name);
    (void)slot;
    if (t && need->is_matrix) y->n[t->type][part_kept_type(y->mode, t->type, true, need->dim[1])]++;
    return 0;
}

void model_conversions(const struct hparams *h, const struct run_mode *m, const struct tensors *t, uint32_t a,
                       uint32_t b, char *text, size_t size) {
    struct tally y = {.mode = m, .tensors = t};
    size_t len = 0;
    text[0] = 0;
    int rc = family_walk(h, a, b, &(struct tensor_visitor){visit_tally, &y});
    ASSERT(rc == 0);
    for (int from = 0; from < DT_N; from++)
        for (int to = 0; to < DT_N && len < size; to++)
            if (from != to && y.n[from][to])
                len += (size_t)snprintf(text + len, size - len, "%s%s to %s (%u matrices)", len ? ", " : "",
                                        dtype_info((enum dtype)from)->name, dtype_info((enum dtype)to)->name,
                                        y.n[from][to]);
}

struct sum {
    const struct hparams *h;
    const struct run_mode *mode;
    const struct backend_ops *ops;
    const struct tensors *tensors; // NULL: the hyper-parameters say the types
    uint64_t bytes;
};

static enum dtype type_of(const struct hparams *h, const struct tensor_slot *slot) {
    if (slot->place == PLACE_EMBED) return h->embed_type;
    return slot->place == PLACE_HEAD ? h->head_type : h->layer_type[slot->layer];
}

static int visit_bytes(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct sum *s = arg;
    if (slot->place == PLACE_SCALE) return 0; // used up by the conversion
    const struct tensor *own = s->tensors ? tensors_find(s->tensors, need->name) : NULL;
    enum dtype t = part_kept_type(s->mode, own ? own->type : type_of(s->h, slot), need->is_matrix, need->dim[1]);
    s->bytes += need->dim[1] ? s->ops->weight_bytes(t, (uint32_t)need->dim[0], (uint32_t)need->dim[1])
                             : round_up64(need->dim[0] * sizeof(float));
    return 0;
}

uint64_t model_layer_bytes(const struct hparams *h, const struct run_mode *m, const struct backend_ops *ops, uint32_t a,
                           uint32_t b) {
    return model_file_layer_bytes(h, m, ops, NULL, a, b);
}

uint64_t model_file_layer_bytes(const struct hparams *h, const struct run_mode *m, const struct backend_ops *ops,
                                const struct tensors *t, uint32_t a, uint32_t b) {
    struct sum s = {.h = h, .mode = m, .ops = ops, .tensors = t};
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
    uint8_t bytes[LIMIT_LAYERS * 2 + LIMIT_ROPE_VALUES * 8 + 512];
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

static void hash_layers(struct hash_text *t, const struct hparams *h) {
    for (uint32_t i = 0; i < h->n_layers; i++) {
        hash_add(t, (uint64_t)h->dense_layer[i] << 1 | h->window_layer[i], 1);
        hash_add(t, h->rope_of[i], 1);
    }
}

static void hash_rope(struct hash_text *t, const struct hparams *h) {
    double values[LIMIT_ROPE_VALUES];
    uint32_t n = model_rope_get(h, values);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t u;
        memcpy(&u, &values[i], sizeof u);
        hash_add(t, u, 8);
    }
}

uint64_t model_plan_hash(const struct hparams *h, const struct run_mode *m) {
    const uint32_t bias =
        h->bias_q | h->bias_k << 1 | h->bias_v << 2 | h->bias_o << 3 | h->bias_mlp << 4 | h->router_bias << 5;
    const uint32_t numbers[] = {
        1, // ln: the version of the numeric contract
        m->weights,
        m->kv,
        m->verify,
        h->n_layers,
        h->hidden,
        h->n_heads,
        h->n_kv_heads,
        h->head_dim,
        h->ffn,
        h->n_vocab,
        h->window,
        h->rope[0].n_freq,
        h->rope[1].n_freq,
        h->q_original,
        h->n_experts,
        h->top_k,
        h->expert_ffn,
        h->norm_topk,
        h->router,
        h->n_groups,
        h->top_groups,
        h->shared_ffn,
        h->act,
        h->qk_norm,
        h->norms,
        bias,
        h->tied_embedding,
    };
    const float floats[] = {h->rms_eps,      h->routed_scale,  h->q_beta,     h->head_scale,
                            h->attn_softcap, h->final_softcap, h->embed_scale};
    struct hash_text t = {.len = 0};
    for (const char *c = h->family->name; *c; c++) hash_add(&t, (uint8_t)*c, 1);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) hash_add(&t, numbers[i], 4);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) hash_add(&t, f32_bits(floats[i]), 4);
    hash_layers(&t, h);
    hash_rope(&t, h);
    return map_hash_bytes(t.bytes, t.len, 0);
}
