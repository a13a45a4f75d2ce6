// The table of streams that can be resumed: those in the making, those whose client went away and may come back, and
// for a while those that ended. Any thread. Its lock comes before the answers'.
#pragma once
#include "gateway/answer.h"

struct keep;

struct keep *keep_new(struct answer_shared *s, uint32_t resume_ms); // NULL: no memory
// Cancels what nobody reads and lets go of all.
void keep_free(struct keep *k);

// False: it is full, or the id's number is taken; the answer cannot be resumed then.
bool keep_add(struct keep *k, struct answer *a);
void keep_remove(struct keep *k, struct answer *a);
// A reference, NULL: it is not, or no longer, known.
struct answer *keep_find(struct keep *k, const char *id);
// Once in a while: lets go of those that nobody came back for.
void keep_tick(struct keep *k, uint64_t now_ms);
// Goes on with what an earlier process left.
void keep_restore(struct keep *k);
