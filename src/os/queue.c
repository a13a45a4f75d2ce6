#include "os/queue.h"

#include "os/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int queue_init(struct queue *q, uint32_t cap, bool with_fd, struct err *e) {
    ASSERT(cap >= 1);
    *q = (struct queue){.cap = cap, .fd = -1};
    q->items = calloc(cap, sizeof *q->items);
    if (!q->items) return err_set(e, ERR_NOMEM, "queue: no memory for %u items", cap);
    if (with_fd && (q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
        free(q->items);
        q->items = NULL; // as before: not initialised
        return err_set(e, ERR_IO, "queue: eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
    return ERR_OK;
}

void queue_fini(struct queue *q) {
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    if (q->fd >= 0) close(q->fd);
    free(q->items);
    *q = (struct queue){.fd = -1};
}

// The eventfd is non-zero exactly while there is something to see. Under the lock, so that the two never disagree.
static void fd_raise(struct queue *q) {
    uint64_t one = 1;
    ssize_t n = q->fd < 0 ? 8 : write(q->fd, &one, sizeof one);
    ASSERT(n == 8, "eventfd: errno %d", errno);
}

static void fd_lower(struct queue *q) {
    uint64_t was;
    ssize_t n = q->fd < 0 ? 8 : read(q->fd, &was, sizeof was);
    ASSERT(n == 8, "eventfd: errno %d", errno);
}

int queue_push(struct queue *q, void *item) {
    ASSERT(item);
    pthread_mutex_lock(&q->lock);
    int rc = q->closed ? ERR_CANCELLED : q->count == q->cap ? ERR_LIMIT : ERR_OK;
    if (!rc) {
        q->items[(q->head + (uint64_t)q->count) % q->cap] = item;
        if (q->count++ == 0) fd_raise(q);
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

// Waits until there is an item, the queue is closed, or the time is over. The lock is held on both sides.
static void wait_filled(struct queue *q, int64_t timeout_ms) {
    if (timeout_ms < 0) {
        while (!q->count && !q->closed) pthread_cond_wait(&q->filled, &q->lock);
        return;
    }
    uint64_t end_ns = clock_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000u), .tv_nsec = (long)(end_ns % 1000000000u)};
    while (!q->count && !q->closed)
        if (pthread_cond_timedwait(&q->filled, &q->lock, &end) == ETIMEDOUT) return;
}

void *queue_pop(struct queue *q, int64_t timeout_ms) {
    void *item = NULL;
    pthread_mutex_lock(&q->lock);
    if (!q->count && !q->closed && timeout_ms != 0) wait_filled(q, timeout_ms);
    if (q->count) {
        item = q->items[q->head];
        q->head = q->head + 1 == q->cap ? 0 : q->head + 1;
        if (--q->count == 0 && !q->closed) fd_lower(q);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    if (!q->closed) {
        q->closed = true;
        fd_raise(q);
        pthread_cond_broadcast(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
}

bool queue_is_closed(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    bool closed = q->closed;
    pthread_mutex_unlock(&q->lock);
    return closed;
}

uint32_t queue_count(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    uint32_t n = q->count;
    pthread_mutex_unlock(&q->lock);
    return n;
}

int queue_fd(const struct queue *q) { return q->fd; }
