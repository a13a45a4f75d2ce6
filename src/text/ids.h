// A list of token ids born with its maximum. It owns its memory; not thread-safe.
#pragma once
#include "base/err.h"
#include <stdint.h>

struct ids {
    int32_t *data;
    size_t n, cap, max; // in ids
};

void ids_init(struct ids *l, size_t max);
void ids_fini(struct ids *l);
void ids_clear(struct ids *l); // keeps the memory
// ERR_LIMIT where max would be passed, ERR_NOMEM without memory; the list is then unchanged.
int ids_add(struct ids *l, int32_t id) MUST_CHECK;
