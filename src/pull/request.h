// One HTTP request by libcurl, and what the head of its answer said. Redirects are followed, a few of them; credentials
// stay with the first host. Not thread-safe.
#pragma once
#include "base/buf.h"
#include "pull/pull.h"
#include <curl/curl.h>

struct answer {
    char etag[256]; // a strong one, quotes included; "": none
    char link[2048];
    char error_code[64], error_message[160]; // X-Error-Code, X-Error-Message
    bool has_range;                          // Content-Range: bytes begin-end/total; end is the last byte
    uint64_t range_begin, range_end, range_total;
};

struct request {
    CURL *easy;
    struct curl_slist *headers;
    struct answer answer;         // of the last response: a redirect's is forgotten
    char reason[CURL_ERROR_SIZE]; // what curl said
    const struct pull_config *config;
};

// Prepares GET url. r must stay where it is until request_close. ERR_NOMEM.
int request_open(struct request *r, const struct pull_config *c, const char *url, struct err *e) MUST_CHECK;
void request_close(struct request *r); // of one that is open or {0}
int request_add_header(struct request *r, const char *line, struct err *e) MUST_CHECK;

long request_status(const struct request *r); // 0: no answer came
// "huggingface.co: Could not resolve host ...": who failed, and how curl puts it.
void request_tell(const struct request *r, CURLcode code, char *out, size_t out_bytes);

// What may be otherwise in a moment: broken connections, and statuses that say so.
bool request_is_transient(CURLcode code);
bool request_is_transient_status(long status);
// How long to wait before try number `tries` (from 1); Retry-After is obeyed. ERR_NET: it asks for too long.
int request_pause_ms(const struct request *r, uint32_t tries, uint64_t *ms, struct err *e) MUST_CHECK;
// true: stop was asked for meanwhile.
bool request_wait(const struct pull_config *c, uint64_t ms);

// The whole body of GET url, tried again where that may help. *status is what the server said in the end; ERR_NET where
// it said nothing, ERR_CANCELLED, ERR_LIMIT where the body has more than out may hold.
int request_get(const struct pull_config *c, const char *url, struct buf *out, struct answer *answer, long *status,
                struct err *e) MUST_CHECK;
