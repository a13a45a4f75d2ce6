// Steps and their rows kept in the order in which they came: what holder and sent have in common. Nobody else includes
// it. A kept step does not move, and only the oldest one can be taken out; memory comes in segments that are used
// again, so that a stream of steps that goes through allocates nothing.
#pragma once
#include "base/list.h"
#include "base/step.h"
#include <stddef.h>

struct kept {
    struct list link;  // in keep.steps
    struct step step;  // its arrays lie behind this struct
    uint8_t *hidden;   // [step.n_rows][hidden_bytes], aligned to 64; NULL without
    uint8_t *fault;    // [step.n_rows]; NULL without
    uint64_t bytes;    // of all this
    bool replay, last; // a piece of a replay, its last one
    bool dead;         // nobody wants it any more, but older ones are still in use
};

struct keep {
    uint32_t hidden_bytes;
    bool faults;
    uint64_t segment_bytes, held_bytes, unused_bytes; // held: segments, used or not
    struct list steps;                                // of struct kept, the oldest first
    struct list used, unused;                         // segments
};

// max_bytes: what will be given to keep_push; segments are a part of it.
void keep_init(struct keep *k, uint32_t hidden_bytes, bool faults, uint64_t max_bytes);
void keep_fini(struct keep *k);
// Copies; fault NULL means zeros. NULL: held_bytes would exceed max_bytes, or there is no memory.
struct kept *keep_push(struct keep *k, const struct step *step, const void *hidden, const uint8_t *fault,
                       uint64_t max_bytes);
void keep_pop(struct keep *k);                  // the oldest
uint64_t keep_used_bytes(const struct keep *k); // segments with steps in them, to the end
void keep_trim(struct keep *k);                 // gives unused memory back
// The one after r, or the oldest if r is NULL; NULL: there is none.
struct kept *keep_next(const struct keep *k, const struct kept *r);
