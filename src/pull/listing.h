// The files of one model as a hub lists them: Hugging Face's layout and ModelScope's. All of it is foreign: a path that
// could lead out of the folder, a size or a hash of the wrong shape, or too many files refuse the whole listing.
// Not thread-safe.
#pragma once
#include "base/limits.h"
#include "pull/digest.h"
#include <stddef.h>

enum { LISTING_MAX_BYTES_LOG2 = 50 }; // of one file, and of all of them

struct listing_file {
    char *path; // below the model's folder; '/' between its parts, all of which are plain names
    uint64_t size_bytes;
    struct digest digest;
};

struct listing {
    struct listing_file *files; // listing_finish puts them in order of their paths
    uint32_t n, cap;
};

// An empty listing is {0}.
void listing_fini(struct listing *l);
// Adds the files of one page: an array of {"type", "path", "size", "oid", "lfs": {"oid", "size"}}.
int listing_add_hf(struct listing *l, const char *json, size_t len_bytes, struct err *e) MUST_CHECK;
// Adds the files of {"Code": 200, "Data": {"Files": [{"Type", "Path", "Size", "Sha256"}]}}.
int listing_add_modelscope(struct listing *l, const char *json, size_t len_bytes, struct err *e) MUST_CHECK;
// After the last page: sorts, refuses a path that comes twice, and more bytes than 2^LISTING_MAX_BYTES_LOG2.
int listing_finish(struct listing *l, struct err *e) MUST_CHECK;

// ERR_FORMAT: the path is absolute, or leads upwards, or has a backslash, a control character, an empty, an over-long
// or a reserved part.
int listing_check_path(const char *path, struct err *e) MUST_CHECK;

// A string of a JSON object, cut to fit; "": there is none, or it holds control characters.
void listing_string(const char *json, size_t len_bytes, const char *key, char *out, size_t out_bytes);
// The "id" of each object of an array, "a, b, c", as many as fit; "": none.
void listing_ids(const char *json, size_t len_bytes, char *out, size_t out_bytes);
