// One stage at one node: which steps it has, and what it computes next. It decides and computes nothing: the caller
// feeds what comes in and carries out the jobs.
//
//             LOAD as shadow or spare                     HOT on
//     EMPTY -----------------------------> LAZY <-------------------------> HOT
//       |      first step or replay         |            HOT off             |
//       +------ LOAD as primary ------------|--------------------------------+
//
// A hot holder runs each step as it comes, and its output is sent. A lazy one (a shadow) lets steps wait until they are
// stable - every holder of every stage that counts has them, so that none of those will ever ask this holder for their
// output - and until there are enough rows, and then runs many steps as one prefill chunk whose output is not sent.
// When it becomes hot it runs what is stable then in chunks, and every later step by itself, with output: so the stage
// after it misses nothing, and what comes twice is ignored there. A step that becomes stable after that is still run by
// itself and sent, for the sake of holders that are being filled and do not count; only one that is far behind, which
// must be because another one runs beside it, runs in chunks again.
//
// Rows that wait for a sequence which ends meanwhile are never computed, if the release comes in time to go into the
// same chunk. A chunk forgets all sequences that ended in it before it computes any row, which is right as long as no
// two sequences hold the same block.
//
// Rules of arrival: steps are taken in the order 1, 2, 3, ...; one that is known is ignored, whoever sends it; a gap is
// ERR_FORMAT and changes nothing (another sender may have what is missing). A replay makes the holder empty when its
// first piece comes: the job of that piece releases every slot, so that the stage forgets what it knew. Its pieces
// come from one sender: one that continues a replay which another first piece ended is not handed over. With the last
// piece the holder has everything up to the step as of which the replay is; until then every step is a gap. Pieces of a
// replay run at once, in order, in either state.
//
// Plain data: no I/O, no clock, one thread. What is handed over has passed step_check; sequences' positions and tables
// are checked where they are computed (engine/slots).
#pragma once
#include "base/err.h"
#include "base/step.h"

struct holder;

struct holder_config {
    uint32_t hidden_bytes; // of a row of input; 0: stage 0, which needs none
    uint32_t max_rows;     // of a chunk; 1 .. LIMIT_STEP_ROWS. A single step may have more
    uint64_t max_bytes;    // bound of the memory for what waits and for jobs that are out
};

enum { HOLDER_JOBS = 4 }; // jobs that may be out at once

struct holder_job {
    const struct step *step; // to be run: id is that of its last step, of a replay the step as of which it is
    const void *hidden;      // [step->n_rows][hidden_bytes], NULL for stage 0
    uint8_t *fault;          // [step->n_rows] of the input; the one who runs it may write to it
    bool send;               // the output goes to the stage after (or the tokens to the head); else no row samples
    bool replay;             // a piece of a replay
    bool fed;                // the last piece of one: after this job the holder is level with the others
};

int holder_new(const struct holder_config *c, struct holder **h, struct err *e) MUST_CHECK;
void holder_free(struct holder *h); // no job is out
// A new epoch: nothing came yet. Jobs that are out have been finished.
void holder_reset(struct holder *h);
// Within an epoch: nothing came yet, and only a replay helps. Jobs that are out may be.
void holder_forget(struct holder *h);

// hidden and fault (NULL: zeros) are copied. ERR_FORMAT: a gap; ERR_LIMIT: more waits than the bound allows. The holder
// is as before then; after ERR_FORMAT or ERR_LIMIT of a piece only a further first piece is taken.
int holder_step(struct holder *h, const struct step *s, const void *hidden, const uint8_t *fault,
                struct err *e) MUST_CHECK;
int holder_replay(struct holder *h, uint64_t as_of, bool first, bool last, const struct step *piece, const void *hidden,
                  const uint8_t *fault, struct err *e) MUST_CHECK;
void holder_stable(struct holder *h, uint64_t step);
void holder_set_hot(struct holder *h, bool hot);
// Rows that a lazy holder collects before it runs them; 1 .. max_rows. A step without rows counts as one: with 1
// everything that is stable runs.
void holder_set_chunk(struct holder *h, uint32_t rows);
// Where no steps come for a while nothing is worth waiting for: what is stable runs at once, in chunks as large.
void holder_set_idle(struct holder *h, bool idle);

// The next job, or NULL. Jobs are carried out and finished in the order in which they were given.
const struct holder_job *holder_next(struct holder *h);
void holder_done(struct holder *h, const struct holder_job *job);

struct holder_counts {
    bool hot, fed;           // fed: everything up to `accepted` is here: it started with step 1 or had a whole replay
    uint64_t accepted, done; // last step taken; last step computed
    uint32_t waiting_rows;   // of both kinds: stable or not, not yet given out as jobs
    uint64_t waiting_bytes;
    uint64_t used_bytes;                  // of max_bytes: what waits, and what jobs that are out were made of
    uint64_t replayed_rows, dropped_rows; // run without output; never run, because their sequence had ended
    uint32_t jobs_out;
};
void holder_counts(const struct holder *h, struct holder_counts *c);
