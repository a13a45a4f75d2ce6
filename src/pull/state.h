// Two small text files that `loom pull` writes for itself: how far one file came, and what lies in the folder complete.
// Both end with a checksum line. They may be damaged, or written by somebody else: then they are as if they were not
// there.
#pragma once
#include "pull/digest.h"
#include "pull/ranges.h"
#include <stddef.h>

enum { STATE_ETAG_BYTES = 256 };

// Of a file that is not complete.
struct state {
    uint64_t size_bytes;
    struct digest digest;        // what the hub said
    char etag[STATE_ETAG_BYTES]; // where it said nothing: the server's name of this content, quotes included; "": none
    struct ranges done;
};

// false: not a sound state.
bool state_parse(const char *text, size_t len_bytes, struct state *out);
bool state_read(const char *path, struct state *out);
// Replaces the file; the bytes that it speaks of were made to last before.
int state_write(const char *path, const struct state *s, struct err *e) MUST_CHECK;

// Of the complete files.
struct state_record_file {
    char *path; // below the folder
    uint64_t size_bytes;
    int64_t mtime_ns; // when it was put in place: whoever writes to it changes that
    struct digest digest;
};
struct state_record {
    struct state_record_file *files; // in order of their paths
    uint32_t n, cap;
    bool changed; // since it was read
};

// false: not a sound record, *out is empty. state_record_fini after each.
bool state_record_parse(const char *text, size_t len_bytes, struct state_record *out);
bool state_record_read(const char *path, struct state_record *out);
int state_record_write(const char *path, const struct state_record *r, struct err *e) MUST_CHECK;
void state_record_fini(struct state_record *r);
const struct state_record_file *state_record_find(const struct state_record *r, const char *path);
// Did a pull put the file there that has this size and time? digest: of this content; NULL: of any.
bool state_record_knows(const struct state_record *r, const char *path, uint64_t size_bytes, int64_t mtime_ns,
                        const struct digest *digest);
// Adds or replaces. ERR_NOMEM, ERR_LIMIT.
int state_record_put(struct state_record *r, const struct state_record_file *f, struct err *e) MUST_CHECK;
