// A SentencePiece model (tokenizer.model, protobuf) -> struct tokenizer.
#pragma once
#include "text/tokenizer_impl.h"

// Fills an all-zero tokenizer; on error the caller frees what was made. config: JSON of tokenizer_config.json or NULL.
int tokenizer_spm_load(struct tokenizer *t, const uint8_t *model, size_t len_bytes, const char *config,
                       struct err *e) MUST_CHECK;
