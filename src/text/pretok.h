// Pre-tokenizer: cuts a text into the pieces that BPE then works on, one after another and each by itself, by a list of
// steps that tokenizer.json states. Read-only after loading and shared by all threads; a scratch belongs to one.
#pragma once
#include "text/pattern.h"

// What becomes of the parts that the pattern of a step matches.
enum pretok_behavior {
    PRETOK_ISOLATED,   // a piece each
    PRETOK_REMOVED,    // dropped
    PRETOK_CONTIGUOUS, // neighbouring matches are one piece
    PRETOK_MERGED_WITH_PREVIOUS,
    PRETOK_MERGED_WITH_NEXT
};

enum pretok_kind {
    PRETOK_SPLIT,
    PRETOK_PREFIX,   // a space goes in front of every piece that does not begin with one
    PRETOK_METASPACE // spaces become the mark, and one goes in front of some pieces that do not begin with it
};

enum pretok_scheme { PRETOK_NEVER, PRETOK_FIRST, PRETOK_ALWAYS }; // FIRST: the piece that the text begins with

enum { PRETOK_STEPS = 16, PRETOK_MARK_BYTES = 8 };

struct pretok_step {
    enum pretok_kind kind;
    struct pattern *pattern; // of a split, owned
    enum pretok_behavior behavior;
    bool invert; // what the pattern does not match counts as matched
    enum pretok_scheme scheme;
    char mark[PRETOK_MARK_BYTES];
    uint8_t mark_bytes;
};

struct pretok {
    struct pretok_step steps[PRETOK_STEPS];
    uint32_t n_steps;
};

// Adds a step that cuts. pattern is one of pattern_new, whose errors these are; ERR_LIMIT at PRETOK_STEPS.
int pretok_add(struct pretok *p, const char *pattern, size_t len_bytes, bool literal, enum pretok_behavior behavior,
               bool invert, struct err *e) MUST_CHECK;
int pretok_add_prefix(struct pretok *p, struct err *e) MUST_CHECK;
// mark: one character. split: each piece is also cut before every mark.
int pretok_add_metaspace(struct pretok *p, const char *mark, size_t mark_bytes, enum pretok_scheme scheme, bool split,
                         struct err *e) MUST_CHECK;
void pretok_fini(struct pretok *p);

struct pretok_scratch {
    struct pretok_span *spans[2], *marks; // arrays of cap entries that grow together
    size_t cap[3];
    struct pattern_matcher matcher;
    uint8_t *rewritten[2]; // the text after a step that changes it
    size_t rewritten_cap[2];
};

int pretok_scratch_init(struct pretok_scratch *s) MUST_CHECK; // ERR_NOMEM
void pretok_scratch_fini(struct pretok_scratch *s);

// Calls piece() for each piece of text, which must be UTF-8 of fewer than 2^31 bytes, from left to right; an error of
// piece() ends it and is returned. first: no other text comes before this one. ERR_NOMEM; ERR_LIMIT if a pattern gives
// up.
typedef int pretok_piece_fn(void *ctx, const uint8_t *piece, size_t len_bytes);
int pretok_run(const struct pretok *p, struct pretok_scratch *s, const uint8_t *text, size_t len_bytes, bool first,
               pretok_piece_fn *piece, void *ctx, struct err *e) MUST_CHECK;
