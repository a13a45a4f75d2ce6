// The inside of struct gguf, for the files of this folder only.
#pragma once
#include "base/limits.h"
#include "gguf/gguf.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are little-endian, and so is what they are read with"
#endif

struct gguf {
    const uint8_t *data;
    uint64_t bytes, data_offset;
    uint32_t version, alignment;
    struct gguf_value *values; // [n_values], in the file's order
    uint64_t n_values;
    struct gguf_tensor *tensors; // [n_tensors]
    uint64_t n_tensors;
    uint32_t *by_key; // [n_values], values sorted by key
};

// Bytes of one item; 0: they differ (strings, arrays).
uint32_t gguf_item_bytes(enum gguf_type t);

static inline int gguf_compare(const struct gguf_string *a, const char *text, uint64_t len_bytes) {
    uint64_t n = a->len_bytes < len_bytes ? a->len_bytes : len_bytes;
    int c = n ? memcmp(a->text, text, n) : 0;
    if (c) return c;
    return a->len_bytes < len_bytes ? -1 : a->len_bytes > len_bytes;
}
