// The metadata of a GGUF file -> struct tokenizer.
#pragma once
#include "gguf/gguf.h"
#include "text/pre.h"
#include "text/tokenizer_impl.h"

// Fills an all-zero tokenizer; on error the caller frees what was made.
int tokenizer_gguf_load(struct tokenizer *t, const struct gguf *g, struct err *e) MUST_CHECK;
