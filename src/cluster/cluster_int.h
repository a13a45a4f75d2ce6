// Inside cluster/ only.
//
//   cluster.c   events, nodes, what is due; the door
//   epoch.c     plans, and the way into a new epoch
//   holders.c   who holds what: losses, promotion, redundancy
//   handover.c  a stage goes over to another holder while both live
//   suspect.c   silence and late steps
//   tell.c      actions: what holders were told, against what they should have been told
#pragma once
#include "cluster/cluster.h"
#include "cluster/phi.h"
#include "cluster/steps.h"

enum {
    ACTIONS_MAX = 2048,                 // one event may touch all holders of all stages
    IMPROVE_US = 1000 * 1000,           // idle for so long before a spare is taken in
    IMPROVE_MAX_US = 300 * 1000 * 1000, // after spares failed again and again
    RETRY_US = 1000 * 1000,             // until a stage is tried again whose second holder failed
    RETRY_MAX_US = 10 * 1000 * 1000,    // after it failed again and again
    SHAKEN_US = 500 * 1000,             // after a loss, what those before it say is about the broken link
    GAPS_MAX = 8,                       // a holder that lacks steps is filled anew so often, and has failed then
    SLOW_US = 2 * 1000 * 1000,          // a holder may be behind the steps that are done for so long
    CALM_US = 500 * 1000,               // a suspect is well for so long before the alarm ends
    CALM_MAX_US = 4 * 1000 * 1000,      // after alarms that were false again and again
    OUTAGE_US = 250 * 1000,             // an alarm that had a reason for so long was no false one
    REST_US = 30 * 1000 * 1000,         // who was too slow takes no stage off a busier node for so long
    BALANCE_US = 500 * 1000,            // a holder is LEVEL for so long before it takes a stage off a busier node
    STEADY_US = 60 * 1000 * 1000        // after so long without one, what was wrong before is forgotten
};

#define NEVER UINT64_MAX

struct member {
    bool present; // false: a hole that a lost node left
    uint64_t id, memory_bytes;
    uint64_t seen_us;
    struct phi phi;
    bool excused;               // we were late ourselves; once for each silence
    uint64_t loading_bytes;     // in the current epoch
    bool leaving, may_leave;    // its machine is wanted back; it was told that nothing depends on it
    uint64_t calm_us, alarm_us; // how long it must be well before an alarm ends; the last false alarm
};

struct told { // what a holder knows of a holder of the next stage
    uint64_t node;
    uint32_t feed; // the feed that it gives it; 0: none
};

// A holder.
struct hold {
    uint64_t node;
    enum cluster_holding phase;
    bool hot, wants_hot; // as it was told; as it should be
    bool fed;            // FEEDING: the replay is computed
    bool suspect;        // of the one that serves only
    uint64_t accepted, done, lag_us;
    uint64_t feeder;      // FEEDING: who gives the replay
    uint32_t feed;        // the number of that attempt
    uint64_t progress_us; // LOADING, FEEDING: when something moved
    uint64_t level_us;    // since when it is LEVEL
    uint32_t n_gaps;      // it lacked steps and was filled anew
    uint64_t failed_us;   // NEVER, or when it said that it failed
    char failed_why[160];
    uint64_t behind_us, behind_step; // NEVER, or since when it has not had that step, which is done
    uint64_t well_us, well_step;     // of a suspect: NEVER, or since when nothing is wrong with it; what was sent then
    uint64_t alarm_us, reason_us;    // of a suspect: since when; when there was a reason last
    uint64_t rest_us;                // takes no stage off a busier node before: it was slow
    uint64_t catch_step;             // NEVER, or: takes over from one that lives as soon as it has done this
    uint32_t n_told;
    struct told told[LIMIT_HOLDERS];
};

// A stage and those who hold it; the first one serves.
struct post {
    uint32_t n;
    struct hold hold[LIMIT_HOLDERS];
    bool vacant;         // the one that served is gone: the order of the others means nothing
    uint64_t shaken_us;  // NEVER, or when the next stage lost a holder: those of this one may tell of a broken link
    uint64_t retry_us;   // no second holder before that
    uint64_t backoff_us; // how long the next time
    uint64_t avoid;      // the node that failed last
};

struct unload {
    uint64_t node;
    uint32_t epoch, stage;
};

struct cluster {
    struct cluster_config config;
    enum cluster_phase phase;
    uint32_t epoch;
    // In the order of the route. A node that joins takes the first hole.
    struct member member[LIMIT_NODES];
    uint32_t n_members;             // holes included
    struct plan plan;               // its nodes are those that serve
    struct post post[LIMIT_STAGES]; // [plan.n_stages] in LOADING and UP, else empty
    struct steps steps;
    uint64_t sent_step, done_step, stable; // of the epoch
    uint64_t lost_step;                    // a holder was lost because this step did not pass it; 0: none
    uint64_t excused_step;                 // we were late ourselves when it was the oldest; 0: none
    uint64_t retry_due_us;                 // of the stages that wait before they get a second holder
    uint64_t heir_node; // 0, or who shall take heir_stage off a busier node; it may have to be loaded first
    uint32_t heir_stage;
    uint64_t balance_us; // an idle node is not looked for before
    uint32_t n_feeds;
    uint32_t n_fed_told;
    struct told fed_told[LIMIT_HOLDERS]; // what the head itself was told of stage 0
    uint64_t first_join_us, progress_us, idle_since_us;
    uint64_t down_since_us; // NEVER, or when nothing fitted for the first time since a route was up
    uint64_t improve_us;    // how long to be idle before a spare is taken in
    bool improving;         // LOADING in order to take in a spare
    bool spare_useful;      // a plan with all nodes is better than the route
    bool stage_lost;        // the route needs a new plan
    bool changed;           // a stage may want another holder, or find room for it
    bool look;              // nodes beside the route are to be looked at
    uint32_t n_live;
    uint64_t due_us; // the deadline as of the last event
    uint64_t n_route_changes, n_nodes_lost, n_promotions, n_suspicions, n_false_alarms, n_drained;
    char lost_why[256], why_down[256];
    uint32_t n_unloads;
    struct unload unload[LIMIT_STAGES * LIMIT_HOLDERS];
    struct cluster_action *actions; // [ACTIONS_MAX] a ring
    uint32_t action_at, n_actions;
};

static inline uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

// cluster.c
struct member *cluster_member(struct cluster *c, uint64_t node); // NULL: not there
uint32_t cluster_n_present(const struct cluster *c);
bool cluster_has_route(const struct cluster *c);
// The node is gone; settling decides what that means. tell: its link is still open.
void cluster_lose(struct cluster *c, uint64_t now_us, struct member *m, const char *why, bool tell);

// epoch.c
void epoch_replan(struct cluster *c, uint64_t now_us, const char *why);
void epoch_go_up(struct cluster *c, uint64_t now_us);
// Whether a plan with all nodes would be better than the route; and why each node that serves nothing does not.
void epoch_look_at_spares(struct cluster *c);
// Whether the model fits without the nodes that leave.
bool epoch_fits_without_leaving(struct cluster *c);

// holders.c
bool holders_serve(const struct cluster *c, uint64_t node);
bool holders_leave(struct cluster *c, const struct hold *h); // its node leaves
struct hold *holders_find(struct cluster *c, uint32_t stage, uint64_t node);
// Second holders for a new epoch; posts have those that serve.
void holders_add_seconds(struct cluster *c, uint64_t now_us);
void holders_init(struct hold *h, uint64_t now_us, uint64_t node);
void holders_clear(struct cluster *c); // the epoch ends
void holders_node_gone(struct cluster *c, uint64_t now_us, uint64_t node);
// Not the one that serves. failed: the stage waits before it gets another.
void holders_drop(struct cluster *c, uint64_t now_us, uint32_t stage, uint32_t k, bool failed);
void holders_no_replay(struct cluster *c, uint64_t now_us, uint32_t stage, uint64_t feeder, const char *why);
void holders_state(struct cluster *c, uint64_t now_us, struct hold *h, const struct cluster_stage_state *s);
// It lacks steps. False: that happened too often.
bool holders_feed_anew(uint64_t now_us, struct hold *h);
void holders_promote(struct cluster *c, uint64_t now_us); // in vacant posts; or a stage is lost
// Failures that are believed by now, and loading or feeding that does not go on.
void holders_check(struct cluster *c, uint64_t now_us);
void holders_refresh(struct cluster *c, uint64_t now_us); // in UP: all that is to be done about them
void holders_restore(struct cluster *c, uint64_t now_us); // new second holders, where there is room
void holders_set_stable(struct cluster *c);
uint64_t holders_due_us(struct cluster *c, uint64_t now_us);
bool holders_all_serve_level(const struct cluster *c);

void holders_make_first(struct cluster *c, uint32_t stage, uint32_t k);
uint32_t holders_fill_rooms(struct cluster *c, struct plan_room *rooms, uint64_t now_us);
bool holders_are_enough(struct cluster *c); // every stage has as many as it should

// handover.c
void handover_choose(struct cluster *c, uint64_t now_us); // whom to relieve, and by whom
void handover_refresh(struct cluster *c, uint32_t stage, uint64_t now_us);
void handover_place(struct cluster *c, uint64_t now_us); // an idle node that holds nothing of a busy one's stages
// A node that leaves serves a stage that no other one holds or has room for.
bool handover_cannot(struct cluster *c, uint64_t now_us);
bool handover_is_heir(const struct cluster *c, uint32_t stage, const struct hold *h);

// suspect.c
void suspect_check_steps(struct cluster *c, uint64_t now_us); // overdue: the guilty node is lost
void suspect_refresh(struct cluster *c, uint64_t now_us);     // alarms begin and end
bool suspect_is_silent(const struct cluster *c, const struct member *m, uint64_t now_us);
// Who runs beside the suspect that serves; 0: nobody.
uint32_t suspect_backup(struct cluster *c, uint32_t stage, uint64_t now_us);
uint64_t suspect_due_us(struct cluster *c, uint64_t now_us);

// tell.c
struct cluster_action *tell_push(struct cluster *c, enum cluster_act type);
void tell_why(struct cluster *c, enum cluster_act type, uint64_t node, const char *why);
void tell_load(struct cluster *c, uint32_t stage, uint32_t k);
void tell_changes(struct cluster *c); // in UP
void tell_endings(struct cluster *c); // UNLOAD, MAY_LEAVE: last, since others may still send there until they are told
