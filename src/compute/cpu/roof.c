#include "compute/roof.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "compute/cpu/roof_int8.h"
#include "os/clock.h"
#include "os/thread.h"

enum { MAX_THREADS = 256, READ_US = 400000, INT8_US = 200000 };
static const uint64_t buffer_bytes = 512ull << 20; // larger than caches

struct runner {
    struct thread thread;
    enum isa isa;
    const uint64_t *data; // its part of the buffer
    uint64_t n_words;
    pthread_barrier_t *start;
    double rate; // bytes or multiply-adds a second
    volatile uint64_t sink;
};

static void read_memory(void *arg) {
    struct runner *r = arg;
    pthread_barrier_wait(r->start);
    uint64_t t0 = clock_now_us(), t1, passes = 0, sum = 0;
    do {
        uint64_t s[8] = {0};
        for (uint64_t i = 0; i + 8 <= r->n_words; i += 8)
            for (int k = 0; k < 8; k++) s[k] += r->data[i + k];
        for (int k = 0; k < 8; k++) sum += s[k];
        passes++;
        t1 = clock_now_us();
    } while (t1 - t0 < READ_US);
    r->sink = sum;
    r->rate = (double)(passes * r->n_words * 8) / (double)(t1 - t0) * 1e6;
}

static void multiply(void *arg) {
    struct runner *r = arg;
    int32_t sink = 0;
    pthread_barrier_wait(r->start);
    uint64_t t0 = clock_now_us(), t1, done = 0;
    do {
        done += r->isa == ISA_AVX512 ? roof_int8_avx512(20000, &sink) : roof_int8_avx2(20000, &sink);
        r->sink += (uint64_t)(uint32_t)sink;
        t1 = clock_now_us();
    } while (t1 - t0 < INT8_US);
    r->rate = (double)done / (double)(t1 - t0) * 1e6;
}

// Sum of the rates of n threads that start together; those that cannot start count nothing.
static double run_all(uint32_t n, enum isa isa, uint64_t *data, void (*fn)(void *)) {
    static struct runner runner[MAX_THREADS];
    pthread_barrier_t start;
    struct err e;
    double sum = 0;
    if (n > MAX_THREADS) n = MAX_THREADS;
    pthread_barrier_init(&start, NULL, n);
    for (uint32_t i = 0; i < n; i++) {
        runner[i] = (struct runner){.isa = isa, .start = &start};
        runner[i].n_words = buffer_bytes / 8 / n;
        if (data) runner[i].data = data + runner[i].n_words * i;
    }
    for (uint32_t i = 1; i < n; i++) {
        int rc = thread_start(&runner[i].thread, "loom-roof", fn, &runner[i], &e);
        ASSERT(rc == ERR_OK, "%s", e.text);
    }
    fn(&runner[0]);
    for (uint32_t i = 1; i < n; i++) thread_join(&runner[i].thread);
    for (uint32_t i = 0; i < n; i++) sum += runner[i].rate;
    pthread_barrier_destroy(&start);
    return sum;
}

double roof_read_gb_s(uint32_t n_threads) {
    uint64_t *p = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 0;
    madvise(p, buffer_bytes, MADV_HUGEPAGE);
    memset(p, 1, buffer_bytes);
    double rate = run_all(n_threads ? n_threads : 1, ISA_REF, p, read_memory);
    munmap(p, buffer_bytes);
    return rate / 1e9;
}

double roof_int8_tops(enum isa isa, uint32_t n_threads) {
    if (isa == ISA_AUTO) isa = isa_best();
    if (isa == ISA_REF) return 0;
    return 2 * run_all(n_threads ? n_threads : 1, isa, NULL, multiply) / 1e12;
}
