// What holder.c (arrival, order of jobs) and merge.c (chunks) share. Nobody else includes it.
#pragma once
#include "replay/holder.h"
#include "replay/keep.h"

struct job {
    struct holder_job job;
    uint32_t n_kept; // steps, from the oldest one on, that it covers
    bool forgotten;  // a replay or a reset made its result void
    // Of a chunk; made with the first one.
    struct step *step;
    uint8_t *hidden, *fault;
};

// What a sequence has in the chunk that is formed.
struct merge_slot {
    uint32_t rows, blocks;
    uint32_t from; // index of the first step of the chunk whose rows count: those before were released
    uint32_t seq;  // its place in the chunk; UINT32_MAX: none yet
    bool released;
};

struct holder {
    struct holder_config config;
    bool hot, fed, replaying, broken; // broken: a piece of the replay was refused
    bool idle;
    bool forgot; // within this epoch: only a replay helps
    uint32_t chunk_rows;
    uint64_t accepted, done, stable, as_of;
    uint64_t catch_up; // hot: steps up to this one were stable when it became so
    struct keep keep;  // jobs that are out, dead ones, what waits
    struct kept *next; // the oldest that waits
    uint32_t n_waiting, waiting_rows;
    uint64_t waiting_bytes, replayed_rows, dropped_rows;
    struct job jobs[HOLDER_JOBS]; // a ring
    uint32_t job_at, n_jobs;
    uint32_t replay_pos[LIMIT_SEQS]; // where the next piece goes on
    uint32_t every_slot[LIMIT_SEQS]; // 0, 1, 2, ...
    struct merge_slot of_slot[LIMIT_SEQS];
};

// Makes the job of as many steps as go into one chunk, from h->next on, up to step `last`. Sets j->job and j->n_kept,
// and returns how many rows were left out.
uint32_t merge_steps(struct holder *h, struct job *j, uint64_t last);
