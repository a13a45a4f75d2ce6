// What a model writes, on a terminal and in a pipe.
#include "cmd/visible.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// Printed byte by byte: pieces may end anywhere.
static void shows(bool terminal, const char *text, size_t len, const char *want, size_t want_len) {
    char *got = NULL;
    size_t got_len = 0;
    FILE *f = open_memstream(&got, &got_len);
    assert_non_null(f);
    struct visible v;
    visible_init(&v, f, terminal);
    for (size_t i = 0; i < len; i++) visible_print(&v, text + i, 1);
    visible_end(&v);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(got_len, want_len);
    assert_memory_equal(got, want, want_len);
    free(got);
}

#define SHOWS(terminal, text, want) shows(terminal, text, sizeof(text) - 1, want, sizeof(want) - 1)

static void a_terminal_sees_control_characters(void **state) {
    (void)state;
    SHOWS(true, "a\033]52;c;aGk=\007b", "a^[]52;c;aGk=^Gb");
    SHOWS(true, "\r\b\177\0\036", "^M^H^?^@^^");
    SHOWS(true,
          "\302\233"
          "31m\302\235",
          "^[[31m^[]");
}

static void a_terminal_sees_text_as_it_is(void **state) {
    (void)state;
    SHOWS(true, "two\nlines\tand 你好 \302\251 \303\233 \360\237\230\200",
          "two\nlines\tand 你好 \302\251 \303\233 \360\237\230\200");
    SHOWS(true, "cut off \302", "cut off \302");
    SHOWS(true, "\302\302\233", "\302^[[");
}

static void a_pipe_gets_the_bytes(void **state) {
    (void)state;
    SHOWS(false, "\033[31m\302\233\r\0\302", "\033[31m\302\233\r\0\302");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_terminal_sees_control_characters),
                                       cmocka_unit_test(a_terminal_sees_text_as_it_is),
                                       cmocka_unit_test(a_pipe_gets_the_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
