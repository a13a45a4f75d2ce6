// Inside net/ only: what ca.c, ident.c and tls.c share.
#pragma once
#include "net/ca.h"
#include <openssl/evp.h>
#include <openssl/x509.h>

struct ca {
    EVP_PKEY *key;
    X509 *cert;
};

struct ident {
    EVP_PKEY *key;
    X509 *cert, *ca; // NULL until there is a certificate
    char name[CA_NAME_MAX];
};

// ERR_IO or whatever code says, with OpenSSL's reason; empties its queue, since what is left there would make the next
// innocent call on this thread look like a failure.
int ca_openssl_err(struct err *e, int code, const char *what);
// The common name; "" if there is none or it is not plain text.
void ca_name_of(X509 *cert, char name[CA_NAME_MAX]);
void ca_cert_fingerprint(const X509 *cert, uint8_t out[CA_FINGERPRINT_BYTES]);
// cert for this public key under this name, signed by the CA (self-signed with ca == NULL and is_ca).
int ca_sign(const struct ca *ca, EVP_PKEY *subject_key, const char *name, X509 **cert, struct err *e) MUST_CHECK;
int ca_is_signed_by(X509 *cert, X509 *ca, struct err *e) MUST_CHECK; // ERR_AUTH
int ca_read_key(const char *path, EVP_PKEY **key, struct err *e) MUST_CHECK;
int ca_write_key(const char *path, EVP_PKEY *key, struct err *e) MUST_CHECK;
int ca_read_cert(const char *path, X509 **cert, struct err *e) MUST_CHECK;
int ca_write_cert(const char *path, X509 *cert, struct err *e) MUST_CHECK;
