// What sched.c (life of a sequence) and form.c (forming steps) share. Nobody else includes it.
//
//                        admit                      last known row sent
//     submit -> WAITING --------> PREFILL ------------------------------> FLIGHT <---+
//                  ^                 |                                      |        | row sent
//                  |  preempted,     |                           token back v        |
//                  +--- or route ----+------------------------------------ READY ----+
//                       lost                (from any of the three)
//
// A sequence knows n_tokens tokens (prompt and drawn) and has sent the rows of the first n_sent of them on this route.
// PREFILL: n_sent < n_tokens. FLIGHT: n_sent == n_tokens, the next token is on its way. READY: one row to send. It
// leaves from any state when it ends.
#pragma once
#include "base/list.h"
#include "base/map.h"
#include "kv/kv.h"
#include "sched/sched.h"

enum seq_state { SEQ_WAITING, SEQ_PREFILL, SEQ_FLIGHT, SEQ_READY };

struct seq {
    struct list order; // in sched.waiting or sched.running
    struct list work;  // in sched.prefill or sched.ready, or in a step being formed; alone in FLIGHT and WAITING
    enum seq_state state;
    uint64_t id;
    uint32_t slot;              // KV_NONE while WAITING
    uint32_t n_prompt, n_total; // n_total: prompt and max_tokens
    uint32_t n_tokens, n_sent;
    uint32_t n_blocks_sent; // entries of the block table that stages know
    uint32_t n_take;        // rows in the step being formed
    struct sampling sampling;
    uint32_t n_stop_ids;
    int32_t stop_ids[LIMIT_STOP_IDS];
    int32_t tokens[]; // [n_total]
};

struct flight_entry {
    uint64_t seq;
    uint32_t slot, draw; // draw: position of the token drawn
    bool sample;
};

// A step on its way. Sequences are named by id, because they may end before it is back.
struct flight {
    uint64_t step;
    uint32_t n;
    bool decodes;
    struct flight_entry entry[LIMIT_SEQS];
};

struct event {
    struct gen_event e;
    char text[192];
};

enum { EVENTS_MAX = LIMIT_QUEUED + 4 * LIMIT_SEQS };

struct sched {
    struct sched_config config;
    struct kv *kv;
    struct map seqs;              // id -> struct seq
    struct list waiting, running; // running: in the order of admission
    struct list prefill, ready;
    uint32_t n_waiting, n_running, n_prefill;
    bool up;
    uint32_t epoch, n_stages;
    uint64_t next_step;     // id
    struct step *step;      // the one formed last
    struct flight *flights; // [LIMIT_STEPS_IN_FLIGHT] a ring
    uint32_t flight_at, n_flights, n_decode_flights;
    struct event *events; // [EVENTS_MAX] a ring
    uint32_t event_at, n_events;
    uint64_t n_preemptions, n_steps, n_tokens, n_prefill_rows;
};

// Blocks that a sequence needs until its end: the last token is never a row.
static inline uint32_t seq_blocks_total(const struct seq *q) { return kv_blocks_of(q->n_total - 1); }

// Takes a running sequence off the route; it is in no list of order afterwards, and WAITING.
void seq_unplace(struct sched *s, struct seq *q);
