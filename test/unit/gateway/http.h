// A plain HTTP client over a blocking socket, for tests: it sends exactly the bytes it is told to.
#pragma once
#include "base/buf.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { HTTP_MAX_BYTES = 64 << 20 };

struct response {
    int status; // 0: the connection ended before a whole response
    char head[8192];
    struct buf body; // de-chunked, NUL-terminated
    bool cut;        // it ended before its end
};

static inline int http_connect(uint32_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ASSERT(connect(fd, (struct sockaddr *)&a, sizeof a) == 0, "connect");
    return fd;
}

static inline bool http_send(int fd, const char *data, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static inline bool http_post(int fd, const char *path, const char *body) {
    struct buf b;
    buf_init(&b, HTTP_MAX_BYTES);
    ASSERT(buf_addf(&b,
                    "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                    path, strlen(body), body) == ERR_OK);
    bool good = http_send(fd, (char *)b.data, b.len_bytes);
    buf_fini(&b);
    return good;
}

// A server that falls silent is a failure, not an end.
static inline ssize_t http_recv(int fd, void *to, size_t n) {
    ssize_t got = recv(fd, to, n, 0);
    ASSERT(got >= 0 || errno != EAGAIN, "the server is silent");
    return got;
}

static inline bool http_byte(int fd, char *c) { return http_recv(fd, c, 1) == 1; }

static inline bool http_line(int fd, char *line, size_t cap) {
    size_t n = 0;
    char c;
    while (http_byte(fd, &c)) {
        if (c == '\n') {
            line[n - (n > 0 && line[n - 1] == '\r')] = 0;
            return true;
        }
        if (n + 1 < cap) line[n++] = c;
    }
    return false;
}

static inline bool http_bytes(int fd, size_t n, struct buf *out) {
    ASSERT(buf_reserve(out, n + 1) == ERR_OK);
    while (n > 0) {
        ssize_t got = http_recv(fd, out->data + out->len_bytes, n);
        if (got <= 0) return false;
        out->len_bytes += (size_t)got;
        n -= (size_t)got;
    }
    return true;
}

static inline bool http_header(const struct response *r, const char *name, char *value, size_t cap) {
    size_t len = strlen(name);
    for (const char *at = r->head; (at = strchr(at, '\n')) != NULL;) {
        at++;
        if (strncasecmp(at, name, len) != 0 || at[len] != ':') continue;
        size_t n = strcspn(at + len + 2, "\n");
        snprintf(value, cap, "%.*s", (int)n, at + len + 2);
        return true;
    }
    return false;
}

// Reads status line and headers.
static inline bool http_read_head(int fd, struct response *r) {
    char line[4096];
    *r = (struct response){0};
    buf_init(&r->body, HTTP_MAX_BYTES);
    size_t n = 0;
    while (http_line(fd, line, sizeof line)) {
        if (!line[0]) {
            static const char version[] = "HTTP/1.1 ";
            bool known = strncmp(r->head, version, strlen(version)) == 0;
            r->status = known ? (int)strtol(r->head + strlen(version), NULL, 10) : 0;
            return true;
        }
        if (n + strlen(line) + 2 < sizeof r->head) n += (size_t)sprintf(r->head + n, "%s\n", line);
    }
    return false;
}

static inline bool http_read_chunk(int fd, struct response *r, bool *end) {
    char line[64], crlf[4];
    if (!http_line(fd, line, sizeof line)) return false;
    size_t n = strtoul(line, NULL, 16);
    *end = n == 0;
    return http_bytes(fd, n, &r->body) && http_line(fd, crlf, sizeof crlf);
}

static inline void http_read_body(int fd, struct response *r, bool none) {
    char value[64];
    bool end = none;
    if (http_header(r, "Transfer-Encoding", value, sizeof value)) {
        while (!end && !r->cut) r->cut = !http_read_chunk(fd, r, &end);
    } else if (!none && http_header(r, "Content-Length", value, sizeof value)) {
        r->cut = !http_bytes(fd, strtoul(value, NULL, 10), &r->body);
    }
    ASSERT(buf_cstr(&r->body) != NULL);
}

static inline void http_read(int fd, struct response *r) {
    if (http_read_head(fd, r)) {
        http_read_body(fd, r, false);
    } else {
        ASSERT(buf_cstr(&r->body) != NULL);
    }
}

static inline const char *http_text(const struct response *r) { return (const char *)r->body.data; }

static inline void http_fini(struct response *r) { buf_fini(&r->body); }
