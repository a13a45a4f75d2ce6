// The metadata of a GGUF file -> struct tokenizer.
#pragma once
#include "gguf/gguf.h"
#include "text/tokenizer_impl.h"

// Fills an all-zero tokenizer; on error the caller frees what was made.
int tokenizer_gguf_load(struct tokenizer *t, const struct gguf *g, struct err *e) MUST_CHECK;

// What a name of tokenizer.ggml.pre stands for: the steps of the tokenizer.json that it was made from.
struct pre {
    const char *names; // each with a space before and behind it
    bool nfc;
    bool whole;              // ignore_merges
    bool bos;                // a text begins with it unless the file says otherwise
    const char *patterns[6]; // each Isolated, one after the other
};
const struct pre *pre_find(const char *name, size_t len_bytes); // NULL: unknown
const struct pre *pre_at(size_t i);                             // of the table; NULL: beyond its end
