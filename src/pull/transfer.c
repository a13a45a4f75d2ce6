#include "pull/transfer.h"

#include <stdio.h>
#include <string.h>

static int lies(struct transfer *t, const char *what, uint64_t size) {
    t->fault = TRANSFER_LIES;
    return err_set(&t->e, ERR_FORMAT, "%.200s: the listing says %llu bytes, but the server %s %llu; it was removed",
                   t->file->want->path, (unsigned long long)t->file->want->size_bytes, what, (unsigned long long)size);
}

// A content that has no hash in the listing is known by its ETag; a hash says more than any of those.
static bool is_changed(struct transfer *t) {
    struct state *s = &t->file->state;
    const char *etag = t->request.answer.etag;
    if (t->file->want->digest.kind != DIGEST_NONE || !etag[0]) return false;
    if (!s->etag[0]) {
        snprintf(s->etag, sizeof s->etag, "%s", etag);
        return false;
    }
    return strcmp(s->etag, etag) != 0;
}

void transfer_accept(struct transfer *t) {
    const struct answer *a = &t->request.answer;
    uint64_t size = t->file->want->size_bytes;
    long status = request_status(&t->request);
    curl_off_t length = -1;
    bool everything = t->begin == 0 && t->end == size;
    t->accepted = true;
    if (is_changed(t)) {
        t->fault = TRANSFER_CHANGED;
    } else if (status == 206) {
        if (a->has_range && a->range_total != size)
            lies(t, "has", a->range_total);
        else if (!a->has_range || a->range_begin != t->begin || a->range_end != t->end - 1)
            t->fault = TRANSFER_NO_RANGES;
    } else {
        curl_easy_getinfo(t->request.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        if (length >= 0 && (uint64_t)length != size)
            lies(t, "has", (uint64_t)length);
        else if (!everything)
            t->fault = TRANSFER_NO_RANGES;
    }
}

// curl's callback: anything but the length that came ends the transfer.
static size_t take_bytes(char *data, size_t size, size_t count, void *arg) {
    struct transfer *t = arg;
    size_t n = size * count;
    long status = request_status(&t->request);
    if (status != 200 && status != 206) return n; // an explanation for people; the head has it as well
    if (!t->accepted) transfer_accept(t);
    if (t->fault) return 0;
    if (n > t->end - t->at) {
        lies(t, "sends more than", t->end - t->begin);
        return 0;
    }
    if (disk_write(t->file->fd, t->file->paths.part, data, n, t->at, &t->e)) {
        t->fault = TRANSFER_DISK;
        return 0;
    }
    t->at += n;
    return n;
}

int transfer_start(struct transfer *t, const struct hub *h, struct err *e) {
    char url[LIMIT_PULL_URL], range[64], line[STATE_ETAG_BYTES + 16];
    const struct transfer_file *f = t->file;
    t->at = t->begin;
    t->accepted = false;
    t->fault = TRANSFER_FINE;
    int rc = hub_file_url(h, f->want->path, url, e);
    if (!rc) rc = request_open(&t->request, h->config, url, e);
    if (rc) return rc;
    curl_easy_setopt(t->request.easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(t->request.easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->request.easy, CURLOPT_PRIVATE, t);
    if (t->begin != 0 || t->end != f->want->size_bytes) {
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)t->begin, (unsigned long long)t->end - 1);
        curl_easy_setopt(t->request.easy, CURLOPT_RANGE, range);
        snprintf(line, sizeof line, "If-Range: %s", f->state.etag);
        if (f->state.etag[0]) rc = request_add_header(&t->request, line, e);
    }
    if (rc) request_close(&t->request);
    return rc;
}

void transfer_commit(struct transfer *t) {
    if (t->file->whole && t->at != t->end) {
        t->at = t->begin;
        return;
    }
    // Where there is no room to note it, it is fetched again.
    if (!ranges_add(&t->file->state.done, t->begin, t->at)) return;
    t->begin = t->at;
}
