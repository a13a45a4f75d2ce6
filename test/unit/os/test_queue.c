#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "os/clock.h"
#include "os/queue.h"
#include "os/thread.h"
#include <poll.h>

static bool is_readable(struct queue *q) {
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void is_first_in_first_out_and_bounded(void **state) {
    (void)state;
    struct queue q;
    char x[8];
    assert_int_equal(queue_init(&q, 3, false, NULL), ERR_OK);
    assert_int_equal(queue_fd(&q), -1);
    for (int round = 0; round < 5; round++) { // over the end of the ring
        for (int i = 0; i < 3; i++) assert_int_equal(queue_push(&q, &x[i]), ERR_OK);
        assert_int_equal(queue_push(&q, &x[3]), ERR_LIMIT);
        assert_int_equal(queue_count(&q), 3);
        assert_ptr_equal(queue_pop(&q, 0), &x[0]);
        assert_int_equal(queue_push(&q, &x[4]), ERR_OK);
        assert_ptr_equal(queue_pop(&q, QUEUE_FOREVER), &x[1]);
        assert_ptr_equal(queue_pop(&q, 10), &x[2]);
        assert_ptr_equal(queue_pop(&q, 0), &x[4]);
        assert_null(queue_pop(&q, 0));
    }
    queue_fini(&q);
}

static void fd_is_readable_while_there_is_something(void **state) {
    (void)state;
    struct queue q;
    char x[2];
    assert_int_equal(queue_init(&q, 4, true, NULL), ERR_OK);
    assert_false(is_readable(&q));
    assert_int_equal(queue_push(&q, &x[0]), ERR_OK);
    assert_int_equal(queue_push(&q, &x[1]), ERR_OK);
    assert_true(is_readable(&q));
    assert_ptr_equal(queue_pop(&q, 0), &x[0]);
    assert_true(is_readable(&q));
    assert_ptr_equal(queue_pop(&q, 0), &x[1]);
    assert_false(is_readable(&q));
    assert_int_equal(queue_push(&q, &x[0]), ERR_OK);
    queue_close(&q);
    queue_close(&q);
    assert_true(queue_is_closed(&q));
    assert_int_equal(queue_push(&q, &x[1]), ERR_CANCELLED);
    assert_ptr_equal(queue_pop(&q, QUEUE_FOREVER), &x[0]);
    assert_null(queue_pop(&q, QUEUE_FOREVER));
    assert_true(is_readable(&q));
    queue_fini(&q);
}

static void pop_waits_its_time(void **state) {
    (void)state;
    struct queue q;
    assert_int_equal(queue_init(&q, 1, false, NULL), ERR_OK);
    uint64_t start_us = clock_now_us();
    assert_null(queue_pop(&q, 20));
    assert_true(clock_now_us() - start_us >= 20000);
    queue_fini(&q);
}

enum { PRODUCERS = 3, CONSUMERS = 2, EACH = 20000 };

struct work {
    struct queue q;
    char objects[PRODUCERS][EACH];
    int next; // producers take their number here
    int seen[CONSUMERS];
    int next_consumer;
};

static void produce(void *arg) {
    struct work *w = arg;
    int me = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < EACH; i++)
        while (queue_push(&w->q, &w->objects[me][i]) == ERR_LIMIT) clock_sleep_ms(0);
}

// Each object is met once, and those of one producer in their order.
static void consume(void *arg) {
    struct work *w = arg;
    int me = __atomic_fetch_add(&w->next_consumer, 1, __ATOMIC_RELAXED);
    char *last[PRODUCERS] = {0}, *p;
    while ((p = queue_pop(&w->q, QUEUE_FOREVER))) {
        int from = (int)((p - &w->objects[0][0]) / EACH);
        ASSERT(!last[from] || p > last[from]);
        last[from] = p;
        ASSERT(!*p);
        *p = 1;
        w->seen[me]++;
    }
}

static void many_threads_lose_nothing(void **state) {
    (void)state;
    static struct work w;
    struct thread producer[PRODUCERS], consumer[CONSUMERS];
    assert_int_equal(queue_init(&w.q, 64, true, NULL), ERR_OK);
    for (int i = 0; i < CONSUMERS; i++) assert_int_equal(thread_start(&consumer[i], "eat", consume, &w, NULL), ERR_OK);
    for (int i = 0; i < PRODUCERS; i++) assert_int_equal(thread_start(&producer[i], "make", produce, &w, NULL), ERR_OK);
    for (int i = 0; i < PRODUCERS; i++) thread_join(&producer[i]);
    queue_close(&w.q);
    int seen = 0;
    for (int i = 0; i < CONSUMERS; i++) {
        thread_join(&consumer[i]);
        seen += w.seen[i];
    }
    assert_int_equal(seen, PRODUCERS * EACH);
    queue_fini(&w.q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_first_in_first_out_and_bounded), cmocka_unit_test(fd_is_readable_while_there_is_something),
        cmocka_unit_test(pop_waits_its_time), cmocka_unit_test(many_threads_lose_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
