#include "text/ids.h"
#include <stdlib.h>

void ids_init(struct ids *l, size_t max) { *l = (struct ids){.max = max}; }

void ids_fini(struct ids *l) {
    free(l->data);
    *l = (struct ids){.max = l->max};
}

void ids_clear(struct ids *l) { l->n = 0; }

int ids_add(struct ids *l, int32_t id) {
    if (l->n == l->max) return ERR_LIMIT;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        if (cap > l->max) cap = l->max;
        int32_t *data = realloc(l->data, cap * sizeof *data);
        if (!data) return ERR_NOMEM;
        l->data = data;
        l->cap = cap;
    }
    l->data[l->n++] = id;
    return ERR_OK;
}
