#include "net/ca_int.h"

#include "base/limits.h"
#include "net/lock.h"
#include "os/file.h"
#include "os/random.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_MAX = 64 << 10, DAYS_VALID = 3650 };

int ca_openssl_err(struct err *e, int code, const char *what) {
    char reason[160] = "no reason given";
    unsigned long n = ERR_peek_error();
    if (n) ERR_error_string_n(n, reason, sizeof reason);
    ERR_clear_error();
    return err_set(e, code, "%s: %s", what, reason);
}

void ca_name_of(X509 *cert, char name[CA_NAME_MAX]) {
    int n = X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, CA_NAME_MAX);
    if (n < 0 || (size_t)n != strlen(name)) name[0] = 0;
    for (char *p = name; *p; p++)
        if (*p < 0x21 || *p > 0x7e) name[0] = 0;
}

void ca_cert_fingerprint(const X509 *cert, uint8_t out[CA_FINGERPRINT_BYTES]) {
    unsigned n = 0;
    int ok = X509_digest(cert, EVP_sha256(), out, &n);
    ASSERT(ok && n == CA_FINGERPRINT_BYTES);
}

static int add_extension(X509 *cert, X509 *issuer, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *x = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    int ok = x && X509_add_ext(cert, x, -1);
    X509_EXTENSION_free(x);
    return ok;
}

static int set_serial(X509 *cert) {
    uint8_t bytes[16];
    random_bytes(bytes, sizeof bytes);
    bytes[0] &= 0x7f; // positive
    BIGNUM *n = BN_bin2bn(bytes, sizeof bytes, NULL);
    int ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
    BN_free(n);
    return ok;
}

// The clock of a new machine may be wrong by hours: certificates are valid from a day ago.
static int fill(X509 *cert, const struct ca *ca, EVP_PKEY *subject_key, const char *name) {
    X509_NAME *subject = X509_NAME_new();
    int ok = subject && X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const uint8_t *)name, -1, -1, 0) &&
             X509_set_version(cert, X509_VERSION_3) && set_serial(cert) && X509_set_subject_name(cert, subject) &&
             X509_set_issuer_name(cert, ca ? X509_get_subject_name(ca->cert) : subject) &&
             X509_gmtime_adj(X509_getm_notBefore(cert), -24L * 3600) &&
             X509_gmtime_adj(X509_getm_notAfter(cert), DAYS_VALID * 24L * 3600) && X509_set_pubkey(cert, subject_key);
    X509_NAME_free(subject);
    X509 *issuer = ca ? ca->cert : cert;
    ok = ok &&
         add_extension(cert, issuer, NID_basic_constraints, ca ? "critical,CA:FALSE" : "critical,CA:TRUE,pathlen:0");
    ok = ok && add_extension(cert, issuer, NID_key_usage, ca ? "critical,digitalSignature" : "critical,keyCertSign");
    ok = ok && add_extension(cert, issuer, NID_subject_key_identifier, "hash");
    return ok && add_extension(cert, issuer, NID_authority_key_identifier, "keyid");
}

int ca_sign(const struct ca *ca, EVP_PKEY *subject_key, const char *name, X509 **out, struct err *e) {
    X509 *cert = X509_new();
    if (!cert || !fill(cert, ca, subject_key, name) || !X509_sign(cert, ca ? ca->key : subject_key, EVP_sha256())) {
        X509_free(cert);
        return ca_openssl_err(e, ERR_IO, "a certificate could not be made");
    }
    *out = cert;
    return ERR_OK;
}

int ca_is_signed_by(X509 *cert, X509 *ca, struct err *e) {
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    int ok = store && ctx && X509_STORE_add_cert(store, ca) && X509_STORE_CTX_init(ctx, store, cert, NULL) &&
             X509_verify_cert(ctx) == 1;
    const char *why = ctx && !ok ? X509_verify_cert_error_string(X509_STORE_CTX_get_error(ctx)) : "no memory";
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    ERR_clear_error();
    return ok ? ERR_OK : err_set(e, ERR_AUTH, "the certificate is not one of this cluster: %s", why);
}

int ca_read_key(const char *path, EVP_PKEY **key, struct err *e) {
    char *pem;
    size_t len;
    int rc = file_read(path, PEM_MAX, &pem, &len, e);
    if (rc) return rc;
    BIO *b = BIO_new_mem_buf(pem, (int)len);
    *key = b ? PEM_read_bio_PrivateKey(b, NULL, NULL, NULL) : NULL;
    BIO_free(b);
    OPENSSL_cleanse(pem, len);
    free(pem);
    if (!*key) {
        rc = ca_openssl_err(e, ERR_FORMAT, "not a private key in PEM form");
        return err_prefix(e, "%s", path), rc;
    }
    return ERR_OK;
}

static int write_bio(const char *path, BIO *b, mode_t mode, struct err *e) {
    char *data;
    long n = BIO_get_mem_data(b, &data);
    return file_write(path, data, (size_t)n, mode, e);
}

int ca_write_key(const char *path, EVP_PKEY *key, struct err *e) {
    BIO *b = BIO_new(BIO_s_secmem());
    int rc = b && PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL) ? write_bio(path, b, 0600, e)
                                                                              : ca_openssl_err(e, ERR_NOMEM, path);
    BIO_free(b);
    return rc;
}

int ca_read_cert(const char *path, X509 **cert, struct err *e) {
    char *pem;
    size_t len;
    int rc = file_read(path, PEM_MAX, &pem, &len, e);
    if (rc) return rc;
    BIO *b = BIO_new_mem_buf(pem, (int)len);
    *cert = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    BIO_free(b);
    free(pem);
    if (!*cert) {
        rc = ca_openssl_err(e, ERR_FORMAT, "not a certificate in PEM form");
        return err_prefix(e, "%s", path), rc;
    }
    return ERR_OK;
}

int ca_write_cert(const char *path, X509 *cert, struct err *e) {
    BIO *b = BIO_new(BIO_s_mem());
    int rc = b && PEM_write_bio_X509(b, cert) ? write_bio(path, b, 0644, e) : ca_openssl_err(e, ERR_NOMEM, path);
    BIO_free(b);
    return rc;
}

static int ca_create(struct ca *ca, const char *key_path, const char *cert_path, struct err *e) {
    uint8_t r[4];
    char name[CA_NAME_MAX];
    random_bytes(r, sizeof r);
    snprintf(name, sizeof name, "loom-%02x%02x%02x%02x", r[0], r[1], r[2], r[3]);
    ca->key = EVP_EC_gen("P-256");
    if (!ca->key) return ca_openssl_err(e, ERR_IO, "a key could not be made");
    int rc = ca_sign(NULL, ca->key, name, &ca->cert, e);
    if (!rc) rc = ca_write_key(key_path, ca->key, e);
    return rc ? rc : ca_write_cert(cert_path, ca->cert, e); // last: with it the CA exists
}

int ca_open(const char *state_dir, struct ca **out, struct err *e) {
    char key_path[LIMIT_PATH], cert_path[LIMIT_PATH];
    int rc = file_join(key_path, sizeof key_path, state_dir, "ca.key", e);
    if (!rc) rc = file_join(cert_path, sizeof cert_path, state_dir, "ca.crt", e);
    if (rc) return rc;
    struct ca *ca = calloc(1, sizeof *ca);
    if (!ca) return err_set(e, ERR_NOMEM, "certificate authority: no memory");
    int fd = -1;
    rc = lock_take(state_dir, "ca.lock", true, &fd, e);
    if (!rc && file_exists(cert_path)) {
        rc = ca_read_key(key_path, &ca->key, e);
        if (!rc) rc = ca_read_cert(cert_path, &ca->cert, e);
        if (!rc && !X509_check_private_key(ca->cert, ca->key)) rc = ca_openssl_err(e, ERR_FORMAT, key_path);
    } else if (!rc) {
        rc = ca_create(ca, key_path, cert_path, e);
    }
    lock_release(fd);
    if (rc) {
        ca_free(ca);
        return rc;
    }
    *out = ca;
    return ERR_OK;
}

void ca_free(struct ca *ca) {
    if (!ca) return;
    EVP_PKEY_free(ca->key);
    X509_free(ca->cert);
    free(ca);
}

void ca_fingerprint(const struct ca *ca, uint8_t out[CA_FINGERPRINT_BYTES]) { ca_cert_fingerprint(ca->cert, out); }

static int to_der(X509 *cert, uint8_t der[CA_DER_MAX], size_t *bytes, struct err *e) {
    int n = i2d_X509(cert, NULL);
    if (n <= 0 || n > CA_DER_MAX) return err_set(e, ERR_LIMIT, "a certificate of %d bytes", n);
    uint8_t *p = der;
    i2d_X509(cert, &p);
    *bytes = (size_t)n;
    return ERR_OK;
}

size_t ca_certificate(const struct ca *ca, uint8_t der[CA_DER_MAX]) {
    size_t n = 0;
    int rc = to_der(ca->cert, der, &n, NULL);
    ASSERT(rc == 0, "the CA's certificate is too large");
    return n;
}

static int is_p256(EVP_PKEY *key) {
    char group[64];
    size_t n;
    return key && EVP_PKEY_is_a(key, "EC") && EVP_PKEY_get_group_name(key, group, sizeof group, &n) &&
           (strcmp(group, "prime256v1") == 0 || strcmp(group, "P-256") == 0);
}

int ca_issue(const struct ca *ca, const uint8_t *csr, size_t csr_bytes, uint8_t cert[CA_DER_MAX], size_t *cert_bytes,
             char name[CA_NAME_MAX], struct err *e) {
    const uint8_t *p = csr;
    X509_REQ *req = csr_bytes <= CA_DER_MAX ? d2i_X509_REQ(NULL, &p, (long)csr_bytes) : NULL;
    EVP_PKEY *key = req ? X509_REQ_get0_pubkey(req) : NULL;
    if (!is_p256(key) || p != csr + csr_bytes || X509_REQ_verify(req, key) != 1) {
        X509_REQ_free(req);
        return ca_openssl_err(e, ERR_FORMAT, "not a signing request of an EC P-256 key");
    }
    snprintf(name, CA_NAME_MAX, "node-%016lx", random_u64());
    X509 *x = NULL;
    int rc = ca_sign(ca, key, name, &x, e);
    X509_REQ_free(req);
    if (!rc) rc = to_der(x, cert, cert_bytes, e);
    X509_free(x);
    return rc;
}
