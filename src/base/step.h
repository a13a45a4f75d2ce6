// A step: one pass of a batch of sequences through the route. Plain data that the scheduler makes, the wire
// carries and every stage reads; it stands in base/ because all three know it. The same step reaches each stage,
// in the same order, so that block tables and slots stay equal everywhere.
//
// Memory: all arrays belong to the step and are allocated once at their maximum by step_new; a step is used again.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

// How the next token is drawn from the logits (NUMERICS 8). Rounded to f32 once, at the gateway.
struct sampling {
    float temperature; // < 2^-20: greedy
    float top_p;       // 0 < top_p <= 1; 1: off
    float min_p;       // 0 <= min_p <= 1; 0: off
    int32_t top_k;     // <= 0: off
    uint64_t seed;     // Philox key
    uint32_t choice;   // index of the choice of a request with n > 1
};

// One sequence's share of a step: rows [row, row + n_rows) of the batch, which are the tokens at positions
// pos .. pos + n_rows - 1 of the sequence.
struct step_seq {
    uint32_t slot;            // 0 .. LIMIT_SEQS-1: names the sequence on every stage until it is released
    uint32_t pos;             // position of the first row
    uint32_t row, n_rows;     // n_rows >= 1
    uint32_t first_block;     // index in the sequence's block table of the first id below
    uint32_t block, n_blocks; // new entries of the block table: step.blocks[block .. block + n_blocks)
    bool sample;              // draw a token from the last row (position of the token drawn: pos + n_rows)
    struct sampling sampling;
};

struct step {
    uint64_t id;    // counts up by one within an epoch, from 1
    uint32_t epoch; // of the route that this step may travel
    uint32_t n_seqs, n_rows, n_blocks, n_releases;
    struct step_seq *seqs; // [LIMIT_SEQS]
    int32_t *tokens;       // [LIMIT_STEP_ROWS] token of each row
    uint32_t *blocks;      // [LIMIT_SEQ_BLOCKS + LIMIT_STEP_ROWS] ids, as the seqs name them
    uint32_t *releases;    // [LIMIT_SEQS] slots whose sequence ended: forgotten before the rows are computed
};

enum { STEP_BLOCKS_MAX = LIMIT_SEQ_BLOCKS + LIMIT_STEP_ROWS };

struct step *step_new(void); // NULL: no memory
void step_free(struct step *s);
void step_clear(struct step *s); // counts to zero; id and epoch too
void step_copy(struct step *to, const struct step *from);

// Checks everything that a stage relies on: counts within limits, slots unique and in range, rows contiguous and in
// order, positions and block indices inside limits, tokens in 0..n_vocab-1, block ids below n_kv_blocks, sampling
// parameters finite and in range. A step from the wire is used only after this returned ERR_OK.
int step_check(const struct step *s, uint32_t n_vocab, uint32_t n_kv_blocks, struct err *e) MUST_CHECK;

// What a holder of a stage says of itself when it cannot go on.
enum stage_failure {
    STAGE_BROKEN,    // it does not work
    STAGE_NO_REPLAY, // it is well, but cannot give the replay that was asked for
    STAGE_GAP        // it is well, but lacks steps, and knows nothing any more until it is filled anew
};

// What the output head's stage sends back: one entry per sequence of the step that has sample set or met a fault (on
// any stage so far), in their order.
struct step_result {
    uint64_t id;
    uint32_t epoch;
    uint32_t n; // entries
    struct {
        uint32_t slot;
        int32_t token; // -1 with a fault
        bool fault;    // NUMERICS 1.5: NaN or Inf was met in this sequence's rows
    } entry[LIMIT_SEQS];
};
