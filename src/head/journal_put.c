#include "base/crc32c.h"
#include "head/journal_int.h"

#include <string.h>

enum { REQUEST_FIXED_BYTES = 8 + 1 + 1 + 5 * 4 + 3 * 4 + 4 + 8 + 4 };

static void write32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

// Room is reserved by open_record: adding cannot fail behind it.
static void add(struct buf *out, uint64_t v, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) out->data[out->len_bytes++] = (uint8_t)(v >> 8 * i);
}

static void add_float(struct buf *out, float f) {
    uint32_t v;
    memcpy(&v, &f, sizeof v);
    add(out, v, 4);
}

static void add_ids(struct buf *out, const int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) add(out, (uint32_t)ids[i], 4);
}

static int open_record(struct buf *out, uint8_t type, size_t body_bytes, size_t *at) {
    int rc = buf_reserve(out, JOURNAL_HEAD_BYTES + body_bytes);
    if (rc) return rc;
    *at = out->len_bytes;
    add(out, 0, 8);
    add(out, type, 1);
    return ERR_OK;
}

static void close_record(struct buf *out, size_t at) {
    uint8_t *p = out->data + at;
    size_t body = out->len_bytes - at - JOURNAL_HEAD_BYTES;
    write32(p, (uint32_t)body);
    write32(p + 4, crc32c(0, p + 8, 1 + body));
}

int journal_put_start(const struct journal_state *s, struct buf *out) {
    size_t at;
    int rc = open_record(out, JOURNAL_START, 44, &at);
    if (rc) return rc;
    add(out, JOURNAL_MAGIC, 4);
    add(out, JOURNAL_VERSION, 4);
    add(out, s->boot, 8);
    add(out, s->model[0], 8);
    add(out, s->model[1], 8);
    add(out, s->epoch, 4);
    add(out, s->next_id, 8);
    close_record(out, at);
    return ERR_OK;
}

static uint64_t body_bytes(const struct journal_entry *q) {
    const struct gen_request *r = &q->request;
    return REQUEST_FIXED_BYTES + 4ull * (r->n_stop_ids + r->n_prompt + r->n_known) + r->keep_bytes;
}

uint64_t journal_put_request_bytes(const struct journal_entry *q) { return JOURNAL_HEAD_BYTES + body_bytes(q); }

int journal_put_request(const struct journal_entry *q, struct buf *out) {
    const struct gen_request *r = &q->request;
    size_t at;
    int rc = open_record(out, JOURNAL_REQUEST, body_bytes(q), &at);
    if (rc) return rc;
    add(out, q->id, 8);
    add(out, q->n_idle_boots, 1);
    add(out, q->finish, 1);
    add(out, r->n_prompt, 4);
    add(out, r->max_tokens, 4);
    add(out, r->n_known, 4);
    add(out, r->n_stop_ids, 4);
    add(out, r->keep_bytes, 4);
    add_float(out, r->sampling.temperature);
    add_float(out, r->sampling.top_p);
    add_float(out, r->sampling.min_p);
    add(out, (uint32_t)r->sampling.top_k, 4);
    add(out, r->sampling.seed, 8);
    add(out, r->sampling.choice, 4);
    add_ids(out, r->stop_ids, r->n_stop_ids);
    add_ids(out, r->prompt, r->n_prompt);
    add_ids(out, r->known, r->n_known);
    memcpy(out->data + out->len_bytes, r->keep, r->keep_bytes);
    out->len_bytes += r->keep_bytes;
    close_record(out, at);
    return ERR_OK;
}

int journal_put_listed(struct buf *out) {
    size_t at;
    int rc = open_record(out, JOURNAL_LISTED, 0, &at);
    if (!rc) close_record(out, at);
    return rc;
}

int journal_put_epoch(uint32_t epoch, struct buf *out) {
    size_t at;
    int rc = open_record(out, JOURNAL_EPOCH, 4, &at);
    if (rc) return rc;
    add(out, epoch, 4);
    close_record(out, at);
    return ERR_OK;
}

static int put_id(struct buf *out, uint8_t type, uint64_t id) {
    size_t at;
    int rc = open_record(out, type, 8, &at);
    if (rc) return rc;
    add(out, id, 8);
    close_record(out, at);
    return ERR_OK;
}

int journal_put_tried(uint64_t id, struct buf *out) { return put_id(out, JOURNAL_TRIED, id); }

int journal_put_drop(uint64_t id, struct buf *out) { return put_id(out, JOURNAL_DROP, id); }

int journal_put_tokens_begin(struct buf *out, size_t *at) { return open_record(out, JOURNAL_TOKENS, 0, at); }

int journal_put_token(const struct gen_event *ev, struct buf *out) {
    int rc = buf_reserve(out, JOURNAL_TOKEN_BYTES);
    if (rc) return rc;
    add(out, ev->id, 8);
    add(out, ev->index, 4);
    add(out, (uint32_t)ev->token, 4);
    add(out, ev->finish, 1);
    return ERR_OK;
}

void journal_put_tokens_end(struct buf *out, size_t at) { close_record(out, at); }
