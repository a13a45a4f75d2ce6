// Texts that stand in logs, on terminals and in JSON: UTF-8 without control characters.
#include "wire/control.h"

#include <string.h>

// Bytes of the character at s; 0: not UTF-8 in its shortest form, a surrogate, or a control character.
static size_t char_bytes(const uint8_t *s) {
    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t c = s[0] & (0xffu >> (n + 1));
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++) { // a NUL ends it here
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000}; // 0x80 to 0x9f are controls too
    return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

size_t control_text_prefix(const char *text, size_t max_bytes) {
    const uint8_t *s = (const uint8_t *)text;
    size_t at = 0;
    for (size_t n = char_bytes(s); n && at + n <= max_bytes; n = char_bytes(s + at)) at += n;
    return at;
}

void control_text_clean(const char *from, char *to, size_t to_bytes) {
    size_t at = 0;
    while (*from && at + 1 < to_bytes) {
        size_t n = control_text_prefix(from, to_bytes - 1 - at);
        memcpy(to + at, from, n);
        at += n;
        from += n;
        if (!*from || at + 1 >= to_bytes) break;
        if (char_bytes((const uint8_t *)from)) break; // good, but there is no room for all of it
        to[at++] = (uint8_t)*from < 0x20 || *from == 0x7f ? ' ' : '?';
        from++;
    }
    to[at] = 0;
}
