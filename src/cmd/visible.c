#include "cmd/visible.h"

#include <unistd.h>

// U+0080 to U+009F in UTF-8 are this byte and their own number: "\302\233" begins a sequence as "\033[" does.
enum { C1_FIRST = 0xc2 };

void visible_init(struct visible *v, FILE *to, bool terminal) { *v = (struct visible){.to = to, .terminal = terminal}; }

void visible_stdout(struct visible *v) { visible_init(v, stdout, isatty(STDOUT_FILENO) == 1); }

static void print_byte(struct visible *v, unsigned char c) {
    const bool was_held = v->held;
    v->held = false;
    if (was_held && c >= 0x80 && c < 0xa0) {
        fprintf(v->to, "^[%c", c - 0x40);
        return;
    }
    if (was_held) fputc(C1_FIRST, v->to);
    if (c == C1_FIRST)
        v->held = true;
    else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
        fprintf(v->to, "^%c", c ^ 0x40);
    else
        fputc(c, v->to);
}

void visible_print(struct visible *v, const char *text, size_t len_bytes) {
    if (!v->terminal) {
        fwrite(text, 1, len_bytes, v->to);
        return;
    }
    for (size_t i = 0; i < len_bytes; i++) print_byte(v, (unsigned char)text[i]);
}

void visible_end(struct visible *v) {
    if (v->held) fputc(C1_FIRST, v->to);
    v->held = false;
}
