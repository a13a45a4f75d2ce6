// Two hash maps with open addressing, each born with the number of entries that it may hold at most: u64 -> pointer,
// and bytes -> u32. The hash is seeded per map: a map whose keys a stranger chooses takes its seed from os/random.h, so
// that nobody can prepare collisions. Not thread-safe for changes; lookups may run side by side.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

struct map_slot {
    uint64_t key;
    void *value; // NULL: free
};

struct map {
    struct map_slot *slots; // [cap], a power of two, at most 3/4 full
    size_t count, cap, max_count;
    uint64_t seed;
};

void map_init(struct map *m, size_t max_count, uint64_t seed);
void map_fini(struct map *m); // the values stay the caller's
// NULL: not there.
void *map_get(const struct map *m, uint64_t key);
// Adds or replaces; value is not NULL. ERR_LIMIT at max_count entries, ERR_NOMEM; the map is as before then.
int map_put(struct map *m, uint64_t key, void *value) MUST_CHECK;
// Takes the entry out and returns its value, NULL if there was none.
void *map_remove(struct map *m, uint64_t key);
// Visits all entries in no stated order: start with *at = 0; false when there are no more. No changes in between.
bool map_next(const struct map *m, size_t *at, uint64_t *key, void **value);

// Keys are byte strings (NUL allowed), which the map copies; entries are never removed.
struct strmap {
    struct strmap_slot *slots; // [cap]
    char *bytes;               // all keys, one after the other
    size_t count, cap, max_count, bytes_len, bytes_cap, bytes_max;
    uint64_t seed;
};

// At most max_count keys of max_key_bytes (below 4 GiB) altogether.
void strmap_init(struct strmap *m, size_t max_count, size_t max_key_bytes, uint64_t seed);
void strmap_fini(struct strmap *m);
bool strmap_get(const struct strmap *m, const char *key, size_t len_bytes, uint32_t *value);
// Adds or replaces. ERR_LIMIT, ERR_NOMEM; the map is as before then.
int strmap_put(struct strmap *m, const char *key, size_t len_bytes, uint32_t value) MUST_CHECK;

// The hashes behind them: well mixed, seeded, the same on every machine for one seed.
uint64_t map_hash_u64(uint64_t key, uint64_t seed);
uint64_t map_hash_bytes(const void *data, size_t len_bytes, uint64_t seed);
