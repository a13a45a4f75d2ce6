#include "gguf/gguf_int.h"

#include "base/map.h"
#include <stdlib.h>

struct gguf_writer {
    struct buf values, tensors; // as the file will have them
    struct strmap keys, names;
    uint64_t n_values, n_tensors, data_bytes;
};

int gguf_writer_new(struct gguf_writer **out) {
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (!w) return ERR_NOMEM;
    buf_init(&w->values, LIMIT_GGUF_HEADER);
    buf_init(&w->tensors, LIMIT_GGUF_HEADER);
    // Names of a file that is copied were chosen by a stranger, but he cannot choose many: sorting read them.
    strmap_init(&w->keys, LIMIT_GGUF_KEYS, LIMIT_GGUF_HEADER, (uint64_t)(uintptr_t)w);
    strmap_init(&w->names, LIMIT_TENSORS, LIMIT_GGUF_HEADER, (uint64_t)(uintptr_t)w);
    *out = w;
    return ERR_OK;
}

void gguf_writer_free(struct gguf_writer *w) {
    if (!w) return;
    buf_fini(&w->values);
    buf_fini(&w->tensors);
    strmap_fini(&w->keys);
    strmap_fini(&w->names);
    free(w);
}

static int add_name(struct strmap *there, const char *name, size_t len) {
    uint32_t unused;
    if (strmap_get(there, name, len, &unused)) return ERR_FORMAT;
    return strmap_put(there, name, len, 1);
}

static int add_string(struct buf *b, const char *text, uint64_t len) {
    int rc = buf_add(b, &len, sizeof len);
    return rc ? rc : buf_add(b, text, len);
}

// The key, the type, for an array the item type and count, then the items. A failure leaves the buffer as it was.
static int put(struct gguf_writer *w, const struct gguf_value *v) {
    const size_t before = w->values.len_bytes;
    const uint32_t type = v->type, item_type = v->item_type;
    int rc = add_string(&w->values, v->key.text, v->key.len_bytes);
    if (!rc) rc = buf_add(&w->values, &type, sizeof type);
    if (!rc && v->type == GGUF_ARRAY) {
        rc = buf_add(&w->values, &item_type, sizeof item_type);
        if (!rc) rc = buf_add(&w->values, &v->n_items, sizeof v->n_items);
    }
    if (!rc) rc = buf_add(&w->values, v->data, v->data_bytes);
    if (!rc) rc = add_name(&w->keys, v->key.text, v->key.len_bytes);
    if (rc)
        w->values.len_bytes = before;
    else
        w->n_values++;
    return rc;
}

static int put_one(struct gguf_writer *w, const char *key, enum gguf_type type, const void *data) {
    return put(w, &(struct gguf_value){.key = {key, strlen(key)},
                                       .type = type,
                                       .item_type = type,
                                       .n_items = 1,
                                       .data = data,
                                       .data_bytes = gguf_item_bytes(type)});
}

int gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v) { return put_one(w, key, GGUF_U32, &v); }
int gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v) { return put_one(w, key, GGUF_U64, &v); }
int gguf_put_f32(struct gguf_writer *w, const char *key, float v) { return put_one(w, key, GGUF_F32, &v); }

int gguf_put_bool(struct gguf_writer *w, const char *key, bool v) {
    const uint8_t byte = v;
    return put_one(w, key, GGUF_BOOL, &byte);
}

static int put_strings(struct gguf_writer *w, struct gguf_value *v, const struct gguf_string *s) {
    struct buf b;
    buf_init(&b, LIMIT_GGUF_HEADER);
    int rc = ERR_OK;
    for (uint64_t i = 0; i < v->n_items && !rc; i++) rc = add_string(&b, s[i].text, s[i].len_bytes);
    v->data = b.data;
    v->data_bytes = b.len_bytes;
    if (!rc) rc = put(w, v);
    buf_fini(&b);
    return rc;
}

int gguf_put_string(struct gguf_writer *w, const char *key, const char *text, size_t len_bytes) {
    struct gguf_value v = {.key = {key, strlen(key)}, .type = GGUF_STRING, .item_type = GGUF_STRING, .n_items = 1};
    return put_strings(w, &v, &(struct gguf_string){text, len_bytes});
}

int gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type item_type, const void *items, uint64_t n) {
    ASSERT(item_type != GGUF_ARRAY);
    struct gguf_value v = {.key = {key, strlen(key)}, .type = GGUF_ARRAY, .item_type = item_type, .n_items = n};
    if (item_type == GGUF_STRING) return put_strings(w, &v, items);
    v.data = items;
    v.data_bytes = n * gguf_item_bytes(item_type);
    return put(w, &v);
}

int gguf_put_value(struct gguf_writer *w, const struct gguf_value *v) {
    static const char own[] = "general.alignment";
    if (gguf_compare(&v->key, own, sizeof own - 1) == 0) return ERR_OK;
    return put(w, v);
}

static uint64_t pad(uint64_t n) { return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT; }

int gguf_put_tensor(struct gguf_writer *w, const char *name, const uint64_t *dim, uint32_t n_dims, uint32_t type,
                    uint64_t bytes, uint64_t *offset) {
    ASSERT(n_dims <= GGUF_DIMS);
    const size_t before = w->tensors.len_bytes;
    int rc = add_string(&w->tensors, name, strlen(name));
    if (!rc) rc = buf_add(&w->tensors, &n_dims, sizeof n_dims);
    if (!rc) rc = buf_add(&w->tensors, dim, n_dims * sizeof *dim);
    if (!rc) rc = buf_add(&w->tensors, &type, sizeof type);
    if (!rc) rc = buf_add(&w->tensors, &w->data_bytes, sizeof w->data_bytes);
    if (!rc) rc = add_name(&w->names, name, strlen(name));
    if (rc) {
        w->tensors.len_bytes = before;
        return rc;
    }
    *offset = w->data_bytes;
    w->data_bytes += pad(bytes);
    w->n_tensors++;
    return ERR_OK;
}

int gguf_writer_header(const struct gguf_writer *w, struct buf *out) {
    static const uint8_t zero[GGUF_ALIGNMENT];
    const uint32_t version = 3;
    const size_t before = out->len_bytes;
    int rc = buf_add(out, "GGUF", 4);
    if (!rc) rc = buf_add(out, &version, sizeof version);
    if (!rc) rc = buf_add(out, &w->n_tensors, sizeof w->n_tensors);
    if (!rc) rc = buf_add(out, &w->n_values, sizeof w->n_values);
    if (!rc) rc = buf_add(out, w->values.data, w->values.len_bytes);
    if (!rc) rc = buf_add(out, w->tensors.data, w->tensors.len_bytes);
    const size_t bytes = out->len_bytes - before;
    return rc ? rc : buf_add(out, zero, pad(bytes) - bytes);
}

uint64_t gguf_writer_data_bytes(const struct gguf_writer *w) { return w->data_bytes; }
