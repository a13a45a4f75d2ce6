#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compute/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ITEMS = 5000 };

struct job {
    _Atomic uint32_t seen[MAX_ITEMS];
    uint32_t grain, n_threads;
    _Atomic uint32_t wrong;
};

static void count_items(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct job *j = arg;
    if (end <= begin || end - begin > j->grain || thread >= j->n_threads) atomic_fetch_add(&j->wrong, 1);
    for (uint32_t i = begin; i < end; i++) atomic_fetch_add(&j->seen[i], 1);
}

static void check_run(struct pool *p, struct job *j, uint32_t n_items, uint32_t grain) {
    memset(j, 0, sizeof *j);
    j->grain = grain;
    j->n_threads = pool_threads(p);
    pool_run(p, count_items, j, n_items, grain);
    for (uint32_t i = 0; i < MAX_ITEMS; i++) assert_int_equal(j->seen[i], i < n_items);
    assert_int_equal(j->wrong, 0);
}

// Every item runs once, with fewer and with many more threads than processors, in a fast series of jobs and after
// pauses in which the workers went to sleep.
static void each_item_once(void **state) {
    (void)state;
    static struct job j;
    for (uint32_t threads = 1; threads <= 9; threads += 2) {
        struct pool *p = pool_new(threads);
        assert_non_null(p);
        for (uint32_t round = 0; round < 400; round++) {
            check_run(p, &j, round % 7 * 131 % MAX_ITEMS, 1 + round % 5);
            if (round % 100 == 0) usleep(2000);
        }
        check_run(p, &j, MAX_ITEMS, 64);
        pool_free(p);
    }
}

static void new_and_free(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++) pool_free(pool_new(1 + (uint32_t)i % 4));
    pool_free(NULL);
}

static void sum_items(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    (void)thread;
    for (uint32_t i = begin; i < end; i++) atomic_fetch_add((_Atomic uint32_t *)arg, i);
}

static void *run_many(void *arg) {
    (void)arg;
    struct pool *p = pool_new(3);
    for (int i = 0; p && i < 2000; i++) {
        _Atomic uint32_t sum = 0;
        pool_run(p, sum_items, (void *)&sum, 20, 1);
        if (sum != 190) break;
        if (i == 1999) {
            pool_free(p);
            return arg;
        }
    }
    pool_free(p);
    return NULL;
}

// Several pools at once on too few processors: nothing hangs, nothing is lost.
static void many_pools(void **state) {
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_many, state), 0);
    for (int i = 0; i < 6; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, state);
    }
}

struct late {
    struct job job;
    atomic_bool is_slow;
    _Atomic uint32_t by_worker;
};

static void sleep_in_worker(void *arg, uint32_t begin, uint32_t end, uint32_t thread) {
    struct late *l = arg;
    count_items(&l->job, begin, end, thread);
    if (thread) atomic_fetch_add(&l->by_worker, 1);
    usleep(thread && l->is_slow ? 3000 : 20);
}

static void run_late(struct pool *p, struct late *l) {
    memset(&l->job, 0, sizeof l->job);
    l->job.grain = 1;
    l->job.n_threads = pool_threads(p);
    pool_run(p, sleep_in_worker, l, 40, 1);
    for (uint32_t i = 0; i < 40; i++) assert_int_equal(l->job.seen[i], 1);
    assert_int_equal(l->job.wrong, 0);
}

// A worker that is as if another process had its processor: its items are waited for, it gets none for a while, and
// takes part again when that is over.
static void late_worker(void **state) {
    (void)state;
    static struct late l;
    struct pool *p = pool_new(2);
    assert_non_null(p);
    l.is_slow = true;
    while (l.by_worker == 0) run_late(p, &l);
    for (int i = 0; i < 50; i++) run_late(p, &l);
    l.is_slow = false;
    l.by_worker = 0;
    while (l.by_worker < 100) run_late(p, &l);
    l.is_slow = true;
    for (int i = 0; i < 5; i++) run_late(p, &l);
    pool_free(p); // with a worker that is parked
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_item_once), cmocka_unit_test(new_and_free),
                                       cmocka_unit_test(late_worker), cmocka_unit_test(many_pools)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
