#include "text/bpe.h"
#include "base/map.h"
#include "os/random.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { BPE_CACHE_SLOTS = 4096, BPE_CACHE_KEY = 22, BPE_CACHE_IDS = 10, BPE_NONE = -1 };

struct bpe_symbol {
    int32_t id; // BPE_NONE: joined into its left neighbour
    int32_t prev, next;
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

static uint32_t pair_hash(const struct bpe *b, int32_t left, int32_t right) {
    return (uint32_t)map_hash_u64((uint64_t)(uint32_t)left << 32 | (uint32_t)right, b->seed);
}

static uint32_t bytes_hash(const struct bpe *b, const uint8_t *p, size_t n) {
    return (uint32_t)map_hash_bytes(p, n, b->seed);
}

void bpe_init(struct bpe *b) {
    *b = (struct bpe){.unk = BPE_NONE, .seed = random_u64()};
    for (int i = 0; i < 256; i++) b->byte_id[i] = BPE_NONE;
}

int bpe_make_merges(struct bpe *b, size_t n_merges) {
    uint32_t slots = slots_for(n_merges);
    b->merges = malloc(slots * sizeof *b->merges);
    if (!b->merges) return ERR_NOMEM;
    for (uint32_t i = 0; i < slots; i++) b->merges[i].left = BPE_NONE;
    b->merge_mask = slots - 1;
    return ERR_OK;
}

void bpe_fini(struct bpe *b) {
    free(b->merges);
    free(b->chars);
    free(b->virtual_chars);
    free(b->piece_slots);
    *b = (struct bpe){0};
}

static struct bpe_merge *merge_slot(const struct bpe *b, int32_t left, int32_t right) {
    uint32_t i = pair_hash(b, left, right) & b->merge_mask;
    while (b->merges[i].left != BPE_NONE && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & b->merge_mask;
    return &b->merges[i];
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    struct bpe_merge *m = merge_slot(b, left, right);
    *m = (struct bpe_merge){left, right, rank, id};
}

static struct bpe_char *char_slot(const struct bpe *b, uint32_t c) {
    uint32_t i = (c * 0x9e3779b1u >> 7) & b->char_mask;
    while (b->chars[i].c != UINT32_MAX && b->chars[i].c != c) i = (i + 1) & b->char_mask;
    return &b->chars[i];
}

static int grow_chars(struct bpe *b, uint32_t slots) {
    struct bpe_char *old = b->chars;
    uint32_t n_old = old ? b->char_mask + 1 : 0;
    struct bpe_char *chars = malloc(slots * sizeof *chars);
    if (!chars) return ERR_NOMEM;
    for (uint32_t i = 0; i < slots; i++) chars[i] = (struct bpe_char){.c = UINT32_MAX, .id = BPE_NONE};
    b->chars = chars;
    b->char_mask = slots - 1;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].c != UINT32_MAX) *char_slot(b, old[i].c) = old[i];
    free(old);
    return ERR_OK;
}

int bpe_init_chars(struct bpe *b, uint32_t n_vocab) {
    b->first_virtual = (int32_t)n_vocab;
    b->by_chars = true;
    return grow_chars(b, 256);
}

int bpe_add_char(struct bpe *b, uint32_t c, int32_t id) {
    if (char_slot(b, c)->c == c) return ERR_OK;
    if ((b->n_chars + 1) * 2 > b->char_mask + 1 && grow_chars(b, (b->char_mask + 1) * 2)) return ERR_NOMEM;
    *char_slot(b, c) = (struct bpe_char){.c = c, .id = id};
    b->n_chars++;
    return ERR_OK;
}

int bpe_char_id(struct bpe *b, uint32_t c, int32_t *id) {
    *id = char_slot(b, c)->id;
    if (*id != BPE_NONE) return ERR_OK;
    if (b->n_virtual == b->cap_virtual) {
        uint32_t cap = b->cap_virtual ? b->cap_virtual * 2 : 64;
        uint32_t *grown = realloc(b->virtual_chars, cap * sizeof *grown);
        if (!grown) return ERR_NOMEM;
        b->virtual_chars = grown;
        b->cap_virtual = cap;
    }
    *id = b->first_virtual + (int32_t)b->n_virtual;
    b->virtual_chars[b->n_virtual++] = c;
    return bpe_add_char(b, c, *id);
}

void bpe_note_before_mark(struct bpe *b, uint32_t c) {
    struct bpe_char *slot = char_slot(b, c);
    if (slot->c == c) slot->before_mark = true;
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
    uint32_t i = bytes_hash(b, p, n) & b->piece_mask;
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
    if (n > INT32_MAX) return ERR_NOMEM;
    if (n > s->symbols_cap) {
        size_t cap = n + n / 2 + 64;
        struct bpe_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
        if (!symbols) return ERR_NOMEM;
        s->symbols = symbols;
        s->symbols_cap = cap;
    }
    // At most n - 1 candidates at first, then each of n - 1 joins takes one away and adds two.
    if (n * 2 > s->heap_cap) {
        size_t cap = s->symbols_cap * 2;
        uint64_t *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) return ERR_NOMEM;
        s->heap = heap;
        s->heap_cap = cap;
    }
    return ERR_OK;
}

static void heap_push(struct bpe_scratch *s, uint64_t key) {
    size_t i = s->heap_n++;
    while (i > 0 && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
}

static uint64_t heap_pop(struct bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->heap_n; i = child) {
        if (child + 1 < s->heap_n && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static void consider(const struct bpe *b, struct bpe_scratch *s, int32_t pos) {
    if (pos < 0 || s->symbols[pos].next < 0) return;
    const struct bpe_merge *m = merge_slot(b, s->symbols[pos].id, s->symbols[s->symbols[pos].next].id);
    if (m->left == BPE_NONE) return;
    heap_push(s, (uint64_t)m->rank << 32 | (uint32_t)pos);
}

static void join_all(const struct bpe *b, struct bpe_scratch *s) {
    struct bpe_symbol *sym = s->symbols;
    s->heap_n = 0;
    for (size_t i = 0; i + 1 < s->symbols_n; i++) consider(b, s, (int32_t)i);
    while (s->heap_n > 0) {
        uint64_t key = heap_pop(s);
        int32_t pos = (int32_t)(uint32_t)key;
        int32_t right = sym[pos].next;
        if (sym[pos].id == BPE_NONE || right < 0) continue;
        // A candidate outlives the joins of its neighbours: it counts only if the pair still has its rank.
        const struct bpe_merge *m = merge_slot(b, sym[pos].id, sym[right].id);
        if (m->left == BPE_NONE || m->rank != key >> 32) continue;
        sym[pos].id = m->id;
        sym[pos].next = sym[right].next;
        if (sym[right].next >= 0) sym[sym[right].next].prev = pos;
        sym[right].id = BPE_NONE;
        consider(b, s, sym[pos].prev);
        consider(b, s, pos);
    }
}

static void put_symbol(struct bpe_scratch *s, int32_t id) {
    size_t i = s->symbols_n++;
    s->symbols[i] = (struct bpe_symbol){id, (int32_t)i - 1, -1};
    if (i > 0) s->symbols[i - 1].next = (int32_t)i;
}

// Symbols of single bytes; those without a token are unknown.
static void start_from_bytes(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n) {
    bool unknown = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[p[i]];
        bool again = id == BPE_NONE && unknown && b->fuse_unk;
        unknown = id == BPE_NONE;
        if (unknown) id = b->unk;
        if (id != BPE_NONE && !again) put_symbol(s, id);
    }
}

static bool has_bytes(const struct bpe *b, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[p[i]] == BPE_NONE) return false;
    return true;
}

// Symbols of single characters. As in the reference, an unknown one is put only when the next known one comes, even
// where one that becomes bytes stands between.
static void start_from_chars(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n) {
    bool unknown = false;
    for (size_t i = 0, k; i < n; i += k) {
        ucs4_t c;
        k = (size_t)u8_mbtouc_unsafe(&c, p + i, n - i);
        int32_t id = char_slot(b, c)->id;
        if (id == BPE_NONE && has_bytes(b, p + i, k)) {
            for (size_t j = 0; j < k; j++) put_symbol(s, b->byte_id[p[i + j]]);
            continue;
        }
        if (b->unk != BPE_NONE && unknown && (id != BPE_NONE || !b->fuse_unk)) put_symbol(s, b->unk);
        unknown = id == BPE_NONE;
        if (!unknown) put_symbol(s, id);
    }
    if (unknown && b->unk != BPE_NONE) put_symbol(s, b->unk);
}

// A character that is no token and was joined to nothing: its bytes, or the unknown token.
static int put_virtual(const struct bpe *b, int32_t id, bool *unknown, struct ids *out) {
    uint8_t p[8];
    int n = u8_uctomb(p, b->virtual_chars[id - b->first_virtual], sizeof p);
    ASSERT(n > 0, "character %x", b->virtual_chars[id - b->first_virtual]);
    int rc = ERR_OK;
    if (has_bytes(b, p, (size_t)n)) {
        for (int i = 0; i < n && !rc; i++) rc = ids_add(out, b->byte_id[p[i]]);
        *unknown = false;
    } else {
        if (b->unk != BPE_NONE && !(*unknown && b->fuse_unk)) rc = ids_add(out, b->unk);
        *unknown = true;
    }
    return rc;
}

static int encode_uncached(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n, struct ids *out) {
    int rc = reserve(s, n);
    if (rc) return rc;
    s->symbols_n = 0;
    if (b->by_chars)
        start_from_chars(b, s, p, n);
    else
        start_from_bytes(b, s, p, n);
    join_all(b, s);
    bool unknown = false;
    for (int32_t i = s->symbols_n ? 0 : -1; i >= 0 && !rc; i = s->symbols[i].next) {
        int32_t id = s->symbols[i].id;
        bool is_virtual = b->by_chars && id >= b->first_virtual;
        rc = is_virtual ? put_virtual(b, id, &unknown, out) : ids_add(out, id);
        unknown = unknown && is_virtual;
    }
    return rc;
}

static int encode_cached(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n, struct ids *out) {
    if (!s->cache || n > BPE_CACHE_KEY) return encode_uncached(b, s, piece, n, out);
    struct bpe_cached *c = &s->cache[bytes_hash(b, piece, n) % BPE_CACHE_SLOTS];
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

// No token reaches over a mark behind a character that no token has before one: what lies between two such places is
// joined by itself, and words are short.
static int encode_words(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n, struct ids *out) {
    static const uint8_t mark[] = {0xe2, 0x96, 0x81};
    size_t start = 0, at = 0;
    int32_t mark_id = char_slot(b, BPE_MARK)->id;
    bool cuts = mark_id != BPE_NONE && mark_id < b->first_virtual;
    for (const uint8_t *m; cuts && (m = memmem(p + at, n - at, mark, sizeof mark)) != NULL;) {
        at = (size_t)(m - p);
        ucs4_t c;
        if (at > start && u8_prev(&c, p + at, p)) {
            const struct bpe_char *before = char_slot(b, c);
            if (before->c == c && !before->before_mark) {
                int rc = encode_cached(b, s, p + start, at - start, out);
                if (rc) return rc;
                start = at;
            }
        }
        at += sizeof mark;
    }
    return encode_cached(b, s, p + start, n - start, out);
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece, size_t n, struct ids *out) {
    if (n == 0) return ERR_OK;
    uint32_t whole = b->ignore_merges ? *piece_slot(b, piece, n) : 0;
    if (whole) return ids_add(out, (int32_t)(whole - 1));
    return b->by_chars ? encode_words(b, s, piece, n, out) : encode_cached(b, s, piece, n, out);
}
