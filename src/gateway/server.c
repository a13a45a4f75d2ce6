#include "gateway/server.h"

#include "base/log.h"
#include "gateway/keep.h"
#include "os/clock.h"
#include "os/hostport.h"
#include "os/random.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { THREADS_MAX = 64, SPARE_FILES = 128, GOODBYE_MS = 1000, LISTEN_BACKLOG = 1024 };

static void log_line(void *cls, const char *fmt, va_list ap) {
    char line[256];
    (void)cls;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    LOG_D("http", "%s", line);
}

static void prepare_run(void *arg) {
    struct gateway *g = arg;
    struct answer *a;
    while ((a = queue_pop(&g->jobs, QUEUE_FOREVER)) != NULL) answer_prepare(a);
}

// "127.0.0.1:8080", "[::1]:0", "localhost:8080", ":8080" (every address). The caller frees *found.
static int resolve(const char *listen_addr, struct addrinfo **found, struct err *e) {
    struct hostport hp;
    char port[8];
    if (hostport_parse(listen_addr, &hp, e)) {
        err_prefix(e, "listen address");
        return ERR_USAGE;
    }
    snprintf(port, sizeof port, "%u", hp.port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int rc = getaddrinfo(hp.host[0] ? hp.host : NULL, port, &hints, found);
    if (rc == 0) return ERR_OK;
    return err_set(e, ERR_USAGE, "listen address '%s': %s; must be ADDR:PORT, as in 127.0.0.1:8080", listen_addr,
                   gai_strerror(rc));
}

// The daemon gets a socket that listens already, so that an error can say what is wrong with the address.
static int open_socket(const char *listen_addr, int *fd, uint32_t *port, struct err *e) {
    struct addrinfo *found = NULL;
    int rc = resolve(listen_addr, &found, e);
    if (rc) return rc;
    const int on = 1;
    int s = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool good = s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                bind(s, found->ai_addr, found->ai_addrlen) == 0 && listen(s, LISTEN_BACKLOG) == 0;
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } bound = {0};
    socklen_t len = sizeof bound;
    good = good && getsockname(s, &bound.any, &len) == 0;
    if (!good) {
        rc = err_set(e, ERR_NET, "listen address '%s': %s", listen_addr, strerror(errno));
        if (s >= 0) close(s);
    } else {
        *fd = s;
        *port = ntohs(bound.any.sa_family == AF_INET6 ? bound.in6.sin6_port : bound.in.sin_port);
    }
    freeaddrinfo(found);
    return rc;
}

int gateway_check_listen(const char *listen_addr, struct err *e) {
    int fd = -1;
    uint32_t port;
    int rc = open_socket(listen_addr, &fd, &port, e);
    if (!rc) close(fd);
    return rc;
}

static unsigned connection_limit(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > LIMIT_HTTP_CONNECTIONS + SPARE_FILES) {
        return LIMIT_HTTP_CONNECTIONS;
    }
    return files.rlim_cur > 2 * SPARE_FILES ? (unsigned)files.rlim_cur - SPARE_FILES : SPARE_FILES;
}

static int start_daemon(struct gateway *g, struct err *e) {
    int fd = -1;
    int rc = open_socket(g->config.listen_addr, &fd, &g->port, e);
    if (rc) return rc;
    unsigned threads = g->config.n_threads ? g->config.n_threads : 1;
    unsigned connections = connection_limit();
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    // A pool of one is refused; the option is left out then by ending the list there.
    struct MHD_OptionItem pool[] = {
        {threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)threads, NULL},
        {MHD_OPTION_END, 0, NULL}};
    g->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, exchange_handle, g,
        MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LIMIT_HTTP_HEADERS, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, exchange_completed, g, MHD_OPTION_NOTIFY_CONNECTION, watch_connection, g,
        MHD_OPTION_ARRAY, pool, MHD_OPTION_END);
    if (g->daemon) return ERR_OK;
    // The socket may be closed already: some of libmicrohttpd's failures do that, and its number may be in use again.
    return err_set(e, ERR_NET, "listen address '%s': the HTTP server did not start", g->config.listen_addr);
}

static void forget_all(void *arg, const struct gen_restored *list, uint32_t n) {
    const struct gateway_ops *ops = arg;
    for (uint32_t i = 0; i < n; i++) ops->forget(ops->head, list[i].id);
}

// Before the first connection: a client that comes back at once must find its answer.
static void restore(struct gateway *g) {
    struct gateway_ops *ops = &g->config.ops;
    if (g->shared.keep) {
        keep_restore(g->shared.keep);
    } else if (ops->restore) {
        ops->restore(ops->head, forget_all, ops);
    }
}

static int start(struct gateway *g, struct err *e) {
    int rc = queue_init(&g->jobs, LIMIT_HTTP_CONNECTIONS, false, e);
    if (rc) return rc;
    uint32_t preparers = g->config.n_threads < 2 ? 2 : g->config.n_threads;
    if (preparers > SERVER_PREPARERS_MAX) preparers = SERVER_PREPARERS_MAX;
    for (uint32_t i = 0; i < preparers && !rc; i++) {
        rc = thread_start(&g->preparers[i], "http-prepare", prepare_run, g, e);
        if (!rc) g->n_preparers++;
    }
    if (!rc && g->config.resume_ms) {
        g->shared.keep = keep_new(&g->shared, g->config.resume_ms);
        rc = g->shared.keep ? ERR_OK : err_set(e, ERR_NOMEM, "HTTP server: out of memory");
    }
    if (!rc) restore(g);
    if (!rc) rc = watch_start(g, e);
    if (!rc) rc = start_daemon(g, e);
    return rc;
}

static void stop_preparers(struct gateway *g) {
    queue_close(&g->jobs);
    for (uint32_t i = 0; i < g->n_preparers; i++) thread_join(&g->preparers[i]);
    g->n_preparers = 0;
}

int gateway_new(const struct gateway_config *c, struct gateway **out, struct err *e) {
    struct gateway *g = calloc(1, sizeof *g);
    if (!g) return err_set(e, ERR_NOMEM, "HTTP server: out of memory");
    g->config = *c;
    g->shared.config = &g->config;
    g->next_conn_id = 1;
    g->epoll_fd = g->stop_fd = -1;
    pthread_mutex_init(&g->lock, NULL);
    map_init(&g->conns, LIMIT_HTTP_CONNECTIONS, random_u64());
    int rc = start(g, e);
    if (rc) {
        gateway_free(g);
        return rc;
    }
    *out = g;
    return ERR_OK;
}

uint32_t gateway_port(const struct gateway *g) { return g->port; }

// Tells every client that waits for an answer; returns how many there were.
static size_t end_answers(struct gateway *g) {
    struct api_error e;
    uint64_t id;
    size_t at = 0, n = 0;
    void *value;
    errors_set(&e, 503, "shutdown", NULL, "The server is shutting down");
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    g->shared.stopping = true;
    while (map_next(&g->conns, &at, &id, &value)) {
        struct conn *c = value;
        if (!c->reader) continue;
        n++;
        reader_fail(c->reader, &e);
    }
    pthread_mutex_unlock(&g->lock);
    return n;
}

static void stop_daemon(struct gateway *g) {
    MHD_socket fd = MHD_quiesce_daemon(g->daemon);
    // Nobody sleeps after this, which libmicrohttpd demands of one who stops it; the time is for the last words to go
    // out.
    for (uint64_t end_ms = clock_now_ms() + GOODBYE_MS; end_answers(g) > 0 && clock_now_ms() < end_ms;)
        clock_sleep_ms(5);
    stop_preparers(g);
    MHD_stop_daemon(g->daemon);
    if (fd != MHD_INVALID_SOCKET) close(fd);
}

void gateway_free(struct gateway *g) {
    if (!g) return;
    g->shared.stopping = true;
    if (g->daemon) stop_daemon(g);
    stop_preparers(g);
    watch_stop(g);
    keep_free(g->shared.keep);
    g->shared.keep = NULL;
    // The head owes each answer a last event, which needs the answer's memory.
    for (uint64_t waited_ms = 0; g->shared.answers > 0; waited_ms += 5) {
        if (waited_ms % 5000 == 4995) LOG_W("gateway", "waiting for the head to end %u answers", g->shared.answers);
        clock_sleep_ms(5);
    }
    queue_fini(&g->jobs);
    map_fini(&g->conns);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
