#include "kv/kv.h"

#include <stdlib.h>
#include <string.h>

struct kv_slot {
    uint32_t *table; // [max_seq_blocks]
    uint32_t n_blocks;
    // Where stages keep the recurrent state of a sequence of a hybrid family: the slot's own number, because that state
    // is of fixed size and lives exactly as long as the slot.
    uint32_t state;
    bool live;
    bool release_owed;
};

struct kv {
    uint32_t max_blocks, n_blocks, n_slots, max_seq_blocks;
    uint32_t *refs;        // [max_blocks] tables that name the block
    uint32_t *free_blocks; // [n_free] a stack
    uint32_t n_free, n_owed;
    uint32_t *tables; // memory of all tables
    struct kv_slot slot[LIMIT_SEQS];
};

int kv_new(uint32_t max_blocks, uint32_t n_slots, uint32_t max_seq_blocks, struct kv **out) {
    ASSERT(n_slots <= LIMIT_SEQS && max_seq_blocks <= LIMIT_SEQ_BLOCKS, "%u slots, %u blocks", n_slots, max_seq_blocks);
    struct kv *k = calloc(1, sizeof *k);
    if (!k) return ERR_NOMEM;
    k->max_blocks = max_blocks;
    k->n_slots = n_slots;
    k->max_seq_blocks = max_seq_blocks;
    k->refs = calloc(max_blocks ? max_blocks : 1, sizeof *k->refs);
    k->free_blocks = calloc(max_blocks ? max_blocks : 1, sizeof *k->free_blocks);
    k->tables = calloc((size_t)n_slots * max_seq_blocks + 1, sizeof *k->tables);
    if (!k->refs || !k->free_blocks || !k->tables) {
        kv_free(k);
        return ERR_NOMEM;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        k->slot[i].table = k->tables + (size_t)i * max_seq_blocks;
        k->slot[i].state = i;
    }
    *out = k;
    return ERR_OK;
}

void kv_free(struct kv *k) {
    if (!k) return;
    free(k->refs);
    free(k->free_blocks);
    free(k->tables);
    free(k);
}

void kv_reset(struct kv *k, uint32_t n_blocks) {
    ASSERT(n_blocks <= k->max_blocks, "%u of %u blocks", n_blocks, k->max_blocks);
    k->n_blocks = k->n_free = n_blocks;
    k->n_owed = 0;
    memset(k->refs, 0, (size_t)k->max_blocks * sizeof *k->refs);
    // The lowest id lies on top, so that a small load touches the same few blocks again and again.
    for (uint32_t i = 0; i < n_blocks; i++) k->free_blocks[i] = n_blocks - 1 - i;
    for (uint32_t i = 0; i < k->n_slots; i++) {
        k->slot[i].n_blocks = 0;
        k->slot[i].live = k->slot[i].release_owed = false;
    }
}

uint32_t kv_blocks_of(uint32_t n_tokens) {
    return n_tokens / LIMIT_BLOCK_TOKENS + (n_tokens % LIMIT_BLOCK_TOKENS ? 1 : 0);
}

uint32_t kv_n_blocks(const struct kv *k) { return k->n_blocks; }

uint32_t kv_n_free(const struct kv *k) { return k->n_free; }

uint32_t kv_slot_take(struct kv *k) {
    for (uint32_t i = 0; i < k->n_slots; i++) {
        if (k->slot[i].live) continue;
        k->slot[i].live = true;
        k->slot[i].n_blocks = 0;
        return i;
    }
    return KV_NONE;
}

static struct kv_slot *live_slot(const struct kv *k, uint32_t slot) {
    ASSERT(slot < k->n_slots && k->slot[slot].live, "slot %u is not live", slot);
    return (struct kv_slot *)&k->slot[slot];
}

bool kv_grow(struct kv *k, uint32_t slot, uint32_t n_blocks) {
    struct kv_slot *s = live_slot(k, slot);
    ASSERT(n_blocks <= k->max_seq_blocks, "slot %u: %u blocks of %u", slot, n_blocks, k->max_seq_blocks);
    if (n_blocks <= s->n_blocks) return true;
    if (n_blocks - s->n_blocks > k->n_free) return false;
    while (s->n_blocks < n_blocks) {
        uint32_t id = k->free_blocks[--k->n_free];
        ASSERT(k->refs[id] == 0, "block %u is free and has %u references", id, k->refs[id]);
        k->refs[id] = 1;
        s->table[s->n_blocks++] = id;
    }
    return true;
}

const uint32_t *kv_table(const struct kv *k, uint32_t slot, uint32_t *n_blocks) {
    const struct kv_slot *s = live_slot(k, slot);
    *n_blocks = s->n_blocks;
    return s->table;
}

void kv_slot_drop(struct kv *k, uint32_t slot, bool known) {
    struct kv_slot *s = live_slot(k, slot);
    while (s->n_blocks > 0) {
        uint32_t id = s->table[--s->n_blocks];
        ASSERT(k->refs[id] > 0, "block %u is in a table and has no reference", id);
        if (--k->refs[id] == 0) k->free_blocks[k->n_free++] = id;
    }
    s->live = false;
    if (known && !s->release_owed) {
        s->release_owed = true;
        k->n_owed++;
    }
}

bool kv_owes_releases(const struct kv *k) { return k->n_owed > 0; }

uint32_t kv_take_releases(struct kv *k, uint32_t *slots) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_slots && n < k->n_owed; i++) {
        if (!k->slot[i].release_owed) continue;
        k->slot[i].release_owed = false;
        slots[n++] = i;
    }
    ASSERT(n == k->n_owed, "%u releases found, %u owed", n, k->n_owed);
    k->n_owed = 0;
    return n;
}

void kv_check(const struct kv *k) {
    uint64_t refs = 0, in_tables = 0;
    uint32_t n_zero = 0, n_owed = 0;
    for (uint32_t i = 0; i < k->n_blocks; i++) {
        refs += k->refs[i];
        n_zero += k->refs[i] == 0;
    }
    for (uint32_t i = 0; i < k->n_slots; i++) {
        const struct kv_slot *s = &k->slot[i];
        ASSERT(s->live || s->n_blocks == 0, "slot %u is free and holds %u blocks", i, s->n_blocks);
        in_tables += s->n_blocks;
        n_owed += s->release_owed;
        for (uint32_t j = 0; j < s->n_blocks; j++)
            ASSERT(s->table[j] < k->n_blocks && k->refs[s->table[j]] > 0, "slot %u names free block %u", i,
                   s->table[j]);
    }
    for (uint32_t i = 0; i < k->n_free; i++)
        ASSERT(k->free_blocks[i] < k->n_blocks && k->refs[k->free_blocks[i]] == 0,
               "block %u is used and in the free "
               "list",
               k->free_blocks[i]);
    ASSERT(n_zero == k->n_free, "%u blocks without references, %u in the free list", n_zero, k->n_free);
    ASSERT(refs == in_tables, "%llu references, %llu table entries", (unsigned long long)refs,
           (unsigned long long)in_tables);
    ASSERT(n_owed == k->n_owed, "%u releases marked, %u counted", n_owed, k->n_owed);
}
