// The text side of a model's folder (tokenizer.json or tokenizer.model, tokenizer_config.json, chat templates) as the
// tokenizer.* metadata of a GGUF file.
#pragma once
#include "gguf/gguf.h"
#include "model/model.h"

// A folder without a tokenizer gives a file without one (tokenizer.ggml.model "none"). ERR_UNSUPPORTED: GGUF has no
// name for what the tokenizer does.
int gguf_text_export(const char *folder, const struct hparams *h, struct gguf_writer *w, struct err *e) MUST_CHECK;
// A made-up byte-level tokenizer with as many tokens as the model has rows, and a plain chat template.
int gguf_text_make_up(const struct hparams *h, struct gguf_writer *w, struct err *e) MUST_CHECK;
