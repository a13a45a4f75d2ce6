#include "cmd/inspect_gguf.h"

#include "tensor/dtype.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 96, SHOWN_ITEMS = 4 };

// ---- Values

// A text of a stranger's file: one line, no control characters, not too long.
static void print_text(const struct gguf_string *s) {
    const int n = s->len_bytes < SHOWN_BYTES ? (int)s->len_bytes : SHOWN_BYTES;
    putchar('"');
    for (int i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s->text[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else
            putchar(c < 0x20 || c == 0x7f ? '?' : c);
    }
    if (s->len_bytes > SHOWN_BYTES)
        printf(flags_text("...\" (%llu bytes)", "...\"（%llu 字节）"), (unsigned long long)s->len_bytes);
    else
        putchar('"');
}

static void print_item(const struct gguf_value *v, enum gguf_type type, uint64_t i, const uint8_t **at) {
    struct gguf_string s;
    int64_t n;
    double d;
    bool b;
    if (type == GGUF_STRING && gguf_next_string(v, at, &s))
        print_text(&s);
    else if (type == GGUF_BOOL && gguf_item_bool(v, i, &b))
        fputs(b ? "true" : "false", stdout);
    else if (gguf_item_integer(v, i, &n))
        printf("%" PRId64, n);
    else if (gguf_item_number(v, i, &d))
        printf(type == GGUF_F32 ? "%.7g" : "%.15g", d);
    else if (type == GGUF_U64) // beyond what an integer holds
        fputs("> 2^63", stdout);
}

static void print_value(const struct gguf_value *v) {
    const bool array = v->type == GGUF_ARRAY;
    const uint8_t *at = v->data;
    printf("  %.*s = ", (int)(v->key.len_bytes < 200 ? v->key.len_bytes : 200), v->key.text);
    if (array) printf("%s[%llu] ", gguf_type_name(v->item_type), (unsigned long long)v->n_items);
    for (uint64_t i = 0; i < v->n_items && i < SHOWN_ITEMS; i++) {
        if (i) fputs(", ", stdout);
        print_item(v, array ? v->item_type : v->type, i, &at);
    }
    puts(v->n_items > SHOWN_ITEMS ? ", ..." : "");
}

static json_t *text_json(const struct gguf_string *s) {
    json_t *j = json_stringn(s->text, s->len_bytes);
    return j ? j : json_string("(not UTF-8)");
}

static json_t *item_json(const struct gguf_value *v, enum gguf_type type, uint64_t i, const uint8_t **at) {
    struct gguf_string s;
    int64_t n;
    double d;
    bool b;
    if (type == GGUF_STRING) return gguf_next_string(v, at, &s) ? text_json(&s) : json_null();
    if (type == GGUF_BOOL) return gguf_item_bool(v, i, &b) ? json_boolean(b) : json_null();
    if (gguf_item_integer(v, i, &n)) return json_integer(n);
    json_t *real = gguf_item_number(v, i, &d) ? json_real(d) : NULL; // NULL: not finite
    return real ? real : json_null();
}

static json_t *value_json(const struct gguf_value *v) {
    const uint8_t *at = v->data;
    if (v->type != GGUF_ARRAY) return item_json(v, v->type, 0, &at);
    json_t *first = json_array();
    for (uint64_t i = 0; i < v->n_items && i < SHOWN_ITEMS; i++)
        json_array_append_new(first, item_json(v, v->item_type, i, &at));
    return json_pack("{s:s, s:I, s:o}", "type", gguf_type_name(v->item_type), "items", (json_int_t)v->n_items, "first",
                     first);
}

// ---- Tensors

static uint64_t tensor_bytes(const struct gguf_tensor *t, bool *unknown) {
    const int type = dtype_from_gguf(t->type);
    uint64_t bytes = type < 0 ? 0 : dtype_row_bytes((enum dtype)type, t->dim[0]);
    *unknown = type < 0;
    for (uint32_t i = 1; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bytes, t->dim[i], &bytes)) *unknown = true;
    return *unknown ? 0 : bytes;
}

// Outermost first, as all of Loom writes shapes.
static void shape_text(const struct gguf_tensor *t, char *out, size_t size) {
    size_t len = 0;
    out[0] = 0;
    for (uint32_t i = t->n_dims; i-- > 0 && len < size;)
        len += (size_t)snprintf(out + len, size - len, "%llu%s", (unsigned long long)t->dim[i], i ? ", " : "");
}

static void print_tensor(const struct gguf_tensor *t) {
    char shape[128];
    bool unknown;
    const uint64_t bytes = tensor_bytes(t, &unknown);
    shape_text(t, shape, sizeof shape);
    printf("  %-40.*s %-8s [%s]", (int)t->name.len_bytes, t->name.text, dtype_gguf_name(t->type), shape);
    if (unknown)
        printf(flags_text(" (type %u is not known here)\n", "（不认识类型 %u）\n"), t->type);
    else
        printf(flags_text(" %llu bytes\n", " %llu 字节\n"), (unsigned long long)bytes);
}

static json_t *tensor_json(const struct gguf_tensor *t) {
    bool unknown;
    const uint64_t bytes = tensor_bytes(t, &unknown);
    json_t *shape = json_array();
    for (uint32_t i = t->n_dims; i-- > 0;) json_array_append_new(shape, json_integer((json_int_t)t->dim[i]));
    return json_pack("{s:o, s:s, s:o, s:o}", "name", text_json(&t->name), "type", dtype_gguf_name(t->type), "shape",
                     shape, "bytes", unknown ? json_null() : json_integer((json_int_t)bytes));
}

// ---- All of it

void inspect_gguf_print(const struct gguf *g, bool tensors) {
    printf(flags_text("GGUF version %u, %llu keys, %llu tensors\n", "GGUF 版本 %u，%llu 个键，%llu 个张量\n"),
           gguf_version(g), (unsigned long long)gguf_n_values(g), (unsigned long long)gguf_n_tensors(g));
    for (uint64_t i = 0; i < gguf_n_values(g); i++) print_value(gguf_value_at(g, i));
    for (uint64_t i = 0; tensors && i < gguf_n_tensors(g); i++) print_tensor(gguf_tensor_at(g, i));
}

bool inspect_gguf_json(const struct gguf *g, bool tensors, json_t *o) {
    json_t *values = json_object();
    int bad = json_object_set_new(o, "gguf", json_integer(gguf_version(g)));
    for (uint64_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)(v->key.len_bytes < 255 ? v->key.len_bytes : 255), v->key.text);
        if (json_object_set_new(values, key, value_json(v)))
            json_object_set_new_nocheck(values, "(not UTF-8)", json_null());
    }
    bad |= json_object_set_new(o, "metadata", values);
    if (!tensors) return !bad;
    json_t *list = json_array();
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        bad |= json_array_append_new(list, tensor_json(gguf_tensor_at(g, i)));
    return !(json_object_set_new(o, "tensors", list) | bad);
}

void inspect_types_add(struct inspect_types *y, const char *name, uint64_t bytes, bool unknown) {
    uint32_t i = 0;
    while (i < y->n && strcmp(y->list[i].name, name) != 0) i++;
    if (i == sizeof y->list / sizeof *y->list) return; // there are not that many names
    if (i == y->n) y->list[y->n++] = (struct inspect_type){.name = name};
    y->list[i].n++;
    y->list[i].bytes += bytes;
    y->list[i].unknown |= unknown;
}

void inspect_types_of_gguf(struct inspect_types *y, const struct gguf *g) {
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        bool unknown;
        const uint64_t bytes = tensor_bytes(t, &unknown);
        inspect_types_add(y, dtype_gguf_name(t->type), bytes, unknown);
    }
}
