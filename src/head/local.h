// The route inside one process: a chain of stages on a compute thread, no sockets. To the brain it is one node that
// holds all layers. Weights are loaded once; a load for a new epoch only makes KV caches and forgets sequences.
//
// Threads: local_load and local_step are called on the loop's thread and never block; ready, failed and result are
// called on the loop's thread too.
#pragma once
#include "base/step.h"
#include "head/open.h"
#include "net/loop.h"

struct local;

struct local_config {
    const struct opened_model *model; // outlives it
    struct run_mode mode;
    struct backend_cpu_config cpu;
    uint32_t n_stages;             // >= 1
    uint32_t layers[LIMIT_STAGES]; // of each stage; together all layers of the model
    uint32_t max_rows, max_context;
    struct model_progress progress;
};

struct local_handlers {
    void *arg;
    void (*ready)(void *arg, uint32_t epoch);
    void (*failed)(void *arg, uint32_t epoch, const char *why);
    void (*result)(void *arg, const struct step_result *r);
};

int local_new(struct loop *l, const struct local_config *c, const struct local_handlers *h, struct local **out,
              struct err *e) MUST_CHECK;
void local_free(struct local *x); // the loop does not run any more
void local_load(struct local *x, uint32_t epoch, uint32_t n_blocks);
void local_step(struct local *x, const struct step *s); // copied

struct local_counts {
    uint32_t blocks_used, slots_used; // the most of any stage
    uint64_t steps, busy_us;
};
void local_counts(const struct local *x, struct local_counts *c); // any thread
