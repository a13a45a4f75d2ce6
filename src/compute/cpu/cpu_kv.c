// The KV cache and attention of the CPU backend.
#include "compute/cpu/cpu.h"
#include "compute/cpu/kv_layout.h"

// What a head of head_dim values takes in the cache: kernels know multiples of 16 only. The zeros behind the values of
// K and of the query add exactly nothing to a score, and the outputs behind head_dim are dropped.
static uint32_t padded(uint32_t head_dim) { return (head_dim + 15) / 16 * 16; }

uint64_t cpu_kv_block_bytes(const struct kv_spec *spec) {
    return (uint64_t)spec->n_layers * spec->n_kv_heads * kv_record_bytes(spec->type, padded(spec->head_dim));
}

struct kv_cache *cpu_kv_new(struct backend *be, const struct kv_spec *spec) {
    ASSERT(spec->head_dim > 0 && spec->head_dim <= LIMIT_HEAD_DIM, "head_dim %u", spec->head_dim);
    struct kv_cache *kv = cpu_mem_alloc(be, sizeof *kv);
    if (!kv) return NULL;
    *kv =
        (struct kv_cache){.be = be, .spec = *spec, .record_bytes = kv_record_bytes(spec->type, padded(spec->head_dim))};
    kv->data = cpu_mem_alloc(be, cpu_kv_block_bytes(spec) * spec->n_blocks);
    if (kv->data) return kv;
    cpu_mem_free(be, kv);
    return NULL;
}

void cpu_kv_free(struct kv_cache *kv) {
    if (!kv) return;
    cpu_mem_free(kv->be, kv->data);
    cpu_mem_free(kv->be, kv);
}

static uint8_t *record(const struct kv_cache *kv, uint32_t layer, uint32_t block, uint32_t head) {
    const struct kv_spec *s = &kv->spec;
    ASSERT(layer < s->n_layers && block < s->n_blocks && head < s->n_kv_heads, "layer %u block %u head %u", layer,
           block, head);
    return kv->data + (((uint64_t)layer * s->n_blocks + block) * s->n_kv_heads + head) * kv->record_bytes;
}

static const struct batch_seq *seq_of_row(const struct batch *b, uint32_t row) {
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (row - b->seqs[i].row < b->seqs[i].n_rows) return &b->seqs[i];
    ASSERT(false, "row %u is in no sequence", row);
    return NULL;
}

struct write_op {
    struct cpu *c;
    struct kv_cache *kv;
    const struct attention_spec *s;
    const struct batch *b;
    float *k;
    const float *v;
    uint32_t layer;
};

// One key and value into place j of a block.
static bool put_i8(const struct write_op *o, uint8_t *rec, uint32_t j, float *k, const float *v) {
    const struct kern *kern = o->c->kern;
    uint32_t hd = o->s->head_dim, wide = padded(hd);
    uint8_t *vs = rec + kv_half_bytes(KV_I8, wide);
    int8_t q[LIMIT_HEAD_DIM];
    bool fault = false;
    if (o->s->had) kern->hadamard(k, hd);
    float d = kern->quant(k, hd, q, &fault);
    for (uint32_t i = 0; i < hd; i++)
        rec[i / 4 * (4 * LIMIT_BLOCK_TOKENS) + j * 4 + i % 4] = (uint8_t)q[i] ^ kern->kv_xor;
    memcpy(rec + LIMIT_BLOCK_TOKENS * wide + j * 4, &d, sizeof d);
    d = kern->quant(v, hd, q, &fault);
    for (uint32_t i = 0; i < hd; i++) vs[j / 4 * (4 * wide) + i * 4 + j % 4] = (uint8_t)q[i];
    memcpy(vs + LIMIT_BLOCK_TOKENS * wide + j * 4, &d, sizeof d);
    return fault;
}

static bool put_float(const struct write_op *o, uint8_t *rec, uint32_t j, const float *k, const float *v) {
    enum kv_type type = o->kv->spec.type;
    uint32_t hd = o->s->head_dim, wide = padded(hd), size = kv_value_bytes(type);
    uint8_t *vs = rec + kv_half_bytes(type, wide);
    bool fault = false;
    for (uint32_t i = 0; i < hd; i++) {
        uint8_t *to[2] = {rec + (i * LIMIT_BLOCK_TOKENS + j) * size, vs + (j * wide + i) * size};
        const float from[2] = {k[i], v[i]};
        for (int h = 0; h < 2; h++) {
            float f = ref_is_finite(from[h]) ? from[h] : 0.0f;
            uint16_t f16 = ref_f16_from_f32(from[h], type == KV_F16 ? &fault : &(bool){false});
            if (!ref_is_finite(from[h])) fault = true;
            memcpy(to[h], type == KV_F16 ? (const void *)&f16 : (const void *)&f, size);
        }
    }
    return fault;
}

static void write_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct write_op *o = arg;
    uint32_t hd = o->s->head_dim, n_kv = o->s->n_kv_heads;
    (void)thread;
    for (uint32_t row = begin; row < end; row++) {
        const struct batch_seq *seq = seq_of_row(o->b, row);
        uint32_t pos = seq->pos + (row - seq->row), block = seq->blocks[pos / LIMIT_BLOCK_TOKENS];
        bool fault = false;
        for (uint32_t h = 0; h < n_kv; h++) {
            uint8_t *rec = record(o->kv, o->layer, block, h);
            size_t at = ((size_t)row * n_kv + h) * hd;
            if (o->kv->spec.type == KV_I8)
                fault |= put_i8(o, rec, pos % LIMIT_BLOCK_TOKENS, o->k + at, o->v + at);
            else
                fault |= put_float(o, rec, pos % LIMIT_BLOCK_TOKENS, o->k + at, o->v + at);
        }
        cpu_fault(o->b, row, fault);
    }
}

void cpu_kv_write(struct backend *be, struct kv_cache *kv, uint32_t layer, const struct attention_spec *s, float *k,
                  const float *v, const struct batch *b) {
    ASSERT(s->n_kv_heads == kv->spec.n_kv_heads && s->head_dim == kv->spec.head_dim, "another shape than the cache");
    struct write_op o = {.c = cpu_of(be), .kv = kv, .s = s, .b = b, .k = k, .v = v, .layer = layer};
    pool_run(o.c->pool, write_rows, &o, b->n_rows, cpu_grain((uint64_t)s->n_kv_heads * s->head_dim * 16));
}

// ---- Attention. An item is a tile of up to ATT_TILE queries of one sequence that share a kv head. The queries of a
// kv head are numbered row by row, and within a row by head, so that a tile of a decode step is a group of heads, and
// a tile of a prefill a few rows.

struct attention_op {
    struct cpu *c;
    const struct kv_cache *kv;
    const struct attention_spec *s;
    const struct batch *b;
    float *q, *out;
    uint32_t layer, group;
    uint32_t first[LIMIT_SEQS + 1]; // first item of each sequence
};

static uint32_t tiles_of(const struct attention_op *o, const struct batch_seq *seq) {
    return (seq->n_rows * o->group + ATT_TILE - 1) / ATT_TILE;
}

static float *pad(float to[LIMIT_HEAD_DIM], const float *from, uint32_t n) {
    memcpy(to, from, n * sizeof *to);
    memset(to + n, 0, (padded(n) - n) * sizeof *to);
    return to;
}

static void attention_item(const struct attention_op *o, const struct batch_seq *seq, uint32_t kv_head, uint32_t tile) {
    const struct attention_spec *s = o->s;
    const struct kern *kern = o->c->kern;
    uint32_t hd = s->head_dim, wide = padded(hd), n_queries = seq->n_rows * o->group, first = tile * ATT_TILE;
    uint32_t n = n_queries - first < ATT_TILE ? n_queries - first : ATT_TILE;
    struct kv_view view = {.base = record(o->kv, o->layer, 0, kv_head),
                           .stride = o->kv->record_bytes * s->n_kv_heads,
                           .blocks = seq->blocks,
                           .type = o->kv->spec.type,
                           .head_dim = wide};
    _Alignas(64) int8_t codes[ATT_TILE][LIMIT_HEAD_DIM];
    float values[ATT_TILE][LIMIT_HEAD_DIM]; // of padded heads: the query, then the output
    float cap = ref_attention_cap(s->softcap);
    struct att_query query[ATT_TILE];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = (first + i) / o->group, head = kv_head * o->group + (first + i) % o->group;
        size_t at = ((size_t)(seq->row + row) * s->n_heads + head) * hd;
        query[i] =
            (struct att_query){.q = o->q + at, .qs = s->scale, .cap = cap, .pos = seq->pos + row, .out = o->out + at};
        if (wide != hd) query[i].q = query[i].out = pad(values[i], o->q + at, hd);
        query[i].lo = ref_first_key(query[i].pos, s->window);
        if (view.type != KV_I8) continue;
        if (s->had) kern->hadamard(o->q + at, hd);
        memset(codes[i] + hd, 0, wide - hd);
        query[i].q8 = codes[i];
        query[i].qs = kern->quant(o->q + at, hd, codes[i], &query[i].fault) * s->scale;
    }
    kern->attention(&view, query, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = seq->row + (first + i) / o->group, head = kv_head * o->group + (first + i) % o->group;
        cpu_fault(o->b, row, query[i].fault);
        if (wide != hd) memcpy(o->out + ((size_t)row * s->n_heads + head) * hd, values[i], hd * sizeof *o->out);
    }
}

static void attention_items(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    const struct attention_op *o = arg;
    uint32_t i = 0;
    (void)thread;
    for (uint32_t item = begin; item < end; item++) {
        while (item >= o->first[i + 1]) i++;
        const struct batch_seq *seq = &o->b->seqs[i];
        uint32_t at = item - o->first[i], tiles = tiles_of(o, seq);
        attention_item(o, seq, at / tiles, at % tiles);
    }
}

void cpu_attention(struct backend *be, const struct kv_cache *kv, uint32_t layer, const struct attention_spec *s,
                   float *q, const struct batch *b, float *out) {
    ASSERT(b->n_seqs <= LIMIT_SEQS && s->n_heads % s->n_kv_heads == 0, "%u sequences, %u heads over %u", b->n_seqs,
           s->n_heads, s->n_kv_heads);
    ASSERT(s->n_kv_heads == kv->spec.n_kv_heads && s->head_dim == kv->spec.head_dim, "another shape than the cache");
    struct attention_op o = {.c = cpu_of(be),
                             .kv = kv,
                             .s = s,
                             .b = b,
                             .q = q,
                             .out = out,
                             .layer = layer,
                             .group = s->n_heads / s->n_kv_heads};
    uint64_t keys = 0; // that the longest query sees
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        uint32_t end = b->seqs[i].pos + b->seqs[i].n_rows;
        o.first[i + 1] = o.first[i] + tiles_of(&o, &b->seqs[i]) * s->n_kv_heads;
        if (end > keys) keys = end;
    }
    uint32_t n_items = o.first[b->n_seqs];
    pool_run(o.c->pool, attention_items, &o, n_items, cpu_grain(keys * s->head_dim / 4));
}
