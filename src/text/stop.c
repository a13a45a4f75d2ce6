#include "text/stop.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

// Knuth-Morris-Pratt for each string at once: reached is the longest beginning of the string that the text so far ends
// with. The held text need not be kept: it is the beginning that reached furthest.
struct pattern {
    char text[LIMIT_STOP_BYTES];
    uint16_t border[LIMIT_STOP_BYTES]; // of text[0 .. i]: longest proper beginning that is an end of it too
    uint16_t len, reached;
};

struct stop {
    uint32_t n;
    int which;
    struct pattern patterns[];
};

static void make_borders(struct pattern *p) {
    uint16_t k = 0;
    for (uint16_t i = 1; i < p->len; i++) {
        while (k > 0 && p->text[i] != p->text[k]) k = p->border[k - 1];
        if (p->text[i] == p->text[k]) k++;
        p->border[i] = k;
    }
}

int stop_new(const char *const *strings, const size_t *len_bytes, uint32_t n, struct stop **s, struct err *e) {
    if (n > LIMIT_STOP_STRINGS) return err_set(e, ERR_USAGE, "stop: %u strings, at most %d", n, LIMIT_STOP_STRINGS);
    for (uint32_t i = 0; i < n; i++) {
        if (len_bytes[i] == 0 || len_bytes[i] > LIMIT_STOP_BYTES)
            return err_set(e, ERR_USAGE, "stop[%u] has %zu bytes, must have 1 to %d", i, len_bytes[i],
                           LIMIT_STOP_BYTES);
        if (u8_check((const uint8_t *)strings[i], len_bytes[i]))
            return err_set(e, ERR_USAGE, "stop[%u] is not UTF-8", i);
    }
    struct stop *made = calloc(1, sizeof *made + n * sizeof made->patterns[0]);
    if (!made) return err_set(e, ERR_NOMEM, "no memory for stop strings");
    made->n = n;
    for (uint32_t i = 0; i < n; i++) {
        struct pattern *p = &made->patterns[i];
        p->len = (uint16_t)len_bytes[i];
        memcpy(p->text, strings[i], len_bytes[i]);
        make_borders(p);
    }
    stop_reset(made);
    *s = made;
    return ERR_OK;
}

void stop_free(struct stop *s) { free(s); }

void stop_reset(struct stop *s) {
    s->which = -1;
    for (uint32_t i = 0; i < s->n; i++) s->patterns[i].reached = 0;
}

static const struct pattern *furthest(const struct stop *s) {
    const struct pattern *best = NULL;
    for (uint32_t i = 0; i < s->n; i++)
        if (!best || s->patterns[i].reached > best->reached) best = &s->patterns[i];
    return best;
}

// Takes one byte; the length of the longest string that is complete with it, or 0.
static size_t advance(struct stop *s, char c) {
    size_t complete = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct pattern *p = &s->patterns[i];
        while (p->reached > 0 && p->text[p->reached] != c) p->reached = p->border[p->reached - 1];
        if (p->text[p->reached] == c) p->reached++;
        if (p->reached == p->len && p->len > complete) {
            complete = p->len;
            s->which = (int)i;
        }
    }
    return complete;
}

// The first n bytes of held text followed by new text.
static int add_first(struct buf *out, const char *held, size_t held_n, const char *text, size_t n) {
    size_t from_held = n < held_n ? n : held_n;
    int rc = buf_reserve(out, n);
    if (!rc && from_held) rc = buf_add(out, held, from_held);
    if (!rc && n > from_held) rc = buf_add(out, text, n - from_held);
    return rc;
}

int stop_feed(struct stop *s, const char *text, size_t len_bytes, struct buf *out, bool *matched) {
    *matched = s->which >= 0;
    if (*matched) return ERR_OK;
    const struct pattern *p = furthest(s);
    char held[LIMIT_STOP_BYTES];
    size_t held_n = p ? p->reached : 0;
    if (held_n) memcpy(held, p->text, held_n);
    for (size_t i = 0; i < len_bytes; i++) {
        size_t complete = advance(s, text[i]);
        if (!complete) continue;
        *matched = true;
        return add_first(out, held, held_n, text, held_n + i + 1 - complete);
    }
    p = furthest(s);
    return add_first(out, held, held_n, text, held_n + len_bytes - (p ? p->reached : 0));
}

int stop_flush(struct stop *s, struct buf *out) {
    const struct pattern *p = furthest(s);
    if (s->which >= 0 || !p || !p->reached) return ERR_OK;
    int rc = buf_add(out, p->text, p->reached);
    for (uint32_t i = 0; i < s->n; i++) s->patterns[i].reached = 0;
    return rc;
}

int stop_which(const struct stop *s) { return s->which; }
