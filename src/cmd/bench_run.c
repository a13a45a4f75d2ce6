// The measuring of loom bench. The head comes first, as its model is loaded for itself; then a chain of stages in this
// thread runs all batches.
#include "cmd/bench.h"

#include <stdlib.h>

#include "cmd/reply.h"
#include "compute/roof.h"
#include "os/clock.h"

// Steps and prompt of a sequence while the head is looked at: its work does not depend on what the stages do.
enum { HEAD_STEPS = 16, HEAD_PROMPT = 8 };

static uint32_t most(const struct flag_u32s *list) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->value[i] > n) n = list->value[i];
    return n;
}

// The tokens are arbitrary; the work is not.
static void fill(int32_t *tokens, uint32_t n, uint32_t n_vocab) {
    uint32_t x = 12345;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 8) % n_vocab);
    }
}

static int one_head_run(const struct bench *b, struct head *head, struct bench_row *row, struct err *e) {
    struct gateway_ops ops = head_gateway_ops(head);
    struct reply *replies = calloc(row->batch, sizeof *replies);
    int32_t prompt[HEAD_PROMPT];
    uint32_t n = 0, n_prompt = b->prefill < HEAD_PROMPT ? b->prefill : HEAD_PROMPT;
    int rc = replies ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for answers");
    double us0, us1, n0, n1;
    fill(prompt, n_prompt, b->model.hparams.n_vocab);
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = n_prompt,
                            .max_tokens = b->decode < HEAD_STEPS ? b->decode : HEAD_STEPS,
                            .sampling = {.top_p = 1}};
    head_step_cost(head, &us0, &n0);
    while (!rc && n < row->batch) {
        rc = reply_start(&replies[n], &ops, &q, e);
        n += !rc;
    }
    for (uint32_t i = 0; i < n; i++) reply_fini(&replies[i]);
    free(replies);
    head_step_cost(head, &us1, &n1);
    row->head_us = n1 > n0 ? (us1 - us0) / (n1 - n0) : 0;
    return rc;
}

// Decoding through the head: what the scheduler and its thread add to a step.
static int run_head(const struct bench *b, struct bench_row *rows, struct err *e) {
    struct head_config c = b->config;
    struct head *head;
    c.sequences = most(&b->batches);
    int rc = head_new(&c, &head, e);
    if (rc) return rc;
    rc = head_wait_ready(head, 600000, e);
    for (uint32_t i = 0; i < b->batches.n && !rc; i++) rc = one_head_run(b, head, &rows[i], e);
    head_free(head);
    return rc;
}

// What runs on a chain, and where it is counted.
struct course {
    const struct bench *b;
    struct chain *chain;
    int32_t *tokens; // [prefill + decode]
    struct bench_phase *phase;
    struct bench_roof roof; // measured last
};

static int run_step(struct course *k, const struct model_step *shape, struct err *e) {
    struct chain *c = k->chain;
    struct step_result r;
    k->phase->steps++;
    k->phase->tokens += (double)shape->n_seqs * shape->n_rows;
    model_add_step(&c->hparams, c->mode.kv, &k->b->matrices, shape, &k->phase->work);
    return chain_run(c, &r, e);
}

// The prompt of one slot, in chunks.
static int run_prompt(struct course *k, uint32_t slot, struct err *e) {
    struct chain *c = k->chain;
    int rc = ERR_OK;
    for (uint32_t at = 0, n; at < k->b->prefill && !rc; at += n) {
        n = k->b->prefill - at < c->max_rows ? k->b->prefill - at : c->max_rows;
        bool last = at + n == k->b->prefill;
        chain_begin(c);
        chain_add(c, slot, at, k->tokens + at, n, last);
        rc = run_step(k, &(struct model_step){.n_seqs = 1, .n_rows = n, .pos = at, .draws = last}, e);
    }
    return rc;
}

static int run_decode(struct course *k, uint32_t n_seqs, uint32_t n_steps, struct err *e) {
    int rc = ERR_OK;
    for (uint32_t i = 0; i < n_steps && !rc; i++) {
        uint32_t at = k->b->prefill + i;
        chain_begin(k->chain);
        for (uint32_t s = 0; s < n_seqs; s++) chain_add(k->chain, s, at, k->tokens + at, 1, true);
        rc = run_step(k, &(struct model_step){.n_seqs = n_seqs, .n_rows = 1, .pos = at, .draws = true}, e);
    }
    return rc;
}

static void begin_phase(struct course *k, struct bench_phase *phase) {
    k->phase = phase;
    *phase = (struct bench_phase){.us = 0};
    for (uint32_t i = 0; i < k->chain->n_stages; i++) stage_clock(k->chain->stage[i], true);
}

static void end_phase(struct course *k, uint64_t begin_us) {
    struct bench_phase *p = k->phase;
    uint64_t named_ns = 0;
    p->us = (double)(clock_now_us() - begin_us);
    for (uint32_t i = 0; i < k->chain->n_stages; i++) stage_op_ns(k->chain->stage[i], p->op_ns);
    for (int i = 0; i < OP_N; i++)
        if (i != OP_REST) named_ns += p->op_ns[i];
    p->op_ns[OP_REST] = p->us * 1e3 > (double)named_ns ? (uint64_t)(p->us * 1e3) - named_ns : 0;
}

static void forget(struct course *k) {
    for (uint32_t i = 0; i < k->chain->n_stages; i++) stage_reset(k->chain->stage[i]);
}

// Memory that is touched for the first time is the system's work: one prompt and one step go before.
static int warm_up(struct course *k, struct err *e) {
    struct bench_phase unused = {.us = 0};
    k->phase = &unused;
    int rc = run_prompt(k, 0, e);
    if (!rc) rc = run_decode(k, 1, 1, e);
    k->phase = NULL;
    forget(k);
    return rc;
}

static struct bench_roof roof_now(const struct bench *b) {
    return (struct bench_roof){roof_read_gb_s(b->threads), roof_int8_tops(b->isa, b->threads)};
}

static struct bench_roof mean(const struct bench_roof *a, const struct bench_roof *b) {
    return (struct bench_roof){(a->read_gb_s + b->read_gb_s) / 2, (a->peak_tops + b->peak_tops) / 2};
}

// k->roof comes in as it was before, and goes out as it is after.
static int run_batch(struct course *k, struct bench_row *row, struct err *e) {
    struct bench_roof before = k->roof, between;
    int rc = ERR_OK;
    begin_phase(k, &row->prefill);
    uint64_t begin_us = clock_now_us();
    for (uint32_t s = 0; s < row->batch && !rc; s++) {
        rc = run_prompt(k, s, e);
        if (s == 0) row->ttft_ms = (double)(clock_now_us() - begin_us) / 1e3;
    }
    end_phase(k, begin_us);
    if (rc) return rc;
    between = roof_now(k->b);
    begin_phase(k, &row->decode);
    begin_us = clock_now_us();
    rc = run_decode(k, row->batch, k->b->decode, e);
    end_phase(k, begin_us);
    k->roof = roof_now(k->b);
    row->prefill.roof = mean(&before, &between);
    row->decode.roof = mean(&between, &k->roof);
    forget(k);
    return rc;
}

static int open_chain(const struct bench *b, struct chain *c, struct err *e) {
    const struct head_config *hc = &b->config;
    uint32_t batch = most(&b->batches);
    struct chain_config k = {.model = &b->model,
                             .mode = hc->mode,
                             .cpu = hc->cpu,
                             .n_stages = hc->n_stages,
                             .layers = hc->layers,
                             .context = b->prefill + b->decode,
                             .sequences = batch,
                             .max_rows = hc->chunk_rows > batch ? hc->chunk_rows : batch,
                             .progress = hc->progress};
    return chain_open(c, &k, e);
}

int bench_run(struct bench *b, struct bench_row *rows, void (*done)(const struct bench *b, const struct bench_row *r),
              struct err *e) {
    struct chain chain;
    uint32_t n_tokens = b->prefill + b->decode;
    int rc = run_head(b, rows, e);
    if (!rc) rc = open_chain(b, &chain, e);
    if (rc) return rc;
    model_matrices(&chain.hparams, &chain.mode, chain.backend->ops, b->model.tensors, &b->matrices);
    struct course k = {.b = b, .chain = &chain, .tokens = malloc(n_tokens * sizeof(int32_t))};
    rc = k.tokens ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for tokens");
    if (!rc) fill(k.tokens, n_tokens, chain.hparams.n_vocab);
    if (!rc) rc = warm_up(&k, e);
    if (!rc) k.roof = roof_now(b);
    for (uint32_t i = 0; i < b->batches.n && !rc; i++) {
        rc = run_batch(&k, &rows[i], e);
        if (!rc) done(b, &rows[i]);
    }
    free(k.tokens);
    chain_close(&chain);
    return rc;
}
