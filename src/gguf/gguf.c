// Reading the header. One cursor walks over the bytes once; what it finds is put into two tables, each of which is
// allocated only after its count was held against the bytes that are left.
#include "gguf/gguf_int.h"

#include <stdlib.h>

enum {
    STRING_MIN = 8,
    VALUE_MIN = STRING_MIN + 1 + 4 + 1,
    TENSOR_MIN = STRING_MIN + 1 + 4 + 4 + 8,
    SHOWN = 100 // characters of a name in an error
};

struct cursor {
    const uint8_t *at;
    uint64_t left;
};

static bool take(struct cursor *c, void *out, uint64_t n) {
    if (c->left < n) return false;
    memcpy(out, c->at, n);
    c->at += n;
    c->left -= n;
    return true;
}

static bool take_string(struct cursor *c, struct gguf_string *out) {
    uint64_t n;
    if (!take(c, &n, sizeof n) || n > c->left) return false;
    *out = (struct gguf_string){(const char *)c->at, n};
    c->at += n;
    c->left -= n;
    return true;
}

// Names go into error texts and logs: control characters would reach the terminal of whoever reads them.
static bool is_name(const struct gguf_string *s, uint64_t max) {
    if (s->len_bytes == 0 || s->len_bytes >= max) return false;
    for (uint64_t i = 0; i < s->len_bytes; i++)
        if ((unsigned char)s->text[i] < 0x20 || s->text[i] == 0x7f) return false;
    return true;
}

static int shown(const struct gguf_string *s) { return s->len_bytes < SHOWN ? (int)s->len_bytes : SHOWN; }

static int ends_in(const struct gguf_string *key, struct err *e) {
    return err_set(e, ERR_FORMAT, "key %.*s: the file ends in the middle of its value", shown(key), key->text);
}

static int read_strings(struct cursor *c, struct gguf_value *v, struct err *e) {
    if (v->n_items > c->left / STRING_MIN) return ends_in(&v->key, e);
    for (uint64_t i = 0; i < v->n_items; i++) {
        struct gguf_string unused;
        if (!take_string(c, &unused)) return ends_in(&v->key, e);
    }
    return ERR_OK;
}

static int read_type(struct cursor *c, const struct gguf_value *v, const char *what, enum gguf_type *out,
                     struct err *e) {
    uint32_t type;
    if (!take(c, &type, sizeof type)) return ends_in(&v->key, e);
    if (type >= GGUF_TYPES)
        return err_set(e, ERR_FORMAT, "key %.*s: %s %u does not exist", shown(&v->key), v->key.text, what, type);
    *out = (enum gguf_type)type;
    return ERR_OK;
}

static int read_value(struct cursor *c, struct gguf_value *v, uint64_t number, struct err *e) {
    if (!take_string(c, &v->key))
        return err_set(e, ERR_FORMAT, "the file ends in the middle of key %llu", (unsigned long long)number);
    if (!is_name(&v->key, LIMIT_GGUF_KEY))
        return err_set(e, ERR_FORMAT,
                       "key %llu: its name has %llu bytes or control characters; 1 to %d printable ones are right",
                       (unsigned long long)number, (unsigned long long)v->key.len_bytes, LIMIT_GGUF_KEY - 1);
    v->n_items = 1;
    int rc = read_type(c, v, "type", &v->type, e);
    v->item_type = v->type;
    if (!rc && v->type == GGUF_ARRAY) {
        rc = read_type(c, v, "item type", &v->item_type, e);
        if (!rc && v->item_type == GGUF_ARRAY)
            rc = err_set(e, ERR_UNSUPPORTED, "key %.*s: an array of arrays", shown(&v->key), v->key.text);
        if (!rc && !take(c, &v->n_items, sizeof v->n_items)) rc = ends_in(&v->key, e);
    }
    if (rc) return rc;
    v->data = c->at;
    if (v->item_type == GGUF_STRING) {
        rc = read_strings(c, v, e);
    } else {
        uint64_t size = gguf_item_bytes(v->item_type);
        if (v->n_items > c->left / size) return ends_in(&v->key, e);
        c->at += v->n_items * size;
        c->left -= v->n_items * size;
    }
    v->data_bytes = (uint64_t)(c->at - v->data);
    return rc;
}

static int by_key(const void *a, const void *b, void *arg) {
    const struct gguf_value *v = arg;
    const struct gguf_string *y = &v[*(const uint32_t *)b].key;
    return gguf_compare(&v[*(const uint32_t *)a].key, y->text, y->len_bytes);
}

static int by_name(const void *a, const void *b, void *arg) {
    const struct gguf_tensor *t = arg;
    const struct gguf_string *y = &t[*(const uint32_t *)b].name;
    return gguf_compare(&t[*(const uint32_t *)a].name, y->text, y->len_bytes);
}

// 0, 1, ... n - 1 in the order of cmp: unlike a hash table it takes the same time whoever chose the names. NULL: no
// memory.
static uint32_t *sorted(uint64_t n, int (*cmp)(const void *, const void *, void *), void *arg) {
    uint32_t *order = malloc((n + 1) * sizeof *order);
    if (!order) return NULL;
    for (uint64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    qsort_r(order, n, sizeof *order, cmp, arg);
    return order;
}

static int read_values(struct gguf *g, struct cursor *c, struct err *e) {
    if (g->n_values > LIMIT_GGUF_KEYS)
        return err_set(e, ERR_LIMIT, "%llu metadata keys; at most %d are read", (unsigned long long)g->n_values,
                       LIMIT_GGUF_KEYS);
    if (g->n_values > c->left / VALUE_MIN)
        return err_set(e, ERR_FORMAT, "%llu metadata keys do not fit into the %llu bytes of the file",
                       (unsigned long long)g->n_values, (unsigned long long)g->bytes);
    g->values = calloc(g->n_values + 1, sizeof *g->values);
    if (!g->values) return err_set(e, ERR_NOMEM, "no memory for %llu metadata keys", (unsigned long long)g->n_values);
    for (uint64_t i = 0; i < g->n_values; i++) {
        int rc = read_value(c, &g->values[i], i, e);
        if (rc) return rc;
    }
    g->by_key = sorted(g->n_values, by_key, g->values);
    if (!g->by_key) return err_set(e, ERR_NOMEM, "no memory for %llu metadata keys", (unsigned long long)g->n_values);
    for (uint64_t i = 1; i < g->n_values; i++)
        if (by_key(&g->by_key[i - 1], &g->by_key[i], g->values) == 0) {
            const struct gguf_string *key = &g->values[g->by_key[i]].key;
            return err_set(e, ERR_FORMAT, "key %.*s: there twice", shown(key), key->text);
        }
    return ERR_OK;
}

static int read_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t number, struct err *e) {
    if (!take_string(c, &t->name))
        return err_set(e, ERR_FORMAT, "the file ends in the middle of tensor %llu", (unsigned long long)number);
    if (!is_name(&t->name, LIMIT_TENSOR_NAME))
        return err_set(e, ERR_FORMAT,
                       "tensor %llu: its name has %llu bytes or control characters; 1 to %d printable ones are right",
                       (unsigned long long)number, (unsigned long long)t->name.len_bytes, LIMIT_TENSOR_NAME - 1);
    bool whole = take(c, &t->n_dims, sizeof t->n_dims);
    if (whole && t->n_dims > GGUF_DIMS)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.*s: %u dimensions; at most %d are read", shown(&t->name),
                       t->name.text, t->n_dims, GGUF_DIMS);
    for (uint32_t i = 0; i < GGUF_DIMS; i++) t->dim[i] = 1;
    for (uint32_t i = 0; whole && i < t->n_dims; i++) whole = take(c, &t->dim[i], sizeof t->dim[i]);
    whole = whole && take(c, &t->type, sizeof t->type) && take(c, &t->offset, sizeof t->offset);
    if (!whole)
        return err_set(e, ERR_FORMAT, "tensor %.*s: the file ends in the middle of its description", shown(&t->name),
                       t->name.text);
    return ERR_OK;
}

static int read_tensors(struct gguf *g, struct cursor *c, struct err *e) {
    if (g->n_tensors > LIMIT_TENSORS)
        return err_set(e, ERR_LIMIT, "%llu tensors; at most %d are read", (unsigned long long)g->n_tensors,
                       LIMIT_TENSORS);
    if (g->n_tensors > c->left / TENSOR_MIN)
        return err_set(e, ERR_FORMAT, "%llu tensors do not fit into the %llu bytes of the file",
                       (unsigned long long)g->n_tensors, (unsigned long long)g->bytes);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    if (!g->tensors) return err_set(e, ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)g->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        int rc = read_tensor(c, &g->tensors[i], i, e);
        if (rc) return rc;
    }
    uint32_t *order = sorted(g->n_tensors, by_name, g->tensors);
    if (!order) return err_set(e, ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)g->n_tensors);
    int rc = ERR_OK;
    for (uint64_t i = 1; i < g->n_tensors && !rc; i++)
        if (by_name(&order[i - 1], &order[i], g->tensors) == 0) {
            const struct gguf_string *name = &g->tensors[order[i]].name;
            rc = err_set(e, ERR_FORMAT, "tensor %.*s: there twice", shown(name), name->text);
        }
    free(order);
    return rc;
}

// Data begins at the next multiple of the alignment; a file that holds no tensors may end before that.
static int place_data(struct gguf *g, const struct cursor *c, struct err *e) {
    g->alignment = GGUF_ALIGNMENT;
    int rc = gguf_get_u32(g, "general.alignment", 8, LIMIT_GGUF_ALIGNMENT, &g->alignment, e);
    if (rc) return rc;
    if (g->alignment & (g->alignment - 1))
        return err_set(e, ERR_FORMAT, "general.alignment is %u; a power of two is right", g->alignment);
    uint64_t end = g->bytes - c->left, mask = g->alignment - 1;
    g->data_offset = (end + mask) & ~mask;
    if (g->data_offset <= g->bytes) return ERR_OK;
    if (g->n_tensors) return err_set(e, ERR_FORMAT, "the file ends where the tensors' data should begin");
    g->data_offset = g->bytes;
    return ERR_OK;
}

static int read_start(struct gguf *g, struct cursor *c, struct err *e) {
    char magic[4];
    if (!take(c, magic, sizeof magic) || memcmp(magic, "GGUF", sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "not a GGUF file: it does not begin with \"GGUF\"");
    if (!take(c, &g->version, sizeof g->version))
        return err_set(e, ERR_FORMAT, "the file ends in the middle of its header");
    if (g->version && !(g->version & 0xffff))
        return err_set(e, ERR_UNSUPPORTED, "a big-endian GGUF file; only little-endian ones are read");
    if (g->version < 2 || g->version > 3)
        return err_set(e, ERR_UNSUPPORTED, "GGUF version %u; versions 2 and 3 are read%s", g->version,
                       g->version == 1 ? " (a file this old has to be converted anew)" : "");
    if (!take(c, &g->n_tensors, sizeof g->n_tensors) || !take(c, &g->n_values, sizeof g->n_values))
        return err_set(e, ERR_FORMAT, "the file ends in the middle of its header");
    return ERR_OK;
}

int gguf_new(const uint8_t *data, uint64_t bytes, struct gguf **out, struct err *e) {
    struct gguf *g = calloc(1, sizeof *g);
    if (!g) return err_set(e, ERR_NOMEM, "no memory for a GGUF header");
    g->data = data;
    g->bytes = bytes;
    struct cursor c = {data, bytes};
    int rc = read_start(g, &c, e);
    if (!rc) rc = read_values(g, &c, e);
    if (!rc) rc = read_tensors(g, &c, e);
    if (!rc) rc = place_data(g, &c, e);
    if (rc) {
        gguf_free(g);
        return rc;
    }
    *out = g;
    return ERR_OK;
}

void gguf_free(struct gguf *g) {
    if (!g) return;
    free(g->values);
    free(g->tensors);
    free(g->by_key);
    free(g);
}

uint32_t gguf_version(const struct gguf *g) { return g->version; }
uint64_t gguf_data_offset(const struct gguf *g) { return g->data_offset; }
uint32_t gguf_alignment(const struct gguf *g) { return g->alignment; }
uint64_t gguf_n_values(const struct gguf *g) { return g->n_values; }
uint64_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }

const struct gguf_value *gguf_value_at(const struct gguf *g, uint64_t i) {
    ASSERT(i < g->n_values);
    return &g->values[i];
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i) {
    ASSERT(i < g->n_tensors);
    return &g->tensors[i];
}
