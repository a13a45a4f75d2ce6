#include "model/gguf_keys.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEY_BYTES = 160 };

static const char *full(const struct gguf_keys *k, const char *name, char out[KEY_BYTES]) {
    snprintf(out, KEY_BYTES, "%s.%s", k->arch, name);
    return out;
}

const struct gguf_value *gguf_keys_find(const struct gguf_keys *k, const char *name) {
    char key[KEY_BYTES];
    return gguf_find(k->g, full(k, name, key));
}

uint32_t gguf_keys_u32(struct gguf_keys *k, const char *name, uint32_t lo, uint32_t hi, uint32_t fallback) {
    char key[KEY_BYTES];
    if (!k->rc) k->rc = gguf_get_u32(k->g, full(k, name, key), lo, hi, &fallback, k->e);
    return fallback;
}

double gguf_keys_plain_number(struct gguf_keys *k, const char *key, double lo, double hi, double fallback) {
    double v = fallback;
    if (k->rc || !gguf_find(k->g, key)) return fallback;
    k->rc = gguf_get_number(k->g, key, &v, k->e);
    if (!k->rc && !(v >= lo && v <= hi))
        k->rc = err_set(k->e, ERR_FORMAT, "key %s: %g; %g to %g is right", key, v, lo, hi);
    return k->rc ? fallback : v;
}

double gguf_keys_number(struct gguf_keys *k, const char *name, double lo, double hi, double fallback) {
    char key[KEY_BYTES];
    return gguf_keys_plain_number(k, full(k, name, key), lo, hi, fallback);
}

bool gguf_keys_bool(struct gguf_keys *k, const char *name, bool fallback) {
    char key[KEY_BYTES];
    if (!k->rc) k->rc = gguf_get_bool(k->g, full(k, name, key), &fallback, k->e);
    return fallback;
}

uint32_t gguf_keys_layers_u32(struct gguf_keys *k, const char *name, uint32_t lo, uint32_t hi, uint32_t fallback) {
    char key[KEY_BYTES];
    const struct gguf_value *v = gguf_keys_find(k, name);
    if (k->rc || !v || v->type != GGUF_ARRAY) return gguf_keys_u32(k, name, lo, hi, fallback);
    full(k, name, key);
    if (v->n_items < k->n_layers)
        k->rc = err_set(k->e, ERR_FORMAT, "key %s: %llu numbers; one for each of the %u layers is right", key,
                        (unsigned long long)v->n_items, k->n_layers);
    for (uint32_t i = 0; i < k->n_layers && !k->rc; i++) {
        int64_t one;
        if (!gguf_item_integer(v, i, &one) || one < lo || one > hi)
            k->rc = err_set(k->e, ERR_FORMAT, "key %s: item %u is not an integer from %u to %u", key, i, lo, hi);
        else if (i && one != fallback)
            k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s: layers differ in it, which is not computed yet", key);
        else
            fallback = (uint32_t)one;
    }
    return fallback;
}

int gguf_keys_missing(struct gguf_keys *k, const char *name) {
    return err_set(k->e, ERR_FORMAT, "key %s.%s is missing", k->arch, name);
}

void gguf_keys_set(struct gguf_keys *k, json_t *o, const char *key, json_t *v) {
    if (json_object_set_new(o, key, v) && !k->rc) k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
}

json_t *gguf_keys_real(double v) {
    const float f = (float)v;
    char text[32];
    if ((double)f != v) return json_real(v);
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == f) break;
    }
    return json_real(strtod(text, NULL));
}
