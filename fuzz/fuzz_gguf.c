// Any bytes as the header of a GGUF file: refused with a text, or all that it says lies inside the input.
#include "base/err.h"
#include "gguf/gguf.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool inside(const uint8_t *data, size_t size, const void *p, uint64_t n) {
    const uint8_t *at = p;
    return at >= data && at <= data + size && n <= (uint64_t)(data + size - at);
}

static void look_at(const struct gguf_value *v) {
    const uint8_t *at = v->data;
    struct gguf_string s;
    volatile uint64_t sink = 0;
    for (uint64_t i = 0; i < v->n_items && i < 64; i++) {
        int64_t n;
        double d;
        bool b;
        if (gguf_item_integer(v, i, &n)) sink += (uint64_t)n;
        if (gguf_item_number(v, i, &d)) sink += d > 0;
        if (gguf_item_bool(v, i, &b)) sink += b;
    }
    while (gguf_next_string(v, &at, &s)) sink += s.len_bytes ? (uint64_t)s.text[s.len_bytes - 1] : 0;
    (void)sink;
    ASSERT(v->item_type != GGUF_STRING || at == v->data + v->data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf *g;
    struct err e;
    int rc = gguf_new(data, size, &g, &e);
    if (rc) {
        ASSERT(e.code == rc && e.text[0]);
        return 0;
    }
    ASSERT(gguf_data_offset(g) <= size);
    for (uint64_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        ASSERT(inside(data, size, v->key.text, v->key.len_bytes) && inside(data, size, v->data, v->data_bytes));
        look_at(v);
        char key[64];
        if (v->key.len_bytes >= sizeof key) continue;
        memcpy(key, v->key.text, v->key.len_bytes);
        key[v->key.len_bytes] = 0;
        ASSERT(strlen(key) < v->key.len_bytes || gguf_find(g, key) == v);
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        ASSERT(inside(data, size, t->name.text, t->name.len_bytes) && t->n_dims <= GGUF_DIMS);
    }
    gguf_free(g);
    return 0;
}
