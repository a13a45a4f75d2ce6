// The inside of a tokenizer, for tokenizer.c (which uses it) and tokenizer_json.c (which fills it).
#pragma once
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include <jansson.h>

enum { TOKENIZER_AROUND_MAX = 16 }; // ids that the post-processor puts on one side

enum tokenizer_flag {
    TOKENIZER_USED = 1,     // the id is a token
    TOKENIZER_ADDED = 2,    // an added one
    TOKENIZER_SPECIAL = 4,  // a control token
    TOKENIZER_ALPHABET = 8, // spelled in the byte-level alphabet: bytes are what it stands for
};

struct tokenizer {
    uint32_t n_vocab;
    const uint8_t **bytes; // [n_vocab], into blob
    uint32_t *len_bytes;   // [n_vocab]
    uint8_t *flags;        // [n_vocab] enum tokenizer_flag
    uint8_t *blob;
    size_t blob_len_bytes, blob_cap_bytes;

    bool nfc;
    struct added added_raw;        // matched in the text as it is
    struct added added_normalized; // matched in the normalised text
    struct pretok pretok;
    struct bpe bpe;
    int32_t prefix[TOKENIZER_AROUND_MAX], suffix[TOKENIZER_AROUND_MAX];
    uint32_t n_prefix, n_suffix;
};

// Fills an all-zero tokenizer; on error the caller frees what was made.
int tokenizer_json_load(struct tokenizer *t, const json_t *root, struct err *e) MUST_CHECK;
// Bytes that a spelling in the byte-level alphabet stands for, written to out (at most as long as the spelling).
// False if a character is not of that alphabet.
bool tokenizer_json_spelled(const char *spelling, size_t len_bytes, uint8_t *out, size_t *out_len_bytes);
// A new string in NFC, the caller's to free(); NULL: no memory. text must be UTF-8.
uint8_t *tokenizer_nfc(const uint8_t *text, size_t len_bytes, size_t *out_len_bytes);
