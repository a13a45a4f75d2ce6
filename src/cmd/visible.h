// Text that others wrote, for stdout: on a terminal it can neither move the cursor nor reach the clipboard; in a pipe
// the bytes stay what they are.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct visible {
    FILE *to;
    bool terminal;
    bool held; // the first byte of what may be a control character of two bytes
};

// terminal: whether to is one, see visible_stdout.
void visible_init(struct visible *v, FILE *to, bool terminal);
void visible_stdout(struct visible *v);
// Prints a piece of UTF-8, which may end within a character. Control characters other than newline and tab become
// visible: ESC is shown as "^[".
void visible_print(struct visible *v, const char *text, size_t len_bytes);
// The end of the text: prints what is held back.
void visible_end(struct visible *v);
