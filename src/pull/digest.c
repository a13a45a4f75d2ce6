#include "pull/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20 };

static const struct {
    const char *prefix;
    size_t len_bytes;
} kinds[] = {[DIGEST_NONE] = {"none", 0}, [DIGEST_SHA256] = {"sha256:", 32}, [DIGEST_GIT_SHA1] = {"git-sha1:", 20}};

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool digest_parse(struct digest *d, enum digest_kind kind, const char *hex) {
    *d = (struct digest){.kind = DIGEST_NONE};
    size_t n = kinds[kind].len_bytes;
    uint8_t bytes[DIGEST_BYTES] = {0};
    if (strlen(hex) != 2 * n) return false;
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    d->kind = kind;
    memcpy(d->bytes, bytes, sizeof bytes);
    return true;
}

void digest_text(const struct digest *d, char out[DIGEST_TEXT_BYTES]) {
    int at = snprintf(out, DIGEST_TEXT_BYTES, "%s", kinds[d->kind].prefix);
    for (size_t i = 0; i < kinds[d->kind].len_bytes; i++)
        at += snprintf(out + at, DIGEST_TEXT_BYTES - (size_t)at, "%02x", d->bytes[i]);
}

bool digest_from_text(struct digest *d, const char *text) {
    *d = (struct digest){.kind = DIGEST_NONE};
    if (!strcmp(text, kinds[DIGEST_NONE].prefix)) return true;
    for (enum digest_kind k = DIGEST_SHA256; k <= DIGEST_GIT_SHA1; k++) {
        size_t n = strlen(kinds[k].prefix);
        if (!strncmp(text, kinds[k].prefix, n)) return digest_parse(d, k, text + n);
    }
    return false;
}

bool digest_equal(const struct digest *a, const struct digest *b) {
    return a->kind == b->kind && !memcmp(a->bytes, b->bytes, kinds[a->kind].len_bytes);
}

static int hash_fd(int fd, const char *path, EVP_MD_CTX *md, const atomic_bool *stop, struct err *e) {
    char *block = malloc(READ_BYTES);
    if (!block) return err_set(e, ERR_NOMEM, "%s: no memory to read it", path);
    int rc = ERR_OK;
    for (ssize_t n = 1; n && !rc;) {
        n = read(fd, block, READ_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            rc = err_set(e, ERR_IO, "%s: read: %s", path, strerror(errno));
        else if (atomic_load(stop))
            rc = err_set(e, ERR_CANCELLED, "%s: stopped", path);
        else if (!EVP_DigestUpdate(md, block, (size_t)n))
            rc = err_set(e, ERR_NOMEM, "%s: the hash cannot be computed", path);
    }
    free(block);
    return rc;
}

int digest_file(const char *path, enum digest_kind kind, const atomic_bool *stop, struct digest *out, struct err *e) {
    struct stat st;
    ASSERT(kind != DIGEST_NONE, "nothing to compute");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_IO, "%s: open: %s", path, strerror(errno));
    int rc = fstat(fd, &st) ? err_set(e, ERR_IO, "%s: stat: %s", path, strerror(errno)) : ERR_OK;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (!rc && (!md || !EVP_DigestInit_ex(md, kind == DIGEST_SHA256 ? EVP_sha256() : EVP_sha1(), NULL)))
        rc = err_set(e, ERR_NOMEM, "%s: the hash cannot be computed", path);
    if (!rc && kind == DIGEST_GIT_SHA1) {
        char head[40];
        int n = snprintf(head, sizeof head, "blob %lld", (long long)st.st_size) + 1; // its NUL counts
        if (!EVP_DigestUpdate(md, head, (size_t)n)) rc = err_set(e, ERR_NOMEM, "%s: the hash cannot be computed", path);
    }
    if (!rc) rc = hash_fd(fd, path, md, stop, e);
    *out = (struct digest){.kind = kind};
    if (!rc && !EVP_DigestFinal_ex(md, out->bytes, NULL))
        rc = err_set(e, ERR_NOMEM, "%s: the hash cannot be computed", path);
    EVP_MD_CTX_free(md);
    close(fd);
    return rc;
}
