// What a loader has read -> the tables of struct tokenizer.
#include "text/alphabet.h"
#include "text/tokenizer_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { SPELLING_MAX = LIMIT_TOKEN_BYTES * 2 };

bool tokenizer_build_bytes(const struct decoder *d, const char *spelling, size_t len_bytes, uint8_t *out,
                           size_t *out_len_bytes) {
    if (d->alphabet) return alphabet_read(spelling, len_bytes, out, out_len_bytes);
    if (d->bytes && vocab_is_byte(spelling, len_bytes, out)) {
        *out_len_bytes = 1;
        return true;
    }
    size_t n = 0, i = 0;
    while (i < len_bytes) {
        if (d->from_bytes && len_bytes - i >= d->from_bytes && memcmp(spelling + i, d->from, d->from_bytes) == 0) {
            memcpy(out + n, d->to, d->to_bytes);
            n += d->to_bytes;
            i += d->from_bytes;
        } else {
            out[n++] = (uint8_t)spelling[i++];
        }
    }
    *out_len_bytes = n;
    return true;
}

// So much text may become one token.
static void note_length(struct tokenizer *t, const void *text, size_t len_bytes) {
    const uint8_t *p = text;
    uint32_t len = (uint32_t)len_bytes;
    if (len > t->longest_bytes) t->longest_bytes = len;
    for (uint32_t i = 0; i < len; i++)
        if (len > t->longest_with[p[i]]) t->longest_with[p[i]] = len;
}

static int keep(struct tokenizer *t, uint32_t id, const void *bytes, size_t len, unsigned flags, const char *what,
                struct err *e) {
    if (len > LIMIT_TOKEN_BYTES)
        return err_set(e, ERR_LIMIT, "%s: token %u has more than %d bytes", what, id, LIMIT_TOKEN_BYTES);
    ASSERT(t->blob_len_bytes + len <= t->blob_cap_bytes, "token %u", id);
    memcpy(t->blob + t->blob_len_bytes, bytes, len);
    t->bytes[id] = t->blob + t->blob_len_bytes;
    t->len_bytes[id] = (uint32_t)len;
    t->flags[id] = (uint8_t)(flags | TOKENIZER_USED);
    t->blob_len_bytes += len;
    note_length(t, bytes, len);
    return ERR_OK;
}

// The bytes of a token, as the decoder reads its spelling.
static int keep_spelled(struct tokenizer *t, uint32_t id, const char *spelling, size_t len, unsigned flags,
                        const char *what, struct err *e) {
    uint8_t bytes[SPELLING_MAX];
    size_t n = len;
    ASSERT(len <= sizeof bytes, "token %u", id);
    // A spelling outside the alphabet stands for itself, as the reference's decoder has it.
    if (tokenizer_build_bytes(&t->decoder, spelling, len, bytes, &n))
        return keep(t, id, bytes, n, flags | TOKENIZER_SPELLED, what, e);
    return keep(t, id, spelling, len, flags, what, e);
}

int tokenizer_build_tokens(struct tokenizer *t, const struct vocab *v, const char *what, size_t more_bytes,
                           struct err *e) {
    t->n_vocab = v->n;
    t->bytes = calloc(v->n, sizeof *t->bytes);
    t->len_bytes = calloc(v->n, sizeof *t->len_bytes);
    t->flags = calloc(v->n, sizeof *t->flags);
    t->blob_cap_bytes = v->n_bytes + more_bytes + 1;
    t->blob = malloc(t->blob_cap_bytes);
    if (!t->bytes || !t->len_bytes || !t->flags || !t->blob)
        return err_set(e, ERR_NOMEM, "no memory for %u tokens", t->n_vocab);
    int rc = ERR_OK;
    for (uint32_t id = 0; id < v->n && !rc; id++) {
        const struct vocab_token *token = &v->tokens[id];
        if (token->type == VOCAB_NONE) continue;
        rc = keep_spelled(t, id, token->spelling, token->len_bytes, 0, what, e);
        if (!t->decoder.alphabet) note_length(t, token->spelling, token->len_bytes);
    }
    return rc;
}

static bool joins(const struct vocab_token *token) { return token->type == VOCAB_NORMAL; }

static int start_from_chars(struct tokenizer *t, const struct vocab *v, struct err *e) {
    int rc = bpe_init_chars(&t->bpe, v->n);
    for (uint32_t id = 0; id < v->n && !rc; id++) {
        const struct vocab_token *token = &v->tokens[id];
        const uint8_t *p = (const uint8_t *)token->spelling;
        uint8_t byte;
        ucs4_t c;
        bool is_byte = token->type != VOCAB_NONE && vocab_is_byte(token->spelling, token->len_bytes, &byte);
        if (is_byte && t->bpe.byte_id[byte] < 0 && (token->type == VOCAB_BYTE || joins(token)))
            t->bpe.byte_id[byte] = (int32_t)id;
        if (joins(token) && token->len_bytes && (size_t)u8_mbtouc(&c, p, token->len_bytes) == token->len_bytes)
            rc = bpe_add_char(&t->bpe, c, (int32_t)id);
    }
    return rc ? err_set(e, rc, "no memory for %u tokens", v->n) : ERR_OK;
}

int tokenizer_build_starts(struct tokenizer *t, const struct vocab *v, struct err *e) {
    if (!t->decoder.alphabet) return start_from_chars(t, v, e);
    int known = 0;
    for (int b = 0; b < 256; b++) {
        char letter[ALPHABET_LETTER_BYTES];
        size_t n = alphabet_letter(b, letter);
        t->bpe.byte_id[b] = vocab_find(v, letter, n);
        known += t->bpe.byte_id[b] >= 0;
    }
    // A byte that no training text held may be missing: it is unknown, or dropped, as the reference does.
    return known ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "the vocabulary has a token for no byte: not a byte-level BPE");
}

static void note_mark(struct tokenizer *t, const char *left, size_t left_bytes, const char *right, size_t right_bytes) {
    ucs4_t c;
    if (!t->bpe.by_chars || u8_mbtouc(&c, (const uint8_t *)right, right_bytes) < 1 || c != BPE_MARK) return;
    const uint8_t *p = (const uint8_t *)left;
    if (u8_prev(&c, p + left_bytes, p)) bpe_note_before_mark(&t->bpe, c);
}

int tokenizer_build_merge(struct tokenizer *t, const struct vocab *v, struct spelling left, struct spelling right,
                          uint32_t rank, const char *what, struct err *e) {
    char both[SPELLING_MAX];
    size_t n = left.len_bytes + right.len_bytes;
    if (n > sizeof both || left.len_bytes == 0 || right.len_bytes == 0)
        return err_set(e, ERR_FORMAT, "%s[%u]: two parts of 1 to %d bytes together are needed", what, rank,
                       SPELLING_MAX);
    memcpy(both, left.text, left.len_bytes);
    memcpy(both + left.len_bytes, right.text, right.len_bytes);
    int32_t l = vocab_find(v, left.text, left.len_bytes), r = vocab_find(v, right.text, right.len_bytes);
    int32_t id = vocab_find(v, both, n);
    if (l < 0 || r < 0 || id < 0) {
        struct spelling lacks = l < 0 ? left : r < 0 ? right : (struct spelling){both, n};
        return err_set(e, ERR_FORMAT, "%s[%u]: \"%.*s\" is not in the vocabulary", what, rank,
                       (int)(lacks.len_bytes > 64 ? 64 : lacks.len_bytes), lacks.text);
    }
    bpe_add_merge(&t->bpe, l, r, rank, id);
    note_mark(t, left.text, left.len_bytes, right.text, right.len_bytes);
    return ERR_OK;
}

// ---- merges from scores --------------------------------------------------------------------------------------------

enum { CHARS_MAX = 256 }; // of a token that is made by joining

struct pair {
    int32_t left, right, id;
};

struct pairs {
    struct pair *list;
    size_t n, cap;
};

static int by_score(const void *a, const void *b, void *ctx) {
    const struct vocab *v = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    float sx = v->tokens[x].score, sy = v->tokens[y].score;
    return sx != sy ? (sx > sy ? -1 : 1) : x < y ? -1 : x > y;
}

// rank[id] of each token: equal for equal scores, of which the leftmost is joined first.
static int rank_scores(const struct vocab *v, uint32_t *rank, const char *what, struct err *e) {
    uint32_t *order = malloc(v->n * sizeof *order);
    if (!order) return err_set(e, ERR_NOMEM, "%s: no memory", what);
    int rc = ERR_OK;
    for (uint32_t i = 0; i < v->n && !rc; i++) {
        order[i] = i;
        if (v->tokens[i].score != v->tokens[i].score)
            rc = err_set(e, ERR_FORMAT, "%s: the score of token %u is not a number", what, i);
    }
    if (!rc) qsort_r(order, v->n, sizeof *order, by_score, (void *)v);
    for (uint32_t i = 0, r = 0; i < v->n && !rc; i++) {
        if (i > 0 && v->tokens[order[i]].score != v->tokens[order[i - 1]].score) r++;
        rank[order[i]] = r;
    }
    free(order);
    return rc;
}

// The symbol that a part of a token is while it is joined: a token, or any single character. False: neither.
static int symbol_of(struct tokenizer *t, const struct vocab *v, const char *text, size_t n, int32_t *id) {
    ucs4_t c;
    *id = vocab_find(v, text, n);
    if (*id >= 0 && joins(&v->tokens[*id])) return ERR_OK;
    *id = -1;
    if ((size_t)u8_mbtouc(&c, (const uint8_t *)text, n) == n) return bpe_char_id(&t->bpe, c, id);
    return ERR_OK;
}

// The ways to cut a token in two are a pair each. ERR_LIMIT at LIMIT_MERGES, ERR_NOMEM.
static int pairs_of(struct tokenizer *t, const struct vocab *v, uint32_t id, struct pairs *pairs) {
    const struct vocab_token *token = &v->tokens[id];
    const uint8_t *p = (const uint8_t *)token->spelling;
    ucs4_t c;
    for (size_t at = (size_t)u8_mbtouc(&c, p, token->len_bytes); at < token->len_bytes;
         at += (size_t)u8_mbtouc(&c, p + at, token->len_bytes - at)) {
        int32_t left, right;
        int rc = symbol_of(t, v, token->spelling, at, &left);
        if (!rc) rc = symbol_of(t, v, token->spelling + at, token->len_bytes - at, &right);
        if (rc) return rc;
        if (left < 0 || right < 0) continue;
        if (pairs->n == LIMIT_MERGES) return ERR_LIMIT;
        if (pairs->n == pairs->cap) {
            size_t cap = pairs->cap ? pairs->cap * 2 : 4096;
            struct pair *list = realloc(pairs->list, cap * sizeof *list);
            if (!list) return ERR_NOMEM;
            pairs->list = list;
            pairs->cap = cap;
        }
        pairs->list[pairs->n++] = (struct pair){left, right, (int32_t)id};
        note_mark(t, token->spelling, at, token->spelling + at, token->len_bytes - at);
    }
    return ERR_OK;
}

// The pairs of all tokens that are made by joining. Of tokens that are spelled alike only the first is.
static int all_pairs(struct tokenizer *t, const struct vocab *v, struct pairs *pairs, const char *what, struct err *e) {
    for (uint32_t id = 0; id < v->n; id++) {
        const struct vocab_token *token = &v->tokens[id];
        if (!joins(token) || token->len_bytes < 2) continue;
        if (u8_mbsnlen((const uint8_t *)token->spelling, token->len_bytes) > CHARS_MAX)
            return err_set(e, ERR_LIMIT, "%s: token %u has more than %d characters", what, id, CHARS_MAX);
        if (vocab_find(v, token->spelling, token->len_bytes) != (int32_t)id) continue;
        int rc = pairs_of(t, v, id, pairs);
        if (rc == ERR_LIMIT)
            return err_set(e, rc, "%s: up to token %u there are more than %d pairs of tokens that join", what, id,
                           LIMIT_MERGES);
        if (rc) return err_set(e, rc, "%s: no memory", what);
    }
    return ERR_OK;
}

int tokenizer_build_scores(struct tokenizer *t, const struct vocab *v, const char *what, struct err *e) {
    struct pairs pairs = {0};
    uint32_t *rank = malloc(v->n * sizeof *rank);
    int rc = rank ? rank_scores(v, rank, what, e) : err_set(e, ERR_NOMEM, "%s: no memory", what);
    if (!rc) rc = tokenizer_build_starts(t, v, e);
    if (!rc) rc = all_pairs(t, v, &pairs, what, e);
    if (!rc && bpe_make_merges(&t->bpe, pairs.n)) rc = err_set(e, ERR_NOMEM, "%s: no memory", what);
    for (size_t i = 0; i < pairs.n && !rc; i++)
        bpe_add_merge(&t->bpe, pairs.list[i].left, pairs.list[i].right, rank[pairs.list[i].id], pairs.list[i].id);
    free(pairs.list);
    free(rank);
    return rc;
}

// ---- the rest ------------------------------------------------------------------------------------------------------

int tokenizer_build_whole(struct tokenizer *t, const struct vocab *v, struct err *e) {
    const uint8_t *const *bytes = t->bytes;
    const uint32_t *len_bytes = t->len_bytes;
    if (!t->decoder.alphabet) { // then pieces are spelled as tokens are, and not as they are decoded
        t->spelling = calloc(v->n, sizeof *t->spelling);
        t->spelling_bytes = calloc(v->n, sizeof *t->spelling_bytes);
        t->spellings = malloc(v->n_bytes + 1);
        if (!t->spelling || !t->spelling_bytes || !t->spellings)
            return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
        uint8_t *at = t->spellings;
        for (uint32_t id = 0; id < v->n; id++) {
            if (v->tokens[id].type == VOCAB_NONE) continue;
            memcpy(at, v->tokens[id].spelling, v->tokens[id].len_bytes);
            t->spelling[id] = at;
            t->spelling_bytes[id] = v->tokens[id].len_bytes;
            at += v->tokens[id].len_bytes;
        }
        bytes = t->spelling;
        len_bytes = t->spelling_bytes;
    }
    if (bpe_init_pieces(&t->bpe, v->n, bytes, len_bytes)) return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
    for (uint32_t id = 0; id < v->n; id++)
        if (joins(&v->tokens[id]) && t->flags[id] & TOKENIZER_SPELLED) bpe_add_piece(&t->bpe, (int32_t)id);
    return ERR_OK;
}

int tokenizer_build_added(struct tokenizer *t, const char *content, size_t len_bytes, const struct added_token *token,
                          enum added_where match, struct err *e) {
    unsigned flags = TOKENIZER_ADDED | (token->special ? TOKENIZER_SPECIAL : 0u);
    struct added *set = match == ADDED_RAW ? &t->added_raw : &t->added_normalized;
    uint32_t id = (uint32_t)token->id;
    ASSERT(id < t->n_vocab, "added token %u", id);
    if (len_bytes > LIMIT_TOKEN_BYTES)
        return err_set(e, ERR_LIMIT, "added_tokens: token %u has more than %d bytes", id, LIMIT_TOKEN_BYTES);
    // Whoever uses the byte-level alphabet writes added tokens without it.
    int rc = t->decoder.alphabet ? keep(t, id, content, len_bytes, flags, "added_tokens", e)
                                 : keep_spelled(t, id, content, len_bytes, flags, "added_tokens", e);
    if (rc) return rc;
    note_length(t, content, len_bytes);
    struct norm_text n = {0};
    if (match == ADDED_NORMALIZED && norm_may_change(&t->norm, (const uint8_t *)content, len_bytes)) {
        rc = norm_run(&t->norm, (const uint8_t *)content, len_bytes, NULL, 0, true, &n, e);
        if (!rc) note_length(t, n.data, n.len_bytes);
        if (!rc && added_add(set, n.data, n.len_bytes, token)) rc = err_set(e, ERR_NOMEM, "no memory for added_tokens");
    } else if (added_add(set, (const uint8_t *)content, len_bytes, token)) {
        rc = err_set(e, ERR_NOMEM, "no memory for added_tokens");
    }
    norm_text_fini(&n);
    return rc;
}

int tokenizer_build_around(struct tokenizer *t, bool behind, int64_t id, const char *what, struct err *e) {
    int32_t *ids = behind ? t->suffix : t->prefix;
    uint32_t *n = behind ? &t->n_suffix : &t->n_prefix;
    if (id < 0 || id >= t->n_vocab || !t->flags[id])
        return err_set(e, ERR_FORMAT, "%s: %lld is no token", what, (long long)id);
    if (*n == TOKENIZER_AROUND_MAX)
        return err_set(e, ERR_LIMIT, "%s: more than %d tokens around a text", what, TOKENIZER_AROUND_MAX);
    ids[(*n)++] = (int32_t)id;
    return ERR_OK;
}
