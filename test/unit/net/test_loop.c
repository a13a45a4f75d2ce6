#include "base/limits.h"
#include "net/loop.h"
#include "os/clock.h"
#include "os/queue.h"
#include "os/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { POSTS = 20000, POSTERS = 3 };

struct world {
    struct loop *loop;
    uint32_t next[POSTERS], n_run;
    int n_done;
    struct loop_timer *timer;
    uint64_t fired[3];
    int n_fired;
    struct queue queue;
    uintptr_t popped;
};

struct item {
    struct world *w;
    uint32_t poster, number;
};

static void run_item(void *arg) {
    struct item *i = arg;
    struct world *w = i->w;
    assert_int_equal(i->number, w->next[i->poster]); // in the order of each thread
    w->next[i->poster]++;
    free(i);
    if (++w->n_run == POSTS * POSTERS) loop_stop(w->loop);
}

struct poster {
    struct world *w;
    uint32_t number;
    struct thread thread;
};

static void post_all(void *arg) {
    struct poster *p = arg;
    for (uint32_t k = 0; k < POSTS; k++) {
        struct item *i = malloc(sizeof *i);
        *i = (struct item){p->w, p->number, k};
        while (loop_post(p->w->loop, run_item, i) == ERR_LIMIT) clock_sleep_ms(1);
    }
}

static void test_posts(void **state) {
    (void)state;
    struct world w = {0};
    struct poster p[POSTERS];
    struct err e;
    assert_int_equal(loop_new(&w.loop, &e), ERR_OK);
    for (uint32_t i = 0; i < POSTERS; i++) {
        p[i] = (struct poster){.w = &w, .number = i};
        assert_int_equal(thread_start(&p[i].thread, "poster", post_all, &p[i], &e), ERR_OK);
    }
    loop_run(w.loop);
    for (uint32_t i = 0; i < POSTERS; i++) thread_join(&p[i].thread);
    assert_int_equal(w.n_run, POSTS * POSTERS);
    loop_free(w.loop);
}

static void nothing(void *arg) { (void)arg; }

static void test_posts_are_bounded(void **state) {
    (void)state;
    struct loop *l;
    struct err e;
    assert_int_equal(loop_new(&l, &e), ERR_OK);
    uint32_t n = 0;
    while (loop_post(l, nothing, NULL) == ERR_OK) n++;
    assert_int_equal(n, LIMIT_LOOP_POSTS);
    loop_free(l);
}

static void on_timer(void *arg) {
    struct world *w = arg;
    w->fired[w->n_fired++] = clock_now_us();
    if (w->n_fired == 2) {
        loop_timer_free(w->timer); // inside its own callback
        loop_stop(w->loop);
        return;
    }
    loop_timer_set(w->timer, clock_now_us() + 3000);
}

static void test_timer(void **state) {
    (void)state;
    struct world w = {0};
    struct err e;
    assert_int_equal(loop_new(&w.loop, &e), ERR_OK);
    w.timer = loop_timer_new(w.loop, on_timer, &w);
    uint64_t start = clock_now_us();
    loop_timer_set(w.timer, UINT64_MAX);
    loop_timer_set(w.timer, start + 2000);
    loop_run(w.loop);
    assert_int_equal(w.n_fired, 2);
    assert_true(w.fired[0] >= start + 2000);
    assert_true(w.fired[1] >= w.fired[0] + 3000);
    loop_free(w.loop);
}

static void on_queue(void *arg) {
    struct world *w = arg;
    for (void *p = queue_pop(&w->queue, 0); p; p = queue_pop(&w->queue, 0)) w->popped += (uintptr_t)p;
    if (w->popped == 6) loop_stop(w->loop);
}

static void push_some(void *arg) {
    struct world *w = arg;
    for (uintptr_t i = 1; i <= 3; i++) {
        assert_int_equal(queue_push(&w->queue, (void *)i), ERR_OK);
        clock_sleep_ms(2);
    }
}

static void test_watch(void **state) {
    (void)state;
    struct world w = {0};
    struct thread t;
    struct err e;
    assert_int_equal(loop_new(&w.loop, &e), ERR_OK);
    assert_int_equal(queue_init(&w.queue, 4, true, &e), ERR_OK);
    struct loop_watch *watch = loop_watch_new(w.loop, queue_fd(&w.queue), on_queue, &w);
    assert_int_equal(thread_start(&t, "pusher", push_some, &w, &e), ERR_OK);
    loop_run(w.loop);
    thread_join(&t);
    loop_watch_free(watch);
    queue_fini(&w.queue);
    loop_free(w.loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posts),
        cmocka_unit_test(test_posts_are_bounded),
        cmocka_unit_test(test_timer),
        cmocka_unit_test(test_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
