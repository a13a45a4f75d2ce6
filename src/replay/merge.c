#include "replay/holder_int.h"

#include <stdlib.h>
#include <string.h>

// Steps become one: releases first, then each sequence that lives on with its rows of all the steps in one piece.
//
//     step 7   A: pos 5      B: pos 9                    chunk     releases A
//     step 8   A: pos 6      B: pos 10           --->    (id 9)    A: pos 0 .. 1
//     step 9   releases A;   A: pos 0 .. 1                         B: pos 9 .. 10

// Counts what each sequence has in a further step; its rows before its last release do not count.
static void count_step(struct holder *h, const struct step *s, uint32_t index, uint64_t *rows, uint64_t *blocks) {
    for (uint32_t i = 0; i < s->n_releases; i++) {
        struct merge_slot *m = &h->of_slot[s->releases[i]];
        *rows -= m->rows;
        *blocks -= m->blocks;
        *m = (struct merge_slot){.from = index, .released = true, .seq = UINT32_MAX};
    }
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        struct merge_slot *m = &h->of_slot[s->seqs[i].slot];
        m->rows += s->seqs[i].n_rows;
        m->blocks += s->seqs[i].n_blocks;
    }
    *rows += s->n_rows;
    *blocks += s->n_blocks;
}

// A lazy holder's chunks are small, so that one which becomes hot has not long to wait for the one in hand.
static uint32_t most_rows(const struct holder *h) { return h->hot ? h->config.max_rows : h->chunk_rows; }

// How many of the first max steps go into one chunk; at least one. of_slot counts one more, if that one did not fit.
static uint32_t count_steps(struct holder *h, uint64_t last, uint32_t max) {
    uint64_t rows = 0, blocks = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) h->of_slot[i] = (struct merge_slot){.seq = UINT32_MAX};
    const struct kept *r = h->next;
    for (; r && n < max && r->step.id <= last; r = keep_next(&h->keep, r)) {
        count_step(h, &r->step, n, &rows, &blocks);
        if (n > 0 && (rows > most_rows(h) || blocks > STEP_BLOCKS_MAX)) break;
        n++;
    }
    return n;
}

// Memory for the largest chunk, when the first one comes: after that nothing is allocated.
static bool make_room(const struct holder *h, struct job *j) {
    size_t rows = h->config.max_rows;
    if (!j->step) j->step = step_new();
    if (!j->hidden) j->hidden = malloc(rows * h->config.hidden_bytes + 1);
    if (!j->fault) j->fault = malloc(rows);
    return j->step && j->hidden && j->fault;
}

// The sequences of the chunk in the order of their first row, each with room for its rows and block ids.
static void lay_out(struct holder *h, struct step *to, const struct step *s, uint32_t index) {
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *q = &s->seqs[i];
        struct merge_slot *m = &h->of_slot[q->slot];
        if (index < m->from || m->seq != UINT32_MAX) continue;
        m->seq = to->n_seqs;
        struct step_seq *t = &to->seqs[to->n_seqs++];
        *t = *q;
        t->sample = false;
        t->row = to->n_rows;
        t->block = to->n_blocks;
        t->n_rows = t->n_blocks = 0; // copy_rows counts them up
        to->n_rows += m->rows;
        to->n_blocks += m->blocks;
    }
}

// Returns how many rows have no place in the chunk.
static uint32_t copy_rows(struct holder *h, struct job *j, const struct kept *r, uint32_t index) {
    size_t width = h->config.hidden_bytes;
    uint32_t dropped = 0;
    for (uint32_t i = 0; i < r->step.n_seqs; i++) {
        const struct step_seq *q = &r->step.seqs[i];
        if (index < h->of_slot[q->slot].from) {
            dropped += q->n_rows;
            continue;
        }
        struct step_seq *t = &j->step->seqs[h->of_slot[q->slot].seq];
        uint32_t row = t->row + t->n_rows, block = t->block + t->n_blocks;
        if (t->n_blocks == 0) t->first_block = q->first_block;
        memcpy(j->step->tokens + row, r->step.tokens + q->row, q->n_rows * sizeof *r->step.tokens);
        memcpy(j->step->blocks + block, r->step.blocks + q->block, q->n_blocks * sizeof *r->step.blocks);
        memcpy(j->fault + row, r->fault + q->row, q->n_rows);
        if (width) memcpy(j->hidden + row * width, r->hidden + q->row * width, q->n_rows * width);
        t->n_rows += q->n_rows;
        t->n_blocks += q->n_blocks;
    }
    return dropped;
}

static uint32_t fill(struct holder *h, struct job *j) {
    uint32_t dropped = 0, index = 0;
    struct step *to = j->step;
    step_clear(to);
    const struct kept *r = h->next;
    for (; index < j->n_kept; index++, r = keep_next(&h->keep, r)) {
        lay_out(h, to, &r->step, index);
        to->id = r->step.id;
        to->epoch = r->step.epoch;
    }
    r = h->next;
    for (index = 0; index < j->n_kept; index++, r = keep_next(&h->keep, r)) dropped += copy_rows(h, j, r, index);
    for (uint32_t slot = 0; slot < LIMIT_SEQS; slot++)
        if (h->of_slot[slot].released) to->releases[to->n_releases++] = slot;
    return dropped;
}

uint32_t merge_steps(struct holder *h, struct job *j, uint64_t last) {
    j->n_kept = count_steps(h, last, UINT32_MAX);
    // Without memory for a chunk the steps run one by one.
    if (j->n_kept == 1 || !make_room(h, j)) {
        struct kept *r = h->next;
        j->n_kept = 1;
        j->job = (struct holder_job){.step = &r->step, .hidden = r->hidden, .fault = r->fault};
        for (uint32_t i = 0; i < r->step.n_seqs; i++) r->step.seqs[i].sample = false;
        return 0;
    }
    count_steps(h, last, j->n_kept);
    uint32_t dropped = fill(h, j);
    j->job = (struct holder_job){.step = j->step, .hidden = h->config.hidden_bytes ? j->hidden : NULL};
    j->job.fault = j->fault;
    return dropped;
}
