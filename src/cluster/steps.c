#include "cluster/steps.h"

#include "base/err.h"

enum { LATE_SPARE_US = 20 * 1000 }; // what a machine that does other things too may take without being late

static uint32_t bucket_of(uint32_t n_rows) {
    uint32_t b = 0;
    while (n_rows && b + 1 < STEPS_BUCKETS) {
        n_rows >>= 1;
        b++;
    }
    return b;
}

void steps_reset(struct steps *s, uint64_t floor_us) { *s = (struct steps){.floor_us = floor_us}; }

void steps_sent(struct steps *s, uint64_t now_us, uint64_t id, uint32_t n_rows) {
    ASSERT(s->n < LIMIT_STEPS_IN_FLIGHT, "%u steps in flight", s->n);
    uint32_t at = (s->at + s->n++) % LIMIT_STEPS_IN_FLIGHT;
    s->flight[at].id = id;
    s->flight[at].sent_us = now_us;
    s->flight[at].n_rows = n_rows;
}

static uint64_t start_us(const struct steps *s) {
    uint64_t sent = s->flight[s->at].sent_us;
    return sent > s->last_done_us ? sent : s->last_done_us;
}

// The usual time of a bucket. One without history borrows from the next smaller one, because time grows at most in
// proportion to rows; or, as an upper bound, from a larger one.
static uint64_t usual_us(const struct steps *s, uint32_t b) {
    for (uint32_t i = b + 1; i-- > 0;)
        if (s->usual[i].mean_us) return (s->usual[i].mean_us + 4 * s->usual[i].dev_us) << (b - i);
    for (uint32_t i = b + 1; i < STEPS_BUCKETS; i++)
        if (s->usual[i].mean_us) return s->usual[i].mean_us + 4 * s->usual[i].dev_us;
    return 0;
}

// How long one of this bucket takes at most without being late; 0: nothing is known.
static uint64_t late_us(const struct steps *s, uint32_t b) {
    uint64_t usual = usual_us(s, b);
    return usual ? 2 * usual + LATE_SPARE_US : 0;
}

void steps_done(struct steps *s, uint64_t now_us, uint64_t id) {
    if (s->n == 0 || s->flight[s->at].id != id) return;
    uint64_t took = now_us > start_us(s) ? now_us - start_us(s) : 1;
    uint32_t b = bucket_of(s->flight[s->at].n_rows);
    // What came late tells of an outage, not of what steps take; but where all come late, the bound moves.
    uint64_t late = late_us(s, b);
    if (late && took > late) took = late;
    uint64_t mean = s->usual[b].mean_us, off = took > mean ? took - mean : mean - took;
    if (mean == 0) {
        s->usual[b].mean_us = took;
        s->usual[b].dev_us = took / 2;
    } else {
        // The weights of round-trip estimation: 1/8 for the mean, 1/4 for the deviation.
        s->usual[b].mean_us = mean - mean / 8 + took / 8 + 1;
        s->usual[b].dev_us = s->usual[b].dev_us - s->usual[b].dev_us / 4 + off / 4;
    }
    s->last_done_us = now_us;
    s->at = (s->at + 1) % LIMIT_STEPS_IN_FLIGHT;
    s->n--;
}

void steps_restart(struct steps *s, uint64_t now_us) {
    if (now_us > s->last_done_us) s->last_done_us = now_us;
}

void steps_shift(struct steps *s, uint64_t by_us) {
    for (uint32_t i = 0; i < s->n; i++) s->flight[(s->at + i) % LIMIT_STEPS_IN_FLIGHT].sent_us += by_us;
    s->last_done_us += by_us;
}

uint64_t steps_due_us(const struct steps *s, uint64_t *id) {
    if (s->n == 0) return UINT64_MAX;
    *id = s->flight[s->at].id;
    uint64_t bound = 8 * usual_us(s, bucket_of(s->flight[s->at].n_rows));
    return start_us(s) + (bound > s->floor_us ? bound : s->floor_us);
}

uint64_t steps_late_us(const struct steps *s, uint64_t *id) {
    if (s->n == 0) return UINT64_MAX;
    uint64_t late = late_us(s, bucket_of(s->flight[s->at].n_rows));
    *id = s->flight[s->at].id;
    return late ? start_us(s) + late : UINT64_MAX;
}
