// The identity of one end: struct ident of ca.h.
#include "net/ca_int.h"

#include "base/limits.h"
#include "os/file.h"

#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>

int ident_new(struct ident **out, struct err *e) {
    struct ident *id = calloc(1, sizeof *id);
    if (!id) return err_set(e, ERR_NOMEM, "identity: no memory");
    id->key = EVP_EC_gen("P-256");
    if (!id->key) {
        free(id);
        ca_openssl_err(e, ERR_IO, "a key could not be made");
        return ERR_IO;
    }
    *out = id;
    return ERR_OK;
}

void ident_free(struct ident *id) {
    if (!id) return;
    EVP_PKEY_free(id->key);
    X509_free(id->cert);
    X509_free(id->ca);
    free(id);
}

int ident_new_head(const struct ca *ca, struct ident **out, struct err *e) {
    struct ident *id;
    int rc = ident_new(&id, e);
    if (rc) return rc;
    rc = ca_sign(ca, id->key, CA_HEAD_NAME, &id->cert, e);
    if (rc) {
        ident_free(id);
        return rc;
    }
    X509_up_ref(ca->cert);
    id->ca = ca->cert;
    ca_name_of(id->cert, id->name);
    *out = id;
    return ERR_OK;
}

static int paths(const char *dir, char key[LIMIT_PATH], char cert[LIMIT_PATH], char ca[LIMIT_PATH], struct err *e) {
    int rc = file_join(key, LIMIT_PATH, dir, "node.key", e);
    if (!rc) rc = file_join(cert, LIMIT_PATH, dir, "node.crt", e);
    return rc ? rc : file_join(ca, LIMIT_PATH, dir, "cluster-ca.crt", e);
}

int ident_load(const char *state_dir, struct ident **out, struct err *e) {
    char key[LIMIT_PATH], cert[LIMIT_PATH], ca[LIMIT_PATH];
    int rc = paths(state_dir, key, cert, ca, e);
    if (rc) return rc;
    struct ident *id = calloc(1, sizeof *id);
    if (!id) return err_set(e, ERR_NOMEM, "identity: no memory");
    rc = ca_read_cert(cert, &id->cert, e);
    if (!rc) rc = ca_read_cert(ca, &id->ca, e);
    if (!rc) rc = ca_read_key(key, &id->key, e);
    if (!rc && !X509_check_private_key(id->cert, id->key)) rc = ca_openssl_err(e, ERR_FORMAT, key);
    if (!rc) rc = ca_is_signed_by(id->cert, id->ca, e);
    if (rc) {
        ident_free(id);
        return rc;
    }
    ca_name_of(id->cert, id->name);
    *out = id;
    return ERR_OK;
}

int ident_save(const struct ident *id, const char *state_dir, struct err *e) {
    char key[LIMIT_PATH], cert[LIMIT_PATH], ca[LIMIT_PATH];
    int rc = paths(state_dir, key, cert, ca, e);
    if (!rc) rc = file_mkdir_all(state_dir, 0700, e);
    if (!rc) rc = ca_write_key(key, id->key, e);
    if (!rc) rc = ca_write_cert(ca, id->ca, e);
    return rc ? rc : ca_write_cert(cert, id->cert, e); // last: with it the identity exists
}

int ident_csr(const struct ident *id, uint8_t der[CA_DER_MAX], size_t *bytes, struct err *e) {
    X509_REQ *req = X509_REQ_new();
    int ok = req && X509_REQ_set_version(req, X509_REQ_VERSION_1) && X509_REQ_set_pubkey(req, id->key) &&
             X509_REQ_sign(req, id->key, EVP_sha256());
    int n = ok ? i2d_X509_REQ(req, NULL) : -1;
    if (n > 0 && n <= CA_DER_MAX) {
        uint8_t *p = der;
        i2d_X509_REQ(req, &p);
        *bytes = (size_t)n;
    }
    X509_REQ_free(req);
    return n > 0 && n <= CA_DER_MAX ? ERR_OK : ca_openssl_err(e, ERR_IO, "a signing request could not be made");
}

static X509 *from_der(const uint8_t *der, size_t bytes) {
    const uint8_t *p = der;
    X509 *x = bytes <= CA_DER_MAX ? d2i_X509(NULL, &p, (long)bytes) : NULL;
    if (x && p == der + bytes) return x;
    X509_free(x);
    ERR_clear_error();
    return NULL;
}

int ident_accept(struct ident *id, const uint8_t *cert, size_t cert_bytes, const uint8_t *ca, size_t ca_bytes,
                 const uint8_t fingerprint[CA_FINGERPRINT_BYTES], struct err *e) {
    X509 *own = from_der(cert, cert_bytes), *root = from_der(ca, ca_bytes);
    uint8_t got[CA_FINGERPRINT_BYTES];
    int rc = own && root ? ERR_OK : err_set(e, ERR_AUTH, "the head sent something that is not a certificate");
    if (!rc) ca_cert_fingerprint(root, got);
    if (!rc && CRYPTO_memcmp(got, fingerprint, sizeof got) != 0)
        rc = err_set(e, ERR_AUTH, "the head's CA is not the one that the join token names");
    if (!rc && !X509_check_private_key(own, id->key))
        rc = ca_openssl_err(e, ERR_AUTH, "the certificate is for another key");
    if (!rc) rc = ca_is_signed_by(own, root, e);
    if (rc) {
        X509_free(own);
        X509_free(root);
        return rc;
    }
    X509_free(id->cert);
    X509_free(id->ca);
    id->cert = own;
    id->ca = root;
    ca_name_of(own, id->name);
    return ERR_OK;
}

bool ident_has_ca(const struct ident *id, const uint8_t fingerprint[CA_FINGERPRINT_BYTES]) {
    uint8_t got[CA_FINGERPRINT_BYTES];
    ca_cert_fingerprint(id->ca, got);
    return CRYPTO_memcmp(got, fingerprint, sizeof got) == 0;
}

const char *ident_name(const struct ident *id) { return id->name; }
