// Stop strings in a stream of text, across the borders of tokens: text goes in, what is safe to show comes out. The
// longest end that may still become a stop string is held back. The string that is complete first wins, and of those
// the longest; how the text was cut into calls makes no difference.
// Thread-confined; no allocation but in stop_new and in the caller's buffer.
#pragma once
#include "base/buf.h"
#include "base/limits.h"
#include <stdbool.h>

struct stop;

// Copies the strings. ERR_USAGE names what is wrong: none may be empty, longer than LIMIT_STOP_BYTES or not UTF-8; at
// most LIMIT_STOP_STRINGS (0 is fine: everything passes). ERR_NOMEM.
int stop_new(const char *const *strings, const size_t *len_bytes, uint32_t n, struct stop **s,
             struct err *e) MUST_CHECK;
void stop_free(struct stop *s);
void stop_reset(struct stop *s);

// Adds to out the text that is safe; text must be whole characters. *matched: a stop string is complete, what stood
// before it was added, it and all behind it is dropped, and later calls add nothing. ERR_NOMEM: out is full.
int stop_feed(struct stop *s, const char *text, size_t len_bytes, struct buf *out, bool *matched) MUST_CHECK;
// The end of the answer: adds what was held.
int stop_flush(struct stop *s, struct buf *out) MUST_CHECK;
// The index of the string that matched, -1 before.
int stop_which(const struct stop *s);
