#include "replay/keep.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, SEGMENT_MIN = 4 << 10, SEGMENT_MAX = 1 << 20, SEGMENTS = 64 };

struct segment {
    struct list link;
    uint64_t size_bytes, at_bytes; // of the room behind this struct
    uint32_t n;                    // steps in it
    _Alignas(ALIGN) uint8_t room[];
};

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

void keep_init(struct keep *k, uint32_t hidden_bytes, bool faults, uint64_t max_bytes) {
    *k = (struct keep){.hidden_bytes = hidden_bytes, .faults = faults};
    k->segment_bytes = max_bytes / SEGMENTS < SEGMENT_MIN ? SEGMENT_MIN : aligned(max_bytes / SEGMENTS);
    if (k->segment_bytes > SEGMENT_MAX) k->segment_bytes = SEGMENT_MAX;
    list_init(&k->steps);
    list_init(&k->used);
    list_init(&k->unused);
}

static void segment_drop(struct keep *k, struct segment *s) {
    list_remove(&s->link);
    k->held_bytes -= sizeof *s + s->size_bytes;
    free(s);
}

void keep_trim(struct keep *k) {
    LIST_EACH(it, &k->unused) segment_drop(k, LIST_ENTRY(it, struct segment, link));
    k->unused_bytes = 0;
}

static void put_aside(struct keep *k, struct segment *s) {
    list_remove(&s->link);
    list_push_front(&k->unused, &s->link);
    k->unused_bytes += sizeof *s + s->size_bytes;
}

uint64_t keep_used_bytes(const struct keep *k) {
    return list_is_empty(&k->steps) ? 0 : k->held_bytes - k->unused_bytes;
}

void keep_fini(struct keep *k) {
    LIST_EACH(it, &k->used) segment_drop(k, LIST_ENTRY(it, struct segment, link));
    keep_trim(k);
    list_init(&k->steps);
}

static struct segment *segment_new(struct keep *k, uint64_t bytes, uint64_t max_bytes) {
    uint64_t size = bytes > k->segment_bytes ? bytes : k->segment_bytes, whole = sizeof(struct segment) + size;
    if (k->held_bytes + whole > max_bytes) keep_trim(k);
    if (k->held_bytes + whole > max_bytes) return NULL;
    struct segment *s = aligned_alloc(ALIGN, aligned(whole));
    if (!s) return NULL;
    list_init(&s->link);
    s->size_bytes = size;
    k->held_bytes += whole;
    return s;
}

// Memory behind the newest step, or at the start of a further segment.
static void *take(struct keep *k, uint64_t bytes, uint64_t max_bytes) {
    struct segment *s = list_is_empty(&k->used) ? NULL : LIST_ENTRY(k->used.prev, struct segment, link);
    if (s && s->n == 0 && s->size_bytes < bytes) {
        put_aside(k, s);
        s = NULL;
    }
    if (!s || s->size_bytes - s->at_bytes < bytes) {
        s = NULL;
        LIST_EACH(it, &k->unused) {
            struct segment *u = LIST_ENTRY(it, struct segment, link);
            if (!s && u->size_bytes >= bytes) s = u;
        }
        if (s) k->unused_bytes -= sizeof *s + s->size_bytes;
        if (!s) s = segment_new(k, bytes, max_bytes);
        if (!s) return NULL;
        list_remove(&s->link);
        list_push_back(&k->used, &s->link);
        s->at_bytes = s->n = 0;
    }
    void *p = s->room + s->at_bytes;
    s->at_bytes += bytes;
    s->n++;
    return p;
}

struct kept *keep_push(struct keep *k, const struct step *step, const void *hidden, const uint8_t *fault,
                       uint64_t max_bytes) {
    uint64_t seqs = step->n_seqs * sizeof *step->seqs, tokens = step->n_rows * sizeof *step->tokens;
    uint64_t blocks = step->n_blocks * sizeof *step->blocks, releases = step->n_releases * sizeof *step->releases;
    uint64_t faults = k->faults ? step->n_rows : 0, rows = (uint64_t)step->n_rows * k->hidden_bytes;
    uint64_t head = aligned(sizeof(struct kept) + seqs + tokens + blocks + releases + faults);
    struct kept *r = take(k, head + aligned(rows), max_bytes);
    if (!r) return NULL;
    uint8_t *p = (uint8_t *)(r + 1);
    *r = (struct kept){.bytes = head + aligned(rows)};
    r->step.seqs = (struct step_seq *)(void *)p;
    r->step.tokens = (int32_t *)(void *)(p + seqs);
    r->step.blocks = (uint32_t *)(void *)(p + seqs + tokens);
    r->step.releases = (uint32_t *)(void *)(p + seqs + tokens + blocks);
    step_copy(&r->step, step);
    if (k->faults) r->fault = p + seqs + tokens + blocks + releases;
    if (k->faults && fault)
        memcpy(r->fault, fault, faults);
    else if (k->faults)
        memset(r->fault, 0, faults);
    if (k->hidden_bytes) r->hidden = (uint8_t *)r + head;
    if (rows) memcpy(r->hidden, hidden, rows);
    list_push_back(&k->steps, &r->link);
    return r;
}

void keep_pop(struct keep *k) {
    struct list *front = list_pop_front(&k->steps);
    ASSERT(front, "nothing is kept");
    struct segment *s = LIST_ENTRY(list_front(&k->used), struct segment, link);
    if (--s->n > 0) return;
    s->at_bytes = 0;
    if (s->link.next == &k->used) return; // the only one: it is filled again from its start
    put_aside(k, s);
}

struct kept *keep_next(const struct keep *k, const struct kept *r) {
    const struct list *l = r ? r->link.next : k->steps.next;
    return l == &k->steps ? NULL : LIST_ENTRY(l, struct kept, link);
}
