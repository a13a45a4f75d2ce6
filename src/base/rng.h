// Philox4x32-10: a counter-based generator (Salmon et al., SC 2011). The four words that come out are a pure function
// of counter and key, so that a draw depends on position and seed, never on what was drawn before (NUMERICS 8).
#pragma once
#include <stdint.h>

// Ten rounds on ctr, in place. Key words: k0 the low, k1 the high half of a 64-bit seed.
void philox4x32(uint32_t ctr[4], uint32_t k0, uint32_t k1);

// A stream of numbers from one seed, for simulations, hash seeds and back-off; not for secrets (os/random.h).
struct rng {
    uint64_t seed, next; // next: blocks drawn so far
    uint32_t word[4];
    uint32_t left; // words of the block that are not yet handed out
};

void rng_init(struct rng *r, uint64_t seed);
uint32_t rng_u32(struct rng *r);
uint64_t rng_u64(struct rng *r);
// Uniform in 0 .. n-1, without bias; n >= 1.
uint32_t rng_below(struct rng *r, uint32_t n);
// Uniform in [0, 1): 53 bits.
double rng_unit(struct rng *r);
