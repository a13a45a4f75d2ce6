// The log: one line an event on stderr, "2026-11-30T09:00:00.123Z level area: text". Thread-safe: a line is one
// write(2). Levels are set once by cmd/ before any thread starts.
#pragma once
#include "base/err.h"
#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
bool log_shows(enum log_level level);
// Names this process in each line ("node-2"); copied, cut at 31 bytes. NULL or "" names nothing.
void log_set_name(const char *name);
void log_write(enum log_level level, const char *area, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define LOG_E(area, ...) log_write(LOG_ERROR, area, __VA_ARGS__)
#define LOG_W(area, ...) log_write(LOG_WARN, area, __VA_ARGS__)
#define LOG_I(area, ...) log_write(LOG_INFO, area, __VA_ARGS__)
#define LOG_D(area, ...) log_write(LOG_DEBUG, area, __VA_ARGS__)
