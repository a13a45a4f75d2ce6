// Threads with a name, which start with the floating-point environment that the numeric contract demands.
#pragma once
#include "base/err.h"
#include <pthread.h>

enum { THREAD_NAME_MAX = 16 }; // with the NUL; the kernel's own bound

// The creator owns it. From thread_start to thread_join it must stay where it is.
struct thread {
    pthread_t handle;
    void (*run)(void *arg);
    void *arg;
    char name[THREAD_NAME_MAX];
};

// Runs run(arg) in a new thread, which blocks all signals: those are for the main thread. name is cut at 15 bytes.
// arg stays the caller's and must outlive the thread. ERR_NOMEM if the system has no room for a thread.
int thread_start(struct thread *t, const char *name, void (*run)(void *arg), void *arg, struct err *e) MUST_CHECK;
// Waits for its end. Exactly once per successful start.
void thread_join(struct thread *t);

// Asserts MXCSR = 0x1F80 (round to nearest, denormals kept, all exceptions masked) and FE_TONEAREST: a library linked
// with fast-math start-up code would have changed them for the process (NUMERICS 1.6). thread_start does it in each new
// thread; main and threads that a library made and that will compute call it themselves. Status flags are cleared.
void thread_fp_init(void);

// Asks the kernel to run the calling thread before others (heartbeats). It is a wish: without the right, nothing
// changes.
void thread_raise_priority(void);
// Lets all others of this machine run before the calling thread, and before the threads that it makes from here on.
void thread_lower_priority(void);
