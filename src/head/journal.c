#include "head/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "head/journal_int.h"
#include "net/lock.h"
#include "os/clock.h"
#include "os/file.h"
#include "os/random.h"
#include "os/thread.h"

enum {
    SYNC_MS = 1000,
    RETRY_MS = 1000,
    SETTLE_MS = 200,
    SEGMENT_BYTES = 4 << 20, // at least; twice what is alive if that is more
    BUF_BYTES = 256 << 10,   // of each buffer; more is given back
    BUF_MAX_BYTES = 1 << 30,
    PENDING_BYTES = 16 << 20, // records that wait for a disk that hangs
    IDLE_BOOTS_MAX = 30,      // kills may come faster than an answer can be computed again
    STALE_S = 600             // nobody comes back for an answer after so long
};

// Three buffers go round: the loop's thread fills one, which then is or joins the one that is ready, which the writer
// takes. So the loop's thread never waits for the disk, but in journal_settle.
struct journal {
    // Set by journal_open, then read-only.
    char folder[LIMIT_PATH];
    int lock;
    struct thread thread;
    bool thread_runs;
    // The loop's thread.
    struct journal_state state;
    struct buf fill;
    size_t tokens_at; // of the record of tokens that is open in fill
    bool tokens_open;
    uint64_t segment_bytes, retry_ms;
    // Under the mutex.
    pthread_mutex_t mutex;
    pthread_cond_t handed_over, written;
    struct buf ready;
    bool starts_segment;            // ready is the beginning of a new segment
    bool failed;                    // what is on the disk is not all: a new segment has to begin
    uint64_t handed_no, written_no; // flushes
    bool stop;
    struct journal_counts counts;
    // The writer's.
    struct buf writing;
    int fd; // -1: none
    uint32_t segment;
    bool dirty;
    uint64_t synced_ms;
};

// ---- reading

static int read_segment(struct journal *j, uint32_t number, time_t *written_s, struct err *e) {
    char path[JOURNAL_PATH_BYTES];
    struct file_map m;
    struct stat st;
    journal_files_path(j->folder, number, path);
    int rc = file_map_open(&m, path, e);
    if (rc) return rc;
    if (stat(path, &st) == 0) *written_s = st.st_mtime;
    size_t good = journal_read_segment(&j->state, m.data, m.len_bytes);
    if (good < m.len_bytes)
        LOG_I("journal", "%s: %zu of %zu bytes are whole records; a process that was killed leaves such an end", path,
              good, m.len_bytes);
    file_map_close(&m);
    return ERR_OK;
}

// What is not worth a further try: too old, or tried by several processes without one token more.
static void forget_hopeless(struct journal *j, time_t written_s) {
    bool stale = time(NULL) > written_s + STALE_S;
    LIST_EACH(it, &j->state.entries) {
        struct journal_entry *q = LIST_ENTRY(it, struct journal_entry, all);
        bool hopeless = q->n_idle_boots > IDLE_BOOTS_MAX;
        if (!stale && !hopeless) continue;
        LOG_I("journal", "request %llu is forgotten: %s", (unsigned long long)q->id,
              stale ? "its head ended long ago" : "several processes tried it, and it made no token");
        journal_read_drop(&j->state, q->id);
    }
}

static int read_all(struct journal *j, struct err *e) {
    uint32_t *list, n;
    time_t written_s = 0;
    int rc = journal_files_list(j->folder, &list, &n, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < n && !rc; i++) rc = read_segment(j, list[i], &written_s, e);
    j->segment = n ? list[n - 1] : 0;
    free(list);
    forget_hopeless(j, written_s);
    if (!j->state.boot) j->state.boot = random_u64() | 1;
    return rc;
}

// ---- the writer

static bool write_all(int fd, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t got = write(fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

static void close_segment(struct journal *j) {
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

// Behind half a record nothing would be read: a segment that could not be written goes no further.
static bool write_segment(struct journal *j, bool starts) {
    char path[JOURNAL_PATH_BYTES] = "";
    if (starts) {
        close_segment(j);
        journal_files_path(j->folder, ++j->segment, path);
        j->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    }
    bool good = j->fd >= 0 && write_all(j->fd, j->writing.data, j->writing.len_bytes);
    if (good || (j->fd < 0 && !starts)) return good;
    LOG_W("journal", "%s: %s; answers go on, and would not survive a restart of the head", starts ? path : j->folder,
          strerror(errno));
    close_segment(j);
    return false;
}

static void reset_buf(struct buf *b) {
    buf_clear(b);
    if (b->cap_bytes <= BUF_BYTES) return;
    buf_fini(b);
    buf_init(b, BUF_MAX_BYTES);
}

static void sync_segment(struct journal *j, bool starts) {
    bool safe = fdatasync(j->fd) == 0;
    j->dirty = false;
    j->synced_ms = clock_now_ms();
    if (!starts || !safe) return;
    journal_files_sync(j->folder);
    journal_files_remove_older(j->folder, j->segment); // the new one tells all that they told
}

// Writes what is ready. The mutex is held, and free meanwhile.
static void write_ready(struct journal *j) {
    bool starts = j->starts_segment;
    uint64_t no = j->handed_no;
    struct buf empty = j->writing;
    j->writing = j->ready;
    j->ready = empty;
    j->starts_segment = false;
    pthread_mutex_unlock(&j->mutex);
    uint64_t t0 = clock_now_us();
    bool good = write_segment(j, starts);
    uint64_t us = clock_now_us() - t0;
    reset_buf(&j->writing);
    pthread_mutex_lock(&j->mutex);
    j->written_no = no;
    if (!good) j->failed = true;
    pthread_cond_signal(&j->written);
    struct journal_counts *c = &j->counts;
    c->n_writes++;
    c->write_us += us;
    if (us > c->max_write_us) c->max_write_us = us;
    c->n_segments += starts && good;
    c->n_failures += !good;
    pthread_mutex_unlock(&j->mutex);
    if (good) j->dirty = true;
    if (good && starts) sync_segment(j, true);
    pthread_mutex_lock(&j->mutex);
}

static void wait_for_work(struct journal *j) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += SYNC_MS / 1000;
    if (j->dirty)
        pthread_cond_timedwait(&j->handed_over, &j->mutex, &until);
    else
        pthread_cond_wait(&j->handed_over, &j->mutex);
}

static void run_writer(void *arg) {
    struct journal *j = arg;
    pthread_mutex_lock(&j->mutex);
    while (!j->stop || j->ready.len_bytes) {
        if (j->ready.len_bytes)
            write_ready(j);
        else
            wait_for_work(j);
        if (!j->dirty || clock_now_ms() < j->synced_ms + SYNC_MS) continue;
        pthread_mutex_unlock(&j->mutex);
        sync_segment(j, false);
        pthread_mutex_lock(&j->mutex);
    }
    pthread_mutex_unlock(&j->mutex);
    if (j->dirty) sync_segment(j, false);
    close_segment(j);
}

// ---- handing records to it

static void close_tokens(struct journal *j) {
    if (j->tokens_open) journal_put_tokens_end(&j->fill, j->tokens_at);
    j->tokens_open = false;
}

// A new segment: all that is alive, instead of what waits in fill, which it tells too.
static bool fill_with_alive(struct journal *j) {
    buf_clear(&j->fill);
    j->tokens_open = false;
    bool good = !journal_put_start(&j->state, &j->fill);
    for (const struct list *it = j->state.entries.next; good && it != &j->state.entries; it = it->next)
        good = !journal_put_request(LIST_ENTRY(it, const struct journal_entry, all), &j->fill);
    return good && !journal_put_listed(&j->fill);
}

static bool segment_is_full(const struct journal *j) {
    uint64_t full = 2 * j->state.live_bytes;
    return j->segment_bytes > (full > SEGMENT_BYTES ? full : SEGMENT_BYTES);
}

// Whether a new segment is due, and nothing waits that would come before it. The mutex is held.
static bool may_start_locked(struct journal *j) {
    if (j->ready.len_bytes) return false;
    if (!j->failed) return segment_is_full(j);
    uint64_t now_ms = clock_now_ms();
    if (!j->retry_ms) j->retry_ms = now_ms + RETRY_MS;
    return now_ms >= j->retry_ms;
}

// Moves fill to ready. The mutex is held.
static void hand_over_locked(struct journal *j, bool starts) {
    j->segment_bytes = (starts ? 0 : j->segment_bytes) + j->fill.len_bytes;
    if (j->ready.len_bytes == 0) {
        struct buf empty = j->ready;
        j->ready = j->fill;
        j->fill = empty;
    } else if (j->ready.len_bytes + j->fill.len_bytes > PENDING_BYTES ||
               buf_add(&j->ready, j->fill.data, j->fill.len_bytes)) {
        j->failed = true;
    }
    j->starts_segment |= starts;
    if (starts) {
        j->failed = false;
        j->retry_ms = 0;
    }
    j->handed_no++;
    pthread_cond_signal(&j->handed_over);
}

static void flush(struct journal *j, bool must_start) {
    close_tokens(j);
    pthread_mutex_lock(&j->mutex);
    bool starts = must_start || may_start_locked(j);
    if (starts && !fill_with_alive(j)) {
        j->failed = true;
        starts = false;
    }
    if (starts || !j->failed) hand_over_locked(j, starts);
    pthread_mutex_unlock(&j->mutex);
    reset_buf(&j->fill);
}

void journal_flush(struct journal *j) {
    if (j->fill.len_bytes) flush(j, false);
}

void journal_settle(struct journal *j) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SETTLE_MS * 1000000l;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    journal_flush(j);
    pthread_mutex_lock(&j->mutex);
    int rc = 0;
    while (!rc && !j->failed && j->written_no < j->handed_no)
        rc = pthread_cond_timedwait(&j->written, &j->mutex, &until);
    pthread_mutex_unlock(&j->mutex);
}

// ---- life

static int open_files(struct journal *j, const struct journal_config *c, struct err *e) {
    int rc = file_join(j->folder, sizeof j->folder, c->state_dir, "journal", e);
    if (!rc) rc = file_mkdir_all(j->folder, 0700, e);
    if (rc) return rc;
    rc = lock_take(c->state_dir, "journal.lock", false, &j->lock, e);
    if (rc == ERR_UNAVAILABLE) return err_set(e, rc, "%s: another head runs with this state folder", c->state_dir);
    return rc ? rc : read_all(j, e);
}

static void init_cond(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int journal_open(const struct journal_config *c, struct journal **out, struct err *e) {
    struct journal *j = calloc(1, sizeof *j);
    if (!j) return err_set(e, ERR_NOMEM, "journal: no memory");
    j->lock = j->fd = -1;
    pthread_mutex_init(&j->mutex, NULL);
    init_cond(&j->handed_over);
    init_cond(&j->written);
    buf_init(&j->fill, BUF_MAX_BYTES);
    buf_init(&j->ready, BUF_MAX_BYTES);
    buf_init(&j->writing, BUF_MAX_BYTES);
    journal_read_init(&j->state, c->model, c->n_vocab);
    int rc = open_files(j, c, e);
    if (!rc) rc = thread_start(&j->thread, "journal", run_writer, j, e);
    j->thread_runs = !rc;
    if (rc) {
        journal_close(j);
        return rc;
    }
    flush(j, true);
    *out = j;
    return ERR_OK;
}

void journal_close(struct journal *j) {
    if (!j) return;
    if (j->thread_runs) {
        journal_flush(j);
        pthread_mutex_lock(&j->mutex);
        j->stop = true;
        pthread_cond_signal(&j->handed_over);
        pthread_mutex_unlock(&j->mutex);
        thread_join(&j->thread);
    }
    journal_read_fini(&j->state);
    buf_fini(&j->fill);
    buf_fini(&j->ready);
    buf_fini(&j->writing);
    pthread_cond_destroy(&j->handed_over);
    pthread_cond_destroy(&j->written);
    pthread_mutex_destroy(&j->mutex);
    lock_release(j->lock);
    free(j);
}

uint64_t journal_boot(const struct journal *j) { return j->state.boot; }
uint32_t journal_last_epoch(const struct journal *j) { return j->state.epoch; }
uint64_t journal_next_id(const struct journal *j) { return j->state.next_id; }

// Copies n bytes to *at, and moves it behind them, to where ids may stand.
static void *copy_to(uint8_t **at, const void *from, size_t n) {
    uint8_t *to = *at;
    if (n) memcpy(to, from, n);
    *at += (n + 3) / 4 * 4;
    return to;
}

int journal_list(const struct journal *j, struct gen_restored **list, uint32_t *n) {
    const struct list *entries = &j->state.entries;
    const uint32_t count = (uint32_t)j->state.index.count;
    size_t bytes = count * sizeof **list;
    for (const struct list *it = entries->next; it != entries; it = it->next) {
        const struct gen_request *r = &LIST_ENTRY(it, const struct journal_entry, all)->request;
        bytes += (r->n_prompt + r->n_known) * sizeof r->prompt[0] + (r->keep_bytes + 3) / 4 * 4;
    }
    struct gen_restored *p = malloc(bytes ? bytes : 1);
    if (!p) return ERR_NOMEM;
    *list = p;
    *n = count;
    uint8_t *at = (uint8_t *)(p + count);
    for (const struct list *it = entries->next; it != entries; it = it->next, p++) {
        const struct journal_entry *q = LIST_ENTRY(it, const struct journal_entry, all);
        const struct gen_request *r = &q->request;
        *p = (struct gen_restored){q->id, *r, q->finish};
        p->request.prompt = copy_to(&at, r->prompt, r->n_prompt * sizeof r->prompt[0]);
        p->request.known = copy_to(&at, r->known, r->n_known * sizeof r->known[0]);
        p->request.keep = copy_to(&at, r->keep, r->keep_bytes);
    }
    return ERR_OK;
}

// ---- what happens

// A record that got no memory spoils its segment: a new one follows as soon as may be.
static void put(struct journal *j, int rc) {
    if (rc) {
        LOG_W("journal", "no memory for a record");
        j->segment_bytes = UINT64_MAX / 2;
    }
    if (j->fill.len_bytes >= BUF_BYTES / 2) journal_flush(j);
}

void journal_epoch(struct journal *j, uint32_t epoch) {
    if (epoch <= j->state.epoch) return;
    j->state.epoch = epoch;
    close_tokens(j);
    put(j, journal_put_epoch(epoch, &j->fill));
    journal_settle(j);
}

void journal_tried(struct journal *j, uint64_t id) {
    struct journal_entry *q = map_get(&j->state.index, id);
    if (!q || q->tried) return;
    q->tried = true;
    journal_read_tried(&j->state, id);
    close_tokens(j);
    put(j, journal_put_tried(id, &j->fill));
}

void journal_request(struct journal *j, uint64_t id, const struct gen_request *r) {
    if (!r->keep || r->keep_bytes > LIMIT_KEEP_BYTES) return;
    const struct journal_entry *q = journal_read_add(&j->state, id, r);
    close_tokens(j);
    put(j, q ? journal_put_request(q, &j->fill) : ERR_NOMEM);
}

void journal_event(struct journal *j, const struct gen_event *ev) {
    if (ev->token < 0 || !map_get(&j->state.index, ev->id)) return;
    bool good = journal_read_token(&j->state, ev->id, ev->index, ev->token, ev->finish);
    if (good && !j->tokens_open) {
        good = !journal_put_tokens_begin(&j->fill, &j->tokens_at);
        j->tokens_open = good;
    }
    put(j, good ? journal_put_token(ev, &j->fill) : ERR_NOMEM);
}

void journal_drop(struct journal *j, uint64_t id) {
    if (!map_get(&j->state.index, id)) return;
    journal_read_drop(&j->state, id);
    close_tokens(j);
    put(j, journal_put_drop(id, &j->fill));
}

void journal_counts(struct journal *j, struct journal_counts *c) {
    pthread_mutex_lock(&j->mutex);
    *c = j->counts;
    pthread_mutex_unlock(&j->mutex);
}
