// Pre-tokenizer: cuts a text into the pieces that BPE then works on, one after another and each by itself, by a list of
// steps that tokenizer.json states. Read-only after loading and shared by all threads; a scratch belongs to one.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What becomes of the parts that the pattern of a step matches.
enum pretok_behavior {
    PRETOK_ISOLATED,   // a piece each
    PRETOK_REMOVED,    // dropped
    PRETOK_CONTIGUOUS, // neighbouring matches are one piece
    PRETOK_MERGED_WITH_PREVIOUS,
    PRETOK_MERGED_WITH_NEXT
};

enum { PRETOK_STEPS = 16 };

struct pretok_step {
    void *code; // pcre2_code, owned
    enum pretok_behavior behavior;
    bool invert; // what the pattern does not match counts as matched
};

struct pretok {
    struct pretok_step steps[PRETOK_STEPS];
    uint32_t n_steps;
    bool prefix_space;  // before the last step, a space goes in front of every piece that does not begin with one
    uint32_t prefix_at; // steps done before that
};

// Adds a step. Patterns are those of the reference (Oniguruma): \s and \S become the explicit White_Space class, a
// script name means Script and not Script_Extensions, ^ and $ are the borders of lines. literal: a plain string.
// ERR_UNSUPPORTED for a pattern that PCRE2 reads otherwise or cannot read, ERR_LIMIT, ERR_NOMEM.
int pretok_add(struct pretok *p, const char *pattern, size_t len_bytes, bool literal, enum pretok_behavior behavior,
               bool invert, struct err *e) MUST_CHECK;
void pretok_fini(struct pretok *p);

struct pretok_scratch {
    struct pretok_span *spans[2], *marks; // arrays of cap entries that grow together
    size_t cap[3];
    void *match_data;    // pcre2_match_data
    void *match_context; // pcre2_match_context
    uint8_t *prefixed;   // a piece with its space in front
    size_t prefixed_cap;
};

int pretok_scratch_init(struct pretok_scratch *s) MUST_CHECK; // ERR_NOMEM
void pretok_scratch_fini(struct pretok_scratch *s);

// Calls piece() for each piece of text, which must be UTF-8 of fewer than 2^31 bytes, from left to right; an error of
// piece() ends it and is returned. ERR_NOMEM; ERR_LIMIT if a pattern gives up.
typedef int pretok_piece_fn(void *ctx, const uint8_t *piece, size_t len_bytes);
int pretok_run(const struct pretok *p, struct pretok_scratch *s, const uint8_t *text, size_t len_bytes,
               pretok_piece_fn *piece, void *ctx, struct err *e) MUST_CHECK;
