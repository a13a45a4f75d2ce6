// Inside node/ only. One stage that this node holds in one epoch, and everything about it. All on the loop's thread but
// for what a compute thread has in hand (struct work).
//
//   LOAD --> WAITING --> LOADING --> RESIDENT --> SERVING --- UNLOAD, LOAD of another epoch --> ENDED --> gone
//               |           |         |    ^        |
//               |           |         |    |        +--- the head is gone --> KEPT --- NODE_KEEP_MS --> ENDED
//               +-----------+---------+-> FAILED
//
//   WAITING   for memory, or until an assignment that ended has no job of these layers in hand any more
//   LOADING   the lazy thread makes the stage (or it is on its way for an assignment before this one)
//   RESIDENT  it computes. READY is told when also the link to the holder that serves the next stage stands
//   SERVING   READY was told
//   KEPT      it computes nothing new and sends nothing
//   FAILED    FAILED was told, and until the head says what is to be done it does nothing
//   ENDED     only the jobs in hand hold it back
//
// Steps are taken in from WAITING on: who sends them does not know how far this node is. `hot` is what the head wants;
// the stage itself moves from one compute thread to the other when the jobs in hand have come back.
#pragma once
#include "node/compute.h"
#include "replay/sent.h"

struct node;

enum assign_state {
    ASSIGN_WAITING,
    ASSIGN_LOADING,
    ASSIGN_RESIDENT,
    ASSIGN_SERVING,
    ASSIGN_KEPT,
    ASSIGN_FAILED,
    ASSIGN_ENDED
};

// One holder of the next stage, and how the steps get there. With no link, or a broken one, the cursor is opened again
// when there is one: with the step after `stable`, or with a replay for as long as one is owed.
struct next_holder {
    struct assignment *owner;
    struct control_holder who;
    bool is_first;            // it serves
    bool is_local;            // this node: no link
    struct link *link;        // NULL: none now
    bool attached;            // the other end has its LOAD, and takes steps
    struct loop_timer *timer; // the next attempt to dial, or the end of the present one
    uint32_t retry_ms;
    uint64_t down_since_us; // 0: attached
    char why[160];          // it is down
    struct sent_cursor *cursor;
    bool owes_replay;        // NEXT asked for one, and it has not arrived for certain
    bool has_begun;          // something was taken from the cursor
    uint64_t sender;         // of it, for a local receiver
    uint64_t replay_sent_us; // when all of it was; what the link has taken since may still be lost. 0: not yet
};

struct assignment {
    struct list all;
    struct node *node;
    enum assign_state state;
    uint32_t epoch, stage, n_stages;
    struct hold_key key; // its layers
    uint8_t route_key[CONTROL_KEY_BYTES];
    bool is_last, hot;
    uint32_t hidden, n_vocab;

    struct holding *hold;             // from LOADING on
    struct holder *holder;            // what came in
    uint64_t max_in_bytes;            // its bound
    bool full;                        // so much of it is used that those who send are made to wait
    uint64_t filled_by, filled_at_us; // who began the last replay, and when it sent its last piece or step; 0: nobody
    uint64_t empty_since_us;          // a step came that an empty holder cannot take, or it was emptied; 0: neither
    bool filling;                     // that replay is under way
    struct sent *sent;                // what went out; NULL: the last stage
    struct next_holder *next[LIMIT_HOLDERS];
    uint32_t n_next;

    // Jobs. All that are in hand are at one thread.
    struct work work[HOLDER_JOBS];
    uint32_t n_out;
    bool at_hot;         // where those are
    bool last_sends;     // the one given out last has output to be sent
    bool has_run;        // a job was given out: the first one empties the stage, which was another assignment's
    double us_per_row;   // of lazy jobs; 0: not known yet
    uint32_t chunk_rows; // of lazy jobs, while steps come
    uint64_t last_accepted, last_accepted_us; // as the last heartbeats saw it
    atomic_bool over;                         // ENDED, for the compute threads

    bool link_blamed;    // FAILED was told because of the first next holder's link
    uint64_t link_by_us; // when that one has to stand, before READY
};

// assign.c: what the head says.
void assign_load(struct node *n, const struct frame_header *h, const struct control_load *m);
void assign_unload(struct node *n, const struct frame_header *h);
void assign_next(struct node *n, const struct frame_header *h, const struct control_next *m);
void assign_hot(struct node *n, const struct frame_header *h, bool hot);
struct assignment *assign_find(const struct node *n, uint32_t epoch, uint32_t stage); // that is not over; or NULL
// It does not work here: the head is told why, once.
void assign_fail(struct assignment *a, const char *why);
void assign_check_ready(struct assignment *a);
// The head is gone: what computes is kept for a while, the rest ends.
void assign_keep_all(struct node *n);
void assign_end_kept(void *node);
// WELCOME came: what another head's process assigned, and its layers, are of no use any more.
void assign_end_foreign(struct node *n);
void assign_end_all(struct node *n);
bool assign_are_none(const struct node *n);
void assign_free(struct assignment *a); // ENDED, and no job is out
// Goes on with what waits for layers, at the end of the present round of the loop.
void assign_settle_soon(struct node *n);
void assign_settle(void *node);
bool assign_takes_steps(const struct assignment *a);
bool assign_computes(const struct assignment *a);

// jobs.c: jobs to the compute threads and back.
void jobs_pump(struct node *n);
void jobs_done(void *node); // what came back
// With each heartbeat: where no step came for a while, shadows do not wait for more rows.
void jobs_check_idle(struct node *n, uint64_t now_us);
// What a heartbeat says of it.
void jobs_describe(const struct assignment *a, struct control_stage_state *s);

// feed.c: steps and replays, in and out.
// A STEP or REPLAY. sender: a number of the link.
void feed_arrived(struct node *n, uint64_t sender, const struct link_frame *f);
// Every holder of every stage has this step of the present epoch.
void feed_stable(struct node *n, uint64_t stable);
// What came in was computed, or is of no use: whether those who wait for room may send again.
void feed_check_room(struct assignment *a);
void feed_pump(struct assignment *a); // to all holders of the next stage
void feed_pump_one(struct next_holder *h);
// With each heartbeat: whether a replay has arrived for certain.
void feed_confirm_replay(struct next_holder *h, uint64_t now_us);
// The cursors of a hot assignment; those of a lazy one are closed.
void feed_open_all(struct assignment *a);
void feed_close_all(struct assignment *a);
// The link is gone, or the local receiver is another one: what was sent may be lost.
void feed_break(struct next_holder *h);
// Of this assignment as a receiver: who feeds it from this node begins anew.
void feed_renew_local(struct node *n, uint32_t epoch, uint32_t stage);

// peers.c: links between nodes.
void peers_set_next(struct assignment *a, const struct control_next *m);
void peers_drop_next(struct assignment *a);
// Links whose ATTACH came, against the assignments there are now; those of one stage are closed.
void peers_settle(struct node *n);
void peers_detach(struct node *n, uint32_t epoch, uint32_t stage);
// Links that bring steps for this assignment are read, or not while it is full.
void peers_hold(struct assignment *a);
// With each heartbeat: links to holders that serve and that have been down for too long.
void peers_check(struct node *n, uint64_t now_us);
