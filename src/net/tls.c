#include "net/tls_int.h"

#include "net/ca_int.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>

static int want_name_index(void) {
    static int index = -1; // the loop's thread alone makes links
    if (index < 0) index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    return index;
}

// A connecting end checks the name too: any node holds a certificate of this CA, but only the head is "head".
static int is_wanted(SSL *ssl, X509 *leaf) {
    const char *want = SSL_get_ex_data(ssl, want_name_index());
    char name[CA_NAME_MAX];
    ca_name_of(leaf, name);
    return !want || strcmp(want, name) == 0;
}

static int verify_known_ca(X509_STORE_CTX *ctx, void *arg) {
    (void)arg;
    SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
    if (X509_verify_cert(ctx) != 1) return 0;
    if (is_wanted(ssl, X509_STORE_CTX_get0_cert(ctx))) return 1;
    X509_STORE_CTX_set_error(ctx, X509_V_ERR_HOSTNAME_MISMATCH);
    return 0;
}

// Enrolment: no CA is known, only its fingerprint. The server sends its CA along; the one with the fingerprint counts.
static int verify_fingerprint(X509_STORE_CTX *ctx, void *arg) {
    const struct tls *t = arg;
    SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
    STACK_OF(X509) *sent = X509_STORE_CTX_get0_untrusted(ctx);
    X509 *leaf = X509_STORE_CTX_get0_cert(ctx);
    for (int i = 0; leaf && i < sk_X509_num(sent); i++) {
        uint8_t got[CA_FINGERPRINT_BYTES];
        ca_cert_fingerprint(sk_X509_value(sent, i), got);
        if (CRYPTO_memcmp(got, t->fingerprint, sizeof got) == 0 &&
            ca_is_signed_by(leaf, sk_X509_value(sent, i), NULL) == ERR_OK && is_wanted(ssl, leaf)) {
            X509_STORE_CTX_set_error(ctx, X509_V_OK);
            return 1;
        }
    }
    X509_STORE_CTX_set_error(ctx, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    return 0;
}

static struct tls *tls_blank(const SSL_METHOD *method) {
    struct tls *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->refs = 1;
    t->ctx = SSL_CTX_new(method);
    if (!t->ctx || !SSL_CTX_set_min_proto_version(t->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(t->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(t->ctx,
                                  "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") ||
        !SSL_CTX_set1_groups_list(t->ctx, "X25519:P-256") || !SSL_CTX_set_num_tickets(t->ctx, 0)) {
        tls_free(t);
        return NULL;
    }
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF);
    // A killed peer sends no close_notify; an end that lacks it is an end all the same, frames have their own lengths.
    SSL_CTX_set_options(t->ctx, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_max_cert_list(t->ctx, 16 << 10);
    return t;
}

int tls_new(const struct ident *id, enum tls_role role, struct tls **out, struct err *e) {
    ASSERT(id->cert && id->ca, "an identity without a certificate");
    struct tls *t = tls_blank(role == TLS_CONNECT ? TLS_client_method() : TLS_server_method());
    if (!t || !X509_STORE_add_cert(SSL_CTX_get_cert_store(t->ctx), id->ca) ||
        !SSL_CTX_use_certificate(t->ctx, id->cert) || !SSL_CTX_use_PrivateKey(t->ctx, id->key) ||
        !SSL_CTX_add1_chain_cert(t->ctx, id->ca) || !SSL_CTX_check_private_key(t->ctx)) {
        tls_free(t);
        return ca_openssl_err(e, ERR_IO, "a TLS context could not be made");
    }
    SSL_CTX_set_verify(t->ctx, role == TLS_LISTEN ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_PEER,
                       NULL);
    SSL_CTX_set_cert_verify_callback(t->ctx, verify_known_ca, t);
    *out = t;
    return ERR_OK;
}

int tls_new_enrol(const uint8_t fingerprint[CA_FINGERPRINT_BYTES], struct tls **out, struct err *e) {
    struct tls *t = tls_blank(TLS_client_method());
    if (!t) return ca_openssl_err(e, ERR_IO, "a TLS context could not be made");
    memcpy(t->fingerprint, fingerprint, CA_FINGERPRINT_BYTES);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(t->ctx, verify_fingerprint, t);
    *out = t;
    return ERR_OK;
}

void tls_ref(struct tls *t) { t->refs++; }

void tls_free(struct tls *t) {
    if (!t || --t->refs) return;
    SSL_CTX_free(t->ctx);
    free(t);
    ERR_clear_error();
}

SSL *tls_ssl(struct tls *t, const char *want_name) {
    SSL *ssl = SSL_new(t->ctx);
    if (ssl && want_name[0] && !SSL_set_ex_data(ssl, want_name_index(), (void *)(uintptr_t)want_name)) {
        SSL_free(ssl);
        ssl = NULL;
    }
    if (!ssl) ERR_clear_error();
    return ssl;
}
