// One helper process: /usr/bin/python3 with the embedded script, in a sandbox (no network, no files, bounded memory and
// time), that answers one framed request at a time over a socket. Not thread-safe; forks, so the caller's thread must
// live as long as the helper's work (the kernel ends the helper with it).
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct helper {
    pid_t pid; // 0: none runs
    int fd;
};

enum helper_status { // the first byte of an answer, as the script has it
    HELPER_OK,
    HELPER_BAD_REQUEST,
    HELPER_BAD_TEMPLATE,
    HELPER_TOO_LARGE,
    HELPER_NO_JINJA
};

// Waits until it is there. ERR_UNAVAILABLE: there is no python3 or no jinja2.
int helper_start(struct helper *h, struct err *e) MUST_CHECK;
void helper_stop(struct helper *h); // kills and reaps it; nothing if none runs

// Sends header (JSON) and body, waits for the answer: *answer of *n >= 1 bytes, a NUL behind it, is the
// caller's to free(). On every
// error the helper is stopped. ERR_USAGE: the deadline; ERR_IO: it died; ERR_FORMAT: an answer longer than max_bytes.
int helper_call(struct helper *h, const void *header, size_t header_bytes, const void *body, size_t body_bytes,
                size_t max_bytes, uint32_t deadline_ms, uint8_t **answer, size_t *n, struct err *e) MUST_CHECK;
