// A byte buffer born with its maximum. It owns its memory; not thread-safe.
#pragma once
#include "base/err.h"
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len_bytes, cap_bytes, max_bytes;
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b); // keeps the memory
// All of these return ERR_NOMEM, with the buffer unchanged, where max_bytes or the memory does not suffice.
int buf_reserve(struct buf *b, size_t more_bytes) MUST_CHECK;
int buf_add(struct buf *b, const void *data, size_t len_bytes) MUST_CHECK;
int buf_addf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3) MUST_CHECK;
// Adds s as a JSON string with its quotes. s must be UTF-8.
int buf_add_json_string(struct buf *b, const char *s, size_t len_bytes) MUST_CHECK;
// A NUL behind the data, not counted in len_bytes; NULL if there is no room for it.
const char *buf_cstr(struct buf *b);
