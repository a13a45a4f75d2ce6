// The client side of HTTP, for chat, demo and status. Blocking; each call has a connection of its own.
#pragma once
#include "base/buf.h"

// base, less the slashes at its end, and path. ERR_USAGE names --url.
int http_url(char *out, size_t out_bytes, const char *base, const char *path, struct err *e) MUST_CHECK;
// GET or, with body not NULL, POST of JSON. *status: the HTTP status; out: the body. ERR_NET names the URL.
int http_call(const char *url, const char *body, struct buf *out, long *status, struct err *e) MUST_CHECK;
// POST that answers with server-sent events. on_data gets the data of each event as it comes, without "[DONE]", and
// returns 0 to go on. A status other than 200 is ERR_NET with the server's error message; so is a stream that ends
// before
// "[DONE]", unless on_data ended it.
int http_events(const char *url, const char *body, int (*on_data)(void *arg, const char *json, size_t len), void *arg,
                struct err *e) MUST_CHECK;
