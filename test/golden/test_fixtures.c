// The plain mathematics against logits, hidden states and greedy tokens of a reference implementation, and the distance
// of the contract's own paths from it.
#include "golden/golden.h"

enum { PROMPT_OF_GREEDY = 48, MAX_ROWS = 256, N_BLOCKS = 8, CONTEXT = 256 };

static const float *f32_of(const struct tensors *t, const char *name, size_t n) {
    const struct tensor *x = tensors_find(t, name);
    assert_non_null(x);
    assert_int_equal(x->type, DT_F32);
    assert_int_equal(x->bytes, n * sizeof(float));
    float *copy = malloc(x->bytes);
    memcpy(copy, x->data, x->bytes);
    return copy;
}

static int32_t *i32_of(const struct tensors *t, const char *name, uint32_t *n) {
    const struct tensor *x = tensors_find(t, name);
    assert_non_null(x);
    assert_int_equal(x->type, DT_I32);
    *n = (uint32_t)(x->bytes / sizeof(int32_t));
    int32_t *copy = malloc(x->bytes);
    memcpy(copy, x->data, x->bytes);
    return copy;
}

// One sequence through one stage, chunk rows at a time; hidden may be NULL, else chunk must hold everything.
static void run_ids(struct stage *s, const struct hparams *h, const int32_t *ids, uint32_t n, uint32_t chunk,
                    float *logits, float *hidden) {
    struct step *step = step_new();
    struct err e;
    uint32_t n_table = 0;
    for (uint32_t at = 0; at < n; at += chunk) {
        step_clear(step);
        uint32_t m = n - at < chunk ? n - at : chunk;
        struct step_seq *q = &step->seqs[0];
        *q = (struct step_seq){.pos = at, .n_rows = m, .first_block = n_table, .sampling = {.top_p = 1}};
        for (; n_table * LIMIT_BLOCK_TOKENS < at + m; n_table++, q->n_blocks++) step->blocks[q->n_blocks] = n_table;
        step->n_seqs = 1;
        step->n_rows = m;
        step->n_blocks = q->n_blocks;
        memcpy(step->tokens, ids + at, m * sizeof *ids);
        GOLDEN_OK(step_check(step, h->n_vocab, N_BLOCKS, &e), e);
        GOLDEN_OK(stage_run_f32(s, step, NULL, NULL, logits + (size_t)at * h->n_vocab, hidden, &e), e);
    }
    step_free(step);
}

struct fixture {
    struct model m;
    struct tensors *reference;
    const char *name;
    uint32_t n_ids, n_greedy;
    int32_t *ids, *greedy;
    const float *logits;
};

static void fixture_open(struct fixture *f, const char *name) {
    char path[256];
    struct err e;
    snprintf(path, sizeof path, "fixtures/arch/%s", name);
    model_open(&f->m, path);
    snprintf(path, sizeof path, GOLDEN_SHARED "fixtures/arch/%s/reference.safetensors", name);
    GOLDEN_OK(tensors_open(path, &f->reference, &e), e);
    f->name = name;
    f->ids = i32_of(f->reference, "input_ids", &f->n_ids);
    f->greedy = i32_of(f->reference, "greedy_ids", &f->n_greedy);
    f->logits = f32_of(f->reference, "logits", (size_t)f->n_ids * f->m.h.n_vocab);
}

static void fixture_close(struct fixture *f) {
    model_close(&f->m);
    tensors_free(f->reference);
    free(f->ids);
    free(f->greedy);
    free((float *)f->logits);
}

// Largest relative error of a position, and that over all of them.
struct distance {
    double worst, all;
};

static struct distance distance_of(const float *a, const float *ref, uint32_t rows, uint32_t n) {
    struct distance d = {.all = relative_error(a, ref, (size_t)rows * n)};
    for (uint32_t r = 0; r < rows; r++)
        d.worst = fmax(d.worst, relative_error(a + (size_t)r * n, ref + (size_t)r * n, n));
    return d;
}

static void check_hidden(const struct fixture *f, const float *hidden) {
    size_t values = (size_t)f->n_ids * f->m.h.hidden;
    for (uint32_t i = 0; i <= f->m.h.n_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%u", i);
        const float *ref = f32_of(f->reference, name, values);
        struct distance d = distance_of(hidden + i * values, ref, f->n_ids, f->m.h.hidden);
        if (!(d.worst <= 2e-5)) fail_msg("%s: %s: relative error %g", f->name, name, d.worst);
        free((float *)ref);
    }
}

// The continuation that the reference chose, by the largest logit, token by token.
static void check_greedy(const struct fixture *f, struct stage *s) {
    const struct hparams *h = &f->m.h;
    float *logits = calloc((size_t)f->n_greedy * h->n_vocab, sizeof *logits);
    run_ids(s, h, f->greedy, f->n_greedy, MAX_ROWS, logits, NULL);
    for (uint32_t pos = PROMPT_OF_GREEDY; pos < f->n_greedy; pos++) {
        const float *row = logits + (size_t)(pos - 1) * h->n_vocab;
        int32_t best = 0;
        for (uint32_t i = 1; i < h->n_vocab; i++)
            if (row[i] > row[best]) best = (int32_t)i;
        if (best != f->greedy[pos]) fail_msg("%s: greedy token %u is %d, not %d", f->name, pos, best, f->greedy[pos]);
    }
    free(logits);
}

static void verify(const char *name) {
    struct fixture f;
    fixture_open(&f, name);
    const struct hparams *h = &f.m.h;
    struct backend *be = backend_of(ISA_REF);
    struct chain_config c = {.mode = {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true},
                             .max_rows = MAX_ROWS,
                             .n_blocks = N_BLOCKS,
                             .max_context = CONTEXT};
    struct stage *s = stage_of(&f.m, be, &c, 0, h->n_layers);
    float *logits = calloc((size_t)f.n_ids * h->n_vocab, sizeof *logits);
    float *hidden = calloc((size_t)(h->n_layers + 1) * f.n_ids * h->hidden, sizeof *hidden);
    run_ids(s, h, f.ids, f.n_ids, MAX_ROWS, logits, hidden);
    struct distance d = distance_of(logits, f.logits, f.n_ids, h->n_vocab);
    printf("%-12s verify         relative error of the logits: %.3g, worst position %.3g\n", name, d.all, d.worst);
    if (!(d.worst <= 2e-5)) fail_msg("%s: relative error %g at a position", name, d.worst);
    check_hidden(&f, hidden);
    stage_reset(s);
    check_greedy(&f, s);
    stage_free(s);
    be->ops->free(be);
    free(logits);
    free(hidden);
    fixture_close(&f);
}

// No bound is promised for these; the dense ones must be near, random experts may flip.
static void report_paths(const char *name, double bound) {
    static const struct {
        const char *text;
        struct run_mode mode;
    } paths[] = {{"as-is, f16 KV", {.weights = WEIGHTS_AS_IS, .kv = KV_F16}},
                 {"as-is, int8 KV", {.weights = WEIGHTS_AS_IS, .kv = KV_I8}},
                 {"l8, int8 KV", {.weights = WEIGHTS_L8, .kv = KV_I8}},
                 {"q8_0, int8 KV", {.weights = WEIGHTS_Q8_0, .kv = KV_I8}}};
    struct fixture f;
    fixture_open(&f, name);
    const struct hparams *h = &f.m.h;
    struct backend *be = backend_of(ISA_AUTO);
    float *logits = calloc((size_t)f.n_ids * h->n_vocab, sizeof *logits);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct chain_config c = {
            .mode = paths[i].mode, .max_rows = MAX_ROWS, .n_blocks = N_BLOCKS, .max_context = CONTEXT};
        struct stage *s = stage_of(&f.m, be, &c, 0, h->n_layers);
        run_ids(s, h, f.ids, f.n_ids, MAX_ROWS, logits, NULL);
        struct distance d = distance_of(logits, f.logits, f.n_ids, h->n_vocab);
        printf("%-12s %-14s relative error of the logits: %.3g, worst position %.3g\n", name, paths[i].text, d.all,
               d.worst);
        if (!(d.all <= bound)) fail_msg("%s, %s: relative error %g", name, paths[i].text, d.all);
        stage_free(s);
    }
    be->ops->free(be);
    free(logits);
    fixture_close(&f);
}

// Bound of the normal paths: the dense ones must be near, random experts may flip.
#define FIXTURE(name, bound)                                                                                           \
    static void test_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        verify(#name);                                                                                                 \
        report_paths(#name, bound);                                                                                    \
    }
FIXTURE(qwen3, 0.1)
FIXTURE(qwen3_tied, 0.1)
FIXTURE(qwen3_yarn, 0.1)
FIXTURE(qwen3_moe, 2)
FIXTURE(qwen2, 0.1)
FIXTURE(llama3, 0.1)
FIXTURE(mistral, 0.1)
FIXTURE(ministral3, 0.1)
FIXTURE(mixtral, 2)
FIXTURE(phi3, 0.1)
FIXTURE(olmo3, 0.1)
FIXTURE(smollm3, 0.1)
FIXTURE(seed_oss, 0.1)
FIXTURE(gemma2, 0.1)
FIXTURE(gemma3, 0.1)
FIXTURE(glm4_moe, 2)
FIXTURE(minimax_m2, 2)

#define TEST(name) cmocka_unit_test(test_##name)

int main(void) {
    golden_need("fixtures/arch/minimax_m2");
    thread_fp_init();
    const struct CMUnitTest tests[] = {
        TEST(qwen3),    TEST(qwen3_tied), TEST(qwen3_yarn), TEST(qwen3_moe), TEST(qwen2),     TEST(llama3),
        TEST(mistral),  TEST(ministral3), TEST(mixtral),    TEST(phi3),      TEST(olmo3),     TEST(smollm3),
        TEST(seed_oss), TEST(gemma2),     TEST(gemma3),     TEST(glm4_moe),  TEST(minimax_m2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
