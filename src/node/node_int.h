// Inside node/ only: the node's state on the loop thread.
//
//   node.c     life: start, signals, end           session.c  the link to the head
//   assign.c   stages that the head assigned       jobs.c     their jobs, to the compute threads and back
//   peers.c    links between nodes                 feed.c     steps in and out
//   hold.c     layers that are resident            compute.c, loader.c, fetch.c, cache.c: the compute threads' side
#pragma once
#include "net/link.h"
#include "node/assign.h"
#include "node/local_ctl.h"
#include "node/node.h"
#include "node/presence.h"

enum {
    NODE_RETRY_MIN_MS = 100, // between attempts to reach the head
    NODE_RETRY_MAX_MS = 5000,
    NODE_STEADY_MS = 5000,          // joined for so long without a failure: the next attempt comes at once again
    NODE_KEEP_MS = 30000,           // stages and their sequences without a head
    NODE_NEXT_RETRY_MIN_MS = 20,    // between attempts to reach a holder of the next stage: twice as long each time
    NODE_NEXT_RETRY_FIRST_MS = 100, // at most, if it serves
    NODE_NEXT_RETRY_MAX_MS = 2000,  // if it does not
    NODE_NEXT_CONNECT_MS = 1000,    // for one of them
    NODE_NEXT_MS = 3000,            // for all of them, from the LOAD on
    NODE_BLAME_MIN_MS = 150,        // down for so long (or 2 heartbeats), after READY: the head is told
    NODE_GAP_MS = 500,              // who filled a holder is silent for so long: it will not close a gap any more
    NODE_EMPTY_MS = 3000,           // an empty holder that hears steps waits so long before it asks for a replay
    NODE_REPLAY_OWED_MS = 300,      // a link that breaks so soon after a replay may have lost the end of it
    NODE_BYE_MS = 50,               // for the last frames to leave
    NODE_SILENT_MS = 5000,          // a head that echoes no heartbeat for so long (or 20 heartbeats) is gone
    NODE_ATTACHED = 64,             // links of nodes before this one
    NODE_ATTACH_MS = 10000,         // for so long one of them waits for this node's LOAD
    NODE_QUEUE_BYTES = 256 << 20,   // output that may wait for a holder of the next stage
    NODE_CONTROL_BYTES = 256 << 10, // control bytes of a frame from a proven peer
    NODE_CHUNK_US = 4000,           // a lazy job should take: so long a stage that is made hot may wait for it
    NODE_IDLE_MS = 500,             // no step for so long: what waits for company is run; far above the time of a step
    NODE_CHUNK_ROWS_MIN = 16
};

enum { NODE_SENDER_HEAD = 1 }; // see senders

// A link of a node that holds the stage before one of this node's.
struct node_attached {
    struct link *link;     // NULL: free
    uint32_t epoch, stage; // of the one that sends
    bool settled;          // the key is right, and the other end was told that it may send
    uint64_t until_us;     // else
    uint64_t sender;       // its number
    uint8_t key[CONTROL_KEY_BYTES];
};

struct node {
    const struct node_config *config;
    struct loop *loop;
    struct ident *ident;
    struct tls *tls_connect, *tls_listen;
    struct listener *listener;
    struct loop_watch *term, *interrupt, *done_watch, *ask_watch;
    struct loop_timer *heartbeat_timer, *retry_timer, *attach_timer, *stop_timer, *drain_timer;
    struct loop_timer *settle_timer, *keep_timer;
    struct control *control;
    struct compute compute;
    struct hold_list holds;
    struct presence presence;
    struct local_ctl *local_ctl;
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
    uint64_t number; // the head's name for this node, from WELCOME to WELCOME
    struct node_model model;
    uint64_t heartbeat_us, echo_at_us, rtt_us, retry_ms;
    uint64_t good_since_us; // joined, and no FAILED since

    // Leaving: the owner wants the machine back, or the process was told to stop.
    bool away, may_leave, ending;
    char away_why[CONTROL_TEXT_MAX];

    // What the head assigned; all that is not ENDED is of this epoch.
    uint32_t epoch;
    uint64_t stable; // of that epoch: every holder of every stage has this step, as far as this node heard
    struct list assignments;
    uint32_t lazy_out; // jobs at the lazy thread, 1 at most: what turns hot has little to wait for
    struct node_attached attached[NODE_ATTACHED];
    uint64_t senders;  // numbers given to those who send steps; none twice
    struct step *step; // scratch: a step as it came in
    uint8_t *fault;    // [LIMIT_STEP_ROWS] its faults
};

// node.c: ends the loop; node_run returns rc and the text.
void node_stop(struct node *n, int rc, const char *why);
// Asks the head to do without this node / tells it that the node may be used again. Also while no head is joined.
void node_leave(struct node *n, const char *why);
void node_return(struct node *n);
bool node_is_away(const struct node *n); // it left, and nothing depends on it
void node_may_leave(struct node *n);     // the head says so

// session.c
int session_init(struct node *n, struct err *e) MUST_CHECK;
void session_dial(void *node);
void session_bye(struct node *n); // tells the head that this node leaves; the links end
void session_fini(struct node *n);
// A frame without content, if a head is there.
void session_send(struct node *n, enum frame_type t, uint32_t epoch, uint32_t stage, uint64_t step);
void session_send_failed(struct node *n, uint32_t epoch, uint32_t stage, enum stage_failure what, const char *why);
void session_send_tokens(struct node *n, const struct assignment *a, const struct step_result *r);
void session_send_leave(struct node *n);

// peers.c
int peers_init(struct node *n, struct err *e) MUST_CHECK;
void peers_fini(struct node *n);

// enrol.c: shows a join token to the head and keeps what comes back in state_dir.
int enrol(const char *token_text, const char *state_dir, struct ident **id, char address[CONTROL_ADDRESS_MAX],
          struct err *e) MUST_CHECK;
