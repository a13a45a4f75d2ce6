#include "text/pattern.h"
#include <stdbool.h>
#include <string.h>

// Unicode's White_Space. PCRE2's own \s holds U+180E too, which cuts pieces where the reference does not.
#define SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"       \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

// PCRE2 takes a bare script name for Script_Extensions, the reference for Script.
static const char *const scripts[] = {
    "Arabic", "Armenian", "Bengali",  "Cyrillic", "Devanagari", "Georgian",  "Greek",   "Gujarati",  "Han",
    "Hangul", "Hebrew",   "Hiragana", "Khmer",    "Katakana",   "Lao",       "Latin",   "Malayalam", "Myanmar",
    "Tamil",  "Telugu",   "Thai",     "Ethiopic", "Kannada",    "Mongolian", "Sinhala", "Tibetan"};

struct rewrite {
    const char *in;
    size_t len, at;
    struct buf *out;
    bool in_class;
    bool after_space; // in a class, right behind a rewritten \s or \S
};

static int put(struct rewrite *r, const char *s, size_t n) { return buf_add(r->out, s, n); }

static int rewrite_space(struct rewrite *r, bool negated) {
    const char *set = negated && r->in_class ? NOT_SPACE : SPACE;
    int rc = ERR_OK;
    if (!r->in_class) rc = put(r, negated ? "[^" : "[", negated ? 2 : 1);
    if (!rc) rc = put(r, set, strlen(set));
    if (!rc && !r->in_class) rc = put(r, "]", 1);
    r->at += 2;
    r->after_space = r->in_class;
    return rc;
}

// \p{Han}, \P{^Han} ...: puts "sc:" before the name of a script.
static int rewrite_property(struct rewrite *r) {
    const char *brace = r->in + r->at + 2;
    size_t left = r->len - r->at - 2;
    const char *end = left > 0 && *brace == '{' ? memchr(brace, '}', left) : NULL;
    if (!end) {
        r->at += 2;
        return put(r, brace - 2, 2);
    }
    const char *name = brace + 1 + (brace[1] == '^');
    size_t n = (size_t)(end - name);
    bool script = false;
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        script = script || (strlen(scripts[i]) == n && memcmp(scripts[i], name, n) == 0);
    int rc = put(r, brace - 2, (size_t)(name - brace) + 2);
    if (!rc && script) rc = put(r, "sc:", 3);
    if (!rc) rc = put(r, name, n + 1);
    r->at = (size_t)(end - r->in) + 1;
    return rc;
}

static int rewrite_escape(struct rewrite *r) {
    char c = r->at + 1 < r->len ? r->in[r->at + 1] : 0;
    if (c == 's' || c == 'S') return rewrite_space(r, c == 'S');
    r->after_space = false;
    if (c == 'p' || c == 'P') return rewrite_property(r);
    size_t n = r->at + 1 < r->len ? 2 : 1;
    r->at += n;
    return put(r, r->in + r->at - n, n);
}

static int rewrite_in_class(struct rewrite *r, struct err *e) {
    char c = r->in[r->at], next = r->at + 1 < r->len ? r->in[r->at + 1] : 0;
    if (c == '[' && next != ':')
        return err_set(e, ERR_UNSUPPORTED, "pattern has a set inside a set at byte %zu; write \\[ for the character",
                       r->at);
    if (c == '&' && next == '&')
        return err_set(e, ERR_UNSUPPORTED, "pattern has an intersection of sets (&&) at byte %zu", r->at);
    int rc = ERR_OK;
    if (c == '[') { // [:alpha:]
        const char *end = memchr(r->in + r->at, ']', r->len - r->at);
        size_t n = end ? (size_t)(end - r->in) + 1 - r->at : r->len - r->at;
        rc = put(r, r->in + r->at, n);
        r->at += n;
    } else {
        // "[\s-x]": the minus is itself, but behind the last character of SPACE it would make a range.
        rc = c == '-' && r->after_space ? put(r, "\\-", 2) : put(r, &c, 1);
        if (c == ']') r->in_class = false;
        r->at++;
    }
    r->after_space = false;
    return rc;
}

static int rewrite_outside(struct rewrite *r) {
    size_t n = 1;
    if (r->in[r->at] == '[') {
        r->in_class = true;
        if (r->at + n < r->len && r->in[r->at + n] == '^') n++;
        if (r->at + n < r->len && r->in[r->at + n] == ']') n++; // a first ] is itself
    }
    r->at += n;
    return put(r, r->in + r->at - n, n);
}

int pattern_rewrite(const char *pattern, size_t len_bytes, struct buf *out, struct err *e) {
    struct rewrite r = {.in = pattern, .len = len_bytes, .out = out};
    int rc = ERR_OK;
    while (!rc && r.at < r.len) {
        if (r.in[r.at] == '\\')
            rc = rewrite_escape(&r);
        else if (r.in_class)
            rc = rewrite_in_class(&r, e);
        else
            rc = rewrite_outside(&r);
    }
    return rc == ERR_NOMEM ? err_set(e, rc, "no memory for a pattern of %zu bytes", len_bytes) : rc;
}
