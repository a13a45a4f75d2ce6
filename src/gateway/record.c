#include "gateway/record.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 };

static int put(struct buf *out, uint64_t v, uint32_t n_bytes) {
    uint8_t bytes[8];
    for (uint32_t i = 0; i < n_bytes; i++) bytes[i] = (uint8_t)(v >> 8 * i);
    return buf_add(out, bytes, n_bytes);
}

static int put_string(struct buf *out, const char *s, size_t n) {
    int rc = put(out, n, 2);
    return rc ? rc : buf_add(out, s, n);
}

int record_put(const struct answer_ask *k, uint32_t choice, struct buf *out) {
    const struct respond_head *h = &k->head;
    const uint64_t words[] = {h->created_s, h->seed, k->prompt_tokens};
    const uint32_t halves[] = {choice, k->n_choices, k->max_tokens, k->reason.newlines_left};
    const uint8_t bytes[] = {VERSION, h->chat, h->with_usage, (uint8_t)k->reason.state, (uint8_t)k->n_stops};
    int rc = buf_add(out, bytes, sizeof bytes);
    for (int i = 0; i < 4 && !rc; i++) rc = put(out, halves[i], 4);
    for (int i = 0; i < 3 && !rc; i++) rc = put(out, words[i], 8);
    if (!rc) rc = put_string(out, h->id, strlen(h->id));
    if (!rc) rc = put_string(out, k->reason.held, k->reason.held_n);
    const char *at = k->stops;
    for (uint32_t i = 0; i < k->n_stops && !rc; i++) {
        rc = put_string(out, at, k->stop_bytes[i]);
        at += k->stop_bytes[i];
    }
    return rc;
}

struct source {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static uint64_t get(struct source *s, size_t n_bytes) {
    uint64_t v = 0;
    if (s->left < n_bytes) {
        s->bad = true;
        return 0;
    }
    for (size_t i = 0; i < n_bytes; i++) v |= (uint64_t)s->at[i] << 8 * i;
    s->at += n_bytes;
    s->left -= n_bytes;
    return v;
}

// A string of at most max bytes; returns its length.
static size_t get_string(struct source *s, char *to, size_t max) {
    size_t n = get(s, 2);
    if (s->bad || n > max || n > s->left) {
        s->bad = true;
        return 0;
    }
    memcpy(to, s->at, n);
    s->at += n;
    s->left -= n;
    return n;
}

static int get_stops(struct source *s, struct answer_ask *k) {
    k->stops = malloc(LIMIT_STOP_STRINGS * LIMIT_STOP_BYTES);
    if (!k->stops) return ERR_NOMEM;
    size_t at = 0;
    for (uint32_t i = 0; i < k->n_stops && !s->bad; i++) {
        k->stop_bytes[i] = (uint16_t)get_string(s, k->stops + at, LIMIT_STOP_BYTES);
        at += k->stop_bytes[i];
    }
    return ERR_OK;
}

static bool holds(const struct answer_ask *k, uint32_t choice) {
    return k->n_choices >= 1 && k->n_choices <= LIMIT_ANSWER_CHOICES && choice < k->n_choices && k->max_tokens >= 1 &&
           k->max_tokens <= LIMIT_CONTEXT && k->reason.state <= REASON_CONTENT && k->reason.newlines_left <= 2 &&
           k->n_stops <= LIMIT_STOP_STRINGS;
}

int record_get(const uint8_t *data, size_t len_bytes, struct answer_ask *k, uint32_t *choice) {
    struct source s = {data, len_bytes, false};
    *k = (struct answer_ask){0};
    uint32_t version = (uint32_t)get(&s, 1);
    k->head.chat = get(&s, 1) != 0;
    k->head.with_usage = get(&s, 1) != 0;
    k->head.with_ids = true;
    k->reason.state = (enum reason_state)get(&s, 1);
    k->n_stops = (uint32_t)get(&s, 1);
    *choice = (uint32_t)get(&s, 4);
    k->n_choices = (uint32_t)get(&s, 4);
    k->max_tokens = (uint32_t)get(&s, 4);
    k->reason.newlines_left = (uint32_t)get(&s, 4);
    k->head.created_s = get(&s, 8);
    k->head.seed = get(&s, 8);
    k->prompt_tokens = get(&s, 8);
    get_string(&s, k->head.id, sizeof k->head.id - 1);
    k->reason.held_n = (uint32_t)get_string(&s, k->reason.held, REASON_HELD_MAX);
    int rc = s.bad || version != VERSION || !holds(k, *choice) ? ERR_FORMAT : get_stops(&s, k);
    if (!rc && (s.bad || s.left)) rc = ERR_FORMAT;
    if (!rc) return ERR_OK;
    free(k->stops);
    *k = (struct answer_ask){0};
    return rc;
}
