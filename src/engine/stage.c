#include "engine/stage.h"

#include "engine/slots.h"
#include "os/clock.h"
#include <stdatomic.h>
#include <stdlib.h>

// Rows that go through the output head at once: bounds the logits, which are the widest rows there are.
enum { HEAD_ROWS = 64 };

struct stage {
    struct hparams h;
    struct stage_config c; // hparams points at h
    struct backend *be;
    struct model_part *part;
    struct kv_cache *kv;
    struct scratch *scratch;
    struct slots slots;

    float *x;               // [max_rows][hidden], backend memory
    float *logits, *normed; // [HEAD_ROWS][n_vocab], [HEAD_ROWS][hidden]; the last stage only
    struct batch_seq *seqs; // [LIMIT_SEQS]
    uint32_t *row_pos;      // [max_rows]

    // Of the sequences that draw a token in this step, in their order.
    uint32_t draw_seq[LIMIT_SEQS], draw_row[LIMIT_SEQS], draw_pos[LIMIT_SEQS];
    const struct sampling *draw_sampling[LIMIT_SEQS];
    int32_t token[LIMIT_SEQS];     // by sequence of the step
    uint8_t seq_fault[LIMIT_SEQS]; // the same

    uint64_t sample_ns;
    atomic_uint slots_used, blocks_used;
    atomic_ullong steps, rows, busy_us;
};

static bool is_last(const struct stage *s) { return s->c.b == s->h.n_layers; }

static struct kv_spec kv_spec_of(const struct stage_config *c) {
    return (struct kv_spec){.type = c->mode.kv,
                            .n_layers = c->b - c->a,
                            .n_kv_heads = c->hparams->n_kv_heads,
                            .head_dim = c->hparams->head_dim,
                            .n_blocks = c->n_kv_blocks};
}

uint64_t stage_scratch_bytes(const struct hparams *h, uint32_t max_rows, bool last) {
    uint64_t rows = (uint64_t)max_rows * (h->hidden * sizeof(float) + sizeof(uint32_t));
    uint64_t head = last ? (uint64_t)HEAD_ROWS * (h->n_vocab + h->hidden) * sizeof(float) : 0;
    return scratch_bytes(h, max_rows) + rows + head;
}

void stage_memory(const struct stage_config *c, const struct backend_ops *ops, struct stage_memory *m) {
    struct kv_spec spec = kv_spec_of(c);
    m->weights_bytes = model_layer_bytes(c->hparams, &c->mode, ops, c->a, c->b);
    m->kv_bytes = ops->kv_block_bytes(&spec) * c->n_kv_blocks;
    m->scratch_bytes = stage_scratch_bytes(c->hparams, c->max_rows, c->b == c->hparams->n_layers);
}

static int allocate(struct stage *s) {
    const struct backend_ops *ops = s->be->ops;
    struct kv_spec spec = kv_spec_of(&s->c);
    if (slots_init(&s->slots, s->c.max_context, s->c.n_kv_blocks)) return ERR_NOMEM;
    s->kv = ops->kv_new(s->be, &spec);
    s->scratch = scratch_new(&s->h, &s->c.mode, s->be, s->c.max_rows);
    s->x = ops->mem_alloc(s->be, (uint64_t)s->c.max_rows * s->h.hidden * sizeof(float));
    s->seqs = calloc(LIMIT_SEQS, sizeof *s->seqs);
    s->row_pos = calloc(s->c.max_rows, sizeof *s->row_pos);
    if (is_last(s)) {
        s->logits = ops->mem_alloc(s->be, (uint64_t)HEAD_ROWS * s->h.n_vocab * sizeof(float));
        s->normed = ops->mem_alloc(s->be, (uint64_t)HEAD_ROWS * s->h.hidden * sizeof(float));
        if (!s->logits || !s->normed) return ERR_NOMEM;
    }
    return s->kv && s->scratch && s->x && s->seqs && s->row_pos ? ERR_OK : ERR_NOMEM;
}

int stage_new(const struct stage_config *c, struct backend *be, struct model_part *part, struct stage **out,
              struct err *e) {
    ASSERT(c->a < c->b && c->b <= c->hparams->n_layers);
    struct stage *s = NULL;
    int rc = ERR_OK;
    if (c->max_rows < 1 || c->max_rows > LIMIT_STEP_ROWS || c->n_kv_blocks < 1 || c->max_context < 1 ||
        c->max_context > LIMIT_CONTEXT)
        rc = err_set(e, ERR_USAGE, "stage: %u rows, %u blocks, context %u: at least 1, at most %d rows and %d tokens",
                     c->max_rows, c->n_kv_blocks, c->max_context, LIMIT_STEP_ROWS, LIMIT_CONTEXT);
    if (!rc && !(s = calloc(1, sizeof *s))) rc = err_set(e, ERR_NOMEM, "stage: no memory");
    if (rc) {
        model_part_free(part);
        return rc;
    }
    s->h = *c->hparams;
    s->c = *c;
    s->c.hparams = &s->h;
    s->be = be;
    s->part = part;
    if (allocate(s)) {
        struct stage_memory m;
        stage_memory(&s->c, be->ops, &m);
        rc = err_set(e, ERR_NOMEM, "stage: no memory on %s for %llu bytes of KV and %llu of scratch", be->ops->name,
                     (unsigned long long)m.kv_bytes, (unsigned long long)m.scratch_bytes);
        stage_free(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void stage_free(struct stage *s) {
    if (!s) return;
    const struct backend_ops *ops = s->be->ops;
    if (s->kv) ops->kv_free(s->kv);
    if (s->x) ops->mem_free(s->be, s->x);
    if (s->logits) ops->mem_free(s->be, s->logits);
    if (s->normed) ops->mem_free(s->be, s->normed);
    scratch_free(s->scratch);
    slots_fini(&s->slots);
    free(s->seqs);
    free(s->row_pos);
    model_part_free(s->part);
    free(s);
}

void stage_move(struct stage *s, struct backend *be) {
    ASSERT(s->be->ops->name == be->ops->name, "%s and %s", s->be->ops->name, be->ops->name);
    s->be = be;
    model_move(s->part, s->scratch, be);
}

void stage_reset(struct stage *s) {
    slots_reset(&s->slots);
    atomic_store(&s->slots_used, 0);
    atomic_store(&s->blocks_used, 0);
}

// Checks the step against the slots, applies it, and lays the batch out. Nothing changed where it fails.
static int take_step(struct stage *s, const struct step *step, uint8_t *fault, struct batch *b, struct err *e) {
    if (step->n_rows > s->c.max_rows)
        return err_set(e, ERR_LIMIT, "step: %u rows; this stage takes %u", step->n_rows, s->c.max_rows);
    int rc = slots_check(&s->slots, step, e);
    if (rc) return rc;
    slots_apply(&s->slots, step);
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *q = &step->seqs[i];
        s->seqs[i] = (struct batch_seq){
            .row = q->row, .n_rows = q->n_rows, .pos = q->pos, .blocks = s->slots.list[q->slot].blocks};
        for (uint32_t r = 0; r < q->n_rows; r++) s->row_pos[q->row + r] = q->pos + r;
    }
    *b = (struct batch){.n_rows = step->n_rows, .n_seqs = step->n_seqs, .seqs = s->seqs, .row_pos = s->row_pos};
    b->fault = fault;
    return ERR_OK;
}

static void count_step(struct stage *s, const struct step *step, uint64_t begin_ns) {
    atomic_store(&s->slots_used, s->slots.n_used);
    atomic_store(&s->blocks_used, s->slots.n_blocks_used);
    atomic_fetch_add(&s->steps, 1);
    atomic_fetch_add(&s->rows, step->n_rows);
    atomic_fetch_add(&s->busy_us, (clock_now_ns() - begin_ns) / 1000);
}

void stage_counts(const struct stage *s, struct stage_counts *c) {
    c->slots_used = atomic_load(&s->slots_used);
    c->blocks_used = atomic_load(&s->blocks_used);
    c->steps = atomic_load(&s->steps);
    c->rows = atomic_load(&s->rows);
    c->busy_us = atomic_load(&s->busy_us);
}

void stage_clock(struct stage *s, bool on) {
    scratch_clock(s->scratch, on);
    s->sample_ns = 0;
}

void stage_op_ns(const struct stage *s, uint64_t ns[OP_N]) {
    const uint64_t *op_ns = scratch_op_ns(s->scratch);
    for (uint32_t i = 0; i < OP_N; i++) ns[i] += i == OP_SAMPLE ? s->sample_ns : op_ns[i];
}

// The first row of [row, row + n) with a fault; row + n: none.
static uint32_t first_fault(const uint8_t *fault, uint32_t row, uint32_t n) {
    for (uint32_t r = row; r < row + n; r++)
        if (fault[r]) return r;
    return row + n;
}

// Draws for the sequences that want a token and met no fault, HEAD_ROWS at a time.
static void draw(struct stage *s, const struct step *step, const struct batch *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *q = &step->seqs[i];
        s->token[i] = -1;
        s->seq_fault[i] = first_fault(b->fault, q->row, q->n_rows) < q->row + q->n_rows;
        if (!q->sample || s->seq_fault[i]) continue;
        s->draw_seq[n] = i;
        s->draw_row[n] = q->row + q->n_rows - 1;
        s->draw_pos[n] = q->pos + q->n_rows;
        s->draw_sampling[n] = &q->sampling;
        n++;
    }
    uint32_t step_rows = s->c.max_rows < HEAD_ROWS ? s->c.max_rows : HEAD_ROWS;
    for (uint32_t at = 0; at < n; at += step_rows) {
        uint32_t m = n - at < step_rows ? n - at : step_rows;
        int32_t token[HEAD_ROWS];
        uint8_t bad[HEAD_ROWS] = {0};
        model_head(s->part, s->scratch, s->draw_row + at, m, b, s->x, s->logits, NULL);
        uint64_t begin_ns = clock_now_ns();
        s->be->ops->sample(s->be, s->logits, s->h.n_vocab, m, s->draw_sampling + at, s->draw_pos + at, token, bad);
        s->sample_ns += clock_now_ns() - begin_ns;
        for (uint32_t i = 0; i < m; i++) {
            uint32_t seq = s->draw_seq[at + i];
            b->fault[s->draw_row[at + i]] |= bad[i];
            s->seq_fault[seq] = b->fault[s->draw_row[at + i]] != 0;
            s->token[seq] = s->seq_fault[seq] ? -1 : token[i];
        }
    }
}

static void fill_result(const struct stage *s, const struct step *step, struct step_result *r) {
    r->id = step->id;
    r->epoch = step->epoch;
    r->n = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        if (!step->seqs[i].sample && !s->seq_fault[i]) continue;
        r->entry[r->n].slot = step->seqs[i].slot;
        r->entry[r->n].token = s->token[i];
        r->entry[r->n].fault = s->seq_fault[i];
        r->n++;
    }
}

int stage_run(struct stage *s, const struct step *step, const uint16_t *in, uint16_t *out, uint8_t *fault,
              struct step_result *result, struct err *e) {
    uint64_t begin_ns = clock_now_ns();
    const struct backend_ops *ops = s->be->ops;
    struct batch b;
    int rc = take_step(s, step, fault, &b, e);
    if (rc) return rc;
    if (b.n_rows) { // a step may carry releases only
        if (s->c.a == 0)
            model_embed(s->part, s->scratch, step->tokens, &b, s->x);
        else
            ops->rows_put_bf16(s->be, in, s->h.hidden, b.n_rows, s->x);
        model_begin(s->part, s->scratch, &b);
        for (uint32_t i = s->c.a; i < s->c.b; i++) model_layer(s->part, s->scratch, i, s->kv, &b, s->x);
        if (!is_last(s)) ops->rows_get_bf16(s->be, s->x, s->h.hidden, b.n_rows, out);
    }
    if (is_last(s) && result) {
        draw(s, step, &b);
        fill_result(s, step, result);
    }
    count_step(s, step, begin_ns);
    return ERR_OK;
}

// Rows of the output head in f32, HEAD_ROWS at a time.
static void head_f32(struct stage *s, const struct batch *b, float *logits, float *normed) {
    const struct backend_ops *ops = s->be->ops;
    uint32_t index[HEAD_ROWS], rows = s->c.max_rows < HEAD_ROWS ? s->c.max_rows : HEAD_ROWS;
    for (uint32_t at = 0; at < b->n_rows; at += rows) {
        uint32_t n = b->n_rows - at < rows ? b->n_rows - at : rows;
        for (uint32_t i = 0; i < n; i++) index[i] = at + i;
        model_head(s->part, s->scratch, index, n, b, s->x, s->logits, s->normed);
        if (logits)
            ops->mem_get(s->be, logits + (size_t)at * s->h.n_vocab, s->logits,
                         (uint64_t)n * s->h.n_vocab * sizeof(float));
        if (normed)
            ops->mem_get(s->be, normed + (size_t)at * s->h.hidden, s->normed,
                         (uint64_t)n * s->h.hidden * sizeof(float));
    }
}

int stage_run_f32(struct stage *s, const struct step *step, const float *in32, float *out32, float *logits,
                  float *hidden, struct err *e) {
    uint64_t begin_ns = clock_now_ns();
    const struct backend_ops *ops = s->be->ops;
    uint8_t fault[LIMIT_STEP_ROWS] = {0};
    uint32_t n_layers = s->c.b - s->c.a;
    struct batch b;
    int rc = take_step(s, step, fault, &b, e);
    if (rc) return rc;
    size_t values = (size_t)b.n_rows * s->h.hidden;
    uint64_t bytes = values * sizeof(float);
    if (s->c.a == 0)
        model_embed(s->part, s->scratch, step->tokens, &b, s->x);
    else
        ops->mem_put(s->be, s->x, in32, bytes);
    if (hidden) ops->mem_get(s->be, hidden, s->x, bytes);
    model_begin(s->part, s->scratch, &b);
    for (uint32_t i = 0; i < n_layers; i++) {
        model_layer(s->part, s->scratch, s->c.a + i, s->kv, &b, s->x);
        if (hidden) ops->mem_get(s->be, hidden + (i + 1) * values, s->x, bytes);
    }
    if (out32) ops->mem_get(s->be, out32, s->x, bytes);
    if (is_last(s)) head_f32(s, &b, logits, hidden ? hidden + n_layers * values : NULL);
    count_step(s, step, begin_ns);
    uint32_t bad = first_fault(fault, 0, b.n_rows);
    if (bad < b.n_rows) return err_set(e, ERR_NUMERIC, "NaN or Inf at position %u", s->row_pos[bad]);
    return ERR_OK;
}
