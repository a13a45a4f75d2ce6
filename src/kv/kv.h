// Accounting of KV blocks and slots: which block holds which rows of which sequence. No tensors: a block id names the
// same rows on every stage, so one table serves all of them.
//
// Owns a pool of blocks with reference counts, a slot per running sequence and the slots whose release the stages have
// not been told yet. One thread calls it. Nothing is allocated after kv_new.
//
// Blocks and slot are free here as soon as kv_slot_drop returns, though stages still hold them: the step that first
// uses them again also carries the release (kv_take_releases), and a stage forgets the released slots of a step before
// it computes its rows.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

enum { KV_NONE = LIMIT_SEQS };

struct kv;

// At most max_blocks blocks, n_slots <= LIMIT_SEQS slots, max_seq_blocks blocks of one sequence. There are no blocks
// until kv_reset. ERR_NOMEM.
int kv_new(uint32_t max_blocks, uint32_t n_slots, uint32_t max_seq_blocks, struct kv **k) MUST_CHECK;
void kv_free(struct kv *k);

// A new epoch: n_blocks blocks, all of them and all slots free, no release owed (stages begin empty as well).
void kv_reset(struct kv *k, uint32_t n_blocks);

// Blocks that hold n_tokens rows.
uint32_t kv_blocks_of(uint32_t n_tokens);

uint32_t kv_n_blocks(const struct kv *k);
uint32_t kv_n_free(const struct kv *k);

// A free slot with an empty table, KV_NONE if there is none.
uint32_t kv_slot_take(struct kv *k);
// Makes the table at least n_blocks long. False, and nothing changed, if too few blocks are free.
bool kv_grow(struct kv *k, uint32_t slot, uint32_t n_blocks) MUST_CHECK;
// The block ids of a slot in order; *n_blocks of them. Valid until the slot is dropped.
const uint32_t *kv_table(const struct kv *k, uint32_t slot, uint32_t *n_blocks);
// The sequence ended or was sent back to the queue. known: a step named the slot, so the stages are owed a release.
void kv_slot_drop(struct kv *k, uint32_t slot, bool known);

bool kv_owes_releases(const struct kv *k);
// Writes the slots whose release is owed, each once and in order, to slots [LIMIT_SEQS]; they are owed no longer.
uint32_t kv_take_releases(struct kv *k, uint32_t *slots);

// Dies unless reference counts, free list, tables and slots tell the same story. For tests: O(blocks + slots).
void kv_check(const struct kv *k);
