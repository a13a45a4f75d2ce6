// tokenizer.json, as two files read it: tokenizer_json.c and tokenizer_steps.c.
#pragma once
#include "text/tokenizer_impl.h"
#include <jansson.h>

// Fills an all-zero tokenizer; on error the caller frees what was made.
int tokenizer_json_load(struct tokenizer *t, const json_t *root, struct err *e) MUST_CHECK;
// Its normaliser, pre-tokenizer and decoder.
int tokenizer_steps_load(struct tokenizer *t, const json_t *root, struct err *e) MUST_CHECK;

const char *tokenizer_json_type(const json_t *obj); // "type" of it; "(none)"
bool tokenizer_json_flag(const json_t *obj, const char *field, bool absent);
