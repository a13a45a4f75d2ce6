// compute/ref against vectors made from the text of doc/numerics.md in exact arithmetic (test/vectors/ops.py), and
// against the true values: bits first, then the error.
#include "fixture.h"

#include <jansson.h>
#include <math.h>

static json_t *vectors;

static json_t *list(const char *name) {
    json_t *a = json_object_get(vectors, name);
    assert_true(json_array_size(a) > 0);
    return a;
}

static uint32_t at(const json_t *row, size_t i) { return (uint32_t)json_integer_value(json_array_get(row, i)); }
static float float_at(const json_t *row, size_t i) { return ref_float(at(row, i)); }

static uint32_t field(const json_t *o, const char *name) {
    json_t *v = json_object_get(o, name);
    assert_true(json_is_integer(v) || json_is_boolean(v));
    return json_is_integer(v) ? (uint32_t)json_integer_value(v) : json_is_true(v);
}

// The generator of the script.
static float unit(uint32_t *u) {
    *u = *u * 1664525u + 1013904223u;
    return (float)(*u >> 8) * 0x1p-23f - 1.0f;
}

static void row_of(uint32_t *u, float *x, uint32_t n, float scale) {
    for (uint32_t i = 0; i < n; i++) x[i] = unit(u) * scale;
}

static void check_error(float got, float truth, float bound) {
    float error = fabsf(got - truth);
    if (error > bound * fabsf(truth)) print_message("%.9g, true is %.9g\n", (double)got, (double)truth);
    assert_true(error <= bound * fabsf(truth));
}

static void scalars(void **state) {
    (void)state;
    bool fault = false;
    size_t i;
    json_t *row;
    json_array_foreach(list("tanh"), i, row) {
        assert_int_equal(ref_bits(ref_tanh(float_at(row, 0), &fault)), at(row, 1));
        check_error(float_at(row, 1), float_at(row, 2), 0x1.2p-22f);
        assert_int_equal(ref_bits(ref_tanh(-float_at(row, 0), &fault)), at(row, 1) ^ 0x80000000u);
    }
    json_array_foreach(list("gelu"), i, row) {
        float g = float_at(row, 0), exponent = fabsf(g * (2.31f + 0.103f * g * g));
        assert_int_equal(ref_bits(ref_gelu(g, &fault)), at(row, 1));
        if (exponent < 120.0f) check_error(float_at(row, 1), float_at(row, 2), (2.0f * exponent + 4.0f) * 0x1p-24f);
    }
    json_array_foreach(list("softcap"), i, row) {
        float cap = float_at(row, 1);
        assert_int_equal(ref_bits(ref_softcap(float_at(row, 0), cap, 1.0f / cap, &fault)), at(row, 2));
        check_error(float_at(row, 2), float_at(row, 3), 0x1.4p-21f);
    }
    json_array_foreach(list("sigmoid"), i, row) {
        assert_int_equal(ref_bits(ref_sigmoid(float_at(row, 0), &fault)), at(row, 1));
        check_error(float_at(row, 1), float_at(row, 2), 0x1p-20f);
    }
    json_array_foreach(list("position_factor"), i, row) {
        assert_int_equal(ref_bits(ref_position_factor(at(row, 0), at(row, 1), float_at(row, 2))), at(row, 3));
        check_error(float_at(row, 3), float_at(row, 4), 0x1p-23f);
    }
    assert_false(fault);
}

// What the text says of the ends of the number line.
static void edges(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    bool fault = false;
    assert_int_equal(ref_bits(ref_tanh(-0.0f, &fault)), 0x80000000u);
    assert_true(ref_tanh(3.4e38f, &fault) == 1.0f && ref_tanh(-3.4e38f, &fault) == -1.0f);
    assert_true(ref_gelu(1.4e13f, &fault) == 1.4e13f && ref_gelu(0.0f, &fault) == 0.0f);
    assert_true(fabsf(ref_gelu(-1.4e13f, &fault)) < 1e-24f);
    assert_true(ref_softcap(3.4e38f, 30.0f, 1.0f / 30.0f, &fault) == 30.0f);
    assert_true(ref_sigmoid(-3e37f, &fault) > 0.0f && ref_sigmoid(3e37f, &fault) == 1.0f);
    assert_false(fault);
    for (int i = 0; i < 3; i++)
        for (int f = 0; f < 4; f++) {
            fault = false;
            if (f == 0) assert_true(ref_tanh(bad[i], &fault) == 0.0f);
            if (f == 1) assert_true(ref_softcap(bad[i], 30.0f, 1.0f / 30.0f, &fault) == 0.0f);
            if (f == 2) (void)ref_gelu(bad[i], &fault);
            if (f == 3) (void)ref_sigmoid(bad[i], &fault);
            assert_true(fault);
        }
    fault = false;
    (void)ref_gelu(1.5e13f, &fault);
    assert_true(fault);
}

static void routers(void **state) {
    (void)state;
    size_t i;
    json_t *o;
    json_array_foreach(list("router"), i, o) {
        float logits[LIMIT_EXPERTS], bias[LIMIT_EXPERTS], weight[LIMIT_TOP_K], scale = ref_float(field(o, "scale"));
        uint32_t u = field(o, "seed"), n = field(o, "n"), index[LIMIT_TOP_K];
        bool fault = false;
        row_of(&u, logits, n, 4.0f);
        row_of(&u, bias, n, 0.5f);
        for (uint32_t e = 0; field(o, "coarse") && e < n; e++) {
            logits[e] = (float)(int)logits[e];
            bias[e] = (float)(int)(4.0f * bias[e]) * 0.25f;
        }
        struct ref_sigmoid_router s = {.n = n,
                                       .top_k = field(o, "top_k"),
                                       .n_groups = field(o, "n_groups"),
                                       .top_groups = field(o, "top_groups"),
                                       .norm_topk = field(o, "norm"),
                                       .bias = bias};
        ref_router_sigmoid(&s, logits, index, weight, &fault);
        for (uint32_t a = 0; a < s.top_k; a++) {
            assert_int_equal(index[a], at(json_object_get(o, "index"), a));
            assert_int_equal(ref_bits(weight[a] * scale), at(json_object_get(o, "weight"), a));
        }
        assert_false(fault);
        logits[n - 1] = NAN;
        ref_router_sigmoid(&s, logits, index, weight, &fault);
        assert_true(fault);
        for (uint32_t a = 0; a < s.top_k; a++) assert_true(index[a] < n);
    }
}

enum { MAX_KEYS = 1152, MAX_HD = 16 };

// K and V of a cache, row by row.
struct keys {
    int8_t k8[MAX_KEYS * MAX_HD], v8[MAX_KEYS * MAX_HD];
    float k[MAX_KEYS * MAX_HD], v[MAX_KEYS * MAX_HD], dk[MAX_KEYS], dv[MAX_KEYS];
};

static void attend(const json_t *o, struct keys *c, float *out) {
    uint32_t u = field(o, "seed"), hd = field(o, "head_dim"), pos = field(o, "pos");
    uint32_t lo = ref_first_key(pos, field(o, "window"));
    float q[MAX_HD], scale = REF_LOG2E / sqrtf((float)hd), cap = ref_attention_cap((float)field(o, "cap"));
    int8_t q8[MAX_HD];
    bool fault = false, had = field(o, "had"), int8 = field(o, "int8");
    struct ref_attention a;
    if (had) scale = scale / (float)hd;
    row_of(&u, q, hd, 6.0f);
    if (had) ref_hadamard(q, hd);
    for (uint32_t j = 0; j <= pos; j++) {
        row_of(&u, c->k + j * hd, hd, 3.0f);
        row_of(&u, c->v + j * hd, hd, 2.0f);
        if (had) ref_hadamard(c->k + j * hd, hd);
        c->dk[j] = ref_quant(c->k + j * hd, hd, c->k8 + j * hd, &fault);
        c->dv[j] = ref_quant(c->v + j * hd, hd, c->v8 + j * hd, &fault);
    }
    float qs = ref_quant(q, hd, q8, &fault) * scale;
    ref_attention_begin(&a);
    for (uint32_t j0 = lo / 64 * 64; j0 <= pos; j0 += 64)
        if (int8)
            ref_attention_block_i8(&a, q8, qs,
                                   &(struct ref_keys_i8){c->k8 + j0 * hd, c->v8 + j0 * hd, c->dk + j0, c->dv + j0}, hd,
                                   cap, j0, lo, pos, &fault);
        else
            ref_attention_block_float(&a, q, scale, c->k + j0 * hd, c->v + j0 * hd, hd, cap, j0, lo, pos, &fault);
    ref_attention_end(&a, hd, out);
    assert_false(fault);
}

// The same over a cache of the backend, with the query as the last row of a sequence.
static void attend_backend(const json_t *o, enum isa isa, float *out) {
    uint32_t u = field(o, "seed"), hd = field(o, "head_dim"), n = field(o, "pos") + 1;
    struct backend *be = new_backend(isa, 1);
    struct attention_spec s = {.n_heads = 1,
                               .n_kv_heads = 1,
                               .head_dim = hd,
                               .window = field(o, "window"),
                               .scale = REF_LOG2E / sqrtf((float)hd),
                               .softcap = (float)field(o, "cap"),
                               .had = field(o, "had")};
    struct kv_spec spec = {.type = field(o, "int8") ? KV_I8 : KV_F32,
                           .n_layers = 1,
                           .n_kv_heads = 1,
                           .head_dim = hd,
                           .n_blocks = MAX_KEYS / 64};
    if (s.had) s.scale = s.scale / (float)hd;
    struct kv_cache *kv = be->ops->kv_new(be, &spec);
    float *k = malloc(4ull * n * hd), *v = malloc(4ull * n * hd), q[MAX_HD];
    uint32_t blocks[MAX_KEYS / 64];
    uint8_t *fault = calloc(n, 1);
    for (uint32_t i = 0; i < MAX_KEYS / 64; i++) blocks[i] = MAX_KEYS / 64 - 1 - i;
    row_of(&u, q, hd, 6.0f);
    for (uint32_t j = 0; j < n; j++) {
        row_of(&u, k + j * hd, hd, 3.0f);
        row_of(&u, v + j * hd, hd, 2.0f);
    }
    struct batch_seq all = {.n_rows = n, .blocks = blocks}, last = {.n_rows = 1, .pos = n - 1, .blocks = blocks};
    struct batch b = {.n_rows = n, .n_seqs = 1, .seqs = &all, .fault = fault};
    be->ops->kv_write(be, kv, 0, &s, k, v, &b);
    b.n_rows = 1;
    b.seqs = &last;
    be->ops->attention(be, kv, 0, &s, q, &b, out);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(fault[i], 0);
    be->ops->kv_free(kv);
    be->ops->free(be);
    free(k);
    free(v);
    free(fault);
}

static void attentions(void **state) {
    (void)state;
    struct keys *c = malloc(sizeof *c);
    size_t i;
    json_t *o;
    json_array_foreach(list("attention"), i, o) {
        uint32_t hd = field(o, "head_dim");
        float out[MAX_HD], most = 0.0f, bound = field(o, "int8") ? 0.03f : 4e-6f;
        attend(o, c, out);
        for (uint32_t d = 0; d < hd; d++) {
            float truth = float_at(json_object_get(o, "true"), d);
            assert_int_equal(ref_bits(out[d]), at(json_object_get(o, "out"), d));
            most = fmaxf(most, fabsf(out[d] - truth));
        }
        if (most > bound) print_message("case %zu is %g off\n", i, (double)most);
        assert_true(most <= bound);
        for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
            float again[MAX_HD];
            attend_backend(o, isa, again);
            assert_memory_equal(again, out, hd * sizeof *out);
        }
    }
    free(c);
}

static void products(void **state) {
    (void)state;
    size_t i;
    json_t *o;
    json_array_foreach(list("product"), i, o) {
        uint32_t u = field(o, "seed"), k = field(o, "k"), blocks = ref_n_blocks(k);
        if (k == 0) {
            fail_msg("a product of rows without values");
            return;
        }
        float *x = malloc(4ull * k), *w = malloc(4ull * k);
        struct act_block *a = aligned_alloc(64, blocks * sizeof *a), *l = aligned_alloc(64, blocks * sizeof *l);
        uint8_t *row = malloc(dtype_row_bytes(DT_L8, k));
        bool fault = false;
        row_of(&u, x, k, 4.0f);
        row_of(&u, w, k, 1.0f);
        ref_quant_row(x, k, a, &fault);
        ref_quant_row(w, k, l, &fault);
        for (uint32_t b = 0; b < blocks; b++) {
            memcpy(row + b * 132, &l[b].d, 4);
            memcpy(row + b * 132 + 4, l[b].q, 128);
        }
        float got = ref_dot(DT_L8, row, a, k), exact = ref_dot_float(DT_F32, (const uint8_t *)w, x, k);
        assert_int_equal(ref_bits(got), field(o, "l8"));
        assert_int_equal(ref_bits(exact), field(o, "f32"));
        assert_true(fabsf(exact - ref_float(field(o, "true"))) < 1e-3f);
        assert_false(fault);
        free(x);
        free(w);
        free(a);
        free(l);
        free(row);
    }
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(scalars), cmocka_unit_test(edges), cmocka_unit_test(routers),
                                 cmocka_unit_test(attentions), cmocka_unit_test(products)};
    vectors = json_load_file(LOOM_SOURCE_DIR "/test/vectors/ops.json", 0, NULL);
    int rc = vectors ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    json_decref(vectors);
    return rc;
}
