// A small byte-level tokenizer.json for tests: one token a byte, then merges, then added tokens.
#pragma once
#include "base/buf.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tiny {
    const char *const *merges; // pairs "a b" in the byte-level alphabet, NULL-terminated; NULL: none
    bool merges_as_pairs;
    bool ignore_merges;
    const char *whole; // one more spelling in the vocabulary that no merge makes, or NULL
    const char *added, *normalizer, *pre_tokenizer, *post_processor; // JSON, NULL: what TINY_* says
};

// Ids: byte b in order of the alphabet is tiny_byte(b); merges 256, 257, ...; then whole; added tokens say their own.
#define TINY_ADDED                                                                                                     \
    "[{\"id\": 1000, \"content\": \"<|a|>\", \"special\": true, \"normalized\": false},"                               \
    " {\"id\": 1001, \"content\": \"<|ab|>\", \"special\": true, \"normalized\": false},"                              \
    " {\"id\": 1002, \"content\": \"<think>\", \"special\": false, \"normalized\": true}]"
#define TINY_PRE                                                                                                       \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "                     \
    "\"\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", "         \
    "\"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"

static inline bool tiny_prints(int b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae; }

static inline int32_t tiny_byte(int b) { return b; }

static inline int tiny_add_byte(struct buf *j, int b) {
    int c = b;
    if (!tiny_prints(b)) {
        c = 256;
        for (int k = 0; k < b; k++) c += !tiny_prints(k);
    }
    if (c == '"' || c == '\\') return buf_addf(j, "\\%c", c);
    return c < 0x80 ? buf_addf(j, "%c", c) : buf_addf(j, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
}

static inline void tiny_must(int rc) {
    if (rc) abort();
}

// The JSON, a NUL behind it; the caller's to buf_fini().
static inline struct buf tiny_json(const struct tiny *y) {
    struct buf j;
    buf_init(&j, 1 << 20);
    tiny_must(buf_addf(&j, "{\"model\": {\"type\": \"BPE\", \"ignore_merges\": %s, \"vocab\": {",
                       y->ignore_merges ? "true" : "false"));
    for (int b = 0; b < 256; b++) {
        tiny_must(buf_addf(&j, "%s\"", b ? ", " : ""));
        tiny_must(tiny_add_byte(&j, b));
        tiny_must(buf_addf(&j, "\": %d", b));
    }
    int id = 256;
    for (const char *const *m = y->merges; m && *m; m++) {
        size_t left = strcspn(*m, " ");
        tiny_must(buf_addf(&j, ", \"%.*s%s\": %d", (int)left, *m, *m + left + 1, id++));
    }
    if (y->whole) tiny_must(buf_addf(&j, ", \"%s\": %d", y->whole, id));
    tiny_must(buf_addf(&j, "}, \"merges\": ["));
    for (const char *const *m = y->merges; m && *m; m++) {
        int left = (int)strcspn(*m, " ");
        const char *comma = m == y->merges ? "" : ", ";
        if (y->merges_as_pairs)
            tiny_must(buf_addf(&j, "%s[\"%.*s\", \"%s\"]", comma, left, *m, *m + left + 1));
        else
            tiny_must(buf_addf(&j, "%s\"%s\"", comma, *m));
    }
    tiny_must(buf_addf(&j,
                       "]}, \"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, \"post_processor\": %s}",
                       y->added ? y->added : TINY_ADDED, y->normalizer ? y->normalizer : "{\"type\": \"NFC\"}",
                       y->pre_tokenizer ? y->pre_tokenizer : TINY_PRE, y->post_processor ? y->post_processor : "null"));
    tiny_must(!buf_cstr(&j));
    return j;
}

static inline struct tokenizer *tiny_new(const struct tiny *y) {
    struct buf j = tiny_json(y);
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_new((char *)j.data, j.len_bytes, &t, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    buf_fini(&j);
    return t;
}
