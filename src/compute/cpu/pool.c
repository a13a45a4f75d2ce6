// One 64-bit ticket holds (generation, next item). A claim is a compare-and-swap on it, so that a worker which read the
// job of one generation can never take an item of another: the job fields are written only between two generations,
// while the ticket shows an index past every end.
//
//   odd generation: closed, the job is being written      even: open, items are claimed from index 0 up
//
// The one barrier of a job is its end, and what hurts there is a worker that the kernel took off its processor between
// claim and completion, in favour of another process: it may be gone for milliseconds, a hundred times the job. Such a
// worker is parked: it gets no items for a while, so that there is nothing to wait for, and the longer the more often
// in a row it was late. With all workers parked the pool is as fast as one thread, and no slower.
#include "compute/cpu/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum {
    SPIN_NS = 30000,
    SPIN_PAUSES = 64,
    LOOK_NS = 20000,       // in which a worker that has a processor is seen to run
    PARK_MIN_NS = 2000000, // at first: who has something short to do is done then
    PARK_MAX_NS = 256000000,
    AGAIN_NS = 10000000, // late so soon after it came back, it stays away twice as long
    LINE_BYTES = 64
};

// Each in lines of its own: flags of one worker are no other's business.
struct worker {
    _Alignas(LINE_BYTES) struct pool *pool;
    pthread_t thread;
    clockid_t clock; // of the time that it ran
    uint32_t index;
    uint64_t parked_ns, park_ns;             // since when, and for how long: the caller's alone
    _Alignas(LINE_BYTES) atomic_bool in_job; // it may hold items
    atomic_bool parked;
};

struct pool {
    _Alignas(LINE_BYTES) _Atomic uint64_t ticket;
    _Alignas(LINE_BYTES) _Atomic uint32_t n_done;
    _Alignas(LINE_BYTES) _Atomic(pool_fn) fn; // written by the caller only, between jobs
    _Atomic(void *) arg;
    _Atomic uint32_t n_items, grain;
    uint32_t n_threads, n_started;
    uint32_t n_parked;                         // the caller's alone
    _Alignas(LINE_BYTES) pthread_mutex_t lock; // only for the two conditions
    pthread_cond_t work, done, unpark;
    _Atomic bool stop;
    _Atomic uint32_t n_sleeping; // workers that wait on `work`
    _Atomic bool caller_sleeps;  // pool_run waits on `done`
    struct worker workers[];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Flush-to-zero, denormals-are-zero or another rounding would change the numbers: a library linked with unsafe
// options can switch them on for the whole process.
static void assert_rounding(void) {
    unsigned csr = _mm_getcsr() & ~0x3fu; // the low bits are sticky flags
    ASSERT(csr == 0x1f80, "MXCSR is %#x: rounding or subnormals were changed", csr);
}

static uint32_t ticket_index(uint64_t ticket) { return (uint32_t)ticket; }
static uint64_t ticket_generation(uint64_t ticket) { return ticket >> 32; }

// Takes items until none is left.
static void work_on(struct pool *p, uint32_t thread) {
    uint64_t ticket = atomic_load(&p->ticket);
    for (;;) {
        uint32_t n = atomic_load(&p->n_items), grain = atomic_load(&p->grain), begin = ticket_index(ticket);
        pool_fn fn = atomic_load(&p->fn);
        void *arg = atomic_load(&p->arg);
        if (ticket_generation(ticket) & 1 || begin >= n) return;
        uint32_t end = n - begin > grain ? begin + grain : n;
        uint64_t next = ticket_generation(ticket) << 32 | end;
        if (!atomic_compare_exchange_weak(&p->ticket, &ticket, next)) continue;
        fn(arg, begin, end, thread);
        uint32_t done = atomic_fetch_add(&p->n_done, end - begin) + (end - begin);
        if (done == n && thread != 0 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
        ticket = atomic_load(&p->ticket);
    }
}

static bool is_news(struct pool *p, uint64_t generation) {
    uint64_t now = ticket_generation(atomic_load(&p->ticket));
    return (now != generation && !(now & 1)) || atomic_load(&p->stop);
}

// Waits until an open generation other than the given one, or stop.
static void wait_for_work(struct worker *w, uint64_t generation) {
    struct pool *p = w->pool;
    uint64_t until = now_ns() + SPIN_NS;
    while (!atomic_load(&w->parked)) {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (is_news(p, generation)) return;
            _mm_pause();
        }
        if (now_ns() >= until) break;
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&w->parked) && !atomic_load(&p->stop)) pthread_cond_wait(&p->unpark, &p->lock);
    atomic_fetch_add(&p->n_sleeping, 1);
    while (!is_news(p, generation)) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint64_t generation = 0;
    assert_rounding();
    for (;;) {
        wait_for_work(w, generation);
        if (atomic_load(&p->stop)) return NULL;
        atomic_store(&w->in_job, true);
        generation = ticket_generation(atomic_load(&p->ticket));
        work_on(p, w->index);
        atomic_store(&w->in_job, false);
    }
}

struct pool *pool_new(uint32_t n_threads) {
    ASSERT(n_threads >= 1, "a pool of no threads");
    struct pool *p = aligned_alloc(LINE_BYTES, sizeof(struct pool) + sizeof(struct worker) * n_threads);
    if (!p) return NULL;
    *p = (struct pool){.n_threads = n_threads, .n_started = 1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    pthread_cond_init(&p->unpark, NULL);
    for (uint32_t i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            pool_free(p);
            return NULL;
        }
        pthread_getcpuclockid(w->thread, &w->clock);
        p->n_started++;
    }
    return p;
}

void pool_free(struct pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_cond_broadcast(&p->unpark);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 1; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->unpark);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

uint32_t pool_threads(const struct pool *p) { return p->n_threads; }

static void park(struct pool *p, struct worker *w, uint64_t now) {
    bool again = w->park_ns && now - w->parked_ns < 2 * w->park_ns + AGAIN_NS;
    w->park_ns = !again ? PARK_MIN_NS : w->park_ns < PARK_MAX_NS ? 2 * w->park_ns : PARK_MAX_NS;
    w->parked_ns = now;
    if (!atomic_exchange(&w->parked, true)) p->n_parked++;
}

// Before a job: those whose time is over take part again.
static void unpark(struct pool *p, uint64_t now) {
    bool any = false;
    for (uint32_t i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        if (!atomic_load(&w->parked) || now - w->parked_ns < w->park_ns) continue;
        atomic_store(&w->parked, false);
        p->n_parked--;
        any = true;
    }
    if (!any) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->unpark);
    pthread_mutex_unlock(&p->lock);
}

static uint64_t ran_ns(const struct worker *w) {
    struct timespec t;
    if (clock_gettime(w->clock, &t)) return now_ns(); // it cannot be told: then it runs
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool spin_until_done(struct pool *p, uint32_t n_items, uint64_t until) {
    do {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (atomic_load(&p->n_done) == n_items) return true;
            _mm_pause();
        }
    } while (now_ns() < until);
    return false;
}

// Items may just be large: only who does not run is late.
static bool is_away(struct pool *p, const struct worker *w, uint32_t n_items) {
    uint64_t begin = now_ns(), ran = ran_ns(w);
    if (spin_until_done(p, n_items, begin + LOOK_NS)) return false;
    return (ran_ns(w) - ran) * 4 < now_ns() - begin;
}

static void wait_for_done(struct pool *p, uint32_t n_items) {
    if (spin_until_done(p, n_items, now_ns() + SPIN_NS)) return;
    for (uint32_t i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        if (atomic_load(&w->in_job) && !atomic_load(&w->parked) && is_away(p, w, n_items)) park(p, w, now_ns());
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->n_done) != n_items) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, pool_fn fn, void *arg, uint32_t n_items, uint32_t grain) {
    assert_rounding();
    if (n_items == 0) return;
    if (grain == 0) grain = 1;
    if (p->n_threads == 1 || n_items <= grain) {
        for (uint32_t i = 0; i < n_items; i += grain) fn(arg, i, n_items - i > grain ? i + grain : n_items, 0);
        return;
    }
    uint64_t generation = ticket_generation(atomic_load(&p->ticket)) + 1;
    if (p->n_parked) unpark(p, now_ns());
    atomic_store(&p->ticket, generation << 32 | UINT32_MAX);
    atomic_store(&p->fn, fn);
    atomic_store(&p->arg, arg);
    atomic_store(&p->n_items, n_items);
    atomic_store(&p->grain, grain);
    atomic_store(&p->n_done, 0);
    atomic_store(&p->ticket, (generation + 1) << 32);
    if (atomic_load(&p->n_sleeping) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work_on(p, 0);
    if (atomic_load(&p->n_done) != n_items) wait_for_done(p, n_items);
}
