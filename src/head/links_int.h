// Inside head/links*.c only.
#pragma once
#include "base/list.h"
#include "base/map.h"
#include "head/links.h"
#include "net/link.h"
#include "os/queue.h"
#include "os/thread.h"

enum {
    LINKS_NODE_CONTROL = 16 << 10,  // of a frame from a node's urgent link
    LINKS_BULK_CONTROL = 128 << 10, // of a question
    LINKS_QUEUE_BYTES = 32 << 20    // output that may wait for one peer
};

enum peer_kind { PEER_NEW, PEER_BULK, PEER_NODE };

// One proven (or enrolling) connection.
struct peer {
    struct list all;
    struct links *links;
    struct link *link;
    uint64_t id; // of this connection, never used twice; a node's number too
    enum peer_kind kind;
    uint32_t asks; // questions that wait for their answer
    // PEER_NODE
    struct links_node info;
    uint32_t port;
    uint64_t boot, heard_us; // of its process; when its last frame came
    bool is_last;            // of the route of info.epoch
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
    uint64_t boot; // random, of this process
    struct ca *ca;
    struct ident *ident;
    struct tls *tls;
    struct listener *listener;
    struct control *control;
    struct list peers;
    struct map nodes; // number -> peer of kind PEER_NODE
    uint64_t next_id;
    uint32_t key_epoch;
    uint8_t route_key[CONTROL_KEY_BYTES];
    struct serve serve;
    struct loop_watch *answers;
};

// links_join.c: what a connection may say before it is a node.
void links_enrol(struct peer *p, const struct link_frame *f);
void links_join(struct peer *p, const struct link_frame *f);
// links.c
// Tells the peer, ends the connection. retry: the peer may come again, later.
void links_refuse(struct peer *p, const char *why, bool retry);
void links_nonsense(struct peer *p, const char *why); // ends it without a word; a node is lost with it
