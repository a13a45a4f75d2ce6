// Every family gives the same bytes whatever the chunk, the cut into stages and the instruction set; and what this
// build does not compute is refused with a word on what is missing.
#include "cmd/cmd.h"
#include "golden/golden.h"
#include "head/open.h"
#include <unistd.h>

static const char *const NAMES[] = {"qwen2",    "qwen3",      "qwen3_tied", "qwen3_yarn", "qwen3_moe", "llama3",
                                    "mistral",  "ministral3", "mixtral",    "phi3",       "olmo3",     "smollm3",
                                    "seed_oss", "gemma2",     "gemma3",     "glm4_moe",   "minimax_m2"};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

enum { MAX_ROWS = 160, N_BLOCKS = 8, CONTEXT = 256 };

struct sample {
    struct model m;
    int32_t *ids;
    uint32_t n;
};

static void sample_open(struct sample *t, const char *name) {
    char path[512];
    struct err e;
    struct tensors *reference;
    snprintf(path, sizeof path, "fixtures/arch/%s", name);
    model_open(&t->m, path);
    snprintf(path, sizeof path, GOLDEN_SHARED "fixtures/arch/%s/reference.safetensors", name);
    GOLDEN_OK(tensors_open(path, &reference, &e), e);
    const struct tensor *ids = tensors_find(reference, "input_ids");
    assert_true(ids && ids->type == DT_I32 && ids->bytes);
    t->n = (uint32_t)(ids->bytes / sizeof *t->ids);
    assert_true(t->n <= CONTEXT);
    t->ids = malloc(ids->bytes);
    memcpy(t->ids, ids->data, ids->bytes);
    tensors_free(reference);
}

static void sample_close(struct sample *t) {
    model_close(&t->m);
    free(t->ids);
}

// logits [n][n_vocab] of the text, `chunk` rows a step.
static float *logits_of(const struct sample *t, struct run_mode mode, enum isa isa, uint32_t n_stages, uint32_t chunk) {
    struct backend *be = backend_of(isa);
    struct chain ch;
    struct chain_config cc = {
        .mode = mode, .n_stages = n_stages, .max_rows = MAX_ROWS, .n_blocks = N_BLOCKS, .max_context = CONTEXT};
    chain_open(&ch, &t->m, be, &cc);
    struct talk talk = {.prompt = t->ids, .n_prompt = t->n, .sampling = {.top_p = 1}};
    struct pile pile = {0, N_BLOCKS};
    struct step *s = step_new();
    uint32_t v = t->m.h.n_vocab;
    float *logits = calloc((size_t)t->n * v, sizeof *logits);
    while (talk.pos < t->n) {
        step_clear(s);
        uint32_t pos = talk.pos;
        talk_add(&talk, 0, chunk, &pile, s);
        chain_run(&ch, s, NULL, logits + (size_t)pos * v);
    }
    for (uint32_t i = 0; i < t->n; i++) assert_int_equal(ch.fault[i % MAX_ROWS], 0);
    step_free(s);
    chain_close(&ch);
    be->ops->free(be);
    return logits;
}

static void check_mode(const char *name, const struct sample *t, struct run_mode mode) {
    static const struct {
        enum isa isa;
        uint32_t n_stages, chunk;
    } runs[] = {{ISA_AUTO, 1, 16}, {ISA_AUTO, 2, 64}, {ISA_AUTO, 4, 160}, {ISA_AUTO, 4, 16},
                {ISA_AUTO, 1, 1},  {ISA_AVX2, 1, 64}, {ISA_REF, 2, 160}};
    float *want = logits_of(t, mode, ISA_AUTO, 1, 160);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        if (runs[i].isa > isa_best()) continue; // this machine cannot
        float *have = logits_of(t, mode, runs[i].isa, runs[i].n_stages, runs[i].chunk);
        for (uint32_t r = 0; r < t->n; r++)
            if (memcmp(have + (size_t)r * t->m.h.n_vocab, want + (size_t)r * t->m.h.n_vocab,
                       t->m.h.n_vocab * sizeof *want))
                fail_msg("%s, weights %d, kv %d: %s, %u stages, chunks of %u: row %u differs", name, mode.weights,
                         mode.kv, isa_name(runs[i].isa), runs[i].n_stages, runs[i].chunk, r);
        free(have);
    }
    free(want);
}

static void test_same_bytes(void **state) {
    (void)state;
    static const struct run_mode MODES[] = {{.weights = WEIGHTS_L8, .kv = KV_I8},
                                            {.weights = WEIGHTS_Q8_0, .kv = KV_I8},
                                            {.weights = WEIGHTS_AS_IS, .kv = KV_I8},
                                            {.weights = WEIGHTS_AS_IS, .kv = KV_F16}};
    for (size_t i = 0; i < N_NAMES; i++) {
        struct sample t;
        sample_open(&t, NAMES[i]);
        for (size_t k = 0; k < sizeof MODES / sizeof *MODES; k++) check_mode(NAMES[i], &t, MODES[k]);
        sample_close(&t);
    }
}

static void quantize(const char *name, const char *type, const char *out) {
    char folder[512];
    snprintf(folder, sizeof folder, GOLDEN_SHARED "fixtures/arch/%s", name);
    char *argv[] = {folder, (char *)(uintptr_t)out, "--type", (char *)(uintptr_t)type, "--force", NULL};
    assert_int_equal(cmd_quantize.run(&cmd_quantize, 5, argv), EXIT_FINE);
}

// The same through a GGUF file: metadata, names, order of rows and what it leaves out come back as the folder has them.
static void test_gguf(void **state) {
    (void)state;
    static const struct run_mode FOLDER[] = {{.weights = WEIGHTS_Q8_0, .kv = KV_I8},
                                             {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true}};
    static const struct run_mode FILE_MODE[] = {{.weights = WEIGHTS_NATIVE, .kv = KV_I8},
                                                {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true}};
    static const char *const TYPES[] = {"q8_0", "bf16"};
    static const enum isa ISA[] = {ISA_AUTO, ISA_REF};
    char path[] = "/tmp/loom_family_XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < 2 * N_NAMES; i++) {
        const char *name = NAMES[i / 2];
        struct sample t, file;
        struct opened_model m;
        struct err e;
        quantize(name, TYPES[i % 2], path);
        sample_open(&t, name);
        GOLDEN_OK(open_model(path, &m, &e), e);
        file = (struct sample){.m = {.h = m.hparams, .tensors = m.tensors}, .ids = t.ids, .n = t.n};
        float *want = logits_of(&t, FOLDER[i % 2], ISA[i % 2], 1, 160);
        // What lies between stages is rounded to bf16, which the plain mathematics is not.
        float *have = logits_of(&file, FILE_MODE[i % 2], ISA[i % 2], i % 2 ? 1 : 2, 64);
        if (memcmp(have, want, (size_t)t.n * t.m.h.n_vocab * sizeof *want))
            fail_msg("%s as %s: other logits than from the folder", name, TYPES[i % 2]);
        free(want);
        free(have);
        open_model_close(&m);
        sample_close(&t);
    }
    unlink(path);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *word;
    } later[] = {{"deepseek_v2", "MLA"}, {"deepseek_v3", "MLA"},   {"deepseek_v4", "MLA"},  {"qwen3_next", "delta"},
                 {"qwen3_5", "delta"},   {"qwen3_5_moe", "delta"}, {"gemma4", "per-layer"}, {"gpt_oss", "sinks"}};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        char path[512], *text;
        size_t len;
        struct err e;
        static struct hparams h;
        snprintf(path, sizeof path, GOLDEN_SHARED "fixtures/arch/%s/config.json", later[i].name);
        GOLDEN_OK(file_read(path, LIMIT_CONFIG_BYTES, &text, &len, &e), e);
        int rc = model_parse_config(text, len, &h, &e);
        if (rc != ERR_UNSUPPORTED || !strstr(e.text, later[i].word) || !strstr(e.text, "later"))
            fail_msg("%s: %d %s", later[i].name, rc, rc ? e.text : "");
        free(text);
    }
}

int main(void) {
    golden_need("fixtures/arch/minimax_m2");
    thread_fp_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_same_bytes),
                                       cmocka_unit_test(test_gguf)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
