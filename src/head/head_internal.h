// What head.c (events of the cluster), head_requests.c (requests and their events) and head_status.c (what others may
// see) share.
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/map.h"
#include "gateway/gateway.h"
#include "head/brain.h"
#include "head/head.h"
#include "head/journal.h"
#include "head/links.h"
#include "head/local.h"
#include "os/thread.h"

// A copy of what the loop's thread knows, renewed every 100 ms and at every change of the route.
struct head_snapshot {
    bool ready;
    struct err canary_err;
    struct brain_status brain;
    uint32_t n_nodes;
    struct links_node node[LIMIT_NODES];
    uint64_t waited; // steps that waited for a shadow, on all nodes
    struct local_counts local;
};

struct head {
    // Set before the loop's thread starts, then read-only.
    struct loop *loop;
    struct links *links; // one of these two
    struct local *local;
    uint32_t context;
    const char *model_name;
    uint64_t heartbeat_us, local_memory_bytes;
    struct thread thread;
    bool thread_runs;
    // The loop's thread alone.
    struct brain *brain;
    struct loop_timer *tick, *publish, *local_beat;
    uint64_t local_node;           // the number under which the local stages are joined
    bool local_lost;               // the brain dropped them
    uint64_t local_done;           // their last step
    struct map sinks;              // request id -> struct gateway_sink
    struct journal *journal;       // NULL: none is kept
    struct gen_restored *restored; // what it held at the start, until the gateway has it
    uint32_t n_restored;
    struct gen_event events[LIMIT_SEQS]; // that wait for the journal, or for the next step to be on its way
    uint32_t n_events;
    bool route_up, ready, wants_canary, canary_runs, stopping;
    uint32_t epoch, n_stages;
    uint64_t sent_us;      // when the last step went out
    struct err canary_err; // code 0, or why the last canary failed
    // Any thread.
    _Atomic uint64_t next_id, n_results, result_us;
    pthread_mutex_t lock; // guards snapshot
    pthread_cond_t changed;
    struct head_snapshot snapshot;
};

// The canary is a request of the head's own: one token through all stages before /health says ready.
#define HEAD_CANARY_ID UINT64_MAX

uint32_t head_max_blocks(const struct head_config *c);         // KV blocks that are wished for
uint64_t head_local_memory_bytes(const struct head_config *c); // what the local stages may take

void head_publish(struct head *h); // the loop's thread
void head_act(struct head *h);     // the loop's thread: carries out what the brain decided
// The loop's thread. Events wait until the journal, if there is one, has what the step brought; head_tell hands them
// on.
void head_take_event(struct head *h, const struct gen_event *ev);
void head_tell(struct head *h);
void head_canary_failed(struct head *h, int code, const char *text);
void head_health(void *head, struct gateway_health *health);
int head_metrics(void *head, struct buf *out);
int head_status(void *head, struct buf *out);
// What the planner must know of a model that is computed this way.
int head_plan_model(const struct hparams *p, const struct run_mode *mode, uint32_t max_rows, struct plan_model *m,
                    struct err *e) MUST_CHECK;
