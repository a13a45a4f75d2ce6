#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void err_write(struct err *e, int code, const char *fmt, ...) {
    if (!e) return;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
}

int err_prefix(struct err *e, const char *fmt, ...) {
    if (!e) return ERR_IO; // which code it was went with the text that nobody wanted; success it was not
    char old[ERR_TEXT_MAX];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof e->text ? (size_t)n : sizeof e->text - 1;
    snprintf(e->text + at, sizeof e->text - at, ": %s", old);
    return e->code;
}

const char *err_name(int code) {
    static const char *const names[] = {"ok",    "nomem", "io",  "not_found", "format",    "unsupported", "limit",
                                        "usage", "auth",  "net", "numeric",   "cancelled", "unavailable"};
    size_t i = (size_t)-code;
    return code <= 0 && i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

void err_assert_failed(const char *file, int line, const char *cond, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "loom: bug: %s:%d: %s does not hold.", file, line, cond);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}
