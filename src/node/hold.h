// Layers that are resident here, or on their way. The list is the loop thread's; the stages inside are the compute
// threads'. A holding outlives the assignments that use it: the next one of the same layers finds it.
//
//      hold_want: new                 loaded                  memory is needed for others
//     --------------> LOADING ---------------------> RESIDENT ---------------------------> FREEING -> gone
//                        |  failed, or given up because no assignment wants it: gone
#pragma once
#include "base/list.h"
#include "engine/stage.h"

#include <stdatomic.h>

struct compute;
struct work;
struct assignment;

// What WELCOME told.
struct node_model {
    struct hparams hparams;
    struct run_mode mode;
    uint32_t max_rows, max_context;
    uint64_t plan_hash;
    uint64_t head_boot; // the head's process: its model's bytes do not change, another one's may be others
};

struct hold_key {
    uint64_t plan_hash, head_boot;
    uint32_t a, b, n_blocks, max_rows, max_context;
};

enum hold_state { HOLD_LOADING, HOLD_RESIDENT, HOLD_FREEING };

struct holding {
    struct list all;
    enum hold_state state;
    struct hold_key key;
    struct node_model model; // by which it was made
    uint64_t memory_bytes;
    uint64_t used;           // counts up with each use: the least one was not used for the longest time
    bool named;              // hold_name
    struct assignment *user; // NULL: nobody's
    atomic_bool given_up;    // of LOADING: the loader stops
    struct stage *stage;     // once RESIDENT
    struct backend *be;      // by which it computes now; the compute thread's that runs it
    struct work *work;       // LOAD, then FREE
};

struct hold_list {
    struct list all;
    struct compute *compute;
    uint64_t max_bytes, uses;
    uint32_t n_works; // LOADs and FREEs at the lazy thread
};

struct hold_key hold_key_of(const struct node_model *m, uint32_t a, uint32_t b, uint32_t n_blocks);

void hold_init(struct hold_list *l, struct compute *c, uint64_t max_bytes);
void hold_fini(struct hold_list *l); // frees all; the compute threads have ended

// Before hold_want: which layers the assignments of the present epoch name. Others make room when memory is needed.
void hold_unname_all(struct hold_list *l);
void hold_name(struct hold_list *l, const struct hold_key *k);
// The layers for user: resident, or on their way (state says which). ERR_UNAVAILABLE: wait, and ask again when a work
// or a job of an ended assignment came back. ERR_LIMIT, ERR_NOMEM: they do not fit.
int hold_want(struct hold_list *l, const struct hold_key *k, const struct node_model *m, struct assignment *user,
              struct holding **h, struct err *e) MUST_CHECK;
void hold_release(struct hold_list *l, struct holding *h); // its user has ended; NULL is fine
// Loads that nobody uses are given up. Of resident layers that nobody uses, those of another head's process are freed;
// with `idle` all.
void hold_tidy(struct hold_list *l, uint64_t head_boot, bool idle);
// A LOAD or FREE came back. True: h is resident now, and its user (if any) may go on. False: h is gone; *user had it.
bool hold_done(struct hold_list *l, struct work *w, struct assignment **user);

uint64_t hold_bytes(const struct hold_list *l);
