#include "net/loop.h"

#include "base/limits.h"
#include "os/clock.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct post {
    void (*fn)(void *arg);
    void *arg;
};

struct loop {
    struct event_base *base;
    struct event *wake;
    int fd; // eventfd: non-zero while posts wait
    pthread_mutex_t lock;
    struct post *posts; // [cap], a ring, grown up to LIMIT_LOOP_POSTS
    uint32_t head, count, cap;
    bool stop; // under the lock
};

struct loop_timer {
    struct event *ev;
    void (*fn)(void *arg);
    void *arg;
};

struct loop_watch {
    struct event *ev;
    void (*fn)(void *arg);
    void *arg;
};

static bool take_post(struct loop *l, struct post *p) {
    pthread_mutex_lock(&l->lock);
    bool some = l->count > 0;
    if (some) {
        *p = l->posts[l->head];
        l->head = (l->head + 1) % l->cap;
        l->count--;
    }
    if (l->stop) {
        l->stop = false;
        event_base_loopbreak(l->base);
    }
    pthread_mutex_unlock(&l->lock);
    return some;
}

// Runs as many posts as there were at the start: one that posts again waits for its turn behind the sockets.
static void on_wake(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    struct loop *l = arg;
    uint64_t n;
    if (read(fd, &n, sizeof n) < 0) n = 0;
    pthread_mutex_lock(&l->lock);
    uint32_t todo = l->count;
    pthread_mutex_unlock(&l->lock);
    struct post p;
    do {
        if (!take_post(l, &p)) return;
        p.fn(p.arg);
    } while (--todo > 0);
    pthread_mutex_lock(&l->lock);
    bool more = l->count > 0;
    pthread_mutex_unlock(&l->lock);
    if (more) event_active(l->wake, EV_READ, 0);
}

int loop_new(struct loop **out, struct err *e) {
    struct loop *l = calloc(1, sizeof *l);
    if (!l) return err_set(e, ERR_NOMEM, "loop: no memory");
    pthread_mutex_init(&l->lock, NULL);
    l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct event_config *c = event_config_new();
    if (c) {
        event_config_set_flag(c, EVENT_BASE_FLAG_PRECISE_TIMER | EVENT_BASE_FLAG_NO_CACHE_TIME);
        l->base = event_base_new_with_config(c);
        event_config_free(c);
    }
    if (l->base && l->fd >= 0) l->wake = event_new(l->base, l->fd, EV_READ | EV_PERSIST, on_wake, l);
    if (!l->wake || event_add(l->wake, NULL)) {
        loop_free(l);
        return err_set(e, ERR_IO, "loop: libevent or an eventfd could not be had");
    }
    *out = l;
    return ERR_OK;
}

void loop_free(struct loop *l) {
    if (!l) return;
    if (l->wake) event_free(l->wake);
    if (l->base) {
        // Links that were closed last still have deferred work in libevent, which frees them.
        for (int i = 0; i < 2; i++) event_base_loop(l->base, EVLOOP_NONBLOCK);
        event_base_free(l->base);
    }
    if (l->fd >= 0) close(l->fd);
    pthread_mutex_destroy(&l->lock);
    free(l->posts);
    free(l);
}

void loop_run(struct loop *l) { event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY); }

struct event_base *loop_base(struct loop *l) {
    return l->base;
}

static void wake(struct loop *l) {
    uint64_t one = 1;
    ssize_t n = write(l->fd, &one, sizeof one); // EAGAIN: the counter is full, so it is awake
    ASSERT(n == 8 || errno == EAGAIN, "eventfd: errno %d", errno);
}

void loop_stop(struct loop *l) {
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

// Twice the room, with the posts in order from the start.
static int grow(struct loop *l) {
    if (l->cap >= LIMIT_LOOP_POSTS) return ERR_LIMIT;
    uint32_t cap = l->cap ? l->cap * 2 : 256;
    struct post *p = malloc(cap * sizeof *p);
    if (!p) return ERR_LIMIT;
    for (uint32_t i = 0; i < l->count; i++) p[i] = l->posts[(l->head + i) % l->cap];
    free(l->posts);
    l->posts = p;
    l->head = 0;
    l->cap = cap;
    return ERR_OK;
}

int loop_post(struct loop *l, void (*fn)(void *arg), void *arg) {
    pthread_mutex_lock(&l->lock);
    int rc = l->count == l->cap ? grow(l) : ERR_OK;
    bool first = l->count == 0;
    if (!rc) {
        l->posts[(l->head + l->count) % l->cap] = (struct post){fn, arg};
        l->count++;
    }
    pthread_mutex_unlock(&l->lock);
    if (!rc && first) wake(l);
    return rc;
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct loop_timer *t = arg;
    t->fn(t->arg); // may free t
}

struct loop_timer *loop_timer_new(struct loop *l, void (*fn)(void *arg), void *arg) {
    struct loop_timer *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->fn = fn;
    t->arg = arg;
    t->ev = evtimer_new(l->base, on_timer, t);
    if (t->ev) return t;
    free(t);
    return NULL;
}

void loop_timer_set(struct loop_timer *t, uint64_t at_us) {
    if (at_us == UINT64_MAX) {
        evtimer_del(t->ev);
        return;
    }
    uint64_t now = clock_now_us(), wait = at_us > now ? at_us - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(wait / 1000000), .tv_usec = (suseconds_t)(wait % 1000000)};
    int rc = evtimer_add(t->ev, &tv);
    ASSERT(rc == 0, "a timer could not be set");
}

void loop_timer_free(struct loop_timer *t) {
    if (!t) return;
    event_free(t->ev);
    free(t);
}

static void on_watch(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct loop_watch *w = arg;
    w->fn(w->arg);
}

static struct loop_watch *watch_new(struct loop *l, int fd, short what, void (*fn)(void *arg), void *arg) {
    struct loop_watch *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->fn = fn;
    w->arg = arg;
    w->ev = event_new(l->base, fd, (short)(what | EV_PERSIST), on_watch, w);
    if (w->ev && event_add(w->ev, NULL) == 0) return w;
    loop_watch_free(w);
    return NULL;
}

struct loop_watch *loop_watch_new(struct loop *l, int fd, void (*fn)(void *arg), void *arg) {
    return watch_new(l, fd, EV_READ, fn, arg);
}

struct loop_watch *loop_watch_signal(struct loop *l, int signal, void (*fn)(void *arg), void *arg) {
    return watch_new(l, signal, EV_SIGNAL, fn, arg);
}

void loop_watch_free(struct loop_watch *w) {
    if (!w) return;
    if (w->ev) event_free(w->ev);
    free(w);
}
