#include "pull/ranges.h"

#include <string.h>

bool ranges_add(struct ranges *r, uint64_t begin, uint64_t end) {
    if (begin >= end) return true;
    uint32_t first = 0; // the first range that the new one touches, or lies before
    while (first < r->n && r->at[first].end < begin) first++;
    uint32_t last = first; // behind the last one that it touches
    while (last < r->n && r->at[last].begin <= end) last++;
    if (first == last && r->n == LIMIT_PULL_RANGES) return false;
    if (first < last) {
        if (r->at[first].begin < begin) begin = r->at[first].begin;
        if (r->at[last - 1].end > end) end = r->at[last - 1].end;
    }
    memmove(&r->at[first + 1], &r->at[last], (r->n - last) * sizeof r->at[0]);
    r->at[first] = (struct range){begin, end};
    r->n = r->n - (last - first) + 1;
    return true;
}

uint64_t ranges_total(const struct ranges *r) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->n; i++) sum += r->at[i].end - r->at[i].begin;
    return sum;
}

bool ranges_gap(const struct ranges *r, uint64_t from, uint64_t size, struct range *gap) {
    uint64_t end = size;
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->at[i].end <= from) continue;
        if (r->at[i].begin > from) {
            if (r->at[i].begin < end) end = r->at[i].begin;
            break;
        }
        from = r->at[i].end;
    }
    *gap = (struct range){from, end};
    return from < end;
}
