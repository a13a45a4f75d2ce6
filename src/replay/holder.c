#include "replay/holder_int.h"

#include <stdlib.h>
#include <string.h>

int holder_new(const struct holder_config *c, struct holder **out, struct err *e) {
    if (c->max_rows < 1 || c->max_rows > LIMIT_STEP_ROWS)
        return err_set(e, ERR_USAGE, "holder: rows of a chunk: %u is not in 1 .. %d", c->max_rows, LIMIT_STEP_ROWS);
    struct holder *h = calloc(1, sizeof *h);
    if (!h) return err_set(e, ERR_NOMEM, "holder: no memory");
    h->config = *c;
    h->chunk_rows = 1;
    keep_init(&h->keep, c->hidden_bytes, true, c->max_bytes);
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) h->every_slot[i] = i;
    *out = h;
    return ERR_OK;
}

void holder_free(struct holder *h) {
    if (!h) return;
    for (uint32_t i = 0; i < HOLDER_JOBS; i++) {
        step_free(h->jobs[i].step);
        free(h->jobs[i].hidden);
        free(h->jobs[i].fault);
    }
    keep_fini(&h->keep);
    free(h);
}

// What died can go when nothing older is out.
static void bury(struct holder *h) {
    for (struct kept *r; (r = keep_next(&h->keep, NULL)) && r->dead;) keep_pop(&h->keep);
}

// Nothing came yet. Jobs that are out keep their memory.
static void make_empty(struct holder *h) {
    for (struct kept *r = h->next; r; r = keep_next(&h->keep, r)) r->dead = true;
    for (uint32_t i = 0; i < h->n_jobs; i++) h->jobs[(h->job_at + i) % HOLDER_JOBS].forgotten = true;
    h->next = NULL;
    h->n_waiting = h->waiting_rows = 0;
    h->waiting_bytes = 0;
    h->accepted = h->done = 0;
    h->fed = h->replaying = h->broken = h->forgot = false;
    bury(h);
}

void holder_reset(struct holder *h) {
    ASSERT(h->n_jobs == 0, "%u jobs are out", h->n_jobs);
    make_empty(h);
    h->stable = h->catch_up = 0;
}

void holder_forget(struct holder *h) {
    make_empty(h);
    h->forgot = true;
}

static int keep_it(struct holder *h, const struct step *s, const void *hidden, const uint8_t *fault, struct kept **out,
                   struct err *e) {
    struct kept *r = keep_push(&h->keep, s, hidden, fault, h->config.max_bytes);
    if (!r)
        return err_set(e, ERR_LIMIT, "step %llu: %u steps wait already in %llu bytes", (unsigned long long)s->id,
                       h->n_waiting, (unsigned long long)h->keep.held_bytes);
    if (!h->next) h->next = r;
    h->n_waiting++;
    h->waiting_rows += s->n_rows;
    h->waiting_bytes += r->bytes;
    *out = r;
    return ERR_OK;
}

int holder_step(struct holder *h, const struct step *s, const void *hidden, const uint8_t *fault, struct err *e) {
    struct kept *r;
    if (s->id <= h->accepted) return ERR_OK;
    bool is_start = s->id == 1 && !h->forgot;
    if (h->replaying || s->id != h->accepted + 1 || (!is_start && !h->fed))
        return err_set(e, ERR_FORMAT, "step %llu does not follow on step %llu%s", (unsigned long long)s->id,
                       (unsigned long long)h->accepted, h->replaying ? ": a replay is not complete" : "");
    int rc = keep_it(h, s, hidden, fault, &r, e);
    if (rc) return rc;
    h->accepted = s->id;
    h->fed = true;
    return ERR_OK;
}

static int check_piece(struct holder *h, uint64_t as_of, const struct step *piece, struct err *e) {
    if (!h->replaying || h->broken || as_of != h->as_of)
        return err_set(e, ERR_FORMAT, "replay as of step %llu: its start is missing", (unsigned long long)as_of);
    if (piece->n_releases) return err_set(e, ERR_FORMAT, "replay as of step %llu: releases", (unsigned long long)as_of);
    for (uint32_t i = 0; i < piece->n_seqs; i++)
        if (piece->seqs[i].pos != h->replay_pos[piece->seqs[i].slot])
            return err_set(e, ERR_FORMAT, "replay as of step %llu: slot %u goes on at position %u, but is at %u",
                           (unsigned long long)as_of, piece->seqs[i].slot, piece->seqs[i].pos,
                           h->replay_pos[piece->seqs[i].slot]);
    return ERR_OK;
}

int holder_replay(struct holder *h, uint64_t as_of, bool first, bool last, const struct step *piece, const void *hidden,
                  const uint8_t *fault, struct err *e) {
    if (first) {
        make_empty(h);
        h->replaying = true;
        h->as_of = as_of;
        memset(h->replay_pos, 0, sizeof h->replay_pos);
    }
    int rc = check_piece(h, as_of, piece, e);
    struct step s = *piece;
    s.id = as_of;
    if (first) {
        s.n_releases = LIMIT_SEQS;
        s.releases = h->every_slot;
    }
    struct kept *r;
    if (!rc) rc = keep_it(h, &s, hidden, fault, &r, e);
    if (rc) {
        h->broken = h->replaying;
        return rc;
    }
    r->replay = true;
    r->last = last;
    for (uint32_t i = 0; i < s.n_seqs; i++) h->replay_pos[s.seqs[i].slot] = s.seqs[i].pos + s.seqs[i].n_rows;
    if (!last) return ERR_OK;
    h->replaying = false;
    h->fed = true;
    h->accepted = as_of;
    return ERR_OK;
}

void holder_stable(struct holder *h, uint64_t step) {
    if (step > h->stable) h->stable = step;
}

void holder_set_hot(struct holder *h, bool hot) {
    if (hot && !h->hot) h->catch_up = h->stable;
    h->hot = hot;
}

void holder_set_chunk(struct holder *h, uint32_t rows) {
    ASSERT(rows >= 1 && rows <= h->config.max_rows, "%u rows", rows);
    h->chunk_rows = rows;
}

void holder_set_idle(struct holder *h, bool idle) { h->idle = idle; }

// Whether enough stable rows wait to be worth a chunk.
static bool chunk_is_due(const struct holder *h) {
    uint64_t rows = 0;
    for (const struct kept *r = h->next; r && r->step.id <= h->stable; r = keep_next(&h->keep, r)) {
        rows += r->step.n_rows ? r->step.n_rows : 1;
        if (rows >= h->chunk_rows || h->idle) return true;
    }
    return false;
}

// Up to which step chunks may be made now; 0: none.
static uint64_t chunk_end(const struct holder *h) {
    if (!h->hot) return chunk_is_due(h) ? h->stable : 0;
    // More than can be under way: it is not from here that the stage after gets its steps.
    return h->n_waiting > LIMIT_STEPS_IN_FLIGHT ? h->stable : h->catch_up;
}

static void give_one(struct holder *h, struct job *j, bool send) {
    const struct kept *r = h->next;
    j->n_kept = 1;
    j->job = (struct holder_job){.step = &r->step, .hidden = r->hidden, .fault = r->fault, .send = send};
    j->job.replay = r->replay;
    j->job.fed = r->replay && r->last;
}

const struct holder_job *holder_next(struct holder *h) {
    struct kept *r = h->next;
    if (!r || h->n_jobs == HOLDER_JOBS) return NULL;
    struct job *j = &h->jobs[(h->job_at + h->n_jobs) % HOLDER_JOBS];
    uint64_t end = r->replay ? 0 : chunk_end(h);
    if (r->replay) {
        give_one(h, j, false);
    } else if (r->step.id <= end) {
        h->dropped_rows += merge_steps(h, j, end);
    } else if (h->hot) {
        give_one(h, j, true);
    } else {
        return NULL;
    }
    if (!j->job.send) h->replayed_rows += j->job.step->n_rows;
    for (uint32_t i = 0; i < j->n_kept; i++) {
        h->waiting_rows -= h->next->step.n_rows;
        h->waiting_bytes -= h->next->bytes;
        h->next = keep_next(&h->keep, h->next);
    }
    h->n_waiting -= j->n_kept;
    j->forgotten = false;
    h->n_jobs++;
    return &j->job;
}

void holder_done(struct holder *h, const struct holder_job *job) {
    struct job *j = &h->jobs[h->job_at];
    ASSERT(h->n_jobs > 0 && job == &j->job, "jobs are finished in order");
    if (!j->forgotten && (!job->replay || job->fed)) h->done = job->step->id;
    for (uint32_t i = 0; i < j->n_kept; i++) keep_pop(&h->keep);
    h->job_at = (h->job_at + 1) % HOLDER_JOBS;
    h->n_jobs--;
    bury(h);
}

void holder_counts(const struct holder *h, struct holder_counts *c) {
    *c = (struct holder_counts){.hot = h->hot, .fed = h->fed, .accepted = h->accepted, .done = h->done};
    c->waiting_rows = h->waiting_rows;
    c->waiting_bytes = h->waiting_bytes;
    c->used_bytes = keep_used_bytes(&h->keep);
    c->replayed_rows = h->replayed_rows;
    c->dropped_rows = h->dropped_rows;
    c->jobs_out = h->n_jobs;
}
