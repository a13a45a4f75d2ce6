// The life of a file:
//
//   CHECK (stands there, but nobody knows whether it is right) --equal--> DONE
//     |other
//     v
//   WANTED --a connection is free--> OPEN --all bytes--> FULL --hash, rename--> DONE
//                                     ^  |
//                                     +--+ it changed, or comes only as a whole: from the start
//
// Connections take the first bytes that are missing and that no other connection fetches. Every few seconds the bytes
// of an open file are made to last and its state is written (disk.c), so that a kill costs no more than that.
#include "pull/fetch.h"

#include "os/clock.h"
#include "pull/transfer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    POLL_MS = 200,
    CHECKPOINT_MS = 2000,
    CHECKS_AT_ONCE = 8,
    RESTARTS_MOST = 3, // of one file
    PIECE_LEAST_BYTES = 4 << 20,
    PIECE_MOST_BYTES = 64 << 20
};

// Of a file that somebody else wrote, before it goes.
static const char REPLACED[] = "what stands there is not the hub's: it will be replaced";

enum file_phase { FILE_CHECK, FILE_WANTED, FILE_OPEN, FILE_FULL, FILE_DONE };

struct fetch_file {
    enum file_phase phase;
    const struct listing_file *want;
    uint64_t had_bytes;         // of a wanted file: what an earlier run fetched
    struct transfer_file *open; // OPEN and FULL
    uint64_t checkpoint_ms;
    uint32_t restarts;
    bool posted;  // CHECK: its job is under way
    bool syncing; // a DISK_SYNC is under way
};

struct fetch {
    const struct pull_config *config;
    const struct hub *hub;
    struct fetch_file *files;
    uint32_t n, n_done, n_checks, first; // first: all files before it are FULL or DONE
    struct transfer *transfers;          // [config->connections]
    CURLM *multi;
    struct disk disk;
    struct state_record *record;
    struct pull_result *result;
    uint64_t total_bytes, told_ms;
    bool room_due; // more is to be fetched than was known when the room was looked at
};

static void note(const struct fetch *f, const char *path, const char *text) {
    char line[ERR_TEXT_MAX];
    snprintf(line, sizeof line, "%.200s: %.300s", path, text);
    f->config->note(f->config->arg, line);
}

static int set_done(struct fetch *f, struct fetch_file *file, int64_t mtime_ns, struct err *e) {
    struct state_record_file r = {.path = file->want->path,
                                  .size_bytes = file->want->size_bytes,
                                  .mtime_ns = mtime_ns,
                                  .digest = file->want->digest};
    file->phase = FILE_DONE;
    f->n_done++;
    return state_record_put(f->record, &r, e);
}

// Is there room for all that is known to be missing?
static int check_room(struct fetch *f, struct err *e) {
    struct disk_paths p;
    uint64_t need = 0;
    f->room_due = false;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct fetch_file *file = &f->files[i];
        if (file->phase != FILE_WANTED && file->phase != FILE_OPEN) continue;
        int rc = disk_paths(&p, f->config->out, file->want->path, e);
        if (rc) return rc;
        uint64_t taken = disk_allocated(p.part);
        if (taken < file->want->size_bytes) need += file->want->size_bytes - taken;
    }
    return disk_check_room(f->config->out, need, e);
}

// Where each file stands before anything is fetched, and whether there is room for the rest.
static int prepare(struct fetch *f, struct err *e) {
    struct disk_paths p;
    struct state s;
    uint64_t size;
    int64_t mtime;
    for (uint32_t i = 0; i < f->n; i++) {
        struct fetch_file *file = &f->files[i];
        const struct listing_file *want = file->want;
        int rc = disk_paths(&p, f->config->out, want->path, e);
        if (rc) return rc;
        f->total_bytes += want->size_bytes;
        file->phase = FILE_WANTED;
        bool there = disk_look(p.whole, &size, &mtime);
        if (there && size == want->size_bytes) {
            if (state_record_knows(f->record, want->path, size, mtime, &want->digest)) {
                if ((rc = set_done(f, file, mtime, e))) return rc;
                continue;
            }
            if (want->digest.kind != DIGEST_NONE) file->phase = FILE_CHECK;
        }
        if (file->phase != FILE_WANTED) continue;
        // What an earlier pull put there may go without a word.
        if (there && !state_record_knows(f->record, want->path, size, mtime, NULL)) note(f, want->path, REPLACED);
        if (disk_load_state(&p, want, &s)) file->had_bytes = ranges_total(&s.done);
    }
    return check_room(f, e);
}

static int post(struct fetch *f, uint32_t i, enum disk_task task, const struct state *state, struct err *e) {
    struct disk_paths p;
    struct fetch_file *file = &f->files[i];
    int rc = disk_paths(&p, f->config->out, file->want->path, e);
    return rc ? rc : disk_post(&f->disk, task, i, &p, file->want, state, e);
}

static int post_checks(struct fetch *f, struct err *e) {
    for (uint32_t i = f->first; i < f->n && f->n_checks < CHECKS_AT_ONCE; i++) {
        struct fetch_file *file = &f->files[i];
        if (file->phase != FILE_CHECK || file->posted) continue;
        file->posted = true;
        f->n_checks++;
        int rc = post(f, i, DISK_CHECK, NULL, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static void close_file(struct fetch_file *file) {
    if (file->open && file->open->fd >= 0) close(file->open->fd);
    free(file->open);
    file->open = NULL;
}

static void drop(struct fetch *f, struct transfer *t) {
    if (t->phase == TRANSFER_RUNS) {
        curl_multi_remove_handle(f->multi, t->request.easy);
        request_close(&t->request);
    }
    t->phase = TRANSFER_IDLE;
    t->file = NULL;
}

static void drop_all_of(struct fetch *f, const struct fetch_file *file) {
    for (uint32_t k = 0; k < f->config->connections; k++)
        if (f->transfers[k].file == file->open) drop(f, &f->transfers[k]);
}

// Every byte is here: when the last sync is over, too, it can be hashed and put in its place. A server may have sent
// all bytes and not yet have ended its answer: nobody waits for that, and no transfer points to a file that is closed.
static int place_if_full(struct fetch *f, uint32_t i, struct err *e) {
    struct fetch_file *file = &f->files[i];
    if (file->phase == FILE_OPEN && ranges_total(&file->open->state.done) == file->want->size_bytes) {
        drop_all_of(f, file);
        file->phase = FILE_FULL;
        close(file->open->fd);
        file->open->fd = -1;
    }
    return file->phase == FILE_FULL && !file->syncing ? post(f, i, DISK_PLACE, NULL, e) : ERR_OK;
}

static int open_file(struct fetch *f, uint32_t i, struct err *e) {
    struct fetch_file *file = &f->files[i];
    struct transfer_file *o = malloc(sizeof *o);
    if (!o) return err_set(e, ERR_NOMEM, "%.200s: no memory", file->want->path);
    *o = (struct transfer_file){.want = file->want, .fd = -1};
    int rc = disk_paths(&o->paths, f->config->out, file->want->path, e);
    bool known = !rc && disk_load_state(&o->paths, file->want, &o->state);
    if (!rc && !known) unlink(o->paths.state);
    if (!rc) rc = disk_open_part(o->paths.part, file->want->size_bytes, &o->fd, e);
    if (rc) {
        free(o);
        return rc;
    }
    if (!known) o->state = (struct state){.size_bytes = file->want->size_bytes, .digest = file->want->digest};
    file->open = o;
    file->phase = FILE_OPEN;
    file->checkpoint_ms = clock_now_ms();
    return place_if_full(f, i, e);
}

// Bytes of an open file that neither are here nor are being fetched, not more than a piece.
static bool find_gap(const struct fetch *f, uint32_t i, struct range *gap) {
    const struct fetch_file *file = &f->files[i];
    uint64_t size = file->want->size_bytes, from = 0, piece = size / f->config->connections / 4;
    if (piece < PIECE_LEAST_BYTES) piece = PIECE_LEAST_BYTES;
    if (piece > PIECE_MOST_BYTES) piece = PIECE_MOST_BYTES;
    if (file->open->whole) piece = size;
    for (bool moved = true; moved;) {
        if (!ranges_gap(&file->open->state.done, from, size, gap)) return false;
        moved = false;
        for (uint32_t k = 0; k < f->config->connections; k++) {
            const struct transfer *t = &f->transfers[k];
            if (t->phase == TRANSFER_IDLE || t->index != i || t->end <= gap->begin || t->begin >= gap->end) continue;
            if (t->begin > gap->begin) {
                gap->end = t->begin;
            } else {
                from = t->end;
                moved = true;
            }
        }
    }
    if (gap->end - gap->begin > piece) gap->end = gap->begin + piece;
    return true;
}

static int start(struct fetch *f, struct transfer *t, struct err *e) {
    int rc = transfer_start(t, f->hub, e);
    if (rc) return rc;
    t->phase = TRANSFER_RUNS;
    if (curl_multi_add_handle(f->multi, t->request.easy)) {
        request_close(&t->request);
        t->phase = TRANSFER_IDLE;
        return err_set(e, ERR_NOMEM, "no memory for a connection");
    }
    return ERR_OK;
}

// Gives an idle connection the next bytes that are missing, if any are.
static int give_work(struct fetch *f, struct transfer *t, struct err *e) {
    struct range gap;
    while (f->first < f->n && f->files[f->first].phase >= FILE_FULL) f->first++;
    for (uint32_t i = f->first; i < f->n; i++) {
        int rc = f->files[i].phase == FILE_WANTED ? open_file(f, i, e) : ERR_OK;
        if (rc) return rc;
        if (f->files[i].phase != FILE_OPEN || !find_gap(f, i, &gap)) continue;
        *t = (struct transfer){
            .index = i, .file = f->files[i].open, .begin = gap.begin, .end = gap.end, .best = gap.begin};
        return start(f, t, e);
    }
    return ERR_OK;
}

// What came of the file is worth nothing: all of it once more.
static int restart(struct fetch *f, uint32_t i, bool whole, struct err *e) {
    struct fetch_file *file = &f->files[i];
    drop_all_of(f, file);
    if (++file->restarts > RESTARTS_MOST)
        return err_set(e, ERR_NET, "%.200s: the server does not keep to one content", file->want->path);
    note(f, file->want->path,
         whole ? "the server sends it as a whole only: from the start" : "it changed: from the start");
    file->open->whole |= whole;
    file->open->state.done.n = 0;
    file->open->state.etag[0] = 0;
    unlink(file->open->paths.state);
    return ERR_OK;
}

static int again(struct fetch *f, struct transfer *t, const char *why, struct err *e) {
    uint64_t pause_ms;
    char text[300];
    if (++t->tries > f->config->retries)
        return err_set(e, ERR_NET, "%.150s: %.250s; what came is kept, the same command goes on", t->file->want->path,
                       why);
    int rc = request_pause_ms(&t->request, t->tries, &pause_ms, e);
    if (rc) return rc;
    snprintf(text, sizeof text, "%.200s: trying again in %.1f s", why, (double)pause_ms / 1e3);
    note(f, t->file->want->path, text);
    t->phase = TRANSFER_WAITS;
    t->again_ms = clock_now_ms() + pause_ms;
    return ERR_OK;
}

static void give_up_file(struct fetch *f, struct fetch_file *file) {
    drop_all_of(f, file);
    disk_forget(f->config->out, &file->open->paths);
    close_file(file);
}

// The connection is fine, what it brought is not.
static int handle_fault(struct fetch *f, struct transfer *t, struct err *e) {
    struct fetch_file *file = &f->files[t->index];
    switch (t->fault) {
    case TRANSFER_NO_RANGES:
        return restart(f, t->index, true, e);
    case TRANSFER_CHANGED:
        return restart(f, t->index, false, e);
    case TRANSFER_DISK:
        *e = t->e;
        return e->code;
    default:
        *e = t->e;
        give_up_file(f, file);
        return e->code;
    }
}

// A request is over, in whatever way; its handle is out of the multi handle already.
static int judge(struct fetch *f, struct transfer *t, CURLcode code, struct err *e) {
    char why[300];
    long status = request_status(&t->request);
    bool good = status == 200 || status == 206;
    if (!code && good && !t->accepted) transfer_accept(t);
    if (t->fault) return handle_fault(f, t, e);
    bool complete = good && t->at == t->end;
    if (t->at > t->best) {
        t->best = t->at;
        t->tries = 0;
    }
    transfer_commit(t);
    if (complete) {
        t->file = NULL;
        return place_if_full(f, t->index, e);
    }
    request_tell(&t->request, code, why, sizeof why);
    if (code)
        return request_is_transient(code) ? again(f, t, why, e)
                                          : err_set(e, ERR_NET, "%.200s: %s", t->file->want->path, why);
    if (good) return again(f, t, "the connection ended too early", e);
    snprintf(why, sizeof why, "HTTP %ld", status);
    if (request_is_transient_status(status)) return again(f, t, why, e);
    if (status == 416)
        return err_set(e, ERR_FORMAT, "%.200s: the server has less than the %llu bytes of the listing",
                       t->file->want->path, (unsigned long long)t->file->want->size_bytes);
    return hub_refused(f->hub, t->file->want->path, status, &t->request.answer, e);
}

static int take_finished(struct fetch *f, struct err *e) {
    int left, rc = ERR_OK;
    CURLMsg *m;
    while (!rc && (m = curl_multi_info_read(f->multi, &left))) {
        struct transfer *t;
        CURLcode code = m->data.result;
        char *private;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
        t = (struct transfer *)(void *)private;
        curl_multi_remove_handle(f->multi, t->request.easy);
        t->phase = TRANSFER_IDLE;
        rc = judge(f, t, code, e);
        request_close(&t->request);
    }
    return rc;
}

static int take_result(struct fetch *f, struct disk_job *j, struct err *e) {
    struct fetch_file *file = &f->files[j->file];
    if (j->task == DISK_SYNC) file->syncing = false;
    if (j->task == DISK_CHECK) f->n_checks--;
    if (j->rc) {
        if (j->rc == ERR_FORMAT && file->open) give_up_file(f, file);
        *e = j->e;
        return j->rc;
    }
    if (j->task == DISK_SYNC) return place_if_full(f, j->file, e);
    if (j->task == DISK_CHECK && j->equal) return set_done(f, file, j->mtime_ns, e);
    if (j->task == DISK_CHECK) {
        file->phase = FILE_WANTED;
        f->first = 0;
        f->room_due = true;
        note(f, file->want->path, REPLACED);
        return ERR_OK;
    }
    disk_forget(f->config->out, &j->paths);
    close_file(file);
    f->result->fetched++;
    return set_done(f, file, j->mtime_ns, e);
}

static int take_results(struct fetch *f, struct err *e) {
    int rc = ERR_OK;
    for (struct disk_job *j; !rc && (j = disk_result(&f->disk));) {
        rc = take_result(f, j, e);
        disk_job_free(j);
    }
    return !rc && f->room_due ? check_room(f, e) : rc;
}

static int checkpoint(struct fetch *f, uint64_t now_ms, struct err *e) {
    for (uint32_t k = 0; k < f->config->connections; k++) {
        struct transfer *t = &f->transfers[k];
        if (t->phase != TRANSFER_RUNS) continue;
        struct fetch_file *file = &f->files[t->index];
        if (file->syncing || now_ms - file->checkpoint_ms < CHECKPOINT_MS) continue;
        for (uint32_t m = 0; m < f->config->connections; m++)
            if (f->transfers[m].phase == TRANSFER_RUNS && f->transfers[m].file == file->open && !file->open->whole)
                ranges_add(&file->open->state.done, f->transfers[m].begin, f->transfers[m].at);
        file->checkpoint_ms = now_ms;
        file->syncing = true;
        int rc = post(f, t->index, DISK_SYNC, &file->open->state, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static void tell_progress(struct fetch *f, uint64_t now_ms, bool last) {
    if (!last && now_ms - f->told_ms < POLL_MS) return;
    f->told_ms = now_ms;
    struct pull_progress p = {.total_bytes = f->total_bytes, .files = f->n, .files_done = f->n_done, .hashing = true};
    for (uint32_t i = 0; i < f->n; i++) {
        const struct fetch_file *file = &f->files[i];
        if (file->phase == FILE_WANTED || file->phase == FILE_OPEN) p.hashing = false;
        p.done_bytes += file->phase == FILE_WANTED ? file->had_bytes
                        : file->phase == FILE_OPEN ? ranges_total(&file->open->state.done)
                                                   : file->want->size_bytes;
    }
    for (uint32_t k = 0; k < f->config->connections; k++) {
        const struct transfer *t = &f->transfers[k];
        if (t->phase != TRANSFER_RUNS) continue;
        struct range r;
        uint64_t from = t->begin; // a checkpoint may have counted a part of it
        if (ranges_gap(&t->file->state.done, from, t->at, &r)) p.done_bytes += t->at - r.begin;
    }
    f->config->progress(f->config->arg, &p);
}

static int step(struct fetch *f, struct err *e) {
    int running, rc = take_results(f, e);
    if (!rc) rc = post_checks(f, e);
    uint64_t now_ms = clock_now_ms();
    for (uint32_t k = 0; k < f->config->connections && !rc; k++) {
        struct transfer *t = &f->transfers[k];
        if (t->phase == TRANSFER_IDLE)
            rc = give_work(f, t, e);
        else if (t->phase == TRANSFER_WAITS && now_ms >= t->again_ms)
            rc = start(f, t, e);
    }
    if (!rc && curl_multi_perform(f->multi, &running)) rc = err_set(e, ERR_NOMEM, "no memory for the connections");
    if (!rc) rc = take_finished(f, e);
    if (!rc) rc = checkpoint(f, now_ms, e);
    tell_progress(f, now_ms, false);
    return rc;
}

static int loop(struct fetch *f, struct err *e) {
    int rc = ERR_OK;
    while (!rc && f->n_done < f->n) {
        if (f->config->stop(f->config->arg)) return err_set(e, ERR_CANCELLED, "stopped");
        rc = step(f, e);
        if (!rc && f->n_done < f->n) curl_multi_poll(f->multi, NULL, 0, POLL_MS, NULL);
    }
    return rc;
}

// After an error: everything stops, and what came is noted.
static void wind_up(struct fetch *f, int *rc, struct err *e) {
    struct err other;
    for (uint32_t k = 0; k < f->config->connections; k++) {
        struct transfer *t = &f->transfers[k];
        if (t->phase == TRANSFER_RUNS && t->file && !t->fault) transfer_commit(t);
        drop(f, t);
    }
    disk_stop(&f->disk);
    for (struct disk_job *j; (j = disk_result(&f->disk));) {
        // The first error is the one that is told.
        if (j->rc || j->task == DISK_PLACE) (void)take_result(f, j, &other);
        disk_job_free(j);
    }
    for (uint32_t i = 0; i < f->n; i++) {
        struct fetch_file *file = &f->files[i];
        if (!file->open) continue;
        if (!ranges_total(&file->open->state.done)) {
            // Nothing to go on from, and it holds room.
            disk_forget(f->config->out, &file->open->paths);
        } else if (disk_sync(&file->open->paths, &file->open->state, &other) && !*rc) {
            *e = other;
            *rc = other.code;
        }
        close_file(file);
    }
    disk_fini(&f->disk);
}

int fetch_run(const struct hub *h, const struct listing *l, const struct choice *c, struct state_record *record,
              struct pull_result *r, struct err *e) {
    struct fetch f = {.config = h->config, .hub = h, .n = c->n, .record = record, .result = r};
    f.files = calloc(c->n, sizeof *f.files);
    f.transfers = calloc(h->config->connections, sizeof *f.transfers);
    f.multi = curl_multi_init();
    int rc = f.files && f.transfers && f.multi ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %u files", c->n);
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        f.files[i].want = &l->files[c->files[i]];
        if (f.files[i].want->digest.kind == DIGEST_NONE) r->not_verified++;
    }
    if (!rc) rc = prepare(&f, e);
    if (!rc && !(rc = disk_start(&f.disk, f.n, f.multi, e))) {
        rc = loop(&f, e);
        if (!rc) tell_progress(&f, clock_now_ms(), true);
        wind_up(&f, &rc, e);
    }
    r->files = f.n;
    r->bytes = f.total_bytes;
    if (f.multi) curl_multi_cleanup(f.multi);
    free(f.transfers);
    free(f.files);
    return rc;
}
