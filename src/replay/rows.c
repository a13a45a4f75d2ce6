#include "replay/rows.h"

#include <stdlib.h>
#include <string.h>

static uint64_t page_bytes(const struct rows *r) {
    return sizeof(struct page) + (r->hidden_bytes ? LIMIT_BLOCK_TOKENS * (1 + (uint64_t)r->hidden_bytes) : 0);
}

static uint8_t *page_hidden(const struct rows *r, struct page *p, uint32_t row) {
    return p->rows + LIMIT_BLOCK_TOKENS + (size_t)row * r->hidden_bytes;
}

void rows_init(struct rows *r, uint32_t hidden_bytes) {
    *r = (struct rows){.hidden_bytes = hidden_bytes};
    list_init(&r->live);
    list_init(&r->released);
    list_init(&r->unused);
}

static void forget(struct rows *r, struct rows_seq *q) {
    if (q->tail) {
        q->tail->next = r->unused_pages;
        r->unused_pages = q->pages;
        r->n_unused_pages += q->n_blocks;
    }
    list_remove(&q->link);
    list_push_front(&r->unused, &q->link);
    r->n_unused++;
}

static void release(struct rows *r, uint32_t slot, uint64_t step) {
    struct rows_seq *q = r->of_slot[slot];
    if (!q) return;
    q->release = step;
    r->of_slot[slot] = NULL;
    r->n_live--;
    list_remove(&q->link);
    list_push_back(&r->released, &q->link);
}

void rows_end_all(struct rows *r) {
    for (uint32_t slot = 0; slot < LIMIT_SEQS; slot++) release(r, slot, 0);
    LIST_EACH(it, &r->released) LIST_ENTRY(it, struct rows_seq, link)->release = 0;
}

void rows_clear(struct rows *r) {
    rows_end_all(r);
    LIST_EACH(it, &r->released) forget(r, LIST_ENTRY(it, struct rows_seq, link));
}

void rows_trim(struct rows *r) {
    for (struct page *p; (p = r->unused_pages);) {
        r->unused_pages = p->next;
        r->held_bytes -= page_bytes(r);
        free(p);
    }
    r->n_unused_pages = 0;
    for (struct list *l; (l = list_pop_front(&r->unused));) {
        free(LIST_ENTRY(l, struct rows_seq, link));
        r->held_bytes -= sizeof(struct rows_seq);
    }
    r->n_unused = 0;
}

void rows_fini(struct rows *r) {
    rows_clear(r);
    rows_trim(r);
}

bool rows_reserve(struct rows *r, const struct step *s, uint64_t max_bytes) {
    for (; r->n_unused_pages < s->n_blocks; r->n_unused_pages++) {
        struct page *p = r->held_bytes + page_bytes(r) > max_bytes ? NULL : malloc(page_bytes(r));
        if (!p) return false;
        r->held_bytes += page_bytes(r);
        p->next = r->unused_pages;
        r->unused_pages = p;
    }
    for (; r->n_unused < s->n_seqs; r->n_unused++) {
        bool fits = r->held_bytes + sizeof(struct rows_seq) <= max_bytes;
        struct rows_seq *q = fits ? malloc(sizeof *q) : NULL;
        if (!q) return false;
        r->held_bytes += sizeof *q;
        list_push_front(&r->unused, &q->link);
    }
    return true;
}

static struct rows_seq *birth(struct rows *r, uint32_t slot, uint64_t step) {
    struct rows_seq *q = LIST_ENTRY(list_pop_front(&r->unused), struct rows_seq, link);
    r->n_unused--;
    *q = (struct rows_seq){.slot = slot, .first = step, .release = UINT64_MAX};
    list_push_back(&r->live, &q->link);
    r->of_slot[slot] = q;
    r->n_live++;
    return q;
}

static void add_block(struct rows *r, struct rows_seq *q, uint32_t id) {
    struct page *p = r->unused_pages;
    r->unused_pages = p->next;
    r->n_unused_pages--;
    p->next = NULL;
    p->block = id;
    if (q->tail)
        q->tail->next = p;
    else
        q->pages = p;
    q->tail = p;
    if (!q->at) q->at = p;
    q->n_blocks++;
}

static void add_rows(struct rows *r, struct rows_seq *q, const struct step *s, const struct step_seq *from,
                     const uint8_t *hidden, const uint8_t *fault) {
    size_t width = r->hidden_bytes;
    for (uint32_t i = 0, n; i < from->n_rows; i += n, q->n_rows += n) {
        uint32_t at = q->n_rows % LIMIT_BLOCK_TOKENS, left = LIMIT_BLOCK_TOKENS - at, row = from->row + i;
        n = from->n_rows - i < left ? from->n_rows - i : left;
        ASSERT(q->at, "a page for each block");
        memcpy(q->at->tokens + at, s->tokens + row, n * sizeof *s->tokens);
        if (width) memcpy(q->at->rows + at, fault + row, n);
        if (width) memcpy(page_hidden(r, q->at, at), hidden + row * width, n * width);
        if (n == left) q->at = q->at->next;
    }
}

bool rows_take(struct rows *r, const struct step *s, const void *hidden, const uint8_t *fault, bool stable) {
    for (uint32_t i = 0; i < s->n_releases; i++) release(r, s->releases[i], s->id);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *from = &s->seqs[i];
        struct rows_seq *q = r->of_slot[from->slot];
        if (!q) q = birth(r, from->slot, s->id);
        if (from->pos != q->n_rows || (from->n_blocks && from->first_block != q->n_blocks)) return false;
        for (uint32_t j = 0; j < from->n_blocks; j++) add_block(r, q, s->blocks[from->block + j]);
        if (q->n_rows + from->n_rows > q->n_blocks * LIMIT_BLOCK_TOKENS) return false;
        add_rows(r, q, s, from, hidden, fault);
        if (stable) q->stable_rows = q->n_rows;
        if (stable) q->stable_blocks = q->n_blocks;
    }
    return true;
}

// The sequence that had the slot in that step.
static struct rows_seq *owner(struct rows *r, uint32_t slot, uint64_t step) {
    struct rows_seq *q = r->of_slot[slot];
    if (q && q->first <= step) return q;
    LIST_EACH(it, &r->released) {
        q = LIST_ENTRY(it, struct rows_seq, link);
        if (q->slot == slot && q->first <= step && step < q->release) return q;
    }
    return NULL;
}

void rows_stable(struct rows *r, const struct step *s) {
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *from = &s->seqs[i];
        struct rows_seq *q = owner(r, from->slot, s->id);
        if (!q) continue;
        q->stable_rows = from->pos + from->n_rows;
        if (from->n_blocks) q->stable_blocks = from->first_block + from->n_blocks;
    }
}

void rows_retire(struct rows *r, uint64_t stable) {
    LIST_EACH(it, &r->released) {
        struct rows_seq *q = LIST_ENTRY(it, struct rows_seq, link);
        if (q->release <= stable && q->n_readers == 0) forget(r, q);
    }
}

void rows_read(struct rows_reader *d, struct rows_seq *q) {
    *d = (struct rows_reader){.seq = q, .n_rows = q->stable_rows, .n_blocks = q->stable_blocks};
    d->page = d->block_page = q->pages;
    q->n_readers++;
}

void rows_unread(struct rows_reader *d) { d->seq->n_readers--; }

bool rows_next(struct rows *r, struct rows_reader *d, struct step *to, uint8_t *hidden, uint8_t *fault,
               uint32_t max_rows) {
    uint32_t n = d->n_rows - d->at_row, room = max_rows - to->n_rows;
    if (n > room) n = room;
    uint32_t need = (d->at_row + n + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    if (n == d->n_rows - d->at_row) need = d->n_blocks;
    if (n == 0 || to->n_blocks + need - d->at_block > STEP_BLOCKS_MAX) return false;
    struct step_seq *q = &to->seqs[to->n_seqs++];
    *q = (struct step_seq){.slot = d->seq->slot, .pos = d->at_row, .row = to->n_rows, .n_rows = n};
    q->first_block = d->at_block;
    q->block = to->n_blocks;
    q->n_blocks = need - d->at_block;
    q->sampling.top_p = 1;
    for (; d->at_block < need; d->at_block++, d->block_page = d->block_page->next)
        to->blocks[to->n_blocks++] = d->block_page->block;
    size_t width = r->hidden_bytes;
    for (uint32_t left = n, m; left; left -= m) {
        uint32_t at = d->at_row % LIMIT_BLOCK_TOKENS;
        m = LIMIT_BLOCK_TOKENS - at < left ? LIMIT_BLOCK_TOKENS - at : left;
        memcpy(to->tokens + to->n_rows, d->page->tokens + at, m * sizeof *to->tokens);
        if (width) memcpy(fault + to->n_rows, d->page->rows + at, m);
        if (width) memcpy(hidden + to->n_rows * width, page_hidden(r, d->page, at), m * width);
        to->n_rows += m;
        d->at_row += m;
        if (at + m == LIMIT_BLOCK_TOKENS) d->page = d->page->next;
    }
    return true;
}
