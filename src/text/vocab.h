// The tokens of a file in one form, whatever file it was (tokenizer.json, tokenizer.model, GGUF): what the loaders fill
// and tokenizer_build turns into a tokenizer. Lives while a tokenizer is loaded; spellings point into the file.
#pragma once
#include "base/err.h"
#include "base/map.h"
#include <stdbool.h>
#include <stdint.h>

enum vocab_type {
    VOCAB_NONE,   // the id is no token
    VOCAB_NORMAL, // made from text
    VOCAB_UNKNOWN,
    VOCAB_CONTROL,
    VOCAB_USER,   // stands for one token wherever it occurs in a text
    VOCAB_UNUSED, // decoded, never made
    VOCAB_BYTE    // "<0x0A>"
};

struct vocab_token {
    const char *spelling; // not NUL-terminated
    uint32_t len_bytes;
    float score; // of SentencePiece: the greatest is joined first
    enum vocab_type type;
};

struct vocab {
    struct vocab_token *tokens; // [n]
    uint32_t n;                 // highest id + 1
    struct strmap ids;          // spelling -> id
    uint64_t n_bytes;           // of all spellings
};

// Zeroed first; what names the field in errors. ERR_LIMIT over LIMIT_VOCAB tokens, ERR_FORMAT without any, ERR_NOMEM.
int vocab_init(struct vocab *v, const char *what, uint64_t n, struct err *e) MUST_CHECK;
void vocab_fini(struct vocab *v); // zeroed or initialised
// Sets a token that was none before. Of two that are spelled alike the first is the one that text becomes. The spelling
// must be UTF-8. ERR_LIMIT, ERR_FORMAT, ERR_NOMEM.
int vocab_set(struct vocab *v, const char *what, uint32_t id, const struct vocab_token *token,
              struct err *e) MUST_CHECK;
// -1: none.
int32_t vocab_find(const struct vocab *v, const char *spelling, size_t len_bytes);
// Whether a spelling is "<0x00>" to "<0xFF>", and which byte it means.
bool vocab_is_byte(const char *spelling, size_t len_bytes, uint8_t *byte);
