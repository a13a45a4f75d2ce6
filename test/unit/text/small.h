// A small SentencePiece-like vocabulary for tests, as tokenizer.json, as tokenizer.model and as GGUF metadata.
#pragma once
#include "base/buf.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define M "\xe2\x96\x81" // the mark

// Ids: 0 <unk>, 1 <s>, 2 </s>, then a token a byte, then these, the best score first; SMALL_USER is user-defined.
enum { SMALL_BYTE0 = 3, HE = 259, LL, HELL, HELLO, M_HELLO, M_W, MM, EA, MARK, H, E, L, O, W, A, SMALL_USER, SMALL_N };
static const char *const small_pieces[] = {"he", "ll", "hell", "hello", (M "hello"), (M "w"), (M M), "\xc3\xa9\x61",
                                           M,    "h",  "e",    "l",     "o",         "w",     "a",   "[u]"};
// The same joins as a list.
static const char *const small_merges[] = {"h e", "l l", "he ll", "hell o", M " hello", M " w", M " " M};
enum { SMALL_MERGES = sizeof small_merges / sizeof *small_merges };

static inline void small_must(int rc) {
    if (rc) abort();
}

static inline const char *small_piece(int id, char byte[8]) {
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    if (id < SMALL_BYTE0) return first[id];
    if (id >= HE) return small_pieces[id - HE];
    snprintf(byte, 8, "<0x%02X>", (unsigned)(id - SMALL_BYTE0) & 0xff);
    return byte;
}

// 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte: as both formats number them.
static inline int small_type(int id) {
    return id == 0 ? 2 : id < SMALL_BYTE0 ? 3 : id < HE ? 6 : id == SMALL_USER ? 4 : 1;
}

static inline float small_score(int id) { return id < HE ? 0.0f : (float)(HE - id - 1); }

struct small_json {
    const char *normalizer, *pre_tokenizer, *decoder; // JSON, NULL: as Llama 2 has them
    const char *model;                                // more fields of the model, NULL: byte_fallback and unk_token
};

#define SMALL_NORMALIZER                                                                                               \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" M "\"}, {\"type\": "          \
    "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" M "\"}]}"
#define SMALL_DECODER                                                                                                  \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"" M "\"}, "           \
    "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": "     \
    "\" \", \"start\": 1, \"stop\": 0}]}"

static inline struct buf small_json(const struct small_json *y) {
    struct buf j;
    char byte[8];
    buf_init(&j, 1 << 20);
    small_must(buf_addf(&j,
                        "{\"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": %s, \"model\": {\"type\": "
                        "\"BPE\", %s, \"vocab\": {",
                        y->normalizer ? y->normalizer : SMALL_NORMALIZER, y->pre_tokenizer ? y->pre_tokenizer : "null",
                        y->decoder ? y->decoder : SMALL_DECODER,
                        y->model ? y->model : "\"byte_fallback\": true, \"fuse_unk\": true, \"unk_token\": \"<unk>\""));
    for (int id = 0; id < SMALL_USER; id++)
        small_must(buf_addf(&j, "%s\"%s\": %d", id ? ", " : "", small_piece(id, byte), id));
    small_must(buf_addf(&j, "}, \"merges\": ["));
    for (int i = 0; i < SMALL_MERGES; i++) small_must(buf_addf(&j, "%s\"%s\"", i ? ", " : "", small_merges[i]));
    small_must(buf_addf(&j,
                        "]}, \"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true}, {\"id\": 1, "
                        "\"content\": \"<s>\", \"special\": true}, {\"id\": 2, \"content\": \"</s>\", \"special\": "
                        "true}, {\"id\": %d, \"content\": \"[u]\", \"special\": false, \"normalized\": false}]}",
                        SMALL_USER));
    return j;
}

static inline void small_varint(struct buf *b, uint64_t v) {
    do {
        uint8_t byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80u : 0u));
        small_must(buf_add(b, &byte, 1));
        v >>= 7;
    } while (v);
}

static inline void small_field(struct buf *b, unsigned number, const void *data, size_t n) {
    small_varint(b, number << 3 | 2);
    small_varint(b, n);
    small_must(buf_add(b, data, n));
}

struct small_proto {
    int model_type; // 0: BPE
    bool no_prefix, squeeze;
    const char *charsmap;
};

static inline struct buf small_proto(const struct small_proto *y) {
    struct buf b, part;
    char byte[8];
    buf_init(&b, 1 << 20);
    buf_init(&part, 1 << 12);
    for (int id = 0; id < SMALL_N; id++) {
        const char *text = small_piece(id, byte);
        float score = small_score(id);
        buf_clear(&part);
        small_field(&part, 1, text, strlen(text));
        small_varint(&part, 2 << 3 | 5);
        small_must(buf_add(&part, &score, sizeof score));
        small_varint(&part, 3 << 3);
        small_varint(&part, (uint64_t)small_type(id));
        small_field(&b, 1, part.data, part.len_bytes);
    }
    buf_clear(&part);
    small_varint(&part, 3 << 3);
    small_varint(&part, y->model_type ? (uint64_t)y->model_type : 2);
    small_field(&b, 2, part.data, part.len_bytes);
    buf_clear(&part);
    small_field(&part, 1, "identity", 8);
    if (y->charsmap) small_field(&part, 2, y->charsmap, strlen(y->charsmap));
    const unsigned flags[][2] = {{3, !y->no_prefix}, {4, y->squeeze}, {5, 1}};
    for (size_t i = 0; i < 3; i++) {
        small_varint(&part, flags[i][0] << 3);
        small_varint(&part, flags[i][1]);
    }
    small_field(&b, 3, part.data, part.len_bytes);
    buf_fini(&part);
    return b;
}

struct small_gguf {
    const char *model, *pre, *arch, *chat_template; // NULL: "llama", none, none, none
    bool no_prefix, no_scores;
};

static inline struct buf small_gguf(const struct small_gguf *y) {
    struct gguf_writer *w = NULL;
    struct gguf_string tokens[SMALL_N], merges[SMALL_MERGES];
    static char bytes[SMALL_N][8];
    float scores[SMALL_N];
    int32_t types[SMALL_N];
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int id = 0; id < SMALL_N; id++) {
        const char *text = small_piece(id, bytes[id]);
        tokens[id] = (struct gguf_string){text, strlen(text)};
        scores[id] = small_score(id);
        types[id] = small_type(id);
    }
    for (int i = 0; i < SMALL_MERGES; i++) merges[i] = (struct gguf_string){small_merges[i], strlen(small_merges[i])};
    const char *model = y->model ? y->model : "llama";
    small_must(gguf_writer_new(&w));
    if (y->arch) small_must(gguf_put_string(w, "general.architecture", y->arch, strlen(y->arch)));
    small_must(gguf_put_string(w, "tokenizer.ggml.model", model, strlen(model)));
    if (y->pre) small_must(gguf_put_string(w, "tokenizer.ggml.pre", y->pre, strlen(y->pre)));
    small_must(gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, tokens, SMALL_N));
    if (!y->no_scores) small_must(gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, SMALL_N));
    small_must(gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, SMALL_N));
    small_must(gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, merges, SMALL_MERGES));
    small_must(gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 1));
    small_must(gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 2));
    if (y->no_prefix) small_must(gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false));
    if (y->chat_template) {
        small_must(gguf_put_string(w, "tokenizer.chat_template", y->chat_template, strlen(y->chat_template)));
        small_must(gguf_put_string(w, "tokenizer.chat_template.tool_use", "T", 1));
    }
    small_must(gguf_writer_header(w, &b));
    gguf_writer_free(w);
    return b;
}
