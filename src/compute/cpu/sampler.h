// The sampler of NUMERICS 8, steps 2 to 7, without sorting the vocabulary: what the ranking decides is only where the
// kept set ends, and a selection finds that. Draws the token that ref_sample draws.
#pragma once
#include "compute/cpu/kern.h"

struct sampler_entry {
    uint64_t key; // larger: better rank; no two tokens have the same
    uint32_t u;
};
struct sampler_scratch {
    uint32_t *u;                   // [n_vocab]
    struct sampler_entry *entries; // [n_vocab]
};

// -1, with *fault, if a logit is not finite.
int32_t sampler_draw(const struct kern *k, const float *logits, uint32_t n_vocab, const struct sampling *p,
                     uint32_t pos, const struct sampler_scratch *s, bool *fault);
