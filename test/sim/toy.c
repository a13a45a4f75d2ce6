#include "toy.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t embed(int32_t token, uint32_t pos) { return mix((uint64_t)token + 1, pos + 1); }

static int32_t draw(uint64_t hidden, const struct sampling *p, uint32_t pos) {
    return (int32_t)(mix(mix(hidden, p->seed), pos) % (TOY_VOCAB - 1));
}

// The place of a position in a layer's memory; the oracle has no table.
static uint32_t place(const uint32_t *table, uint32_t pos) {
    return table ? table[pos / LIMIT_BLOCK_TOKENS] * LIMIT_BLOCK_TOKENS + pos % LIMIT_BLOCK_TOKENS : pos;
}

// One layer on one row. What a row leaves in kv goes on from the row before it in its block; of each block before, the
// first and the last row are read: a stranger in the block would have changed the first.
static uint64_t layer_row(uint64_t *kv, const uint32_t *table, uint32_t layer, uint64_t hidden, uint32_t pos) {
    uint64_t key = mix(hidden, layer * 1000003u + pos);
    uint32_t row = pos % LIMIT_BLOCK_TOKENS, first = pos - row, here = place(table, pos);
    kv[here] = row ? mix(kv[place(table, pos - 1)], key) : key;
    uint64_t acc = mix(kv[here], kv[place(table, first)]);
    for (uint32_t q = 0; q < first; q += LIMIT_BLOCK_TOKENS)
        acc = mix(acc, mix(kv[place(table, q)], kv[place(table, q + LIMIT_BLOCK_TOKENS - 1)]));
    return mix(hidden, acc);
}

void toy_load(struct toy_stage *s, uint32_t n_layers, uint32_t a, uint32_t b, uint32_t n_blocks) {
    s->n_layers = n_layers;
    s->a = a;
    s->b = b;
    s->n_blocks = n_blocks;
    memset(s->slot, 0, sizeof s->slot);
    memset(s->owner, 0, sizeof s->owner);
}

static void release(struct toy_stage *s, const struct step *step) {
    if (s->fault == TOY_KEEP_SLOT) return;
    for (uint32_t i = 0; i < step->n_releases; i++) {
        if (!s->slot[step->releases[i]].live) continue;
        s->slot[step->releases[i]].live = false;
        for (uint32_t b = 0; b < TOY_BLOCKS_MAX; b++)
            if (s->owner[b] == step->releases[i] + 1) s->owner[b] = 0;
    }
}

static int take_blocks(struct toy_stage *s, const struct step *step, const struct step_seq *q, struct err *e) {
    struct toy_slot *slot = &s->slot[q->slot];
    if (!slot->live && q->pos != 0) return err_set(e, ERR_FORMAT, "slot %u begins at %u", q->slot, q->pos);
    if (slot->live && q->pos != slot->pos)
        return err_set(e, ERR_FORMAT, "slot %u: position %u, expected %u", q->slot, q->pos, slot->pos);
    if (!slot->live) *slot = (struct toy_slot){.live = true};
    uint32_t first = s->fault == TOY_TABLE_AT_ZERO ? 0 : q->first_block;
    if (q->first_block != slot->n_blocks)
        return err_set(e, ERR_FORMAT, "slot %u: blocks from %u, %u known", q->slot, q->first_block, slot->n_blocks);
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        uint32_t id = step->blocks[q->block + i];
        if (s->owner[id])
            return err_set(e, ERR_FORMAT, "block %u of slot %u is held by %u", id, q->slot, s->owner[id] - 1);
        s->owner[id] = q->slot + 1;
        slot->table[first + i] = id;
        slot->n_blocks++;
    }
    if (slot->n_blocks != (q->pos + q->n_rows + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS)
        return err_set(e, ERR_FORMAT, "slot %u: %u blocks for %u rows", q->slot, slot->n_blocks, q->pos + q->n_rows);
    return ERR_OK;
}

static void run_seq(struct toy_stage *s, const struct step *step, const struct step_seq *q, const uint64_t *in,
                    uint64_t *out, uint8_t *fault) {
    struct toy_slot *slot = &s->slot[q->slot];
    for (uint32_t i = 0; i < q->n_rows; i++) {
        uint32_t pos = q->pos + i, row = q->row + i;
        if (s->fault == TOY_POSITION && pos >= LIMIT_BLOCK_TOKENS) pos--;
        uint64_t h = in ? in[row] : embed(step->tokens[row], pos);
        if (!in && step->tokens[row] == TOY_POISON) fault[row] = 1;
        for (uint32_t layer = s->a; layer < s->b; layer++) h = layer_row(s->kv[layer], slot->table, layer, h, pos);
        out[row] = h;
    }
    slot->pos = q->pos + q->n_rows;
}

static void answer(const struct step_seq *q, const uint64_t *out, const uint8_t *fault, struct step_result *r) {
    bool bad = false;
    for (uint32_t i = 0; i < q->n_rows; i++) bad |= fault[q->row + i];
    if (!bad && !q->sample) return;
    uint64_t h = out[q->row + q->n_rows - 1];
    r->entry[r->n].slot = q->slot;
    r->entry[r->n].fault = bad;
    r->entry[r->n].token = bad ? -1 : draw(h, &q->sampling, q->pos + q->n_rows);
    r->n++;
}

bool toy_run(struct toy_stage *s, const struct step *step, const uint64_t *in, uint64_t *out, uint8_t *fault,
             struct step_result *result, struct err *e) {
    if (step_check(step, TOY_VOCAB, s->n_blocks, e)) return false;
    if (s->fault != TOY_RELEASE_LATE) release(s, step);
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (take_blocks(s, step, &step->seqs[i], e)) return false;
    result->id = step->id;
    result->epoch = step->epoch;
    result->n = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        run_seq(s, step, &step->seqs[i], s->a ? in : NULL, out, fault);
        if (s->b == s->n_layers) answer(&step->seqs[i], out, fault, result);
    }
    if (s->fault == TOY_RELEASE_LATE) release(s, step);
    return true;
}

uint32_t toy_blocks_used(const struct toy_stage *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < TOY_BLOCKS_MAX; i++) n += s->owner[i] != 0;
    return n;
}

uint32_t toy_slots_used(const struct toy_stage *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) n += s->slot[i].live;
    return n;
}

uint32_t toy_oracle(const struct gen_request *r, uint32_t n_layers, int32_t *tokens, enum gen_finish *finish) {
    uint32_t n_total = r->n_prompt + r->max_tokens, n = 0;
    uint64_t(*kv)[TOY_BLOCKS_MAX * LIMIT_BLOCK_TOKENS] = calloc(n_layers, sizeof *kv);
    ASSERT(kv && n_total <= TOY_BLOCKS_MAX * LIMIT_BLOCK_TOKENS, "%u tokens", n_total);
    *finish = GEN_GOING;
    for (uint32_t pos = 0; *finish == GEN_GOING; pos++) {
        int32_t token = pos < r->n_prompt ? r->prompt[pos] : tokens[pos - r->n_prompt];
        if (token == TOY_POISON) *finish = GEN_FAILED;
        uint64_t h = embed(token, pos);
        for (uint32_t layer = 0; layer < n_layers; layer++) h = layer_row(kv[layer], NULL, layer, h, pos);
        if (pos + 1 < r->n_prompt || *finish != GEN_GOING) continue;
        tokens[n++] = draw(h, &r->sampling, pos + 1);
        if (n == r->max_tokens) *finish = GEN_LENGTH;
        for (uint32_t i = 0; i < r->n_stop_ids; i++)
            if (r->stop_ids[i] == tokens[n - 1]) *finish = GEN_STOP;
    }
    free(kv);
    return n;
}
