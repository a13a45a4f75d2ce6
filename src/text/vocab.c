#include "text/vocab.h"
#include "base/limits.h"
#include "os/random.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { SPELLING_MAX = LIMIT_TOKEN_BYTES * 2, KEYS_MAX = LIMIT_TOKENIZER_BYTES };

int vocab_init(struct vocab *v, const char *what, uint64_t n, struct err *e) {
    if (n == 0) return err_set(e, ERR_FORMAT, "%s is empty", what);
    if (n > LIMIT_VOCAB)
        return err_set(e, ERR_LIMIT, "%s: %llu tokens, at most %d", what, (unsigned long long)n, LIMIT_VOCAB);
    v->tokens = calloc(n, sizeof *v->tokens);
    if (!v->tokens) return err_set(e, ERR_NOMEM, "no memory for %llu tokens", (unsigned long long)n);
    v->n = (uint32_t)n;
    strmap_init(&v->ids, n, KEYS_MAX, random_u64());
    return ERR_OK;
}

void vocab_fini(struct vocab *v) {
    if (v->tokens) strmap_fini(&v->ids);
    free(v->tokens);
    *v = (struct vocab){0};
}

int vocab_set(struct vocab *v, const char *what, uint32_t id, const struct vocab_token *token, struct err *e) {
    ASSERT(id < v->n && v->tokens[id].type == VOCAB_NONE && token->type != VOCAB_NONE, "token %u", id);
    if (token->len_bytes > SPELLING_MAX)
        return err_set(e, ERR_LIMIT, "%s: token %u is spelled with %u bytes, at most %d", what, id, token->len_bytes,
                       SPELLING_MAX);
    if (u8_check((const uint8_t *)token->spelling, token->len_bytes))
        return err_set(e, ERR_FORMAT, "%s: token %u is not UTF-8", what, id);
    uint32_t before;
    v->tokens[id] = *token;
    v->n_bytes += token->len_bytes;
    if (token->len_bytes == 0 || strmap_get(&v->ids, token->spelling, token->len_bytes, &before)) return ERR_OK;
    int rc = strmap_put(&v->ids, token->spelling, token->len_bytes, id);
    if (rc == ERR_LIMIT) return err_set(e, rc, "%s: spellings of more than %d bytes", what, KEYS_MAX);
    return rc ? err_set(e, rc, "%s: no memory", what) : ERR_OK;
}

int32_t vocab_find(const struct vocab *v, const char *spelling, size_t len_bytes) {
    uint32_t id;
    return strmap_get(&v->ids, spelling, len_bytes, &id) ? (int32_t)id : -1;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool vocab_is_byte(const char *spelling, size_t len_bytes, uint8_t *byte) {
    if (len_bytes != 6 || memcmp(spelling, "<0x", 3) != 0 || spelling[5] != '>') return false;
    int high = digit(spelling[3]), low = digit(spelling[4]);
    if (high < 0 || low < 0) return false;
    *byte = (uint8_t)(high << 4 | low);
    return true;
}
