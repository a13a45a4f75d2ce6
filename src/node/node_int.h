// Inside node/ only: the node's state on the loop thread, shared by node.c (start and end), session.c (the head),
// route.c (the stages beside this one).
#pragma once
#include "net/link.h"
#include "node/compute.h"
#include "node/node.h"

enum {
    NODE_RETRY_MIN_MS = 100, // between attempts to reach the head
    NODE_RETRY_MAX_MS = 5000,
    NODE_STEADY_MS = 5000,         // joined for so long without a failure: the next attempt comes at once again
    NODE_NEXT_RETRY_MS = 100,      // between attempts to reach the next stage's node
    NODE_NEXT_CONNECT_MS = 1000,   // for one of them
    NODE_LOADS = 16,               // LOADs that wait for the compute thread
    NODE_NEXT_MS = 3000,           // for all of them, from the LOAD or from the end of the last good one
    NODE_BYE_MS = 50,              // for the last frames to leave
    NODE_SILENT_MS = 5000,         // a head that echoes no heartbeat for so long (or 20 heartbeats) is gone
    NODE_ATTACH_WAITING = 16,      // links of upstream nodes that wait for this node's LOAD
    NODE_ATTACH_MS = 10000,        // for so long
    NODE_QUEUE_BYTES = 256 << 20,  // output that may wait for the next stage
    NODE_CONTROL_BYTES = 256 << 10 // control bytes of a frame from a proven peer
};

// A link whose ATTACH came, perhaps before the LOAD of that epoch.
struct node_attach {
    struct link *link; // NULL: free
    uint32_t epoch;
    uint64_t until_us;
    uint8_t key[CONTROL_KEY_BYTES];
};

struct node {
    const struct node_config *config;
    struct loop *loop;
    struct ident *ident;
    struct tls *tls_connect, *tls_listen;
    struct listener *listener;
    struct loop_watch *term, *interrupt, *done_watch, *ask_watch;
    struct loop_timer *heartbeat_timer, *retry_timer, *next_timer, *blame_timer, *attach_timer;
    struct loop_timer *stop_timer;
    struct control *control;
    struct compute compute;
    char head_address[CONTROL_ADDRESS_MAX];
    char name[CONTROL_NAME_MAX];
    uint64_t selftest, memory_bytes, boot;
    enum isa isa;
    bool stopping;
    int rc; // what node_run returns, with e
    struct err e;

    // The session with the head: bulk comes up first, then head, which joins.
    struct link *bulk, *head;
    bool joined;
    struct node_model model;
    uint64_t heartbeat_us, echo_at_us, rtt_us, retry_ms;
    uint64_t good_since_us; // joined, and no FAILED since

    // The epoch. load counts all LOADs of this process, since a restarted head may use an epoch's number again.
    uint64_t load;
    uint32_t n_loads; // at the compute thread
    uint32_t epoch, stage_index;
    bool assigned, failed, ready_sent, is_last;
    struct control_load route;
    struct stage *stage; // resident and valid for this epoch, or NULL; only stage_counts is called here
    uint64_t stage_bytes;
    uint64_t accepted_step, done_step;
    struct link *next, *prev;
    uint64_t next_until_us; // when it must be up
    char blame[320];        // why it is not, or broke: told if the head has not changed the route by then
    struct node_attach attach[NODE_ATTACH_WAITING];

    struct work *idle[LIMIT_STEPS_IN_FLIGHT]; // step work that nobody has
    uint32_t n_idle;
};

// node.c: ends the loop; node_run returns rc and the text.
void node_stop(struct node *n, int rc, const char *why);

// session.c
int session_init(struct node *n, struct err *e) MUST_CHECK;
void session_dial(void *node);
void session_bye(struct node *n); // tells the head that this node leaves; the links end
void session_fini(struct node *n);
void session_send_ready(struct node *n);
void session_send_failed(struct node *n, const char *why); // once an epoch

// route.c
int route_init(struct node *n, struct err *e) MUST_CHECK;
void route_fini(struct node *n);
void route_forget(struct node *n); // the session is over: nothing is assigned any more
void route_load(struct node *n, const struct frame_header *h, const struct control_load *m);
void route_step(struct node *n, const struct link_frame *f);

// route_step.c: the pool of step work, and what comes back from the compute thread.
int route_steps_init(struct node *n) MUST_CHECK;
void route_done(void *node);
void route_check_ready(struct node *n);

// enrol.c: shows a join token to the head and keeps what comes back in state_dir.
int enrol(const char *token_text, const char *state_dir, struct ident **id, char address[CONTROL_ADDRESS_MAX],
          struct err *e) MUST_CHECK;
