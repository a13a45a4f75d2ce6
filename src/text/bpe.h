// BPE: a piece of text becomes token ids by joining neighbours, the lowest rank first and the leftmost of equals. It
// starts from single bytes (byte-level BPE) or from single characters (SentencePiece and its kin), of which those that
// the vocabulary lacks become byte tokens or the unknown one. The tables are read-only after loading and shared by all
// threads; a scratch belongs to one.
#pragma once
#include "text/ids.h"
#include <stdbool.h>
#include <stdint.h>

struct bpe_merge {
    int32_t left, right; // left -1: a free slot
    uint32_t rank;
    int32_t id; // what the pair becomes
};

// A character that text is made of, with its token, or with an id above all tokens if it is none but part of one.
struct bpe_char {
    uint32_t c; // code point; UINT32_MAX: a free slot
    int32_t id;
    bool before_mark; // stands before BPE_MARK inside a token
};

enum { BPE_MARK = 0x2581 }; // what SentencePiece puts for a space

struct bpe {
    bool by_chars;
    bool fuse_unk;        // neighbours that are unknown become one
    uint64_t seed;        // of the tables: what they hold comes with a model, which nobody vouches for
    int32_t unk;          // token of what is unknown; -1: it is dropped
    int32_t byte_id[256]; // token of a single byte, -1: none
    struct bpe_merge *merges;
    uint32_t merge_mask;    // slots - 1; a power of two, at most half full
    struct bpe_char *chars; // by_chars
    uint32_t char_mask, n_chars;
    int32_t first_virtual;   // ids from here on are characters that are no token
    uint32_t *virtual_chars; // code point of each
    uint32_t n_virtual, cap_virtual;
    // Whole pieces that are tokens, asked only with ignore_merges: open addressing, id + 1, 0 is free.
    bool ignore_merges;
    uint32_t *piece_slots;
    uint32_t piece_mask;
    const uint8_t *const *piece_bytes; // [n_vocab] of the tokenizer, not owned
    const uint32_t *piece_len_bytes;   // [n_vocab]
};

void bpe_init(struct bpe *b);                                   // it starts from bytes, of which none is a token yet
void bpe_fini(struct bpe *b);                                   // zeroed or initialised
int bpe_make_merges(struct bpe *b, size_t n_merges) MUST_CHECK; // ERR_NOMEM
// A pair that is there already takes the new rank.
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
// Makes it start from characters; then each that is a token is added (the first id of a character stays). ERR_NOMEM.
int bpe_init_chars(struct bpe *b, uint32_t n_vocab) MUST_CHECK;
int bpe_add_char(struct bpe *b, uint32_t c, int32_t id) MUST_CHECK;
// The id of a character: a virtual one if it is no token. ERR_NOMEM.
int bpe_char_id(struct bpe *b, uint32_t c, int32_t *id) MUST_CHECK;
// A token has c before BPE_MARK: words are not cut there.
void bpe_note_before_mark(struct bpe *b, uint32_t c);
// Makes the table of whole pieces for n_tokens tokens; then each is added.
int bpe_init_pieces(struct bpe *b, size_t n_tokens, const uint8_t *const *bytes, const uint32_t *len_bytes) MUST_CHECK;
void bpe_add_piece(struct bpe *b, int32_t id);

struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t symbols_n, symbols_cap;
    uint64_t *heap; // rank << 32 | position: the smallest is the next join
    size_t heap_n, heap_cap;
    struct bpe_cached *cache; // NULL: off
};

// with_cache keeps results of short pieces; worth its quarter megabyte for texts above a few kilobytes.
int bpe_scratch_init(struct bpe_scratch *s, bool with_cache) MUST_CHECK;
void bpe_scratch_fini(struct bpe_scratch *s);

// Appends the ids of one piece, which must be UTF-8; time and memory grow as n log n. ERR_NOMEM, ERR_LIMIT (list full).
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n, struct ids *out) MUST_CHECK;
