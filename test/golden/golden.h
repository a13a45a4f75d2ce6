// What the golden tests share: models of ../shared, a chain of stages in one process, and a small scheduler that turns
// prompts into steps. Every function is static inline: each test is one file.
#pragma once
#include "base/log.h"
#include "engine/stage.h"
#include "os/cpu.h"
#include "os/file.h"
#include "os/thread.h"
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define GOLDEN_SHARED LOOM_SOURCE_DIR "/../shared/"

enum { GOLDEN_STAGES = 16, GOLDEN_SKIP = 77 };

// Ends the test where a result is not ERR_OK, and says why.
#define GOLDEN_OK(call, e)                                                                                             \
    do {                                                                                                               \
        if ((call) != ERR_OK) fail_msg("%s: %s", #call, (e).text);                                                     \
    } while (0)

static inline void golden_need(const char *what) {
    char path[1024];
    snprintf(path, sizeof path, GOLDEN_SHARED "%s", what);
    if (file_exists(path)) return;
    printf("skipped: needs ../shared/%s\n", what);
    exit(GOLDEN_SKIP);
}

struct model {
    struct hparams h;
    struct gen_defaults gen;
    struct tensors *tensors;
};

static inline void model_open(struct model *m, const char *folder) {
    char path[1024];
    char *text;
    size_t len;
    struct err e;
    snprintf(path, sizeof path, GOLDEN_SHARED "%s/config.json", folder);
    GOLDEN_OK(file_read(path, LIMIT_CONFIG_BYTES, &text, &len, &e), e);
    GOLDEN_OK(model_parse_config(text, len, &m->h, &e), e);
    free(text);
    snprintf(path, sizeof path, GOLDEN_SHARED "%s/generation_config.json", folder);
    GOLDEN_OK(file_read(path, LIMIT_CONFIG_BYTES, &text, &len, &e), e);
    GOLDEN_OK(model_parse_generation(text, len, &m->h, &m->gen, &e), e);
    free(text);
    snprintf(path, sizeof path, GOLDEN_SHARED "%s", folder);
    GOLDEN_OK(tensors_open(path, &m->tensors, &e), e);
    GOLDEN_OK(model_fit_tensors(&m->h, m->tensors, &e), e);
}

static inline void model_close(struct model *m) { tensors_free(m->tensors); }

static inline struct backend *backend_of(enum isa isa) {
    struct backend *be;
    struct err e;
    GOLDEN_OK(backend_cpu_new(&(struct backend_cpu_config){.isa = isa}, &be, &e), e);
    return be;
}

// Stages that together are the whole model, one after the other.
struct chain {
    const struct model *m;
    struct stage *stage[GOLDEN_STAGES];
    uint32_t n;
    size_t stride;  // values of one half of rows
    uint16_t *rows; // [2][max_rows][hidden]: hidden rows on their way
    uint8_t fault[LIMIT_STEP_ROWS];
    float *rows32;
};

struct chain_config {
    struct run_mode mode;
    uint32_t n_stages, max_rows, n_blocks, max_context;
};

static inline struct stage *stage_of(const struct model *m, struct backend *be, const struct chain_config *c,
                                     uint32_t a, uint32_t b) {
    struct err e;
    struct model_part *part;
    struct stage *s;
    struct stage_config sc = {.hparams = &m->h,
                              .mode = c->mode,
                              .a = a,
                              .b = b,
                              .n_kv_blocks = c->n_blocks,
                              .max_rows = c->max_rows,
                              .max_context = c->max_context};
    GOLDEN_OK(model_part_load(&m->h, &c->mode, m->tensors, be, a, b, NULL, &part, &e), e);
    GOLDEN_OK(stage_new(&sc, be, part, &s, &e), e);
    return s;
}

static inline void chain_open(struct chain *ch, const struct model *m, struct backend *be,
                              const struct chain_config *c) {
    memset(ch, 0, sizeof *ch);
    ch->m = m;
    ch->n = c->n_stages;
    for (uint32_t i = 0; i < c->n_stages; i++)
        ch->stage[i] = stage_of(m, be, c, i * m->h.n_layers / c->n_stages, (i + 1) * m->h.n_layers / c->n_stages);
    ch->stride = (size_t)c->max_rows * m->h.hidden;
    ch->rows = calloc(2 * ch->stride, sizeof(uint16_t));
    ch->rows32 = calloc((size_t)c->max_rows * m->h.hidden, sizeof(float));
}

static inline void chain_close(struct chain *ch) {
    for (uint32_t i = 0; i < ch->n; i++) stage_free(ch->stage[i]);
    free(ch->rows);
    free(ch->rows32);
}

// One step through all stages. With logits the last stage gives them instead of tokens.
static inline void chain_run(struct chain *ch, const struct step *step, struct step_result *r, float *logits) {
    struct err e;
    GOLDEN_OK(step_check(step, ch->m->h.n_vocab, UINT32_MAX, &e), e);
    memset(ch->fault, 0, sizeof ch->fault);
    for (uint32_t i = 0; i < ch->n; i++) {
        uint16_t *in = ch->rows + i % 2 * ch->stride, *out = ch->rows + (i + 1) % 2 * ch->stride;
        if (i + 1 == ch->n && logits) {
            for (size_t k = 0; i && k < (size_t)step->n_rows * ch->m->h.hidden; k++) {
                uint32_t u = (uint32_t)in[k] << 16;
                memcpy(&ch->rows32[k], &u, sizeof u);
            }
            GOLDEN_OK(stage_run_f32(ch->stage[i], step, ch->rows32, NULL, logits, NULL, &e), e);
        } else {
            // The rows are the chain's, chain_close frees them. NOLINTNEXTLINE(clang-analyzer-unix.Malloc)
            GOLDEN_OK(stage_run(ch->stage[i], step, in, out, ch->fault, r, &e), e);
        }
    }
}

// A prompt and what became of it.
struct talk {
    const int32_t *prompt;
    uint32_t n_prompt, max_new;
    struct sampling sampling;
    int32_t *out; // [max_new]
    uint32_t n_out;
    bool done;
    uint32_t pos, n_table; // rows computed, blocks given
    uint32_t restart_at;   // released and computed again once so many tokens are out; 0: never
};

static inline bool talk_is_stop(const struct hparams *h, int32_t id) {
    for (uint32_t i = 0; i < h->n_eos; i++)
        if (h->eos_ids[i] == id) return true;
    return false;
}

static inline int32_t talk_token(const struct talk *t, uint32_t pos) {
    return pos < t->n_prompt ? t->prompt[pos] : t->out[pos - t->n_prompt];
}

// Blocks are dealt out from a common pile, so that tables of several talks are mixed up as in service.
struct pile {
    uint32_t next, n;
};

// Adds up to `rows` rows of talk t to the step; a talk that catches up (prompt, or after a restart) adds many.
static inline void talk_add(struct talk *t, uint32_t slot, uint32_t rows, struct pile *pile, struct step *s) {
    uint32_t left = t->n_prompt + t->n_out - t->pos;
    uint32_t n = left < rows ? left : rows;
    if (t->done || n == 0) return;
    struct step_seq *q = &s->seqs[s->n_seqs++];
    *q = (struct step_seq){.slot = slot,
                           .pos = t->pos,
                           .row = s->n_rows,
                           .n_rows = n,
                           .first_block = t->n_table,
                           .block = s->n_blocks,
                           .sample = n == left,
                           .sampling = t->sampling};
    for (uint32_t i = 0; i < n; i++) s->tokens[s->n_rows++] = talk_token(t, t->pos + i);
    for (; t->n_table * LIMIT_BLOCK_TOKENS < t->pos + n; t->n_table++) {
        assert_true(pile->next < pile->n);
        s->blocks[s->n_blocks++] = pile->next++;
        q->n_blocks++;
    }
    t->pos += n;
}

static inline void talk_take(struct talk *t, const struct hparams *h, int32_t token) {
    ASSERT(t->out && token >= 0);
    t->out[t->n_out++] = token;
    t->done = t->n_out == t->max_new || talk_is_stop(h, token);
}

// Runs talks to their ends: each step has a decode row of all that wait for one and `chunk` rows of prefill.
static inline void talks_run(struct chain *ch, struct talk *t, uint32_t n, uint32_t chunk, uint32_t n_blocks,
                             uint32_t max_rows) {
    struct step *s = step_new();
    struct step_result r;
    struct pile pile = {0, n_blocks};
    uint64_t id = 0;
    for (;;) {
        step_clear(s);
        s->id = ++id;
        uint32_t prefill = chunk;
        for (uint32_t i = 0; i < n; i++) {
            if (t[i].restart_at && t[i].n_out == t[i].restart_at && t[i].pos + 1 == t[i].n_prompt + t[i].n_out) {
                s->releases[s->n_releases++] = i;
                t[i].pos = t[i].n_table = t[i].restart_at = 0;
            }
            uint32_t left = t[i].n_prompt + t[i].n_out - t[i].pos;
            uint32_t room = max_rows - s->n_rows, want = left == 1 ? 1 : prefill;
            uint32_t before = s->n_rows;
            talk_add(&t[i], i, want < room ? want : room, &pile, s);
            if (left > 1) prefill -= s->n_rows - before;
        }
        if (s->n_seqs == 0) break;
        chain_run(ch, s, &r, NULL);
        for (uint32_t i = 0; i < r.n; i++) {
            assert_false(r.entry[i].fault);
            talk_take(&t[r.entry[i].slot], &ch->m->h, r.entry[i].token);
        }
    }
    step_clear(s);
    for (uint32_t i = 0; i < n; i++) s->releases[s->n_releases++] = i;
    chain_run(ch, s, &r, NULL);
    step_free(s);
}

// JSON array of integers -> ids; the caller frees them.
static inline int32_t *ids_of(const json_t *list, uint32_t *n) {
    *n = (uint32_t)json_array_size(list);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    for (uint32_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static inline json_t *json_open(const char *what) {
    char path[1024];
    json_error_t why;
    snprintf(path, sizeof path, GOLDEN_SHARED "%s", what);
    json_t *root = json_load_file(path, 0, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    return root;
}

// Norm of the difference over the norm of the reference.
static inline double relative_error(const float *a, const float *ref, size_t n) {
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - ref[i]) * ((double)a[i] - ref[i]);
        r += (double)ref[i] * ref[i];
    }
    return sqrt(d / r);
}
