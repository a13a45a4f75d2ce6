#include "gateway/stream.h"

#include "os/clock.h"
#include <string.h>

enum pick { PICK_NONE, PICK_TOKEN, PICK_FAILED, PICK_DONE };

struct picked {
    struct choice *choice;
    int32_t token;
    enum gen_finish finish; // of this token
};

static void choice_error_locked(struct answer *a, const struct choice *c) {
    if (a->failed) return;
    a->failed = true;
    if (c->finish == GEN_FAILED) {
        errors_from(&a->error, c->code, NULL, c->why);
        a->no_route = c->code == ERR_UNAVAILABLE;
    } else {
        errors_from(&a->error, ERR_CANCELLED, NULL, "the answer was cancelled by the server");
    }
}

// The next token of the choice whose turn it is: the choices take turns, so that none waits for another's end.
static enum pick pick_locked(struct answer *a, struct picked *p) {
    bool open = false;
    struct choice *broken = NULL;
    for (uint32_t i = 0; i < a->n_choices; i++) {
        struct choice *c = &a->choices[(a->turn + i) % a->n_choices];
        if (c->closed) continue;
        open = true;
        if (c->count > 0) {
            p->choice = c;
            p->token = c->tokens[c->head++];
            p->finish = --c->count > 0 ? GEN_GOING : c->finish;
            if (p->finish == GEN_FAILED || p->finish == GEN_CANCELLED) p->finish = GEN_GOING;
            if (c->count == 0) c->head = 0;
            a->turn = c->index + 1;
            return PICK_TOKEN;
        }
        if (c->finish == GEN_FAILED || c->finish == GEN_CANCELLED) broken = c;
    }
    if (broken) {
        choice_error_locked(a, broken);
        return PICK_FAILED;
    }
    return open || !a->prepared ? PICK_NONE : PICK_DONE;
}

static int feed_text(struct answer *a, struct choice *c, const char *text, size_t len_bytes, bool *matched) {
    buf_clear(&a->safe);
    int rc = stop_feed(c->stop, text, len_bytes, &a->safe, matched);
    if (rc) return rc;
    if (!a->head.chat) return buf_add(&c->content, a->safe.data, a->safe.len_bytes);
    return reason_feed(&c->reason, (const char *)a->safe.data, a->safe.len_bytes, &c->reasoning, &c->content);
}

// The end of a choice: what detokenizer, stop matcher and reasoning splitter hold back comes out, in this order.
static int flush_text(struct answer *a, struct choice *c) {
    size_t len = 0;
    bool matched = false;
    const char *text = detok_flush(c->detok, &len);
    int rc = feed_text(a, c, text, len, &matched);
    if (rc) return rc;
    if (matched) c->finish_reason = "stop";
    buf_clear(&a->safe);
    rc = stop_flush(c->stop, &a->safe);
    if (!rc && !a->head.chat) return buf_add(&c->content, a->safe.data, a->safe.len_bytes);
    if (!rc) rc = reason_feed(&c->reason, (const char *)a->safe.data, a->safe.len_bytes, &c->reasoning, &c->content);
    if (!rc) rc = reason_flush(&c->reason, &c->reasoning, &c->content);
    return rc;
}

// One token further. A choice that ends here has its finish_reason and is closed afterwards.
static int take_token(struct answer *a, const struct picked *p) {
    struct choice *c = p->choice;
    bool matched = false;
    int rc = ERR_OK;
    a->usage.completion_tokens++;
    a->shared->metrics.completion_tokens++;
    if (p->finish != GEN_STOP) { // the end token has no text
        size_t len = 0;
        const char *text = detok_feed(c->detok, p->token, &len);
        if (len > 0) rc = feed_text(a, c, text, len, &matched);
    }
    if (rc || (p->finish == GEN_GOING && !matched)) return rc;
    c->finish_reason = matched || p->finish == GEN_STOP ? "stop" : "length";
    // Behind a match the matcher lets nothing pass, so that only the splitter's rest comes out.
    rc = flush_text(a, c);
    answer_close_choice(a, c);
    return rc;
}

static int add_events(struct answer *a, struct choice *c) {
    struct buf *out = &a->out;
    int rc = ERR_OK;
    if (a->head.chat && !c->role_sent) rc = respond_role(&a->head, c->index, out);
    c->role_sent = true;
    if (!rc && c->reasoning.len_bytes) {
        rc = respond_delta(&a->head, c->index, "reasoning_content", &c->reasoning, out);
    }
    if (!rc && c->content.len_bytes) {
        rc = respond_delta(&a->head, c->index, a->head.chat ? "content" : "text", &c->content, out);
    }
    if (!rc && c->finish_reason) rc = respond_finish(&a->head, c->index, c->finish_reason, out);
    buf_clear(&c->reasoning);
    buf_clear(&c->content);
    return rc;
}

static int add_end(struct answer *a) {
    int rc = a->head.with_usage ? respond_usage(&a->head, &a->usage, &a->out) : ERR_OK;
    if (!rc) rc = respond_done(&a->out);
    a->finished = true;
    return rc;
}

static int add_error(struct answer *a, const struct api_error *e) {
    int rc = buf_add(&a->out, "data: ", 6);
    if (!rc) rc = errors_add_json(e, &a->out);
    if (!rc) rc = buf_add(&a->out, "\n\n", 2);
    a->finished = true;
    return rc;
}

static int whole(struct answer *a) {
    int rc = respond_open(&a->head, &a->out);
    for (uint32_t i = 0; i < a->n_choices && !rc; i++) {
        const struct choice *c = &a->choices[i];
        rc = respond_choice(&a->head, i, &c->content, c->reasoning.len_bytes ? &c->reasoning : NULL, c->finish_reason,
                            &a->out);
    }
    return rc ? rc : respond_close(&a->usage, &a->out);
}

static void count_first(struct answer *a) {
    struct metrics *m = &a->shared->metrics;
    if (a->usage.completion_tokens != 1) return;
    m->first_tokens++;
    m->first_token_us += clock_now_us() - a->born_us;
}

static enum stream_state out_of_memory(struct answer *a) {
    struct api_error e;
    errors_from(&e, ERR_NOMEM, NULL, "out of memory, or an answer larger than the server keeps");
    answer_fail(a, &e);
    return STREAM_FAILED;
}

// A stream begins with the first event of the head, so that a failure before it gets a status of its own; or when the
// client has waited so long that a sign of life is due.
static bool may_start_locked(struct answer *a, enum stream_state *state) {
    if (!a->prepared || (!a->arrived && !a->heartbeat)) return false;
    *state = STREAM_STARTS;
    bool token = false;
    for (uint32_t i = 0; i < a->n_choices; i++) token = token || a->choices[i].count > 0;
    for (uint32_t i = 0; i < a->n_choices && !token; i++) {
        const struct choice *c = &a->choices[i];
        if (c->finish != GEN_FAILED && c->finish != GEN_CANCELLED) continue;
        choice_error_locked(a, c);
        *state = STREAM_FAILED;
    }
    a->started = *state == STREAM_STARTS;
    a->pulled_ms = clock_now_ms();
    return true;
}

enum stream_state stream_poll(struct answer *a) {
    for (;;) {
        struct picked p;
        enum stream_state state = STREAM_SLEEPS;
        enum pick pick = PICK_NONE;
        pthread_mutex_lock(&a->lock);
        if (a->gone) {
            state = STREAM_GONE;
        } else if (a->failed) {
            state = STREAM_FAILED;
        } else if (!a->prepared || a->stream) {
            if (!may_start_locked(a, &state)) answer_suspend_locked(a);
        } else {
            pick = pick_locked(a, &p);
            if (pick == PICK_NONE) answer_suspend_locked(a);
            if (pick == PICK_FAILED) state = STREAM_FAILED;
        }
        pthread_mutex_unlock(&a->lock);
        if (state == STREAM_FAILED) answer_fail(a, &a->error); // cancels the other choices
        if (pick == PICK_DONE) return whole(a) ? out_of_memory(a) : STREAM_WHOLE;
        if (pick != PICK_TOKEN) return state;
        if (take_token(a, &p)) return out_of_memory(a);
        count_first(a);
    }
}

// Adds what there is to out. False: the connection sleeps, or nobody is there any more (*gone).
static bool advance(struct answer *a, bool may_sleep, bool *gone) {
    struct picked p;
    enum pick pick = PICK_NONE;
    bool heartbeat = false, slept = false;
    pthread_mutex_lock(&a->lock);
    a->pulled_ms = clock_now_ms();
    *gone = a->gone;
    if (!a->gone) pick = a->failed ? PICK_FAILED : pick_locked(a, &p);
    heartbeat = pick == PICK_NONE && a->heartbeat;
    a->heartbeat = false;
    if (pick == PICK_NONE && !heartbeat && !a->gone) {
        slept = true;
        if (may_sleep) answer_suspend_locked(a);
    }
    pthread_mutex_unlock(&a->lock);
    if (*gone || slept) return false;
    int rc = ERR_OK;
    switch (pick) {
    case PICK_TOKEN:
        rc = take_token(a, &p);
        if (!rc) rc = add_events(a, p.choice);
        count_first(a);
        break;
    case PICK_FAILED:
        answer_fail(a, &a->error); // cancels the other choices
        rc = add_error(a, &a->error);
        break;
    case PICK_DONE:
        rc = add_end(a);
        break;
    case PICK_NONE:
        rc = respond_heartbeat(&a->out);
        break;
    }
    if (rc) {
        out_of_memory(a);
        *gone = true;
    }
    return rc == ERR_OK;
}

long stream_read(struct answer *a, char *to, size_t max) {
    bool gone = false;
    while (!a->finished && a->out.len_bytes - a->out_at < max) {
        bool empty = a->out.len_bytes == a->out_at;
        if (!advance(a, empty, &gone)) break;
    }
    if (gone) return STREAM_BROKEN;
    size_t n = a->out.len_bytes - a->out_at;
    if (n == 0) return a->finished ? STREAM_END : 0;
    if (n > max) n = max;
    memcpy(to, a->out.data + a->out_at, n);
    a->out_at += n;
    if (a->out_at == a->out.len_bytes) {
        buf_clear(&a->out);
        a->out_at = 0;
    }
    return (long)n;
}
