// What world.c (head, clients, chance, checker) and machine.c (the nodes) share.
#pragma once
#include "net.h"
#include "world.h"

enum {
    MS = 1000,
    SECOND = 1000 * MS,
    MACHINES_MAX = NET_ENDS - 1,
    REQUESTS_MAX = 40,
    ANSWER_MAX = 256,
    TRACE_LINES = 14,
    HEARTBEAT = 50 * MS,
    LAYER_BYTES_MAX = 120,
    LIVENESS = 180 * SECOND // after the last disturbance everything ends within this
};

enum event_type { EV_LINK, EV_BEAT, EV_DONE, EV_LAYER, EV_BOOT, EV_SUBMIT, EV_CANCEL, EV_TICK, EV_CHAOS };

struct trace {
    char line[TRACE_LINES][140];
    uint64_t n;
};

struct machine {
    uint64_t session; // 0: off
    uint64_t boot;    // events of an earlier boot or load are void
    uint64_t memory_bytes, frozen_until_us;
    uint32_t slow;
    bool busy, hung, stuck;
    uint32_t layers_left;
    uint64_t loaded_bytes;
    struct brain_load load; // load.epoch 0: none
    struct msg *now;        // the step that is computed
    struct list inbox;
    struct toy_stage stage;
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
};

struct world {
    struct net net;
    struct rng rng; // everything but the network
    struct brain_config config;
    struct brain *brain;
    struct machine *machine[NET_ENDS]; // 1 .. n_machines
    uint32_t n_machines, load_fail_percent, chaos_every_us;
    uint64_t chaos_end_us, session, head_frozen_until_us, tick_us;
    struct request *requests;
    uint32_t n_requests, n_open;
    struct peer peers[64]; // as the brain was told
    uint32_t n_peers;
    bool feasible, was_up, route_up;
    uint64_t no_route_since_us;
    uint32_t epoch;
    uint64_t step, n_events;
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
bool world_chance(struct world *w, uint32_t percent);
uint32_t world_between(struct world *w, uint32_t low, uint32_t high);

// machine.c
uint32_t machine_of(const struct world *w, uint64_t session); // 0: none
void machine_forget(struct machine *m);
void machine_boot(struct world *w, uint32_t who);
void machine_kill(struct world *w, uint32_t who);
void machine_layer(struct world *w, uint32_t who); // one more layer is loaded
void machine_beat(struct world *w, uint32_t who);
void machine_done(struct world *w, uint32_t who);                   // the step is computed
void machine_takes(struct world *w, uint32_t who, struct msg *msg); // takes msg
