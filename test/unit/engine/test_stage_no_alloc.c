// After stage_new nothing is allocated: the allocator is replaced in this program, and counts in all threads while
// steps of every kind run.
#include "unit/engine/synth.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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

static atomic_bool armed;
static atomic_uint count;

// The allocator behind the public names, as glibc exports it.
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void note(void) {
    if (atomic_load(&armed)) atomic_fetch_add(&count, 1);
}

void *malloc(size_t n) {
    note();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    note();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    note();
    return __libc_memalign(align, n);
}

void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n) {
    note();
    return __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n) {
    note();
    *p = __libc_memalign(align, n);
    return *p ? 0 : 12; // ENOMEM
}

void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t at) {
    note();
    return (void *)syscall(SYS_mmap, p, n, prot, flags, fd, at);
}

static struct backend *backend_two_threads(void) {
    struct backend *be;
    struct err e;
    if (backend_cpu_new(&(struct backend_cpu_config){.isa = ISA_AUTO, .n_threads = 2}, &be, &e)) fail_msg("%s", e.text);
    return be;
}

static void run(struct stage *s, struct step *step, uint8_t *fault, struct step_result *r) {
    struct err e;
    memset(fault, 0, LIMIT_STEP_ROWS);
    if (step_check(step, 100, 32, &e)) fail_msg("%s", e.text);
    if (stage_run(s, step, NULL, NULL, fault, r, &e)) fail_msg("%s", e.text);
    assert_int_equal(r->n, step->n_seqs);
}

// Prefill of three, then decode of all with a late prefill, sampling in every way, releases, and a slot used again.
static void run_steps(struct stage *s, struct step *step, uint8_t *fault, struct step_result *r) {
    step_clear(step);
    synth_rows(step, 0, 0, 70, 0);
    synth_rows(step, 1, 0, 1, 5)->sampling = (struct sampling){.temperature = 1, .top_p = 0.5f, .top_k = 10};
    synth_rows(step, 9, 0, 57, 10)->sampling = (struct sampling){.temperature = 0.7f, .top_p = 1, .min_p = 0.1f};
    run(s, step, fault, r);
    for (uint32_t i = 0; i < 70; i++) {
        step_clear(step);
        synth_rows(step, 0, 70 + i, 1, 0);
        synth_rows(step, 1, 1 + i, 1, 5)->sampling = (struct sampling){.temperature = 1, .top_p = 0.9f};
        synth_rows(step, 9, 57 + i, 1, 10);
        if (i == 20) synth_rows(step, 200, 0, 100, 15);
        run(s, step, fault, r);
    }
    step_clear(step);
    step->releases[step->n_releases++] = 0;
    step->releases[step->n_releases++] = 1;
    step->releases[step->n_releases++] = 9;
    step->releases[step->n_releases++] = 200;
    synth_rows(step, 1, 0, 3, 20);
    run(s, step, fault, r);
    step_clear(step);
    step->releases[step->n_releases++] = 1;
    run(s, step, fault, r);
}

static void check(const char *config, enum dtype type, struct run_mode mode) {
    struct synth m;
    struct step_result r;
    struct step *step = step_new();
    uint8_t *fault = calloc(LIMIT_STEP_ROWS, 1);
    synth_open_as(&m, config, type);
    struct backend *be = backend_two_threads();
    struct stage *s = synth_stage(&m, be, mode, 0, m.h.n_layers);
    atomic_store(&count, 0);
    atomic_store(&armed, true);
    run_steps(s, step, fault, &r);
    atomic_store(&armed, false);
    assert_int_equal(atomic_load(&count), 0);
    stage_free(s);
    be->ops->free(be);
    synth_close(&m);
    step_free(step);
    free(fault);
}

static void test_counts_at_all(void **state) {
    (void)state;
    atomic_store(&count, 0);
    atomic_store(&armed, true);
    void *volatile p = malloc(10);
    p = realloc(p, 20);
    free(p);
    p = calloc(1, 10);
    free(p);
    void *m = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_store(&armed, false);
    munmap(m, 4096);
    assert_int_equal(atomic_load(&count), 4);
}

static void test_dense(void **state) {
    (void)state;
    check(SYNTH_DENSE, DT_F32, (struct run_mode){.weights = WEIGHTS_L8, .kv = KV_I8});
    check(SYNTH_DENSE, DT_F32, (struct run_mode){.weights = WEIGHTS_AS_IS, .kv = KV_F16});
}

static void test_moe(void **state) {
    (void)state;
    check(SYNTH_MOE, DT_F32, (struct run_mode){.weights = WEIGHTS_Q8_0, .kv = KV_I8});
    check(SYNTH_MOE, DT_F32, (struct run_mode){.weights = WEIGHTS_AS_IS, .kv = KV_I8});
}

// Every type that matrices may have, with a dense layer and one of experts.
static void test_types(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_L8,   DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_F32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check(SYNTH_WIDE, types[i], (struct run_mode){.weights = WEIGHTS_NATIVE, .kv = KV_I8});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_at_all), cmocka_unit_test(test_dense),
                                       cmocka_unit_test(test_moe), cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
