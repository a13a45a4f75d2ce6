#include "net/token.h"

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "net/lock.h"
#include "os/file.h"
#include "os/random.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char prefix[] = "loom1-";
static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567"; // base32 of RFC 4648, in small letters

enum {
    CHECK_BYTES = 4,
    FIXED_BYTES = CA_FINGERPRINT_BYTES + TOKEN_SECRET_BYTES + CHECK_BYTES,
    RAW_MAX = FIXED_BYTES + TOKEN_ADDRESS_MAX,
    LINE_MAX_BYTES = 2 * SHA256_DIGEST_LENGTH + 40,
    FILE_MAX_BYTES = LIMIT_JOIN_TOKENS * LINE_MAX_BYTES
};

// One line of the file: hash of the secret in hex, uses left, expiry in seconds since 1970.
struct entry {
    uint8_t hash[SHA256_DIGEST_LENGTH];
    uint32_t uses;
    uint64_t expires_s;
};

struct table {
    uint32_t n;
    struct entry entry[LIMIT_JOIN_TOKENS];
};

static size_t base32_encode(const uint8_t *in, size_t n, char *out) {
    size_t k = 0;
    uint32_t bits = 0, have = 0;
    for (size_t i = 0; i < n; i++) {
        bits = bits << 8 | in[i];
        for (have += 8; have >= 5; have -= 5) out[k++] = alphabet[bits >> (have - 5) & 31];
    }
    if (have) out[k++] = alphabet[bits << (5 - have) & 31];
    out[k] = 0;
    return k;
}

// Returns the bytes decoded, 0 for anything that is not the canonical form.
static size_t base32_decode(const char *in, uint8_t *out, size_t max) {
    size_t k = 0;
    uint32_t bits = 0, have = 0;
    for (; *in; in++) {
        const char *at = strchr(alphabet, *in);
        if (!at) return 0;
        bits = bits << 5 | (uint32_t)(at - alphabet);
        have += 5;
        if (have < 8) continue;
        if (k == max) return 0;
        have -= 8;
        out[k++] = (uint8_t)(bits >> have);
    }
    return have < 5 && (bits & ((1u << have) - 1)) == 0 ? k : 0;
}

static uint32_t check_of(const uint8_t *raw, size_t n) { return crc32c(0, raw, n); }

static int encode(const struct token *t, char *text, size_t text_bytes, struct err *e) {
    uint8_t raw[RAW_MAX];
    size_t address_bytes = strlen(t->address), n = 0;
    memcpy(raw, t->fingerprint, CA_FINGERPRINT_BYTES);
    n += CA_FINGERPRINT_BYTES;
    memcpy(raw + n, t->secret, TOKEN_SECRET_BYTES);
    n += TOKEN_SECRET_BYTES;
    memcpy(raw + n, t->address, address_bytes);
    n += address_bytes;
    uint32_t check = check_of(raw, n);
    for (int i = 0; i < CHECK_BYTES; i++) raw[n++] = (uint8_t)(check >> (8 * i));
    size_t need = sizeof prefix + (n * 8 + 4) / 5;
    if (need > text_bytes)
        return err_set(e, ERR_LIMIT, "token: address %s is too long for %zu bytes of text", t->address, text_bytes);
    memcpy(text, prefix, sizeof prefix);
    base32_encode(raw, n, text + sizeof prefix - 1);
    return ERR_OK;
}

int token_parse(const char *text, struct token *t, struct err *e) {
    uint8_t raw[RAW_MAX];
    if (strncmp(text, prefix, sizeof prefix - 1) != 0)
        return err_set(e, ERR_FORMAT, "token: it does not start with %s", prefix);
    size_t n = base32_decode(text + sizeof prefix - 1, raw, sizeof raw);
    if (n < FIXED_BYTES + 3) return err_set(e, ERR_FORMAT, "token: not complete, or with foreign characters");
    n -= CHECK_BYTES;
    uint32_t check = 0;
    for (int i = 0; i < CHECK_BYTES; i++) check |= (uint32_t)raw[n + (size_t)i] << (8 * i);
    if (check != check_of(raw, n)) return err_set(e, ERR_FORMAT, "token: the check sum is wrong, copy it again");
    const uint8_t *address = raw + CA_FINGERPRINT_BYTES + TOKEN_SECRET_BYTES;
    size_t address_bytes = n - CA_FINGERPRINT_BYTES - TOKEN_SECRET_BYTES;
    for (size_t i = 0; i < address_bytes; i++)
        if (address[i] < 0x21 || address[i] > 0x7e)
            return err_set(e, ERR_FORMAT, "token: the address is not plain text");
    memcpy(t->fingerprint, raw, CA_FINGERPRINT_BYTES);
    memcpy(t->secret, raw + CA_FINGERPRINT_BYTES, TOKEN_SECRET_BYTES);
    memcpy(t->address, address, address_bytes);
    t->address[address_bytes] = 0;
    return ERR_OK;
}

static int unhex(const char *s, uint8_t *out, size_t n) {
    static const char digits[] = "0123456789abcdef";
    if (strspn(s, digits) < 2 * n) return ERR_FORMAT;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)((strchr(digits, s[2 * i]) - digits) << 4 | (strchr(digits, s[2 * i + 1]) - digits));
    return ERR_OK;
}

// " uses expiry" to the end of the line.
static bool parse_numbers(const char *s, struct entry *x) {
    char *end;
    if (s[0] != ' ' || strspn(s + 1, "0123456789") < 1) return false;
    unsigned long uses = strtoul(s, &end, 10);
    if (end[0] != ' ' || strspn(end + 1, "0123456789") < 1 || uses > UINT32_MAX) return false;
    x->uses = (uint32_t)uses;
    x->expires_s = strtoull(end, &end, 10);
    return *end == 0;
}

static int parse_line(const char *path, char *line, struct entry *x, struct err *e) {
    if (strlen(line) > 64 && unhex(line, x->hash, sizeof x->hash) == ERR_OK && parse_numbers(line + 64, x))
        return ERR_OK;
    return err_set(e, ERR_FORMAT, "%s: a line is not \"hash uses expiry\"; remove the file to forget all tokens", path);
}

// What is expired or used up is left out, so that it is gone with the next save.
static int load(const char *path, struct table *t, struct err *e) {
    t->n = 0;
    char *data;
    size_t len;
    int rc = file_read(path, FILE_MAX_BYTES, &data, &len, e);
    if (rc == ERR_NOT_FOUND) return ERR_OK;
    if (rc) return rc;
    uint64_t now = (uint64_t)time(NULL);
    char *save = NULL;
    for (char *line = strtok_r(data, "\n", &save); line && !rc; line = strtok_r(NULL, "\n", &save)) {
        struct entry x;
        rc = parse_line(path, line, &x, e);
        if (!rc && x.uses && x.expires_s > now && t->n < LIMIT_JOIN_TOKENS) t->entry[t->n++] = x;
    }
    free(data);
    return rc;
}

static int save_table(const char *path, const struct table *t, struct err *e) {
    struct buf b;
    buf_init(&b, FILE_MAX_BYTES);
    int rc = ERR_OK;
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        const struct entry *x = &t->entry[i];
        for (size_t k = 0; k < sizeof x->hash && !rc; k++) rc = buf_addf(&b, "%02x", x->hash[k]);
        if (!rc) rc = buf_addf(&b, " %" PRIu32 " %" PRIu64 "\n", x->uses, x->expires_s);
    }
    rc = rc ? err_set(e, rc, "%s: no memory", path) : file_write(path, b.data, b.len_bytes, 0600, e);
    buf_fini(&b);
    return rc;
}

static int add_entry(const char *state_dir, const struct entry *x, struct err *e) {
    char path[LIMIT_PATH];
    struct table *t = malloc(sizeof *t);
    int fd = -1, rc = t ? ERR_OK : err_set(e, ERR_NOMEM, "token: no memory");
    if (!rc) rc = file_join(path, sizeof path, state_dir, "tokens", e);
    if (!rc) rc = lock_take(state_dir, "tokens.lock", true, &fd, e);
    if (!rc) rc = load(path, t, e);
    if (!rc && t->n == LIMIT_JOIN_TOKENS)
        rc = err_set(e, ERR_LIMIT, "%s: %d tokens are waiting for use already", path, LIMIT_JOIN_TOKENS);
    if (!rc) {
        t->entry[t->n++] = *x;
        rc = save_table(path, t, e);
    }
    lock_release(fd);
    free(t);
    return rc;
}

int token_create(const char *state_dir, const struct token_wish *w, char *text, size_t text_bytes, struct err *e) {
    struct token t;
    size_t n = strlen(w->address);
    if (n < 3 || n > TOKEN_ADDRESS_MAX || !strrchr(w->address, ':'))
        return err_set(e, ERR_USAGE, "token: address \"%s\" is not HOST:PORT of at most %d bytes", w->address,
                       TOKEN_ADDRESS_MAX);
    if (w->uses < 1 || w->ttl_s < 1) return err_set(e, ERR_USAGE, "token: uses and time to live must be at least 1");
    struct ca *ca;
    int rc = ca_open(state_dir, &ca, e);
    if (rc) return rc;
    ca_fingerprint(ca, t.fingerprint);
    ca_free(ca);
    memcpy(t.address, w->address, n + 1);
    random_bytes(t.secret, sizeof t.secret);
    rc = encode(&t, text, text_bytes, e);
    uint64_t now = (uint64_t)time(NULL);
    struct entry x = {.uses = w->uses, .expires_s = w->ttl_s > UINT64_MAX - now ? UINT64_MAX : now + w->ttl_s};
    SHA256(t.secret, sizeof t.secret, x.hash);
    return rc ? rc : add_entry(state_dir, &x, e);
}

// Takes one use off the token with this secret, or all.
static int take(const char *state_dir, const uint8_t secret[TOKEN_SECRET_BYTES], bool all, struct err *e) {
    uint8_t hash[SHA256_DIGEST_LENGTH];
    char path[LIMIT_PATH];
    SHA256(secret, TOKEN_SECRET_BYTES, hash);
    struct table *t = malloc(sizeof *t);
    int fd = -1, rc = t ? ERR_OK : err_set(e, ERR_NOMEM, "token: no memory");
    if (!rc) rc = file_join(path, sizeof path, state_dir, "tokens", e);
    if (!rc) rc = lock_take(state_dir, "tokens.lock", true, &fd, e);
    if (!rc) rc = load(path, t, e);
    if (!rc) {
        uint32_t found = t->n;
        for (uint32_t i = 0; i < t->n; i++) // all of them, in constant time each
            if (CRYPTO_memcmp(t->entry[i].hash, hash, sizeof hash) == 0) found = i;
        if (found == t->n) {
            rc = err_set(e, ERR_NOT_FOUND, "the join token is unknown, used up or expired");
        } else {
            if (all || --t->entry[found].uses == 0) t->entry[found] = t->entry[--t->n];
            rc = save_table(path, t, e);
        }
    }
    lock_release(fd);
    free(t);
    return rc;
}

int token_use(const char *state_dir, const uint8_t secret[TOKEN_SECRET_BYTES], struct err *e) {
    int rc = take(state_dir, secret, false, e);
    if (rc == ERR_NOT_FOUND && e) e->code = ERR_AUTH;
    return rc == ERR_NOT_FOUND ? ERR_AUTH : rc;
}

int token_revoke(const char *state_dir, const char *text, struct err *e) {
    struct token t;
    int rc = token_parse(text, &t, e);
    return rc ? rc : take(state_dir, t.secret, true, e);
}
