#include "base/rng.h"

#include "base/err.h"

void philox4x32(uint32_t ctr[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * ctr[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * ctr[2];
        uint32_t c0 = (uint32_t)(b >> 32) ^ ctr[1] ^ k0;
        uint32_t c2 = (uint32_t)(a >> 32) ^ ctr[3] ^ k1;
        ctr[0] = c0;
        ctr[1] = (uint32_t)b;
        ctr[2] = c2;
        ctr[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

void rng_init(struct rng *r, uint64_t seed) { *r = (struct rng){.seed = seed}; }

uint32_t rng_u32(struct rng *r) {
    if (r->left == 0) {
        r->word[0] = (uint32_t)r->next;
        r->word[1] = (uint32_t)(r->next >> 32);
        r->word[2] = r->word[3] = 0;
        philox4x32(r->word, (uint32_t)r->seed, (uint32_t)(r->seed >> 32));
        r->next++;
        r->left = 4;
    }
    return r->word[4 - r->left--];
}

uint64_t rng_u64(struct rng *r) {
    uint64_t low = rng_u32(r);
    return low | (uint64_t)rng_u32(r) << 32;
}

uint32_t rng_below(struct rng *r, uint32_t n) {
    ASSERT(n >= 1);
    // The product of a word and n falls into n slots of equal size once the low words below 2^32 mod n are refused.
    uint32_t refuse = (uint32_t)-n % n;
    for (;;) {
        uint64_t m = (uint64_t)rng_u32(r) * n;
        if ((uint32_t)m >= refuse) return (uint32_t)(m >> 32);
    }
}

double rng_unit(struct rng *r) { return (double)(rng_u64(r) >> 11) * 0x1p-53; }
