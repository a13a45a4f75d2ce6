// Memory of the CPU backend. Its size stands in front of what the caller gets, in a cache line of its own.
//
// What is large comes out of chunks that begin at a huge page and are filled without gaps, so that nearly all of it
// lies in huge pages: fewer page faults and TLB misses, few mappings, and a process that is killed is gone sooner, as
// the kernel frees its memory page by page. Memory that was not written yet takes none, so at most one huge page of
// the last chunk is more than was asked for. Without huge pages all works as well.
#include "compute/cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    CHUNK_HEADER_BYTES = 64,
    LARGE_BYTES = 1 << 20,  // from here on out of chunks
    PAGE_BYTES = 64 << 10,  // the largest of any machine
    HUGE_BYTES = 2 << 20,   // what chunks are aligned to
    CHUNK_BYTES = 64 << 20, // of address space
    ALONE_BYTES = 16 << 20  // from here on a chunk of its own size
};

struct chunk {
    uint64_t bytes, used_bytes;
    uint32_t n_live; // allocations in it
};

struct header {
    uint64_t bytes;      // with the header
    struct chunk *chunk; // NULL: from malloc
};
_Static_assert(sizeof(struct header) <= CPU_MEM_HEADER_BYTES && sizeof(struct chunk) <= CHUNK_HEADER_BYTES,
               "a line each");

// Of all backends of the process: a stage may be freed by another than the one that made it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct chunk *filling; // the chunk that is not full

static struct chunk *chunk_new(uint64_t bytes) {
    uint64_t whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    uint8_t *p =
        mmap(NULL, whole + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    uint64_t before = -(uintptr_t)p % HUGE_BYTES;
    if (before) munmap(p, before);
    munmap(p + before + whole, HUGE_BYTES - before);
    p += before;
    madvise(p, whole, MADV_HUGEPAGE);
    madvise(p, whole, MADV_DONTDUMP); // a crash shall be over soon, and what people said is not for core files
    struct chunk *c = (struct chunk *)(void *)p;
    *c = (struct chunk){.bytes = whole, .used_bytes = CHUNK_HEADER_BYTES};
    return c;
}

// Nothing more comes into it: what is left of its last huge page goes back.
static void close_filling(void) {
    uint64_t keep = (filling->used_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (keep < filling->bytes && munmap((uint8_t *)filling + keep, filling->bytes - keep) == 0) filling->bytes = keep;
    filling = NULL;
}

static struct chunk *chunk_for(uint64_t bytes) {
    if (bytes >= ALONE_BYTES) return chunk_new(CHUNK_HEADER_BYTES + bytes);
    if (filling && filling->bytes - filling->used_bytes >= bytes) return filling;
    if (filling) close_filling();
    filling = chunk_new(CHUNK_BYTES);
    return filling;
}

static struct header *alloc_large(uint64_t bytes) {
    struct header *h = NULL;
    pthread_mutex_lock(&lock);
    struct chunk *c = chunk_for(bytes);
    if (c) {
        h = (struct header *)(void *)((uint8_t *)c + c->used_bytes);
        h->chunk = c;
        c->used_bytes += bytes;
        c->n_live++;
    }
    pthread_mutex_unlock(&lock);
    return h;
}

// Its pages go back at once, its addresses when the whole chunk is free.
static void free_large(struct header *h) {
    struct chunk *c = h->chunk;
    pthread_mutex_lock(&lock);
    if (--c->n_live == 0) {
        if (c == filling) filling = NULL;
        munmap(c, c->bytes);
    } else {
        uintptr_t begin = (uintptr_t)h, end = begin + h->bytes; // what shares its pages with neighbours stays
        begin = (begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        end = end / PAGE_BYTES * PAGE_BYTES;
        madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&lock);
}

void *cpu_mem_alloc(struct backend *be, uint64_t bytes) {
    (void)be;
    if (bytes > UINT64_MAX / 2) return NULL;
    uint64_t total = (bytes + CPU_MEM_HEADER_BYTES + 63) / 64 * 64;
    struct header *h;
    if (total >= LARGE_BYTES) {
        h = alloc_large(total); // zeros already
    } else {
        h = aligned_alloc(64, total);
        if (h) memset(h, 0, total);
    }
    if (!h) return NULL;
    h->bytes = total;
    return (uint8_t *)h + CPU_MEM_HEADER_BYTES;
}

void *cpu_mem_alloc_now(struct backend *be, uint64_t bytes) {
    uint8_t *p = cpu_mem_alloc(be, bytes);
    if (p && bytes >= LARGE_BYTES) { // what is small was written to already
        uintptr_t begin = (uintptr_t)p / PAGE_BYTES * PAGE_BYTES, end = (uintptr_t)p + bytes;
        madvise((void *)begin, end - begin, MADV_POPULATE_WRITE); // a wish: an old kernel takes the pages later
    }
    return p;
}

void cpu_mem_free(struct backend *be, void *mem) {
    (void)be;
    if (!mem) return;
    struct header *h = (struct header *)(void *)((uint8_t *)mem - CPU_MEM_HEADER_BYTES);
    if (h->chunk)
        free_large(h);
    else
        free(h);
}
