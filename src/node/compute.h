// The two compute threads. They alone call backends, each its own, and carry out what the loop thread hands over, in
// that order; what is done goes back through one queue.
//
//   hot    steps of the stages that serve, as they come
//   lazy   at low priority: loads layers, while a thread of its own fetches and hashes ahead of it, and replays for the
//          stages that wait to serve
//
// Neither ever waits for the other. A stage belongs to the thread that has a job of it; between jobs it may change.
#pragma once
#include "node/cache.h"
#include "node/fetch.h"
#include "node/hold.h"
#include "os/thread.h"
#include "replay/holder.h"

enum work_type { WORK_HELLO, WORK_RUN, WORK_LOAD, WORK_FREE };

// One thing to do. It belongs to an assignment (RUN), a holding (LOAD, FREE) or a worker (HELLO: its backend is there),
// and is touched by one thread at a time: loop, queue, compute thread, queue, loop.
struct work {
    enum work_type type;
    int rc; // how it went, with e
    struct err e;
    struct holding *hold;
    // WORK_RUN
    struct assignment *owner; // the loop thread's; NULL: this work is idle
    const atomic_bool *over;  // the assignment's end: what is not begun then comes back with ERR_CANCELLED
    const struct holder_job *job;
    bool hot;          // the stage serves
    bool reset;        // the stage forgets its sequences first
    bool wants_result; // and not only what it leaves in the KV cache
    uint16_t *out;     // [out_rows][hidden] bf16; NULL for the last stage
    uint32_t out_rows; // room
    uint64_t us;       // that it took
    struct step_result result;
};

struct worker {
    struct compute *compute;
    struct backend_cpu_config cpu;
    struct backend *be; // made on the thread, so that the pool's threads have its priority
    struct queue todo;
    struct thread thread;
    bool is_lazy, runs;
    struct work hello;
};

struct compute {
    struct worker hot, lazy;
    struct queue done; // has an fd
    struct fetch fetch;
    struct cache cache;
    _Atomic uint64_t loading_bytes; // grows while a load makes progress
    _Atomic uint64_t waited;        // steps of stages that serve which stood behind a lazy job
    atomic_bool quit;
};

enum { COMPUTE_QUEUE = 256 }; // works of one thread

int compute_start(struct compute *c, const struct backend_cpu_config *cpu, const char *cache_dir, uint64_t cache_bytes,
                  const char *model_dir, struct err *e) MUST_CHECK;
// Ends the threads after the work in hand; what was not begun lies in the queue of what is done, with ERR_CANCELLED.
void compute_stop(struct compute *c);
void compute_fini(struct compute *c); // the stages are freed
// Hands w over. ERR_LIMIT: the queue is full; w is still the caller's.
int compute_push(struct compute *c, struct worker *k, struct work *w) MUST_CHECK;

// loader.c, lazy thread: makes h->stage. ERR_CANCELLED: nobody wants it any more.
int loader_run(struct compute *c, struct holding *h, struct err *e) MUST_CHECK;
