// What a GGUF file says of itself: its metadata, long values cut short, and its tensors under its own names. The file
// need not be one that Loom computes.
#pragma once
#include "cmd/flags.h"
#include "gguf/gguf.h"
#include <jansson.h>

void inspect_gguf_print(const struct gguf *g, bool tensors);
// Adds "gguf", "metadata" and, with tensors, "tensors" to o. False: no memory.
bool inspect_gguf_json(const struct gguf *g, bool tensors, json_t *o);

// Sums by type, for any kind of file. The name is a literal.
struct inspect_types {
    struct inspect_type {
        const char *name;
        uint32_t n;
        uint64_t bytes;
        bool unknown; // how many bytes is not known
    } list[64];
    uint32_t n;
};
void inspect_types_add(struct inspect_types *y, const char *name, uint64_t bytes, bool unknown);
void inspect_types_of_gguf(struct inspect_types *y, const struct gguf *g);
