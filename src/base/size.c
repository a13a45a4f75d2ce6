#include "base/size.h"

#include <math.h>
#include <stdio.h>

static const char *write_text(uint64_t bytes, double tenths(double), char out[SIZE_TEXT_BYTES]) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    enum { N_UNITS = sizeof units / sizeof units[0] };
    if (bytes < 1024) {
        snprintf(out, SIZE_TEXT_BYTES, bytes == 1 ? "%u byte" : "%u bytes", (unsigned)bytes);
        return out;
    }
    int u = 0;
    double v = (double)bytes / 1024;
    // What is rounded to 1024 is 1.0 of the next.
    for (; tenths(v * 10) >= 10240 && u + 1 < N_UNITS; u++) v /= 1024;
    snprintf(out, SIZE_TEXT_BYTES, "%.1f %s", tenths(v * 10) / 10, units[u]);
    return out;
}

const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]) { return write_text(bytes, round, out); }
const char *size_text_up(uint64_t bytes, char out[SIZE_TEXT_BYTES]) { return write_text(bytes, ceil, out); }
