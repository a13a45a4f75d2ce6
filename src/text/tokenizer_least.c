// How many tokens a text has at least, without making them.
#include "text/tokenizer_impl.h"

// What the normaliser does to a text.
enum change {
    CHANGE_NONE,
    CHANGE_COMPOSES, // ASCII before ASCII stays as it is; other characters may become one
    CHANGE_GROWS,    // other bytes, but not fewer
    CHANGE_ANY       // whatever it likes
};

static enum change change_of(const struct norm *n, const uint8_t *text, size_t len_bytes) {
    enum change change = CHANGE_NONE;
    if (!norm_may_change(n, text, len_bytes)) return CHANGE_NONE;
    for (uint32_t i = 0; i < n->n_steps; i++) {
        const struct norm_step *s = &n->steps[i];
        bool grows =
            s->kind == NORM_PREPEND || (s->kind == NORM_REPLACE && !s->pattern && s->to_bytes >= s->from_bytes);
        enum change one = s->kind == NORM_NFC ? CHANGE_COMPOSES : grows ? CHANGE_GROWS : CHANGE_ANY;
        change = change == CHANGE_NONE || change == one ? one : CHANGE_ANY;
    }
    return change;
}

static bool swallows(const struct added *a) {
    for (size_t i = 0; i < a->n_tokens; i++)
        if (a->tokens[i].lstrip || a->tokens[i].rstrip) return true;
    return false;
}

// Whether some text becomes no token, or any length of it one.
static bool drops(const struct tokenizer *t) {
    for (uint32_t i = 0; i < t->pretok.n_steps; i++)
        if (t->pretok.steps[i].kind == PRETOK_SPLIT && t->pretok.steps[i].behavior == PRETOK_REMOVED) return true;
    for (int b = 0; b < 0xf5; b++) // 0xc0, 0xc1 and those from 0xf5 on are in no UTF-8
        if (t->bpe.byte_id[b] < 0 && b != 0xc0 && b != 0xc1) return true;
    return swallows(&t->added_raw) || swallows(&t->added_normalized);
}

static bool has_marks(const struct pretok *p) {
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind == PRETOK_METASPACE) return true;
    return false;
}

// A byte is in a token of at most so many bytes: it makes up that part of a token.
size_t tokenizer_least_tokens(const struct tokenizer *t, const char *text, size_t len_bytes) {
    const uint8_t *p = (const uint8_t *)text;
    enum change change = change_of(&t->norm, p, len_bytes);
    size_t count[256] = {0}, least = 0;
    if (change == CHANGE_ANY || drops(t)) return 0;
    for (size_t i = 0; i < len_bytes; i++) {
        bool stays = p[i] < 0x80 && (i + 1 == len_bytes || p[i + 1] < 0x80);
        if (stays || change != CHANGE_COMPOSES) count[p[i]]++;
    }
    bool same_bytes = t->decoder.alphabet && change != CHANGE_GROWS && !has_marks(&t->pretok);
    for (int b = 0; b < 256; b++) {
        uint32_t longest = same_bytes ? t->longest_with[b] : t->longest_bytes;
        if (longest) least += count[b] / longest;
    }
    return least;
}
