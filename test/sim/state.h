// What the simulation's files share: world.c (one run, clients, chance), head.c (the head and the checker), machine.c
// (a machine and what it hears), part.c (the stages that a node holds, and its compute threads), feed.c (steps between
// nodes).
#pragma once
#include "net.h"
#include "replay/holder.h"
#include "world.h"

enum {
    MS = 1000,
    SECOND = 1000 * MS,
    MACHINES_MAX = NET_ENDS - 1,
    REQUESTS_MAX = 40,
    ANSWER_MAX = 256,
    TRACE_LINES = 24,
    HEARTBEAT = 20 * MS,
    GAP = 500 * MS,    // as in node_int.h
    EMPTY = 3000 * MS, // as in node_int.h
    LAYER_BYTES_MAX = 120,
    PARTS_MAX = LIMIT_NODE_STAGES,
    CONNECTIONS_MAX = 32, // of steps into one machine
    ROOM = 8,             // messages on a link before a sender waits
    REDIAL = 40 * MS,
    WATCH = 1000 * MS, // a step that was lost is missed within this
    HEAD_CONNECTION = 1,
    LIVENESS = 180 * SECOND // after the last disturbance everything ends within this
};

enum event_type {
    EV_LINK,
    EV_BEAT,
    EV_DONE,  // a compute thread has finished a job; what: 0 hot, 1 lazy
    EV_LAYER, // of a part is loaded; what: its number
    EV_DIAL,  // try again, if it does not stand; what: a connection
    EV_DOWN,  // a connection has ended; what: its number
    EV_BOOT,
    EV_KILL,
    EV_RETURN, // the machine is free again
    EV_SUBMIT,
    EV_CANCEL,
    EV_TICK,
    EV_CHAOS
};

struct trace {
    char line[TRACE_LINES][140];
    uint64_t n;
};

// One holder of the next stage, as a node sees it.
struct next {
    uint64_t node;
    bool is_first, is_local, attached;
    uint64_t connection, down_since_us;
    struct sent_cursor *cursor;
    bool owes_replay, has_begun, replay_sent;
};

enum part_state { PART_LOADING, PART_RESIDENT, PART_SERVING, PART_FAILED, PART_ENDED };

// A stage that a node holds in an epoch.
struct part {
    uint64_t id; // 0: this place is free
    struct machine *machine;
    enum part_state state;
    uint32_t epoch, stage, n_stages, a, b, n_blocks, layers_left;
    bool is_last, hot, stuck;
    struct holder *holder;
    struct sent *sent; // NULL: the last stage
    struct toy_stage *toy;
    uint64_t filled_by, filled_at_us; // the connection of the last replay, and when it brought something; 0: none did
    uint64_t empty_since_us;          // as in the node
    bool filling;                     // that replay is under way
    struct next next[LIMIT_HOLDERS];
    uint32_t n_next;
    uint32_t n_out; // jobs
    bool at_hot, last_sends, link_blamed, was_lazy;
};

struct work {
    struct part *part;
    const struct holder_job *job;
};

struct thread {
    struct work work[PARTS_MAX * HOLDER_JOBS]; // the first one is being computed
    uint32_t n;
    bool busy, hung;
};

struct incoming { // a connection of steps for a part, or for one that is not here yet
    uint64_t connection;
    uint32_t from, epoch, stage;
    bool attached;
};

struct machine {
    uint32_t who;
    uint64_t session; // 0: off
    uint64_t boot;    // events of an earlier boot are void
    uint64_t memory_bytes, frozen_until_us, loaded_bytes;
    uint32_t slow, epoch, n_lazy_runs;
    uint64_t stable;
    bool leaving, may_leave;
    struct part parts[PARTS_MAX];
    struct thread hot, lazy;
    struct incoming incoming[CONNECTIONS_MAX];
    struct {
        uint32_t a, b, n_blocks;
    } resident[8]; // layers that were loaded since it booted
    uint32_t n_resident;
};

struct request {
    struct gen_request r;
    int32_t prompt[ANSWER_MAX], answer[ANSWER_MAX];
    uint32_t n_answer, n_got;
    enum gen_finish finish; // the oracle's
    bool submitted, ended, cancelled;
};

struct peer {
    uint64_t session, memory_bytes;
    bool leaving;
};

// A holder of stage 0, as the head sees it.
struct feed {
    uint64_t node;
    struct sent_cursor *cursor;
};

struct world {
    struct net net;
    struct rng rng; // everything but the network
    struct brain_config config;
    struct brain *brain;
    struct machine *machine[NET_ENDS]; // 1 .. n_machines
    uint32_t n_machines, load_fail_percent, chaos_every_us;
    bool gentle;      // machines die one by one and nothing else happens: that must be hardly noticed
    bool passes_over; // senders lose a step to a shadow now and then
    uint64_t chaos_end_us, session, connection, part, head_frozen_until_us, tick_us;
    uint64_t holder_bytes, sent_bytes, head_bytes;
    struct sent *sent; // the head's
    struct feed feed[LIMIT_HOLDERS];
    uint32_t n_feeds, feed_epoch;
    struct request *requests;
    uint32_t n_requests, n_open;
    struct peer peers[64]; // as the brain was told
    uint32_t n_peers;
    bool feasible, was_up, route_up;
    uint64_t no_route_since_us;
    uint64_t disturbed_until_us; // by anything but the loss that is watched
    uint64_t watch_until_us;     // 0, or: a node was lost, others hold what it held, and the epoch has to go on
    uint32_t epoch;
    uint64_t step, n_events;
    struct step *scratch;
    enum toy_fault fault;
    struct world_stats *stats;
    struct trace trace[NET_ENDS];
    bool failed;
    char why[300];
};

// world.c: a line for the trace of the head (0) or of a machine.
void world_tell(struct world *w, uint32_t who, const char *fmt, ...) PRINTF_LIKE(3, 4);
// A promise is broken: the run ends. The first one counts.
void world_broken(struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
// Something happens that may end an epoch, until then.
void world_disturb(struct world *w, uint64_t until_us);
bool world_chance(struct world *w, uint32_t percent);
uint32_t world_between(struct world *w, uint32_t low, uint32_t high);

// head.c
void head_takes(struct world *w, struct msg *m); // takes m
void head_carries_out(struct world *w);
void head_pump(struct world *w);
void head_check_end(struct world *w);

// machine.c
uint32_t machine_of(const struct world *w, uint64_t session); // 0: none
void machine_forget(struct machine *m);
void machine_boot(struct world *w, struct machine *m);
void machine_kill(struct world *w, struct machine *m);
void machine_beat(struct world *w, struct machine *m);
void machine_leaves(struct world *w, struct machine *m);
void machine_returns(struct world *w, struct machine *m);
void machine_at(struct world *w, struct machine *m, uint64_t in_us, int type, uint32_t what);
void machine_takes(struct world *w, struct machine *m, uint32_t from, struct msg *msg); // takes msg
void machine_send(struct world *w, struct machine *m, enum msg_type type, uint32_t epoch, uint32_t stage);

// part.c
struct part *part_find(struct machine *m, uint32_t epoch, uint32_t stage);
bool part_takes_steps(const struct part *p);
bool part_computes(const struct part *p);
void part_load(struct world *w, struct machine *m, const struct cluster_action *a);
void part_end(struct world *w, struct part *p);
void part_free(struct part *p);
void part_fail(struct world *w, struct part *p, const char *why);
void part_layer(struct world *w, struct machine *m, uint64_t id);
void part_hot(struct world *w, struct part *p, bool hot);
void part_check_ready(struct world *w, struct part *p);
void part_pump(struct world *w, struct machine *m); // jobs to the compute threads
void part_done(struct world *w, struct machine *m, bool hot);
void part_run_all(struct world *w, struct part *p); // at once, and nothing is sent

// feed.c
void feed_set_next(struct world *w, struct part *p, const struct cluster_action *a);
void feed_drop_next(struct world *w, struct part *p);
void feed_open_all(struct world *w, struct part *p);
void feed_close_all(struct part *p);
void feed_pump(struct world *w, struct part *p);
void feed_pump_all(struct world *w, struct machine *m);
void feed_arrived(struct world *w, struct machine *m, const struct msg *g);
void feed_attach(struct world *w, struct machine *m, uint32_t from, const struct msg *g);
void feed_settle(struct world *w, struct machine *m);
void feed_detach(struct world *w, struct machine *m, uint32_t epoch, uint32_t stage);
void feed_attached(struct world *w, struct machine *m, uint64_t connection);
void feed_dial(struct world *w, struct machine *m, uint64_t connection);
void feed_down(struct world *w, struct machine *m, uint64_t connection);
void feed_check(struct world *w, struct machine *m);
void feed_break(struct world *w, struct machine *m, struct next *x); // chance: the connection ends
void feed_renew_local(struct world *w, struct machine *m, uint32_t epoch, uint32_t stage);
