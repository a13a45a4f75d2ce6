// The simulated time and network: a heap of events, and a link for each ordered pair of endpoints that delivers
// messages in order after a random delay, holds them while it is cut and sometimes sends one twice.
#pragma once
#include "base/list.h"
#include "base/rng.h"
#include "head/brain.h"
#include "replay/sent.h"
#include "toy.h"

enum { NET_ENDS = 8 }; // endpoint 0 is the head

struct net_event {
    uint64_t at_us, order;
    int type;
    uint32_t who;  // endpoint, link or request
    uint64_t what; // depends on the type
};

enum msg_type {
    MSG_JOIN, // node -> head
    MSG_BEAT,
    MSG_READY,
    MSG_FAILED,
    MSG_FED,
    MSG_LEAVE,
    MSG_RESULT,
    MSG_RESET,  // the link to the node is gone
    MSG_ACTION, // head -> node
    MSG_CLOSE,
    MSG_STEP, // head or node -> node
    MSG_REPLAY,
    MSG_ATTACH,   // node -> node: a connection for the steps of a stage
    MSG_ATTACHED, // and back
};

struct msg {
    struct list link;
    enum msg_type type;
    uint64_t deliver_us;
    uint64_t session; // of the node that it comes from or goes to
    uint32_t epoch, stage;
    uint64_t connection; // of steps
    uint64_t stable, bytes;
    bool first, last; // REPLAY
    enum stage_failure failure;
    bool leave;        // LEAVE
    uint32_t n_states; // BEAT
    struct cluster_stage_state *states;
    struct cluster_action *action;
    struct step_result *result;
    struct step step; // STEP, REPLAY: arrays lie in memory
    const uint64_t *hidden;
    const uint8_t *fault;
    void *memory;
};

struct net_link {
    struct list queue;
    uint32_t n;
    uint64_t cut_until_us, last_us;
};

struct net {
    uint64_t now_us, order;
    struct net_event *heap;
    uint32_t n, cap;
    struct rng rng; // delays and duplicates
    uint32_t delay_us, twice_percent;
    int link_event;                            // type of the events that say: look at link who
    struct net_link link[NET_ENDS * NET_ENDS]; // [from * NET_ENDS + to]
};

void net_init(struct net *n, uint64_t seed, int link_event);
void net_fini(struct net *n);
void net_at(struct net *n, uint64_t at_us, int type, uint32_t who, uint64_t what);
bool net_pop(struct net *n, struct net_event *e); // the next event; the clock goes there
struct msg *msg_new(enum msg_type type, uint64_t session, uint32_t epoch, uint32_t stage);
// A step, or a piece of a replay, with its rows; hidden and fault may be NULL.
struct msg *msg_step(enum msg_type type, uint64_t session, uint32_t stage, const struct step *step, const void *hidden,
                     const uint8_t *fault);
struct msg *msg_result(const struct step_result *r, uint64_t session);
struct msg *msg_action(const struct cluster_action *a);
struct msg *msg_beat(uint64_t session, uint32_t epoch, const struct cluster_stage_state *states, uint32_t n_states);
void msg_free(struct msg *m);
void net_send(struct net *n, uint32_t from, uint32_t to, struct msg *m); // takes m
struct msg *net_take(struct net *n, uint32_t link);                      // the next one that is due, or NULL
uint32_t net_waiting(const struct net *n, uint32_t from, uint32_t to);   // messages under way
void net_cut(struct net *n, uint32_t link, uint64_t until_us);
void net_drop(struct net *n, uint32_t link); // forgets what is under way
// Forgets what is under way of a connection between two nodes.
void net_break(struct net *n, uint32_t from, uint32_t to, uint64_t connection);
