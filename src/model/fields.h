// Fields of a JSON object, range-checked; the errors name the file and the field. A field that is missing or null
// leaves *out as it is, so that the caller's default stays.
#pragma once
#include "base/err.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

// file: "config.json", for the error.
int fields_u32(const char *file, const json_t *o, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
               struct err *e) MUST_CHECK;
int fields_number(const char *file, const json_t *o, const char *key, double lo, double hi, double *out,
                  struct err *e) MUST_CHECK;
int fields_bool(const char *file, const json_t *o, const char *key, bool *out, struct err *e) MUST_CHECK;
int fields_string(const char *file, const json_t *o, const char *key, const char **out, struct err *e) MUST_CHECK;
// The value, or NULL if it is missing or null.
const json_t *fields_get(const json_t *o, const char *key);
