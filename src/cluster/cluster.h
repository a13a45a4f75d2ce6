// The cluster: which nodes there are, which of them hold which stage, and what happens when one is lost.
// (state, event, now) -> actions; no I/O and no clock. One thread calls it. Times are microseconds.
//
// Owns the list of nodes, the plan of the current epoch and the actions not yet taken. Events that are late, repeated
// or name unknown nodes change nothing.
//
// Each stage has holders: one that serves, and if memory allows a shadow that is fed with the same input. Holders come
// and go within an epoch: KV and the numbers of steps live on, and whoever receives a step twice ignores the second.
// Only when a stage has no holder left that can go on, there is a new epoch, in which all sequences are computed again.
//
//   holder:  LOADING -> RESIDENT -> FEEDING -> LEVEL      FEEDING: a replay or the steps from 1 on are on their way
//               |           |          |         |        LEVEL: it has every step up to stable, and counts for it
//               +-----------+----------+---------+--> gone (lost, failed, unloaded)
#pragma once
#include "base/step.h"
#include "plan/plan.h"

enum cluster_redundancy {
    REDUNDANCY_NONE,
    REDUNDANCY_SPARE, // the layers of each stage are resident at a second node; it is filled when it is needed
    REDUNDANCY_SHADOW // and fed all the time
};

struct cluster_config {
    const struct plan_model *model; // outlives the cluster
    struct plan_wish wish;
    enum cluster_redundancy redundancy; // as far as memory allows
    uint32_t min_nodes;                 // no route before so many nodes joined (first start only)
    uint32_t first_epoch;               // a head that was restarted goes on above the last epoch it used; else 1
    uint64_t settle_us;                 // first start: wait for more nodes after the first one joined
    uint64_t heartbeat_us;              // nodes send one this often
    uint64_t node_timeout_us;           // no heartbeat for so long: lost
    uint64_t suspect_us;       // the least silence that makes a node suspect; phi-accrual raises it where beats jitter
    uint64_t restore_us;       // after a loss, before a new holder is loaded: first those who serve get on
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
    CLUSTER_LOAD,      // node: hold layers [a, b) as stage of the epoch; next: who holds the stage after it
    CLUSTER_NEXT,      // node, which holds stage: next has changed
    CLUSTER_FEED,      // the head itself: stage 0 is held by next. The first one of an epoch comes before ROUTE_UP
    CLUSTER_HOT,       // node: stage runs hot, or lazily
    CLUSTER_UNLOAD,    // node: forget stage
    CLUSTER_MAY_LEAVE, // node: nothing depends on it any more
    CLUSTER_DROP_NODE, // close its link; why
    CLUSTER_ROUTE_UP,
    CLUSTER_ROUTE_DOWN // why
};

// replay is told once for each time that it is wanted: a holder which was in the list already and comes without it goes
// on where it is. Only the one who serves a stage is asked for replays, and only when it has all steps itself; the
// others are not told of a holder that is being fed, unless it is the one that serves.
struct cluster_holder {
    uint64_t node;
    bool replay; // it starts empty, now: what the stage sent before first
};

#define CLUSTER_HEAD UINT64_MAX // in place of a node's number: the head itself

struct cluster_action {
    enum cluster_act type;
    uint64_t node;
    uint32_t epoch, stage, n_stages, a, b, n_blocks;
    bool hot;
    uint32_t n_next; // 0: stage is the last one. The first of them serves
    struct cluster_holder next[LIMIT_HOLDERS];
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

struct cluster_stage_state {
    uint32_t stage;
    uint64_t accepted, done; // last step taken in order; last one computed
    uint64_t lag_us;         // how long computing what waits would take
};
// epoch: of the states.
void cluster_heartbeat(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch,
                       const struct cluster_stage_state *states, uint32_t n_states, uint64_t loading_bytes);
// The layers are resident; of the holder that serves: its link to the first next holder stands too. What it said of a
// failure is taken back.
void cluster_ready(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage);
// The replay that was sent to node is computed.
void cluster_fed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage);
// The stage does not work there. It is believed only after two heartbeats' time: most often a neighbour died, and the
// loss of that one is told at almost the same moment. STAGE_NO_REPLAY: of what the last NEXT or FEED asked for; of a
// FEED: node is CLUSTER_HEAD, stage 0. STAGE_GAP: the holder is filled anew, at once.
void cluster_failed(struct cluster *c, uint64_t now_us, uint64_t node, uint32_t epoch, uint32_t stage,
                    enum stage_failure what, const char *why);
// Its machine is wanted back (it holds nothing new, and what it has is handed over), or is free again. Where nobody has
// room for what it holds, there is a new epoch without it; if the model does not fit then, it stays for as long as
// requests live.
void cluster_leave(struct cluster *c, uint64_t now_us, uint64_t node, bool leave, const char *why);

// What the scheduler does on the route of the epoch. Results come in the order of the steps.
void cluster_step_sent(struct cluster *c, uint64_t now_us, uint64_t step, uint32_t n_rows);
void cluster_step_done(struct cluster *c, uint64_t now_us, uint64_t step);
// The node behind stage (of the current route) sent nonsense.
void cluster_accuse(struct cluster *c, uint64_t now_us, uint64_t node, const char *why);
// How many requests live; the route is improved only when there are none for a while.
void cluster_set_live(struct cluster *c, uint64_t now_us, uint32_t n_live);
void cluster_tick(struct cluster *c, uint64_t now_us);

enum cluster_holding { HOLDING_LOADING, HOLDING_RESIDENT, HOLDING_FEEDING, HOLDING_LEVEL };

struct cluster_view {
    enum cluster_phase phase;
    uint32_t epoch, n_nodes;
    uint64_t stable; // every holder that counts has this step and all before it
    uint64_t n_route_changes, n_nodes_lost, n_promotions, n_suspicions, n_false_alarms, n_drained;
    uint64_t down_since_us;  // in DOWN
    const struct plan *plan; // of the epoch; n_stages 0: none yet
    const char *why_down;    // "" while UP
    struct cluster_stage {
        uint32_t n; // holders; the first one serves
        struct {
            uint64_t node;
            enum cluster_holding phase;
            bool hot, suspect;
        } holder[LIMIT_HOLDERS];
    } stage[LIMIT_STAGES];
    uint32_t n_leaving;
    struct {
        uint64_t node;
        bool away; // nothing depends on it any more
    } leaving[LIMIT_NODES];
};
void cluster_view(const struct cluster *c, struct cluster_view *v);
