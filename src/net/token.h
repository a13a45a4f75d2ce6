// Join tokens, as `docker swarm` users know them. A token carries the head's address, the fingerprint of the CA and a
// one-time secret: "loom1-" and one word of small letters and digits, which a double click selects whole, with a check
// sum against a bad copy. The head keeps only a hash of the secret, with its uses left and its expiry, in the file
// "tokens" of its state folder; several processes may use that folder at once.
#pragma once
#include "base/err.h"
#include "net/ca.h"
#include <stdint.h>

enum { TOKEN_TEXT_MAX = 320, TOKEN_ADDRESS_MAX = 100, TOKEN_SECRET_BYTES = 16 };

struct token_wish {
    const char *address; // HOST:PORT that nodes will dial
    uint32_t uses;       // 1: one-time
    uint64_t ttl_s;
};

struct token {
    char address[TOKEN_ADDRESS_MAX + 1];
    uint8_t fingerprint[CA_FINGERPRINT_BYTES];
    uint8_t secret[TOKEN_SECRET_BYTES];
};

// Makes a token in state_dir (creates the CA if this is the first use). text holds at least 256 bytes. Safe while a
// head runs on the same state_dir.
int token_create(const char *state_dir, const struct token_wish *w, char *text, size_t text_bytes,
                 struct err *e) MUST_CHECK;
// The parts of a token's text. ERR_FORMAT: not a token, or not the whole of it.
int token_parse(const char *text, struct token *t, struct err *e) MUST_CHECK;
// Forgets a token by its text. ERR_NOT_FOUND: used up or expired already.
int token_revoke(const char *state_dir, const char *text, struct err *e) MUST_CHECK;
// Uses a secret up by one at the head. ERR_AUTH: unknown, used up or expired; which of them is not told.
int token_use(const char *state_dir, const uint8_t secret[TOKEN_SECRET_BYTES], struct err *e) MUST_CHECK;
