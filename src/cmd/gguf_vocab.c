#include "cmd/gguf_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct err *e) { return err_set(e, ERR_NOMEM, "no memory for the tokens"); }

int gguf_vocab_init(struct gguf_vocab *v, uint32_t n, struct err *e) {
    *v = (struct gguf_vocab){.n = n};
    v->text = calloc(n, sizeof *v->text);
    v->score = calloc(n, sizeof *v->score);
    v->type = calloc(n, sizeof *v->type);
    if (!v->text || !v->score || !v->type) return no_memory(e);
    for (uint32_t i = 0; i < n; i++) {
        char name[32];
        int len = snprintf(name, sizeof name, "[PAD%u]", i);
        int rc = gguf_vocab_set(v, "", i, name, (size_t)len, -10000, GGUF_TOKEN_UNUSED, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

void gguf_vocab_fini(struct gguf_vocab *v) {
    for (uint32_t i = 0; v->text && i < v->n; i++) free((void *)(uintptr_t)v->text[i].text);
    free(v->text);
    free(v->score);
    free(v->type);
    *v = (struct gguf_vocab){0};
}

int gguf_vocab_set(struct gguf_vocab *v, const char *what, uint64_t id, const char *text, size_t len_bytes, float score,
                   enum gguf_token_type type, struct err *e) {
    if (id >= v->n)
        return err_set(e, ERR_FORMAT, "%s: token %llu, but vocab_size of config.json is %u", what,
                       (unsigned long long)id, v->n);
    char *own = malloc(len_bytes + 1);
    if (!own) return no_memory(e);
    memcpy(own, text, len_bytes);
    own[len_bytes] = 0;
    free((void *)(uintptr_t)v->text[id].text);
    v->text[id] = (struct gguf_string){own, len_bytes};
    v->score[id] = score;
    v->type[id] = type;
    return ERR_OK;
}

int64_t gguf_vocab_find(const struct gguf_vocab *v, const char *text) {
    const size_t len = strlen(text);
    for (uint32_t i = 0; i < v->n; i++)
        if (v->type[i] != GGUF_TOKEN_UNUSED && v->text[i].len_bytes == len && !memcmp(v->text[i].text, text, len))
            return i;
    return -1;
}

int gguf_vocab_put(const struct gguf_vocab *v, bool with_scores, struct gguf_writer *w) {
    int rc = gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, v->text, v->n);
    if (!rc && with_scores) rc = gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, v->score, v->n);
    return rc ? rc : gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, v->type, v->n);
}

// ---- SentencePiece

// What is left of a message.
struct wire {
    const uint8_t *at, *end;
};

static bool varint(struct wire *w, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        const uint8_t byte = *w->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

// The next field: its number, and its bytes (of a message or string) or its value. False: broken, or the end.
static bool field(struct wire *w, uint64_t *number, struct wire *bytes, uint64_t *value) {
    uint64_t tag, len;
    if (!varint(w, &tag)) return false;
    *number = tag >> 3;
    *value = 0;
    *bytes = (struct wire){w->at, w->at};
    switch (tag & 7) {
    case 0:
        return varint(w, value);
    case 1:
    case 5:
        len = (tag & 7) == 1 ? 8 : 4;
        break;
    case 2:
        if (!varint(w, &len)) return false;
        break;
    default:
        return false;
    }
    if (len > (uint64_t)(w->end - w->at)) return false;
    *bytes = (struct wire){w->at, w->at + len};
    w->at += len;
    return true;
}

static int read_piece(struct gguf_vocab *v, uint32_t id, struct wire piece, struct err *e) {
    struct wire text = piece, bytes;
    uint64_t number, value, type = GGUF_TOKEN_NORMAL;
    float score = 0;
    text.end = text.at;
    while (piece.at < piece.end) {
        if (!field(&piece, &number, &bytes, &value)) return err_set(e, ERR_FORMAT, "piece %u is broken", id);
        if (number == 1) text = bytes;
        if (number == 2 && bytes.end - bytes.at == sizeof score) memcpy(&score, bytes.at, sizeof score);
        if (number == 3) type = value;
    }
    // The types are numbered alike.
    if (type < GGUF_TOKEN_NORMAL || type > GGUF_TOKEN_BYTE)
        return err_set(e, ERR_FORMAT, "piece %u has type %llu", id, (unsigned long long)type);
    return gguf_vocab_set(v, "tokenizer.model", id, (const char *)text.at, (size_t)(text.end - text.at), score,
                          (enum gguf_token_type)type, e);
}

int gguf_vocab_read_spm(struct gguf_vocab *v, const uint8_t *data, size_t bytes, struct err *e) {
    struct wire w = {data, data + bytes}, part;
    uint64_t number, value;
    uint32_t n = 0;
    int rc = ERR_OK;
    while (!rc && w.at < w.end) {
        if (!field(&w, &number, &part, &value)) return err_set(e, ERR_FORMAT, "tokenizer.model: broken");
        if (number == 1) rc = read_piece(v, n++, part, e);
    }
    return rc ? err_prefix(e, "tokenizer.model") : ERR_OK;
}
