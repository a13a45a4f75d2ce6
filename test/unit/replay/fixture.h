// A stream of steps such as the scheduler makes, and a stage that computes on them: real slots, and a KV memory in
// which each row is mixed with the row before it. Each row of the stream has a token of its own, by which its output is
// known: whoever computes it, in whatever chunk, must get what the first one got.
#pragma once
#include "base/rng.h"
#include "engine/slots.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 12, BLOCKS = 96, ROWS_MAX = 40, CONTEXT = 300, TOKENS = 1 << 16 };

struct stream_seq {
    bool live;
    uint32_t pos, n_blocks, end;
    uint32_t blocks[(CONTEXT + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS];
};

struct stream {
    struct rng rng;
    uint64_t next_id;
    int32_t next_token;
    struct stream_seq seq[SLOTS];
    bool used[BLOCKS], owed[SLOTS];
    struct step *step;
    uint64_t hidden[LIMIT_STEP_ROWS]; // the step's input
    uint8_t fault[LIMIT_STEP_ROWS];
};

static inline uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static inline void stream_init(struct stream *s, uint64_t seed) {
    memset(s, 0, sizeof *s);
    rng_init(&s->rng, seed);
    s->next_id = 1;
    s->step = step_new();
    assert_non_null(s->step);
}

static inline void stream_fini(struct stream *s) { step_free(s->step); }

static inline uint32_t free_blocks(const struct stream *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) n += !s->used[i];
    return n;
}

static inline void stream_end(struct stream *s, uint32_t slot) {
    struct stream_seq *q = &s->seq[slot];
    for (uint32_t i = 0; i < q->n_blocks; i++) s->used[q->blocks[i]] = false;
    q->live = false;
    if (q->pos) s->owed[slot] = true;
}

static inline void stream_rows(struct stream *s, uint32_t slot, uint32_t n) {
    struct stream_seq *q = &s->seq[slot];
    struct step *step = s->step;
    uint32_t need = (q->pos + n + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS - q->n_blocks;
    if (need > free_blocks(s)) return;
    struct step_seq *t = &step->seqs[step->n_seqs++];
    *t = (struct step_seq){.slot = slot, .pos = q->pos, .row = step->n_rows, .n_rows = n, .first_block = q->n_blocks};
    t->block = step->n_blocks;
    t->n_blocks = need;
    t->sample = true;
    t->sampling.top_p = 1;
    for (uint32_t b = 0; need; b = (b + 1) % BLOCKS) {
        if (s->used[b]) continue;
        s->used[b] = true;
        step->blocks[step->n_blocks++] = q->blocks[q->n_blocks++] = b;
        need--;
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_true(s->next_token < TOKENS);
        s->hidden[step->n_rows] = mix((uint64_t)s->next_token, 77);
        s->fault[step->n_rows] = s->next_token % 997 == 0;
        step->tokens[step->n_rows++] = s->next_token++;
    }
    q->pos += n;
}

// The next step: sequences end and begin, some decode, some have a chunk of a prompt. A step may have no rows.
static inline const struct step *stream_next(struct stream *s) {
    step_clear(s->step);
    s->step->id = s->next_id++;
    s->step->epoch = 3;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct stream_seq *q = &s->seq[slot];
        if (q->live && (q->pos >= q->end || rng_below(&s->rng, 60) == 0)) stream_end(s, slot);
        if (!q->live && rng_below(&s->rng, 12) == 0)
            *q = (struct stream_seq){.live = true, .end = 1 + rng_below(&s->rng, CONTEXT - ROWS_MAX)};
    }
    uint32_t budget = rng_below(&s->rng, 4) ? 6 : ROWS_MAX;
    for (uint32_t slot = 0; slot < SLOTS && budget; slot++) {
        if (!s->seq[slot].live || rng_below(&s->rng, 3) == 0) continue;
        uint32_t n = rng_below(&s->rng, 5) ? 1 : 1 + rng_below(&s->rng, budget);
        stream_rows(s, slot, n);
        budget -= n;
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (s->owed[slot]) s->step->releases[s->step->n_releases++] = slot;
        s->owed[slot] = false;
    }
    return s->step;
}

// All sequences end with this step.
static inline const struct step *stream_last(struct stream *s) {
    step_clear(s->step);
    s->step->id = s->next_id++;
    s->step->epoch = 3;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (s->seq[slot].live) stream_end(s, slot);
        if (s->owed[slot]) s->step->releases[s->step->n_releases++] = slot;
        s->owed[slot] = false;
    }
    return s->step;
}

struct toy {
    struct slots slots;
    uint64_t kv[BLOCKS * LIMIT_BLOCK_TOKENS];
    uint64_t out[LIMIT_STEP_ROWS]; // of the step run last
    uint8_t fault[LIMIT_STEP_ROWS];
};

static inline struct toy *toy_new(void) {
    struct toy *t = calloc(1, sizeof *t);
    assert_non_null(t);
    assert_int_equal(slots_init(&t->slots, CONTEXT, BLOCKS), ERR_OK);
    return t;
}

static inline void toy_free(struct toy *t) {
    slots_fini(&t->slots);
    free(t);
}

// hidden NULL: stage 0, the input comes from the tokens.
static inline void toy_run(struct toy *t, const struct step *s, const uint64_t *hidden, const uint8_t *fault) {
    struct err e;
    if (step_check(s, TOKENS, BLOCKS, &e) || slots_check(&t->slots, s, &e)) fail_msg("%s", e.text);
    slots_apply(&t->slots, s);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *q = &s->seqs[i];
        const uint32_t *blocks = t->slots.list[q->slot].blocks;
        uint64_t last = 0;
        for (uint32_t j = 0; j < q->n_rows; j++) {
            uint32_t pos = q->pos + j, row = q->row + j;
            if (pos)
                last =
                    t->kv[blocks[(pos - 1) / LIMIT_BLOCK_TOKENS] * LIMIT_BLOCK_TOKENS + (pos - 1) % LIMIT_BLOCK_TOKENS];
            uint64_t in = hidden ? hidden[row] : mix((uint64_t)s->tokens[row], 77);
            t->out[row] = mix(mix(in, pos), last);
            t->fault[row] = fault ? fault[row] : 0;
            t->kv[blocks[pos / LIMIT_BLOCK_TOKENS] * LIMIT_BLOCK_TOKENS + pos % LIMIT_BLOCK_TOKENS] = t->out[row];
        }
    }
}

static inline void toy_same(const struct toy *a, const struct toy *b) {
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) {
        const struct slot *x = &a->slots.list[i], *y = &b->slots.list[i];
        assert_int_equal(x->used, y->used);
        assert_int_equal(x->n_tokens, y->n_tokens);
        assert_int_equal(x->n_blocks, y->n_blocks);
        assert_memory_equal(x->blocks, y->blocks, x->n_blocks * sizeof *x->blocks);
    }
}
