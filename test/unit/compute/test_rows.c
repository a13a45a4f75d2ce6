// Operations on rows, mixture of experts and sampling of every instruction set against compute/ref.
#include "fixture.h"

static const uint32_t widths[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 130, 1000, 4099};
enum { N_WIDTHS = sizeof widths / sizeof widths[0], MAX_WIDTH = 4099, ROWS = 5 };

static float x[ROWS * MAX_WIDTH], x2[ROWS * MAX_WIDTH], y[ROWS * MAX_WIDTH], want[ROWS * MAX_WIDTH], w[MAX_WIDTH];

static void elementwise(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 31);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        struct backend *be = new_backend(isa, 3);
        for (uint32_t i = 0; i < N_WIDTHS; i++) {
            uint32_t n = widths[i];
            bool fault = false;
            struct rows_batch b;
            random_values(&r, x, (size_t)ROWS * n);
            random_values(&r, x2, (size_t)ROWS * n);
            random_values(&r, w, n);
            be->ops->rmsnorm(be, x, w, 1, n, 1e-6f, rows_batch(&b, ROWS), y);
            for (uint32_t t = 0; t < ROWS; t++) ref_rmsnorm(x + t * n, w, n, 1e-6f, want + t * n);
            assert_memory_equal(y, want, 4ull * ROWS * n);
            be->ops->act_mul(be, ACT_SILU, x, x2, n, &b.b, y);
            for (uint32_t t = 0; t < ROWS * n; t++) want[t] = ref_silu(x[t], &fault) * x2[t];
            assert_memory_equal(y, want, 4ull * ROWS * n);
            be->ops->act_mul(be, ACT_GELU_TANH, x, x2, n, &b.b, y);
            for (uint32_t t = 0; t < ROWS * n; t++) want[t] = ref_gelu(x[t], &fault) * x2[t];
            assert_memory_equal(y, want, 4ull * ROWS * n);
            float cap = i % 2 ? 30.0f : 0.5f, factor[ROWS];
            memcpy(y, x, 4ull * ROWS * n);
            be->ops->softcap(be, y, n, cap, &b.b);
            for (uint32_t t = 0; t < ROWS * n; t++) want[t] = ref_softcap(x[t], cap, 1.0f / cap, &fault);
            assert_memory_equal(y, want, 4ull * ROWS * n);
            for (uint32_t t = 0; t < ROWS; t++) factor[t] = ref_position_factor(t * 4000, 4096, 0.1f);
            memcpy(y, x, 4ull * ROWS * n);
            be->ops->scale_rows(be, y, n, factor, &b.b);
            for (uint32_t t = 0; t < ROWS * n; t++) want[t] = factor[t / n] * x[t];
            assert_memory_equal(y, want, 4ull * ROWS * n);
            be->ops->add(be, x, x2, n, false, &b.b, y);
            for (uint32_t t = 0; t < ROWS * n; t++) want[t] = x[t] + x2[t];
            assert_memory_equal(y, want, 4ull * ROWS * n);
            be->ops->add(be, x, x2, n, true, &b.b, y);
            for (uint32_t t = 0; t < ROWS * n; t++)
                want[t] = ref_f32_from_bf16(ref_bf16_from_f32(x[t] + x2[t], &fault));
            assert_memory_equal(y, want, 4ull * ROWS * n);
            static uint16_t h[ROWS * MAX_WIDTH];
            be->ops->rows_get_bf16(be, y, n, ROWS, h);
            be->ops->rows_put_bf16(be, h, n, ROWS, x);
            assert_memory_equal(x, want, 4ull * ROWS * n);
            assert_false(fault);
            for (uint32_t t = 0; t < ROWS; t++) assert_int_equal(b.fault[t], 0);
        }
        be->ops->free(be);
    }
}

// Every sign and exponent, with mantissas at random: what rows of model-like numbers never show.
static void all_exponents(void **state) {
    (void)state;
    enum { N = 16 * 2 * 254 };
    struct rng r;
    rng_init(&r, 36);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        struct backend *be = new_backend(isa, 2);
        bool fault = false;
        struct rows_batch b;
        for (uint32_t i = 0; i < N; i++) {
            uint32_t exponent = i / 16 % 254;
            x[i] = ref_float((i / 16 / 254) << 31 | exponent << 23 | (rng_u32(&r) & 0x7fffffu));
            x2[i] = 1.0f;
        }
        x[0] = 0.0f;
        x[254 * 16] = -0.0f;
        memcpy(y, x, sizeof(float) * N);
        be->ops->softcap(be, y, N, 1.0f, rows_batch(&b, 1));
        for (uint32_t i = 0; i < N; i++) want[i] = ref_softcap(x[i], 1.0f, 1.0f, &fault);
        assert_memory_equal(y, want, sizeof(float) * N);
        assert_int_equal(b.fault[0], 0);
        assert_false(fault);
        for (uint32_t i = 0; i < N; i++)
            if (fabsf(x[i]) > 1.4e13f) x[i] = 0x1p-149f;
        for (int act = ACT_SILU; act <= ACT_GELU_TANH; act++) {
            be->ops->act_mul(be, (enum activation)act, x, x2, N, &b.b, y);
            for (uint32_t i = 0; i < N; i++)
                want[i] = act == ACT_SILU ? ref_silu(x[i], &fault) : ref_gelu(x[i], &fault);
            assert_memory_equal(y, want, sizeof(float) * N);
            assert_int_equal(b.fault[0], 0);
        }
        be->ops->free(be);
    }
}

static void rope_and_groups(void **state) {
    (void)state;
    enum { HEADS = 3, HD = 256, MOST = HD / 2 }; // the frequencies turn 2 * n_freq values of a head, the rest stays
    static const uint32_t n_freqs[] = {1, 5, 14, 23, 32, 40, 64, 96, 128};
    struct rng r;
    rng_init(&r, 32);
    double fq[MOST];
    uint32_t pos[ROWS] = {0, 1, 77, 5000, 131071};
    static float cos[ROWS * MOST], sin[ROWS * MOST], c[MOST], s[MOST];
    for (int i = 0; i < MOST; i++) fq[i] = 0.6 / (1 + i * i);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (uint32_t f = 0; f < sizeof n_freqs / sizeof n_freqs[0]; f++) {
            uint32_t n_freq = n_freqs[f];
            struct backend *be = new_backend(isa, 2);
            struct rows_batch b;
            rows_batch(&b, ROWS);
            b.b.row_pos = pos;
            float factor = n_freq == 5 ? 1.0f : 1.25f;
            random_values(&r, x, ROWS * HEADS * HD);
            random_values(&r, w, HD);
            be->ops->rope_table(be, fq, n_freq, factor, &b.b, cos, sin);
            memcpy(want, x, sizeof(float) * ROWS * HEADS * HD);
            for (uint32_t t = 0; t < ROWS; t++) {
                ref_rope_row(pos[t], fq, n_freq, c, s);
                for (uint32_t i = 0; i < n_freq; i++) {
                    c[i] = factor == 1.0f ? c[i] : c[i] * factor;
                    s[i] = factor == 1.0f ? s[i] : s[i] * factor;
                }
                assert_memory_equal(c, cos + t * n_freq, 4 * n_freq);
                for (uint32_t h = 0; h < HEADS; h++) {
                    float *head = want + (t * HEADS + h) * HD, out[HD];
                    ref_rmsnorm(head, w, HD, 1e-5f, out);
                    memcpy(head, out, sizeof out);
                    ref_rope(head, n_freq, c, s);
                }
            }
            be->ops->rmsnorm(be, x, w, HEADS, HD, 1e-5f, &b.b, x);
            be->ops->rope(be, x, HEADS, HD, n_freq, cos, sin, &b.b);
            assert_memory_equal(x, want, sizeof(float) * ROWS * HEADS * HD);
            be->ops->free(be);
        }
}

static void row_faults(void **state) {
    (void)state;
    enum { N = 70 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f}; // the last one overflows in each operation
    struct rng r;
    rng_init(&r, 33);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t at = 0; at < N; at += 23) {
                struct backend *be = new_backend(isa, 1);
                struct rows_batch b;
                random_values(&r, x, ROWS * N);
                random_values(&r, x2, ROWS * N);
                x[3 * N + at] = x2[3 * N + at] = bad[i];
                be->ops->add(be, x, x2, N, true, rows_batch(&b, ROWS), y);
                for (uint32_t t = 0; t < ROWS; t++) assert_int_equal(b.fault[t], t == 3);
                be->ops->act_mul(be, ACT_SILU, x, x2, N, rows_batch(&b, ROWS), y);
                for (uint32_t t = 0; t < ROWS; t++) assert_int_equal(b.fault[t], t == 3);
                be->ops->act_mul(be, ACT_GELU_TANH, x, x2, N, rows_batch(&b, ROWS), y);
                for (uint32_t t = 0; t < ROWS; t++) assert_int_equal(b.fault[t], t == 3);
                be->ops->softcap(be, x, N, 0.5f, rows_batch(&b, ROWS));
                for (uint32_t t = 0; t < ROWS; t++) assert_int_equal(b.fault[t], t == 3);
                be->ops->free(be);
            }
}

// ---- Mixture of experts

enum { HIDDEN = 192, FFN = 160, EXPERTS = 9, TOP_K = 3, TOKENS = 37 };

// Rank, weights and their last factor as the spec says.
static void want_route(const struct moe_spec *s, const float *logits, uint32_t *index, float *weight, bool *fault) {
    struct ref_sigmoid_router r = {.n = EXPERTS,
                                   .top_k = TOP_K,
                                   .n_groups = s->n_groups,
                                   .top_groups = s->top_groups,
                                   .norm_topk = s->norm_topk,
                                   .bias = s->bias};
    if (s->router == ROUTER_SOFTMAX)
        ref_router(logits, EXPERTS, TOP_K, s->norm_topk, index, weight, fault);
    else
        ref_router_sigmoid(&r, logits, index, weight, fault);
    for (uint32_t i = 0; i < TOP_K; i++) weight[i] = weight[i] * s->weights_scale;
}

static void want_moe(enum dtype t, const struct moe_spec *s, uint8_t *const e[3][EXPERTS], const float *logits,
                     float *out) {
    struct act_block *a = aligned_alloc(64, 2 * sizeof *a), *h = aligned_alloc(64, 2 * sizeof *h);
    bool fault = false, is_float = dtype_info(t)->is_float;
    uint64_t in_row = dtype_row_bytes(t, HIDDEN), mid_row = dtype_row_bytes(t, FFN);
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint32_t index[TOP_K];
        float weight[TOP_K], *o = out + i * HIDDEN, act[FFN];
        const float *row = x + i * HIDDEN;
        want_route(s, logits + i * EXPERTS, index, weight, &fault);
        ref_quant_row(row, HIDDEN, a, &fault);
        memset(o, 0, HIDDEN * 4);
        for (uint32_t ex = 0; ex < EXPERTS; ex++)
            for (uint32_t k = 0; k < TOP_K; k++) {
                if (index[k] != ex) continue;
                for (uint32_t n = 0; n < FFN; n++) {
                    const uint8_t *g = e[0][ex] + n * in_row, *u = e[1][ex] + n * in_row;
                    float gv = is_float ? ref_dot_float(t, g, row, HIDDEN) : ref_dot(t, g, a, HIDDEN);
                    float uv = is_float ? ref_dot_float(t, u, row, HIDDEN) : ref_dot(t, u, a, HIDDEN);
                    act[n] = (s->act == ACT_SILU ? ref_silu(gv, &fault) : ref_gelu(gv, &fault)) * uv;
                }
                ref_quant_row(act, FFN, h, &fault);
                for (uint32_t n = 0; n < HIDDEN; n++) {
                    const uint8_t *d = e[2][ex] + n * mid_row;
                    float v = is_float ? ref_dot_float(t, d, act, FFN) : ref_dot(t, d, h, FFN);
                    o[n] = fmaf(weight[k], v, o[n]);
                }
            }
    }
    assert_false(fault);
    free(a);
    free(h);
}

static void check_moe(struct rng *r, enum isa isa, enum dtype t, struct moe_spec s) {
    struct backend *be = new_backend(isa, 2);
    uint8_t *src[3][EXPERTS];
    struct weight *m[3][EXPERTS];
    static float logits[TOKENS * EXPERTS];
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            uint32_t n = p == 2 ? HIDDEN : FFN, k = p == 2 ? FFN : HIDDEN;
            src[p][e] = random_weights(r, t, n, k);
            m[p][e] = new_weight(be, t, n, k, src[p][e]);
        }
    random_values(r, x, TOKENS * HIDDEN);
    for (uint32_t i = 0; i < TOKENS * EXPERTS; i++) logits[i] = (float)rng_below(r, 6) * 0.5f; // with ties
    s.n_experts = EXPERTS;
    s.top_k = TOP_K;
    s.gate = (const struct weight *const *)m[0];
    s.up = (const struct weight *const *)m[1];
    s.down = (const struct weight *const *)m[2];
    struct qrows *q = be->ops->qrows_new(be, TOKENS, HIDDEN);
    struct rows_batch b;
    be->ops->quant(be, x, HIDDEN, rows_batch(&b, TOKENS), q);
    be->ops->moe(be, &s, logits, dtype_info(t)->is_float ? NULL : q, x, &b.b, y);
    want_moe(t, &s, src, logits, want);
    assert_memory_equal(y, want, TOKENS * HIDDEN * 4);
    for (uint32_t i = 0; i < TOKENS; i++) assert_int_equal(b.fault[i], 0);
    logits[5 * EXPERTS + 1] = INFINITY;
    be->ops->moe(be, &s, logits, dtype_info(t)->is_float ? NULL : q, x, &b.b, y);
    for (uint32_t i = 0; i < TOKENS; i++) {
        assert_int_equal(b.fault[i], i == 5);
        if (i != 5) assert_memory_equal(y + i * HIDDEN, want + i * HIDDEN, HIDDEN * 4);
    }
    be->ops->qrows_free(q);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            be->ops->weight_free(m[p][e]);
            free(src[p][e]);
        }
    be->ops->free(be);
}

static void experts(void **state) {
    (void)state;
    struct rng r;
    rng_init(&r, 34);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++) {
        check_moe(&r, isa, DT_Q8_0, (struct moe_spec){.norm_topk = true, .weights_scale = 1.0f});
        check_moe(&r, isa, DT_BF16, (struct moe_spec){.weights_scale = 1.0f});
        check_moe(&r, isa, DT_L8, (struct moe_spec){.act = ACT_GELU_TANH, .norm_topk = true, .weights_scale = 1.5f});
        struct moe_spec s = {
            .router = ROUTER_SIGMOID, .norm_topk = true, .n_groups = 1, .top_groups = 1, .weights_scale = 2.5f};
        check_moe(&r, isa, DT_Q4_0, s);
        random_values(&r, w, EXPERTS);
        s.bias = w;
        check_moe(&r, isa, DT_Q4_0, s);
        s.n_groups = 3;
        s.top_groups = 2;
        s.norm_topk = false;
        check_moe(&r, isa, DT_F32, s);
    }
}

// ---- Sampling

// Logits of several characters: spread, nearly flat, few values with many ties, one that towers.
static void random_logits(struct rng *r, float *l, uint32_t n, uint32_t kind) {
    for (uint32_t i = 0; i < n; i++) {
        switch (kind) {
        case 0:
            l[i] = random_value(r) * 4.0f;
            break;
        case 1:
            l[i] = random_value(r) * 0.01f;
            break;
        case 2:
            l[i] = (float)rng_below(r, 5) - 2.0f;
            break;
        default:
            l[i] = random_value(r) - 20.0f;
        }
        if (rng_below(r, 50) == 0) l[i] = -0.0f;
    }
    if (kind == 3) l[rng_below(r, n)] = 15.0f;
}

static void sampling(void **state) {
    (void)state;
    enum { MAX_N = 40000, DRAWS = 6 };
    static const float top_ps[] = {1.0f, 0.9f, 0.3f, 1e-7f, 0.999f}, min_ps[] = {0.0f, 0.05f, 1.0f, 0.5f};
    static const float temperatures[] = {1.0f, 0.6f, 0.05f, 3.0f, 0.0f};
    static const int32_t top_ks[] = {0, 1, 20, 1000, -1};
    struct rng r;
    rng_init(&r, 35);
    float *l = malloc(sizeof *l * MAX_N * DRAWS);
    struct ref_ranked *ranked = malloc(sizeof *ranked * MAX_N);
    for (enum isa isa = ISA_REF; isa <= isa_best(); isa++)
        for (uint32_t round = 0; round < 60; round++) {
            struct backend *be = new_backend(isa, 2);
            uint32_t n = round % 10 == 0 ? MAX_N - rng_below(&r, 9) : 1 + rng_below(&r, 3000), pos[DRAWS];
            struct sampling s[DRAWS];
            const struct sampling *p[DRAWS];
            int32_t token[DRAWS];
            uint8_t fault[DRAWS] = {0};
            for (uint32_t i = 0; i < DRAWS; i++) {
                random_logits(&r, l + (size_t)i * n, n, rng_below(&r, 4));
                s[i] = (struct sampling){.temperature = temperatures[rng_below(&r, 5)],
                                         .top_p = top_ps[rng_below(&r, 5)],
                                         .min_p = min_ps[rng_below(&r, 4)],
                                         .top_k = top_ks[rng_below(&r, 5)],
                                         .seed = rng_u64(&r),
                                         .choice = rng_below(&r, 3)};
                p[i] = &s[i];
                pos[i] = rng_u32(&r);
            }
            l[3 * n + rng_below(&r, n)] = round & 1 ? NAN : INFINITY;
            be->ops->sample(be, l, n, DRAWS, p, pos, token, fault);
            for (uint32_t i = 0; i < DRAWS; i++) {
                bool bad = false;
                int32_t expected = ref_sample(l + (size_t)i * n, n, p[i], pos[i], NULL, ranked, &bad);
                assert_int_equal(token[i], expected);
                assert_int_equal(fault[i], bad);
                assert_int_equal(fault[i], i == 3);
            }
            be->ops->free(be);
        }
    free(l);
    free(ranked);
}

static void penalties(void **state) {
    (void)state;
    float l[6] = {1.0f, -1.0f, 2.0f, 3.0f, 0.0f, 5.0f};
    struct ref_token_bias bias[] = {{.token = 2, .bias = -4.0f}, {.token = 99, .bias = 1.0f}};
    struct ref_token_count seen[] = {
        {.token = 0, .in_answer = 2}, {.token = 1, .in_answer = 0}, {.token = 2, .in_answer = 1}};
    struct ref_penalties p = {.repetition = 2.0f,
                              .frequency = 0.25f,
                              .presence = 0.125f,
                              .bias = bias,
                              .n_bias = 2,
                              .seen = seen,
                              .n_seen = 3};
    ref_penalise(l, 6, &p);
    const float expected[6] = {0.5f - 0.5f - 0.125f, -2.0f, -4.0f - 0.25f - 0.125f, 3.0f, 0.0f, 5.0f};
    assert_memory_equal(l, expected, sizeof l);
    struct ref_ranked ranked[6];
    struct sampling greedy = {.top_p = 1.0f};
    uint32_t allowed = 1u << 1 | 1u << 3 | 1u << 4;
    bool fault = false;
    assert_int_equal(ref_sample(l, 6, &greedy, 0, NULL, ranked, &fault), 5);
    assert_int_equal(ref_sample(l, 6, &greedy, 0, &allowed, ranked, &fault), 3);
    assert_false(fault);
    allowed = 0;
    assert_int_equal(ref_sample(l, 6, &greedy, 0, &allowed, ranked, &fault), -1);
    assert_true(fault);
    assert_true(ref_logprob(1.0f, 1.0f, 1u << 30) == 0.0f);
}

static void gather(void **state) {
    (void)state;
    struct backend *be = new_backend(ISA_AUTO, 1);
    const float in[6] = {0, 1, 2, 3, 4, 5}, expected[4] = {4, 5, 0, 1};
    const uint32_t index[2] = {2, 0};
    float out[4];
    be->ops->gather_rows(be, in, 2, index, 2, out);
    assert_memory_equal(out, expected, sizeof out);
    be->ops->free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise), cmocka_unit_test(all_exponents), cmocka_unit_test(rope_and_groups),
        cmocka_unit_test(row_faults),  cmocka_unit_test(experts),       cmocka_unit_test(sampling),
        cmocka_unit_test(penalties),   cmocka_unit_test(gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
