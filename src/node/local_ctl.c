#include "node/local_ctl.h"

#include "base/limits.h"
#include "base/log.h"
#include "os/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { REQUEST_BYTES = 32, POLL_MS = 50, ANSWER_S = 10 };

struct client {
    struct local_ctl *ctl;
    int fd; // -1: the place is free
    bool waits;
    char line[REQUEST_BYTES];
    size_t len_bytes;
    struct loop_watch *watch;
    struct loop_timer *timer; // the end of its time, or, waits: the next look
};

struct local_ctl {
    struct loop *loop;
    struct presence *presence;
    int fd;
    struct loop_watch *watch;
    char path[LIMIT_PATH];
    struct client clients[LOCAL_CTL_CLIENTS];
};

// A path that is too long for a socket is reached by way of its folder; *dir is then that folder's descriptor, else -1.
static int find_address(const char *state_dir, struct sockaddr_un *a, int *dir, struct err *e) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    *dir = -1;
    int n = snprintf(a->sun_path, sizeof a->sun_path, "%s/node.sock", state_dir);
    if (n > 0 && (size_t)n < sizeof a->sun_path) return ERR_OK;
    *dir = open(state_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dir < 0) return err_set(e, ERR_IO, "%s: %s", state_dir, strerror(errno));
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/node.sock", *dir);
    return ERR_OK;
}

enum local_ctl_word local_ctl_parse(const char *line, size_t len_bytes) {
    static const struct {
        const char *text;
        enum local_ctl_word word;
    } words[] = {{"pause", LOCAL_CTL_PAUSE},
                 {"pause wait", LOCAL_CTL_PAUSE_WAIT},
                 {"resume", LOCAL_CTL_RESUME},
                 {"show", LOCAL_CTL_SHOW}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (len_bytes == strlen(words[i].text) && !memcmp(line, words[i].text, len_bytes)) return words[i].word;
    return LOCAL_CTL_NONE;
}

static void end_client(struct client *c) {
    loop_watch_free(c->watch);
    loop_timer_free(c->timer);
    if (c->fd >= 0) close(c->fd);
    *c = (struct client){.ctl = c->ctl, .fd = -1};
}

// One line fits into the buffer of a socket that carried nothing before, so nobody has to wait for it.
static void answer(struct client *c, const char *kind, const char *text) {
    char line[LOCAL_CTL_LINE_BYTES];
    int n = snprintf(line, sizeof line, "%s %s\n", kind, text);
    if (send(c->fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
        LOG_D("node", "node.sock: nobody took the answer");
    end_client(c);
}

static void answer_state(struct client *c) {
    char text[PRESENCE_TEXT_BYTES];
    presence_describe(c->ctl->presence, text);
    answer(c, "ok", text);
}

static void look_again(struct client *c) {
    struct presence *p = c->ctl->presence;
    if (!p->paused)
        answer(c, "error", "it was resumed meanwhile");
    else if (presence_is_away(p))
        answer_state(c);
    else
        loop_timer_set(c->timer, clock_now_us() + POLL_MS * 1000ull);
}

static void on_timer(void *arg) {
    struct client *c = arg;
    if (c->waits)
        look_again(c);
    else
        end_client(c);
}

static void obey(struct client *c, size_t line_bytes) {
    struct presence *p = c->ctl->presence;
    switch (local_ctl_parse(c->line, line_bytes)) {
    case LOCAL_CTL_PAUSE:
        presence_pause(p);
        answer_state(c);
        return;
    case LOCAL_CTL_PAUSE_WAIT:
        presence_pause(p);
        c->waits = true;
        look_again(c);
        return;
    case LOCAL_CTL_RESUME:
        presence_resume(p);
        answer_state(c);
        return;
    case LOCAL_CTL_SHOW:
        answer_state(c);
        return;
    case LOCAL_CTL_NONE:
        break;
    }
    answer(c, "error", "not one of: pause, pause wait, resume, show");
}

static void on_readable(void *arg) {
    struct client *c = arg;
    ssize_t n = recv(c->fd, c->line + c->len_bytes, sizeof c->line - c->len_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || c->waits) { // it is gone, or says more than it may
        end_client(c);
        return;
    }
    c->len_bytes += (size_t)n;
    const char *end = memchr(c->line, '\n', c->len_bytes);
    if (end)
        obey(c, (size_t)(end - c->line));
    else if (c->len_bytes == sizeof c->line)
        answer(c, "error", "the line is too long");
}

static bool may_ask(int fd) {
    struct ucred who;
    socklen_t n = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n)) return false;
    return who.uid == geteuid() || who.uid == 0;
}

static void on_connection(void *arg) {
    struct local_ctl *ctl = arg;
    int fd = accept4(ctl->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    struct client *c = NULL;
    for (int i = 0; i < LOCAL_CTL_CLIENTS && !c; i++)
        if (ctl->clients[i].fd < 0) c = &ctl->clients[i];
    if (!c || !may_ask(fd)) {
        close(fd);
        return;
    }
    c->fd = fd;
    c->watch = loop_watch_new(ctl->loop, fd, on_readable, c);
    c->timer = loop_timer_new(ctl->loop, on_timer, c);
    if (!c->watch || !c->timer)
        end_client(c);
    else
        loop_timer_set(c->timer, clock_now_us() + LOCAL_CTL_IDLE_MS * 1000ull);
}

static int listen_at(struct local_ctl *c, const char *state_dir, struct err *e) {
    struct sockaddr_un a;
    int dir, n = snprintf(c->path, sizeof c->path, "%s/node.sock", state_dir);
    if (n < 0 || (size_t)n >= sizeof c->path) return err_set(e, ERR_LIMIT, "the path is too long");
    int rc = find_address(state_dir, &a, &dir, e);
    if (rc) return rc;
    unlink(c->path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    // Whoever connects before chmod is asked who he is all the same.
    if (c->fd < 0 || bind(c->fd, (struct sockaddr *)&a, sizeof a) || chmod(c->path, 0600) ||
        listen(c->fd, LOCAL_CTL_CLIENTS))
        rc = err_set(e, ERR_IO, "%s: %s", c->path, strerror(errno));
    if (dir >= 0) close(dir);
    return rc;
}

void local_ctl_init(struct local_ctl **out, struct loop *l, const char *state_dir, struct presence *p) {
    struct err e = {.text = "no memory"};
    struct local_ctl *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c) {
        *c = (struct local_ctl){.loop = l, .presence = p, .fd = -1};
        for (int i = 0; i < LOCAL_CTL_CLIENTS; i++) c->clients[i] = (struct client){.ctl = c, .fd = -1};
        if (!listen_at(c, state_dir, &e)) c->watch = loop_watch_new(l, c->fd, on_connection, c);
        if (c->watch) {
            *out = c;
            return;
        }
    }
    LOG_W("node", "loom node pause will not work: %s", e.text);
    local_ctl_fini(c);
}

void local_ctl_fini(struct local_ctl *c) {
    if (!c) return;
    for (int i = 0; i < LOCAL_CTL_CLIENTS; i++) end_client(&c->clients[i]);
    loop_watch_free(c->watch);
    if (c->fd >= 0) {
        unlink(c->path);
        close(c->fd);
    }
    free(c);
}

// ---- The other end

static int dial(const char *state_dir, int *out, struct err *e) {
    struct sockaddr_un a;
    int dir, rc = find_address(state_dir, &a, &dir, e);
    if (rc) return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) {
        bool none = errno == ENOENT || errno == ECONNREFUSED;
        if (none)
            rc = err_set(e, ERR_NOT_FOUND, "no node runs with the state folder %s (--state)", state_dir);
        else
            rc = err_set(e, ERR_IO, "%s/node.sock: %s", state_dir, strerror(errno));
        if (fd >= 0) close(fd);
    }
    if (dir >= 0) close(dir);
    if (!rc) *out = fd;
    return rc;
}

// Up to the newline, which becomes the end.
static int read_line(int fd, char line[LOCAL_CTL_LINE_BYTES], struct err *e) {
    size_t len = 0;
    while (len < LOCAL_CTL_LINE_BYTES) {
        ssize_t n = recv(fd, line + len, 1, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(e, ERR_UNAVAILABLE, "the node does not answer: %s", strerror(errno));
        if (n == 0) return err_set(e, ERR_UNAVAILABLE, "the node ended, or has too many questions at once");
        if (line[len] == '\n') {
            line[len] = 0;
            return ERR_OK;
        }
        len++;
    }
    return err_set(e, ERR_FORMAT, "the node's answer is too long");
}

int local_ctl_ask(const char *state_dir, const char *request, char out[LOCAL_CTL_LINE_BYTES], struct err *e) {
    char line[LOCAL_CTL_LINE_BYTES];
    int fd, n = snprintf(line, sizeof line, "%s\n", request), rc = dial(state_dir, &fd, e);
    if (rc) return rc;
    struct timeval limit = {.tv_sec = strcmp(request, "pause wait") ? ANSWER_S : 0}; // 0: none
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
        rc = err_set(e, ERR_UNAVAILABLE, "the node does not listen: %s", strerror(errno));
    if (!rc) rc = read_line(fd, line, e);
    close(fd);
    if (rc) return rc;
    if (strncmp(line, "ok ", 3)) return err_set(e, ERR_UNAVAILABLE, "the node says: %s", line);
    snprintf(out, LOCAL_CTL_LINE_BYTES, "%s", line + 3);
    return ERR_OK;
}
