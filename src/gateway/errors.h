// What goes wrong with a request, in the shape that OpenAI clients know: a status, and a JSON body with message, type,
// param and code. Plain data; thread-safe on distinct structs.
#pragma once
#include "base/buf.h"
#include "base/err.h"

struct api_error {
    int status;             // of HTTP
    const char *code;       // static, or NULL
    unsigned retry_after_s; // 0: no Retry-After
    char param[128];        // "": none
    char message[640];      // one sentence, UTF-8
};

// Fills e; param may be NULL. What a client wrote and was cut or is not UTF-8 is made so. Returns ERR_USAGE, so that a
// parser can say `return errors_set(...)`.
int errors_set(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
// The error that an err_code of the layers below means for a client: status, code, message.
int errors_from(struct api_error *e, int err_code, const char *param, const char *text);
// The type that goes with a status.
const char *errors_type(int status);
// Adds {"error":{...}}.
int errors_add_json(const struct api_error *e, struct buf *out) MUST_CHECK;
