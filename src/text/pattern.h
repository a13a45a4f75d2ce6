// Rewrites a regular expression of tokenizer.json (Oniguruma, as HF tokenizers uses it) into one that PCRE2 with
// UTF|UCP|MULTILINE matches alike.
#pragma once
#include "base/buf.h"

// Adds the rewritten pattern to out. ERR_UNSUPPORTED for what the two read differently (nested sets, intersections);
// ERR_NOMEM.
int pattern_rewrite(const char *pattern, size_t len_bytes, struct buf *out, struct err *e) MUST_CHECK;
