#include "os/thread.h"

#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

void thread_fp_init(void) {
#ifdef __SSE__
    // The status bits are history, not mode; a thread inherits them. feclearexcept does not know the one for denormals.
    unsigned mxcsr = _mm_getcsr() & ~0x3Fu;
    _mm_setcsr(mxcsr);
    ASSERT(mxcsr == 0x1F80, "MXCSR is 0x%04X: a library of this process changed the floating-point mode", mxcsr);
#endif
    ASSERT(fegetround() == FE_TONEAREST, "the rounding mode is %d", fegetround());
}

static void *thread_main(void *arg) {
    struct thread *t = arg;
    pthread_setname_np(pthread_self(), t->name);
    thread_fp_init();
    t->run(t->arg);
    return NULL;
}

int thread_start(struct thread *t, const char *name, void (*run)(void *arg), void *arg, struct err *e) {
    t->run = run;
    t->arg = arg;
    snprintf(t->name, sizeof t->name, "%s", name);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // inherited by the new thread, which is never seen with another mask
    int rc = pthread_create(&t->handle, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) return err_set(e, ERR_NOMEM, "thread %s: cannot be started: %s", name, strerror(rc));
    return ERR_OK;
}

void thread_join(struct thread *t) {
    int rc = pthread_join(t->handle, NULL);
    ASSERT(rc == 0, "thread %s: join says %d", t->name, rc);
}

// On Linux the nice value is one of each thread, under its kernel id.
static void set_nice(int nice) {
    int refused = setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
    (void)refused;
}

void thread_raise_priority(void) { set_nice(-10); }

void thread_lower_priority(void) { set_nice(3); }
