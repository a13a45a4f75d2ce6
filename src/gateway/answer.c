#include "gateway/answer.h"

#include "base/log.h"
#include "gateway/keep.h"
#include "gateway/prompt.h"
#include "gateway/reader.h"
#include "gateway/record.h"
#include "os/clock.h"
#include "os/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_TOKENS = 64 };

struct answer *answer_new(struct answer_shared *s, bool chat, struct buf *body) {
    struct answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    struct respond_head *h = &a->ask.head;
    pthread_mutex_init(&a->lock, NULL);
    list_init(&a->in_table);
    a->shared = s;
    a->refs = 1;
    a->born_us = clock_now_us();
    *h = (struct respond_head){.chat = chat, .model = s->config->model.id, .created_s = (uint64_t)time(NULL)};
    snprintf(h->id, sizeof h->id, "%s-%016llx", chat ? "chatcmpl" : "cmpl", (unsigned long long)random_u64());
    a->body = *body;
    *body = (struct buf){0};
    s->answers++;
    return a;
}

static void free_body(struct answer *a) {
    a->shared->body_bytes -= a->body.len_bytes;
    buf_fini(&a->body);
}

static void answer_free(struct answer *a) {
    struct answer_shared *s = a->shared;
    for (uint32_t i = 0; a->choices && i < a->ask.n_choices; i++) free(a->choices[i].tokens);
    free(a->choices);
    free(a->ask.stops);
    free_body(a);
    pthread_mutex_destroy(&a->lock);
    free(a);
    s->answers--;
}

void answer_ref(struct answer *a) {
    pthread_mutex_lock(&a->lock);
    a->refs++;
    pthread_mutex_unlock(&a->lock);
}

void answer_unref(struct answer *a) {
    pthread_mutex_lock(&a->lock);
    bool last = --a->refs == 0;
    pthread_mutex_unlock(&a->lock);
    if (last) answer_free(a);
}

// Room for one more token: up to max_tokens and no further, since no more may come.
static bool make_room_locked(struct answer *a, struct choice *c) {
    if (c->n_tokens < c->cap) return true;
    ASSERT(c->cap < a->ask.max_tokens, "more tokens than asked for");
    uint32_t cap = c->cap ? c->cap * 2 : FIRST_TOKENS;
    if (cap > a->ask.max_tokens) cap = a->ask.max_tokens;
    int32_t *p = realloc(c->tokens, cap * sizeof *p);
    if (!p) return false;
    c->tokens = p;
    c->cap = cap;
    return true;
}

// The head's thread.
static void on_event(struct gateway_sink *sink, const struct gen_event *ev) {
    struct choice *c = (struct choice *)(void *)sink;
    struct answer *a = c->answer;
    pthread_mutex_lock(&a->lock);
    ASSERT(c->finish == GEN_GOING, "an event behind the last one");
    c->finish = ev->finish;
    if (ev->token >= 0 && !c->closed && !c->starved) {
        if (make_room_locked(a, c)) {
            c->tokens[c->n_tokens++] = ev->token;
        } else {
            c->starved = true;
        }
    }
    if (ev->finish == GEN_FAILED) {
        c->code = ev->code;
        snprintf(c->why, sizeof c->why, "%s", ev->text ? ev->text : err_name(ev->code));
    }
    bool ended = ev->finish != GEN_GOING;
    if (a->reader) reader_arrived_locked(a->reader, ended || a->wake_each || c->starved);
    bool last = ended && --a->refs == 0;
    pthread_mutex_unlock(&a->lock);
    if (last) answer_free(a);
}

// What is to be done for one choice; looked at without the lock afterwards, since the head may answer within the call.
struct due {
    uint64_t id;
    bool more, cancel, forget;
};

static struct due look_at(struct answer *a, uint32_t i, bool cancel, bool forget) {
    struct due d = {0};
    pthread_mutex_lock(&a->lock);
    d.more = a->choices && i < a->ask.n_choices;
    if (d.more) {
        struct choice *c = &a->choices[i];
        d.id = c->id;
        d.cancel = cancel && c->submitted && !c->cancelled && c->finish == GEN_GOING;
        d.forget = forget && c->submitted && !c->forgotten && c->journaled;
        c->cancelled |= d.cancel;
        c->forgotten |= d.forget;
    }
    pthread_mutex_unlock(&a->lock);
    return d;
}

// The caller holds a reference.
static void end_choices(struct answer *a, bool cancel, bool forget) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    for (uint32_t i = 0;; i++) {
        struct due d = look_at(a, i, cancel, forget && ops->forget);
        if (!d.more) return;
        if (d.forget) ops->forget(ops->head, d.id);
        if (d.cancel) ops->cancel(ops->head, d.id);
    }
}

void answer_cancel(struct answer *a) {
    pthread_mutex_lock(&a->lock);
    a->unwanted = true;
    pthread_mutex_unlock(&a->lock);
    end_choices(a, true, !a->shared->stopping);
}

void answer_forget(struct answer *a) { end_choices(a, false, true); }

void answer_close_choice(struct answer *a, struct choice *c) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    pthread_mutex_lock(&a->lock);
    bool cancel = c->submitted && !c->cancelled && c->finish == GEN_GOING;
    c->closed = true;
    if (cancel) c->cancelled = true;
    uint64_t id = c->id;
    pthread_mutex_unlock(&a->lock);
    if (cancel) ops->cancel(ops->head, id);
}

bool answer_has_ended_locked(const struct answer *a) {
    for (uint32_t i = 0; i < a->ask.n_choices; i++) {
        const struct choice *c = &a->choices[i];
        if (!c->closed && c->finish == GEN_GOING) return false;
    }
    return true;
}

unsigned answer_retry_after_s(const struct answer *a) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    struct gateway_health health = {0};
    ops->health(ops->head, &health);
    uint64_t wait_s = (health.retry_after_us + 999999) / 1000000;
    return wait_s > 0 && wait_s < 3600 ? (unsigned)wait_s : 1;
}

bool answer_make_choices(struct answer *a) {
    struct choice *choices = calloc(a->ask.n_choices, sizeof *choices);
    if (!choices) return false;
    for (uint32_t i = 0; i < a->ask.n_choices; i++) {
        choices[i].sink.event = on_event;
        choices[i].answer = a;
        choices[i].index = i;
    }
    pthread_mutex_lock(&a->lock);
    a->choices = choices;
    pthread_mutex_unlock(&a->lock);
    return true;
}

static bool copy_stops(struct answer_ask *k, const struct request *r) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < r->n_stop; i++) bytes += r->stop_len_bytes[i];
    k->stops = malloc(bytes + 1);
    if (!k->stops) return false;
    char *to = k->stops;
    for (uint32_t i = 0; i < r->n_stop; i++) {
        memcpy(to, r->stop[i], r->stop_len_bytes[i]);
        to += r->stop_len_bytes[i];
        k->stop_bytes[i] = (uint16_t)r->stop_len_bytes[i];
    }
    k->n_stops = r->n_stop;
    return true;
}

// Everything that an answer needs from its request; then the request is not needed any more.
static int set_up(struct answer *a, const struct request *r, const struct prompts *p, struct api_error *e) {
    struct answer_ask *k = &a->ask;
    a->stream = r->stream;
    a->wake_each = r->stream || r->n_stop > 0;
    k->head.with_usage = r->include_usage;
    k->head.seed = r->sampling.seed;
    k->reason = p->reason;
    k->max_tokens = r->max_tokens ? r->max_tokens : a->shared->config->model.context;
    k->n_choices = p->n * r->n;
    for (uint32_t i = 0; i < p->n; i++) k->prompt_tokens += p->list[i].n;
    if (copy_stops(k, r) && answer_make_choices(a)) return ERR_OK;
    return errors_from(e, ERR_NOMEM, NULL, "out of memory");
}

int answer_submit(struct answer *a, struct choice *c, const struct gen_request *r, struct err *e) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    pthread_mutex_lock(&a->lock);
    bool unwanted = a->unwanted;
    if (!unwanted) a->refs++; // given back by the last event
    uint64_t id = c->id;
    pthread_mutex_unlock(&a->lock);
    if (unwanted) return err_set(e, ERR_CANCELLED, "the answer is not wanted any more");
    err_set(e, ERR_OK, "the request was refused");
    int rc = ops->submit(ops->head, r, &c->sink, &id, e);
    pthread_mutex_lock(&a->lock);
    c->id = id;
    c->submitted = rc == ERR_OK;
    c->journaled = !rc && r->keep;
    if (rc) a->refs--; // the caller's own is still there
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static int submit(struct answer *a, struct choice *c, const struct request *r, const struct ids *prompt,
                  struct buf *record, struct api_error *e) {
    const struct gateway_model *m = &a->shared->config->model;
    struct gen_request g = {
        .prompt = prompt->data,
        .n_prompt = (uint32_t)prompt->n,
        .max_tokens = r->max_tokens ? r->max_tokens : m->context - (uint32_t)prompt->n,
        .sampling = r->sampling,
        .n_stop_ids = m->n_stop_ids,
    };
    memcpy(g.stop_ids, m->stop_ids, sizeof g.stop_ids);
    g.sampling.choice = c->index % r->n; // a prompt's choices are the same alone and in a list of prompts
    buf_clear(record);
    if (a->ask.head.with_ids && record_put(&a->ask, c->index, record) == ERR_OK) {
        g.keep = record->data;
        g.keep_bytes = (uint32_t)record->len_bytes;
    }
    struct err why;
    int rc = answer_submit(a, c, &g, &why);
    if (!rc) return ERR_OK;
    errors_from(e, rc, NULL, why.text);
    if (rc == ERR_UNAVAILABLE) e->retry_after_s = answer_retry_after_s(a);
    return ERR_USAGE;
}

static int prepare(struct answer *a, struct request *r, struct prompts *p, struct buf *record, struct api_error *e) {
    const struct gateway_config *config = a->shared->config;
    const char *body = (const char *)a->body.data;
    if (request_parse(r, a->ask.head.chat, body, a->body.len_bytes, &config->model.defaults, e)) return ERR_USAGE;
    if (strcmp(r->model, config->model.id) != 0) {
        return errors_set(e, 404, "model_not_found", "model",
                          "The model '%.200s' does not exist here; there is '%.200s'", r->model, config->model.id);
    }
    if (prompt_make(&config->model, r, body, a->body.len_bytes, p, e)) return ERR_USAGE;
    free_body(a);
    if (set_up(a, r, p, e)) return ERR_USAGE;
    if (r->stream && a->shared->keep) a->ask.head.with_ids = keep_add(a->shared->keep, a);
    for (uint32_t i = 0; i < a->ask.n_choices; i++) {
        if (submit(a, &a->choices[i], r, &p->list[i / r->n], record, e)) return ERR_USAGE;
    }
    a->shared->metrics.prompt_tokens += a->ask.prompt_tokens;
    LOG_I("gateway", "%s: %u choices, %llu prompt tokens, seed %lld", a->ask.head.id, a->ask.n_choices,
          (unsigned long long)a->ask.prompt_tokens, (long long)a->ask.head.seed);
    return ERR_OK;
}

void answer_prepare(struct answer *a) {
    struct request r = {0};
    struct prompts p = {0};
    struct buf record;
    struct api_error e;
    buf_init(&record, LIMIT_KEEP_BYTES);
    int rc = prepare(a, &r, &p, &record, &e);
    prompt_fini(&p);
    request_fini(&r);
    buf_fini(&record);
    pthread_mutex_lock(&a->lock);
    a->prepared = true;
    if (a->reader && rc) reader_fail_locked(a->reader, &e);
    if (a->reader) reader_prepared_locked(a->reader);
    bool unwanted = a->unwanted || rc;
    pthread_mutex_unlock(&a->lock);
    if (unwanted) { // what was submitted while nobody was there to cancel it
        answer_cancel(a);
        if (a->shared->keep) keep_remove(a->shared->keep, a);
    }
    answer_unref(a);
}
