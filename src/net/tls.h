// TLS contexts for the links of a cluster: TLS 1.3 only, AES-128-GCM first, no tickets, no resumption.
#pragma once
#include "base/err.h"
#include "net/ca.h"

struct tls; // counted by the links that use it: may be freed while they live

enum tls_role {
    TLS_LISTEN,      // the peer proves itself, or the handshake fails
    TLS_LISTEN_OPEN, // the head's: a peer without certificate gets through, to enrol (link_peer_name is "" then)
    TLS_CONNECT      // the peer must be of this cluster; link_connect names which one
};

int tls_new(const struct ident *id, enum tls_role role, struct tls **t, struct err *e) MUST_CHECK;
// For a node that has no certificate yet: the server must be a head whose CA has this fingerprint.
int tls_new_enrol(const uint8_t fingerprint[CA_FINGERPRINT_BYTES], struct tls **t, struct err *e) MUST_CHECK;
void tls_free(struct tls *t);
