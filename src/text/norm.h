// Normaliser: what a tokenizer changes in a text before it looks for pieces in it, step by step. Read-only after
// loading and shared by all threads.
#pragma once
#include "text/pattern.h"

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP_ACCENTS, // drops marks
    NORM_STRIP,         // white space at the ends
    NORM_PREPEND,       // to, in front of what is not empty
    NORM_REPLACE        // to, for every match of the pattern, or of from where there is none
};

enum { NORM_STEPS = 16, NORM_TO_BYTES = 64 };

struct norm_step {
    enum norm_kind kind;
    struct pattern *pattern; // owned
    char from[NORM_TO_BYTES], to[NORM_TO_BYTES];
    uint32_t from_bytes, to_bytes;
    bool left, right; // STRIP: which ends
    bool first_only;  // PREPEND: only to a text before which no other comes
};

struct norm {
    struct norm_step steps[NORM_STEPS];
    uint32_t n_steps;
};

// step's pattern becomes the normaliser's, also on error. ERR_LIMIT.
int norm_add(struct norm *n, const struct norm_step *step, struct err *e) MUST_CHECK;
void norm_fini(struct norm *n);

// A text, and byte offsets in it, ascending, that keep their place while it changes. Owns its memory.
struct norm_text {
    uint8_t *data;
    size_t len_bytes;
    size_t *breaks;
    size_t n_breaks;
};

// False: the text surely stays as it is.
bool norm_may_change(const struct norm *n, const uint8_t *text, size_t len_bytes);
// text must be UTF-8. ERR_NOMEM; ERR_LIMIT: what comes out is too long, or a pattern gives up.
int norm_run(const struct norm *n, const uint8_t *text, size_t len_bytes, const size_t *breaks, size_t n_breaks,
             bool first, struct norm_text *out, struct err *e) MUST_CHECK;
void norm_text_fini(struct norm_text *t);
