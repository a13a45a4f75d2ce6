// A bounded queue of pointers between threads, any number of them on either side; first in, first out. The one way in
// which threads of this program talk. The queue does not own what the pointers show.
#pragma once
#include "base/err.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { QUEUE_FOREVER = -1 };

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    void **items; // [cap], a ring
    uint32_t cap, head, count;
    bool closed;
    int fd; // eventfd, or -1
};

// cap >= 1 items at most. with_fd: an eventfd for a reader that waits in poll or an event loop.
int queue_init(struct queue *q, uint32_t cap, bool with_fd, struct err *e) MUST_CHECK;
void queue_fini(struct queue *q); // nobody else may use it any more; items left in it are forgotten

// item is not NULL. Never waits: ERR_LIMIT if the queue is full, ERR_CANCELLED if it is closed; the item is still the
// caller's then.
int queue_push(struct queue *q, void *item) MUST_CHECK;
// The oldest item. Waits for one up to timeout_ms (0: not at all, QUEUE_FOREVER: without end). NULL: none came in time,
// or the queue is closed and empty.
void *queue_pop(struct queue *q, int64_t timeout_ms);
// No more pushes; those who wait are woken, and what is in the queue can still be popped.
void queue_close(struct queue *q);
bool queue_is_closed(struct queue *q);
uint32_t queue_count(struct queue *q);

// Readable while the queue holds an item or is closed; -1 without one. The reader only polls it: queue_pop keeps its
// count, so there is nothing to read and no wake-up to lose.
int queue_fd(const struct queue *q);
