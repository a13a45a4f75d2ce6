// The head's decisions, without its sockets: scheduler, cluster state and plan behind one door.
// (state, event, now) -> actions. No I/O, no threads, no clock: the same code runs under `loom serve` and, with a toy
// model and a simulated network, in test/sim under one seed.
//
// The caller feeds an event, then takes actions with brain_next until there is none, and carries each out in order.
// Times are microseconds of a monotonic clock. All pointers in an action are valid until the next call on the brain.
// A node is named by the number that the caller gave it when it joined; a node that comes back has a new number.
#pragma once
#include "base/gen.h"
#include "base/step.h"
#include "cluster/cluster.h"

struct brain_config {
    struct plan_model model;
    struct plan_wish wish;
    uint32_t n_vocab;
    uint32_t max_context; // tokens of a sequence, prompt and answer
    uint32_t chunk_rows;  // row budget of a step: decode rows first, prefill chunks fill up
    uint32_t max_seqs;    // running at once, <= LIMIT_SEQS
    enum cluster_redundancy redundancy;
    uint32_t min_nodes;        // no route before so many nodes joined (first start only)
    uint32_t first_epoch;      // above every epoch that nodes may still know; else 1
    uint64_t settle_us;        // wait for more nodes after the first one of a plan joined
    uint64_t wait_for_node_us; // how long running requests wait without a route before they fail
    uint64_t heartbeat_us;     // nodes send one this often
    uint64_t node_timeout_us;  // no heartbeat for so long: the node is lost
    uint64_t suspect_us;       // the least silence that makes a node suspect
    uint64_t restore_us;       // after a loss, before a new holder is loaded
    uint64_t step_deadline_us; // least time given to a step; the real bound follows the route's own history
    uint64_t load_deadline_us; // a node that made no loading progress for so long is lost
};

enum brain_act {
    ACT_CLUSTER, // what the cluster decided, for a node (LOAD, NEXT, HOT, UNLOAD, MAY_LEAVE, DROP_NODE), for the head's
                 // own feed of stage 0 (FEED) or to be told (ROUTE_UP, ROUTE_DOWN)
    ACT_STEP,    // hand step to all holders of stage 0 (the last FEED named them)
    ACT_EVENT    // hand event to the one who asked for request event.id
};

struct brain_action {
    enum brain_act type;
    struct cluster_action cluster; // ACT_CLUSTER
    const struct step *step;       // ACT_STEP
    struct gen_event event;        // ACT_EVENT
};

struct brain;

int brain_new(const struct brain_config *c, struct brain **b, struct err *e) MUST_CHECK;
void brain_free(struct brain *b);
bool brain_next(struct brain *b, struct brain_action *a);
// When brain_tick wants to be called next, if no event comes before (UINT64_MAX: not at all).
uint64_t brain_deadline_us(const struct brain *b);

// Events. Requests: the id is the caller's, never used twice.
// ERR_LIMIT: can never fit (prompt + max_tokens over the context); ERR_UNAVAILABLE: queue full, or no route and none in
// sight; the text is for the user.
int brain_submit(struct brain *b, uint64_t now_us, uint64_t id, const struct gen_request *r, struct err *e) MUST_CHECK;
void brain_cancel(struct brain *b, uint64_t now_us, uint64_t id); // unknown or finished: nothing happens
// Of nodes: as in cluster.h.
void brain_node_joined(struct brain *b, uint64_t now_us, uint64_t node, uint64_t memory_bytes);
void brain_node_lost(struct brain *b, uint64_t now_us, uint64_t node, const char *why);
void brain_heartbeat(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch,
                     const struct cluster_stage_state *states, uint32_t n_states, uint64_t loading_bytes);
void brain_node_ready(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage);
void brain_node_fed(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage);
void brain_node_failed(struct brain *b, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage,
                       enum stage_failure what, const char *why);
void brain_node_leave(struct brain *b, uint64_t now_us, uint64_t node, bool leave, const char *why);
// From any holder of the last stage; one that came already changes nothing. node: who is accused if it is nonsense.
void brain_step_result(struct brain *b, uint64_t now_us, uint64_t node, const struct step_result *r);
// Of the step that brain_next gave last: as in sched.h.
uint32_t brain_begun_ids(const struct brain *b, uint64_t *ids);
uint64_t brain_stable(const struct brain *b); // of the current epoch: goes with each step
void brain_tick(struct brain *b, uint64_t now_us);

struct brain_status {
    bool route_up;
    uint32_t epoch, n_nodes, n_stages, n_blocks, blocks_used;
    uint32_t n_running, n_waiting;
    uint64_t n_route_changes, n_nodes_lost, n_preemptions, n_steps, n_tokens, n_prefill_rows;
    uint64_t retry_after_us;     // with no route: a guess for Retry-After
    struct plan plan;            // of the current or loading route
    struct cluster_view cluster; // holders, promotions, suspicions; its pointers are not set
    char why_down[256];
    bool stuck; // no plan fits the nodes that are there: only a further node helps
};
void brain_status(const struct brain *b, struct brain_status *s);
