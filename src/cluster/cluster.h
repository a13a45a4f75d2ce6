// The cluster: which nodes there are, which of them make the route, and what happens when one is lost.
// (state, event, now) -> actions; no I/O and no clock. One thread calls it. Times are microseconds.
//
// Owns the list of nodes, the plan of the current epoch and the actions not yet taken. Events that are late, repeated
// or name unknown nodes change nothing.
#pragma once
#include "plan/plan.h"

struct cluster_config {
    const struct plan_model *model; // outlives the cluster
    struct plan_wish wish;
    uint32_t min_nodes;        // no route before so many nodes joined (first start only)
    uint64_t settle_us;        // first start: wait for more nodes after the first one joined
    uint64_t heartbeat_us;     // nodes send one this often
    uint64_t node_timeout_us;  // no heartbeat for so long: lost
    uint64_t step_deadline_us; // least time given to a step
    uint64_t load_deadline_us; // no node made progress in loading for so long: those that are not ready are lost
};

enum cluster_phase {
    CLUSTER_WAITING, // first start: for enough nodes
    CLUSTER_LOADING, // nodes load the layers of the epoch
    CLUSTER_UP,      // the route of the epoch serves
    CLUSTER_DOWN     // no plan fits the nodes that are there
};

enum cluster_act {
    CLUSTER_LOAD,      // node: hold layers [a, b) as stage of the epoch
    CLUSTER_DROP_NODE, // close its link; why
    CLUSTER_ROUTE_UP,
    CLUSTER_ROUTE_DOWN // why
};

struct cluster_action {
    enum cluster_act type;
    uint64_t node;
    uint32_t epoch, stage, n_stages, a, b, n_blocks;
    uint64_t next_node; // of the stage after this one; of the first one behind the last
    char why[256];
};

struct cluster;

int cluster_new(const struct cluster_config *config, struct cluster **c, struct err *e) MUST_CHECK;
void cluster_free(struct cluster *c);
// The next thing to do; false if there is none. To be drained after each event.
bool cluster_next(struct cluster *c, struct cluster_action *a);
uint64_t cluster_deadline_us(const struct cluster *c); // when cluster_tick is due; UINT64_MAX: not at all

// What is heard from nodes. A node that comes back has a new number.
void cluster_joined(struct cluster *c, uint64_t now_us, uint64_t node, uint64_t memory_bytes);
void cluster_lost(struct cluster *c, uint64_t now_us, uint64_t node, const char *why);
void cluster_heartbeat(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint64_t done_step,
                       uint64_t loading_bytes);
void cluster_ready(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch);
// While it loads or serves. It is believed only after two heartbeats' time: most often its neighbour died, and the
// loss of that one is told at almost the same moment.
void cluster_failed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, const char *why);

// What the scheduler does on the route of the epoch. Results come in the order of the steps.
void cluster_step_sent(struct cluster *c, uint64_t now_us, uint64_t step, uint32_t n_rows);
void cluster_step_done(struct cluster *c, uint64_t now_us, uint64_t step);
// The node behind stage (of the current route) sent nonsense.
void cluster_accuse(struct cluster *c, uint64_t now_us, uint32_t stage, const char *why);
// How many requests live; the route is improved only when there are none for a while.
void cluster_set_live(struct cluster *c, uint64_t now_us, uint32_t n_live);
void cluster_tick(struct cluster *c, uint64_t now_us);

struct cluster_view {
    enum cluster_phase phase;
    uint32_t epoch, n_nodes;
    uint64_t n_route_changes, n_nodes_lost;
    uint64_t down_since_us;  // in DOWN
    const struct plan *plan; // of the epoch; n_stages 0: none yet
    const char *why_down;    // "" while UP
};
void cluster_view(const struct cluster *c, struct cluster_view *v);
