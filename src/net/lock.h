// A lock between processes on a state folder: two heads, or a head and `loom token create`, take turns. Thread-safe.
#pragma once
#include "base/err.h"
#include <stdbool.h>

// Takes <folder>/<name>, made if missing, with the folder. wait false: ERR_UNAVAILABLE at once if somebody has it.
int lock_take(const char *folder, const char *name, bool wait, int *fd, struct err *e) MUST_CHECK;
void lock_release(int fd); // -1 is fine
