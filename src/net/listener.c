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
    struct list links[LINK_ENDED + 1]; // the oldest first
    uint32_t n_links[LINK_ENDED + 1];
};

static void place(struct link *l, enum link_place to) {
    struct listener *n = l->listener;
    list_remove(&l->in_listener);
    n->n_links[l->place]--;
    list_push_back(&n->links[to], &l->in_listener);
    n->n_links[to]++;
    l->place = to;
}

void listener_link_ended(struct link *l) {
    if (l->listener) place(l, LINK_ENDED);
}

void listener_link_gone(struct link *l) {
    if (!l->listener) return;
    list_remove(&l->in_listener);
    l->listener->n_links[l->place]--;
    l->listener = NULL;
}

bool listener_link_proven(struct link *l) {
    if (!l->listener) return true; // one that was dialled
    if (l->listener->n_links[LINK_PROVEN] >= LIMIT_LINKS) return false;
    place(l, LINK_PROVEN);
    return true;
}

// The oldest unproven link, of this host if there is one; counts those of the host.
static struct link *oldest(struct listener *n, const char *host, uint32_t *count) {
    struct link *first = NULL;
    *count = 0;
    LIST_EACH(it, &n->links[LINK_UNPROVEN]) {
        struct link *l = LIST_ENTRY(it, struct link, in_listener);
        if (host && strcmp(l->host, host) != 0) continue;
        if (!first) first = l;
        ++*count;
    }
    return first;
}

static void make_room(struct listener *n, const char *host) {
    uint32_t count;
    struct link *l = oldest(n, host, &count);
    if (count < LIMIT_LINKS_OF_HOST || address_is_loopback(host)) l = NULL;
    if (!l && n->n_links[LINK_UNPROVEN] >= LIMIT_LINKS_UNPROVEN) l = oldest(n, NULL, &count);
    if (l) link_fail(l, "too many connections that do not say who they are");
}

static void on_accept(struct evconnlistener *ev, evutil_socket_t fd, struct sockaddr *sa, int len, void *arg) {
    (void)ev;
    (void)len;
    struct listener *n = arg;
    struct link *l;
    struct err e;
    char host[LINK_ADDRESS_MAX];
    address_format(sa, 0, host, sizeof host);
    make_room(n, host);
    if (link_new(n->loop, n->tls, fd, "", n->handlers, n->arg, &l, &e)) {
        LOG_W("net", "a connection could not be taken: %s", e.text);
        return;
    }
    l->listener = n;
    list_push_back(&n->links[LINK_UNPROVEN], &l->in_listener);
    n->n_links[LINK_UNPROVEN]++;
    memcpy(l->host, host, sizeof l->host);
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
    for (int i = 0; i <= LINK_ENDED; i++) list_init(&n->links[i]);
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
    for (int i = 0; i <= LINK_ENDED; i++)
        LIST_EACH(it, &n->links[i]) link_discard(LIST_ENTRY(it, struct link, in_listener));
    loop_timer_free(n->resume);
    tls_free(n->tls);
    free(n);
}

uint32_t listener_port(const struct listener *n) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    if (getsockname(evconnlistener_get_fd(n->ev), (struct sockaddr *)&ss, &len)) return 0;
    char text[LINK_ADDRESS_MAX];
    address_format((struct sockaddr *)&ss, 1, text, sizeof text);
    return (uint32_t)strtoul(strrchr(text, ':') + 1, NULL, 10);
}
