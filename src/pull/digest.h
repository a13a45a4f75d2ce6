// What a hub says that a file hashes to, and what a file on the disk does hash to. Thread-safe.
#pragma once
#include "base/err.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum digest_kind {
    DIGEST_NONE,    // the hub did not say
    DIGEST_SHA256,  // of the file's bytes
    DIGEST_GIT_SHA1 // of the file as a git blob: "blob <size>", NUL, the bytes
};
enum { DIGEST_BYTES = 32, DIGEST_TEXT_BYTES = 80 };

struct digest {
    enum digest_kind kind;
    uint8_t bytes[DIGEST_BYTES]; // 32 or 20 of them count; the others are zero
};

// From exactly 64 or 40 hexadecimal digits, as the kind has it. false: something else, and *d is DIGEST_NONE.
bool digest_parse(struct digest *d, enum digest_kind kind, const char *hex);
// "sha256:<hex>", "git-sha1:<hex>", "none"; and back.
void digest_text(const struct digest *d, char out[DIGEST_TEXT_BYTES]);
bool digest_from_text(struct digest *d, const char *text);
bool digest_equal(const struct digest *a, const struct digest *b);

// Hashes a whole file. kind is not DIGEST_NONE. ERR_CANCELLED soon after *stop became true.
int digest_file(const char *path, enum digest_kind kind, const atomic_bool *stop, struct digest *out,
                struct err *e) MUST_CHECK;
