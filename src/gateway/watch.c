#include "gateway/server.h"

#include "base/log.h"
#include "gateway/keep.h"
#include "os/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEADER_MS = 15000,
    IDLE_MS = 75000,
    TICK_MS = 200,
    EVENTS = 64,
    REPLY_MIN_BYTES_PER_MS = 1, // a reader of a whole answer that is slower is cut off
    LOST_PEER_MS = 30000        // data that nobody acknowledges for so long ends the connection
};

static const uint64_t STOP_ID = 0; // connections count from 1

// A peer that vanished without a word is found by the kernel: by keep-alive probes while nothing is sent, by the user
// time-out otherwise. Both are wishes.
static void set_socket(int fd) {
    const int on = 1, idle_s = 15, interval_s = 5, probes = 3, lost_ms = LOST_PEER_MS;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof lost_ms);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static uint64_t header_ms(const struct gateway *g) { return g->config.header_ms ? g->config.header_ms : HEADER_MS; }

static uint64_t phase_deadline(const struct gateway *g, enum watch_phase phase, size_t reply_bytes) {
    uint64_t now = clock_now_ms();
    switch (phase) {
    case WATCH_HEADER:
        return now + header_ms(g);
    case WATCH_BODY:
        return now + 2 * header_ms(g);
    case WATCH_REPLY:
        return now + LOST_PEER_MS + reply_bytes / REPLY_MIN_BYTES_PER_MS;
    case WATCH_IDLE:
        return now + (g->config.idle_ms ? g->config.idle_ms : IDLE_MS);
    }
    return 0;
}

void watch_phase(struct gateway *g, struct conn *c, enum watch_phase phase, size_t reply_bytes) {
    if (!c) return;
    pthread_mutex_lock(&g->lock);
    c->deadline_ms = phase_deadline(g, phase, reply_bytes);
    pthread_mutex_unlock(&g->lock);
}

static void open_connection(struct gateway *g, int fd, void **context) {
    struct conn *c = calloc(1, sizeof *c);
    if (!c) return;
    set_socket(fd);
    c->fd = fd;
    c->deadline_ms = phase_deadline(g, WATCH_HEADER, 0);
    pthread_mutex_lock(&g->lock);
    c->id = g->next_conn_id++;
    bool added = map_put(&g->conns, c->id, c) == ERR_OK;
    pthread_mutex_unlock(&g->lock);
    if (!added) {
        free(c);
        return;
    }
    g->shared.metrics.connections++;
    *context = c;
}

void watch_connection(void *gateway, struct MHD_Connection *connection, void **context,
                      enum MHD_ConnectionNotificationCode code) {
    struct gateway *g = gateway;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (info) open_connection(g, info->connect_fd, context);
        return;
    }
    // The socket is still open here: under the lock nobody else touches its number.
    struct conn *c = *context;
    if (!c) return;
    pthread_mutex_lock(&g->lock);
    map_remove(&g->conns, c->id);
    if (c->watched) epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    pthread_mutex_unlock(&g->lock);
    free(c);
    *context = NULL;
    g->shared.metrics.connections--;
}

bool watch_reader(struct gateway *g, struct conn *c, struct reader *r) {
    pthread_mutex_lock(&g->lock);
    bool stopping = g->stopping;
    if (!stopping) {
        // One shot: a hang-up stays true, and one look at it is enough.
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = c->id};
        c->reader = r;
        c->deadline_ms = 0;
        if (epoll_ctl(g->epoll_fd, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev) == 0) c->watched = true;
    }
    pthread_mutex_unlock(&g->lock);
    return !stopping;
}

void watch_no_reader(struct gateway *g, struct conn *c) {
    pthread_mutex_lock(&g->lock);
    struct epoll_event ev = {.events = EPOLLONESHOT, .data.u64 = c->id};
    c->reader = NULL;
    if (c->watched) epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
    pthread_mutex_unlock(&g->lock);
}

// The client hung up, or closed its half: nobody reads the rest.
static void hang_up(struct gateway *g, uint64_t id) {
    pthread_mutex_lock(&g->lock);
    struct conn *c = map_get(&g->conns, id);
    struct reader *r = c ? c->reader : NULL;
    if (r) reader_ref(r);
    pthread_mutex_unlock(&g->lock);
    if (!r) return;
    reader_gone(r);
    reader_unref(r);
}

// Deadlines of all connections. shutdown() is enough: libmicrohttpd sees the end and closes.
static void tick(struct gateway *g) {
    struct metrics *m = &g->shared.metrics;
    uint64_t now = clock_now_ms(), id;
    size_t at = 0;
    void *value;
    pthread_mutex_lock(&g->lock);
    while (map_next(&g->conns, &at, &id, &value)) {
        struct conn *c = value;
        if (c->deadline_ms && now >= c->deadline_ms) {
            c->deadline_ms = 0;
            m->late_headers++;
            shutdown(c->fd, SHUT_RDWR);
        } else if (c->reader && reader_tick(c->reader, now)) {
            m->stalls++;
            shutdown(c->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&g->lock);
    if (g->shared.keep) keep_tick(g->shared.keep, now);
}

static void watch_run(void *arg) {
    struct gateway *g = arg;
    struct epoll_event events[EVENTS];
    uint64_t next_tick = clock_now_ms() + TICK_MS;
    for (;;) {
        uint64_t now = clock_now_ms();
        int n = epoll_wait(g->epoll_fd, events, EVENTS, now >= next_tick ? 0 : (int)(next_tick - now));
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == STOP_ID) return;
            hang_up(g, events[i].data.u64);
        }
        if (clock_now_ms() < next_tick) continue;
        tick(g);
        next_tick = clock_now_ms() + TICK_MS;
    }
}

int watch_start(struct gateway *g, struct err *e) {
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = STOP_ID};
    if (g->epoll_fd < 0 || g->stop_fd < 0 || epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->stop_fd, &ev) != 0) {
        return err_set(e, ERR_IO, "HTTP server: epoll: %s", strerror(errno));
    }
    int rc = thread_start(&g->watcher, "http-watch", watch_run, g, e);
    g->watching = rc == ERR_OK;
    return rc;
}

void watch_stop(struct gateway *g) {
    const uint64_t one = 1;
    if (g->watching) {
        ssize_t n = write(g->stop_fd, &one, sizeof one);
        ASSERT(n == sizeof one, "an eventfd takes a one");
        thread_join(&g->watcher);
        g->watching = false;
    }
    if (g->epoll_fd >= 0) close(g->epoll_fd);
    if (g->stop_fd >= 0) close(g->stop_fd);
    g->epoll_fd = g->stop_fd = -1;
}
