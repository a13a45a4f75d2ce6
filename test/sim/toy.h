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

// Faults planted into the toy stage and what is around it, to see that the checker finds them.
enum toy_fault {
    TOY_SOUND,
    TOY_KEEP_SLOT,      // a release is not obeyed
    TOY_RUN_TWICE,      // a step is run twice
    TOY_TABLE_AT_ZERO,  // new block ids are put at the front of the table
    TOY_RELEASE_LATE,   // releases are obeyed after the rows
    TOY_POSITION,       // the row's position is off by one from the second block on
    TOY_KEEP_EPOCH,     // slots live on in the next epoch
    TOY_LOSE_EVENT,     // the head loses every 50th token event
    TOY_REPEAT_EVENT,   // the head tells every 50th token event twice
    TOY_SHADOW_MISSES,  // a shadow leaves out every 20th chunk
    TOY_STABLE_HIGH,    // a node takes a step too many for stable
    TOY_REPLAY_FORGETS, // a replay leaves out a sequence
    TOY_CHUNK_ORDER,    // two rows of a chunk change places
    TOY_CHUNK_RELEASE,  // a chunk's releases are lost
    TOY_HOT_SILENT,     // a promoted shadow does not send its first step
    TOY_FAULTS
};

struct toy_slot {
    bool live;
    uint32_t pos, n_blocks; // pos: the next one
    uint32_t table[TOY_BLOCKS_MAX];
};

struct toy_stage {
    enum toy_fault fault;
    uint32_t n_layers, a, b, n_blocks;
    struct toy_slot slot[LIMIT_SEQS];
    uint32_t owner[TOY_BLOCKS_MAX]; // slot + 1
    uint64_t kv[TOY_LAYERS_MAX][TOY_BLOCKS_MAX * LIMIT_BLOCK_TOKENS];
};

void toy_load(struct toy_stage *s, uint32_t n_layers, uint32_t a, uint32_t b, uint32_t n_blocks);
// Runs a step. in [n_rows], NULL if a == 0; out [n_rows]; fault [n_rows] comes in and goes out. False: the step
// contradicts what the stage knows, e says how. result is filled by the stage with the last layer.
bool toy_run(struct toy_stage *s, const struct step *step, const uint64_t *in, uint64_t *out, uint8_t *fault,
             struct step_result *result, struct err *e);
uint32_t toy_slots_used(const struct toy_stage *s);
uint32_t toy_blocks_used(const struct toy_stage *s);

// All tokens of the answer of a request into tokens [max_tokens]; returns how many. Sets *finish; GEN_FAILED for a
// prompt with a poisoned token.
uint32_t toy_oracle(const struct gen_request *r, uint32_t n_layers, int32_t *tokens, enum gen_finish *finish);
