#include "cmd/gguf_vocab.h"
#include "text/spm.h"

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

int gguf_vocab_read_spm(struct gguf_vocab *v, const uint8_t *data, size_t bytes, struct err *e) {
    struct spm_message model = {data, data + bytes};
    struct spm_piece p;
    uint32_t id = 0;
    bool found;
    int rc = spm_next_piece(&model, &id, &p, &found, e);
    for (; !rc && found; rc = spm_next_piece(&model, &id, &p, &found, e)) {
        // The types are numbered alike.
        int rc2 =
            gguf_vocab_set(v, "tokenizer.model", id - 1, p.text, p.len_bytes, p.score, (enum gguf_token_type)p.type, e);
        if (rc2) return rc2;
    }
    return rc ? err_prefix(e, "tokenizer.model") : ERR_OK;
}
