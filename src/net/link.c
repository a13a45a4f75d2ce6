#include "net/link_int.h"

#include "base/crc32c.h"
#include "net/address.h"
#include "net/ca_int.h"
#include "os/clock.h"
#include "os/guard.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SINGLE_IO_BYTES = 256 << 10,
    UNACKED_MS = 60000,          // also how long a peer that lives may read nothing, see link_hold
    BULK_SEND_BYTES = 256 << 10, // of the kernel's buffer
    BULK_UNSENT_BYTES = 64 << 10
};
// What the kernel's queues and, on Wi-Fi, the radio's go by: the priorities are those of <linux/pkt_sched.h>.
enum { PRIORITY_BULK = 2, PRIORITY_URGENT = 6, TOS_BULK = IPTOS_CLASS_CS1, TOS_URGENT = IPTOS_DSCP_AF41 };

// The guardian may hold a duplicate of the socket, so closing it alone would not end the connection.
static void end_socket(const struct link *l) {
    int fd = bufferevent_getfd(l->bev);
    if (fd < 0) return;
    guard_fd_remove(fd);
    shutdown(fd, SHUT_RDWR);
}

static void free_link(struct link *l) {
    listener_link_gone(l);
    loop_timer_free(l->shake);
    loop_timer_free(l->end);
    if (l->bev) {
        SSL *ssl = bufferevent_openssl_get_ssl(l->bev);
        if (l->up && !l->why[0]) { // close_notify, as far as the socket takes it at once
            SSL_shutdown(ssl);
            ERR_clear_error();
        }
        end_socket(l);
        bufferevent_setcb(l->bev, NULL, NULL, NULL, NULL);
        bufferevent_free(l->bev);
    }
    tls_free(l->tls);
    free(l->body);
    free(l);
}

// Ends the link; closed() follows from the loop, never from inside the call that met the end.
void link_fail(struct link *l, const char *why) {
    if (l->ended) return;
    l->ended = true;
    snprintf(l->why, sizeof l->why, "%s", why);
    listener_link_ended(l);
    bufferevent_disable(l->bev, EV_READ | EV_WRITE);
    loop_timer_set(l->end, 0);
}

static void on_end(void *arg) {
    struct link *l = arg;
    l->inside++;
    if (!l->silent) l->handlers->closed(l->arg, l, l->why);
    free_link(l);
}

static void on_deadline(void *arg) {
    struct link *l = arg;
    link_fail(l, l->finishing ? "the peer does not read"
                 : l->up      ? "the peer did not say what it wants"
                              : "no handshake in time");
}

// Leaves a callback into the owner, who may have closed the link there.
static bool leave(struct link *l) {
    l->inside--;
    if (l->inside || !l->ended || !l->silent) return l->ended;
    free_link(l);
    return true;
}

void link_close(struct link *l) {
    if (!l || (l->ended && l->silent)) return;
    l->silent = true;
    bool again = l->ended; // closed() was on its way
    l->ended = true;
    bufferevent_disable(l->bev, EV_READ | EV_WRITE);
    if (!l->inside)
        free_link(l);
    else if (again)
        loop_timer_set(l->end, UINT64_MAX);
}

void link_discard(struct link *l) {
    l->silent = l->ended = true;
    free_link(l);
}

void link_finish(struct link *l) {
    if (!l || (l->ended && l->silent)) return;
    if (l->ended || link_waiting_bytes(l) == 0) {
        link_close(l);
        return;
    }
    l->silent = l->finishing = true;
    bufferevent_disable(l->bev, EV_READ);
    loop_timer_set(l->shake, clock_now_us() + LINK_SHAKE_MS * 1000ull);
}

static int grow_body(struct link *l, uint64_t bytes) {
    if (bytes <= l->body_cap) return ERR_OK;
    uint64_t cap = (bytes + 4095) / 4096 * 4096;
    free(l->body);
    l->body = aligned_alloc(FRAME_ALIGN, cap);
    l->body_cap = l->body ? cap : 0;
    return l->body ? ERR_OK : ERR_NOMEM;
}

// Takes the next whole frame out of the input. False: there is none yet, or the link ended.
static bool next_frame(struct link *l, struct evbuffer *in, struct link_frame *f) {
    struct err e;
    if (!l->have_header) {
        uint8_t raw[FRAME_HEADER_BYTES];
        if (evbuffer_get_length(in) < sizeof raw) return false;
        evbuffer_remove(in, raw, sizeof raw);
        if (frame_unpack(raw, l->max_control_bytes, l->max_payload_bytes, &l->header, &e)) {
            link_fail(l, e.text);
            return false;
        }
        l->have_header = true;
    }
    uint64_t bytes = frame_body_bytes(&l->header);
    if (evbuffer_get_length(in) < bytes) return false;
    uint32_t shift = frame_body_shift(&l->header);
    if (grow_body(l, shift + bytes)) {
        link_fail(l, "no memory for a frame");
        return false;
    }
    uint8_t *body = l->body + shift;
    if (bytes) evbuffer_remove(in, body, bytes);
    if (frame_check_body(&l->header, body, &e)) {
        link_fail(l, e.text);
        return false;
    }
    l->have_header = false;
    l->received_bytes += FRAME_HEADER_BYTES + bytes;
    f->h = l->header;
    f->control = body;
    f->payload = l->header.payload_bytes ? body + frame_payload_offset(&l->header) : NULL;
    return true;
}

static void on_read(struct bufferevent *bev, void *arg) {
    struct link *l = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct link_frame f;
    while (!l->ended && !l->finishing && !l->held && next_frame(l, in, &f)) {
        l->inside++;
        l->handlers->frame(l->arg, l, &f);
        if (leave(l)) return;
    }
    if (l->ended) return;
    // Until all of a frame is there, nobody needs to be called.
    bufferevent_setwatermark(bev, EV_READ, l->have_header ? (size_t)frame_body_bytes(&l->header) : FRAME_HEADER_BYTES,
                             0);
}

static void on_written(struct bufferevent *bev, void *arg) {
    struct link *l = arg;
    (void)bev;
    if (l->finishing && !l->ended && link_waiting_bytes(l) == 0) {
        l->ended = true;
        free_link(l);
        return;
    }
    if (l->ended || !l->full || link_waiting_bytes(l) >= LINK_LOW_BYTES) return;
    l->full = false;
    if (l->finishing || !l->handlers->drained) return;
    l->inside++;
    l->handlers->drained(l->arg, l);
    leave(l);
}

static void name_peer(struct link *l) {
    X509 *cert = SSL_get1_peer_certificate(bufferevent_openssl_get_ssl(l->bev));
    if (cert) ca_name_of(cert, l->peer_name);
    X509_free(cert);
    struct sockaddr_storage ss;
    socklen_t n = sizeof ss;
    if (getpeername(bufferevent_getfd(l->bev), (struct sockaddr *)&ss, &n) == 0)
        address_format((struct sockaddr *)&ss, 1, l->peer_address, sizeof l->peer_address);
}

static void set_urgency(struct link *l, int fd) {
    int priority = l->bulk ? PRIORITY_BULK : PRIORITY_URGENT, tos = l->bulk ? TOS_BULK : TOS_URGENT;
    int send = BULK_SEND_BYTES, unsent = l->bulk ? BULK_UNSENT_BYTES : -1;
    if (!l->bulk && l->was_bulk) send = 1 << 30; // the kernel's own choice does not come back: as much as it allows
    if (l->bulk || l->was_bulk) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof send);
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    }
    l->was_bulk |= l->bulk;
    setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos); // sets a priority too, so before it
    setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
    setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
}

static void set_socket_options(struct link *l, int fd) {
    int one = 1, unacked = UNACKED_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked, sizeof unacked);
    set_urgency(l, fd);
}

void link_set_bulk(struct link *l, bool bulk) {
    if (l->bulk == bulk) return;
    l->bulk = bulk;
    if (l->up && !l->ended) set_urgency(l, bufferevent_getfd(l->bev)); // else when it comes up
}

void link_hold(struct link *l, bool hold) {
    if (l->held == hold) return;
    l->held = hold;
    if (l->ended || l->finishing) return;
    if (hold) {
        bufferevent_disable(l->bev, EV_READ);
    } else {
        bufferevent_enable(l->bev, EV_READ);
        bufferevent_trigger(l->bev, EV_READ, 0); // what lies there already; deferred, as all its callbacks
    }
}

// libevent hands on a failed system call under TLS as the bare code SSL_ERROR_SYSCALL; the reason is in errno then.
static void describe_end(struct link *l, short what, int socket_error, char *out, size_t out_bytes) {
    unsigned long ssl_error = bufferevent_get_openssl_error(l->bev);
    char reason[160];
    if (ssl_error && ERR_GET_LIB(ssl_error)) {
        ERR_error_string_n(ssl_error, reason, sizeof reason);
        long verified = SSL_get_verify_result(bufferevent_openssl_get_ssl(l->bev));
        snprintf(out, out_bytes, "TLS: %s%s%s", reason, verified == X509_V_OK ? "" : ": ",
                 verified == X509_V_OK ? "" : X509_verify_cert_error_string(verified));
    } else if (what & BEV_EVENT_EOF || socket_error == 0) {
        snprintf(out, out_bytes, "the peer closed the connection");
    } else {
        snprintf(out, out_bytes, "%s", strerror(socket_error));
    }
    ERR_clear_error();
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    struct link *l = arg;
    int socket_error = EVUTIL_SOCKET_ERROR(); // before another call changes it
    if (l->ended) return;
    if (what & BEV_EVENT_CONNECTED) {
        l->up = true;
        set_socket_options(l, bufferevent_getfd(bev));
        guard_fd_add(bufferevent_getfd(bev));
        name_peer(l);
        if (l->peer_name[0] && !listener_link_proven(l)) {
            link_fail(l, "too many links");
            return;
        }
        l->inside++;
        if (l->handlers->up) l->handlers->up(l->arg, l);
        leave(l);
        return;
    }
    char why[256];
    describe_end(l, what, socket_error, why, sizeof why);
    link_fail(l, why);
}

int link_new(struct loop *loop, struct tls *tls, int fd, const char *want_name, const struct link_handlers *h,
             void *arg, struct link **out, struct err *e) {
    struct link *l = calloc(1, sizeof *l);
    SSL *ssl = NULL;
    if (l) {
        *l = (struct link){.loop = loop,
                           .tls = tls,
                           .handlers = h,
                           .arg = arg,
                           .max_control_bytes = LINK_FIRST_CONTROL,
                           .max_queue_bytes = LINK_QUEUE_BYTES};
        snprintf(l->want_name, sizeof l->want_name, "%s", want_name);
        tls_ref(tls);
        l->shake = loop_timer_new(loop, on_deadline, l);
        l->end = loop_timer_new(loop, on_end, l);
        ssl = tls_ssl(tls, l->want_name);
    }
    if (ssl && l->shake && l->end)
        l->bev = bufferevent_openssl_socket_new(loop_base(loop), fd, ssl,
                                                fd < 0 ? BUFFEREVENT_SSL_CONNECTING : BUFFEREVENT_SSL_ACCEPTING,
                                                BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!l || !l->bev) {
        SSL_free(ssl);
        if (fd >= 0) close(fd);
        if (l) free_link(l);
        return err_set(e, ERR_NOMEM, "link: no memory");
    }
    bufferevent_set_max_single_read(l->bev, SINGLE_IO_BYTES);
    bufferevent_set_max_single_write(l->bev, SINGLE_IO_BYTES);
    bufferevent_setwatermark(l->bev, EV_READ, FRAME_HEADER_BYTES, 0);
    bufferevent_setwatermark(l->bev, EV_WRITE, LINK_LOW_BYTES - 1, 0);
    bufferevent_setcb(l->bev, on_read, on_written, on_event, l);
    bufferevent_enable(l->bev, EV_READ | EV_WRITE);
    loop_timer_set(l->shake, clock_now_us() + LINK_SHAKE_MS * 1000ull);
    *out = l;
    return ERR_OK;
}

int link_connect(struct loop *loop, struct tls *tls, const char *address, const char *want_name,
                 const struct link_handlers *h, void *arg, struct link **out, struct err *e) {
    struct sockaddr_storage ss;
    socklen_t len;
    int rc = address_parse(address, &ss, &len, e);
    if (!rc) rc = link_new(loop, tls, -1, want_name, h, arg, out, e);
    if (rc) return rc;
    snprintf((*out)->peer_address, sizeof(*out)->peer_address, "%s", address);
    (*out)->inside++; // a refusal that comes at once has to wait for the caller
    if (bufferevent_socket_connect((*out)->bev, (struct sockaddr *)&ss, (int)len)) link_fail(*out, strerror(errno));
    (*out)->inside--;
    return ERR_OK;
}

void link_set_handlers(struct link *l, const struct link_handlers *h, void *arg) {
    l->handlers = h;
    l->arg = arg;
}

void link_settle(struct link *l) {
    l->settled = true;
    if (!l->finishing) loop_timer_set(l->shake, UINT64_MAX);
}

void link_set_limits(struct link *l, uint32_t max_control_bytes, uint32_t max_payload_bytes, uint64_t max_queue_bytes) {
    l->max_control_bytes = max_control_bytes;
    l->max_payload_bytes = max_payload_bytes;
    l->max_queue_bytes = max_queue_bytes;
}

uint64_t link_waiting_bytes(const struct link *l) { return evbuffer_get_length(bufferevent_get_output(l->bev)); }

// Whether so many bytes more may wait. A peer that is slower than the bound is as bad as a dead one.
static bool has_room(struct link *l, uint64_t bytes) {
    if (l->ended || l->finishing) return false;
    uint64_t waiting = link_waiting_bytes(l);
    if (waiting + bytes <= l->max_queue_bytes) {
        l->full |= waiting + bytes >= LINK_LOW_BYTES;
        return true;
    }
    char why[128];
    snprintf(why, sizeof why, "the peer reads too slowly: %lu bytes wait, the limit is %lu", waiting + bytes,
             l->max_queue_bytes);
    link_fail(l, why);
    return false;
}

void link_send(struct link *l, struct frame_header h, struct control_bytes control, const void *payload,
               uint32_t payload_bytes, const void *payload2, uint32_t payload2_bytes) {
    static const uint8_t zeros[FRAME_PAD];
    h.control_bytes = control.len;
    h.payload_bytes = payload_bytes + payload2_bytes;
    h.body_crc = frame_crc(control.data, control.len, payload, payload_bytes);
    if (payload2_bytes) h.body_crc = crc32c(h.body_crc, payload2, payload2_bytes);
    uint64_t bytes = FRAME_HEADER_BYTES + frame_body_bytes(&h);
    if (!has_room(l, bytes)) return;
    uint8_t raw[FRAME_HEADER_BYTES];
    frame_pack(&h, raw);
    // One piece of memory a frame, so that a small one becomes one TLS record and one packet.
    struct evbuffer *out = bufferevent_get_output(l->bev);
    int rc = evbuffer_expand(out, bytes);
    if (!rc) rc = evbuffer_add(out, raw, sizeof raw);
    if (!rc && control.len) rc = evbuffer_add(out, control.data, control.len);
    if (!rc) rc = evbuffer_add(out, zeros, frame_payload_offset(&h) - control.len);
    if (!rc && payload_bytes) rc = evbuffer_add(out, payload, payload_bytes);
    if (!rc && payload2_bytes) rc = evbuffer_add(out, payload2, payload2_bytes);
    if (rc)
        link_fail(l, "no memory for output");
    else
        l->sent_bytes += bytes;
}

void link_send_control(struct link *l, struct frame_header h, struct control_bytes control) {
    link_send(l, h, control, NULL, 0, NULL, 0);
}

static void free_payload(const void *data, size_t len, void *arg) {
    (void)data;
    (void)len;
    free(arg);
}

void link_send_owned(struct link *l, struct frame_header h, void *payload, uint32_t payload_bytes, uint32_t crc) {
    h.control_bytes = 0;
    h.payload_bytes = payload_bytes;
    h.body_crc = crc;
    if (!has_room(l, FRAME_HEADER_BYTES + (uint64_t)payload_bytes)) {
        free(payload);
        return;
    }
    uint8_t raw[FRAME_HEADER_BYTES];
    frame_pack(&h, raw);
    struct evbuffer *out = bufferevent_get_output(l->bev);
    int rc = evbuffer_add(out, raw, sizeof raw);
    if (rc || evbuffer_add_reference(out, payload, payload_bytes, free_payload, payload)) {
        free(payload);
        link_fail(l, "no memory for output");
        return;
    }
    l->sent_bytes += FRAME_HEADER_BYTES + (uint64_t)payload_bytes;
}

const char *link_peer_name(const struct link *l) { return l->peer_name; }
const char *link_peer_address(const struct link *l) { return l->peer_address; }
uint64_t link_sent_bytes(const struct link *l) { return l->sent_bytes; }
uint64_t link_received_bytes(const struct link *l) { return l->received_bytes; }
bool link_is_up(const struct link *l) { return l->up && !l->ended; }
bool link_was_up(const struct link *l) { return l->up; }

void link_local_host(const struct link *l, char out[LINK_ADDRESS_MAX]) {
    struct sockaddr_storage ss = {0};
    socklen_t n = sizeof ss;
    if (getsockname(bufferevent_getfd(l->bev), (struct sockaddr *)&ss, &n)) ss.ss_family = AF_UNSPEC;
    address_format((struct sockaddr *)&ss, 0, out, LINK_ADDRESS_MAX);
}

void link_peer_host(const struct link *l, char out[LINK_ADDRESS_MAX]) {
    struct sockaddr_storage ss = {0};
    socklen_t n = sizeof ss;
    if (getpeername(bufferevent_getfd(l->bev), (struct sockaddr *)&ss, &n)) ss.ss_family = AF_UNSPEC;
    address_format((struct sockaddr *)&ss, 0, out, LINK_ADDRESS_MAX);
}
