// Errors that the world can cause: one table of codes, one line of text for the edge that tells it.
//
// A function that can fail for such a reason returns an int from enum err_code (0 is success) and is marked
// MUST_CHECK. If the caller can use an explanation it also takes a struct err: the function fills it once, at
// the place where the file, the field and the right value are known, and everybody above hands it on as it is.
// struct err needs no init and owns nothing. Functions here are thread-safe on distinct struct err.
#pragma once
#include <stdarg.h>
#include <stddef.h>

#define MUST_CHECK             __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

enum err_code {
    ERR_OK = 0,
    ERR_NOMEM = -1,       // an allocation failed, or a buffer reached its maximum
    ERR_IO = -2,          // the disk or the operating system said no
    ERR_NOT_FOUND = -3,   // a file, tensor, node or sequence that does not exist
    ERR_FORMAT = -4,      // foreign bytes that break their format
    ERR_UNSUPPORTED = -5, // well formed, but not something that this build can do
    ERR_LIMIT = -6,       // larger than a limit in limits.h, or than the memory given
    ERR_USAGE = -7,       // a flag, parameter or configuration value that makes no sense
    ERR_AUTH = -8,        // a peer or client that did not prove who it is
    ERR_NET = -9,         // a link broke, or never came up
    ERR_NUMERIC = -10,    // NaN or Inf where the contract forbids it (fault flag, NUMERICS 1.5)
    ERR_CANCELLED = -11,  // the one who asked went away
    ERR_UNAVAILABLE = -12 // nothing is wrong with the request, but no route can serve it now
};

enum { ERR_TEXT_MAX = 512 };

struct err {
    int code; // enum err_code
    char text[ERR_TEXT_MAX];
};

// Writes code and text (cut at ERR_TEXT_MAX) into e, which may be NULL, and returns code. A macro, so that the compiler
// knows what comes back, and can prove that a failed call's outputs are not used.
#define err_set(e, code, ...)                                                                                          \
    ({                                                                                                                 \
        const int err_set_code = (code);                                                                               \
        err_write((e), err_set_code, __VA_ARGS__);                                                                     \
        err_set_code;                                                                                                  \
    })
void err_write(struct err *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

// Puts "fmt: " in front of the text that e holds already; the code stays. Returns e->code; ERR_IO if e is NULL.
int err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

// A short name of a code for logs and metrics ("nomem", "format"); never NULL.
const char *err_name(int code);

// A broken promise of our own code: prints file, line, expression and text, then aborts. On in release builds.
#define ASSERT(cond, ...)                                                                                              \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) err_assert_failed(__FILE__, __LINE__, #cond, " " __VA_ARGS__);               \
    } while (0)
void err_assert_failed(const char *file, int line, const char *cond, const char *fmt, ...) __attribute__((noreturn))
PRINTF_LIKE(4, 5);
