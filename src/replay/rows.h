// The rows of sequences, block by block: the part of sent that fills holders which start empty. Nobody else includes
// it.
//
// A sequence is born with its first row, is live until its slot is released, and is kept until its release is stable
// and nobody reads it. Its rows lie in pages, one for each entry of its block table. Pages are used again; nothing is
// allocated while as many sequences end as begin.
#pragma once
#include "base/list.h"
#include "base/step.h"

struct page {
    struct page *next; // of the sequence, or of the unused ones
    uint32_t block;
    int32_t tokens[LIMIT_BLOCK_TOKENS];
    uint8_t rows[]; // with hidden bytes: [LIMIT_BLOCK_TOKENS] faults, then [LIMIT_BLOCK_TOKENS][hidden_bytes]
};

struct rows_seq {
    struct list link; // in rows.live, rows.released or rows.unused
    uint32_t slot, n_readers;
    uint64_t first, release; // steps; release UINT64_MAX while it is live
    uint32_t n_rows, n_blocks;
    uint32_t stable_rows, stable_blocks; // as of the stable step
    struct page *pages, *tail;           // all of them; the last one
    struct page *at;                     // the one of position n_rows; NULL: there is none yet
};

struct rows {
    uint32_t hidden_bytes, n_unused_pages, n_unused, n_live;
    uint64_t held_bytes; // used or not
    struct rows_seq *of_slot[LIMIT_SEQS];
    struct list live, released, unused;
    struct page *unused_pages;
};

void rows_init(struct rows *r, uint32_t hidden_bytes);
void rows_fini(struct rows *r);
// Memory for what rows_take will need. False: held_bytes would exceed max_bytes, or there is no memory.
bool rows_reserve(struct rows *r, const struct step *s, uint64_t max_bytes) MUST_CHECK;
// Takes a step in: its releases, then its rows. stable: at once. False: the step does not go on where a sequence was,
// and the rows are of no use any more.
bool rows_take(struct rows *r, const struct step *s, const void *hidden, const uint8_t *fault, bool stable) MUST_CHECK;
// A step that was taken has become stable.
void rows_stable(struct rows *r, const struct step *s);
// Forgets the sequences whose release is stable.
void rows_retire(struct rows *r, uint64_t stable);
void rows_end_all(struct rows *r); // all that are there are of the past
void rows_clear(struct rows *r);   // and forgotten; nobody reads
void rows_trim(struct rows *r);    // gives unused memory back

// Where one reader of a sequence is.
struct rows_reader {
    struct rows_seq *seq;
    uint32_t n_rows, n_blocks;      // how far to go
    uint32_t at_row, at_block;      // how far it is
    struct page *page, *block_page; // of at_row and at_block
};
void rows_read(struct rows_reader *d, struct rows_seq *q); // as of the stable step
void rows_unread(struct rows_reader *d);
// Appends as many of the rows as fit into max_rows to the step, with the block ids that they need. False: it is full.
bool rows_next(struct rows *r, struct rows_reader *d, struct step *to, uint8_t *hidden, uint8_t *fault,
               uint32_t max_rows);
