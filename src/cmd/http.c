#include "cmd/http.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RESPONSE = 64 << 20 };

int http_url(char *out, size_t out_bytes, const char *base, const char *path, struct err *e) {
    size_t n = strlen(base);
    while (n && base[n - 1] == '/') n--;
    int len = n < out_bytes ? snprintf(out, out_bytes, "%.*s%s", (int)n, base, path) : -1;
    if (len >= 0 && (size_t)len < out_bytes) return ERR_OK;
    return err_set(e, ERR_USAGE, "--url: is longer than %zu bytes", out_bytes - 1 - strlen(path));
}

static size_t collect(char *data, size_t size, size_t n, void *arg) {
    return buf_add(arg, data, size * n) ? 0 : size * n;
}

static CURL *prepare(const char *url, const char *body, struct curl_slist **headers) {
    CURL *c = curl_easy_init();
    if (!c) return NULL;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    *headers = NULL;
    if (body) {
        *headers = curl_slist_append(NULL, "Content-Type: application/json");
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    }
    return c;
}

// rc is a failure, of a transfer into a buffer that may get so large.
static int transfer_error(const char *url, CURLcode rc, size_t max_bytes, struct err *e) {
    if (rc == CURLE_WRITE_ERROR) return err_set(e, ERR_NET, "%s: the answer has more than %zu bytes", url, max_bytes);
    return err_set(e, ERR_NET, "%s: %s%s", url, curl_easy_strerror(rc),
                   rc == CURLE_COULDNT_CONNECT ? "; is `loom serve` running there?" : "");
}

int http_call(const char *url, const char *body, struct buf *out, long *status, struct err *e) {
    struct curl_slist *headers;
    CURL *c = prepare(url, body, &headers);
    if (!c) return err_set(e, ERR_NOMEM, "no memory for a connection");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, 60L);
    CURLcode rc = curl_easy_perform(c);
    if (!rc) curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    return rc ? transfer_error(url, rc, out->max_bytes, e) : ERR_OK;
}

struct events {
    CURL *curl;
    struct buf line; // of the current, incomplete line; the whole body when the status is not 200
    int (*on_data)(void *arg, const char *json, size_t len);
    void *arg;
    bool stopped; // by on_data
    bool done;    // "[DONE]" came
};

static int take_line(struct events *ev) {
    static const char prefix[] = "data:";
    size_t skip = sizeof prefix - 1;
    const char *s = (const char *)ev->line.data;
    size_t n = ev->line.len_bytes;
    if (n && s[n - 1] == '\r') n--;
    if (ev->done || n < skip || memcmp(s, prefix, skip)) return 0; // a comment, or the empty line between events
    if (n > skip && s[skip] == ' ') skip++;
    ev->done = n == skip + 6 && !memcmp(s + skip, "[DONE]", 6);
    return ev->done ? 0 : ev->on_data(ev->arg, s + skip, n - skip);
}

static size_t take_bytes(char *data, size_t size, size_t n, void *arg) {
    struct events *ev = arg;
    size_t len = size * n;
    long status = 0;
    curl_easy_getinfo(ev->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return buf_add(&ev->line, data, len) ? 0 : len;
    for (size_t i = 0; i < len;) {
        const char *nl = memchr(data + i, '\n', len - i);
        size_t end = nl ? (size_t)(nl - data) : len;
        if (buf_add(&ev->line, data + i, end - i)) return 0;
        i = end;
        if (!nl) break;
        i++;
        if (take_line(ev)) {
            ev->stopped = true;
            return 0;
        }
        buf_clear(&ev->line);
    }
    return len;
}

static int server_error(const char *url, long status, const struct buf *body, struct err *e) {
    json_t *root = json_loadb((const char *)body->data, body->len_bytes, 0, NULL);
    const char *message = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    int rc = err_set(e, ERR_NET, "%s: %s (HTTP %ld)", url, message ? message : "no explanation", status);
    json_decref(root);
    return rc;
}

int http_events(const char *url, const char *body, int (*on_data)(void *arg, const char *json, size_t len), void *arg,
                struct err *e) {
    struct curl_slist *headers;
    struct events ev = {.on_data = on_data, .arg = arg};
    buf_init(&ev.line, MAX_RESPONSE);
    ev.curl = prepare(url, body, &headers);
    if (!ev.curl) return err_set(e, ERR_NOMEM, "no memory for a connection");
    curl_easy_setopt(ev.curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(ev.curl, CURLOPT_WRITEDATA, &ev);
    CURLcode rc = curl_easy_perform(ev.curl);
    long status = 0;
    curl_easy_getinfo(ev.curl, CURLINFO_RESPONSE_CODE, &status);
    // The last line may come without its end.
    if (!rc && status == 200 && take_line(&ev)) ev.stopped = true;
    int out = ERR_OK;
    if (ev.stopped || (ev.done && status == 200)) // what fails behind the end of the answer takes nothing from it
        out = ERR_OK;
    else if (rc)
        out = transfer_error(url, rc, ev.line.max_bytes, e);
    else if (status != 200)
        out = server_error(url, status, &ev.line, e);
    else
        out = err_set(e, ERR_NET, "%s: the answer broke off: its stream has no end", url);
    curl_easy_cleanup(ev.curl);
    curl_slist_free_all(headers);
    buf_fini(&ev.line);
    return out;
}
