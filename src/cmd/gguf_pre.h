// What a tokenizer.json does to a text before it is cut into tokens, in the words that GGUF files have for it.
#pragma once
#include <jansson.h>
#include <stdbool.h>

#define GGUF_PRE_MARK "\xe2\x96\x81" // what SentencePiece has for a space

struct gguf_pre {
    bool byte_level;
    bool nfc, whole; // the text is normalised; ignore_merges: whole pieces that are tokens are taken without merging
    bool prefix;     // not byte_level: the mark goes before a text
    char name[64];   // of byte_level, for tokenizer.ggml.pre; "": there is none
    char odd[96];    // the first thing that GGUF has no word for; "": there is none
};

// arch: the architecture's name in the GGUF file.
void gguf_pre_read(const json_t *tokenizer, const char *arch, struct gguf_pre *out);

// Of any part of a tokenizer.json: its type, "" if it has none; a boolean, or what it is when absent.
const char *gguf_pre_type(const json_t *o);
bool gguf_pre_flag(const json_t *o, const char *key, bool absent);
// Visits o and, if it is a Sequence, what is in its list. False ends the walk.
bool gguf_pre_each(const json_t *o, const char *list_key, bool (*fn)(void *arg, const json_t *step), void *arg);
