// STEP and TOKENS. A sequence's share is spread over columns, since packed arrays of small numbers cost a byte or two
// an entry where a message for each sequence would cost tens.
#include "wire/control_arena.h"

#include <string.h>

struct control_bytes control_put_step(struct control *c, const struct step *s, const struct control_step_mark *mark) {
    uint32_t n_sampled = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *q = &s->seqs[i];
        c->col.slot[i] = q->slot;
        c->col.pos[i] = q->pos;
        c->col.n_rows[i] = q->n_rows;
        c->col.first_block[i] = q->first_block;
        c->col.n_blocks[i] = q->n_blocks;
        if (!q->sample) continue;
        uint32_t k = n_sampled++;
        c->col.sampled[k] = i;
        c->col.temperature[k] = q->sampling.temperature;
        c->col.top_p[k] = q->sampling.top_p;
        c->col.min_p[k] = q->sampling.min_p;
        c->col.top_k[k] = q->sampling.top_k;
        c->col.seed[k] = q->sampling.seed;
        c->col.choice[k] = q->sampling.choice;
    }
    Loom__Step p = LOOM__STEP__INIT;
    p.n_slot = p.n_pos = p.n_row_count = p.n_first_block = p.n_block_count = s->n_seqs;
    p.slot = c->col.slot;
    p.pos = c->col.pos;
    p.row_count = c->col.n_rows;
    p.first_block = c->col.first_block;
    p.block_count = c->col.n_blocks;
    p.n_tokens = s->n_rows;
    p.tokens = (uint32_t *)(void *)s->tokens; // ids are not negative: the bits are the same
    p.n_blocks = s->n_blocks;
    p.blocks = s->blocks;
    p.n_releases = s->n_releases;
    p.releases = s->releases;
    p.n_sampled = p.n_temperature = p.n_top_p = p.n_min_p = p.n_top_k = p.n_seed = p.n_choice = n_sampled;
    p.sampled = c->col.sampled;
    p.temperature = c->col.temperature;
    p.top_p = c->col.top_p;
    p.min_p = c->col.min_p;
    p.top_k = c->col.top_k;
    p.seed = c->col.seed;
    p.choice = c->col.choice;
    p.stable = mark->stable;
    p.first = mark->first;
    p.last = mark->last;
    return control_pack(c, &p.base);
}

static int check_step(const Loom__Step *p, struct err *e) {
    if (p->n_slot > LIMIT_SEQS || p->n_tokens > LIMIT_STEP_ROWS || p->n_blocks > STEP_BLOCKS_MAX ||
        p->n_releases > LIMIT_SEQS || p->n_sampled > p->n_slot)
        return err_set(e, ERR_LIMIT, "STEP: %zu sequences, %zu rows, %zu blocks, %zu releases, %zu samples", p->n_slot,
                       p->n_tokens, p->n_blocks, p->n_releases, p->n_sampled);
    if (p->n_pos != p->n_slot || p->n_row_count != p->n_slot || p->n_first_block != p->n_slot ||
        p->n_block_count != p->n_slot)
        return err_set(e, ERR_FORMAT, "STEP: columns of different length");
    size_t n = p->n_sampled;
    if (p->n_temperature != n || p->n_top_p != n || p->n_min_p != n || p->n_top_k != n || p->n_seed != n ||
        p->n_choice != n)
        return err_set(e, ERR_FORMAT, "STEP: sampling columns of different length");
    return ERR_OK;
}

// A step without a sampled sequence still needs parameters that step_check takes: greedy, everything off.
static const struct sampling greedy = {.top_p = 1};

static int take_samples(const Loom__Step *p, struct step *s, struct err *e) {
    for (uint32_t k = 0; k < p->n_sampled; k++) {
        uint32_t i = p->sampled[k];
        if (i >= s->n_seqs || s->seqs[i].sample)
            return err_set(e, ERR_FORMAT, "STEP: sampled names sequence %u, which is none or there twice", i);
        s->seqs[i].sample = true;
        s->seqs[i].sampling = (struct sampling){.temperature = p->temperature[k],
                                                .top_p = p->top_p[k],
                                                .min_p = p->min_p[k],
                                                .top_k = p->top_k[k],
                                                .seed = p->seed[k],
                                                .choice = p->choice[k]};
    }
    return ERR_OK;
}

int control_get_step(struct control *c, const void *data, uint32_t len, struct step *s, struct control_step_mark *mark,
                     struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__step__descriptor, data, len, &v, e);
    const Loom__Step *p = rc ? NULL : v;
    if (!rc) rc = check_step(p, e);
    if (rc) return rc;
    *mark = (struct control_step_mark){.stable = p->stable, .first = p->first, .last = p->last};
    s->n_seqs = (uint32_t)p->n_slot;
    s->n_rows = (uint32_t)p->n_tokens;
    s->n_blocks = (uint32_t)p->n_blocks;
    s->n_releases = (uint32_t)p->n_releases;
    uint32_t row = 0, block = 0; // sums may wrap here: step_check compares each with the counts
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        s->seqs[i] = (struct step_seq){.slot = p->slot[i],
                                       .pos = p->pos[i],
                                       .row = row,
                                       .n_rows = p->row_count[i],
                                       .first_block = p->first_block[i],
                                       .block = block,
                                       .n_blocks = p->block_count[i],
                                       .sampling = greedy};
        row += p->row_count[i];
        block += p->block_count[i];
    }
    if (s->n_rows) memcpy(s->tokens, p->tokens, s->n_rows * sizeof s->tokens[0]);
    if (s->n_blocks) memcpy(s->blocks, p->blocks, s->n_blocks * sizeof s->blocks[0]);
    if (s->n_releases) memcpy(s->releases, p->releases, s->n_releases * sizeof s->releases[0]);
    return take_samples(p, s, e);
}

struct control_bytes control_put_tokens(struct control *c, const struct step_result *r) {
    ASSERT(r->n <= LIMIT_SEQS);
    Loom__Tokens p = LOOM__TOKENS__INIT;
    for (uint32_t i = 0; i < r->n; i++) {
        c->col.slot[i] = r->entry[i].slot;
        c->col.token[i] = r->entry[i].token;
        if (r->entry[i].fault) c->col.fault[p.n_fault++] = i;
    }
    p.n_slot = p.n_token = r->n;
    p.slot = c->col.slot;
    p.token = c->col.token;
    p.fault = c->col.fault;
    return control_pack(c, &p.base);
}

int control_get_tokens(struct control *c, const void *data, uint32_t len, struct step_result *r, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__tokens__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Tokens *p = v;
    if (p->n_slot > LIMIT_SEQS || p->n_token != p->n_slot || p->n_fault > p->n_slot)
        return err_set(e, ERR_FORMAT, "TOKENS: %zu slots, %zu tokens, %zu faults", p->n_slot, p->n_token, p->n_fault);
    r->n = (uint32_t)p->n_slot;
    for (uint32_t i = 0; i < r->n; i++) {
        if (p->slot[i] >= LIMIT_SEQS || p->token[i] < -1)
            return err_set(e, ERR_FORMAT, "TOKENS: slot %u, token %d", p->slot[i], p->token[i]);
        r->entry[i].slot = p->slot[i];
        r->entry[i].token = p->token[i];
        r->entry[i].fault = false;
    }
    for (uint32_t k = 0; k < p->n_fault; k++) {
        uint32_t i = p->fault[k];
        if (i >= r->n || r->entry[i].token != -1)
            return err_set(e, ERR_FORMAT, "TOKENS: fault at entry %u, which is none or has a token", i);
        r->entry[i].fault = true;
    }
    return ERR_OK;
}
