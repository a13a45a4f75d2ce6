#include "text/bpe.h"
#include <stdlib.h>
#include <string.h>

enum { BPE_CACHE_SLOTS = 4096, BPE_CACHE_KEY = 22, BPE_CACHE_IDS = 10, BPE_NONE = -1 };

struct bpe_symbol {
    int32_t id; // BPE_NONE: joined into its left neighbour
    int32_t prev, next;
};

struct bpe_candidate {
    uint64_t key; // rank << 32 | position: the smallest is the next join
    int32_t id;
};

struct bpe_cached {
    uint8_t len_bytes, n_ids; // len_bytes 0: free
    uint8_t key[BPE_CACHE_KEY];
    int32_t ids[BPE_CACHE_IDS];
};

static uint32_t slots_for(size_t n) {
    uint32_t slots = 16;
    while (slots < n * 2) slots *= 2;
    return slots;
}

static uint32_t pair_hash(int32_t left, int32_t right) {
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 17);
}

static uint32_t bytes_hash(const uint8_t *p, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

int bpe_init(struct bpe *b, size_t n_merges) {
    *b = (struct bpe){0};
    for (int i = 0; i < 256; i++) b->byte_id[i] = BPE_NONE;
    uint32_t slots = slots_for(n_merges);
    b->merges = malloc(slots * sizeof *b->merges);
    if (!b->merges) return ERR_NOMEM;
    for (uint32_t i = 0; i < slots; i++) b->merges[i].left = BPE_NONE;
    b->merge_mask = slots - 1;
    return ERR_OK;
}

void bpe_fini(struct bpe *b) {
    free(b->merges);
    free(b->piece_slots);
    *b = (struct bpe){0};
}

static struct bpe_merge *merge_slot(const struct bpe *b, int32_t left, int32_t right) {
    uint32_t i = pair_hash(left, right) & b->merge_mask;
    while (b->merges[i].left != BPE_NONE && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & b->merge_mask;
    return &b->merges[i];
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    struct bpe_merge *m = merge_slot(b, left, right);
    if (m->left == BPE_NONE) *m = (struct bpe_merge){left, right, rank, id};
}

int bpe_init_pieces(struct bpe *b, size_t n_tokens, const uint8_t *const *bytes, const uint32_t *len_bytes) {
    uint32_t slots = slots_for(n_tokens);
    b->piece_slots = calloc(slots, sizeof *b->piece_slots);
    if (!b->piece_slots) return ERR_NOMEM;
    b->piece_mask = slots - 1;
    b->piece_bytes = bytes;
    b->piece_len_bytes = len_bytes;
    b->ignore_merges = true;
    return ERR_OK;
}

static uint32_t *piece_slot(const struct bpe *b, const uint8_t *p, size_t n) {
    uint32_t i = bytes_hash(p, n) & b->piece_mask;
    while (b->piece_slots[i]) {
        uint32_t id = b->piece_slots[i] - 1;
        if (b->piece_len_bytes[id] == n && memcmp(b->piece_bytes[id], p, n) == 0) break;
        i = (i + 1) & b->piece_mask;
    }
    return &b->piece_slots[i];
}

void bpe_add_piece(struct bpe *b, int32_t id) {
    uint32_t *slot = piece_slot(b, b->piece_bytes[id], b->piece_len_bytes[id]);
    if (!*slot) *slot = (uint32_t)id + 1;
}

int bpe_scratch_init(struct bpe_scratch *s, bool with_cache) {
    *s = (struct bpe_scratch){0};
    if (with_cache) s->cache = calloc(BPE_CACHE_SLOTS, sizeof *s->cache);
    return with_cache && !s->cache ? ERR_NOMEM : ERR_OK;
}

void bpe_scratch_fini(struct bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    free(s->cache);
    *s = (struct bpe_scratch){0};
}

static int reserve(struct bpe_scratch *s, size_t n) {
    if (n > s->symbols_cap) {
        size_t cap = n + n / 2 + 64;
        struct bpe_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
        if (!symbols) return ERR_NOMEM;
        s->symbols = symbols;
        s->symbols_cap = cap;
    }
    // At most n - 1 candidates at first, then each join takes one away and adds two: never 3 n at once.
    if (n * 3 > s->heap_cap) {
        size_t cap = s->symbols_cap * 3;
        struct bpe_candidate *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) return ERR_NOMEM;
        s->heap = heap;
        s->heap_cap = cap;
    }
    return ERR_OK;
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate c) {
    size_t i = s->heap_n++;
    while (i > 0 && s->heap[(i - 1) / 2].key > c.key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s) {
    struct bpe_candidate top = s->heap[0], last = s->heap[--s->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->heap_n; i = child) {
        if (child + 1 < s->heap_n && s->heap[child + 1].key < s->heap[child].key) child++;
        if (s->heap[child].key >= last.key) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static void consider(const struct bpe *b, struct bpe_scratch *s, int32_t pos) {
    if (pos < 0 || s->symbols[pos].next < 0) return;
    const struct bpe_merge *m = merge_slot(b, s->symbols[pos].id, s->symbols[s->symbols[pos].next].id);
    if (m->left == BPE_NONE) return;
    heap_push(s, (struct bpe_candidate){(uint64_t)m->rank << 32 | (uint32_t)pos, m->id});
}

static void join_all(const struct bpe *b, struct bpe_scratch *s) {
    struct bpe_symbol *sym = s->symbols;
    while (s->heap_n > 0) {
        struct bpe_candidate c = heap_pop(s);
        int32_t pos = (int32_t)(uint32_t)c.key;
        int32_t right = sym[pos].next;
        if (sym[pos].id == BPE_NONE || right < 0) continue;
        // A candidate outlives the joins of its neighbours: it counts only if the pair still makes its token.
        const struct bpe_merge *m = merge_slot(b, sym[pos].id, sym[right].id);
        if (m->left == BPE_NONE || m->id != c.id) continue;
        sym[pos].id = c.id;
        sym[pos].next = sym[right].next;
        if (sym[right].next >= 0) sym[sym[right].next].prev = pos;
        sym[right].id = BPE_NONE;
        consider(b, s, sym[pos].prev);
        consider(b, s, pos);
    }
}

static int encode_uncached(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n, struct ids *out) {
    if (b->ignore_merges) {
        uint32_t whole = *piece_slot(b, p, n);
        if (whole) return ids_add(out, (int32_t)(whole - 1));
    }
    int rc = reserve(s, n);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        ASSERT(b->byte_id[p[i]] != BPE_NONE, "byte %02x of checked UTF-8 has no token", p[i]);
        s->symbols[i] = (struct bpe_symbol){b->byte_id[p[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    }
    s->heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++) consider(b, s, (int32_t)i);
    join_all(b, s);
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
        rc = ids_add(out, s->symbols[i].id);
        if (rc) return rc;
    }
    return ERR_OK;
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n, struct ids *out) {
    if (n == 0) return ERR_OK;
    if (!s->cache || n > BPE_CACHE_KEY) return encode_uncached(b, s, piece, n, out);
    struct bpe_cached *c = &s->cache[bytes_hash(piece, n) % BPE_CACHE_SLOTS];
    int rc = ERR_OK;
    if (c->len_bytes == n && memcmp(c->key, piece, n) == 0) {
        for (int i = 0; i < c->n_ids && !rc; i++) rc = ids_add(out, c->ids[i]);
        return rc;
    }
    size_t before = out->n;
    rc = encode_uncached(b, s, piece, n, out);
    size_t made = out->n - before;
    if (rc || made > BPE_CACHE_IDS) return rc;
    c->len_bytes = (uint8_t)n;
    c->n_ids = (uint8_t)made;
    memcpy(c->key, piece, n);
    memcpy(c->ids, out->data + before, made * sizeof *c->ids);
    return ERR_OK;
}
