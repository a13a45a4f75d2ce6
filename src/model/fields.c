#include "model/fields.h"

const json_t *fields_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

int fields_u32(const char *file, const json_t *o, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
               struct err *e) {
    const json_t *v = fields_get(o, key);
    if (!v) return ERR_OK;
    if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)lo || json_integer_value(v) > (json_int_t)hi)
        return err_set(e, ERR_FORMAT, "%s: %s is not a whole number from %u to %u", file, key, lo, hi);
    *out = (uint32_t)json_integer_value(v);
    return ERR_OK;
}

int fields_number(const char *file, const json_t *o, const char *key, double lo, double hi, double *out,
                  struct err *e) {
    const json_t *v = fields_get(o, key);
    if (!v) return ERR_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d >= lo && d <= hi))
        return err_set(e, ERR_FORMAT, "%s: %s is not a number from %g to %g", file, key, lo, hi);
    *out = d;
    return ERR_OK;
}

int fields_bool(const char *file, const json_t *o, const char *key, bool *out, struct err *e) {
    const json_t *v = fields_get(o, key);
    if (!v) return ERR_OK;
    if (!json_is_boolean(v)) return err_set(e, ERR_FORMAT, "%s: %s is neither true nor false", file, key);
    *out = json_is_true(v);
    return ERR_OK;
}

int fields_string(const char *file, const json_t *o, const char *key, const char **out, struct err *e) {
    const json_t *v = fields_get(o, key);
    if (!v) return ERR_OK;
    if (!json_is_string(v)) return err_set(e, ERR_FORMAT, "%s: %s is not a string", file, key);
    *out = json_string_value(v);
    return ERR_OK;
}
