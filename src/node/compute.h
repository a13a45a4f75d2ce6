// The compute thread: it alone calls the backend. It loads a stage (hashing and fetching on the way) and runs steps, in
// the order in which the loop thread hands them over; what is done goes back to the loop through a queue.
#pragma once
#include "engine/stage.h"
#include "node/cache.h"
#include "node/fetch.h"
#include "os/thread.h"

// What WELCOME told: copied into each load, so that the threads share nothing.
struct node_model {
    struct hparams hparams;
    struct run_mode mode;
    uint32_t max_rows, max_context;
    uint64_t plan_hash;
    uint64_t head_boot; // the head's process: its model's bytes do not change, another one's may be others
};

enum work_type { WORK_STEP, WORK_LOAD };

// One thing to do. Whoever holds the pointer owns it: loop, queue, compute thread, queue, loop.
struct work {
    enum work_type type;
    uint64_t load; // number of the load that this belongs to; work of an older one comes back with ERR_CANCELLED
    int rc;        // how it went, with e
    struct err e;
    // WORK_STEP
    struct step *step;
    uint16_t *in, *out; // [rows_cap][hidden] bf16
    uint8_t *fault;     // [rows_cap]
    uint32_t rows_cap, hidden;
    bool has_in;
    uint8_t *control; // the step as it came, to be passed on
    uint32_t control_bytes, control_cap;
    struct step_result result;
    // WORK_LOAD
    const struct node_model *model; // one copy a load, freed with it
    uint32_t a, b, n_blocks;
    struct stage *stage;   // the result; valid until the next load is handed over
    uint64_t memory_bytes; // of it
};

struct compute {
    struct backend *be;
    uint64_t memory_bytes;   // what may be used
    struct queue todo, done; // done has an fd
    struct thread thread;
    struct fetch fetch;
    struct cache cache;
    _Atomic uint64_t loading_bytes;
    atomic_bool quit;
    struct holding *held; // compute thread: the stage and what is behind it
};

// be stays the caller's and must outlive it.
int compute_start(struct compute *c, struct backend *be, uint64_t memory_bytes, const char *cache_dir,
                  uint64_t cache_bytes, const char *model_dir, struct err *e) MUST_CHECK;
void compute_stop(struct compute *c); // waits for the work in hand; frees what is in the queues
// Hands w over. ERR_LIMIT: the queue is full; w is still the caller's.
int compute_push(struct compute *c, struct work *w) MUST_CHECK;
void compute_free_work(struct work *w);    // NULL is fine
void compute_free_buffers(struct work *w); // in, out, fault

// Compute thread: carries out a WORK_LOAD (loader.c).
int loader_run(struct compute *c, struct work *w, struct err *e) MUST_CHECK;
struct stage *loader_stage(const struct compute *c); // NULL: none is held
void loader_drop(struct compute *c);
