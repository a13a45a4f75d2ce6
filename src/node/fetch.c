#include "node/fetch.h"

#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = LIMIT_BULK_ASKS / 2, QUEUE_CAP = 4 * LIMIT_BULK_ASKS, WAIT_MS = 100 };

int fetch_init(struct fetch *f, struct err *e) {
    *f = (struct fetch){.next_ask = 1};
    f->asks.fd = f->answers.fd = -1;
    f->control = control_new();
    int rc = f->control ? queue_init(&f->asks, QUEUE_CAP, true, e) : err_set(e, ERR_NOMEM, "fetch: no memory");
    if (!rc) rc = queue_init(&f->answers, QUEUE_CAP, false, e);
    return rc;
}

static void drain(struct queue *q) {
    if (!q->items) return;
    for (void *m = queue_pop(q, 0); m; m = queue_pop(q, 0)) free(m);
    queue_fini(q);
}

void fetch_fini(struct fetch *f) {
    drain(&f->asks);
    drain(&f->answers);
    control_free(f->control);
    f->control = NULL;
}

static struct fetch_message *message(const struct frame_header *h, const void *data, uint32_t bytes) {
    struct fetch_message *m = malloc(sizeof *m + bytes);
    if (!m) return NULL;
    m->h = *h;
    m->bytes = bytes;
    if (bytes) memcpy(m->data, data, bytes);
    return m;
}

void fetch_wake(struct fetch *f) {
    // An answer to question 0, which was never put, wakes the one who waits and is dropped there. With one there
    // already nobody sleeps.
    if (queue_count(&f->answers)) return;
    struct frame_header h = {.type = FRAME_CHUNK};
    if (fetch_answer(f, &h, NULL, 0)) return; // full or no memory: then it wakes by itself, soon
}

int fetch_answer(struct fetch *f, const struct frame_header *h, const void *data, uint32_t bytes) {
    struct fetch_message *m = message(h, data, bytes);
    if (!m) return ERR_NOMEM;
    int rc = queue_push(&f->answers, m);
    if (rc) free(m);
    return rc;
}

static int put(struct fetch *f, enum frame_type type, struct control_bytes c, struct err *e) {
    struct frame_header h = {.type = type, .step = f->next_ask};
    struct fetch_message *m = message(&h, c.data, c.len);
    if (!m) return err_set(e, ERR_NOMEM, "fetch: no memory");
    int rc = queue_push(&f->asks, m);
    if (rc) {
        free(m);
        return err_set(e, rc, "fetch: the queue of questions is full");
    }
    f->next_ask++;
    return ERR_OK;
}

// The answer to question `ask`. Older ones, of a load that was given up, are dropped.
static int await(struct fetch *f, const atomic_bool *given_up, uint64_t ask, enum frame_type type,
                 struct fetch_message **out, struct err *e) {
    while (!atomic_load(given_up)) {
        struct fetch_message *m = queue_pop(&f->answers, WAIT_MS);
        if (!m) continue;
        if (m->h.step == ask && m->h.type == type) {
            *out = m;
            return ERR_OK;
        }
        uint64_t got = m->h.step;
        free(m);
        if (got >= ask) return err_set(e, ERR_FORMAT, "the head answered question %lu instead of %lu", got, ask);
    }
    return err_set(e, ERR_CANCELLED, "the load was given up");
}

int fetch_manifest(struct fetch *f, const atomic_bool *given_up, const struct control_ask *ask,
                   struct control_manifest *m, struct err *e) {
    uint64_t id = f->next_ask;
    struct fetch_message *answer;
    int rc = put(f, FRAME_ASK, control_put_ask(f->control, ask), e);
    if (!rc) rc = await(f, given_up, id, FRAME_MANIFEST, &answer, e);
    if (rc) return rc;
    rc = control_get_manifest(f->control, answer->data, answer->bytes, m, e);
    free(answer);
    if (!rc && m->n != ask->n) rc = err_set(e, ERR_FORMAT, "the head described %u tensors instead of %u", m->n, ask->n);
    return rc;
}

static uint32_t piece(uint64_t bytes, uint64_t offset) {
    return bytes - offset < LIMIT_CHUNK_BYTES ? (uint32_t)(bytes - offset) : LIMIT_CHUNK_BYTES;
}

int fetch_tensor(struct fetch *f, const atomic_bool *given_up, const char *name, uint64_t bytes,
                 int (*sink)(void *arg, const void *data, size_t len, struct err *e), void *arg, struct err *e) {
    struct control_fetch q = {0};
    memcpy(q.name, name, strnlen(name, sizeof q.name - 1));
    uint64_t asked = 0, got = 0, id = f->next_ask;
    int rc = ERR_OK;
    while (got < bytes && !rc) {
        while (!rc && asked < bytes && f->next_ask - id < IN_FLIGHT) {
            q.offset = asked;
            q.bytes = piece(bytes, asked);
            asked += q.bytes;
            rc = put(f, FRAME_FETCH, control_put_fetch(f->control, &q), e);
        }
        struct fetch_message *answer;
        if (!rc) rc = await(f, given_up, id, FRAME_CHUNK, &answer, e);
        if (rc) return rc;
        id++;
        rc = answer->bytes == piece(bytes, got)
                 ? sink(arg, answer->data, answer->bytes, e)
                 : err_set(e, ERR_FORMAT, "%s: the head sent %u bytes at offset %lu", name, answer->bytes, got);
        got += answer->bytes;
        free(answer);
    }
    return rc;
}
