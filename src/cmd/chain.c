#include "cmd/chain.h"

#include "cmd/cmd.h"

#include <stdlib.h>
#include <string.h>

static int open_stage(struct chain *c, const struct chain_config *k, uint32_t i, struct err *e) {
    struct model_part *part = NULL;
    uint32_t a = c->first_layer[i], b = a + k->layers[i];
    c->first_layer[i + 1] = b;
    int rc = model_part_load(&c->hparams, &c->mode, k->model->tensors, c->backend, a, b, &k->progress, &part, e);
    if (rc) return err_prefix(e, "%s", k->model->path);
    struct stage_config sc = {.hparams = &c->hparams,
                              .mode = c->mode,
                              .a = a,
                              .b = b,
                              .n_kv_blocks = c->n_blocks,
                              .max_rows = k->max_rows,
                              .max_context = k->context};
    return stage_new(&sc, c->backend, part, &c->stage[i], e);
}

static int tell_memory(const struct chain_config *k, struct err *e) {
    struct head_config c = {.model = k->model,
                            .mode = k->mode,
                            .cpu = k->cpu,
                            .n_stages = k->n_stages,
                            .context = k->context,
                            .sequences = k->sequences,
                            .chunk_rows = k->max_rows};
    memcpy(c.layers, k->layers, k->n_stages * sizeof c.layers[0]);
    return memory_tell(&c, e);
}

int chain_open(struct chain *c, const struct chain_config *k, struct err *e) {
    *c = (struct chain){.hparams = k->model->hparams,
                        .mode = k->mode,
                        .n_stages = k->n_stages,
                        .context = k->context,
                        .max_rows = k->max_rows};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < k->n_stages; i++) {
        if (!k->layers[i]) return err_set(e, ERR_USAGE, "--split: stage %u has no layer; every stage needs one", i);
        sum += k->layers[i];
    }
    if (sum != c->hparams.n_layers)
        return err_set(e, ERR_USAGE, "--split: the stages hold %llu layers, the model has %u", (unsigned long long)sum,
                       c->hparams.n_layers);
    c->n_blocks = (k->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS * k->sequences;
    c->step = step_new();
    int rc = tell_memory(k, e);
    if (!rc && !c->step) rc = err_set(e, ERR_NOMEM, "no memory for a step");
    if (!rc) rc = backend_cpu_new(&k->cpu, &c->backend, e);
    for (uint32_t i = 0; i < k->n_stages && !rc; i++) rc = open_stage(c, k, i, e);
    if (rc) chain_close(c);
    return rc;
}

void chain_close(struct chain *c) {
    for (uint32_t i = 0; i < c->n_stages; i++)
        if (c->stage[i]) stage_free(c->stage[i]);
    if (c->backend) c->backend->ops->free(c->backend);
    step_free(c->step);
    *c = (struct chain){0};
}

void chain_begin(struct chain *c) {
    step_clear(c->step);
    c->step->id = 1;
    c->step->epoch = 1;
}

void chain_add(struct chain *c, uint32_t slot, uint32_t pos, const int32_t *tokens, uint32_t n, bool sample) {
    struct step *s = c->step;
    ASSERT(s->n_rows + n <= c->max_rows && pos + n <= c->context);
    uint32_t per_seq = (c->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint32_t have = (pos + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint32_t want = (pos + n + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    s->seqs[s->n_seqs++] = (struct step_seq){.slot = slot,
                                             .pos = pos,
                                             .row = s->n_rows,
                                             .n_rows = n,
                                             .first_block = have,
                                             .block = s->n_blocks,
                                             .n_blocks = want - have,
                                             .sample = sample,
                                             .sampling = {.top_p = 1}};
    for (uint32_t i = have; i < want; i++) s->blocks[s->n_blocks++] = slot * per_seq + i;
    memcpy(s->tokens + s->n_rows, tokens, n * sizeof tokens[0]);
    s->n_rows += n;
}

int chain_run(struct chain *c, struct step_result *r, struct err *e) {
    size_t row = c->hparams.hidden;
    static uint8_t fault[LIMIT_STEP_ROWS];
    uint16_t *hidden[2] = {NULL, NULL};
    int rc = ERR_OK;
    memset(fault, 0, c->step->n_rows);
    for (int i = 0; i < 2 && c->n_stages > 1; i++) {
        hidden[i] = malloc(c->step->n_rows * row * sizeof(uint16_t));
        if (!hidden[i]) rc = err_set(e, ERR_NOMEM, "no memory for hidden rows");
    }
    for (uint32_t i = 0; i < c->n_stages && !rc; i++)
        rc = stage_run(c->stage[i], c->step, i ? hidden[(i + 1) & 1] : NULL, hidden[i & 1], fault, r, e);
    free(hidden[0]);
    free(hidden[1]);
    return rc;
}

int chain_run_f32(struct chain *c, float *logits, float *hidden, struct err *e) {
    size_t rows = (size_t)c->step->n_rows * c->hparams.hidden;
    float *between[2] = {calloc(rows, sizeof(float)), calloc(rows, sizeof(float))};
    int rc = between[0] && between[1] ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for hidden rows");
    for (uint32_t i = 0; i < c->n_stages && !rc; i++)
        rc = stage_run_f32(c->stage[i], c->step, i ? between[(i + 1) & 1] : NULL, between[i & 1],
                           i + 1 == c->n_stages ? logits : NULL, hidden ? hidden + c->first_layer[i] * rows : NULL, e);
    free(between[0]);
    free(between[1]);
    return rc;
}
