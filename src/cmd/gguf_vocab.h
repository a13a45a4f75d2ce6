// The lists of tokens that a GGUF file has, on their way into one.
#pragma once
#include "gguf/gguf.h"
#include "model/model.h"
#include <jansson.h>

enum gguf_token_type { // as they are written
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6
};

struct gguf_vocab {
    uint32_t n;
    struct gguf_string *text; // [n], each one's own memory
    float *score;             // [n]
    int32_t *type;            // [n]
};

// n tokens that nobody uses.
int gguf_vocab_init(struct gguf_vocab *v, uint32_t n, struct err *e) MUST_CHECK;
void gguf_vocab_fini(struct gguf_vocab *v);
// ERR_FORMAT: id is beyond the model's vocabulary. what: the file, for errors.
int gguf_vocab_set(struct gguf_vocab *v, const char *what, uint64_t id, const char *text, size_t len_bytes, float score,
                   enum gguf_token_type type, struct err *e) MUST_CHECK;
int64_t gguf_vocab_find(const struct gguf_vocab *v, const char *text); // -1: none
// tokens, types, and with_scores: scores.
int gguf_vocab_put(const struct gguf_vocab *v, bool with_scores, struct gguf_writer *w) MUST_CHECK;

// The pieces of a SentencePiece model (protobuf). ERR_FORMAT.
int gguf_vocab_read_spm(struct gguf_vocab *v, const uint8_t *data, size_t bytes, struct err *e) MUST_CHECK;
