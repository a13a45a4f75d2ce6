// Where K and V of a block stand in a record of the cache (struct kv_view).
#pragma once
#include "compute/cpu/kern.h"

static inline uint32_t kv_value_bytes(enum kv_type t) { return t == KV_I8 ? 1 : t == KV_F16 ? 2 : 4; }

// K or V of one block and head, with its scales.
static inline uint64_t kv_half_bytes(enum kv_type t, uint32_t hd) {
    uint64_t values = (uint64_t)LIMIT_BLOCK_TOKENS * hd * kv_value_bytes(t);
    return t == KV_I8 ? values + LIMIT_BLOCK_TOKENS * sizeof(float) : values;
}

static inline uint64_t kv_record_bytes(enum kv_type t, uint32_t hd) { return 2 * kv_half_bytes(t, hd); }

static inline const uint8_t *kv_record(const struct kv_view *kv, uint32_t block) {
    return kv->base + kv->blocks[block] * kv->stride;
}

static inline const float *kv_scales(const uint8_t *half, uint32_t hd) {
    return (const float *)(const void *)(half + (size_t)LIMIT_BLOCK_TOKENS * hd);
}
