// The listening half of link.h.
#include "net/link_int.h"

#include "base/log.h"
#include "net/address.h"
#include "os/clock.h"

#include <errno.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 128, PAUSE_MS = 200 };

struct listener {
    struct loop *loop;
    struct tls *tls;
    struct evconnlistener *ev;
    struct loop_timer *resume;
    const struct link_handlers *handlers;
    void *arg;
    uint32_t n_links;
    bool freed; // links still count here
};

static void maybe_free(struct listener *n) {
    if (n->freed && n->n_links == 0) free(n);
}

void listener_link_gone(struct listener *n) {
    n->n_links--;
    maybe_free(n);
}

static void on_accept(struct evconnlistener *ev, evutil_socket_t fd, struct sockaddr *sa, int len, void *arg) {
    (void)ev;
    (void)len;
    struct listener *n = arg;
    struct link *l;
    struct err e;
    if (n->n_links >= LIMIT_LINKS) {
        close(fd);
        return;
    }
    if (link_new(n->loop, n->tls, fd, "", n->handlers, n->arg, &l, &e)) {
        LOG_W("net", "a connection could not be taken: %s", e.text);
        return;
    }
    l->listener = n;
    n->n_links++;
    address_format(sa, 1, l->peer_address, sizeof l->peer_address);
}

// Out of descriptors, mostly: the waiting connection stays in the backlog, and trying again at once would spin.
static void on_error(struct evconnlistener *ev, void *arg) {
    struct listener *n = arg;
    LOG_W("net", "accept: %s", strerror(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(ev);
    loop_timer_set(n->resume, clock_now_us() + PAUSE_MS * 1000ull);
}

static void on_resume(void *arg) {
    struct listener *n = arg;
    evconnlistener_enable(n->ev);
}

int listener_new(struct loop *l, struct tls *tls, const char *address, const struct link_handlers *h, void *arg,
                 struct listener **out, struct err *e) {
    struct sockaddr_storage ss;
    socklen_t len;
    int rc = address_parse(address, &ss, &len, e);
    if (rc) return rc;
    struct listener *n = calloc(1, sizeof *n);
    if (!n) return err_set(e, ERR_NOMEM, "listener: no memory");
    *n = (struct listener){.loop = l, .tls = tls, .handlers = h, .arg = arg};
    tls_ref(tls);
    n->resume = loop_timer_new(l, on_resume, n);
    if (n->resume)
        n->ev = evconnlistener_new_bind(loop_base(l), on_accept, n,
                                        LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, BACKLOG,
                                        (struct sockaddr *)&ss, (int)len);
    if (!n->ev) {
        rc = err_set(e, ERR_NET, "listen on %s: %s", address, n->resume ? strerror(errno) : "no memory");
        listener_free(n);
        return rc;
    }
    evconnlistener_set_error_cb(n->ev, on_error);
    *out = n;
    return ERR_OK;
}

void listener_free(struct listener *n) {
    if (!n) return;
    if (n->ev) evconnlistener_free(n->ev);
    loop_timer_free(n->resume);
    tls_free(n->tls);
    n->freed = true;
    maybe_free(n);
}

uint32_t listener_port(const struct listener *n) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    if (getsockname(evconnlistener_get_fd(n->ev), (struct sockaddr *)&ss, &len)) return 0;
    char text[LINK_ADDRESS_MAX];
    address_format((struct sockaddr *)&ss, 1, text, sizeof text);
    return (uint32_t)strtoul(strrchr(text, ':') + 1, NULL, 10);
}
