// The one thread of a process on which all cluster I/O happens: a libevent loop with posts from other threads and
// timers. Callbacks run on the thread that is inside loop_run.
#pragma once
#include "base/err.h"
#include <stdint.h>

struct event_base;
struct loop;
struct loop_timer;
struct loop_watch;

int loop_new(struct loop **l, struct err *e) MUST_CHECK;
// Not running any more, and timers, watches, links and listeners freed before. Posts that were not run are dropped.
void loop_free(struct loop *l);
void loop_run(struct loop *l);  // until loop_stop
void loop_stop(struct loop *l); // any thread
struct event_base *loop_base(struct loop *l);
// Runs fn(arg) on the loop's thread, in the order of the posts of one thread. Any thread, never blocks.
// ERR_LIMIT: too many posts wait (LIMIT_LOOP_POSTS).
int loop_post(struct loop *l, void (*fn)(void *arg), void *arg) MUST_CHECK;

// Timers and watches belong to the loop's thread (or to whoever prepares the loop before it runs).
struct loop_timer *loop_timer_new(struct loop *l, void (*fn)(void *arg), void *arg); // NULL: no memory
void loop_timer_set(struct loop_timer *t, uint64_t at_us); // clock_now_us() time; UINT64_MAX: off
void loop_timer_free(struct loop_timer *t);                // NULL is fine; also inside its own callback

// Calls fn(arg) whenever fd is readable (the eventfd of an os/queue), for as long as it is. The fd stays the caller's.
struct loop_watch *loop_watch_new(struct loop *l, int fd, void (*fn)(void *arg), void *arg); // NULL: no memory
// Calls fn(arg) on the loop's thread when the process gets this signal.
struct loop_watch *loop_watch_signal(struct loop *l, int signal, void (*fn)(void *arg), void *arg);
void loop_watch_free(struct loop_watch *w); // NULL is fine
