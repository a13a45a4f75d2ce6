// A pool of workers for loops over independent items. The thread that calls pool_run works too and returns when all
// items are done; a worker that was not scheduled in time holds nobody up, as it only ever owns the items that it
// claimed, and one whose processor another process takes from it again and again gets none for a while. Workers spin
// for some tens of microseconds after the last item and sleep then.
//
// Threads: one thread at a time calls pool_run. Every thread that computes runs with the rounding that NUMERICS 1.6
// asks for; pool_run and the workers assert it.
#pragma once
#include "base/err.h"
#include <stdint.h>

struct pool;

// fn works on the items [begin, end); thread is 0 for the caller, 1 .. n_threads-1 for workers.
typedef void (*pool_fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread);

// n_threads counts the caller. NULL: no memory or no threads to be had.
struct pool *pool_new(uint32_t n_threads);
void pool_free(struct pool *p);
uint32_t pool_threads(const struct pool *p);
// Calls fn on all of [0, n_items), at most `grain` items at a time.
void pool_run(struct pool *p, pool_fn fn, void *arg, uint32_t n_items, uint32_t grain);
