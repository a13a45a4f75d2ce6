// The sequences that a stage knows: for each slot how far it is and which KV blocks hold its rows. No tensors here.
// Used by the stage's compute thread alone.
#pragma once
#include "base/step.h"
#include <stdbool.h>
#include <stdint.h>

struct slot {
    bool used;
    uint32_t n_tokens; // rows computed so far: the position that must come next
    uint32_t n_blocks;
    uint32_t *blocks; // [max_blocks] block id of position p is blocks[p / LIMIT_BLOCK_TOKENS]
};

struct slots {
    struct slot list[LIMIT_SEQS];
    uint32_t max_context, max_blocks, n_kv_blocks;
    uint32_t n_used, n_blocks_used; // slots in use; blocks that at least one of them holds
    uint8_t *valid;                 // [n_kv_blocks] rows of the block that were written, from its first on
    uint16_t *holders;              // [n_kv_blocks] slots that hold it
    uint32_t *tables;               // memory of all the tables
};

int slots_init(struct slots *s, uint32_t max_context, uint32_t n_kv_blocks) MUST_CHECK;
void slots_fini(struct slots *s);
// Forgets all sequences and all that was written.
void slots_reset(struct slots *s);
// Whether a step (that step_check passed) fits the slots as they will be after its releases: each sequence goes on
// where it stopped, its table has no hole and covers its rows, and what it builds on was written. A new sequence may
// begin behind whole blocks that another one filled (a shared prefix). Changes nothing.
int slots_check(const struct slots *s, const struct step *step, struct err *e) MUST_CHECK;
// Carries out what slots_check passed.
void slots_apply(struct slots *s, const struct step *step);
