// A toy model that stands in for a real one in the simulation: hidden rows are 64-bit hashes, and a layer mixes into
// each row what it reads of the whole prefix THROUGH the block table. So a wrong block, slot, position, order or a row
// of another epoch changes the token. The oracle computes the same without blocks, slots and steps.
#pragma once
#include "base/gen.h"
#include "base/step.h"

enum {
    TOY_LAYERS_MAX = 12,
    TOY_BLOCKS_MAX = 64,
    TOY_VOCAB = 61,
    TOY_POISON = 60, // a prompt token whose row is a numeric fault; never drawn
    TOY_STOP = 7
};

// Faults planted into the toy stage, to see that the checker finds them.
enum toy_fault {
    TOY_SOUND,
    TOY_KEEP_SLOT,     // a release is not obeyed
    TOY_IGNORE_EPOCH,  // steps of another epoch are run
    TOY_RUN_TWICE,     // a step that comes twice is run twice
    TOY_TABLE_AT_ZERO, // new block ids are put at the front of the table
    TOY_RELEASE_LATE,  // releases are obeyed after the rows
    TOY_POSITION,      // the row's position is off by one from the second block on
    TOY_KEEP_EPOCH,    // slots live on in the next epoch
    TOY_LOSE_EVENT,    // the head loses every 50th token event
    TOY_REPEAT_EVENT,  // the head tells every 50th token event twice
    TOY_FAULTS
};

struct toy_slot {
    bool live;
    uint32_t pos, n_blocks; // pos: the next one
    uint32_t table[TOY_BLOCKS_MAX];
};

struct toy_stage {
    enum toy_fault fault;
    uint32_t n_layers, a, b, n_blocks, epoch;
    uint64_t last_step;
    struct toy_slot slot[LIMIT_SEQS];
    uint32_t owner[TOY_BLOCKS_MAX]; // slot + 1
    uint64_t kv[TOY_LAYERS_MAX][TOY_BLOCKS_MAX * LIMIT_BLOCK_TOKENS];
};

// A step on its way between two stages.
struct toy_rows {
    uint64_t hidden[LIMIT_STEP_ROWS];
    bool fault[LIMIT_STEP_ROWS];
};

void toy_load(struct toy_stage *s, uint32_t n_layers, uint32_t a, uint32_t b, uint32_t n_blocks, uint32_t epoch);
enum toy_verdict { TOY_RUN, TOY_DROPPED, TOY_BROKEN };
// Runs a step as a node would: one of another epoch or received before is dropped. TOY_BROKEN: the step contradicts
// what the stage knows, e says how. result is filled by the stage with the last layer.
enum toy_verdict toy_run(struct toy_stage *s, const struct step *step, struct toy_rows *rows,
                         struct step_result *result, struct err *e);
uint32_t toy_slots_used(const struct toy_stage *s);

// All tokens of the answer of a request into tokens [max_tokens]; returns how many. Sets *finish; GEN_FAILED for a
// prompt with a poisoned token.
uint32_t toy_oracle(const struct gen_request *r, uint32_t n_layers, int32_t *tokens, enum gen_finish *finish);
