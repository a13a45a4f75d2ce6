#include "sched/seq.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sched_new(const struct sched_config *c, struct sched **out, struct err *e) {
    if (c->chunk_rows < 1 || c->chunk_rows > LIMIT_STEP_ROWS)
        return err_set(e, ERR_USAGE, "scheduler: rows of a step: %u is not in 1 .. %d", c->chunk_rows, LIMIT_STEP_ROWS);
    if (c->max_seqs < 1 || c->max_seqs > LIMIT_SEQS)
        return err_set(e, ERR_USAGE, "scheduler: sequences at once: %u is not in 1 .. %d", c->max_seqs, LIMIT_SEQS);
    if (c->max_context < 2 || c->max_context > LIMIT_CONTEXT)
        return err_set(e, ERR_USAGE, "scheduler: context: %u is not in 2 .. %d", c->max_context, LIMIT_CONTEXT);
    struct sched *s = calloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "scheduler: no memory");
    s->config = *c;
    map_init(&s->seqs, LIMIT_QUEUED + LIMIT_SEQS, 0);
    list_init(&s->waiting);
    list_init(&s->running);
    list_init(&s->prefill);
    list_init(&s->ready);
    s->step = step_new();
    s->flights = calloc(LIMIT_STEPS_IN_FLIGHT, sizeof *s->flights);
    s->events = calloc(EVENTS_MAX, sizeof *s->events);
    int rc = kv_new(c->max_blocks, c->max_seqs, kv_blocks_of(c->max_context), &s->kv);
    if (rc || !s->step || !s->flights || !s->events) {
        sched_free(s);
        return err_set(e, ERR_NOMEM, "scheduler: no memory for the tables of %u sequences", c->max_seqs);
    }
    *out = s;
    return ERR_OK;
}

void sched_free(struct sched *s) {
    if (!s) return;
    size_t at = 0;
    uint64_t id;
    void *q;
    while (map_next(&s->seqs, &at, &id, &q)) free(q);
    map_fini(&s->seqs);
    kv_free(s->kv);
    step_free(s->step);
    free(s->flights);
    free(s->events);
    free(s);
}

static void push_event(struct sched *s, const struct gen_event *e, const char *text) {
    ASSERT(s->n_events < EVENTS_MAX, "events are not taken");
    struct event *v = &s->events[(s->event_at + s->n_events++) % EVENTS_MAX];
    v->e = *e;
    v->e.text = NULL;
    if (!text) return;
    snprintf(v->text, sizeof v->text, "%s", text);
    v->e.text = v->text;
}

bool sched_next_event(struct sched *s, struct gen_event *e) {
    if (s->n_events == 0) return false;
    *e = s->events[s->event_at].e;
    s->event_at = (s->event_at + 1) % EVENTS_MAX;
    s->n_events--;
    return true;
}

void seq_unplace(struct sched *s, struct seq *q) {
    ASSERT(q->state != SEQ_WAITING, "sequence %llu is not running", (unsigned long long)q->id);
    list_remove(&q->order);
    list_remove(&q->work);
    kv_slot_drop(s->kv, q->slot, q->n_sent > 0);
    s->n_running--;
    if (q->state == SEQ_PREFILL) s->n_prefill--;
    q->state = SEQ_WAITING;
    q->slot = KV_NONE;
}

static void seq_end(struct sched *s, struct seq *q) {
    if (q->state == SEQ_WAITING) {
        list_remove(&q->order);
        s->n_waiting--;
    } else {
        seq_unplace(s, q);
    }
    map_remove(&s->seqs, q->id);
    free(q);
}

static void seq_fail(struct sched *s, struct seq *q, int code, const char *text) {
    struct gen_event e = {q->id, -1, q->n_tokens - q->n_prompt, GEN_FAILED, code, NULL};
    seq_end(s, q);
    push_event(s, &e, text);
}

// True, and the sequence ended, if it needs more blocks than the route has.
static bool seq_fail_if_too_long(struct sched *s, struct seq *q) {
    uint32_t need = seq_blocks_total(q), have = kv_n_blocks(s->kv);
    if (need <= have) return false;
    char text[192];
    snprintf(text, sizeof text,
             "%u tokens of prompt and answer need %u KV blocks of %d tokens; the machines left have %u", q->n_total,
             need, LIMIT_BLOCK_TOKENS, have);
    seq_fail(s, q, ERR_LIMIT, text);
    return true;
}

static int check_tokens(const struct sched *s, const char *of, const int32_t *tokens, uint32_t n, struct err *e) {
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->config.n_vocab)
            return err_set(e, ERR_USAGE, "%s: token %d at %u is not in 0 .. %u", of, tokens[i], i,
                           s->config.n_vocab - 1);
    return ERR_OK;
}

static int check_request(const struct sched *s, const struct gen_request *r, struct err *e) {
    const struct sampling *p = &r->sampling;
    if (r->n_prompt < 1) return err_set(e, ERR_USAGE, "prompt: at least one token is needed");
    if (r->max_tokens < 1) return err_set(e, ERR_USAGE, "max_tokens: at least 1 is needed");
    if (r->n_known >= r->max_tokens)
        return err_set(e, ERR_USAGE, "%u tokens of the answer are known: all of max_tokens %u", r->n_known,
                       r->max_tokens);
    if (r->n_prompt > s->config.max_context || r->max_tokens > s->config.max_context - r->n_prompt)
        return err_set(e, ERR_LIMIT, "prompt of %u tokens and max_tokens %u exceed the context of %u tokens",
                       r->n_prompt, r->max_tokens, s->config.max_context);
    uint32_t need = kv_blocks_of(r->n_prompt + r->max_tokens - 1), have = kv_n_blocks(s->kv);
    if (s->up && need > have)
        return err_set(e, ERR_LIMIT,
                       "prompt of %u tokens and max_tokens %u need %u KV blocks of %d tokens; the machines have %u",
                       r->n_prompt, r->max_tokens, need, LIMIT_BLOCK_TOKENS, have);
    if (r->n_stop_ids > LIMIT_STOP_IDS) return err_set(e, ERR_USAGE, "stop ids: more than %d", LIMIT_STOP_IDS);
    if (!isfinite(p->temperature) || p->temperature < 0 || !(p->top_p > 0 && p->top_p <= 1) ||
        !(p->min_p >= 0 && p->min_p <= 1))
        return err_set(e, ERR_USAGE, "sampling: temperature >= 0, top_p in (0, 1] and min_p in [0, 1] are needed");
    int rc = check_tokens(s, "prompt", r->prompt, r->n_prompt, e);
    return rc ? rc : check_tokens(s, "answer", r->known, r->n_known, e);
}

int sched_submit(struct sched *s, uint64_t id, const struct gen_request *r, struct err *e) {
    int rc = check_request(s, r, e);
    if (rc) return rc;
    if (s->n_waiting >= LIMIT_QUEUED) return err_set(e, ERR_UNAVAILABLE, "%u requests wait already", s->n_waiting);
    ASSERT(!map_get(&s->seqs, id), "request %llu twice", (unsigned long long)id);
    uint32_t n_total = r->n_prompt + r->max_tokens;
    struct seq *q = calloc(1, sizeof *q + n_total * sizeof q->tokens[0]);
    if (!q || map_put(&s->seqs, id, q)) {
        free(q);
        return err_set(e, ERR_UNAVAILABLE, "no memory for a further request");
    }
    q->state = SEQ_WAITING;
    q->id = id;
    q->slot = KV_NONE;
    q->n_prompt = r->n_prompt;
    q->n_tokens = r->n_prompt + r->n_known;
    q->n_total = n_total;
    q->sampling = r->sampling;
    q->n_stop_ids = r->n_stop_ids;
    memcpy(q->stop_ids, r->stop_ids, sizeof q->stop_ids);
    memcpy(q->tokens, r->prompt, r->n_prompt * sizeof q->tokens[0]);
    if (r->n_known) memcpy(q->tokens + r->n_prompt, r->known, r->n_known * sizeof q->tokens[0]);
    list_init(&q->work);
    list_push_back(&s->waiting, &q->order);
    s->n_waiting++;
    return ERR_OK;
}

void sched_cancel(struct sched *s, uint64_t id) {
    struct seq *q = map_get(&s->seqs, id);
    if (!q) return;
    struct gen_event e = {id, -1, q->n_tokens - q->n_prompt, GEN_CANCELLED, ERR_OK, NULL};
    seq_end(s, q);
    push_event(s, &e, NULL);
}

void sched_fail_all(struct sched *s, int code, const char *text) {
    LIST_EACH(it, &s->running) seq_fail(s, LIST_ENTRY(it, struct seq, order), code, text);
    LIST_EACH(it, &s->waiting) seq_fail(s, LIST_ENTRY(it, struct seq, order), code, text);
}

void sched_route_down(struct sched *s) {
    // From the youngest to the oldest, each to the front: the queue then begins with all of them in their order.
    while (!list_is_empty(&s->running)) {
        struct seq *q = LIST_ENTRY(s->running.prev, struct seq, order);
        seq_unplace(s, q);
        list_push_front(&s->waiting, &q->order);
        s->n_waiting++;
    }
    kv_reset(s->kv, 0);
    s->up = false;
    s->n_flights = s->n_decode_flights = 0;
}

void sched_route_up(struct sched *s, uint32_t epoch, uint32_t n_stages, uint32_t n_blocks) {
    sched_route_down(s);
    kv_reset(s->kv, n_blocks);
    s->up = true;
    s->epoch = epoch;
    s->n_stages = n_stages;
    s->next_step = 1;
    LIST_EACH(it, &s->waiting) seq_fail_if_too_long(s, LIST_ENTRY(it, struct seq, order));
}

// A token came back that was drawn for position draw. One known already was computed twice, before and after a
// preemption: the same token, told already.
static void seq_token(struct sched *s, struct seq *q, uint32_t draw, int32_t token) {
    ASSERT(draw <= q->n_tokens, "token for %u, %u known", draw, q->n_tokens);
    if (draw < q->n_tokens) return;
    q->tokens[q->n_tokens++] = token;
    s->n_tokens++;
    struct gen_event e = {q->id, token, draw - q->n_prompt, GEN_GOING, ERR_OK, NULL};
    if (q->n_tokens == q->n_total) e.finish = GEN_LENGTH;
    for (uint32_t i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] == token) e.finish = GEN_STOP;
    push_event(s, &e, NULL);
    if (e.finish != GEN_GOING) {
        seq_end(s, q);
    } else if (q->state == SEQ_FLIGHT) {
        q->state = SEQ_READY;
        list_push_back(&s->ready, &q->work);
    }
}

// Compares a result with the step that was sent: an entry for each sequence that samples, others only with a fault.
static int check_result(const struct sched *s, const struct flight *f, const struct step_result *r, struct err *e) {
    uint32_t at = 0;
    if (r->n > f->n) return err_set(e, ERR_FORMAT, "result of step %llu: too many entries", (unsigned long long)r->id);
    for (uint32_t i = 0; i < f->n; i++) {
        if (at < r->n && r->entry[at].slot == f->entry[i].slot) {
            bool in_vocab = r->entry[at].token >= 0 && (uint32_t)r->entry[at].token < s->config.n_vocab;
            if (!r->entry[at].fault && (!in_vocab || !f->entry[i].sample))
                return err_set(e, ERR_FORMAT, "result of step %llu: slot %u: token %d", (unsigned long long)r->id,
                               r->entry[at].slot, r->entry[at].token);
            at++;
        } else if (f->entry[i].sample) {
            return err_set(e, ERR_FORMAT, "result of step %llu: slot %u is missing", (unsigned long long)r->id,
                           f->entry[i].slot);
        }
    }
    if (at == r->n) return ERR_OK;
    return err_set(e, ERR_FORMAT, "result of step %llu: slot %u is not of the step", (unsigned long long)r->id,
                   r->entry[at].slot);
}

int sched_result(struct sched *s, const struct step_result *r, bool *done, struct err *e) {
    *done = false;
    if (!s->up || r->epoch != s->epoch || s->n_flights == 0) return ERR_OK;
    struct flight *f = &s->flights[s->flight_at];
    if (r->id != f->step) return ERR_OK;
    int rc = check_result(s, f, r, e);
    if (rc) return rc;
    for (uint32_t i = 0, at = 0; i < f->n && at < r->n; i++) {
        if (r->entry[at].slot != f->entry[i].slot) continue;
        struct seq *q = map_get(&s->seqs, f->entry[i].seq);
        if (q && r->entry[at].fault)
            seq_fail(s, q, ERR_NUMERIC, "the model computed NaN or infinity for this request");
        else if (q)
            seq_token(s, q, f->entry[i].draw, r->entry[at].token);
        at++;
    }
    s->flight_at = (s->flight_at + 1) % LIMIT_STEPS_IN_FLIGHT;
    s->n_flights--;
    s->n_decode_flights -= f->decodes;
    *done = true;
    return ERR_OK;
}

void sched_counts(const struct sched *s, struct sched_counts *c) {
    *c = (struct sched_counts){.n_running = s->n_running, .n_waiting = s->n_waiting, .n_in_flight = s->n_flights};
    c->n_blocks = kv_n_blocks(s->kv);
    c->blocks_used = c->n_blocks - kv_n_free(s->kv);
    c->n_preemptions = s->n_preemptions;
    c->n_steps = s->n_steps;
    c->n_tokens = s->n_tokens;
    c->n_prefill_rows = s->n_prefill_rows;
}

void sched_check(const struct sched *s) {
    kv_check(s->kv);
    uint32_t n_prefill = 0, n_ready = 0;
    LIST_EACH(it, &s->waiting) {
        const struct seq *q = LIST_ENTRY(it, struct seq, order);
        ASSERT(q->state == SEQ_WAITING && q->slot == KV_NONE, "a sequence in the queue has a slot");
    }
    LIST_EACH(it, &s->running) {
        const struct seq *q = LIST_ENTRY(it, struct seq, order);
        uint32_t n_table;
        kv_table(s->kv, q->slot, &n_table);
        ASSERT(q->n_sent <= q->n_tokens && q->n_tokens < q->n_total, "%u sent, %u known", q->n_sent, q->n_tokens);
        ASSERT(q->n_blocks_sent == kv_blocks_of(q->n_sent) && q->n_blocks_sent <= n_table, "table of slot %u", q->slot);
        ASSERT(q->state != SEQ_READY || q->n_sent + 1 == q->n_tokens, "READY with %u of %u", q->n_sent, q->n_tokens);
        ASSERT((q->state == SEQ_FLIGHT) == (q->n_sent == q->n_tokens), "state %d", q->state);
        n_prefill += q->state == SEQ_PREFILL;
        n_ready += q->state == SEQ_READY;
    }
    ASSERT(list_count(&s->running) == s->n_running && list_count(&s->waiting) == s->n_waiting, "lists and counts");
    ASSERT(list_count(&s->prefill) == n_prefill && s->n_prefill == n_prefill, "list of prefill");
    ASSERT(list_count(&s->ready) == n_ready, "list of ready");
    ASSERT(s->seqs.count == s->n_running + s->n_waiting, "map and lists");
}
