// Values by key, as numbers and strings.
#include "gguf/gguf_int.h"

#include <math.h>

static const struct {
    const char *name;
    uint32_t bytes;
} TYPES[GGUF_TYPES] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2}, [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},     [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type t) {
    ASSERT((unsigned)t < GGUF_TYPES, "gguf_type %d", (int)t);
    return TYPES[t].name;
}

uint32_t gguf_item_bytes(enum gguf_type t) {
    ASSERT((unsigned)t < GGUF_TYPES, "gguf_type %d", (int)t);
    return TYPES[t].bytes;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key) {
    const size_t len = strlen(key);
    uint64_t lo = 0, hi = g->n_values;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gguf_value *v = &g->values[g->by_key[mid]];
        int c = gguf_compare(&v->key, key, len);
        if (c == 0) return v;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

bool gguf_item_integer(const struct gguf_value *v, uint64_t i, int64_t *out) {
    if (i >= v->n_items) return false;
    const uint32_t size = gguf_item_bytes(v->item_type);
    const uint8_t *p = v->data + i * size;
    uint64_t u = 0;
    if (size) memcpy(&u, p, size);
    switch (v->item_type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *out = (int64_t)u;
        return true;
    case GGUF_I8:
        *out = (int8_t)u;
        return true;
    case GGUF_I16:
        *out = (int16_t)u;
        return true;
    case GGUF_I32:
        *out = (int32_t)u;
        return true;
    case GGUF_I64:
        *out = (int64_t)u;
        return true;
    case GGUF_U64:
        *out = (int64_t)u;
        return u <= INT64_MAX;
    default:
        return false;
    }
}

bool gguf_item_number(const struct gguf_value *v, uint64_t i, double *out) {
    int64_t n;
    if (gguf_item_integer(v, i, &n)) {
        *out = (double)n;
        return true;
    }
    if (i >= v->n_items) return false;
    if (v->item_type == GGUF_F32) {
        float f;
        memcpy(&f, v->data + i * sizeof f, sizeof f);
        *out = (double)f;
        return isfinite(f);
    }
    if (v->item_type != GGUF_F64) return false;
    memcpy(out, v->data + i * sizeof *out, sizeof *out);
    return isfinite(*out);
}

bool gguf_item_bool(const struct gguf_value *v, uint64_t i, bool *out) {
    if (v->item_type != GGUF_BOOL || i >= v->n_items || v->data[i] > 1) return false;
    *out = v->data[i] == 1;
    return true;
}

bool gguf_next_string(const struct gguf_value *v, const uint8_t **at, struct gguf_string *out) {
    if (v->item_type != GGUF_STRING || *at == v->data + v->data_bytes) return false;
    memcpy(&out->len_bytes, *at, sizeof out->len_bytes);
    out->text = (const char *)*at + sizeof out->len_bytes;
    *at += sizeof out->len_bytes + out->len_bytes;
    return true;
}

static int bad_kind(const struct gguf_value *v, const char *key, const char *want, struct err *e) {
    return err_set(e, ERR_FORMAT, "key %s: %s%s; %s is right", key, v->type == GGUF_ARRAY ? "an array of " : "",
                   gguf_type_name(v->item_type), want);
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out, struct err *e) {
    const struct gguf_value *v = gguf_find(g, key);
    int64_t n;
    if (!v) return ERR_OK;
    if (v->type == GGUF_ARRAY) return bad_kind(v, key, "an integer", e);
    if (!gguf_item_integer(v, 0, &n)) {
        if (v->type == GGUF_U64) return err_set(e, ERR_FORMAT, "key %s: more than 2^63; at most %u is right", key, hi);
        return bad_kind(v, key, "an integer", e);
    }
    if (n < lo || n > hi) return err_set(e, ERR_FORMAT, "key %s: %lld; %u to %u is right", key, (long long)n, lo, hi);
    *out = (uint32_t)n;
    return ERR_OK;
}

int gguf_get_number(const struct gguf *g, const char *key, double *out, struct err *e) {
    const struct gguf_value *v = gguf_find(g, key);
    double n;
    if (!v) return ERR_OK;
    if (v->type == GGUF_ARRAY || !gguf_item_number(v, 0, &n)) return bad_kind(v, key, "a finite number", e);
    *out = n;
    return ERR_OK;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e) {
    const struct gguf_value *v = gguf_find(g, key);
    if (!v) return ERR_OK;
    if (v->type == GGUF_ARRAY || !gguf_item_bool(v, 0, out)) return bad_kind(v, key, "a bool, 0 or 1,", e);
    return ERR_OK;
}

int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e) {
    const struct gguf_value *v = gguf_find(g, key);
    if (!v) return ERR_OK;
    const uint8_t *at = v->data;
    if (v->type != GGUF_STRING || !gguf_next_string(v, &at, out)) return bad_kind(v, key, "a string", e);
    return ERR_OK;
}

int gguf_get_id(const struct gguf *g, const char *key, int32_t *out, struct err *e) {
    const struct gguf_value *v = gguf_find(g, key);
    int64_t id;
    uint32_t u = 0;
    *out = -1;
    if (!v) return ERR_OK;
    if (v->type != GGUF_ARRAY && gguf_item_integer(v, 0, &id) && (id == -1 || id == UINT32_MAX)) return ERR_OK;
    int rc = gguf_get_u32(g, key, 0, INT32_MAX, &u, e);
    if (!rc) *out = (int32_t)u;
    return rc;
}
