// A model as a chain of stages in this thread, without scheduler: what logits, eval and bench compute with.
#pragma once
#include "engine/stage.h"
#include "head/open.h"

struct chain {
    struct hparams hparams;
    struct run_mode mode;
    struct backend *backend;
    uint32_t n_stages, first_layer[LIMIT_STAGES + 1];
    struct stage *stage[LIMIT_STAGES];
    uint32_t n_blocks, max_rows, context;
    struct step *step;
};

struct chain_config {
    const struct opened_model *model;
    struct run_mode mode;
    struct backend_cpu_config cpu;
    uint32_t n_stages;
    const uint32_t *layers; // [n_stages]
    uint32_t context, sequences, max_rows;
    struct model_progress progress;
};

int chain_open(struct chain *c, const struct chain_config *config, struct err *e) MUST_CHECK;
void chain_close(struct chain *c); // zeroed or opened
// Begins c->step again: nothing in it. chain_add: n tokens of the sequence in slot (0 .. sequences-1) at pos, whose
// blocks are those of its slot; sample draws greedily.
void chain_begin(struct chain *c);
void chain_add(struct chain *c, uint32_t slot, uint32_t pos, const int32_t *tokens, uint32_t n, bool sample);
int chain_run(struct chain *c, struct step_result *r, struct err *e) MUST_CHECK;
// One sequence in f32: logits [n][n_vocab] and, if not NULL, hidden [n_layers + 1][n][hidden] of the step's rows.
int chain_run_f32(struct chain *c, float *logits, float *hidden, struct err *e) MUST_CHECK;
