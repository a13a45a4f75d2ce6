// Which bytes of a file are here: half-open ranges in order, none touching the next. Not thread-safe.
#pragma once
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

struct ranges {
    uint32_t n;
    struct range {
        uint64_t begin, end;
    } at[LIMIT_PULL_RANGES];
};

// Adds [begin, end), which may overlap what is there; an empty one changes nothing. false: that would be more than
// LIMIT_PULL_RANGES, and nothing was added.
bool ranges_add(struct ranges *r, uint64_t begin, uint64_t end);
uint64_t ranges_total(const struct ranges *r);
// The first bytes from position from on, before size, that are not here. false: all are.
bool ranges_gap(const struct ranges *r, uint64_t from, uint64_t size, struct range *gap);
