// Flags of the sub-commands: tables, one parser, help in English and Chinese. Values go straight to the variables that
// a table points to, which hold the defaults before.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum flag_kind {
    FLAG_END,    // ends a table
    FLAG_BOOL,   // bool; takes no value
    FLAG_STRING, // const char *
    FLAG_U32,    // uint32_t, between min and max
    FLAG_I64,    // int64_t
    FLAG_F64,    // double, between min and max
    FLAG_BYTES,  // uint64_t: "8G", "512M", "4096"
    FLAG_U32S,   // struct flag_u32s: "4,4,4"
    FLAG_STRINGS // struct flag_strings: may be given several times
};

enum { FLAG_LIST_MAX = 64 };

struct flag_u32s {
    uint32_t n, value[FLAG_LIST_MAX];
};
struct flag_strings {
    uint32_t n;
    const char *value[FLAG_LIST_MAX];
};

struct flag {
    const char *name; // "--context" or "-n"
    enum flag_kind kind;
    void *value;
    double min, max; // of U32, I64 and F64; both 0: the type's own. Of BYTES min alone
    const char *arg; // how help names the value: "N", "TEXT"
    const char *en, *zh;
};

struct command {
    const char *name;
    const char *args; // "MODEL -p TEXT | --chat TEXT | --ids FILE"
    const char *en, *zh;
    int (*run)(const struct command *c, int argc, char **argv); // argv behind the name; returns the exit code
};

enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

// Fills the variables of all tables (NULL ends the list) and gathers what is no flag, in order, into rest (at most
// max_rest). "--" ends the flags. ERR_USAGE names the flag and what would be right; ERR_CANCELLED: --help was asked
// for and printed.
int flags_parse(const struct command *c, const struct flag *const *tables, int argc, char **argv, const char **rest,
                int max_rest, int *n_rest, struct err *e) MUST_CHECK;
// "name = value" lines of a file, as if they were flags given before those of the command line; '#' begins a comment.
// The values point into *text, which the caller frees when it is done with them, also after an error.
int flags_parse_file(const char *path, const struct flag *const *tables, char **text, struct err *e) MUST_CHECK;
// Prints the error as one line, control characters in it as '?', and returns the exit code for it (--help: 0).
int flags_fail(const struct command *c, const struct err *e);
// ERR_IO: something that was printed did not reach stdout.
int flags_check_stdout(struct err *e) MUST_CHECK;

bool flags_chinese(void); // by LC_ALL, LC_MESSAGES, LANG
static inline const char *flags_text(const char *en, const char *zh) { return flags_chinese() ? zh : en; }
