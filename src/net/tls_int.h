// Inside net/ only.
#pragma once
#include "net/tls.h"
#include <openssl/ssl.h>

struct tls {
    SSL_CTX *ctx;
    uint8_t fingerprint[CA_FINGERPRINT_BYTES];
    unsigned refs; // one loop thread counts
};

// A new SSL of this context; a connecting one demands this name of the peer ("" for a listening one).
SSL *tls_ssl(struct tls *t, const char *want_name);
void tls_ref(struct tls *t);
