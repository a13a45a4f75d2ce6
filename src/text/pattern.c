#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"
#include <pcre2.h>
#include <string.h>

enum { PATTERN_MAX_BYTES = 64 << 10 };

// Unicode's White_Space. PCRE2's own \s holds U+180E too, which cuts pieces where the reference does not.
#define SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"       \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
// What the reference takes for a character of a word; PCRE2's own \w lacks marks.
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

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

// False: inside a set, where \W cannot be written so.
static bool rewrite_word(struct rewrite *r, bool negated, int *rc) {
    if (negated && r->in_class) return false;
    const char *open = r->in_class ? "" : negated ? "[^" : "[";
    *rc = put(r, open, strlen(open));
    if (!*rc) *rc = put(r, WORD, sizeof WORD - 1);
    if (!*rc && !r->in_class) *rc = put(r, "]", 1);
    r->at += 2;
    r->after_space = r->in_class;
    return true;
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
    int rc;
    if (c == 's' || c == 'S') return rewrite_space(r, c == 'S');
    if ((c == 'w' || c == 'W') && rewrite_word(r, c == 'W', &rc)) return rc;
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

// From each place in a run of spaces that does not end a line, "\s+$" looks at the rest of the run; from a run's first
// place alone it finds the same matches, in linear time.
static const char slow[] = "\\s+$", fast[] = "(?<!\\s)\\s+$";

int pattern_rewrite(const char *pattern, size_t len_bytes, struct buf *out, struct err *e) {
    if (len_bytes == sizeof slow - 1 && memcmp(pattern, slow, len_bytes) == 0) {
        pattern = fast;
        len_bytes = sizeof fast - 1;
    }
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

int pattern_new(const char *text, size_t len_bytes, bool literal, const char *where, struct pattern **p,
                struct err *e) {
    if (len_bytes > PATTERN_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "%s of %zu bytes, at most %d", where, len_bytes, PATTERN_MAX_BYTES);
    struct buf rewritten;
    buf_init(&rewritten, PATTERN_MAX_BYTES * 64);
    struct err inner = {0};
    int rc = literal ? buf_add(&rewritten, text, len_bytes) : pattern_rewrite(text, len_bytes, &rewritten, &inner);
    if (!rc && !buf_cstr(&rewritten)) rc = ERR_NOMEM;
    pcre2_code *code = NULL;
    if (rc == ERR_NOMEM) {
        err_set(e, rc, "%s: no memory", where);
    } else if (rc) {
        err_set(e, rc, "%s: %s", where, inner.text);
    } else {
        int number;
        size_t at;
        uint32_t options =
            PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
        code = pcre2_compile(rewritten.data, rewritten.len_bytes, options, &number, &at, NULL);
        PCRE2_UCHAR8 why[128] = "";
        if (!code) {
            pcre2_get_error_message(number, why, sizeof why);
            rc = err_set(e, ERR_UNSUPPORTED, "%s, near byte %zu: %s", where, at, (char *)why);
        }
    }
    buf_fini(&rewritten);
    if (rc) return rc;
    // Where the system forbids executable memory, the interpreter does the same, more slowly.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    *p = (struct pattern *)code;
    return ERR_OK;
}

void pattern_free(struct pattern *p) { pcre2_code_free((pcre2_code *)p); }

int pattern_matcher_init(struct pattern_matcher *m) {
    *m = (struct pattern_matcher){pcre2_match_data_create(32, NULL), pcre2_match_context_create(NULL)};
    return m->data && m->context ? ERR_OK : ERR_NOMEM;
}

void pattern_matcher_fini(struct pattern_matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    *m = (struct pattern_matcher){0};
}

// The default limit of PCRE2 (10 million) stops at a few megabytes of spaces; a limit that grows with the text still
// ends a pattern that backtracks without end on a short one.
void pattern_matcher_limit(struct pattern_matcher *m, size_t len_bytes) {
    uint64_t limit = 10000000u + (uint64_t)len_bytes * 1000u;
    pcre2_set_match_limit(m->context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
}

int pattern_next(const struct pattern *p, struct pattern_matcher *m, const uint8_t *text, size_t len_bytes, size_t from,
                 bool *found, size_t *start, size_t *end, struct err *e) {
    const pcre2_code *code = (const pcre2_code *)p;
    int n = pcre2_match(code, text, len_bytes, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    // The compiled code has a small stack; the interpreter's grows.
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(code, text, len_bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->context);
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return ERR_OK;
    if (n < 0) {
        PCRE2_UCHAR8 why[128] = "";
        pcre2_get_error_message(n, why, sizeof why);
        return err_set(e, n == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT, "tokenizer pattern: %s", (char *)why);
    }
    const size_t *ov = pcre2_get_ovector_pointer(m->data);
    // A lookbehind with \K may turn the two round; no tokenizer means that.
    if (ov[0] > ov[1] || ov[0] < from) return err_set(e, ERR_UNSUPPORTED, "tokenizer pattern matches backwards");
    *start = ov[0];
    *end = ov[1];
    return ERR_OK;
}
