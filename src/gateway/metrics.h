// Counters of the gateway, for /metrics. Any thread.
#pragma once
#include "base/buf.h"
#include <stdatomic.h>
#include <stdint.h>

enum metrics_route {
    METRICS_MODELS,
    METRICS_CHAT,
    METRICS_COMPLETIONS,
    METRICS_HEALTH,
    METRICS_METRICS,
    METRICS_STATUS,
    METRICS_ANSWERS,
    METRICS_OTHER,
    METRICS_ROUTES
};

enum { METRICS_STATUSES = 12 };

struct metrics {
    atomic_uint_least64_t requests[METRICS_ROUTES][METRICS_STATUSES]; // by status, in the order of a table
    atomic_uint_least64_t prompt_tokens, completion_tokens, disconnects, stalls, late_headers, resumes;
    atomic_uint_least64_t first_tokens, first_token_us; // answers that began, and the sum of their waits
    atomic_uint_least64_t connections, streams;         // open now
};

void metrics_count(struct metrics *m, enum metrics_route route, int status);
int metrics_add(const struct metrics *m, struct buf *out) MUST_CHECK;
