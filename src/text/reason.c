#include "text/reason.h"
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static const char open_tag[] = "<think>", close_tag[] = "\n</think>"; // the newline is optional
enum { OPEN_N = sizeof open_tag - 1, CLOSE_N = sizeof close_tag - 1, NEWLINES_BEHIND = 2 };

static bool ends_with(const char *text, size_t n, const char *tag) {
    size_t k = strlen(tag);
    return n >= k && memcmp(text + n - k, tag, k) == 0;
}

void reason_init(struct reason *r, const char *prompt, size_t len_bytes) {
    *r = (struct reason){.state = REASON_CONTENT};
    if (!prompt) return;
    size_t n = len_bytes;
    while (n > 0 && isspace((unsigned char)prompt[n - 1])) n--;
    if (ends_with(prompt, n, close_tag + 1)) return;
    if (!ends_with(prompt, n, open_tag))
        r->state = REASON_START;
    else
        r->state = n == len_bytes ? REASON_OPENED : REASON_THINKING;
}

static int start(struct reason *r, char c, struct buf *content) {
    r->held[r->held_n++] = c;
    size_t spaces = 0;
    while (spaces < r->held_n && isspace((unsigned char)r->held[spaces])) spaces++;
    size_t n = r->held_n - spaces;
    if (n == OPEN_N && memcmp(r->held + spaces, open_tag, n) == 0) {
        r->state = REASON_OPENED;
        r->held_n = 0;
        return ERR_OK;
    }
    if (n < OPEN_N && memcmp(r->held + spaces, open_tag, n) == 0 && r->held_n < REASON_HELD_MAX) return ERR_OK;
    r->state = REASON_CONTENT;
    n = r->held_n;
    r->held_n = 0;
    return buf_add(content, r->held, n);
}

// held is always a beginning of close_tag, with or without its newline.
static int think(struct reason *r, char c, struct buf *reasoning) {
    r->held[r->held_n++] = c;
    size_t drop = 0; // bytes of held that cannot belong to the tag
    for (; drop < r->held_n; drop++) {
        size_t n = r->held_n - drop;
        bool with = n <= CLOSE_N && memcmp(r->held + drop, close_tag, n) == 0;
        bool without = n <= CLOSE_N - 1 && memcmp(r->held + drop, close_tag + 1, n) == 0;
        if ((with && n == CLOSE_N) || (without && n == CLOSE_N - 1)) {
            r->state = REASON_CLOSED;
            r->newlines_left = NEWLINES_BEHIND;
            r->held_n = 0;
            return buf_add(reasoning, r->held, drop);
        }
        if (with || without) break;
    }
    int rc = buf_add(reasoning, r->held, drop);
    r->held_n -= (uint32_t)drop;
    memmove(r->held, r->held + drop, r->held_n);
    return rc;
}

int reason_feed(struct reason *r, const char *text, size_t len_bytes, struct buf *reasoning, struct buf *content) {
    int rc = ERR_OK;
    for (size_t i = 0; i < len_bytes && !rc; i++) {
        char c = text[i];
        switch (r->state) {
        case REASON_START:
            rc = start(r, c, content);
            break;
        case REASON_OPENED:
            r->state = REASON_THINKING;
            if (c != '\n') rc = think(r, c, reasoning);
            break;
        case REASON_THINKING:
            rc = think(r, c, reasoning);
            break;
        case REASON_CLOSED:
            if (c == '\n' && r->newlines_left-- > 0) break;
            r->state = REASON_CONTENT;
            return buf_add(content, text + i, len_bytes - i);
        case REASON_CONTENT:
            return buf_add(content, text + i, len_bytes - i);
        }
    }
    return rc;
}

int reason_flush(struct reason *r, struct buf *reasoning, struct buf *content) {
    size_t n = r->held_n;
    r->held_n = 0;
    if (r->state == REASON_START) r->state = REASON_CONTENT;
    return buf_add(r->state == REASON_THINKING ? reasoning : content, r->held, n);
}
