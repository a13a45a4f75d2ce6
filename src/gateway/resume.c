#include "gateway/resume.h"

#include <stdbool.h>
#include <string.h>

// An answer's id, up to `end`. False: it cannot be one.
static bool take_id(const char *text, const char *end, char id[RESUME_ID_BYTES]) {
    size_t n = (size_t)(end - text);
    if (n == 0 || n >= RESUME_ID_BYTES) return false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-') return false;
    }
    memcpy(id, text, n);
    id[n] = 0;
    return true;
}

static bool take_numbers(const char *at, struct resume *r) {
    for (;;) {
        uint64_t v = 0;
        size_t digits = 0;
        for (; at[digits] >= '0' && at[digits] <= '9'; digits++) {
            v = v * 10 + (uint64_t)(at[digits] - '0');
            if (digits == 9) return false;
        }
        if (digits == 0 || r->n == LIMIT_ANSWER_CHOICES) return false;
        r->n_events[r->n++] = (uint32_t)v;
        at += digits;
        if (!*at) return true;
        if (*at++ != '.') return false;
    }
}

int resume_parse(const char *text, struct resume *r, struct api_error *e) {
    *r = (struct resume){0};
    const char *colon = strchr(text, ':');
    if (colon && take_id(text, colon, r->id) && take_numbers(colon + 1, r)) return ERR_OK;
    return errors_set(e, 400, "invalid_value", "Last-Event-ID",
                      "'Last-Event-ID' must be the id of an event of a stream, as in chatcmpl-0123456789abcdef:17");
}
