#include "cluster/phi.h"

#include <math.h>

enum { INTERVAL_MAX_US = 10 * 1000 * 1000 }; // a longer one says nothing more; squares of so many fit into 64 bits

static void add(struct phi *p, uint64_t interval_us) {
    uint32_t us = interval_us < INTERVAL_MAX_US ? (uint32_t)interval_us : INTERVAL_MAX_US;
    if (p->n == PHI_WINDOW) {
        uint64_t old = p->interval_us[p->at];
        p->sum -= old;
        p->sum_of_squares -= old * old;
    } else {
        p->n++;
    }
    p->interval_us[p->at] = us;
    p->at = (p->at + 1) % PHI_WINDOW;
    p->sum += us;
    p->sum_of_squares += (uint64_t)us * us;
}

void phi_init(struct phi *p, uint64_t now_us, uint64_t usual_us) {
    *p = (struct phi){.last_us = now_us};
    // Two beats a quarter off the usual: a deviation to begin with.
    add(p, usual_us - usual_us / 4);
    add(p, usual_us + usual_us / 4);
}

// Mean and PHI_DEVIATIONS deviations.
static uint64_t usual_us(const struct phi *p) {
    double mean = (double)p->sum / p->n, square = (double)p->sum_of_squares / p->n;
    double variance = square > mean * mean ? square - mean * mean : 0;
    return (uint64_t)(mean + PHI_DEVIATIONS * sqrt(variance));
}

void phi_beat(struct phi *p, uint64_t now_us) {
    uint64_t interval_us = now_us > p->last_us ? now_us - p->last_us : 0;
    uint64_t most_us = usual_us(p) + p->sum / p->n / 2;
    add(p, interval_us < most_us ? interval_us : most_us);
    if (now_us > p->last_us) p->last_us = now_us;
}

void phi_shift(struct phi *p, uint64_t by_us) { p->last_us += by_us; }

uint64_t phi_due_us(const struct phi *p, uint64_t least_us, uint64_t most_us) {
    uint64_t silence = usual_us(p);
    if (silence > most_us) silence = most_us;
    if (silence < least_us) silence = least_us;
    return p->last_us + silence;
}
