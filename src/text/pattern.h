// Regular expressions of tokenizer.json (Oniguruma's, as HF tokenizers uses them), matched by PCRE2 alike. A pattern is
// read-only and shared by all threads; a matcher belongs to one.
#pragma once
#include "base/buf.h"
#include <stdbool.h>

struct pattern; // a pcre2_code

// \s, \S, \w and \W become explicit classes, a script name means Script and not Script_Extensions, ^ and $ are the
// borders of lines. literal: a plain string. ERR_UNSUPPORTED for a pattern that PCRE2 reads otherwise or cannot read,
// ERR_LIMIT, ERR_NOMEM. where names it in errors.
int pattern_new(const char *text, size_t len_bytes, bool literal, const char *where, struct pattern **p,
                struct err *e) MUST_CHECK;
void pattern_free(struct pattern *p); // NULL: nothing

struct pattern_matcher {
    void *data, *context; // pcre2_match_data, pcre2_match_context
};
int pattern_matcher_init(struct pattern_matcher *m) MUST_CHECK; // ERR_NOMEM
void pattern_matcher_fini(struct pattern_matcher *m);           // zeroed or initialised
// How much work one match may be, for a text of this length.
void pattern_matcher_limit(struct pattern_matcher *m, size_t len_bytes);
// The next match in text, which must be UTF-8, at or behind from. *found false: there is none. ERR_LIMIT if the pattern
// gives up, ERR_UNSUPPORTED if it matches backwards, ERR_NOMEM.
int pattern_next(const struct pattern *p, struct pattern_matcher *m, const uint8_t *text, size_t len_bytes, size_t from,
                 bool *found, size_t *start, size_t *end, struct err *e) MUST_CHECK;

// Rewrites a regular expression into one that PCRE2 with UTF|UCP|MULTILINE matches alike, and adds it to out.
// ERR_UNSUPPORTED for what the two read differently (nested sets, intersections); ERR_NOMEM.
int pattern_rewrite(const char *pattern, size_t len_bytes, struct buf *out, struct err *e) MUST_CHECK;
