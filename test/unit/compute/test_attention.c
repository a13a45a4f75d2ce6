// Caches and attention of every instruction set against compute/ref: scattered block tables, several sequences in a
// batch, windows, and chunks against one pass.
#include "fixture.h"

enum { MAX_POS = 1300, BLOCKS = 64 };

struct model {
    struct attention_spec s;
    enum kv_type type;
    uint32_t n_pos;
    float *q, *k, *v; // [n_pos][heads * head_dim] of one sequence
};

static void random_model(struct rng *r, struct model *m) {
    size_t n_q = (size_t)m->n_pos * m->s.n_heads * m->s.head_dim,
           n_k = (size_t)m->n_pos * m->s.n_kv_heads * m->s.head_dim;
    m->q = malloc(n_q * 4);
    m->k = malloc(n_k * 4);
    m->v = malloc(n_k * 4);
    random_values(r, m->q, n_q);
    random_values(r, m->k, n_k);
    random_values(r, m->v, n_k);
}

static void free_model(struct model *m) {
    free(m->q);
    free(m->k);
    free(m->v);
}

// The reference for all positions: K and V by the rule of the cache, row-major, then block by block.
static float *want_output(const struct model *m) {
    uint32_t hd = m->s.head_dim, n = (m->n_pos + 63) / 64 * 64;
    float *out = calloc((size_t)m->n_pos * m->s.n_heads * hd, 4), *dk = calloc(n, 4), *dv = calloc(n, 4);
    int8_t *k8 = calloc((size_t)n, hd), *v8 = calloc((size_t)n, hd);
    float *kf = calloc((size_t)n * hd, 4), *vf = calloc((size_t)n * hd, 4);
    struct ref_attention *a = malloc(sizeof *a);
    float row[LIMIT_HEAD_DIM];
    int8_t q8[LIMIT_HEAD_DIM];
    bool fault = false;
    for (uint32_t h = 0; h < m->s.n_heads; h++) {
        uint32_t kh = h / (m->s.n_heads / m->s.n_kv_heads);
        for (uint32_t p = 0; p < m->n_pos; p++) {
            const float *k = m->k + ((size_t)p * m->s.n_kv_heads + kh) * hd, *v = m->v + (k - m->k);
            memcpy(row, k, hd * 4);
            if (m->s.had) ref_hadamard(row, hd);
            dk[p] = ref_quant(row, hd, k8 + (size_t)p * hd, &fault);
            dv[p] = ref_quant(v, hd, v8 + (size_t)p * hd, &fault);
            for (uint32_t d = 0; d < hd; d++) {
                bool f16 = m->type == KV_F16;
                kf[p * hd + d] = f16 ? ref_f32_from_f16(ref_f16_from_f32(k[d], &fault)) : k[d];
                vf[p * hd + d] = f16 ? ref_f32_from_f16(ref_f16_from_f32(v[d], &fault)) : v[d];
            }
        }
        for (uint32_t p = 0; p < m->n_pos; p++) {
            const float *q = m->q + ((size_t)p * m->s.n_heads + h) * hd;
            uint32_t lo = ref_first_key(p, m->s.window);
            memcpy(row, q, hd * 4);
            if (m->s.had) ref_hadamard(row, hd);
            float qs = ref_quant(row, hd, q8, &fault) * m->s.scale;
            ref_attention_begin(a);
            for (uint32_t j0 = lo / 64 * 64; j0 <= p; j0 += 64) {
                size_t at = (size_t)j0 * hd;
                if (m->type == KV_I8)
                    ref_attention_block_i8(a, q8, qs, &(struct ref_keys_i8){k8 + at, v8 + at, dk + j0, dv + j0}, hd,
                                           ref_attention_cap(m->s.softcap), j0, lo, p, &fault);
                else
                    ref_attention_block_float(a, q, m->s.scale, kf + at, vf + at, hd, ref_attention_cap(m->s.softcap),
                                              j0, lo, p, &fault);
            }
            ref_attention_end(a, hd, out + ((size_t)p * m->s.n_heads + h) * hd);
        }
    }
    assert_false(fault);
    free(dk);
    free(dv);
    free(k8);
    free(v8);
    free(kf);
    free(vf);
    free(a);
    return out;
}

// Rows [pos, pos + n) of both sequences as one batch, the second sequence `lag` rows behind (if it has any).
struct feed {
    const struct model *m[2];
    float *want[2];
    uint32_t *blocks[2];
};

static void run_step(struct backend *be, struct kv_cache *kv, const struct feed *f, const uint32_t pos[2],
                     const uint32_t n[2]) {
    const struct attention_spec *s = &f->m[0]->s;
    uint32_t q_row = s->n_heads * s->head_dim, k_row = s->n_kv_heads * s->head_dim, rows = n[0] + n[1];
    float *q = malloc((size_t)rows * q_row * 4), *k = malloc((size_t)rows * k_row * 4),
          *v = malloc((size_t)rows * k_row * 4);
    float *out = malloc((size_t)rows * q_row * 4);
    uint8_t *fault = calloc(rows, 1);
    struct batch_seq seqs[2];
    uint32_t n_seqs = 0, row = 0;
    for (uint32_t i = 0; i < 2; i++) {
        if (n[i] == 0) continue;
        memcpy(q + (size_t)row * q_row, f->m[i]->q + (size_t)pos[i] * q_row, (size_t)n[i] * q_row * 4);
        memcpy(k + (size_t)row * k_row, f->m[i]->k + (size_t)pos[i] * k_row, (size_t)n[i] * k_row * 4);
        memcpy(v + (size_t)row * k_row, f->m[i]->v + (size_t)pos[i] * k_row, (size_t)n[i] * k_row * 4);
        seqs[n_seqs++] = (struct batch_seq){.row = row, .n_rows = n[i], .pos = pos[i], .blocks = f->blocks[i]};
        row += n[i];
    }
    struct batch b = {.n_rows = rows, .n_seqs = n_seqs, .seqs = seqs, .fault = fault};
    be->ops->kv_write(be, kv, 1, s, k, v, &b);
    be->ops->attention(be, kv, 1, s, q, &b, out);
    row = 0;
    for (uint32_t i = 0; i < 2; i++) {
        assert_memory_equal(out + (size_t)row * q_row, f->want[i] + (size_t)pos[i] * q_row, (size_t)n[i] * q_row * 4);
        row += n[i];
    }
    for (uint32_t i = 0; i < rows; i++) assert_int_equal(fault[i], 0);
    free(q);
    free(k);
    free(v);
    free(out);
    free(fault);
}

// Feeds two sequences in random chunks; a chunk of one row is a decode step.
static void feed_chunks(struct rng *r, enum isa isa, const struct feed *f, uint32_t max_chunk) {
    struct backend *be = new_backend(isa, 2);
    const struct model *m = f->m[0];
    struct kv_spec spec = {
        .type = m->type, .n_layers = 2, .n_kv_heads = m->s.n_kv_heads, .head_dim = m->s.head_dim, .n_blocks = BLOCKS};
    struct kv_cache *kv = be->ops->kv_new(be, &spec);
    uint32_t pos[2] = {0, 0}, end[2] = {f->m[0]->n_pos, f->m[1]->n_pos};
    while (pos[0] < end[0] || pos[1] < end[1]) {
        uint32_t n[2];
        for (int i = 0; i < 2; i++) {
            n[i] = 1 + rng_below(r, max_chunk);
            if (n[i] > end[i] - pos[i]) n[i] = end[i] - pos[i];
            if (rng_below(r, 5) == 0) n[i] = n[i] > 0;
        }
        if (n[0] + n[1] == 0) continue;
        run_step(be, kv, f, pos, n);
        pos[0] += n[0];
        pos[1] += n[1];
    }
    be->ops->kv_free(kv);
    be->ops->free(be);
}

static void check_model(struct rng *r, enum kv_type type, struct attention_spec s, uint32_t n_pos, uint32_t chunk) {
    struct model a = {.s = s, .type = type, .n_pos = n_pos}, b = {.s = s, .type = type, .n_pos = n_pos / 3 + 1};
    uint32_t order[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) order[i] = i;
    for (uint32_t i = BLOCKS - 1; i > 0; i--) {
        uint32_t j = rng_below(r, i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    random_model(r, &a);
    random_model(r, &b);
    struct feed f = {.m = {&a, &b}, .want = {want_output(&a), want_output(&b)}, .blocks = {order, order + BLOCKS / 2}};
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) feed_chunks(r, isa, &f, chunk);
    free(f.want[0]);
    free(f.want[1]);
    free_model(&a);
    free_model(&b);
}

static struct attention_spec spec_of(uint32_t heads, uint32_t kv_heads, uint32_t hd, uint32_t window, bool had) {
    float scale = REF_LOG2E / sqrtf((float)hd);
    return (struct attention_spec){.n_heads = heads,
                                   .n_kv_heads = kv_heads,
                                   .head_dim = hd,
                                   .window = window,
                                   .had = had,
                                   .scale = had ? scale / (float)hd : scale};
}

static struct attention_spec capped(struct attention_spec s, float softcap) {
    s.softcap = softcap;
    return s;
}

static void int8_caches(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 21);
    check_model(&r, KV_I8, spec_of(4, 2, 64, 0, true), MAX_POS, 500);
    check_model(&r, KV_I8, spec_of(3, 1, 128, 100, true), 260, 90);
    check_model(&r, KV_I8, spec_of(2, 2, 32, 64, true), 200, 30);
    check_model(&r, KV_I8, spec_of(5, 1, 256, 0, true), 150, 40);
    check_model(&r, KV_I8, spec_of(4, 1, 80, 33, false), 170, 60);
    check_model(&r, KV_I8, spec_of(2, 1, 64, 1, false), 70, 3);
}

// A wide cap leaves the scores in the polynomial of tanh, a narrow one takes them through both of its forms.
static void caps(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 24);
    check_model(&r, KV_I8, capped(spec_of(2, 1, 256, 0, true), 50.0f), 200, 70);
    check_model(&r, KV_I8, capped(spec_of(4, 2, 64, 1040, true), 1.5f), MAX_POS, 600);
    check_model(&r, KV_I8, capped(spec_of(3, 1, 96, 70, false), 0.3f), 150, 40);
    check_model(&r, KV_F16, capped(spec_of(2, 1, 256, 90, false), 50.0f), 150, 60);
    check_model(&r, KV_F32, capped(spec_of(2, 2, 32, 0, false), 0.7f), 150, 40);
    check_model(&r, KV_F32, capped(spec_of(5, 1, 72, 0, false), 4.0f), 100, 30);
}

// Heads of all widths, also those that the cache pads, and groups of 1 to 16 queries a kv head.
static void shapes(void **state) {
    (void)state;
    static const uint32_t heads[][2] = {{16, 1}, {4, 4}, {14, 2}, {7, 1}, {24, 8}};
    struct rng r;
    rng_init(&r, 25);
    for (uint32_t hd = 2, i = 0; hd <= LIMIT_HEAD_DIM; hd += hd < 24 ? 2 : 38, i++)
        check_model(&r, (enum kv_type)(i % 3), capped(spec_of(2, 1, hd, i % 2 * 65, false), i % 4 == 3 ? 2.0f : 0.0f),
                    80, 30);
    for (uint32_t i = 0; i < 5; i++)
        for (enum kv_type t = KV_I8; t <= KV_F32; t++)
            check_model(&r, t, spec_of(heads[i][0], heads[i][1], i == 4 ? 80 : 32, i % 2 * 20, i < 4 && t == KV_I8), 70,
                        20);
    check_model(&r, KV_I8, spec_of(2, 1, 4, 0, true), 70, 20);
    check_model(&r, KV_I8, spec_of(3, 1, 96, 0, false), 150, 60);
    check_model(&r, KV_I8, spec_of(4, 2, 192, 70, false), 150, 60);
    check_model(&r, KV_I8, spec_of(2, 1, 80, 1100, false), MAX_POS, 500);
    check_model(&r, KV_F32, spec_of(2, 1, 128, 512, false), MAX_POS, 700);
    check_model(&r, KV_F16, spec_of(2, 1, 40, 1030, false), MAX_POS, 500);
}

static void float_caches(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 22);
    check_model(&r, KV_F16, spec_of(4, 2, 64, 0, false), 300, 100);
    check_model(&r, KV_F16, spec_of(3, 1, 128, 50, false), 150, 40);
    check_model(&r, KV_F32, spec_of(2, 2, 32, 0, false), 150, 40);
    check_model(&r, KV_F16, spec_of(2, 1, 16, 0, false), MAX_POS, 700);
}

// A NaN in a query, a key or a value faults its own row only, and never the other sequence.
static void faults(void **state) {
    (void)state;
    enum { HD = 64, ROWS = 6 };
    struct rng r;
    rng_init(&r, 23);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (enum kv_type type = KV_I8; type <= KV_F32; type++)
            for (int where = 0; where < 6; where++) {
                struct backend *be = new_backend(isa, 2);
                struct attention_spec s = capped(spec_of(1, 1, HD, 0, false), where < 3 ? 0.0f : 5.0f);
                struct kv_spec spec = {.type = type, .n_layers = 1, .n_kv_heads = 1, .head_dim = HD, .n_blocks = 2};
                struct kv_cache *kv = be->ops->kv_new(be, &spec);
                float x[3][ROWS * HD], out[ROWS * HD];
                for (int i = 0; i < 3; i++) random_values(&r, x[i], ROWS * HD);
                x[where % 3][4 * HD + 7] = where % 3 == 1 ? INFINITY : NAN;
                uint32_t block[2] = {0, 1};
                struct batch_seq seqs[2] = {{.row = 0, .n_rows = 4, .blocks = &block[0]},
                                            {.row = 4, .n_rows = 2, .blocks = &block[1]}};
                uint8_t fault[ROWS] = {0};
                struct batch b = {.n_rows = ROWS, .n_seqs = 2, .seqs = seqs, .fault = fault};
                be->ops->kv_write(be, kv, 0, &s, x[1], x[2], &b);
                be->ops->attention(be, kv, 0, &s, x[0], &b, out);
                for (int i = 0; i < 4; i++) assert_int_equal(fault[i], 0);
                assert_int_equal(fault[4], 1);
                assert_int_equal(fault[5], 0);
                be->ops->kv_free(kv);
                be->ops->free(be);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(int8_caches), cmocka_unit_test(float_caches),
                                       cmocka_unit_test(caps), cmocka_unit_test(shapes), cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
