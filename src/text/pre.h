// The pre-tokenizers that GGUF files name.
#pragma once
#include <stdbool.h>
#include <stddef.h>

// GPT-2's pattern, which ByteLevel of a tokenizer.json means too.
#define PRE_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

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
