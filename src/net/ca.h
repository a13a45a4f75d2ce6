// Who is who: the cluster's own certificate authority at the head, and the identity (key, certificate, CA certificate)
// of each end. EC P-256 with SHA-256 throughout. Thread-safe on distinct objects.
//
// Names in certificates: "head" for the head, "node-<16 hex digits>" for nodes. The head gives the names; what a
// signing request asks for is not looked at.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum { CA_FINGERPRINT_BYTES = 32, CA_NAME_MAX = 64, CA_DER_MAX = 2048 };

#define CA_HEAD_NAME "head"

struct ca;

// Opens the CA of state_dir (ca.key with mode 0600, ca.crt), which is made if there is none.
int ca_open(const char *state_dir, struct ca **ca, struct err *e) MUST_CHECK;
void ca_free(struct ca *ca);
// SHA-256 of the CA's certificate: what a join token carries.
void ca_fingerprint(const struct ca *ca, uint8_t out[CA_FINGERPRINT_BYTES]);
// A certificate for the key of this signing request (DER) under a new random node name. ERR_FORMAT: not a request, not
// signed by its own key, or not an EC P-256 key.
int ca_issue(const struct ca *ca, const uint8_t *csr, size_t csr_bytes, uint8_t cert[CA_DER_MAX], size_t *cert_bytes,
             char name[CA_NAME_MAX], struct err *e) MUST_CHECK;
size_t ca_certificate(const struct ca *ca, uint8_t der[CA_DER_MAX]); // returns its bytes

// Own key, own certificate, the CA's certificate. A fresh one has only a key.
struct ident;

int ident_new(struct ident **id, struct err *e) MUST_CHECK;
// The head's: a fresh key, certified as "head".
int ident_new_head(const struct ca *ca, struct ident **id, struct err *e) MUST_CHECK;
// From node.key, node.crt and ca.crt in state_dir. ERR_NOT_FOUND: never enrolled.
int ident_load(const char *state_dir, struct ident **id, struct err *e) MUST_CHECK;
int ident_save(const struct ident *id, const char *state_dir, struct err *e) MUST_CHECK;
void ident_free(struct ident *id);
int ident_csr(const struct ident *id, uint8_t der[CA_DER_MAX], size_t *bytes, struct err *e) MUST_CHECK;
// Takes the certificate that the head sent, after checking that it fits the key and that this CA, which has to have the
// fingerprint, signed it. ERR_AUTH.
int ident_accept(struct ident *id, const uint8_t *cert, size_t cert_bytes, const uint8_t *ca, size_t ca_bytes,
                 const uint8_t fingerprint[CA_FINGERPRINT_BYTES], struct err *e) MUST_CHECK;
bool ident_has_ca(const struct ident *id, const uint8_t fingerprint[CA_FINGERPRINT_BYTES]);
const char *ident_name(const struct ident *id); // "" for a fresh one
