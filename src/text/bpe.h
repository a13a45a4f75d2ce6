// Byte-level BPE: a piece of text (raw bytes) becomes token ids by joining neighbours, the lowest merge rank first and
// the leftmost of equals. The tables are read-only after loading and shared by all threads; a scratch belongs to one.
#pragma once
#include "text/ids.h"
#include <stdbool.h>
#include <stdint.h>

struct bpe_merge {
    int32_t left, right; // left -1: a free slot
    uint32_t rank;
    int32_t id; // what the pair becomes
};

struct bpe {
    int32_t byte_id[256]; // token of a single byte, -1 for bytes that UTF-8 never holds
    struct bpe_merge *merges;
    uint32_t merge_mask; // slots - 1; a power of two, at most half full
    // Whole pieces that are tokens, asked only with ignore_merges: open addressing, id + 1, 0 is free.
    bool ignore_merges;
    uint32_t *piece_slots;
    uint32_t piece_mask;
    const uint8_t *const *piece_bytes; // [n_vocab] of the tokenizer, not owned
    const uint32_t *piece_len_bytes;   // [n_vocab]
};

int bpe_init(struct bpe *b, size_t n_merges) MUST_CHECK; // ERR_NOMEM
void bpe_fini(struct bpe *b);
// A pair that is there already keeps its first rank.
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
// Makes the table of whole pieces for n_tokens tokens; then each is added.
int bpe_init_pieces(struct bpe *b, size_t n_tokens, const uint8_t *const *bytes, const uint32_t *len_bytes) MUST_CHECK;
void bpe_add_piece(struct bpe *b, int32_t id);

struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t symbols_cap;
    struct bpe_candidate *heap;
    size_t heap_n, heap_cap;
    struct bpe_cached *cache; // NULL: off
};

// with_cache keeps results of short pieces; worth its quarter megabyte for texts above a few kilobytes.
int bpe_scratch_init(struct bpe_scratch *s, bool with_cache) MUST_CHECK;
void bpe_scratch_fini(struct bpe_scratch *s);

// Appends the ids of one piece; time and memory grow as n log n. ERR_NOMEM, ERR_LIMIT (list full).
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n, struct ids *out) MUST_CHECK;
