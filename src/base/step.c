#include "base/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct step *step_new(void) {
    struct step *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->seqs = calloc(LIMIT_SEQS, sizeof *s->seqs);
    s->tokens = calloc(LIMIT_STEP_ROWS, sizeof *s->tokens);
    s->blocks = calloc(STEP_BLOCKS_MAX, sizeof *s->blocks);
    s->releases = calloc(LIMIT_SEQS, sizeof *s->releases);
    if (s->seqs && s->tokens && s->blocks && s->releases) return s;
    step_free(s);
    return NULL;
}

void step_free(struct step *s) {
    if (!s) return;
    free(s->seqs);
    free(s->tokens);
    free(s->blocks);
    free(s->releases);
    free(s);
}

void step_clear(struct step *s) {
    s->id = 0;
    s->epoch = s->n_seqs = s->n_rows = s->n_blocks = s->n_releases = 0;
}

void step_copy(struct step *to, const struct step *from) {
    to->id = from->id;
    to->epoch = from->epoch;
    to->n_seqs = from->n_seqs;
    to->n_rows = from->n_rows;
    to->n_blocks = from->n_blocks;
    to->n_releases = from->n_releases;
    memcpy(to->seqs, from->seqs, from->n_seqs * sizeof *from->seqs);
    memcpy(to->tokens, from->tokens, from->n_rows * sizeof *from->tokens);
    memcpy(to->blocks, from->blocks, from->n_blocks * sizeof *from->blocks);
    memcpy(to->releases, from->releases, from->n_releases * sizeof *from->releases);
}

static int check_sampling(const struct sampling *p, uint32_t slot, struct err *e) {
    if (!isfinite(p->temperature) || p->temperature < 0)
        return err_set(e, ERR_FORMAT, "step: slot %u: temperature is not a finite number >= 0", slot);
    if (!(p->top_p > 0 && p->top_p <= 1)) return err_set(e, ERR_FORMAT, "step: slot %u: top_p is not in (0, 1]", slot);
    if (!(p->min_p >= 0 && p->min_p <= 1)) return err_set(e, ERR_FORMAT, "step: slot %u: min_p is not in [0, 1]", slot);
    return ERR_OK;
}

static int check_seq(const struct step *s, const struct step_seq *q, uint32_t row, uint32_t block, struct err *e) {
    if (q->slot >= LIMIT_SEQS) return err_set(e, ERR_FORMAT, "step: slot %u is not below %d", q->slot, LIMIT_SEQS);
    if (q->row != row || q->n_rows < 1 || q->n_rows > s->n_rows - row)
        return err_set(e, ERR_FORMAT, "step: slot %u: rows %u + %u do not follow on", q->slot, q->row, q->n_rows);
    if (q->pos >= LIMIT_CONTEXT || q->n_rows > LIMIT_CONTEXT - q->pos)
        return err_set(e, ERR_FORMAT, "step: slot %u: position %u + %u is over %d", q->slot, q->pos, q->n_rows,
                       LIMIT_CONTEXT);
    if (q->block != block || q->n_blocks > s->n_blocks - block)
        return err_set(e, ERR_FORMAT, "step: slot %u: block ids %u + %u do not follow on", q->slot, q->block,
                       q->n_blocks);
    if (q->first_block > LIMIT_SEQ_BLOCKS || q->n_blocks > LIMIT_SEQ_BLOCKS - q->first_block)
        return err_set(e, ERR_FORMAT, "step: slot %u: block index %u + %u is over %d", q->slot, q->first_block,
                       q->n_blocks, LIMIT_SEQ_BLOCKS);
    return check_sampling(&q->sampling, q->slot, e);
}

int step_check(const struct step *s, uint32_t n_vocab, uint32_t n_kv_blocks, struct err *e) {
    if (s->n_seqs > LIMIT_SEQS || s->n_rows > LIMIT_STEP_ROWS || s->n_blocks > STEP_BLOCKS_MAX ||
        s->n_releases > LIMIT_SEQS)
        return err_set(e, ERR_FORMAT, "step: counts over the limits");
    bool seen[LIMIT_SEQS] = {0};
    uint32_t row = 0, block = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct step_seq *q = &s->seqs[i];
        int rc = check_seq(s, q, row, block, e);
        if (rc) return rc;
        if (seen[q->slot]) return err_set(e, ERR_FORMAT, "step: slot %u twice", q->slot);
        seen[q->slot] = true;
        row += q->n_rows;
        block += q->n_blocks;
    }
    if (row != s->n_rows || block != s->n_blocks) return err_set(e, ERR_FORMAT, "step: rows or blocks left over");
    for (uint32_t i = 0; i < s->n_rows; i++)
        if (s->tokens[i] < 0 || (uint32_t)s->tokens[i] >= n_vocab)
            return err_set(e, ERR_FORMAT, "step: row %u: token %d is not below %u", i, s->tokens[i], n_vocab);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        if (s->blocks[i] >= n_kv_blocks)
            return err_set(e, ERR_FORMAT, "step: block %u is not below %u", s->blocks[i], n_kv_blocks);
    for (uint32_t i = 0; i < s->n_releases; i++)
        if (s->releases[i] >= LIMIT_SEQS) return err_set(e, ERR_FORMAT, "step: release of slot %u", s->releases[i]);
    return ERR_OK;
}
