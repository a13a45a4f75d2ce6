// Inside net/ only.
#pragma once
#include "base/list.h"
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
    struct list in_listener;   // one of its lists
    enum link_place { LINK_UNPROVEN, LINK_PROVEN, LINK_ENDED } place;
    char want_name[CA_NAME_MAX], peer_name[CA_NAME_MAX], peer_address[LINK_ADDRESS_MAX];
    char host[LINK_ADDRESS_MAX]; // of an accepted one: the address without port
    char why[ERR_TEXT_MAX];
    bool up, settled, ended, silent, finishing;
    bool held;           // nothing is read
    bool bulk, was_bulk; // as it is; whether the kernel was ever told so
    bool full;           // LINK_LOW_BYTES waited: drained() is due when they do not any more
    unsigned inside;     // depth of callbacks into the owner
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
// The link has ended and counts no more; NULL listener is fine, as below.
void listener_link_ended(struct link *l);
void listener_link_gone(struct link *l); // it is about to be freed
// The handshake is done. False: no room among the proven ones.
bool listener_link_proven(struct link *l);
// Ends the link for good, also one that is sending its last words.
void link_discard(struct link *l);
void link_fail(struct link *l, const char *why); // closed() follows from the loop
