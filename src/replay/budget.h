// How much memory a stage may take for rows that come in and that went out. Who plans memory and who bounds it go by
// the same numbers.
#pragma once
#include "base/limits.h"
#include <stdint.h>

enum {
    BUDGET_PAGE_BYTES = 64,        // what a page of rows (replay/rows.h) takes beside them, and malloc for it
    BUDGET_TOKEN_BYTES = 4,        // of each row
    BUDGET_SPARE_BYTES = 16 << 20, // heads of steps, segments that are not full
    BUDGET_SPARE_CHUNKS = 3        // beside one for each stage of the route
};

// A row in bf16 and its fault.
static inline uint64_t budget_row_bytes(uint32_t hidden) { return 2ull * hidden + 1; }

// Rows of one KV block, as the stage before keeps them for a replay.
static inline uint64_t budget_block_bytes(uint32_t hidden) {
    return LIMIT_BLOCK_TOKENS * (budget_row_bytes(hidden) + BUDGET_TOKEN_BYTES) + BUDGET_PAGE_BYTES;
}

// Steps under way: what may wait at a stage.
static inline uint64_t budget_waiting_bytes(uint32_t n_stages, uint32_t max_rows, uint32_t hidden) {
    return (n_stages + BUDGET_SPARE_CHUNKS) * max_rows * budget_row_bytes(hidden) + BUDGET_SPARE_BYTES;
}

// All that a stage keeps of what it sent.
static inline uint64_t budget_sent_bytes(uint32_t n_stages, uint32_t max_rows, uint32_t hidden, uint32_t n_blocks) {
    return n_blocks * budget_block_bytes(hidden) + budget_waiting_bytes(n_stages, max_rows, hidden);
}

// What may wait at stage 0, to which the head sends tokens as fast as it can: all of a replay, with faults.
static inline uint64_t budget_tokens_bytes(uint32_t n_stages, uint32_t max_rows, uint32_t n_blocks) {
    return n_blocks * budget_block_bytes(0) + budget_waiting_bytes(n_stages, max_rows, 0);
}
