// Beginnings and endings of texts.
#pragma once
#include <stdbool.h>
#include <string.h>

static inline bool text_begins(const char *s, const char *head) { return strncmp(s, head, strlen(head)) == 0; }

static inline bool text_ends(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}
