#include "model/part.h"

#include "os/clock.h"
#include <stdlib.h>
#include <string.h>

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

// The float buffers of a scratch, and how wide each is.
struct width {
    float **at;
    uint32_t n;
};

enum { N_WIDTHS = 9 + 2 * ROPE_SETS };

// Of the MLPs that are not experts.
static uint32_t mlp_width(const struct hparams *h) {
    bool dense = h->n_experts == 0;
    for (uint32_t i = 0; i < h->n_layers; i++) dense |= h->dense_layer[i];
    return max_u32(dense ? h->ffn : 0, h->shared_ffn);
}

static void widths(const struct hparams *h, struct scratch *s, struct width w[N_WIDTHS]) {
    uint32_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim, ffn = mlp_width(h), n = 0;
    const struct width list[] = {
        {&s->norm, h->hidden}, {&s->q, q},    {&s->attn, q},
        {&s->k, kv},           {&s->v, kv},   {&s->y, h->hidden},
        {&s->gate, ffn},       {&s->up, ffn}, {&s->router, h->n_experts},
    };
    for (; n < sizeof list / sizeof *list; n++) w[n] = list[n];
    for (uint32_t i = 0; i < ROPE_SETS; i++) {
        w[n++] = (struct width){&s->cos[i], h->rope[i].n_freq};
        w[n++] = (struct width){&s->sin[i], h->rope[i].n_freq};
    }
    ASSERT(n == N_WIDTHS);
}

static uint32_t max_k(const struct hparams *h) {
    return max_u32(max_u32(h->hidden, h->n_heads * h->head_dim), max_u32(mlp_width(h), h->expert_ffn));
}

struct scratch *scratch_new(const struct hparams *h, const struct run_mode *m, struct backend *be, uint32_t max_rows) {
    (void)m;
    struct scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->be = be;
    s->max_rows = max_rows;
    struct width w[N_WIDTHS];
    widths(h, s, w);
    bool good = true;
    for (uint32_t i = 0; i < N_WIDTHS && good; i++)
        if (w[i].n) good = (*w[i].at = be->ops->mem_alloc(be, (uint64_t)max_rows * w[i].n * sizeof(float))) != NULL;
    s->rows = good ? be->ops->qrows_new(be, max_rows, max_k(h)) : NULL;
    s->head_fault = calloc(max_rows, sizeof *s->head_fault);
    s->head_pos = calloc(max_rows, sizeof *s->head_pos);
    s->q_factor = calloc(max_rows, sizeof *s->q_factor);
    if (s->rows && s->head_fault && s->head_pos && s->q_factor) return s;
    scratch_free(s);
    return NULL;
}

void scratch_free(struct scratch *s) {
    if (!s) return;
    float *list[] = {s->norm, s->q, s->attn, s->k, s->v, s->y, s->gate, s->up, s->router};
    for (uint32_t i = 0; i < ROPE_SETS; i++) {
        if (s->cos[i]) s->be->ops->mem_free(s->be, s->cos[i]);
        if (s->sin[i]) s->be->ops->mem_free(s->be, s->sin[i]);
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i]) s->be->ops->mem_free(s->be, list[i]);
    if (s->rows) s->be->ops->qrows_free(s->rows);
    free(s->head_fault);
    free(s->head_pos);
    free(s->q_factor);
    free(s);
}

// Quantised rows: a code a value, a scale a 128, and the group sums that some kernels keep: a quarter more is enough.
uint64_t scratch_bytes(const struct hparams *h, uint32_t max_rows) {
    struct scratch s;
    struct width w[N_WIDTHS];
    widths(h, &s, w);
    uint64_t values = 0;
    for (uint32_t i = 0; i < N_WIDTHS; i++) values += w[i].n;
    return max_rows *
           (values * sizeof(float) + max_k(h) + max_k(h) / 4 + sizeof(uint8_t) + sizeof(uint32_t) + sizeof(float));
}

void scratch_clock(struct scratch *s, bool on) {
    s->clock = on;
    memset(s->op_ns, 0, sizeof s->op_ns);
}

void scratch_begin(struct scratch *s) {
    if (s->clock) s->mark_ns = clock_now_ns();
}

void scratch_time(struct scratch *s, enum model_op op) { scratch_time_split(s, op, op, 0); }

void scratch_time_split(struct scratch *s, enum model_op op, enum model_op other, uint64_t ns) {
    if (!s->clock) return;
    uint64_t now = clock_now_ns(), all = now - s->mark_ns;
    if (ns > all) ns = all;
    s->op_ns[op] += all - ns;
    s->op_ns[other] += ns;
    s->mark_ns = now;
}

const uint64_t *scratch_op_ns(const struct scratch *s) { return s->op_ns; }
