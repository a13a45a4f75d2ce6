// What a stage has sent to the holders of the stage after it, kept for as long as somebody may need it again. The head
// has one too: to stage 0 it sends steps without rows.
//
//   steps   the last ones, whole, until every holder of every stage has them ("stable") and every cursor is past them
//   rows    of each sequence whose slot is live, from position 0 on: what fills a holder that starts empty
//
// A cursor is one holder's place in it. It begins either with the step after `stable`, or with a replay: the rows of
// every sequence as they were after some step, not before `stable`, and then the steps after that one. A released
// slot's rows stay until its release is stable and no replay that began before it is under way. A replay begins when
// everything up to stable was computed here; until then its cursor has nothing to give.
//
// Steps up to stable that were merged, or that the bound took from a slow cursor, are not there one by one. A cursor
// passes over them, since whoever needed them has them; only one that came with a replay may be lost by it.
//
// Plain data: no I/O, no clock. One thread uses it. Rows are `hidden_bytes` of payload and one fault byte each; 0
// hidden bytes: none of both (tokens are enough for stage 0).
#pragma once
#include "base/err.h"
#include "base/step.h"

struct sent;
struct sent_cursor;

struct sent_config {
    uint32_t hidden_bytes; // of a row
    uint32_t max_rows;     // of one piece of a replay; 1 .. LIMIT_STEP_ROWS
    uint64_t max_bytes;    // bound of everything held: rows, steps
};

int sent_new(const struct sent_config *c, struct sent **s, struct err *e) MUST_CHECK;
void sent_free(struct sent *s);  // cursors too
void sent_reset(struct sent *s); // a new epoch: nothing was sent; cursors are closed

// What the stage computed: a step (in order, each id once; one known already changes nothing), or several steps merged
// into one that carries the id of the last of them (a shadow's; only up to stable). hidden [n_rows][hidden_bytes],
// fault [n_rows] (NULL with 0 hidden bytes); copied. Where the bound is reached, the slowest cursors have to give up
// first what is stable. ERR_LIMIT: that was not enough, or memory ran out: from now on until sent_reset there is no
// replay (sent_open says so); steps go on, the newest are kept.
int sent_step(struct sent *s, const struct step *step, const void *hidden, const uint8_t *fault,
              struct err *e) MUST_CHECK;
// Or a piece of a replay that filled this stage. The step as of which it was taken is stable; last: it is the last
// piece. The first one, which releases all sequences, forgets all rows at once. Cursors stay.
void sent_replayed(struct sent *s, uint64_t as_of, bool last, const struct step *piece, const void *hidden,
                   const uint8_t *fault);
// Every holder of every stage has this step and all before it. Never goes back.
void sent_stable(struct sent *s, uint64_t step);

// ERR_UNAVAILABLE: what it needs is not here any more. ERR_NOMEM. A cursor keeps the steps that it has not passed.
int sent_open(struct sent *s, bool replay, struct sent_cursor **c, struct err *e) MUST_CHECK;
void sent_close(struct sent_cursor *c); // NULL is fine

enum sent_kind {
    SENT_NOTHING, // up to date
    SENT_REPLAY,  // a piece of the replay
    SENT_STEP,
    SENT_LOST // this cursor was so slow that the bound took what it needed: to be closed
};
struct sent_piece {
    uint64_t step;           // SENT_STEP: its id. SENT_REPLAY: the step as of which it is
    bool first, last;        // SENT_REPLAY. An empty replay is one piece without sequences
    const struct step *what; // SENT_REPLAY: sequences with whole rows from where the piece before stopped, their block
                             // table entries, no releases, no sampling
    const void *hidden;      // [what->n_rows][hidden_bytes]
    const uint8_t *fault;    // [what->n_rows]
};
// The next piece, and the cursor goes past it. Pointers are valid until the next call on the sent.
enum sent_kind sent_next(struct sent_cursor *c, struct sent_piece *p);
// Whether sent_next would give something.
bool sent_waits(const struct sent_cursor *c);

struct sent_counts {
    uint64_t bytes; // held
    uint32_t n_steps, n_slots;
    bool complete; // a replay is possible
};
void sent_counts(const struct sent *s, struct sent_counts *c);
