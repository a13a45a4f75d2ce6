#include "pull/state.h"

#include "base/buf.h"
#include "base/crc32c.h"
#include "os/file.h"
#include "pull/listing.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STATE_BYTES = 64 << 10, MAX_RECORD_BYTES = 32 << 20 };
static const char state_title[] = "loom-pull state 1", record_title[] = "loom-pull record 1";

// The last line is "sum " and the CRC of all before it.
static int add_sum(struct buf *b) { return buf_addf(b, "sum %08x\n", crc32c(0, b->data, b->len_bytes)); }

// Copies the text less its last line, NUL at the end, if that line is right and the first is the title; *next is then
// the second line. The caller frees it. NULL: something else.
static char *open_text(const char *text, size_t len, size_t max, const char *title, char **next) {
    enum { SUM_BYTES = 13 };
    char sum[SUM_BYTES + 1];
    size_t n = strlen(title);
    if (len > max || len < SUM_BYTES + n + 1 || memchr(text, 0, len)) return NULL;
    len -= SUM_BYTES;
    snprintf(sum, sizeof sum, "sum %08x\n", crc32c(0, text, len));
    if (memcmp(text + len, sum, SUM_BYTES) || memcmp(text, title, n) || text[n] != '\n' || text[len - 1] != '\n')
        return NULL;
    char *copy = malloc(len + 1);
    if (!copy) return NULL;
    memcpy(copy, text, len);
    copy[len] = 0;
    *next = copy + n + 1;
    return copy;
}

// The next line without its end; NULL: no more.
static char *next_line(char **next) {
    char *line = *next, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0;
    *next = end + 1;
    return line;
}

// A number and what follows it; NULL: there is none.
static const char *number(const char *s, uint64_t *v) {
    char *end;
    if (*s < '0' || *s > '9') return NULL;
    errno = 0;
    unsigned long long x = strtoull(s, &end, 10);
    *v = x;
    return errno ? NULL : end;
}

static bool take_state_line(struct state *s, const char *line) {
    struct range r;
    if (!strncmp(line, "size ", 5)) {
        const char *end = number(line + 5, &s->size_bytes);
        return end && !*end;
    }
    if (!strncmp(line, "digest ", 7)) return digest_from_text(&s->digest, line + 7);
    if (!strncmp(line, "etag ", 5)) {
        size_t n = strlen(line + 5);
        if (!n || n >= sizeof s->etag) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)line[5 + i] < 0x20 || line[5 + i] == 0x7f) return false; // it goes into a header
        memcpy(s->etag, line + 5, n + 1);
        return true;
    }
    if (strncmp(line, "done ", 5)) return false;
    const char *end = number(line + 5, &r.begin);
    if (!end || *end != ' ' || !(end = number(end + 1, &r.end)) || *end) return false;
    return r.begin < r.end && r.end <= s->size_bytes && ranges_add(&s->done, r.begin, r.end);
}

bool state_parse(const char *text, size_t len_bytes, struct state *out) {
    char *next, *copy = open_text(text, len_bytes, MAX_STATE_BYTES, state_title, &next);
    *out = (struct state){0};
    bool good = copy != NULL;
    for (char *line; good && (line = next_line(&next));) good = take_state_line(out, line);
    free(copy);
    return good;
}

bool state_read(const char *path, struct state *out) {
    char *text;
    size_t len;
    if (file_read(path, MAX_STATE_BYTES, &text, &len, NULL)) return false;
    bool good = state_parse(text, len, out);
    free(text);
    return good;
}

int state_write(const char *path, const struct state *s, struct err *e) {
    char digest[DIGEST_TEXT_BYTES];
    struct buf b;
    buf_init(&b, MAX_STATE_BYTES);
    digest_text(&s->digest, digest);
    int rc = buf_addf(&b, "%s\nsize %llu\ndigest %s\n", state_title, (unsigned long long)s->size_bytes, digest);
    if (!rc && s->etag[0]) rc = buf_addf(&b, "etag %s\n", s->etag);
    for (uint32_t i = 0; i < s->done.n && !rc; i++)
        rc = buf_addf(&b, "done %llu %llu\n", (unsigned long long)s->done.at[i].begin,
                      (unsigned long long)s->done.at[i].end);
    if (!rc) rc = add_sum(&b);
    rc = rc ? err_set(e, rc, "%s: no memory", path) : file_write(path, b.data, b.len_bytes, 0644, e);
    buf_fini(&b);
    return rc;
}

void state_record_fini(struct state_record *r) {
    for (uint32_t i = 0; i < r->n; i++) free(r->files[i].path);
    free(r->files);
    *r = (struct state_record){0};
}

// Where path is, or would have to be put in.
static uint32_t place_of(const struct state_record *r, const char *path, bool *found) {
    uint32_t low = 0, high = r->n;
    *found = false;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = strcmp(r->files[mid].path, path);
        if (!order) {
            *found = true;
            return mid;
        }
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct state_record_file *state_record_find(const struct state_record *r, const char *path) {
    bool found;
    uint32_t at = place_of(r, path, &found);
    return found ? &r->files[at] : NULL;
}

bool state_record_knows(const struct state_record *r, const char *path, uint64_t size_bytes, int64_t mtime_ns,
                        const struct digest *digest) {
    const struct state_record_file *f = state_record_find(r, path);
    return f && f->size_bytes == size_bytes && f->mtime_ns == mtime_ns && (!digest || digest_equal(&f->digest, digest));
}

int state_record_put(struct state_record *r, const struct state_record_file *f, struct err *e) {
    bool found;
    uint32_t at = place_of(r, f->path, &found);
    if (found) {
        struct state_record_file *old = &r->files[at];
        char *path = old->path;
        r->changed |=
            old->size_bytes != f->size_bytes || old->mtime_ns != f->mtime_ns || !digest_equal(&old->digest, &f->digest);
        *old = *f;
        old->path = path;
        return ERR_OK;
    }
    if (r->n == 2 * LIMIT_PULL_FILES) return err_set(e, ERR_LIMIT, "the record of files: has %u of them", r->n);
    if (r->n == r->cap) {
        uint32_t cap = r->cap ? 2 * r->cap : 16;
        struct state_record_file *more = realloc(r->files, cap * sizeof *more);
        if (!more) return err_set(e, ERR_NOMEM, "the record of files: no memory");
        r->files = more;
        r->cap = cap;
    }
    char *path = strdup(f->path);
    if (!path) return err_set(e, ERR_NOMEM, "the record of files: no memory");
    memmove(&r->files[at + 1], &r->files[at], (r->n - at) * sizeof *r->files);
    r->files[at] = *f;
    r->files[at].path = path;
    r->n++;
    r->changed = true;
    return ERR_OK;
}

// "SIZE MTIME DIGEST PATH"
static bool take_record_line(struct state_record *r, char *line) {
    struct state_record_file f = {0};
    uint64_t mtime;
    const char *at = number(line, &f.size_bytes);
    if (!at || *at != ' ' || !(at = number(at + 1, &mtime)) || *at != ' ' || mtime > INT64_MAX) return false;
    char *digest = line + (at - line) + 1, *path = strchr(digest, ' ');
    if (!path) return false;
    *path++ = 0;
    f.mtime_ns = (int64_t)mtime;
    f.path = path;
    return digest_from_text(&f.digest, digest) && !listing_check_path(path, NULL) && !state_record_put(r, &f, NULL);
}

bool state_record_parse(const char *text, size_t len_bytes, struct state_record *out) {
    char *next, *copy = open_text(text, len_bytes, MAX_RECORD_BYTES, record_title, &next);
    *out = (struct state_record){0};
    bool good = copy != NULL;
    for (char *line; good && (line = next_line(&next));) good = take_record_line(out, line);
    free(copy);
    out->changed = false;
    if (!good) state_record_fini(out);
    return good;
}

bool state_record_read(const char *path, struct state_record *out) {
    char *text;
    size_t len;
    *out = (struct state_record){0};
    if (file_read(path, MAX_RECORD_BYTES, &text, &len, NULL)) return false;
    bool good = state_record_parse(text, len, out);
    free(text);
    return good;
}

int state_record_write(const char *path, const struct state_record *r, struct err *e) {
    char digest[DIGEST_TEXT_BYTES];
    struct buf b;
    buf_init(&b, MAX_RECORD_BYTES);
    int rc = buf_addf(&b, "%s\n", record_title);
    for (uint32_t i = 0; i < r->n && !rc; i++) {
        const struct state_record_file *f = &r->files[i];
        digest_text(&f->digest, digest);
        rc = buf_addf(&b, "%llu %lld %s %s\n", (unsigned long long)f->size_bytes, (long long)f->mtime_ns, digest,
                      f->path);
    }
    if (!rc) rc = add_sum(&b);
    rc = rc ? err_set(e, rc, "%s: no memory", path) : file_write(path, b.data, b.len_bytes, 0644, e);
    buf_fini(&b);
    return rc;
}
