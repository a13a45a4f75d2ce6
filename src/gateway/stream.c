#include "gateway/stream.h"

#include "os/clock.h"
#include <string.h>

enum pick { PICK_NONE, PICK_TOKEN, PICK_FAILED, PICK_DONE };

struct picked {
    struct voice *voice;
    int32_t token;
    enum gen_finish finish; // of this token
    bool first_time;        // no reader had it before
};

static void choice_error_locked(struct reader *r, const struct choice *c) {
    if (r->failed) return;
    r->failed = true;
    if (c->starved) {
        errors_from(&r->error, ERR_NOMEM, NULL, "out of memory");
    } else if (c->finish == GEN_FAILED) {
        errors_from(&r->error, c->code, NULL, c->why);
        r->no_route = c->code == ERR_UNAVAILABLE;
    } else {
        errors_from(&r->error, ERR_CANCELLED, NULL, "the answer was cancelled by the server");
    }
}

// What went wrong with one choice made the others be cancelled.
static bool is_broken(const struct choice *c, const struct choice *before) {
    if (c->starved || c->finish == GEN_FAILED) return true;
    return c->finish == GEN_CANCELLED && !before;
}

static void take_locked(struct voice *v, struct picked *p) {
    struct choice *c = v->choice;
    p->voice = v;
    p->token = c->tokens[v->n_read++];
    p->finish = v->n_read < c->n_tokens ? GEN_GOING : c->finish;
    if (p->finish == GEN_FAILED || p->finish == GEN_CANCELLED) p->finish = GEN_GOING;
    p->first_time = v->n_read > c->n_counted;
    if (p->first_time) c->n_counted = v->n_read;
}

// The next token of the choice whose turn it is: the choices take turns, so that none waits for another's end.
static enum pick pick_locked(struct reader *r, struct picked *p) {
    const uint32_t n = r->answer->ask.n_choices;
    bool open = false;
    const struct choice *broken = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct voice *v = &r->voices[(r->turn + i) % n];
        const struct choice *c = v->choice;
        if (v->closed) continue;
        open = true;
        if (v->n_read < c->n_tokens) {
            take_locked(v, p);
            r->turn = v->index + 1;
            return PICK_TOKEN;
        }
        if (is_broken(c, broken)) broken = c;
    }
    if (broken) {
        choice_error_locked(r, broken);
        return PICK_FAILED;
    }
    return open ? PICK_NONE : PICK_DONE;
}

static int feed_text(struct reader *r, struct voice *v, const char *text, size_t len_bytes, bool *matched) {
    buf_clear(&r->safe);
    int rc = stop_feed(v->stop, text, len_bytes, &r->safe, matched);
    if (rc) return rc;
    if (!r->answer->ask.head.chat) return buf_add(&v->content, r->safe.data, r->safe.len_bytes);
    return reason_feed(&v->reason, (const char *)r->safe.data, r->safe.len_bytes, &v->reasoning, &v->content);
}

// The end of a choice: what detokenizer, stop matcher and reasoning splitter hold back comes out, in this order.
static int flush_text(struct reader *r, struct voice *v) {
    size_t len = 0;
    bool matched = false;
    const char *text = detok_flush(v->detok, &len);
    int rc = feed_text(r, v, text, len, &matched);
    if (rc) return rc;
    if (matched) v->finish_reason = "stop";
    buf_clear(&r->safe);
    rc = stop_flush(v->stop, &r->safe);
    if (!rc && !r->answer->ask.head.chat) return buf_add(&v->content, r->safe.data, r->safe.len_bytes);
    if (!rc) rc = reason_feed(&v->reason, (const char *)r->safe.data, r->safe.len_bytes, &v->reasoning, &v->content);
    if (!rc) rc = reason_flush(&v->reason, &v->reasoning, &v->content);
    return rc;
}

static void count(struct reader *r, const struct picked *p) {
    struct metrics *m = &r->answer->shared->metrics;
    r->usage.completion_tokens++;
    if (!p->first_time) return;
    m->completion_tokens++;
    if (r->usage.completion_tokens != 1) return;
    m->first_tokens++;
    m->first_token_us += clock_now_us() - r->answer->born_us;
}

// One token further. A choice that ends here has its finish_reason and is closed afterwards.
static int take_token(struct reader *r, const struct picked *p) {
    struct voice *v = p->voice;
    bool matched = false;
    int rc = ERR_OK;
    count(r, p);
    if (p->finish != GEN_STOP) { // the end token has no text
        size_t len = 0;
        const char *text = detok_feed(v->detok, p->token, &len);
        if (len > 0) rc = feed_text(r, v, text, len, &matched);
    }
    if (rc || (p->finish == GEN_GOING && !matched)) return rc;
    v->finish_reason = matched || p->finish == GEN_STOP ? "stop" : "length";
    // Behind a match the matcher lets nothing pass, so that only the splitter's rest comes out.
    rc = flush_text(r, v);
    v->closed = true;
    answer_close_choice(r->answer, v->choice);
    return rc;
}

// The line with the id of the event that follows: how many of each choice the client has with it (resume.h).
static int add_id(struct reader *r) {
    const struct answer_ask *k = &r->answer->ask;
    if (!k->head.with_ids) return ERR_OK;
    int rc = buf_addf(&r->out, "id: %s", k->head.id);
    for (uint32_t i = 0; i < k->n_choices && !rc; i++) {
        const struct voice *v = &r->voices[i];
        rc = buf_addf(&r->out, "%c%u", i ? '.' : ':', v->n_events > v->n_had ? v->n_events : v->n_had);
    }
    return rc ? rc : buf_add(&r->out, "\n", 1);
}

// Counts one more event of a choice. False: the client has it already, or *rc.
static bool begin_event(struct reader *r, struct voice *v, int *rc) {
    if (*rc || ++v->n_events <= v->n_had) return false;
    *rc = add_id(r);
    return *rc == ERR_OK;
}

static int add_events(struct reader *r, struct voice *v) {
    const struct respond_head *h = &r->answer->ask.head;
    struct buf *out = &r->out;
    int rc = ERR_OK;
    if (h->chat && !v->role_sent && begin_event(r, v, &rc)) rc = respond_role(h, v->index, out);
    v->role_sent = true;
    if (v->reasoning.len_bytes && begin_event(r, v, &rc)) {
        rc = respond_delta(h, v->index, "reasoning_content", &v->reasoning, out);
    }
    if (v->content.len_bytes && begin_event(r, v, &rc)) {
        rc = respond_delta(h, v->index, h->chat ? "content" : "text", &v->content, out);
    }
    if (v->finish_reason && begin_event(r, v, &rc)) rc = respond_finish(h, v->index, v->finish_reason, out);
    buf_clear(&v->reasoning);
    buf_clear(&v->content);
    return rc;
}

static int add_end(struct reader *r) {
    const struct respond_head *h = &r->answer->ask.head;
    int rc = ERR_OK;
    if (h->with_usage && begin_event(r, &r->voices[0], &rc)) rc = respond_usage(h, &r->usage, &r->out);
    if (!rc) rc = respond_done(&r->out);
    r->finished = true;
    return rc;
}

static int add_error(struct reader *r, const struct api_error *e) {
    int rc = buf_add(&r->out, "data: ", 6);
    if (!rc) rc = errors_add_json(e, &r->out);
    if (!rc) rc = buf_add(&r->out, "\n\n", 2);
    r->finished = true;
    return rc;
}

static int whole(struct reader *r) {
    const struct respond_head *h = &r->answer->ask.head;
    int rc = respond_open(h, &r->out);
    for (uint32_t i = 0; i < r->answer->ask.n_choices && !rc; i++) {
        const struct voice *v = &r->voices[i];
        rc =
            respond_choice(h, i, &v->content, v->reasoning.len_bytes ? &v->reasoning : NULL, v->finish_reason, &r->out);
    }
    return rc ? rc : respond_close(&r->usage, &r->out);
}

static enum stream_state out_of_memory(struct reader *r) {
    struct api_error e;
    errors_from(&e, ERR_NOMEM, NULL, "out of memory, or an answer larger than the server keeps");
    reader_fail(r, &e);
    return STREAM_FAILED;
}

// A stream begins with the first event of the head, so that a failure before it gets a status of its own; or when the
// client has waited so long that a sign of life is due.
static bool may_start_locked(struct reader *r, enum stream_state *state) {
    const struct answer *a = r->answer;
    if (!r->arrived && !r->heartbeat) return false;
    *state = STREAM_STARTS;
    bool token = false;
    for (uint32_t i = 0; i < a->ask.n_choices; i++) token = token || a->choices[i].n_tokens > 0;
    for (uint32_t i = 0; i < a->ask.n_choices && !token; i++) {
        const struct choice *c = &a->choices[i];
        if (c->finish != GEN_FAILED && c->finish != GEN_CANCELLED) continue;
        choice_error_locked(r, c);
        *state = STREAM_FAILED;
    }
    r->started = *state == STREAM_STARTS;
    r->pulled_ms = clock_now_ms();
    return true;
}

// False: there is nothing to read from yet; *state says what to do.
static bool is_open(struct reader *r, enum stream_state *state) {
    struct answer *a = r->answer;
    *state = STREAM_SLEEPS;
    pthread_mutex_lock(&a->lock);
    bool open = false;
    if (r->gone) {
        *state = STREAM_GONE;
    } else if (r->failed) {
        *state = STREAM_FAILED;
    } else if (!a->prepared) {
        reader_suspend_locked(r);
    } else {
        open = true;
    }
    pthread_mutex_unlock(&a->lock);
    if (open && !r->voices && !reader_open_voices(r)) {
        *state = out_of_memory(r);
        open = false;
    }
    return open;
}

enum stream_state stream_poll(struct reader *r) {
    struct answer *a = r->answer;
    enum stream_state state;
    while (is_open(r, &state)) {
        struct picked p;
        enum pick pick = PICK_NONE;
        pthread_mutex_lock(&a->lock);
        if (r->gone) {
            state = STREAM_GONE;
        } else if (r->failed) {
            state = STREAM_FAILED;
        } else if (a->stream) {
            if (!may_start_locked(r, &state)) reader_suspend_locked(r);
        } else {
            pick = pick_locked(r, &p);
            if (pick == PICK_NONE) reader_suspend_locked(r);
            if (pick == PICK_FAILED) state = STREAM_FAILED;
        }
        pthread_mutex_unlock(&a->lock);
        if (pick == PICK_DONE) return whole(r) ? out_of_memory(r) : STREAM_WHOLE;
        if (pick != PICK_TOKEN) break;
        if (take_token(r, &p)) return out_of_memory(r);
    }
    if (state == STREAM_FAILED) reader_fail(r, &r->error); // cancels the other choices
    return state;
}

// Adds what there is to out. False: the connection sleeps, or nobody is there any more (*gone).
static bool advance(struct reader *r, bool may_sleep, bool *gone) {
    struct answer *a = r->answer;
    struct picked p;
    enum pick pick = PICK_NONE;
    bool heartbeat = false, slept = false;
    pthread_mutex_lock(&a->lock);
    r->pulled_ms = clock_now_ms();
    *gone = r->gone;
    if (!r->gone) pick = r->failed ? PICK_FAILED : pick_locked(r, &p);
    heartbeat = pick == PICK_NONE && r->heartbeat;
    r->heartbeat = false;
    if (pick == PICK_NONE && !heartbeat && !r->gone) {
        slept = true;
        if (may_sleep) reader_suspend_locked(r);
    }
    if (pick == PICK_TOKEN) r->told = true; // an event with an id goes out
    pthread_mutex_unlock(&a->lock);
    if (*gone || slept) return false;
    int rc = ERR_OK;
    switch (pick) {
    case PICK_TOKEN:
        rc = take_token(r, &p);
        if (!rc) rc = add_events(r, p.voice);
        break;
    case PICK_FAILED:
        reader_fail(r, &r->error); // cancels the other choices
        rc = add_error(r, &r->error);
        break;
    case PICK_DONE:
        rc = add_end(r);
        break;
    case PICK_NONE:
        rc = respond_heartbeat(&r->out);
        break;
    }
    if (rc) {
        out_of_memory(r);
        *gone = true;
    }
    return rc == ERR_OK;
}

long stream_read(struct reader *r, char *to, size_t max) {
    bool gone = false;
    while (!r->finished && r->out.len_bytes - r->out_at < max) {
        bool empty = r->out.len_bytes == r->out_at;
        if (!advance(r, empty, &gone)) break;
    }
    if (gone) return STREAM_BROKEN;
    size_t n = r->out.len_bytes - r->out_at;
    if (n == 0) return r->finished ? STREAM_END : 0;
    if (n > max) n = max;
    memcpy(to, r->out.data + r->out_at, n);
    r->out_at += n;
    if (r->out_at == r->out.len_bytes) {
        buf_clear(&r->out);
        r->out_at = 0;
    }
    return (long)n;
}
