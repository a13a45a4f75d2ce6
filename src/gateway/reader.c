#include "gateway/reader.h"

#include "base/limits.h"
#include "gateway/keep.h"
#include "os/clock.h"
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_MAX_BYTES = 1 << 20, HEARTBEAT_MS = 15000, STALL_MS = 30000 };

static void wake_locked(struct reader *r) {
    if (!r->sleeping) return;
    r->sleeping = false;
    MHD_resume_connection(r->connection);
}

void reader_suspend_locked(struct reader *r) {
    r->sleeping = true;
    r->slept_ms = clock_now_ms();
    MHD_suspend_connection(r->connection);
}

void reader_arrived_locked(struct reader *r, bool wake) {
    r->arrived = true;
    if (wake) wake_locked(r);
}

void reader_prepared_locked(struct reader *r) {
    if (r->arrived || r->failed) wake_locked(r);
}

void reader_fail_locked(struct reader *r, const struct api_error *error) {
    if (!r->failed) r->error = *error;
    r->failed = true;
    wake_locked(r);
}

struct reader *reader_new(struct answer *a, struct MHD_Connection *connection, struct resume *resume) {
    struct reader *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->answer = a;
    r->connection = connection;
    r->refs = 1;
    r->resume = resume;
    r->arrived = r->told = resume != NULL; // what there is can be read at once
    pthread_mutex_lock(&a->lock);
    struct reader *old = a->reader;
    if (old) {
        old->gone = true;
        wake_locked(old);
    }
    a->refs++;
    a->reader = r;
    pthread_mutex_unlock(&a->lock);
    return r;
}

void reader_ref(struct reader *r) {
    pthread_mutex_lock(&r->answer->lock);
    r->refs++;
    pthread_mutex_unlock(&r->answer->lock);
}

static void free_voices(struct reader *r) {
    for (uint32_t i = 0; r->voices && i < r->answer->ask.n_choices; i++) {
        struct voice *v = &r->voices[i];
        detok_free(v->detok);
        stop_free(v->stop);
        buf_fini(&v->content);
        buf_fini(&v->reasoning);
    }
    free(r->voices);
    r->voices = NULL;
}

void reader_unref(struct reader *r) {
    struct answer *a = r->answer;
    pthread_mutex_lock(&a->lock);
    bool last = --r->refs == 0;
    ASSERT(!last || a->reader != r, "the last one forgot to say that the reader is gone");
    pthread_mutex_unlock(&a->lock);
    if (!last) return;
    free_voices(r);
    buf_fini(&r->safe);
    buf_fini(&r->out);
    free(r->resume);
    free(r);
    answer_unref(a);
}

void reader_gone(struct reader *r) {
    struct answer *a = r->answer;
    pthread_mutex_lock(&a->lock);
    r->gone = true;
    wake_locked(r);
    bool was_there = a->reader == r;
    bool may_come_back = a->prepared && a->kept && r->told;
    if (was_there) {
        a->reader = NULL;
        a->quiet_ms = clock_now_ms();
    }
    pthread_mutex_unlock(&a->lock);
    if (!was_there || may_come_back) return;
    answer_cancel(a);
    if (a->shared->keep) keep_remove(a->shared->keep, a);
}

void reader_fail(struct reader *r, const struct api_error *error) {
    pthread_mutex_lock(&r->answer->lock);
    reader_fail_locked(r, error);
    bool was_there = r->answer->reader == r;
    pthread_mutex_unlock(&r->answer->lock);
    if (was_there) answer_cancel(r->answer);
}

bool reader_tick(struct reader *r, uint64_t now_ms) {
    struct answer *a = r->answer;
    const struct gateway_config *config = a->shared->config;
    uint64_t heartbeat_ms = config->heartbeat_ms ? config->heartbeat_ms : HEARTBEAT_MS;
    uint64_t stall_ms = config->stall_ms ? config->stall_ms : STALL_MS;
    pthread_mutex_lock(&a->lock);
    if (r->sleeping && a->prepared && a->stream && now_ms >= r->slept_ms + heartbeat_ms) {
        r->heartbeat = true;
        wake_locked(r);
    }
    bool stalled = r->started && !r->sleeping && !r->gone && now_ms >= r->pulled_ms + stall_ms;
    pthread_mutex_unlock(&a->lock);
    if (stalled) reader_gone(r);
    return stalled;
}

static bool open_voice(struct reader *r, struct voice *v) {
    const struct answer *a = r->answer;
    const struct answer_ask *k = &a->ask;
    const char *stops[LIMIT_STOP_STRINGS];
    size_t stop_bytes[LIMIT_STOP_STRINGS];
    size_t max_bytes = a->stream ? OUT_MAX_BYTES : LIMIT_ANSWER_BYTES, at = 0;
    struct err why;
    for (uint32_t i = 0; i < k->n_stops; i++) {
        stops[i] = k->stops + at;
        at += stop_bytes[i] = k->stop_bytes[i];
    }
    v->reason = k->reason;
    if (r->resume && v->index < r->resume->n) v->n_had = r->resume->n_events[v->index];
    buf_init(&v->content, max_bytes);
    buf_init(&v->reasoning, max_bytes);
    v->detok = detok_new(a->shared->config->model.tokenizer);
    if (v->detok && !k->head.chat) detok_continue(v->detok); // the client puts it behind its prompt
    return v->detok && stop_new(stops, stop_bytes, k->n_stops, &v->stop, &why) == ERR_OK;
}

bool reader_open_voices(struct reader *r) {
    const struct answer *a = r->answer;
    bool good = true;
    r->voices = calloc(a->ask.n_choices, sizeof *r->voices);
    if (!r->voices) return false;
    buf_init(&r->safe, OUT_MAX_BYTES);
    buf_init(&r->out, a->stream ? OUT_MAX_BYTES : (size_t)LIMIT_ANSWER_BYTES * 8);
    r->usage.prompt_tokens = a->ask.prompt_tokens;
    for (uint32_t i = 0; i < a->ask.n_choices && good; i++) {
        r->voices[i].choice = &a->choices[i];
        r->voices[i].index = i;
        good = open_voice(r, &r->voices[i]);
    }
    return good;
}
