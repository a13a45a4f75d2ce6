// A stream of steps that goes through a holder and what it sends allocates nothing, once as much was held as will be
// held: the allocator is replaced in this program, and counts.
#include "unit/replay/fixture.h"

#include "replay/holder.h"
#include "replay/sent.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
int main(void) {
    printf("skipped: needs an allocator of its own, and a sanitizer has one\n");
    return 77;
}
#else

static volatile bool armed; // volatile: the compiler knows what malloc does not touch
static volatile uint32_t count;

// The allocator behind the public names, as glibc exports it.
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n) {
    count = count + armed;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    count = count + armed;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    count = count + armed;
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    count = count + armed;
    return __libc_memalign(align, n);
}

static void test_counts_at_all(void **state) {
    (void)state;
    count = 0;
    armed = true;
    void *volatile p = malloc(10);
    p = realloc(p, 20);
    free(p);
    p = calloc(1, 10);
    free(p);
    p = aligned_alloc(64, 64);
    free(p);
    armed = false;
    assert_int_equal(count, 4);
}

static void work(struct holder *h, struct sent *s, const struct toy *t) {
    const struct holder_job *j;
    struct err e;
    while ((j = holder_next(h))) {
        if (sent_step(s, j->step, t->out, t->fault, &e)) fail_msg("%s", e.text);
        holder_done(h, j);
    }
}

static void flow(bool hot) {
    struct stream s;
    stream_init(&s, 5);
    struct holder_config hc = {8, 64, 4 << 20};
    struct sent_config sc = {8, 64, 4 << 20};
    struct holder *h;
    struct sent *sent;
    struct sent_cursor *c;
    struct sent_piece p;
    struct err e;
    struct toy *t = toy_new();
    assert_int_equal(holder_new(&hc, &h, &e), ERR_OK);
    assert_int_equal(sent_new(&sc, &sent, &e), ERR_OK);
    assert_int_equal(sent_open(sent, false, &c, &e), ERR_OK);
    holder_set_hot(h, hot);
    holder_set_chunk(h, 16);
    count = 0;
    for (uint64_t id = 1; id <= 4000; id++) {
        if (id % 1000 == 1 && id > 1) { // the same once more
            stream_fini(&s);
            stream_init(&s, 5);
            s.next_id = id;
        }
        const struct step *step = id % 1000 == 0 ? stream_last(&s) : stream_next(&s);
        armed = id > 3000;
        assert_int_equal(holder_step(h, step, s.hidden, s.fault, &e), ERR_OK);
        if (id > 5) {
            sent_stable(sent, id - 5);
            holder_stable(h, id - 5);
        }
        work(h, sent, t);
        while (sent_next(c, &p) == SENT_STEP) {
        }
        armed = false;
    }
    assert_int_equal(count, 0);
    holder_free(h);
    sent_free(sent);
    toy_free(t);
    stream_fini(&s);
}

static void test_hot(void **state) {
    (void)state;
    flow(true);
}

static void test_lazy(void **state) {
    (void)state;
    flow(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_at_all), cmocka_unit_test(test_hot),
                                       cmocka_unit_test(test_lazy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
