#include "gateway/server.h"

#include "base/log.h"
#include "gateway/keep.h"
#include "gateway/route.h"
#include "gateway/stream.h"
#include "os/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// A body that is refused is read up to this and thrown away, so that the client reads the response and not a reset.
static const uint64_t DRAIN_MAX_BYTES = 4 * (uint64_t)LIMIT_HTTP_BODY;
enum { READ_BYTES = 16 << 10, REPLY_MAX_BYTES = 4 << 20 };

static void refuse(struct exchange *x, int status, const char *code, const char *message) {
    if (x->refused) return;
    errors_set(&x->error, status, code, NULL, "%s", message);
    x->refused = true;
}

static enum MHD_Result queue(struct exchange *x, struct MHD_Connection *connection, int status,
                             struct MHD_Response *response) {
    MHD_add_response_header(response, "x-request-id", x->request_id);
    enum MHD_Result rc = MHD_queue_response(connection, (unsigned)status, response);
    MHD_destroy_response(response);
    x->status = status;
    x->queued = true;
    return rc;
}

// Sends out, which it takes over.
static enum MHD_Result reply(struct exchange *x, struct MHD_Connection *connection, int status, const char *type,
                             unsigned retry_after_s, struct buf *out) {
    size_t len = out->len_bytes;
    struct MHD_Response *response = MHD_create_response_from_buffer(len, out->data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        buf_fini(out);
        return MHD_NO;
    }
    *out = (struct buf){0};
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (retry_after_s) {
        char s[16];
        snprintf(s, sizeof s, "%u", retry_after_s);
        MHD_add_response_header(response, "Retry-After", s);
    }
    if (status == 405 && x->route) MHD_add_response_header(response, "Allow", x->route->is_post ? "POST" : "GET, HEAD");
    watch_phase(x->gateway, x->conn, WATCH_REPLY, len);
    return queue(x, connection, status, response);
}

static enum MHD_Result reply_error(struct exchange *x, struct MHD_Connection *connection) {
    struct buf out;
    buf_init(&out, REPLY_MAX_BYTES);
    if (errors_add_json(&x->error, &out)) {
        buf_fini(&out);
        return MHD_NO;
    }
    return reply(x, connection, x->error.status, "application/json", x->error.retry_after_s, &out);
}

struct framing {
    unsigned lengths, encodings, hosts;
    bool chunked, bad_name;
    uint64_t length;
};

// "Content-Length : 5" is a header of another name for libmicrohttpd, and a length for others.
static bool is_name(const char *key) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    size_t n = 0;
    for (; key[n]; n++) {
        bool alnum = (key[n] >= '0' && key[n] <= '9') || ((key[n] | 32) >= 'a' && (key[n] | 32) <= 'z');
        if (!alnum && !strchr(others, key[n])) return false;
    }
    return n > 0;
}

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    struct framing *f = cls;
    (void)kind;
    if (!is_name(key)) f->bad_name = true;
    if (strcasecmp(key, "Content-Length") == 0) {
        f->lengths++;
        f->length = strtoull(value ? value : "", NULL, 10);
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->encodings++;
        f->chunked = value && strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(key, "Host") == 0) {
        f->hosts++;
    }
    return MHD_YES;
}

// Where the body ends must be beyond doubt: a proxy in front might count otherwise, and take what follows for another
// client's request.
static const char *framing_fault(const struct framing *f, const char *version) {
    if (f->bad_name) return "The name of a header has characters that none may have";
    if (f->encodings && strcmp(version, "HTTP/1.1") != 0) return "Transfer-Encoding needs HTTP/1.1";
    if (f->lengths > 1) return "More than one Content-Length";
    if (f->encodings > 1 || (f->encodings && !f->chunked)) return "Transfer-Encoding must be 'chunked' alone";
    if (f->lengths && f->encodings) return "Content-Length and Transfer-Encoding exclude each other";
    if (f->hosts > 1) return "More than one Host";
    return NULL;
}

// A page of another site that a browser shows can send a form here without asking, but not JSON.
static bool is_foreign_form(struct MHD_Connection *connection) {
    const char *origin = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Origin");
    const char *type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type");
    return origin && !(type && strncasecmp(type, "application/json", strlen("application/json")) == 0);
}

static void check_request(struct exchange *x, struct MHD_Connection *connection, const char *method) {
    x->is_plain_get = strcmp(method, "GET") == 0;
    x->is_get = x->is_plain_get || strcmp(method, "HEAD") == 0;
    bool is_post = strcmp(method, "POST") == 0;
    if (!x->route) {
        refuse(x, 404, "unknown_url", "There is nothing at this path. doc/api.md lists what is served");
    } else if (x->route->is_post ? !is_post : !x->is_get) {
        refuse(x, 405, "method_not_allowed", x->route->is_post ? "This path takes POST" : "This path takes GET");
    } else if (x->route->is_post && is_foreign_form(connection)) {
        refuse(x, 415, "unsupported_media_type", "A request from a web page must have Content-Type application/json");
    }
    if (x->declared_bytes > LIMIT_HTTP_BODY) refuse(x, 413, "request_too_large", "The body is larger than 8 MiB");
}

// A client that comes back for the rest of a stream says where it was: in a header, as browsers do by themselves, and
// perhaps in the path.
static void find_resume(struct exchange *x, struct MHD_Connection *connection, const char *url) {
    const char *last = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Last-Event-ID");
    if (!x->route || (!x->route->resumes && !(x->route->is_post && last && *last))) return;
    x->resume = calloc(1, sizeof *x->resume);
    if (!x->resume) {
        refuse(x, 503, "overloaded", "out of memory");
        return;
    }
    const char *id = x->route->resumes ? url + strlen(x->route->path) : NULL;
    if (last && *last) {
        if (resume_parse(last, x->resume, &x->error)) x->refused = true;
        if (!x->refused && id && strcmp(id, x->resume->id) != 0)
            refuse(x, 400, "invalid_value", "'Last-Event-ID' belongs to another answer than the path");
    } else if (id && strlen(id) < sizeof x->resume->id) {
        memcpy(x->resume->id, id, strlen(id) + 1);
    }
    if (x->is_get && !x->is_plain_get) refuse(x, 405, "method_not_allowed", "This path takes GET");
}

// The first call of a request: its headers are there.
static enum MHD_Result begin(struct gateway *g, struct MHD_Connection *connection, const char *url, const char *method,
                             const char *version, void **state) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    *state = x;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->gateway = g;
    x->conn = info ? info->socket_context : NULL;
    x->route = route_find(url);
    buf_init(&x->body, LIMIT_HTTP_BODY);
    snprintf(x->request_id, sizeof x->request_id, "req_%016llx", (unsigned long long)random_u64());
    if (!x->conn) return MHD_NO; // no memory to watch it
    struct framing f = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, look_at_header, &f);
    x->declared_bytes = f.length;
    watch_phase(g, x->conn, WATCH_BODY, 0);
    const char *fault = framing_fault(&f, version);
    if (fault) {
        refuse(x, 400, "invalid_framing", fault);
    } else {
        check_request(x, connection, method);
        if (!x->refused) find_resume(x, connection, url);
    }
    // A response before the body was read makes libmicrohttpd close the connection.
    bool expects = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Expect") != NULL;
    if (fault || (x->refused && expects) || x->declared_bytes > DRAIN_MAX_BYTES) return reply_error(x, connection);
    return MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *data_bytes) {
    struct answer_shared *s = &x->gateway->shared;
    size_t n = *data_bytes;
    *data_bytes = 0;
    x->seen_bytes += n;
    if (x->seen_bytes > DRAIN_MAX_BYTES) return MHD_NO;
    if (x->seen_bytes > LIMIT_HTTP_BODY) refuse(x, 413, "request_too_large", "The body is larger than 8 MiB");
    if (x->refused || x->is_get || x->resume) return MHD_YES;
    if (s->body_bytes + n > LIMIT_HTTP_BODIES || buf_add(&x->body, data, n)) {
        refuse(x, 503, "overloaded", "The server holds too many large requests");
        x->error.retry_after_s = 1;
        return MHD_YES;
    }
    s->body_bytes += n;
    return MHD_YES;
}

static enum MHD_Result reply_get(struct exchange *x, struct MHD_Connection *connection) {
    struct route_reply r = {0};
    buf_init(&r.body, REPLY_MAX_BYTES);
    int status = x->route->get(x->gateway, &r);
    if (status != 500) return reply(x, connection, status, x->route->content_type, r.retry_after_s, &r.body);
    buf_fini(&r.body);
    refuse(x, 500, "internal_error", "The server could not describe itself: out of memory");
    return reply_error(x, connection);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max) {
    (void)pos;
    struct exchange *x = cls;
    long n = stream_read(x->reader, to, max);
    if (n == STREAM_END) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == STREAM_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
    return n;
}

static enum MHD_Result reply_stream(struct exchange *x, struct MHD_Connection *connection) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, READ_BYTES, read_stream, x, NULL);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); // a proxy must not collect events
    x->streaming = true;
    x->gateway->shared.metrics.streams++;
    return queue(x, connection, 200, response);
}

// Called when the request is complete, and again each time the connection was woken.
static enum MHD_Result go_on(struct exchange *x, struct MHD_Connection *connection) {
    struct reader *r = x->reader;
    switch (stream_poll(r)) {
    case STREAM_SLEEPS:
        return MHD_YES;
    case STREAM_STARTS:
        return reply_stream(x, connection);
    case STREAM_WHOLE:
        return reply(x, connection, 200, "application/json", 0, &r->out);
    case STREAM_GONE:
        return MHD_NO;
    case STREAM_FAILED:
        break;
    }
    x->error = r->error;
    if (r->no_route) x->error.retry_after_s = answer_retry_after_s(r->answer);
    x->refused = true;
    return reply_error(x, connection);
}

// From now on the connection belongs to the answer, of which the caller holds a reference. False: the server stops.
static bool read_answer(struct exchange *x, struct answer *a, struct MHD_Connection *connection) {
    struct reader *r = reader_new(a, connection, x->resume);
    if (!r) return false;
    x->resume = NULL;
    if (watch_reader(x->gateway, x->conn, r)) {
        x->reader = r;
        return true;
    }
    reader_gone(r);
    reader_unref(r);
    return false;
}

static enum MHD_Result start_answer(struct exchange *x, struct MHD_Connection *connection) {
    struct gateway *g = x->gateway;
    struct answer *a = answer_new(&g->shared, x->route->chat, &x->body);
    if (!a) return MHD_NO;
    bool running = read_answer(x, a, connection);
    if (running && queue_push(&g->jobs, a) == ERR_OK) return go_on(x, connection); // the preparing thread has a now
    answer_unref(a);
    refuse(x, 503, "shutdown", "The server is shutting down");
    return reply_error(x, connection);
}

static enum MHD_Result start_resume(struct exchange *x, struct MHD_Connection *connection) {
    struct keep *k = x->gateway->shared.keep;
    const struct resume *r = x->resume;
    struct answer *a = k ? keep_find(k, r->id) : NULL;
    bool here = a && (x->route->resumes || x->route->chat == a->ask.head.chat);
    if (!here) {
        refuse(x, 404, "answer_not_found",
               "This answer is not known, or not any more. Ask again without Last-Event-ID");
    } else if (r->n && r->n != a->ask.n_choices) {
        refuse(x, 400, "invalid_value", "'Last-Event-ID' has another number of choices than the answer");
    } else if (!read_answer(x, a, connection)) {
        refuse(x, 503, "shutdown", "The server is shutting down");
    } else {
        x->gateway->shared.metrics.resumes++;
    }
    if (a) answer_unref(a);
    return x->refused ? reply_error(x, connection) : go_on(x, connection);
}

enum MHD_Result exchange_handle(void *gateway, struct MHD_Connection *connection, const char *url, const char *method,
                                const char *version, const char *data, size_t *data_bytes, void **state) {
    struct exchange *x = *state;
    if (!x) return begin(gateway, connection, url, method, version, state);
    if (*data_bytes) return take_body(x, data, data_bytes);
    if (x->reader) return go_on(x, connection);
    if (x->refused) return reply_error(x, connection);
    if (x->resume) return start_resume(x, connection);
    return x->is_get ? reply_get(x, connection) : start_answer(x, connection);
}

static void end_reading(struct exchange *x, bool whole) {
    struct reader *r = x->reader;
    LOG_I("gateway", "%s: %s ended with status %d, %llu tokens%s", x->request_id, r->answer->ask.head.id, x->status,
          (unsigned long long)r->usage.completion_tokens, whole ? "" : ", the client was gone");
    if (whole && r->finished && !r->failed) answer_forget(r->answer); // nobody comes back for more
    reader_gone(r); // where all has ended there is nothing left to cancel
    reader_unref(r);
}

void exchange_completed(void *gateway, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode why) {
    struct gateway *g = gateway;
    struct exchange *x = *state;
    (void)connection;
    if (!x) return;
    struct metrics *m = &g->shared.metrics;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        m->disconnects++;
        if (!x->queued) x->status = 499;
    }
    metrics_count(m, x->route ? x->route->metrics : METRICS_OTHER, x->status);
    if (x->streaming) m->streams--;
    if (x->reader) {
        watch_no_reader(g, x->conn);
        end_reading(x, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    }
    free(x->resume);
    g->shared.body_bytes -= x->body.len_bytes;
    buf_fini(&x->body);
    watch_phase(g, x->conn, WATCH_IDLE, 0);
    free(x);
    *state = NULL;
}
