// The scheduler: from requests to steps and from results to tokens. It decides and does no I/O: the caller sends the
// steps that sched_form makes and feeds the results that come back. One thread calls it; times do not matter to it.
//
// Owns the sequences (prompt and every token drawn), the KV accounting and the steps in flight.
//
//   - Admission is first come, first served, against free blocks and max_seqs.
//   - A step takes decode rows first; prefill chunks fill it up to chunk_rows, the sequences taking turns. With several
//     stages a chunk is a slice of the prompt, so that they work on it at the same time and decode rows wait less.
//   - Up to n_stages + 1 steps are in flight. At most n_stages of them decode, with an equal share of the sequences
//     each: with fewer a stage would idle, with more each step would read all weights for fewer rows. The one more is
//     for prefill, and hides the way to the head and back.
//   - When blocks run out, the sequence admitted last goes back to the front of the queue and is computed again later
//     from prompt and tokens drawn. The oldest never yields, so all end. Tokens are a pure function of what came
//     before: those that a step in flight still brings for it count.
//   - Each token becomes one event, in order, whatever is computed twice.
#pragma once
#include "base/gen.h"
#include "base/step.h"

struct sched_config {
    uint32_t n_vocab;
    uint32_t max_context; // tokens of a sequence, prompt and answer; <= LIMIT_CONTEXT
    uint32_t chunk_rows;  // rows of a step; 1 .. LIMIT_STEP_ROWS
    uint32_t max_seqs;    // running at once; 1 .. LIMIT_SEQS
    uint32_t max_blocks;  // the most that a route will have
};

struct sched;

int sched_new(const struct sched_config *c, struct sched **s, struct err *e) MUST_CHECK;
void sched_free(struct sched *s);

// ERR_LIMIT: can never fit; ERR_USAGE: a token or a sampling parameter out of range; ERR_UNAVAILABLE: the queue is
// full. An answer that goes on (r->n_known) is computed from prompt and known tokens, as after a preemption.
int sched_submit(struct sched *s, uint64_t id, const struct gen_request *r, struct err *e) MUST_CHECK;
// Frees its blocks at once; the stages hear of it with the next step. Unknown or finished: nothing happens.
void sched_cancel(struct sched *s, uint64_t id);
// Ends all sequences with GEN_FAILED.
void sched_fail_all(struct sched *s, int code, const char *text);

// A route serves. All that was running is computed again, in the order of admission; sequences that can never fit into
// its blocks end with GEN_FAILED.
void sched_route_up(struct sched *s, uint32_t epoch, uint32_t n_stages, uint32_t n_blocks);
// The route is gone with all that was in flight. Sequences wait; their tokens stay.
void sched_route_down(struct sched *s);

// The next step to send, NULL if none is due. Valid until the next call on s.
const struct step *sched_form(struct sched *s);
// The sequences that begin with that step, for the first time or anew, as the ids of their requests: ids [LIMIT_SEQS];
// returns how many.
uint32_t sched_begun_ids(const struct sched *s, uint64_t *ids);
// Of another epoch, or of a step that is not the oldest in flight: nothing happens. ERR_FORMAT: the entries do not
// belong to the step that was sent, or a token is not in the vocabulary; nothing was taken from it. *done: the result
// ended the oldest step in flight.
int sched_result(struct sched *s, const struct step_result *r, bool *done, struct err *e) MUST_CHECK;
// The next event for the one who asked, in order; false if there is none. e->text is valid until the next call on s.
bool sched_next_event(struct sched *s, struct gen_event *e);

struct sched_counts {
    uint32_t n_running, n_waiting, n_blocks, blocks_used, n_in_flight;
    uint64_t n_preemptions, n_steps, n_tokens, n_prefill_rows;
};
void sched_counts(const struct sched *s, struct sched_counts *c);
// Dies unless lists, counts and KV accounting agree. For tests.
void sched_check(const struct sched *s);
