// When the silence of a node becomes suspicious: the phi-accrual detector of Hayashibara et al. (2004). The time
// between its heartbeats is taken for normally distributed, with mean and deviation of the last ones; phi is the
// negative logarithm (base 10) of the chance that a beat is still to come. A node that beats evenly is suspect soon,
// one that jitters later.
#pragma once
#include <stdint.h>

enum { PHI_WINDOW = 128 }; // beats remembered

// Deviations over the mean at which phi is 8: one false alarm in 10^8 beats, were they normal.
#define PHI_DEVIATIONS 5.612

struct phi {
    uint32_t interval_us[PHI_WINDOW]; // a ring
    uint32_t n, at;
    uint64_t sum, sum_of_squares;
    uint64_t last_us;
};

// usual_us: between beats, as long as nothing is known.
void phi_init(struct phi *p, uint64_t now_us, uint64_t usual_us);
// An outage is no jitter: a longer interval counts as the one at which phi reached 8, and half a mean. Else a node that
// was away for a second could be away for another half unnoticed, as long as the window remembers.
void phi_beat(struct phi *p, uint64_t now_us);
void phi_shift(struct phi *p, uint64_t by_us); // time that counts as if it had not passed
// When the silence since the last beat reaches phi 8; at most most_us of silence, but never less than least_us.
uint64_t phi_due_us(const struct phi *p, uint64_t least_us, uint64_t most_us);
