// A head without a model, for tests of the gateway: a thread adds a token to every live request per tick, from a script
// that the test chooses.
#pragma once
#include "gateway/gateway.h"
#include "os/clock.h"
#include "os/thread.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_LIVE_MAX = 1024, FAKE_SCRIPT_MAX = 4096, FAKE_SAVED_MAX = 64 };

struct fake_live {
    uint64_t id;
    struct gateway_sink *sink;
    struct gen_request request; // prompt is not kept
    uint32_t n_sent;
    bool cancelled;
};

// What a journal would hold of a request.
struct fake_saved {
    struct gen_restored r;
    int32_t prompt[64], known[FAKE_SCRIPT_MAX];
    uint8_t keep[LIMIT_KEEP_BYTES];
    bool forgotten;
};

struct fake_head {
    pthread_mutex_t lock;
    struct thread thread;
    atomic_bool stop;
    atomic_uint tick_us;
    // The script: its tokens, then the end token if end >= 0, else round and round. Choice i starts at token i.
    int32_t script[FAKE_SCRIPT_MAX];
    uint32_t n_script;
    int32_t end;
    uint32_t hold_after;  // sends no more than so many tokens
    uint32_t fail_after;  // GEN_FAILED instead of token number fail_after; UINT32_MAX: never
    int fail_code;        // of that GEN_FAILED
    int submit_code;      // what submit answers, unless 0
    uint32_t submit_left; // requests that are still taken before submit_code
    bool ready;
    struct fake_live live[FAKE_LIVE_MAX];
    uint32_t n_live;
    uint64_t next_id;
    uint32_t n_submitted, n_cancelled, last_n_prompt;
    struct gen_request last;
    int32_t last_prompt[64];
    struct fake_saved *saved[FAKE_SAVED_MAX];
    uint32_t n_saved;
};

static inline struct fake_saved *fake_find_saved(struct fake_head *f, uint64_t id) {
    for (uint32_t i = 0; i < f->n_saved; i++)
        if (f->saved[i]->r.id == id) return f->saved[i];
    return NULL;
}

static inline void fake_save(struct fake_head *f, uint64_t id, const struct gen_request *r) {
    if (!r->keep || r->restored || f->n_saved == FAKE_SAVED_MAX) return;
    struct fake_saved *s = calloc(1, sizeof *s);
    f->saved[f->n_saved++] = s;
    s->r = (struct gen_restored){.id = id, .request = *r};
    memcpy(s->prompt, r->prompt, (r->n_prompt < 64 ? r->n_prompt : 64) * sizeof *s->prompt);
    memcpy(s->keep, r->keep, r->keep_bytes);
    s->r.request.prompt = s->prompt;
    s->r.request.known = s->known;
    s->r.request.keep = s->keep;
    s->r.request.restored = true;
}

static inline void fake_forget(void *head, uint64_t id) {
    struct fake_head *f = head;
    pthread_mutex_lock(&f->lock);
    struct fake_saved *s = fake_find_saved(f, id);
    if (s) s->forgotten = true;
    pthread_mutex_unlock(&f->lock);
}

static inline uint32_t fake_n_unforgotten(struct fake_head *f) {
    uint32_t n = 0;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->n_saved; i++) n += !f->saved[i]->forgotten;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static inline void fake_restore(void *head, void (*take)(void *arg, const struct gen_restored *list, uint32_t n),
                                void *arg) {
    struct fake_head *f = head;
    struct gen_restored list[FAKE_SAVED_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_saved; i++)
        if (!f->saved[i]->forgotten) list[n++] = f->saved[i]->r;
    take(arg, list, n);
}

static inline int fake_submit(void *head, const struct gen_request *r, struct gateway_sink *sink, uint64_t *id,
                              struct err *e) {
    struct fake_head *f = head;
    int rc = ERR_OK;
    pthread_mutex_lock(&f->lock);
    if (f->submit_code && f->submit_left == 0) {
        rc = err_set(e, f->submit_code, "the fake head says no");
    } else if (f->n_live == FAKE_LIVE_MAX) {
        rc = err_set(e, ERR_LIMIT, "the fake head is full");
    } else {
        if (f->submit_left) f->submit_left--;
        if (!r->restored) *id = ++f->next_id;
        f->live[f->n_live++] = (struct fake_live){.id = *id, .sink = sink, .request = *r, .n_sent = r->n_known};
        fake_save(f, *id, r);
        f->n_submitted++;
        f->last = *r;
        f->last_n_prompt = r->n_prompt;
        for (uint32_t i = 0; i < r->n_prompt && i < 64; i++) f->last_prompt[i] = r->prompt[i];
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static inline void fake_cancel(void *head, uint64_t id) {
    struct fake_head *f = head;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->n_live; i++) {
        if (f->live[i].id == id) f->live[i].cancelled = true;
    }
    f->n_cancelled++;
    pthread_mutex_unlock(&f->lock);
}

// The next event of a request; false: none is due.
static inline bool fake_next(const struct fake_head *f, struct fake_live *l, struct gen_event *ev) {
    *ev = (struct gen_event){.id = l->id, .token = -1, .index = l->n_sent};
    if (l->cancelled) {
        ev->finish = GEN_CANCELLED;
        return true;
    }
    if (l->n_sent >= f->fail_after) {
        ev->finish = GEN_FAILED;
        ev->code = f->fail_code;
        ev->text = "no node is left";
        return true;
    }
    if (l->n_sent >= f->hold_after) return false;
    uint32_t at = l->n_sent + l->request.sampling.choice;
    bool end = f->end >= 0 && at >= f->n_script;
    ev->token = end ? f->end : f->script[at % f->n_script];
    l->n_sent++;
    ev->finish = end ? GEN_STOP : l->n_sent == l->request.max_tokens ? GEN_LENGTH : GEN_GOING;
    return true;
}

static inline void fake_run(void *arg) {
    struct fake_head *f = arg;
    while (!f->stop) {
        pthread_mutex_lock(&f->lock);
        for (uint32_t i = 0; i < f->n_live;) {
            struct gen_event ev;
            struct gateway_sink *sink = f->live[i].sink;
            bool due = fake_next(f, &f->live[i], &ev);
            if (due && ev.finish != GEN_GOING) {
                f->live[i] = f->live[--f->n_live];
            } else {
                i++;
            }
            struct fake_saved *s = due && ev.token >= 0 ? fake_find_saved(f, ev.id) : NULL;
            if (s) s->known[s->r.request.n_known++] = ev.token;
            if (s) s->r.finish = ev.finish;
            if (due) sink->event(sink, &ev);
        }
        pthread_mutex_unlock(&f->lock);
        struct timespec t = {.tv_nsec = (long)f->tick_us * 1000};
        nanosleep(&t, NULL);
    }
}

static inline void fake_health(void *head, struct gateway_health *h) {
    struct fake_head *f = head;
    pthread_mutex_lock(&f->lock);
    h->ready = f->ready;
    pthread_mutex_unlock(&f->lock);
    if (!h->ready) memcpy(h->why, "loading 3 of 12 layers", sizeof "loading 3 of 12 layers");
    h->retry_after_us = 7000000;
}

static inline int fake_metrics(void *head, struct buf *out) {
    (void)head;
    return buf_addf(out, "loom_fake_metric 42\n");
}

static inline int fake_status(void *head, struct buf *out) {
    (void)head;
    return buf_addf(out, "{\"fake\":true}");
}

static inline void fake_init(struct fake_head *f) {
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    f->tick_us = 200;
    f->end = -1;
    f->fail_after = f->hold_after = UINT32_MAX;
    f->fail_code = ERR_UNAVAILABLE;
    f->ready = true;
    struct err e;
    ASSERT(thread_start(&f->thread, "fake-head", fake_run, f, &e) == ERR_OK);
}

static inline struct gateway_ops fake_ops(struct fake_head *f) {
    return (struct gateway_ops){.head = f,
                                .submit = fake_submit,
                                .cancel = fake_cancel,
                                .forget = fake_forget,
                                .restore = fake_restore,
                                .health = fake_health,
                                .metrics = fake_metrics,
                                .status = fake_status};
}

// Waits until the head works on n requests; false if that does not come about.
static inline bool fake_wait_live(struct fake_head *f, uint32_t n) {
    for (int i = 0; i < 5000; i++) {
        pthread_mutex_lock(&f->lock);
        bool good = f->n_live == n;
        pthread_mutex_unlock(&f->lock);
        if (good) return true;
        clock_sleep_ms(2);
    }
    return false;
}

static inline void fake_fini(struct fake_head *f) {
    f->stop = true;
    thread_join(&f->thread);
    for (uint32_t i = 0; i < f->n_saved; i++) free(f->saved[i]);
    pthread_mutex_destroy(&f->lock);
}
