// Sizes of memory as people read them: in the unit that fits, and in those that flags take, where 47M means 47 MiB.
#pragma once
#include <stdint.h>

enum { SIZE_TEXT_BYTES = 24 };

// "47.3 MiB", "512 bytes"; returns out.
const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);
// The same, not below bytes: what is needed. Given back as a flag it is enough.
const char *size_text_up(uint64_t bytes, char out[SIZE_TEXT_BYTES]);
