// Inside net/ only.
#pragma once
#include "net/link.h"
#include "net/tls_int.h"
#include <event2/bufferevent.h>

struct link {
    struct loop *loop;
    struct tls *tls;
    struct bufferevent *bev;
    const struct link_handlers *handlers;
    void *arg;
    struct loop_timer *shake;  // the deadline until settled, then that of finish
    struct loop_timer *end;    // calls closed() outside of whatever call met the end
    struct listener *listener; // where it counts, or NULL
    char want_name[CA_NAME_MAX], peer_name[CA_NAME_MAX], peer_address[LINK_ADDRESS_MAX];
    char why[ERR_TEXT_MAX];
    bool up, settled, ended, silent, finishing;
    unsigned inside; // depth of callbacks into the owner
    bool have_header;
    struct frame_header header;
    uint8_t *body; // [body_cap], aligned to 64
    uint64_t body_cap;
    uint32_t max_control_bytes, max_payload_bytes;
    uint64_t max_queue_bytes, sent_bytes, received_bytes;
};

// A link over an accepted socket (fd >= 0) or one to be connected (fd = -1). Takes fd over, also on failure.
int link_new(struct loop *l, struct tls *tls, int fd, const char *want_name, const struct link_handlers *h, void *arg,
             struct link **out, struct err *e) MUST_CHECK;
void listener_link_gone(struct listener *n);
