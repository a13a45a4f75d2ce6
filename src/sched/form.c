#include "sched/seq.h"

// Admits from the front of the queue while there are slots and blocks for all known tokens. A quarter of a block per
// running sequence stays free, or the newcomer would soon be sent back when the others grow; on an empty route nothing
// is held back, so that the largest sequence gets in.
static void admit(struct sched *s) {
    while (s->n_running < s->config.max_seqs && !list_is_empty(&s->waiting)) {
        struct seq *q = LIST_ENTRY(list_front(&s->waiting), struct seq, order);
        if (kv_n_free(s->kv) < kv_blocks_of(q->n_tokens) + (s->n_running + 3) / 4) return;
        q->slot = kv_slot_take(s->kv);
        ASSERT(q->slot != KV_NONE, "%u of %u sequences run and no slot is free", s->n_running, s->config.max_seqs);
        bool grown = kv_grow(s->kv, q->slot, kv_blocks_of(q->n_tokens));
        ASSERT(grown, "%u blocks are free", kv_n_free(s->kv));
        list_remove(&q->order);
        list_push_back(&s->running, &q->order);
        list_push_back(&s->prefill, &q->work);
        q->state = SEQ_PREFILL;
        q->n_sent = q->n_blocks_sent = 0;
        s->n_waiting--;
        s->n_running++;
        s->n_prefill++;
    }
}

// Sends the sequence admitted last back to the front of the queue, and returns it.
static struct seq *preempt_youngest(struct sched *s) {
    struct seq *q = LIST_ENTRY(s->running.prev, struct seq, order);
    seq_unplace(s, q);
    list_push_front(&s->waiting, &q->order);
    s->n_waiting++;
    s->n_preemptions++;
    return q;
}

// Gives q the blocks for n more rows, if need be by preempting younger sequences. False: q itself was the youngest.
static bool make_room(struct sched *s, struct seq *q, uint32_t n) {
    while (!kv_grow(s->kv, q->slot, kv_blocks_of(q->n_sent + n)))
        if (preempt_youngest(s) == q) return false;
    return true;
}

// Moves sequences that decode to picked and returns how many. Those that are preempted for others leave picked by
// themselves, which is why no row is written before all are picked.
static uint32_t pick_ready(struct sched *s, struct list *picked) {
    if (s->n_decode_flights >= s->n_stages) return 0;
    uint32_t n_decoding = s->n_running - s->n_prefill;
    uint32_t share = (n_decoding + s->n_stages - 1) / s->n_stages;
    if (share > s->config.chunk_rows) share = s->config.chunk_rows;
    uint32_t n = 0;
    while (n < share && !list_is_empty(&s->ready)) {
        struct seq *q = LIST_ENTRY(list_pop_front(&s->ready), struct seq, work);
        if (!make_room(s, q, 1)) continue;
        q->n_take = 1;
        list_push_back(picked, &q->work);
        n++;
    }
    return n;
}

enum {
    SLICES_A_STAGE = 4, // slices of a prompt for each stage: the route fills and empties within a share of 1 / (1 + 4)
    SLICE_MIN = 128     // rows that still use a matrix that was read from memory well
};

// Rows of prefill in one step. One stage takes a whole chunk. Several can only work at the same time on slices, and a
// row that decodes behind a slice waits for all of it at each stage.
static uint32_t prefill_rows(const struct sched *s, uint32_t n_decode) {
    uint32_t room = s->config.chunk_rows - n_decode, longest = 0;
    if (s->n_stages == 1) return room;
    LIST_EACH(it, &s->prefill) {
        const struct seq *q = LIST_ENTRY(it, struct seq, work);
        if (q->n_tokens > longest) longest = q->n_tokens;
    }
    uint32_t slice = longest / (SLICES_A_STAGE * s->n_stages);
    slice = kv_blocks_of(slice) * LIMIT_BLOCK_TOKENS;
    if (slice < SLICE_MIN || s->n_running > s->n_prefill) slice = SLICE_MIN;
    return slice < room ? slice : room;
}

static void pick_prefill(struct sched *s, struct list *picked, uint32_t rows) {
    while (rows > 0 && !list_is_empty(&s->prefill)) {
        struct seq *q = LIST_ENTRY(list_pop_front(&s->prefill), struct seq, work);
        uint32_t n = q->n_tokens - q->n_sent;
        if (n > rows) n = rows;
        if (!make_room(s, q, n)) continue;
        q->n_take = n;
        list_push_back(picked, &q->work);
        rows -= n;
    }
}

static void write_blocks(struct sched *s, struct seq *q, struct step_seq *out) {
    struct step *step = s->step;
    uint32_t n_table;
    const uint32_t *table = kv_table(s->kv, q->slot, &n_table);
    uint32_t need = kv_blocks_of(q->n_sent + q->n_take);
    ASSERT(need <= n_table, "slot %u: %u blocks, %u needed", q->slot, n_table, need);
    out->first_block = q->n_blocks_sent;
    out->block = step->n_blocks;
    out->n_blocks = need - q->n_blocks_sent;
    for (uint32_t i = q->n_blocks_sent; i < need; i++) step->blocks[step->n_blocks++] = table[i];
    q->n_blocks_sent = need;
}

static void write_seq(struct sched *s, struct flight *f, struct seq *q) {
    struct step *step = s->step;
    struct step_seq *out = &step->seqs[step->n_seqs++];
    *out = (struct step_seq){.slot = q->slot, .pos = q->n_sent, .row = step->n_rows, .n_rows = q->n_take};
    out->sample = q->n_sent + q->n_take == q->n_tokens;
    out->sampling = q->sampling;
    write_blocks(s, q, out);
    for (uint32_t i = 0; i < q->n_take; i++) step->tokens[step->n_rows++] = q->tokens[q->n_sent + i];
    q->n_sent += q->n_take;
    f->entry[f->n++] = (struct flight_entry){q->id, q->slot, q->n_sent, out->sample};
    if (q->state == SEQ_READY) f->decodes = true;
    if (q->state == SEQ_PREFILL) s->n_prefill_rows += q->n_take;
    if (q->state == SEQ_PREFILL && !out->sample) {
        list_push_back(&s->prefill, &q->work); // behind the others: they take turns
        return;
    }
    if (q->state == SEQ_PREFILL) s->n_prefill--;
    q->state = SEQ_FLIGHT;
}

const struct step *sched_form(struct sched *s) {
    uint32_t max_flights = s->n_stages + 1 < LIMIT_STEPS_IN_FLIGHT ? s->n_stages + 1 : LIMIT_STEPS_IN_FLIGHT;
    if (!s->up || s->n_flights >= max_flights) return NULL;
    admit(s);
    struct list picked;
    list_init(&picked);
    uint32_t n_decode = pick_ready(s, &picked);
    pick_prefill(s, &picked, prefill_rows(s, n_decode));
    if (list_is_empty(&picked) && !kv_owes_releases(s->kv)) return NULL;

    step_clear(s->step);
    struct flight *f = &s->flights[(s->flight_at + s->n_flights) % LIMIT_STEPS_IN_FLIGHT];
    s->step->epoch = s->epoch;
    f->step = s->step->id = s->next_step++;
    f->n = 0;
    f->decodes = false;
    for (struct list *l; (l = list_pop_front(&picked));) write_seq(s, f, LIST_ENTRY(l, struct seq, work));
    s->step->n_releases = kv_take_releases(s->kv, s->step->releases);
    s->n_flights++;
    s->n_decode_flights += f->decodes;
    s->n_steps++;
    return s->step;
}

uint32_t sched_begun_ids(const struct sched *s, uint64_t *ids) {
    uint32_t n = 0;
    if (s->n_flights == 0) return 0;
    const struct flight *f = &s->flights[(s->flight_at + s->n_flights - 1) % LIMIT_STEPS_IN_FLIGHT];
    for (uint32_t i = 0; i < f->n && f->step == s->step->id; i++)
        if (s->step->seqs[i].pos == 0) ids[n++] = f->entry[i].seq;
    return n;
}
