#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level max_level = LOG_INFO;
static char process_name[32];

void log_set_level(enum log_level level) { max_level = level; }

bool log_shows(enum log_level level) { return level <= max_level; }

void log_set_name(const char *name) { snprintf(process_name, sizeof process_name, "%s", name ? name : ""); }

void log_write(enum log_level level, const char *area, const char *fmt, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if (level > max_level) return;
    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    int k = snprintf(line + n, sizeof line - n, ".%03ldZ %s %s%s%s: ", ts.tv_nsec / 1000000, names[level], process_name,
                     process_name[0] ? " " : "", area);
    n += (size_t)k;
    va_list ap;
    va_start(ap, fmt);
    k = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    n += k < 0 ? 0 : (size_t)k < sizeof line - n - 1 ? (size_t)k : sizeof line - n - 2;
    for (size_t i = 0; i < n; i++)
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' '; // foreign text must not forge a second line
    line[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, n); // nobody is left to tell when stderr is gone
    (void)ignored;
}
