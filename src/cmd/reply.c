#include "cmd/reply.h"

#include <stdlib.h>

#include "os/clock.h"

static void on_event(struct gateway_sink *sink, const struct gen_event *ev) {
    struct reply *a = (struct reply *)sink;
    pthread_mutex_lock(&a->lock);
    if (ev->token >= 0) {
        ASSERT(ev->index == a->n_tokens && a->n_tokens < a->max_tokens, "token %u of %u", ev->index, a->max_tokens);
        a->last_us = clock_now_us();
        if (!a->n_tokens) a->first_us = a->last_us;
        a->tokens[a->n_tokens++] = ev->token;
    }
    a->finish = ev->finish;
    a->ended = ev->finish != GEN_GOING;
    if (ev->finish == GEN_FAILED) err_set(&a->err, ev->code, "%s", ev->text);
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

int reply_start(struct reply *a, const struct gateway_ops *ops, const struct gen_request *r, struct err *e) {
    *a = (struct reply){.sink = {.event = on_event}, .ops = *ops, .max_tokens = r->max_tokens};
    a->tokens = malloc(r->max_tokens * sizeof a->tokens[0]);
    if (!a->tokens) return err_set(e, ERR_NOMEM, "no memory for the answer");
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->start_us = clock_now_us();
    int rc = ops->submit(ops->head, r, &a->sink, &a->id, e);
    if (rc) {
        a->ended = true;
        reply_fini(a);
    }
    return rc;
}

bool reply_next(struct reply *a, int32_t *token) {
    pthread_mutex_lock(&a->lock);
    while (!a->ended && a->n_taken == a->n_tokens) pthread_cond_wait(&a->changed, &a->lock);
    bool got = a->n_taken < a->n_tokens;
    if (got) *token = a->tokens[a->n_taken++];
    pthread_mutex_unlock(&a->lock);
    return got;
}

void reply_cancel(struct reply *a) { a->ops.cancel(a->ops.head, a->id); }

void reply_fini(struct reply *a) {
    pthread_mutex_lock(&a->lock);
    while (!a->ended) pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a->tokens);
    a->tokens = NULL;
}
