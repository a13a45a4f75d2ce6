// The text side of a model's folder (tokenizer.json or tokenizer.model, tokenizer_config.json, chat templates) as the
// tokenizer.* metadata of a GGUF file.
#pragma once
#include "gguf/gguf.h"
#include "model/model.h"

// What people should know of the file that was made.
struct gguf_text_lacks {
    bool tokenizer; // the folder has none, so the file has none (tokenizer.ggml.model "none"): it takes token ids only
    bool ends;      // not all end tokens have a key that other programs read (GGUF_END_TOKENS has them)
};

// ERR_UNSUPPORTED: GGUF has no name for what the tokenizer does. lacks may be NULL.
int gguf_text_export(const char *folder, const struct hparams *h, struct gguf_writer *w, struct gguf_text_lacks *lacks,
                     struct err *e) MUST_CHECK;
// A made-up byte-level tokenizer with as many tokens as the model has rows, and a plain chat template.
int gguf_text_make_up(const struct hparams *h, struct gguf_writer *w, struct err *e) MUST_CHECK;
