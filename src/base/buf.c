#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max_bytes) { *b = (struct buf){.max_bytes = max_bytes}; }

void buf_fini(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b) { b->len_bytes = 0; }

int buf_reserve(struct buf *b, size_t more_bytes) {
    if (more_bytes > b->max_bytes - b->len_bytes) return ERR_NOMEM;
    size_t need = b->len_bytes + more_bytes;
    if (need <= b->cap_bytes) return ERR_OK;
    size_t cap = b->cap_bytes ? b->cap_bytes : 256;
    while (cap < need) cap = cap > b->max_bytes / 2 ? b->max_bytes : cap * 2;
    uint8_t *p = realloc(b->data, cap);
    if (!p) return ERR_NOMEM;
    b->data = p;
    b->cap_bytes = cap;
    return ERR_OK;
}

int buf_add(struct buf *b, const void *data, size_t len_bytes) {
    if (buf_reserve(b, len_bytes)) return ERR_NOMEM;
    if (len_bytes) memcpy(b->data + b->len_bytes, data, len_bytes);
    b->len_bytes += len_bytes;
    return ERR_OK;
}

int buf_addf(struct buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int rc = n < 0 || buf_reserve(b, (size_t)n + 1) ? ERR_NOMEM : ERR_OK;
    if (!rc) {
        vsnprintf((char *)b->data + b->len_bytes, (size_t)n + 1, fmt, again);
        b->len_bytes += (size_t)n;
    }
    va_end(again);
    return rc;
}

int buf_add_json_string(struct buf *b, const char *s, size_t len_bytes) {
    static const char hex[] = "0123456789abcdef";
    size_t start = b->len_bytes;
    int rc = buf_add(b, "\"", 1);
    for (size_t i = 0; i < len_bytes && !rc; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            rc = buf_add(b, (char[]){'\\', (char)c}, 2);
        } else if (c == '\n') {
            rc = buf_add(b, "\\n", 2);
        } else if (c < 0x20 || c == 0x7f) {
            rc = buf_add(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
        } else {
            rc = buf_add(b, &c, 1);
        }
    }
    if (!rc) rc = buf_add(b, "\"", 1);
    if (rc) b->len_bytes = start;
    return rc;
}

const char *buf_cstr(struct buf *b) {
    if (buf_reserve(b, 1)) return NULL;
    b->data[b->len_bytes] = 0;
    return (const char *)b->data;
}
