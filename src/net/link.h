// One TLS connection that carries frames. Everything here runs on the loop's thread.
//
//        connect / accept
//              |
//              v            up()            link_settle()
//          SHAKING --------------------> NEW -----------> SETTLED
//              |  no proof, no TLS 1.3    |  silent 5 s      |  end, reset, nonsense, queue full
//              +------------> ENDED <-----+------------------+        ENDED: closed() is called once
//
// A link ends by itself (then closed() says why, after which the link is gone) or by link_close (then nothing is
// called). A peer that sends nonsense loses its link and nothing else.
#pragma once
#include "net/loop.h"
#include "net/tls.h"
#include "wire/control.h"
#include "wire/frame.h"

enum {
    LINK_SHAKE_MS = 5000,       // from the first packet to link_settle
    LINK_ADDRESS_MAX = 64,      // "[v6]:port"
    LINK_FIRST_CONTROL = 8192,  // control bytes of a frame before link_set_limits
    LINK_QUEUE_BYTES = 4 << 20, // output that may wait, before link_set_limits
    LINK_LOW_BYTES = 64 << 10   // less than that waits: there is room for more
};

struct link;

// data in it is valid during the call only; payload is aligned to 64, NULL if there is none.
struct link_frame {
    struct frame_header h;
    const uint8_t *control, *payload;
};

// The link may be closed inside each of them.
struct link_handlers {
    void (*up)(void *arg, struct link *l); // the handshake is done, both ends are proven; may be NULL
    void (*frame)(void *arg, struct link *l, const struct link_frame *f);
    void (*closed)(void *arg, struct link *l, const char *why); // the link is gone after this returns
    void (*drained)(void *arg, struct link *l); // output fell below LINK_LOW_BYTES after that much waited; may be NULL
};

// Dials HOST:PORT. A name (not a number) is resolved while the loop waits. want_name: the name that the peer's
// certificate has to carry. tls is shared, not taken over. Errors of the network come by closed(), later.
int link_connect(struct loop *l, struct tls *tls, const char *address, const char *want_name,
                 const struct link_handlers *h, void *arg, struct link **out, struct err *e) MUST_CHECK;
// Ends the link without a further call. finish: sends what waits first (for LINK_SHAKE_MS at most). NULL is fine.
void link_close(struct link *l);
void link_finish(struct link *l);
// Hands the link to another owner.
void link_set_handlers(struct link *l, const struct link_handlers *h, void *arg);
// The peer has said what it wants: no more deadline for that.
void link_settle(struct link *l);
// What a frame may hold and how much output may wait; a peer that reads too slowly for that loses its link.
void link_set_limits(struct link *l, uint32_t max_control_bytes, uint32_t max_payload_bytes, uint64_t max_queue_bytes);
// A bulk link (weights, what a shadow is fed with) lets little wait in the kernel and gives way to the urgent ones of
// the machine; links are urgent from the start. Only hints to the kernel: nothing fails.
void link_set_bulk(struct link *l, bool bulk);
// hold: nothing more is read, and no frame that came already is handed out, so that the peer has to wait; its end is
// not noticed either. When that is over, frames come from the loop, never inside this call. For a minute at most: then
// the peer's kernel takes this end for dead.
void link_hold(struct link *l, bool hold);
// Output that the kernel has not taken yet.
uint64_t link_waiting_bytes(const struct link *l);

// Sends a frame; everything is copied. h: type, epoch, stage, step, rows, dtype; lengths and checksum are filled in.
// The payload may come in two parts, one behind the other. A link that ended meanwhile swallows it.
void link_send(struct link *l, struct frame_header h, struct control_bytes control, const void *payload,
               uint32_t payload_bytes, const void *payload2, uint32_t payload2_bytes);
// A frame without payload.
void link_send_control(struct link *l, struct frame_header h, struct control_bytes control);
// One with a payload from malloc, which the link frees. crc: frame_crc of it (no control bytes).
void link_send_owned(struct link *l, struct frame_header h, void *payload, uint32_t payload_bytes, uint32_t crc);

const char *link_peer_name(const struct link *l);    // of the certificate; "" without one or before up()
const char *link_peer_address(const struct link *l); // "10.0.0.7:7701"
// The number of this end without port, as the peer reaches it: "10.0.0.1". And of the peer.
void link_local_host(const struct link *l, char out[LINK_ADDRESS_MAX]);
void link_peer_host(const struct link *l, char out[LINK_ADDRESS_MAX]);
uint64_t link_sent_bytes(const struct link *l);
uint64_t link_received_bytes(const struct link *l);
bool link_is_up(const struct link *l);
bool link_was_up(const struct link *l); // also when it ended since

struct listener;

// Accepts on ADDR:PORT (port 0: any). The links get these handlers with arg. At most LIMIT_LINKS proven links at once;
// further ones are closed. Links that have shown no certificate have a bound of their own, LIMIT_LINKS_UNPROVEN, and
// LIMIT_LINKS_OF_HOST from one address other than the loopback: for a new one the oldest of them goes, so that nobody
// locks the nodes out by saying nothing.
int listener_new(struct loop *l, struct tls *tls, const char *address, const struct link_handlers *h, void *arg,
                 struct listener **out, struct err *e) MUST_CHECK;
// Ends its links too, without a call: an owner of links ends them before. Not inside a link's callback.
void listener_free(struct listener *n);
uint32_t listener_port(const struct listener *n);
