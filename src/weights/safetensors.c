// safetensors: u64 length of the header, the header (a JSON object: name -> dtype, shape, data_offsets), then the data.
// Offsets count from the start of the data. As in the reference implementation the tensors must tile the data: no gap
// in which something could hide, no overlap, nothing behind the last one.
#include "weights/collection.h"

#include "base/limits.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

struct span {
    uint64_t begin, end;
    const char *name;
};

static uint64_t read_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

// Control characters would let a file write to the terminal of whoever reads the error.
static int check_name(const char *name, struct err *e) {
    size_t len = strlen(name);
    if (len == 0 || len >= LIMIT_TENSOR_NAME)
        return err_set(e, ERR_FORMAT, "a tensor's name has %zu bytes; 1 to %d are right", len, LIMIT_TENSOR_NAME - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return err_set(e, ERR_FORMAT, "a tensor's name has a control character");
    return ERR_OK;
}

static int read_type(const char *name, const json_t *v, enum dtype *type, struct err *e) {
    const char *s = json_string_value(v);
    if (!s) return err_set(e, ERR_FORMAT, "tensor %s: dtype is not a string", name);
    int t = dtype_from_name(s);
    if (t < 0 || dtype_info((enum dtype)t)->block_values != 1)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: dtype %.32s is not one that this build reads", name, s);
    *type = (enum dtype)t;
    return ERR_OK;
}

static int read_shape(const char *name, const json_t *v, struct tensor *t, struct err *e) {
    if (!json_is_array(v)) return err_set(e, ERR_FORMAT, "tensor %s: shape is not an array", name);
    size_t n = json_array_size(v);
    if (n > TENSOR_DIMS)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: %zu dimensions; at most %d are read", name, n, TENSOR_DIMS);
    t->n_dims = (uint32_t)n;
    t->bytes = dtype_info(t->type)->block_bytes;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(v, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return err_set(e, ERR_FORMAT, "tensor %s: shape[%zu] is not a number >= 0", name, i);
        t->dim[i] = (uint64_t)json_integer_value(d);
        if (__builtin_mul_overflow(t->bytes, t->dim[i], &t->bytes))
            return err_set(e, ERR_FORMAT, "tensor %s: the shape has more than 2^64 bytes", name);
    }
    return ERR_OK;
}

static int read_offsets(const char *name, const json_t *v, uint64_t data_bytes, struct span *s, struct err *e) {
    const json_t *b = json_array_get(v, 0), *x = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(x))
        return err_set(e, ERR_FORMAT, "tensor %s: data_offsets is not [begin, end]", name);
    if (json_integer_value(b) < 0 || json_integer_value(x) < json_integer_value(b) ||
        (uint64_t)json_integer_value(x) > data_bytes)
        return err_set(e, ERR_FORMAT, "tensor %s: data_offsets [%lld, %lld] are not inside the %llu bytes of data",
                       name, (long long)json_integer_value(b), (long long)json_integer_value(x),
                       (unsigned long long)data_bytes);
    s->name = name;
    s->begin = (uint64_t)json_integer_value(b);
    s->end = (uint64_t)json_integer_value(x);
    return ERR_OK;
}

static int read_tensor(const char *name, const json_t *v, const uint8_t *data, uint64_t data_bytes, struct tensor *t,
                       struct span *s, struct err *e) {
    int rc = check_name(name, e);
    if (rc) return rc;
    if (!json_is_object(v)) return err_set(e, ERR_FORMAT, "tensor %s: not an object", name);
    memset(t, 0, sizeof *t);
    t->name = name;
    if ((rc = read_type(name, json_object_get(v, "dtype"), &t->type, e))) return rc;
    if ((rc = read_shape(name, json_object_get(v, "shape"), t, e))) return rc;
    if ((rc = read_offsets(name, json_object_get(v, "data_offsets"), data_bytes, s, e))) return rc;
    if (s->end - s->begin != t->bytes)
        return err_set(e, ERR_FORMAT, "tensor %s: %llu bytes of data, but its shape needs %llu", name,
                       (unsigned long long)(s->end - s->begin), (unsigned long long)t->bytes);
    t->data = data + s->begin;
    return ERR_OK;
}

static int span_compare(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int check_tiles(struct span *s, size_t n, uint64_t data_bytes, struct err *e) {
    if (n) qsort(s, n, sizeof *s, span_compare);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i].begin != at)
            return err_set(e, ERR_FORMAT, "tensor %s: begins at %llu; the one before ends at %llu", s[i].name,
                           (unsigned long long)s[i].begin, (unsigned long long)at);
        at = s[i].end;
    }
    if (at != data_bytes)
        return err_set(e, ERR_FORMAT, "the tensors end at byte %llu of %llu of data", (unsigned long long)at,
                       (unsigned long long)data_bytes);
    return ERR_OK;
}

static int read_header(struct tensors *t, json_t *root, const uint8_t *data, uint64_t data_bytes, struct err *e) {
    size_t n = 0;
    struct span *spans = calloc(json_object_size(root) + 1, sizeof *spans);
    if (!spans) return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    int rc = ERR_OK;
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v) {
        struct tensor one;
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(v)) rc = err_set(e, ERR_FORMAT, "__metadata__ is not an object");
        } else if (!(rc = read_tensor(name, v, data, data_bytes, &one, &spans[n], e))) {
            n++;
            rc = tensors_add(t, &one, e);
        }
        if (rc) break;
    }
    if (!rc) rc = check_tiles(spans, n, data_bytes, e);
    free(spans);
    return rc;
}

int safetensors_read(struct tensors *t, const uint8_t *data, uint64_t bytes, struct err *e) {
    if (bytes < LENGTH_BYTES)
        return err_set(e, ERR_FORMAT, "%llu bytes are no safetensors file", (unsigned long long)bytes);
    uint64_t head = read_u64(data);
    if (head > LIMIT_SAFETENSORS_HEADER || head > bytes - LENGTH_BYTES)
        return err_set(e, ERR_FORMAT, "header of %llu bytes; the file has %llu, and %d are allowed",
                       (unsigned long long)head, (unsigned long long)bytes, LIMIT_SAFETENSORS_HEADER);
    json_error_t why;
    json_t *root = json_loadb((const char *)data + LENGTH_BYTES, head, JSON_REJECT_DUPLICATES, &why);
    if (!root) return err_set(e, ERR_FORMAT, "header: %s at byte %d", why.text, why.position);
    int rc = json_is_object(root) ? read_header(t, root, data + LENGTH_BYTES + head, bytes - LENGTH_BYTES - head, e)
                                  : err_set(e, ERR_FORMAT, "header: not an object");
    json_decref(root);
    return rc;
}
