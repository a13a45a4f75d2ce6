// The same tokens give the same logits, byte for byte, whatever the chunk, the cut into stages, the company in the
// batch or the instruction set; and a sequence that was thrown out and computed again goes on with the same tokens.
#include "golden/golden.h"
#include "base/map.h"

// More than a segment of keys (NUMERICS 6.3), and no whole number of blocks; the plain kernels get a shorter piece, and
// all of them under a sanitizer, which makes everything several times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_IDS = 170, N_ONE_BY_ONE = 70, N_SHORT = 70 };
#else
enum { N_IDS = 1100, N_ONE_BY_ONE = 400, N_SHORT = 150 };
#endif
enum { MAX_ROWS = 512, CONTEXT = 2304, N_BLOCKS = 256, N_TALKS = 8 };

// How a text is computed.
struct run {
    enum isa isa;
    uint32_t n_stages, chunk, n_others, n_ids;
};

struct given {
    struct model m;
    struct run_mode mode;
    int32_t *ids; // the longest prompt there is
    uint32_t n;
};

static const json_t *prompt_of(const json_t *root, size_t i) {
    return json_object_get(json_array_get(root, i), "prompt_ids");
}

static void given_open(struct given *g, const char *name, struct run_mode mode) {
    char path[128];
    snprintf(path, sizeof path, "models/%s", name);
    model_open(&g->m, path);
    g->mode = mode;
    json_t *root = json_open("fixtures/chat/loom-demo.greedy.json");
    size_t longest = 0;
    for (size_t i = 0; i < json_array_size(root); i++)
        if (json_array_size(prompt_of(root, i)) > json_array_size(prompt_of(root, longest))) longest = i;
    g->ids = ids_of(prompt_of(root, longest), &g->n);
    assert_true(g->n >= N_IDS + 100);
    json_decref(root);
}

static void given_close(struct given *g) {
    model_close(&g->m);
    free(g->ids);
}

static struct chain_config config_of(const struct given *g, uint32_t n_stages) {
    return (struct chain_config){
        .mode = g->mode, .n_stages = n_stages, .max_rows = MAX_ROWS, .n_blocks = N_BLOCKS, .max_context = CONTEXT};
}

// hash[i]: of the logits of row i.
static void hash_rows(const struct given *g, const struct run *r, uint64_t *hash) {
    struct backend *be = backend_of(r->isa);
    struct chain ch;
    struct chain_config cc = config_of(g, r->n_stages);
    chain_open(&ch, &g->m, be, &cc);
    struct talk t[5] = {{.prompt = g->ids, .n_prompt = r->n_ids, .sampling = {.top_p = 1}}};
    for (uint32_t i = 1; i <= r->n_others; i++)
        t[i] = (struct talk){.prompt = g->ids + 17 * i, .n_prompt = 40 * i, .sampling = {.top_p = 1}};
    float *logits = malloc((size_t)MAX_ROWS * g->m.h.n_vocab * sizeof *logits);
    struct step *s = step_new();
    struct pile pile = {0, N_BLOCKS};
    while (t[0].pos < r->n_ids) {
        step_clear(s);
        for (uint32_t i = 1; i <= r->n_others; i++) talk_add(&t[i], i, i * i, &pile, s); // some end, some go on
        uint32_t row = s->n_rows, pos = t[0].pos;
        talk_add(&t[0], 0, r->chunk < MAX_ROWS - row ? r->chunk : MAX_ROWS - row, &pile, s);
        chain_run(&ch, s, NULL, logits);
        for (uint32_t i = pos; i < t[0].pos; i++)
            hash[i] =
                map_hash_bytes(logits + (size_t)(row + i - pos) * g->m.h.n_vocab, g->m.h.n_vocab * sizeof *logits, 1);
    }
    step_free(s);
    free(logits);
    chain_close(&ch);
    be->ops->free(be);
}

static void check_runs(const struct given *g, const struct run *base, const struct run *runs, size_t n) {
    uint64_t want[N_IDS] = {0}, have[N_IDS] = {0};
    hash_rows(g, base, want);
    for (size_t i = 0; i < n; i++) {
        if (runs[i].isa > isa_best()) continue; // this machine cannot
        hash_rows(g, &runs[i], have);
        for (uint32_t k = 0; k < runs[i].n_ids; k++)
            if (have[k] != want[k])
                fail_msg("%s, %u stages, chunks of %u, %u others: row %u differs", isa_name(runs[i].isa),
                         runs[i].n_stages, runs[i].chunk, runs[i].n_others, k);
    }
}

static void test_logits_dense(void **state) {
    (void)state;
    static const struct run runs[] = {
        {ISA_AUTO, 1, 1, 0, N_ONE_BY_ONE}, {ISA_AUTO, 1, 16, 0, N_IDS},    {ISA_AUTO, 1, 64, 0, N_IDS},
        {ISA_AUTO, 2, 512, 0, N_IDS},      {ISA_AUTO, 3, 100, 0, N_IDS},   {ISA_AUTO, 4, 512, 0, N_SHORT},
        {ISA_AUTO, 6, 512, 0, N_IDS},      {ISA_AUTO, 12, 64, 0, N_SHORT}, {ISA_AUTO, 1, 64, 4, N_IDS},
        {ISA_AUTO, 3, 7, 4, N_SHORT},      {ISA_AVX512, 1, 64, 0, N_IDS},  {ISA_AVX2, 1, 512, 0, N_IDS},
        {ISA_AVX2, 1, 1, 2, N_SHORT},      {ISA_REF, 2, 64, 1, N_SHORT}};
    struct given g;
    given_open(&g, "loom-demo", (struct run_mode){.weights = WEIGHTS_L8, .kv = KV_I8});
    check_runs(&g, &(struct run){ISA_AUTO, 1, 512, 0, N_IDS}, runs, sizeof runs / sizeof *runs);
    given_close(&g);
}

static void check_short(const char *name, struct run_mode mode) {
    static const struct run runs[] = {{ISA_AUTO, 1, 1, 0, N_SHORT},
                                      {ISA_AUTO, 4, 16, 3, N_SHORT},
                                      {ISA_AVX2, 2, 64, 0, N_SHORT},
                                      {ISA_REF, 1, 33, 1, N_SHORT / 2}};
    struct given g;
    given_open(&g, name, mode);
    check_runs(&g, &(struct run){ISA_AUTO, 1, 512, 0, N_SHORT}, runs, sizeof runs / sizeof *runs);
    given_close(&g);
}

static void test_logits_other_modes(void **state) {
    (void)state;
    check_short("loom-demo", (struct run_mode){.weights = WEIGHTS_Q8_0, .kv = KV_I8});
    check_short("loom-demo", (struct run_mode){.weights = WEIGHTS_Q4_0, .kv = KV_I8});
    check_short("loom-demo", (struct run_mode){.weights = WEIGHTS_AS_IS, .kv = KV_F16});
}

static void test_logits_moe(void **state) {
    (void)state;
    check_short("loom-demo-moe", (struct run_mode){.weights = WEIGHTS_L8, .kv = KV_I8});
    check_short("loom-demo-moe", (struct run_mode){.weights = WEIGHTS_AS_IS, .kv = KV_I8});
}

enum { MAX_NEW = 40 };

// Eight talks, every second one sampled, all with prompts of their own.
static void talks_make(const struct given *g, struct talk *t, int32_t out[][MAX_NEW]) {
    for (uint32_t i = 0; i < N_TALKS; i++) {
        t[i] = (struct talk){.prompt = g->ids + 5 * i, .n_prompt = 20 + 31 * i, .max_new = MAX_NEW, .out = out[i]};
        t[i].sampling = (struct sampling){.temperature = i % 2 ? 0.9f : 0,
                                          .top_p = i % 3 ? 0.95f : 1,
                                          .min_p = i % 5 ? 0 : 0.02f,
                                          .top_k = i % 4 ? 40 : 0,
                                          .seed = 1234567 * i,
                                          .choice = i / 2};
    }
}

static void talks_same(const struct talk *a, const struct talk *b, uint32_t n, const char *what) {
    for (uint32_t i = 0; i < n; i++) {
        bool same = a[i].n_out == b[i].n_out && memcmp(a[i].out, b[i].out, a[i].n_out * sizeof(int32_t)) == 0;
        if (!same) fail_msg("talk %u: other tokens %s", i, what);
    }
}

static void test_tokens(void **state) {
    (void)state;
    struct given g;
    given_open(&g, "loom-demo", (struct run_mode){.weights = WEIGHTS_L8, .kv = KV_I8});
    struct backend *be = backend_of(ISA_AUTO);
    struct chain ch;
    struct chain_config cc = config_of(&g, 1);
    int32_t out[N_TALKS][MAX_NEW], other[N_TALKS][MAX_NEW];
    struct talk t[N_TALKS], o[N_TALKS];

    chain_open(&ch, &g.m, be, &cc);
    talks_make(&g, t, out);
    talks_run(&ch, t, N_TALKS, 64, N_BLOCKS, MAX_ROWS);
    talks_make(&g, o, other);
    for (uint32_t i = 0; i < N_TALKS; i++) talks_run(&ch, &o[i], 1, 512, N_BLOCKS, MAX_ROWS);
    talks_same(t, o, N_TALKS, "alone");
    talks_make(&g, o, other);
    for (uint32_t i = 0; i < N_TALKS; i++) o[i].restart_at = 1 + 3 * i;
    talks_run(&ch, o, N_TALKS, 16, N_BLOCKS, MAX_ROWS);
    talks_same(t, o, N_TALKS, "after it was released and computed again");
    chain_close(&ch);

    cc.n_stages = 4;
    chain_open(&ch, &g.m, be, &cc);
    talks_make(&g, o, other);
    talks_run(&ch, o, N_TALKS, 100, N_BLOCKS, MAX_ROWS);
    talks_same(t, o, N_TALKS, "from four stages");
    chain_close(&ch);
    be->ops->free(be);
    given_close(&g);
}

int main(void) {
    golden_need("models/loom-demo");
    golden_need("models/loom-demo-moe");
    golden_need("fixtures/chat/loom-demo.greedy.json");
    thread_fp_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits_dense), cmocka_unit_test(test_logits_other_modes),
                                       cmocka_unit_test(test_logits_moe), cmocka_unit_test(test_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
