#include "pull/request.h"

#include "base/limits.h"
#include "os/clock.h"
#include "os/random.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    CONNECT_SECONDS = 15,
    SILENT_SECONDS = 30, // a connection that brings nothing for so long is broken
    REDIRECTS = 8,
    PAUSE_LEAST_MS = 500,
    PAUSE_MOST_MS = 30000,
    RETRY_AFTER_MOST_S = 600,
    API_TRIES_MOST = 3, // people wait for the listing, and it is quick to ask again
    POLL_MS = 100
};

// The value of header `name` in a line; NULL: the line is another one. *len is that of the value.
static const char *header_value(const char *line, size_t n, const char *name, size_t *len) {
    size_t k = strlen(name);
    if (n <= k || line[k] != ':' || strncasecmp(line, name, k) != 0) return NULL;
    const char *v = line + k + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t')) v++;
    while (end > v && isspace((unsigned char)end[-1])) end--;
    *len = (size_t)(end - v);
    return v;
}

// Cut off rather than taken in part; characters that no header has make it empty.
static void keep(char *out, size_t out_bytes, const char *v, size_t n) {
    if (n >= out_bytes) return;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)v[i] < 0x20 || v[i] == 0x7f) return;
    memcpy(out, v, n);
    out[n] = 0;
}

static bool take_number(const char **s, uint64_t *v) {
    char *end;
    if (!isdigit((unsigned char)**s)) return false; // strtoull would take spaces and signs
    *v = strtoull(*s, &end, 10);
    *s = end;
    return true;
}

static void keep_range(struct answer *a, const char *v, size_t n) {
    static const char unit[] = "bytes ";
    char text[80] = "";
    keep(text, sizeof text, v, n);
    const char *s = text + sizeof unit - 1;
    a->has_range = !strncasecmp(text, unit, sizeof unit - 1) && take_number(&s, &a->range_begin) && *s++ == '-' &&
                   take_number(&s, &a->range_end) && *s++ == '/' && take_number(&s, &a->range_total) && !*s;
}

static size_t take_header(char *line, size_t size, size_t count, void *arg) {
    struct answer *a = arg;
    size_t n = size * count, len;
    const char *v;
    if (n > 5 && !strncasecmp(line, "HTTP/", 5)) *a = (struct answer){0};
    if ((v = header_value(line, n, "ETag", &len)) && len > 2 && v[0] == '"') keep(a->etag, sizeof a->etag, v, len);
    if ((v = header_value(line, n, "Link", &len))) keep(a->link, sizeof a->link, v, len);
    if ((v = header_value(line, n, "X-Error-Code", &len))) keep(a->error_code, sizeof a->error_code, v, len);
    if ((v = header_value(line, n, "X-Error-Message", &len))) {
        size_t most = sizeof a->error_message - 1;
        keep(a->error_message, sizeof a->error_message, v, len < most ? len : most);
    }
    if ((v = header_value(line, n, "Content-Range", &len))) keep_range(a, v, len);
    return n;
}

int request_add_header(struct request *r, const char *line, struct err *e) {
    struct curl_slist *more = curl_slist_append(r->headers, line);
    if (!more) return err_set(e, ERR_NOMEM, "no memory for a request");
    r->headers = more;
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers);
    return ERR_OK;
}

static int add_token(struct request *r, struct err *e) {
    char line[1100];
    const char *token = r->config->token;
    if (!token) return ERR_OK;
    snprintf(line, sizeof line, "Authorization: Bearer %s", token);
    int rc = request_add_header(r, line, e);
    if (rc || r->config->hub != PULL_MODELSCOPE) return rc;
    snprintf(line, sizeof line, "Cookie: m_session_id=%s", token); // what its older servers look at
    return request_add_header(r, line, e);
}

int request_open(struct request *r, const struct pull_config *c, const char *url, struct err *e) {
    *r = (struct request){.easy = curl_easy_init(), .config = c};
    if (!r->easy) return err_set(e, ERR_NOMEM, "no memory for a connection");
    CURL *h = r->easy;
    bool tls = !strncasecmp(url, "https:", 6);
    CURLcode failed = curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "loom");
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, r->reason);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, (long)REDIRECTS);
    // What began encrypted stays so.
    curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https");
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)SILENT_SECONDS);
    // With HTTP/2 all ranges would share one TCP connection, and its losses.
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(h, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, &r->answer);
    int rc = failed ? err_set(e, ERR_NOMEM, "no memory for a connection") : add_token(r, e);
    if (rc) request_close(r);
    return rc;
}

void request_close(struct request *r) {
    curl_easy_cleanup(r->easy);
    curl_slist_free_all(r->headers);
    r->easy = NULL;
    r->headers = NULL;
}

long request_status(const struct request *r) {
    long status = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

void request_tell(const struct request *r, CURLcode code, char *out, size_t out_bytes) {
    char *url = NULL;
    curl_easy_getinfo(r->easy, CURLINFO_EFFECTIVE_URL, &url);
    const char *host = url ? strstr(url, "://") : NULL;
    host = host && host[3] && host[3] != '/' ? host + 3 : "the hub"; // file:///x has none
    snprintf(out, out_bytes, "%.*s: %s", (int)strcspn(host, "/?"), host,
             r->reason[0] ? r->reason : curl_easy_strerror(code));
}

bool request_is_transient(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

bool request_is_transient_status(long status) { return status == 408 || status == 429 || status >= 500; }

int request_pause_ms(const struct request *r, uint32_t tries, uint64_t *ms, struct err *e) {
    curl_off_t after_s = 0;
    uint64_t pause = PAUSE_LEAST_MS;
    for (uint32_t i = 1; i < tries && pause < PAUSE_MOST_MS; i++) pause *= 2;
    if (pause > PAUSE_MOST_MS) pause = PAUSE_MOST_MS;
    // Connections that broke together come back one after the other.
    pause += random_u64() % (pause / 2);
    curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &after_s);
    if (after_s > RETRY_AFTER_MOST_S)
        return err_set(e, ERR_NET, "%s: asks to come back in %lld seconds", r->config->endpoint, (long long)after_s);
    if (after_s > 0 && (uint64_t)after_s * 1000 > pause) pause = (uint64_t)after_s * 1000;
    *ms = pause;
    return ERR_OK;
}

bool request_wait(const struct pull_config *c, uint64_t ms) {
    uint64_t until_ms = clock_now_ms() + ms;
    for (uint64_t now_ms; (now_ms = clock_now_ms()) < until_ms;) {
        if (c->stop(c->arg)) return true;
        clock_sleep_ms(until_ms - now_ms < POLL_MS ? until_ms - now_ms : POLL_MS);
    }
    return c->stop(c->arg);
}

static size_t collect(char *data, size_t size, size_t n, void *arg) {
    return buf_add(arg, data, size * n) ? 0 : size * n;
}

static int watch_stop(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const struct pull_config *config = arg;
    (void)a, (void)b, (void)c, (void)d;
    return config->stop(config->arg);
}

// One try. *again_ms: not 0, if another one may help, after so long.
static int get_once(const struct pull_config *c, const char *url, uint32_t tries, struct buf *out,
                    struct answer *answer, long *status, uint64_t *again_ms, struct err *e) {
    struct request r;
    char told[ERR_TEXT_MAX];
    buf_clear(out);
    *again_ms = 0;
    int rc = request_open(&r, c, url, e);
    if (rc) return rc;
    curl_easy_setopt(r.easy, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(r.easy, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(r.easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(r.easy, CURLOPT_XFERINFOFUNCTION, watch_stop);
    curl_easy_setopt(r.easy, CURLOPT_XFERINFODATA, (void *)(uintptr_t)c);
    CURLcode code = curl_easy_perform(r.easy);
    *status = code ? 0 : request_status(&r);
    *answer = r.answer;
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        rc = err_set(e, ERR_CANCELLED, "stopped");
    } else if (code == CURLE_WRITE_ERROR) {
        rc = err_set(e, ERR_LIMIT, "%.300s: the answer has more than %zu bytes", url, out->max_bytes);
    } else if (code) {
        request_tell(&r, code, told, sizeof told);
        rc = err_set(e, ERR_NET, "%.400s", told);
        if (request_is_transient(code) && request_pause_ms(&r, tries, again_ms, e)) rc = e->code;
    } else if (request_is_transient_status(*status)) {
        rc = request_pause_ms(&r, tries, again_ms, e);
    }
    request_close(&r);
    return rc;
}

int request_get(const struct pull_config *c, const char *url, struct buf *out, struct answer *answer, long *status,
                struct err *e) {
    char note[200];
    uint64_t again_ms;
    for (uint32_t tries = 1;; tries++) {
        int rc = get_once(c, url, tries, out, answer, status, &again_ms, e);
        // A server that answers, even with "later", is given more time than one that is not there.
        uint32_t most = rc && c->retries > API_TRIES_MOST - 1 ? API_TRIES_MOST - 1 : c->retries;
        if (!again_ms || tries > most) return rc;
        snprintf(note, sizeof note, "HTTP %ld: trying again in %.1f s", *status, (double)again_ms / 1e3);
        if (*status) c->note(c->arg, note);
        if (request_wait(c, again_ms)) return err_set(e, ERR_CANCELLED, "stopped");
    }
}
