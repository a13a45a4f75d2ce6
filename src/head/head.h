// The head at work: brain, local stages or links to nodes, and the requests of the gateway, on one loop thread that is
// also the scheduler's thread (doc/decisions/001).
//
// Threads: head_new and head_free from one thread; head_gateway_ops' functions from any thread; sinks are called on the
// loop's thread.
#pragma once
#include "base/err.h"
#include "cluster/cluster.h"
#include "gateway/gateway.h"
#include "head/open.h"

struct head;

struct head_config {
    const struct opened_model *model; // outlives the head
    struct run_mode mode;
    uint32_t context;    // tokens of a sequence
    uint32_t sequences;  // as many of full length fit into the KV blocks, if memory allows
    uint32_t chunk_rows; // row budget of a step
    // Local stages (layers[] as in local.h), or, with cluster_addr, nodes.
    uint32_t n_stages;
    uint32_t layers[LIMIT_STAGES];
    struct backend_cpu_config cpu;
    uint64_t memory_bytes; // of the local stages; 0: what the machine has
    struct model_progress progress;
    const char *cluster_addr; // NULL: no nodes
    const char *state_dir;    // for the cluster's CA and tokens
    uint32_t min_nodes;
    enum cluster_redundancy redundancy;
    bool redundancy_first; // rather fewer KV blocks than a stage without a shadow
    uint32_t wait_for_node_ms, node_timeout_ms, suspect_ms, heartbeat_ms, step_deadline_ms;
};

// What the local stages will take of this process's memory, known before anything is loaded. ERR_LIMIT: more than they
// may have; the text says what would fit, and *m what they would take with a KV cache for one sequence.
struct head_memory {
    uint64_t least_bytes; // of what counts against the limit, with one sequence
    uint64_t limit_bytes;
    uint64_t weights_bytes, kv_bytes, scratch_bytes;
    uint64_t kv_begin_bytes; // of the KV cache, resident from the first token on
    uint64_t kv_tokens;
};
int head_memory(const struct head_config *c, struct head_memory *m, struct err *e) MUST_CHECK;

int head_new(const struct head_config *c, struct head **h, struct err *e) MUST_CHECK;
void head_free(struct head *h);                   // every request that is still open gets its last event
uint32_t head_cluster_port(const struct head *h); // 0: no cluster
struct gateway_ops head_gateway_ops(struct head *h);
// Waits until a route serves and a canary token came through it. ERR_UNAVAILABLE after timeout_ms, with the reason.
int head_wait_ready(struct head *h, uint64_t timeout_ms, struct err *e) MUST_CHECK;
// Time that the head took from a step's result to having sent what follows, summed over n results.
void head_step_cost(const struct head *h, double *us, double *n);
uint32_t head_count_nodes(struct head *h); // joined, as of the last 100 ms; any thread
