#include "text/detok.h"
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 3, REPLACEMENT_BYTES = 3, OUT_MAX = (LIMIT_TOKEN_BYTES + HELD_MAX) * REPLACEMENT_BYTES };

struct detok {
    const struct tokenizer *t;
    uint8_t in[HELD_MAX + LIMIT_TOKEN_BYTES]; // [0, held): the beginning of a character
    size_t held;
    struct tokenizer_decoding decoding;
    uint8_t spaces_left;   // that are dropped if they come next
    bool first_token_left; // the next one loses its spaces
    char out[OUT_MAX];
};

struct detok *detok_new(const struct tokenizer *t) {
    struct detok *d = malloc(sizeof *d);
    if (!d) return NULL;
    d->t = t;
    d->decoding = tokenizer_decoding(t);
    detok_reset(d);
    return d;
}

void detok_free(struct detok *d) { free(d); }

void detok_reset(struct detok *d) {
    d->held = 0;
    d->spaces_left = d->decoding.strip_spaces;
    d->first_token_left = d->decoding.strip_first_token;
}

void detok_continue(struct detok *d) {
    d->spaces_left = 0;
    d->first_token_left = false;
}

// How many of n bytes at p make one character, or the longest beginning of one: *whole tells which. 0: p[0] begins
// none.
static size_t char_at(const uint8_t *p, size_t n, bool *whole) {
    uint8_t lead = p[0], low = 0x80, high = 0xbf; // range of the second byte
    size_t need = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
    size_t have = need ? 1 : 0;
    while (have < need && have < n && p[have] >= low && p[have] <= high) {
        have++;
        low = 0x80;
        high = 0xbf;
    }
    *whole = need > 0 && have == need;
    return have;
}

// Turns in[0, n) into text; what may be the beginning of a character stays held, unless this is the end.
static const char *decode(struct detok *d, size_t n, bool end, size_t *len_bytes) {
    size_t at = 0, out = 0;
    d->held = 0;
    while (at < n) {
        bool whole;
        size_t have = char_at(d->in + at, n - at, &whole);
        if (whole) {
            memcpy(d->out + out, d->in + at, have);
            out += have;
        } else if (have > 0 && at + have == n && !end) {
            memmove(d->in, d->in + at, have);
            d->held = have;
        } else {
            if (have == 0 || d->decoding.byte_by_byte) have = 1;
            memcpy(d->out + out, "\xef\xbf\xbd", REPLACEMENT_BYTES);
            out += REPLACEMENT_BYTES;
        }
        at += have;
    }
    *len_bytes = out;
    return d->out;
}

// Adds a token's bytes, less the spaces that a decoder drops where a text begins; returns how many bytes are there
// then.
static size_t take(struct detok *d, const uint8_t *bytes, size_t n) {
    size_t at = d->held;
    bool no_spaces = d->first_token_left;
    d->first_token_left = false;
    for (size_t i = 0; i < n; i++) {
        bool drop = bytes[i] == ' ' && (no_spaces || d->spaces_left > 0);
        if (d->spaces_left > 0) d->spaces_left = bytes[i] == ' ' ? (uint8_t)(d->spaces_left - 1) : 0;
        if (!drop) d->in[at++] = bytes[i];
    }
    return at;
}

const char *detok_feed(struct detok *d, int32_t id, size_t *len_bytes) {
    size_t n = 0;
    const uint8_t *bytes = tokenizer_token_bytes(d->t, id, &n);
    bool tag = (n == 7 && memcmp(bytes, "<think>", 7) == 0) || (n == 8 && memcmp(bytes, "</think>", 8) == 0);
    if (n == 0 || (tokenizer_is_special(d->t, id) && !tag)) {
        *len_bytes = 0;
        return d->out;
    }
    return decode(d, take(d, bytes, n), false, len_bytes);
}

const char *detok_flush(struct detok *d, size_t *len_bytes) { return decode(d, d->held, true, len_bytes); }
