#include "gateway/errors.h"

#include <stdio.h>
#include <string.h>
#include <unistr.h>

// Each byte that belongs to no whole character becomes '?'.
static void make_utf8(char *s) {
    uint8_t *at = (uint8_t *)s;
    const uint8_t *bad;
    while ((bad = u8_check(at, strlen((char *)at))) != NULL) {
        at += bad - at;
        *at++ = '?';
    }
}

int errors_set(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...) {
    *e = (struct api_error){.status = status, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    make_utf8(e->param);
    make_utf8(e->message);
    return ERR_USAGE;
}

int errors_from(struct api_error *e, int err_code, const char *param, const char *text) {
    switch (err_code) {
    case ERR_USAGE:
    case ERR_FORMAT:
        return errors_set(e, 400, "invalid_value", param, "%s", text);
    case ERR_UNSUPPORTED:
        return errors_set(e, 400, "unsupported_value", param, "%s", text);
    case ERR_UNAVAILABLE:
    case ERR_NET:
        errors_set(e, 503, "unavailable", NULL, "%s", text);
        break;
    case ERR_LIMIT:
    case ERR_NOMEM:
        errors_set(e, 503, "overloaded", NULL, "%s", text);
        break;
    case ERR_CANCELLED:
        errors_set(e, 503, "cancelled", NULL, "%s", text);
        break;
    default:
        return errors_set(e, 500, "internal_error", NULL, "%s", text);
    }
    e->retry_after_s = 1;
    return ERR_USAGE;
}

const char *errors_type(int status) {
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

int errors_add_json(const struct api_error *e, struct buf *out) {
    int rc = buf_addf(out, "{\"error\":{\"message\":");
    if (!rc) rc = buf_add_json_string(out, e->message, strlen(e->message));
    if (!rc) rc = buf_addf(out, ",\"type\":\"%s\",\"param\":", errors_type(e->status));
    if (!rc) {
        rc = e->param[0] ? buf_add_json_string(out, e->param, strlen(e->param)) : buf_add(out, "null", 4);
    }
    if (!rc) rc = e->code ? buf_addf(out, ",\"code\":\"%s\"}}", e->code) : buf_addf(out, ",\"code\":null}}");
    return rc;
}
