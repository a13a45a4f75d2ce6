#include "gateway/keep.h"

#include "base/log.h"
#include "base/map.h"
#include "gateway/record.h"
#include "os/clock.h"
#include "os/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENDED_MS = 600000 };

struct keep {
    pthread_mutex_t lock;
    struct answer_shared *shared;
    uint32_t resume_ms;
    struct map by_id; // hash of the id -> struct answer, a reference to each
    struct list all;  // the oldest first
    uint64_t seed;
};

struct keep *keep_new(struct answer_shared *s, uint32_t resume_ms) {
    struct keep *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    pthread_mutex_init(&k->lock, NULL);
    k->shared = s;
    k->resume_ms = resume_ms;
    k->seed = random_u64();
    map_init(&k->by_id, LIMIT_ANSWERS_KEPT, random_u64());
    list_init(&k->all);
    return k;
}

static uint64_t key_of(const struct keep *k, const char *id) { return map_hash_bytes(id, strlen(id), k->seed); }

// Takes it out; its reference is the caller's then.
static void take_out(struct keep *k, struct answer *a) {
    map_remove(&k->by_id, key_of(k, a->ask.head.id));
    list_remove(&a->in_table);
    pthread_mutex_lock(&a->lock);
    a->kept = false;
    pthread_mutex_unlock(&a->lock);
}

// Whether nobody reads it, and it ended. *tokens_bytes: what it holds.
static bool is_idle(struct answer *a, uint64_t *tokens_bytes) {
    pthread_mutex_lock(&a->lock);
    bool idle = a->prepared && !a->reader && answer_has_ended_locked(a);
    *tokens_bytes = 0;
    for (uint32_t i = 0; idle && i < a->ask.n_choices; i++) *tokens_bytes += a->choices[i].cap * sizeof(int32_t);
    pthread_mutex_unlock(&a->lock);
    return idle;
}

// The oldest that can be given up, with the reference to it.
static struct answer *evict(struct keep *k) {
    LIST_EACH(it, &k->all) {
        struct answer *a = LIST_ENTRY(it, struct answer, in_table);
        uint64_t bytes;
        if (!is_idle(a, &bytes)) continue;
        take_out(k, a);
        return a;
    }
    return NULL;
}

static void let_go(struct answer *a) {
    answer_cancel(a);
    answer_unref(a);
}

bool keep_add(struct keep *k, struct answer *a) {
    uint64_t key = key_of(k, a->ask.head.id);
    struct answer *evicted = NULL;
    pthread_mutex_lock(&k->lock);
    bool free_key = !map_get(&k->by_id, key);
    if (k->by_id.count >= LIMIT_ANSWERS_KEPT) evicted = evict(k);
    bool added = free_key && map_put(&k->by_id, key, a) == ERR_OK;
    if (added) {
        list_push_back(&k->all, &a->in_table);
        pthread_mutex_lock(&a->lock);
        a->refs++;
        a->kept = true;
        pthread_mutex_unlock(&a->lock);
    }
    pthread_mutex_unlock(&k->lock);
    if (evicted) let_go(evicted);
    return added;
}

void keep_remove(struct keep *k, struct answer *a) {
    pthread_mutex_lock(&k->lock);
    bool there = !list_is_empty(&a->in_table);
    if (there) take_out(k, a);
    pthread_mutex_unlock(&k->lock);
    if (there) answer_unref(a);
}

struct answer *keep_find(struct keep *k, const char *id) {
    pthread_mutex_lock(&k->lock);
    struct answer *a = map_get(&k->by_id, key_of(k, id));
    if (a && strcmp(a->ask.head.id, id) != 0) a = NULL;
    if (a) answer_ref(a);
    pthread_mutex_unlock(&k->lock);
    return a;
}

static bool is_due(const struct keep *k, struct answer *a, uint64_t now_ms, uint64_t *bytes) {
    bool idle = is_idle(a, bytes);
    pthread_mutex_lock(&a->lock);
    if (idle && !a->ended_ms) a->ended_ms = now_ms;
    uint64_t since_ms = idle && a->ended_ms > a->quiet_ms ? a->ended_ms : a->quiet_ms;
    bool due = a->prepared && !a->reader && now_ms >= since_ms + (idle ? ENDED_MS : k->resume_ms);
    pthread_mutex_unlock(&a->lock);
    return due;
}

void keep_tick(struct keep *k, uint64_t now_ms) {
    struct list due;
    uint64_t total = 0;
    list_init(&due);
    pthread_mutex_lock(&k->lock);
    for (struct list *it = k->all.prev, *before; it != &k->all; it = before) { // from the newest
        struct answer *a = LIST_ENTRY(it, struct answer, in_table);
        uint64_t bytes;
        before = it->prev;
        bool out = is_due(k, a, now_ms, &bytes);
        total += bytes;
        if (!out && !(bytes && total > LIMIT_ANSWERS_KEPT_BYTES)) continue;
        take_out(k, a);
        list_push_back(&due, &a->in_table);
    }
    pthread_mutex_unlock(&k->lock);
    for (struct list *it; (it = list_pop_front(&due)) != NULL;) let_go(LIST_ENTRY(it, struct answer, in_table));
}

void keep_free(struct keep *k) {
    if (!k) return;
    for (struct list *it; (it = list_front(&k->all)) != NULL;) {
        struct answer *a = LIST_ENTRY(it, struct answer, in_table);
        take_out(k, a);
        let_go(a);
    }
    map_fini(&k->by_id);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

// ---- after a restart

// The answer that a record belongs to, made if it is the first of its choices; a reference. NULL: it cannot be.
static struct answer *answer_of(struct keep *k, const struct gen_restored *r, uint32_t *choice) {
    struct answer_ask ask;
    struct buf none = {0};
    if (record_get(r->request.keep, r->request.keep_bytes, &ask, choice)) return NULL;
    struct answer *a = keep_find(k, ask.head.id);
    if (a && a->ask.n_choices != ask.n_choices) {
        answer_unref(a);
        a = NULL;
    } else if (!a && (a = answer_new(k->shared, ask.head.chat, &none)) != NULL) {
        ask.head.model = a->ask.head.model;
        a->ask = ask;
        ask.stops = NULL;
        a->stream = a->wake_each = true;
        if (!answer_make_choices(a) || !keep_add(k, a)) {
            answer_unref(a);
            a = NULL;
        }
    }
    free(ask.stops);
    return a;
}

static bool take_choice(struct answer *a, uint32_t i, const struct gen_restored *r) {
    struct choice *c = &a->choices[i];
    uint32_t n = r->request.n_known;
    if (c->id || n > a->ask.max_tokens || r->request.max_tokens > a->ask.max_tokens) return false;
    c->tokens = malloc((n ? n : 1) * sizeof *c->tokens);
    if (!c->tokens) return false;
    if (n) memcpy(c->tokens, r->request.known, n * sizeof *c->tokens);
    c->n_tokens = n;
    c->cap = n ? n : 1;
    c->n_counted = n;
    c->id = r->id;
    c->finish = r->finish;
    c->submitted = c->journaled = true;
    return true;
}

static bool is_whole(const struct answer *a) {
    for (uint32_t i = 0; i < a->ask.n_choices; i++)
        if (!a->choices[i].id) return false;
    return true;
}

static void go_on(struct answer *a, uint32_t i, const struct gen_restored *r) {
    struct choice *c = &a->choices[i];
    struct err e;
    if (c->finish != GEN_GOING) return;
    int rc = answer_submit(a, c, &r->request, &e);
    if (!rc) return;
    const struct gateway_ops *ops = &a->shared->config->ops;
    ops->forget(ops->head, r->id);
    pthread_mutex_lock(&a->lock);
    c->finish = GEN_FAILED;
    c->code = rc;
    snprintf(c->why, sizeof c->why, "%.255s", e.text);
    pthread_mutex_unlock(&a->lock);
}

// An answer of which not all choices are there was never told to anybody, or had come to its end.
static void take(void *arg, const struct gen_restored *list, uint32_t n) {
    struct keep *k = arg;
    const struct gateway_ops *ops = &k->shared->config->ops;
    uint32_t n_gone = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t choice;
        struct answer *a = answer_of(k, &list[i], &choice);
        if (!a) continue;
        if (!take_choice(a, choice, &list[i])) keep_remove(k, a);
        answer_unref(a);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t choice;
        struct answer_ask ask;
        struct answer *a = NULL;
        if (!record_get(list[i].request.keep, list[i].request.keep_bytes, &ask, &choice)) {
            a = keep_find(k, ask.head.id);
            free(ask.stops);
        }
        if (a && is_whole(a)) {
            a->prepared = true;
            a->quiet_ms = clock_now_ms();
            go_on(a, choice, &list[i]);
        } else {
            n_gone++;
            ops->forget(ops->head, list[i].id);
            if (a) keep_remove(k, a);
        }
        if (a) answer_unref(a);
    }
    if (n) LOG_I("gateway", "%u requests of an earlier process go on, %u are forgotten", n - n_gone, n_gone);
}

void keep_restore(struct keep *k) {
    const struct gateway_ops *ops = &k->shared->config->ops;
    if (ops->restore) ops->restore(ops->head, take, k);
}
