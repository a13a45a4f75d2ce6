#include "engine/slots.h"

#include <stdlib.h>
#include <string.h>

static uint32_t blocks_for(uint32_t tokens) { return (tokens + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS; }

int slots_init(struct slots *s, uint32_t max_context, uint32_t n_kv_blocks) {
    memset(s, 0, sizeof *s);
    s->max_context = max_context;
    s->n_kv_blocks = n_kv_blocks;
    s->max_blocks = blocks_for(max_context);
    if (s->max_blocks > n_kv_blocks) s->max_blocks = n_kv_blocks;
    s->valid = calloc(n_kv_blocks, sizeof *s->valid);
    s->holders = calloc(n_kv_blocks, sizeof *s->holders);
    s->tables = calloc((size_t)LIMIT_SEQS * s->max_blocks, sizeof *s->tables);
    if (!s->valid || !s->holders || !s->tables) {
        slots_fini(s);
        return ERR_NOMEM;
    }
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) s->list[i].blocks = s->tables + (size_t)i * s->max_blocks;
    return ERR_OK;
}

void slots_fini(struct slots *s) {
    free(s->valid);
    free(s->holders);
    free(s->tables);
    memset(s, 0, sizeof *s);
}

static void release(struct slots *s, struct slot *slot) {
    if (!slot->used) return; // told twice: no harm
    for (uint32_t i = 0; i < slot->n_blocks; i++)
        if (--s->holders[slot->blocks[i]] == 0) s->n_blocks_used--;
    slot->used = false;
    slot->n_tokens = slot->n_blocks = 0;
    s->n_used--;
}

void slots_reset(struct slots *s) {
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) release(s, &s->list[i]);
    memset(s->valid, 0, s->n_kv_blocks * sizeof *s->valid);
}

static int check_table(const struct slots *s, const struct step_seq *q, uint32_t have, struct err *e) {
    if (q->n_blocks && q->first_block != have)
        return err_set(e, ERR_FORMAT, "step: slot %u: block table has %u entries, the new ones begin at %u", q->slot,
                       have, q->first_block);
    if (q->n_blocks > s->max_blocks - have)
        return err_set(e, ERR_FORMAT, "step: slot %u: %u blocks; a sequence has at most %u here", q->slot,
                       have + q->n_blocks, s->max_blocks);
    if (q->n_rows > s->max_context - q->pos || blocks_for(q->pos + q->n_rows) > have + q->n_blocks)
        return err_set(e, ERR_FORMAT, "step: slot %u: positions up to %u need %u blocks; %u are there", q->slot,
                       q->pos + q->n_rows, blocks_for(q->pos + q->n_rows), have + q->n_blocks);
    return ERR_OK;
}

// A new sequence behind a shared prefix: whole blocks, all of them filled by someone before.
static int check_prefix(const struct slots *s, const struct step *step, const struct step_seq *q, struct err *e) {
    if (q->pos % LIMIT_BLOCK_TOKENS)
        return err_set(e, ERR_FORMAT, "step: slot %u is new here and cannot begin at position %u", q->slot, q->pos);
    for (uint32_t i = 0; i < q->pos / LIMIT_BLOCK_TOKENS; i++) {
        uint32_t id = step->blocks[q->block + i];
        if (s->valid[id] != LIMIT_BLOCK_TOKENS)
            return err_set(e, ERR_FORMAT, "step: slot %u begins at %u, but block %u is not filled", q->slot, q->pos,
                           id);
    }
    return ERR_OK;
}

static int check_seq(const struct slots *s, const struct step *step, const struct step_seq *q, bool released,
                     struct err *e) {
    const struct slot *slot = &s->list[q->slot];
    bool known = slot->used && !released;
    if (q->pos >= s->max_context)
        return err_set(e, ERR_FORMAT, "step: slot %u: position %u; the context here is %u", q->slot, q->pos,
                       s->max_context);
    int rc = check_table(s, q, known ? slot->n_blocks : 0, e);
    if (rc) return rc;
    if (!known) return check_prefix(s, step, q, e);
    if (q->pos != slot->n_tokens)
        return err_set(e, ERR_FORMAT, "step: slot %u goes on at position %u, but is at %u", q->slot, q->pos,
                       slot->n_tokens);
    uint32_t row = q->pos % LIMIT_BLOCK_TOKENS;
    if (row && s->valid[slot->blocks[q->pos / LIMIT_BLOCK_TOKENS]] != row)
        return err_set(e, ERR_FORMAT, "step: slot %u: another sequence wrote into its block %u", q->slot,
                       slot->blocks[q->pos / LIMIT_BLOCK_TOKENS]);
    return ERR_OK;
}

int slots_check(const struct slots *s, const struct step *step, struct err *e) {
    bool released[LIMIT_SEQS] = {0};
    for (uint32_t i = 0; i < step->n_releases; i++) released[step->releases[i]] = true;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < step->n_seqs && !rc; i++)
        rc = check_seq(s, step, &step->seqs[i], released[step->seqs[i].slot], e);
    return rc;
}

static void extend(struct slots *s, const struct step *step, const struct step_seq *q) {
    struct slot *slot = &s->list[q->slot];
    if (!slot->used) s->n_used++;
    slot->used = true;
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        uint32_t id = step->blocks[q->block + i];
        if (s->holders[id]++ == 0) s->n_blocks_used++;
        slot->blocks[slot->n_blocks++] = id;
    }
    for (uint32_t p = q->pos; p < q->pos + q->n_rows; p++)
        s->valid[slot->blocks[p / LIMIT_BLOCK_TOKENS]] = (uint8_t)(p % LIMIT_BLOCK_TOKENS + 1);
    slot->n_tokens = q->pos + q->n_rows;
}

void slots_apply(struct slots *s, const struct step *step) {
    for (uint32_t i = 0; i < step->n_releases; i++) release(s, &s->list[step->releases[i]]);
    for (uint32_t i = 0; i < step->n_seqs; i++) extend(s, step, &step->seqs[i]);
}
