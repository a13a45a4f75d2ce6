// Inside head/links*.c only.
#pragma once
#include "base/list.h"
#include "base/map.h"
#include "head/links.h"
#include "net/link.h"
#include "os/queue.h"
#include "os/thread.h"
#include "replay/sent.h"

enum {
    LINKS_NODE_CONTROL = 16 << 10,  // of a frame from a node's urgent link
    LINKS_BULK_CONTROL = 128 << 10, // of a question
    LINKS_QUEUE_BYTES = 32 << 20,   // output that may wait for one peer
    LINKS_SENT_BYTES = 1 << 30      // what was sent to stage 0: tokens only, so that this is far away
};

enum peer_kind { PEER_NEW, PEER_BULK, PEER_NODE, PEER_GONE };

// One proven (or enrolling) connection. When it ends it becomes PEER_GONE, and the loop frees it later: whoever works
// for it at that moment still has it.
struct peer {
    struct list all; // of links.peers, or links.gone
    struct links *links;
    struct link *link; // NULL: gone
    uint64_t id;       // of this connection, never used twice; a node's number too
    enum peer_kind kind;
    bool enrolled; // it has its certificate, and will come again
    uint32_t asks; // questions that wait for their answer
    // PEER_NODE
    struct links_node info;
    uint32_t port;
    uint64_t boot, heard_us; // of its process; when its last frame came
    // What could not be done for it, to be told by the loop, since the brain may be at work now.
    bool fails;
    uint32_t fails_epoch, fails_stage;
};

// A node that holds stage 0, and its place in what was sent.
struct feed {
    uint64_t node;
    struct sent_cursor *cursor;
};

// A question about weights on its way through the helper thread, and its answer on the way back.
struct serve_job {
    uint64_t peer;
    struct frame_header h; // of the question; then of the answer
    uint32_t control_bytes;
    uint8_t *control;
    void *payload; // malloc
    uint32_t payload_bytes, payload_crc;
    int rc; // ERR_*: the question was nonsense
    struct err e;
};

// The helper: hashes tensors (once each) and copies pieces of them, which may wait for the disk.
struct serve {
    const struct tensors *tensors;
    struct queue asks, answers; // answers has an fd
    struct thread thread;
    struct control *control;
    struct control_ask *ask;           // scratch
    struct control_manifest *manifest; // scratch
    struct strmap index;               // name -> number
    uint8_t (*sha)[CONTROL_SHA_BYTES]; // [n]
    bool *hashed;                      // [n]
    uint32_t n_ahead;                  // so many were hashed without a question, or before
    bool running;
};

int serve_init(struct serve *s, const struct tensors *t, struct err *e) MUST_CHECK;
void serve_fini(struct serve *s);
int serve_push(struct serve *s, uint64_t peer, const struct link_frame *f) MUST_CHECK;
void serve_free_job(struct serve_job *j);

struct links {
    struct loop *loop;
    struct links_handlers handlers;
    struct links_model model;
    char *state_dir;
    int lock; // on state_dir: one head has it
    uint64_t heartbeat_us, selftest;
    uint64_t boot; // random: of this process, or of the first one with these weights
    struct ca *ca;
    struct ident *ident;
    struct tls *tls;
    struct listener *listener;
    struct control *control;
    struct list peers, gone;
    struct loop_timer *later; // frees those that are gone, tells what failed
    struct map nodes;         // number -> peer of kind PEER_NODE
    uint64_t waited_gone;     // of nodes that are gone
    uint64_t next_id;
    uint32_t epoch; // of the last LOAD
    uint8_t route_key[CONTROL_KEY_BYTES];
    struct sent *sent;
    struct feed feed[LIMIT_HOLDERS];
    uint32_t n_feeds;
    uint64_t stable;
    bool sent_full;    // was logged
    bool feed_fails;   // a replay that was asked for cannot be given: to be told, as with peers
    struct err feed_e; // why
    struct serve serve;
    struct loop_watch *answers;
};

// links_join.c: what a connection may say before it is a node.
void links_enrol(struct peer *p, const struct link_frame *f);
void links_join(struct peer *p, const struct link_frame *f);
// links_route.c: the steps that go to stage 0.
void links_pump(struct links *k, uint64_t node); // there is room on the way to it
bool links_holds_last(const struct links_node *n);
// links.c
struct links_stage *links_stage_of(struct links_node *n, uint32_t stage); // NULL: it does not hold it
// Takes a peer out of everything, without a call; its link is the caller's to end, before. True: it was a node.
bool links_forget(struct peer *p);
// Tells the peer, ends the connection. retry: the peer may come again, later.
void links_refuse(struct peer *p, const char *why, bool retry);
// Ends it; a node is told why, and lost.
void links_nonsense(struct peer *p, const char *why);
void links_say_bye(struct peer *p, const char *why); // to a node that is to go
