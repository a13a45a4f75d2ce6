// How long steps take on the current route, and whether the oldest one in flight is overdue. The bound follows the
// route's own history: eight times the usual time (mean and four deviations) of steps with so many rows, and never less
// than a floor. The time of a step is counted from its sending or from the end of the step before it, whichever is
// later, so that waiting behind a large prefill is not held against a small step. Well before that, at twice the usual
// time, a step is late.
#pragma once
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

enum { STEPS_BUCKETS = 13 }; // by the number of rows: 0, 1, 2-3, 4-7 .. 2048 and more

struct steps {
    uint64_t floor_us;
    struct {
        uint64_t id, sent_us;
        uint32_t n_rows;
    } flight[LIMIT_STEPS_IN_FLIGHT]; // a ring
    uint32_t at, n;
    uint64_t last_done_us;
    struct {
        uint64_t mean_us, dev_us; // mean 0: no history
    } usual[STEPS_BUCKETS];
};

void steps_reset(struct steps *s, uint64_t floor_us); // a new route: no history, nothing in flight
void steps_sent(struct steps *s, uint64_t now_us, uint64_t id, uint32_t n_rows);
void steps_done(struct steps *s, uint64_t now_us, uint64_t id); // not the oldest in flight: nothing happens
void steps_restart(struct steps *s, uint64_t now_us); // the route was mended: the time of the oldest begins now
void steps_shift(struct steps *s, uint64_t by_us);    // we slept: the time does not count
// When the oldest step is overdue; UINT64_MAX with nothing in flight. *id: that step.
uint64_t steps_due_us(const struct steps *s, uint64_t *id);
// When the oldest step is late: not yet overdue, but it takes longer than it should. UINT64_MAX without history.
uint64_t steps_late_us(const struct steps *s, uint64_t *id);
