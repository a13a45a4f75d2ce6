#include "gateway/answer.h"

#include "base/log.h"
#include "gateway/prompt.h"
#include "os/clock.h"
#include "os/random.h"
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUT_MAX_BYTES = 1 << 20, FIRST_TOKENS = 64, HEARTBEAT_MS = 15000, STALL_MS = 30000 };

struct answer *answer_new(struct answer_shared *s, bool chat, struct buf *body, struct MHD_Connection *connection) {
    struct answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    pthread_mutex_init(&a->lock, NULL);
    a->shared = s;
    a->refs = 2;
    a->connection = connection;
    a->born_us = clock_now_us();
    a->head = (struct respond_head){.chat = chat, .model = s->config->model.id, .created_s = (uint64_t)time(NULL)};
    snprintf(a->head.id, sizeof a->head.id, "%s-%016llx", chat ? "chatcmpl" : "cmpl", (unsigned long long)random_u64());
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
    for (uint32_t i = 0; i < a->n_choices; i++) {
        struct choice *c = &a->choices[i];
        free(c->tokens);
        detok_free(c->detok);
        stop_free(c->stop);
        buf_fini(&c->content);
        buf_fini(&c->reasoning);
    }
    free(a->choices);
    free_body(a);
    buf_fini(&a->safe);
    buf_fini(&a->out);
    pthread_mutex_destroy(&a->lock);
    free(a);
    s->answers--;
}

void answer_unref(struct answer *a) {
    pthread_mutex_lock(&a->lock);
    bool last = --a->refs == 0;
    pthread_mutex_unlock(&a->lock);
    if (last) answer_free(a);
}

void answer_suspend_locked(struct answer *a) {
    a->sleeping = true;
    a->slept_ms = clock_now_ms();
    MHD_suspend_connection(a->connection);
}

static void wake_locked(struct answer *a) {
    if (!a->sleeping) return;
    a->sleeping = false;
    MHD_resume_connection(a->connection);
}

// Room for one more token: the queue grows to max_tokens and no further, since no more may come.
static bool make_room_locked(struct answer *a, struct choice *c) {
    if (c->head + c->count < c->cap) return true;
    if (c->head > 0) {
        memmove(c->tokens, c->tokens + c->head, c->count * sizeof *c->tokens);
        c->head = 0;
        return true;
    }
    ASSERT(c->cap < a->max_tokens, "more tokens than asked for");
    uint32_t cap = c->cap ? c->cap * 2 : FIRST_TOKENS;
    if (cap > a->max_tokens) cap = a->max_tokens;
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
    if (ev->token >= 0 && !c->closed) {
        if (make_room_locked(a, c)) {
            c->tokens[c->head + c->count++] = ev->token;
        } else if (!a->failed) {
            errors_from(&a->error, ERR_NOMEM, NULL, "out of memory");
            a->failed = true;
            wake_locked(a);
        }
    }
    if (ev->finish == GEN_FAILED) {
        c->code = ev->code;
        snprintf(c->why, sizeof c->why, "%s", ev->text ? ev->text : err_name(ev->code));
    }
    a->arrived = true;
    bool ended = ev->finish != GEN_GOING;
    if (ended || a->wake_each) wake_locked(a);
    bool last = ended && --a->refs == 0;
    pthread_mutex_unlock(&a->lock);
    if (last) answer_free(a);
}

// Cancels the choices that the head still works on. Called without the lock: the head may answer within the call. The
// caller holds a reference.
static void cancel_choices(struct answer *a) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    for (uint32_t i = 0;; i++) {
        pthread_mutex_lock(&a->lock);
        bool more = i < a->n_choices;
        struct choice *c = more ? &a->choices[i] : NULL;
        bool cancel = more && c->submitted && !c->cancelled && c->finish == GEN_GOING;
        uint64_t id = more ? c->id : 0;
        if (cancel) c->cancelled = true;
        pthread_mutex_unlock(&a->lock);
        if (!more) return;
        if (cancel) ops->cancel(ops->head, id);
    }
}

void answer_close_choice(struct answer *a, struct choice *c) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    pthread_mutex_lock(&a->lock);
    bool cancel = c->submitted && !c->cancelled && c->finish == GEN_GOING;
    c->closed = true;
    c->count = 0;
    if (cancel) c->cancelled = true;
    uint64_t id = c->id;
    pthread_mutex_unlock(&a->lock);
    if (cancel) ops->cancel(ops->head, id);
}

void answer_gone(struct answer *a) {
    pthread_mutex_lock(&a->lock);
    a->gone = true;
    wake_locked(a);
    pthread_mutex_unlock(&a->lock);
    cancel_choices(a);
}

void answer_fail(struct answer *a, const struct api_error *error) {
    pthread_mutex_lock(&a->lock);
    if (!a->failed) a->error = *error;
    a->failed = true;
    wake_locked(a);
    pthread_mutex_unlock(&a->lock);
    cancel_choices(a);
}

bool answer_tick(struct answer *a, uint64_t now_ms) {
    const struct gateway_config *config = a->shared->config;
    uint64_t heartbeat_ms = config->heartbeat_ms ? config->heartbeat_ms : HEARTBEAT_MS;
    uint64_t stall_ms = config->stall_ms ? config->stall_ms : STALL_MS;
    pthread_mutex_lock(&a->lock);
    if (a->sleeping && a->prepared && a->stream && now_ms >= a->slept_ms + heartbeat_ms) {
        a->heartbeat = true;
        wake_locked(a);
    }
    bool stalled = a->started && !a->sleeping && !a->gone && now_ms >= a->pulled_ms + stall_ms;
    pthread_mutex_unlock(&a->lock);
    if (stalled) answer_gone(a);
    return stalled;
}

static bool init_choice(struct answer *a, struct choice *c, const struct request *r, const struct prompts *p) {
    struct err why;
    size_t max_bytes = a->stream ? OUT_MAX_BYTES : LIMIT_ANSWER_BYTES;
    c->sink.event = on_event;
    c->answer = a;
    c->reason = p->reason;
    buf_init(&c->content, max_bytes);
    buf_init(&c->reasoning, max_bytes);
    c->detok = detok_new(a->shared->config->model.tokenizer);
    return c->detok && stop_new(r->stop, r->stop_len_bytes, r->n_stop, &c->stop, &why) == ERR_OK;
}

// Everything that an answer needs from its request; then the request is not needed any more.
static int set_up(struct answer *a, const struct request *r, const struct prompts *p, struct api_error *e) {
    uint32_t n = p->n * r->n;
    size_t longest = 0;
    struct choice *choices = calloc(n, sizeof *choices);
    bool good = choices != NULL;
    a->stream = r->stream;
    a->wake_each = r->stream || r->n_stop > 0;
    a->head.with_usage = r->include_usage;
    a->head.seed = r->sampling.seed;
    buf_init(&a->safe, OUT_MAX_BYTES);
    buf_init(&a->out, r->stream ? OUT_MAX_BYTES : (size_t)LIMIT_ANSWER_BYTES * 8);
    for (uint32_t i = 0; i < p->n; i++) {
        a->usage.prompt_tokens += p->list[i].n;
        if (p->list[i].n > longest) longest = p->list[i].n;
    }
    a->max_tokens = r->max_tokens ? r->max_tokens : a->shared->config->model.context;
    for (uint32_t i = 0; i < n && good; i++) {
        choices[i].index = i;
        good = init_choice(a, &choices[i], r, p);
    }
    pthread_mutex_lock(&a->lock);
    a->choices = choices;
    a->n_choices = choices ? n : 0;
    pthread_mutex_unlock(&a->lock);
    return good ? ERR_OK : errors_from(e, ERR_NOMEM, NULL, "out of memory");
}

unsigned answer_retry_after_s(const struct answer *a) {
    const struct gateway_ops *ops = &a->shared->config->ops;
    struct gateway_health health = {0};
    ops->health(ops->head, &health);
    uint64_t wait_s = (health.retry_after_us + 999999) / 1000000;
    return wait_s > 0 && wait_s < 3600 ? (unsigned)wait_s : 1;
}

static int submit(struct answer *a, struct choice *c, const struct request *r, const struct ids *prompt,
                  struct api_error *e) {
    const struct gateway_model *m = &a->shared->config->model;
    const struct gateway_ops *ops = &a->shared->config->ops;
    struct gen_request g = {
        .prompt = prompt->data,
        .n_prompt = (uint32_t)prompt->n,
        .max_tokens = r->max_tokens ? r->max_tokens : m->context - (uint32_t)prompt->n,
        .sampling = r->sampling,
        .n_stop_ids = m->n_stop_ids,
    };
    struct err why = {.text = "the request was refused"};
    memcpy(g.stop_ids, m->stop_ids, sizeof g.stop_ids);
    g.sampling.choice = c->index % r->n; // a prompt's choices are the same alone and in a list of prompts
    pthread_mutex_lock(&a->lock);
    bool unwanted = a->gone || a->failed;
    if (!unwanted) a->refs++; // given back by the last event
    pthread_mutex_unlock(&a->lock);
    if (unwanted) return errors_from(e, ERR_CANCELLED, NULL, "the answer is not wanted any more");
    uint64_t id = 0;
    int rc = ops->submit(ops->head, &g, &c->sink, &id, &why);
    pthread_mutex_lock(&a->lock);
    c->id = id;
    c->submitted = rc == ERR_OK;
    if (rc) a->refs--; // the preparing thread's own is still there
    pthread_mutex_unlock(&a->lock);
    if (!rc) return ERR_OK;
    errors_from(e, rc, NULL, why.text);
    if (rc == ERR_UNAVAILABLE) e->retry_after_s = answer_retry_after_s(a);
    return ERR_USAGE;
}

static int prepare(struct answer *a, struct request *r, struct prompts *p, struct api_error *e) {
    const struct gateway_config *config = a->shared->config;
    const char *body = (const char *)a->body.data;
    if (request_parse(r, a->head.chat, body, a->body.len_bytes, &config->model.defaults, e)) return ERR_USAGE;
    if (strcmp(r->model, config->model.id) != 0) {
        return errors_set(e, 404, "model_not_found", "model",
                          "The model '%.200s' does not exist here; there is '%.200s'", r->model, config->model.id);
    }
    if (prompt_make(&config->model, r, body, a->body.len_bytes, p, e)) return ERR_USAGE;
    free_body(a);
    if (set_up(a, r, p, e)) return ERR_USAGE;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        if (submit(a, &a->choices[i], r, &p->list[i / r->n], e)) return ERR_USAGE;
    }
    a->shared->metrics.prompt_tokens += a->usage.prompt_tokens;
    LOG_I("gateway", "%s: %u choices, %llu prompt tokens, seed %lld", a->head.id, a->n_choices,
          (unsigned long long)a->usage.prompt_tokens, (long long)a->head.seed);
    return ERR_OK;
}

void answer_prepare(struct answer *a) {
    struct request r = {0};
    struct prompts p = {0};
    struct api_error e;
    int rc = prepare(a, &r, &p, &e);
    prompt_fini(&p);
    request_fini(&r);
    if (rc) answer_fail(a, &e);
    pthread_mutex_lock(&a->lock);
    a->prepared = true;
    bool unwanted = a->gone || a->failed;
    if (a->arrived) wake_locked(a);
    pthread_mutex_unlock(&a->lock);
    if (unwanted) cancel_choices(a); // what was submitted while nobody was there to cancel it
    answer_unref(a);
}
