#include "cmd/gguf_file.h"

#include "cmd/flags.h"
#include "cmd/out_file.h"
#include "model/gguf_export.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/thread.h"
#include "weights/tensors.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK_VALUES = 1 << 18, MAX_THREADS = 256, SHOW_EVERY_MS = 200 };

// What the threads share. Only next_* is under the lock.
struct job {
    struct gguf_file *f;
    int fd;
    uint64_t header_bytes, total_bytes;
    pthread_mutex_t lock;
    uint32_t next_tensor;
    uint64_t next_row;
    atomic_uint_fast64_t done_bytes;
    atomic_bool failed;
    atomic_uint running;
    struct err err; // of the first that failed; under the lock
};

static uint64_t n_rows(const struct gguf_file_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 1; i < t->n_dims; i++) n *= t->dim[i];
    return n;
}

uint64_t gguf_file_data_bytes(const struct gguf_file *f) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f->n_tensors; i++)
        sum += n_rows(&f->tensors[i]) * dtype_row_bytes(f->tensors[i].type, f->tensors[i].dim[0]);
    return sum;
}

static void fail(struct job *j, const struct err *e) {
    pthread_mutex_lock(&j->lock);
    if (!atomic_exchange(&j->failed, true)) j->err = *e;
    pthread_mutex_unlock(&j->lock);
}

// The next rows that nobody has begun; false: there are none.
static bool take(struct job *j, uint32_t *tensor, uint64_t *row, uint64_t *n) {
    pthread_mutex_lock(&j->lock);
    bool more = j->next_tensor < j->f->n_tensors;
    if (more) {
        const struct gguf_file_tensor *t = &j->f->tensors[j->next_tensor];
        const uint64_t all = n_rows(t), run = t->dim[0] < CHUNK_VALUES ? CHUNK_VALUES / t->dim[0] : 1;
        *tensor = j->next_tensor;
        *row = j->next_row;
        *n = all - *row < run ? all - *row : run;
        j->next_row += *n;
        if (j->next_row == all) {
            j->next_tensor++;
            j->next_row = 0;
        }
    }
    pthread_mutex_unlock(&j->lock);
    return more;
}

static int put(int fd, const uint8_t *data, uint64_t bytes, uint64_t at, const char *path, struct err *e) {
    while (bytes) {
        ssize_t k = pwrite(fd, data, bytes, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return err_set(e, ERR_IO, "%s: write: %s", path, strerror(errno));
        data += k;
        at += (uint64_t)k;
        bytes -= (uint64_t)k;
    }
    return ERR_OK;
}

static int make_rows(struct job *j, uint32_t tensor, uint64_t row, uint64_t n, uint8_t **buffer, uint64_t *cap,
                     struct err *e) {
    const struct gguf_file_tensor *t = &j->f->tensors[tensor];
    const uint64_t row_bytes = dtype_row_bytes(t->type, t->dim[0]), bytes = n * row_bytes;
    if (bytes > *cap) {
        free(*buffer);
        *buffer = malloc(bytes);
        *cap = *buffer ? bytes : 0;
        if (!*buffer) return err_set(e, ERR_NOMEM, "no memory for %llu bytes of rows", (unsigned long long)bytes);
    }
    int rc = j->f->rows(j->f->arg, tensor, row, n, *buffer, e);
    if (rc) return rc;
    rc = put(j->fd, *buffer, bytes, j->header_bytes + t->offset + row * row_bytes, j->f->path, e);
    atomic_fetch_add(&j->done_bytes, bytes);
    return rc;
}

static void work(void *arg) {
    struct job *j = arg;
    struct err e;
    uint32_t tensor;
    uint64_t row, n, cap = 0;
    uint8_t *buffer = NULL;
    while (!atomic_load(&j->failed) && take(j, &tensor, &row, &n))
        if (make_rows(j, tensor, row, n, &buffer, &cap, &e)) fail(j, &e);
    free(buffer);
    atomic_fetch_sub(&j->running, 1);
}

// On a terminal one line that grows; else a line for each tenth.
static void show(const struct job *j, uint64_t start_us) {
    const bool tty = isatty(STDERR_FILENO);
    int last = -1;
    for (bool end = false; !end;) {
        end = atomic_load(&j->running) == 0;
        const uint64_t done = atomic_load(&j->done_bytes);
        const double s = (double)(clock_now_us() - start_us) / 1e6;
        const int percent = j->total_bytes ? (int)(done * 100 / j->total_bytes) : 100,
                  now = tty ? percent : percent / 10;
        if (now != last && (s > 0.5 || last >= 0)) {
            fprintf(stderr, "%s%s %3d%% (%.1f / %.1f MB, %.0f MB/s)%s", tty ? "\r" : "", flags_text("writing", "写入"),
                    percent, (double)done / 1e6, (double)j->total_bytes / 1e6, s > 0 ? (double)done / 1e6 / s : 0,
                    tty ? "\033[K" : "\n");
            last = now;
        }
        if (!end) usleep(SHOW_EVERY_MS * 1000);
    }
    if (tty && last >= 0) fprintf(stderr, "\r\033[K");
}

static int run_threads(struct job *j, struct err *e) {
    uint32_t want = j->f->threads ? j->f->threads : cpu_count_usable(), n = 0;
    struct thread threads[MAX_THREADS];
    if (want > MAX_THREADS) want = MAX_THREADS;
    const uint64_t start_us = clock_now_us();
    atomic_store(&j->running, want);
    while (n < want && !thread_start(&threads[n], "convert", work, j, e)) n++;
    atomic_fetch_sub(&j->running, want - n);
    if (n == 0) return e ? e->code : ERR_NOMEM;
    if (j->f->progress) show(j, start_us);
    for (uint32_t i = 0; i < n; i++) thread_join(&threads[i]);
    return atomic_load(&j->failed) ? err_set(e, j->err.code, "%s", j->err.text) : ERR_OK;
}

static int add_tensors(struct gguf_file *f, struct err *e) {
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        struct gguf_file_tensor *t = &f->tensors[i];
        const uint64_t bytes = n_rows(t) * dtype_row_bytes(t->type, t->dim[0]);
        const int number = dtype_to_gguf(t->type);
        ASSERT(number >= 0, "%s", dtype_info(t->type)->name);
        int rc = gguf_put_tensor(f->writer, t->name, t->dim, t->n_dims, (uint32_t)number, bytes, &t->offset);
        if (rc == ERR_FORMAT) return err_set(e, rc, "tensor %s is there twice", t->name);
        if (rc) return err_set(e, rc, "no room for the list of tensors");
    }
    return ERR_OK;
}

// The file as it will be read, but for the weights, which come later: a setting that would be lost is told now.
static int check_settings(struct job *j, uint64_t bytes, struct err *e) {
    uint64_t cap = 0;
    uint8_t *buffer = NULL;
    struct tensors *t;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < j->f->n_tensors && !rc; i++)
        if (strncmp(j->f->tensors[i].name, "rope_", 5) == 0)
            rc = make_rows(j, i, 0, n_rows(&j->f->tensors[i]), &buffer, &cap, e);
    free(buffer);
    atomic_store(&j->done_bytes, 0); // they are made once more with the others
    if (rc) return rc;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, j->fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "%s: mmap: %s", j->f->path, strerror(errno));
    rc = tensors_open_memory(map, bytes, &t, e);
    if (!rc) {
        rc = gguf_export_check(j->f->settings, t, e);
        tensors_free(t);
    }
    munmap(map, bytes);
    return rc;
}

static int write_all(struct job *j, struct err *e) {
    struct buf header;
    buf_init(&header, LIMIT_GGUF_HEADER);
    int rc = gguf_writer_header(j->f->writer, &header);
    if (rc) rc = err_set(e, rc, "the header is over %d bytes", LIMIT_GGUF_HEADER);
    j->header_bytes = header.len_bytes;
    const uint64_t bytes = header.len_bytes + gguf_writer_data_bytes(j->f->writer);
    // Told now that the disk is too small, not after an hour.
    if (!rc && fallocate(j->fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
        rc = err_set(e, ERR_IO, "%s: %.1f MB: %s", j->f->path, (double)bytes / 1e6, strerror(errno));
    if (!rc && ftruncate(j->fd, (off_t)bytes)) rc = err_set(e, ERR_IO, "%s: %s", j->f->path, strerror(errno));
    if (!rc) rc = put(j->fd, header.data, header.len_bytes, 0, j->f->path, e);
    buf_fini(&header);
    if (!rc && j->f->settings) rc = check_settings(j, bytes, e);
    if (!rc) rc = run_threads(j, e);
    if (!rc && fsync(j->fd)) rc = err_set(e, ERR_IO, "%s: fsync: %s", j->f->path, strerror(errno));
    return rc;
}

int gguf_file_write(struct gguf_file *f, struct err *e) {
    struct out_file out;
    int rc = out_file_check(f->path, f->force, e);
    if (!rc) rc = add_tensors(f, e);
    if (rc) return rc;
    rc = out_file_open(&out, f->path, f->force, e);
    if (rc) return rc;
    struct job j = {.f = f, .fd = out.fd, .lock = PTHREAD_MUTEX_INITIALIZER, .total_bytes = gguf_file_data_bytes(f)};
    rc = write_all(&j, e);
    if (!rc) rc = out_file_place(&out, e);
    out_file_close(&out);
    return rc;
}
