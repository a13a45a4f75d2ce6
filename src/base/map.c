#include "base/map.h"

#include <stdlib.h>
#include <string.h>

enum { MAP_FIRST_CAP = 16 };

// Both halves of a 128-bit product depend on all bits of both factors; folding them mixes in one multiplication.
static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t map_hash_u64(uint64_t key, uint64_t seed) {
    return mix(key ^ seed ^ 0x9E3779B97F4A7C15u, 0xD6E8FEB86659FD93u ^ (seed << 32 | seed >> 32));
}

uint64_t map_hash_bytes(const void *data, size_t len_bytes, uint64_t seed) {
    const uint8_t *p = data;
    uint64_t h = map_hash_u64(len_bytes, seed);
    for (; len_bytes >= 8; len_bytes -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = mix(h ^ w, 0xA0761D6478BD642Fu ^ seed);
    }
    uint64_t tail = 0;
    if (len_bytes) memcpy(&tail, p, len_bytes);
    return mix(h ^ tail, 0xE7037ED1A0B428DBu);
}

// The capacity that holds count entries at most 3/4 full; 0 if that number does not exist.
static size_t cap_for(size_t count) {
    size_t cap = MAP_FIRST_CAP;
    while (cap / 4 * 3 < count) {
        if (cap > SIZE_MAX / 64) return 0;
        cap *= 2;
    }
    return cap;
}

void map_init(struct map *m, size_t max_count, uint64_t seed) {
    *m = (struct map){.max_count = max_count, .seed = seed};
}

void map_fini(struct map *m) {
    free(m->slots);
    *m = (struct map){0};
}

// The slot of the key, or the free one where it belongs. cap > 0.
static size_t map_find(const struct map *m, uint64_t key) {
    size_t i = map_hash_u64(key, m->seed) & (m->cap - 1);
    while (m->slots[i].value && m->slots[i].key != key) i = (i + 1) & (m->cap - 1);
    return i;
}

void *map_get(const struct map *m, uint64_t key) { return m->cap ? m->slots[map_find(m, key)].value : NULL; }

static int map_grow(struct map *m) {
    size_t cap = cap_for(m->count + 1);
    if (cap && cap <= m->cap) return ERR_OK;
    struct map_slot *slots = cap ? calloc(cap, sizeof *slots) : NULL;
    if (!slots) return ERR_NOMEM;
    struct map_slot *old = m->slots;
    size_t old_cap = m->cap;
    m->slots = slots;
    m->cap = cap;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].value) m->slots[map_find(m, old[i].key)] = old[i];
    free(old);
    return ERR_OK;
}

int map_put(struct map *m, uint64_t key, void *value) {
    ASSERT(value, "map: NULL marks a free slot and cannot be a value");
    if (m->cap) {
        struct map_slot *s = &m->slots[map_find(m, key)];
        if (s->value) {
            s->value = value;
            return ERR_OK;
        }
    }
    if (m->count >= m->max_count) return ERR_LIMIT;
    if (map_grow(m)) return ERR_NOMEM;
    m->slots[map_find(m, key)] = (struct map_slot){key, value};
    m->count++;
    return ERR_OK;
}

void *map_remove(struct map *m, uint64_t key) {
    if (!m->cap) return NULL;
    size_t hole = map_find(m, key);
    void *value = m->slots[hole].value;
    if (!value) return NULL;
    // Pull back each follower whose own place is not between the hole and it, so that no search stops too early.
    size_t mask = m->cap - 1;
    for (size_t i = (hole + 1) & mask; m->slots[i].value; i = (i + 1) & mask) {
        size_t home = map_hash_u64(m->slots[i].key, m->seed) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole] = (struct map_slot){0};
    m->count--;
    return value;
}

bool map_next(const struct map *m, size_t *at, uint64_t *key, void **value) {
    for (; *at < m->cap; ++*at) {
        if (!m->slots[*at].value) continue;
        *key = m->slots[*at].key;
        *value = m->slots[*at].value;
        ++*at;
        return true;
    }
    return false;
}

struct strmap_slot {
    uint32_t offset, len_bytes; // of the key in bytes
    uint32_t tag;               // high half of the hash: most strangers are told apart without touching bytes
    uint32_t value;
    bool used;
};

void strmap_init(struct strmap *m, size_t max_count, size_t max_key_bytes, uint64_t seed) {
    ASSERT(max_key_bytes <= UINT32_MAX);
    *m = (struct strmap){.max_count = max_count, .bytes_max = max_key_bytes, .seed = seed};
}

void strmap_fini(struct strmap *m) {
    free(m->slots);
    free(m->bytes);
    *m = (struct strmap){0};
}

static struct strmap_slot *strmap_find(const struct strmap *m, const char *key, size_t len_bytes, uint64_t hash) {
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct strmap_slot *s = &m->slots[i];
        if (!s->used) return s;
        if (s->tag != tag || s->len_bytes != len_bytes) continue;
        if (len_bytes == 0 || memcmp(m->bytes + s->offset, key, len_bytes) == 0) return s;
    }
}

bool strmap_get(const struct strmap *m, const char *key, size_t len_bytes, uint32_t *value) {
    if (!m->cap) return false;
    const struct strmap_slot *s = strmap_find(m, key, len_bytes, map_hash_bytes(key, len_bytes, m->seed));
    if (s->used) *value = s->value;
    return s->used;
}

static int strmap_grow(struct strmap *m) {
    size_t cap = cap_for(m->count + 1);
    if (cap && cap <= m->cap) return ERR_OK;
    struct strmap_slot *slots = cap ? calloc(cap, sizeof *slots) : NULL;
    if (!slots) return ERR_NOMEM;
    for (size_t i = 0; i < m->cap; i++) {
        if (!m->slots[i].used) continue;
        size_t to = map_hash_bytes(m->bytes + m->slots[i].offset, m->slots[i].len_bytes, m->seed) & (cap - 1);
        while (slots[to].used) to = (to + 1) & (cap - 1);
        slots[to] = m->slots[i];
    }
    free(m->slots);
    m->slots = slots;
    m->cap = cap;
    return ERR_OK;
}

static int strmap_bytes_reserve(struct strmap *m, size_t more_bytes) {
    if (more_bytes > m->bytes_max - m->bytes_len) return ERR_LIMIT;
    size_t need = m->bytes_len + more_bytes;
    if (need <= m->bytes_cap) return ERR_OK;
    size_t cap = m->bytes_cap ? m->bytes_cap : 256;
    while (cap < need) cap *= 2;
    char *p = realloc(m->bytes, cap);
    if (!p) return ERR_NOMEM;
    m->bytes = p;
    m->bytes_cap = cap;
    return ERR_OK;
}

int strmap_put(struct strmap *m, const char *key, size_t len_bytes, uint32_t value) {
    uint64_t hash = map_hash_bytes(key, len_bytes, m->seed);
    if (m->cap) {
        struct strmap_slot *s = strmap_find(m, key, len_bytes, hash);
        if (s->used) {
            s->value = value;
            return ERR_OK;
        }
    }
    if (m->count >= m->max_count) return ERR_LIMIT;
    int rc = strmap_bytes_reserve(m, len_bytes);
    if (rc) return rc;
    if (strmap_grow(m)) return ERR_NOMEM;
    if (len_bytes) memcpy(m->bytes + m->bytes_len, key, len_bytes);
    *strmap_find(m, key, len_bytes, hash) = (struct strmap_slot){
        .offset = (uint32_t)m->bytes_len,
        .len_bytes = (uint32_t)len_bytes,
        .tag = (uint32_t)(hash >> 32),
        .value = value,
        .used = true,
    };
    m->bytes_len += len_bytes;
    m->count++;
    return ERR_OK;
}
