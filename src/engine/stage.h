// A stage: layers [a, b) of a model on a batch of sequences. It owns the weights, the KV cache, a block table per slot
// and scratch for a step; after stage_new nothing is allocated, whatever steps come (a test counts).
//
// Threads: one compute thread calls stage_run and the functions below it; stage_counts may be called from any thread.
#pragma once
#include "base/err.h"
#include "base/step.h"
#include "model/model.h"

struct stage_config {
    const struct hparams *hparams; // copied
    struct run_mode mode;
    uint32_t a, b;        // layers [a, b); a == 0: embeds; b == n_layers: output head and sampler
    uint32_t n_kv_blocks; // ids 0 .. n_kv_blocks-1, the same on every stage
    uint32_t max_rows;    // of a step
    uint32_t max_context; // tokens of a sequence
};

struct stage;

// be and the tensors behind part must outlive the stage; part belongs to the stage from here on, also on failure.
int stage_new(const struct stage_config *c, struct backend *be, struct model_part *part, struct stage **s,
              struct err *e) MUST_CHECK;
void stage_free(struct stage *s);

// Bytes that a stage with this configuration takes on a backend: weights, KV, scratch.
struct stage_memory {
    uint64_t weights_bytes, kv_bytes, scratch_bytes;
};
void stage_memory(const struct stage_config *c, const struct backend_ops *ops, struct stage_memory *m);
// The scratch of it, by which the planner reckons too: rows of a step, and with the output head its logits.
uint64_t stage_scratch_bytes(const struct hparams *h, uint32_t max_rows, bool last);

// Runs one step. in: hidden rows of the stage before, bf16 [n_rows][hidden], NULL if a == 0. out: hidden rows for the
// stage after, same shape, unused if b == n_layers; result: filled if b == n_layers (NULL: no tokens are wanted, and
// the output head does not run). fault [n_rows] comes in from the stage before (zeros for the first) and goes out with
// this stage's faults added. The step was checked by step_check; what only the stage knows (a slot at an unexpected
// position, a block table with a hole) is ERR_FORMAT and the step has no effect on any sequence.
int stage_run(struct stage *s, const struct step *step, const uint16_t *in, uint16_t *out, uint8_t *fault,
              struct step_result *result, struct err *e) MUST_CHECK;
// Hands the stage to another compute thread, whose backend be is of the same kind. Neither thread runs it meanwhile,
// and both backends outlive it: memory stays where it was taken.
void stage_move(struct stage *s, struct backend *be);
// Forgets all sequences (a new epoch begins).
void stage_reset(struct stage *s);

struct stage_counts {
    uint32_t slots_used, blocks_used; // held by live slots
    uint64_t steps, rows;
    uint64_t busy_us; // time spent in stage_run
};
void stage_counts(const struct stage *s, struct stage_counts *c);
// Time by operation, for measurements; off at first. Switched on, it starts from 0. stage_op_ns adds to ns.
void stage_clock(struct stage *s, bool on);
void stage_op_ns(const struct stage *s, uint64_t ns[OP_N]);

// For `loom logits`: the same pass for one sequence, giving f32 of everything: logits [n_rows][n_vocab] if b is the
// last layer, and hidden rows [b - a + 1][n_rows][hidden] if hidden is not NULL: embedding output or input, then each
// layer's output, the last one of the model after the final norm. in32/out32: hidden rows in f32 (needed for
// mode.verify).
int stage_run_f32(struct stage *s, const struct step *step, const float *in32, float *out32, float *logits,
                  float *hidden, struct err *e) MUST_CHECK;
