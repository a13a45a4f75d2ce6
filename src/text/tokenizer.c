#include "text/tokenizer_impl.h"
#include "os/file.h"
#include <stdlib.h>
#include <string.h>
#include <uninorm.h>
#include <unistr.h>

static int load(struct tokenizer *t, const char *json, size_t len_bytes, struct err *e) {
    if (len_bytes > LIMIT_TOKENIZER_BYTES)
        return err_set(e, ERR_LIMIT, "%zu bytes, at most %d", len_bytes, LIMIT_TOKENIZER_BYTES);
    json_error_t je;
    json_t *root = json_loadb(json, len_bytes, JSON_ALLOW_NUL, &je);
    if (!root) return err_set(e, ERR_FORMAT, "not JSON: %s at byte %d", je.text, je.position);
    int rc = tokenizer_json_load(t, root, e);
    json_decref(root);
    return rc;
}

static int make(const char *json, size_t len_bytes, const char *name, struct tokenizer **t, struct err *e) {
    struct tokenizer *made = calloc(1, sizeof *made);
    int rc = made ? load(made, json, len_bytes, e) : err_set(e, ERR_NOMEM, "no memory for a tokenizer");
    if (!rc) {
        *t = made;
        return ERR_OK;
    }
    tokenizer_free(made);
    if (e) err_prefix(e, "%s", name);
    return rc;
}

int tokenizer_new(const char *json, size_t len_bytes, struct tokenizer **t, struct err *e) {
    return make(json, len_bytes, "tokenizer.json", t, e);
}

int tokenizer_open(const char *path, struct tokenizer **t, struct err *e) {
    char *json = NULL;
    size_t len = 0;
    int rc = file_read(path, LIMIT_TOKENIZER_BYTES, &json, &len, e);
    if (!rc) rc = make(json, len, path, t, e);
    free(json);
    return rc;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    bpe_fini(&t->bpe);
    pretok_fini(&t->pretok);
    added_fini(&t->added_raw);
    added_fini(&t->added_normalized);
    free(t->bytes);
    free(t->len_bytes);
    free(t->flags);
    free(t->blob);
    free(t);
}

uint8_t *tokenizer_nfc(const uint8_t *text, size_t len_bytes, size_t *out_len_bytes) {
    uint8_t *nfc = u8_normalize(UNINORM_NFC, text, len_bytes, NULL, out_len_bytes);
    if (nfc || len_bytes) return nfc;
    *out_len_bytes = 0;
    return malloc(1); // of nothing, libunistring may return NULL
}

// One call of tokenizer_encode: what it carries down to the pieces.
struct encoding {
    const struct tokenizer *t;
    struct pretok_scratch pretok;
    struct bpe_scratch bpe;
    struct ids *out;
};

static int encode_piece(void *ctx, const uint8_t *piece, size_t len_bytes) {
    struct encoding *c = ctx;
    return bpe_encode(&c->t->bpe, &c->bpe, piece, len_bytes, c->out);
}

typedef int section_fn(struct encoding *c, const uint8_t *text, size_t len, const struct added_rule *rule,
                       struct err *e);

// Adds the tokens of one set where they occur and gives what lies between them to section(), with the breaks in it.
static int encode_around(struct encoding *c, const struct added *a, const uint8_t *text, size_t len,
                         const struct added_rule *rule, section_fn *section, struct err *e) {
    size_t done = 0, pos = 0, b = 0;
    int rc = ERR_OK;
    for (bool more = true; more && !rc;) {
        struct added_match m = {.start = len, .end = len};
        more = added_next(a, text, len, rule, done, &pos, &m);
        if (m.start > done) {
            while (b < rule->n_breaks && rule->breaks[b] <= done) b++;
            struct added_rule inner = *rule;
            size_t n = 0;
            while (b + n < rule->n_breaks && rule->breaks[b + n] <= m.start) n++;
            size_t *moved = n ? malloc(n * sizeof *moved) : NULL;
            if (n && !moved) return ERR_NOMEM;
            for (size_t i = 0; i < n; i++) moved[i] = rule->breaks[b + i] - done;
            inner.breaks = moved;
            inner.n_breaks = n;
            rc = section(c, text + done, m.start - done, &inner, e);
            free(moved);
        }
        if (more && !rc) rc = ids_add(c->out, m.token->id);
        done = m.end;
    }
    return rc;
}

static int encode_plain(struct encoding *c, const uint8_t *text, size_t len, const struct added_rule *rule,
                        struct err *e) {
    (void)rule;
    return pretok_run(&c->t->pretok, &c->pretok, text, len, encode_piece, c, e);
}

static bool may_change(const uint8_t *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (text[i] >= 0xcc) return true; // below U+0300 everything is in NFC
    return false;
}

// Where the breaks lie in the normalised text. Each part is normalised by itself: a break stands inside what reads
// like a control token, so its neighbours are characters that take part in no composition but, perhaps, with a mark
// behind the last; then that is not a control token any more.
static int move_breaks(const uint8_t *text, const struct added_rule *rule, size_t *moved) {
    size_t from = 0, at = 0;
    for (size_t i = 0; i < rule->n_breaks; i++) {
        size_t n = 0;
        uint8_t *part = tokenizer_nfc(text + from, rule->breaks[i] - from, &n);
        if (!part) return ERR_NOMEM;
        free(part);
        at += n;
        from = rule->breaks[i];
        moved[i] = at;
    }
    return ERR_OK;
}

static int encode_raw_section(struct encoding *c, const uint8_t *text, size_t len, const struct added_rule *rule,
                              struct err *e) {
    const struct added *a = &c->t->added_normalized;
    if (!c->t->nfc || !may_change(text, len)) return encode_around(c, a, text, len, rule, encode_plain, e);
    struct added_rule inner = *rule;
    size_t *moved = rule->n_breaks ? malloc(rule->n_breaks * sizeof *moved) : NULL;
    size_t n = 0;
    uint8_t *nfc = tokenizer_nfc(text, len, &n);
    int rc = !nfc || (rule->n_breaks && !moved) ? ERR_NOMEM : move_breaks(text, rule, moved);
    inner.breaks = moved;
    if (!rc) rc = encode_around(c, a, nfc, n, &inner, encode_plain, e);
    free(nfc);
    free(moved);
    return rc;
}

static int encode(const struct tokenizer *t, const char *text, size_t len, const struct added_rule *rule,
                  struct ids *out, struct err *e) {
    const uint8_t *bytes = (const uint8_t *)text;
    if (len > LIMIT_PROMPT_BYTES)
        return err_set(e, ERR_LIMIT, "text of %zu bytes, at most %d", len, LIMIT_PROMPT_BYTES);
    if (len == 0) return ERR_OK;
    const uint8_t *bad = u8_check(bytes, len);
    if (bad) return err_set(e, ERR_FORMAT, "text is not UTF-8 at byte %zu", (size_t)(bad - bytes));
    struct encoding c = {.t = t, .out = out};
    struct err inner = {0};
    int rc = pretok_scratch_init(&c.pretok);
    int rc2 = bpe_scratch_init(&c.bpe, len >= 4096);
    if (!rc) rc = rc2;
    if (!rc) rc = encode_around(&c, &t->added_raw, bytes, len, rule, encode_raw_section, &inner);
    pretok_scratch_fini(&c.pretok);
    bpe_scratch_fini(&c.bpe);
    if (!rc) return ERR_OK;
    if (inner.code) return err_set(e, rc, "%s", inner.text);
    if (rc == ERR_LIMIT) return err_set(e, rc, "text has more than %zu tokens", out->max);
    return err_set(e, rc, "no memory to encode %zu bytes", len);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len_bytes, bool allow_special, struct ids *out,
                     struct err *e) {
    struct added_rule rule = {.allow_special = allow_special};
    return encode(t, text, len_bytes, &rule, out, e);
}

int tokenizer_encode_breaks(const struct tokenizer *t, const char *text, size_t len_bytes, const size_t *breaks,
                            size_t n_breaks, struct ids *out, struct err *e) {
    for (size_t i = 0; i < n_breaks; i++)
        ASSERT(breaks[i] <= len_bytes && (i == 0 || breaks[i - 1] <= breaks[i]), "break %zu at %zu", i, breaks[i]);
    struct added_rule rule = {.allow_special = true, .breaks = breaks, .n_breaks = n_breaks};
    return encode(t, text, len_bytes, &rule, out, e);
}

const int32_t *tokenizer_prefix(const struct tokenizer *t, uint32_t *n) {
    *n = t->n_prefix;
    return t->prefix;
}

const int32_t *tokenizer_suffix(const struct tokenizer *t, uint32_t *n) {
    *n = t->n_suffix;
    return t->suffix;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t) { return t->n_vocab; }

static bool is_token(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_vocab && t->flags[id];
}

const uint8_t *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len_bytes) {
    *len_bytes = is_token(t, id) ? t->len_bytes[id] : 0;
    return is_token(t, id) ? t->bytes[id] : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return is_token(t, id) && t->flags[id] & TOKENIZER_SPECIAL;
}

static int32_t find(const struct tokenizer *t, const void *bytes, size_t len, unsigned flag) {
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->flags[id] & flag && t->len_bytes[id] == len && memcmp(t->bytes[id], bytes, len) == 0) return (int32_t)id;
    return -1;
}

int32_t tokenizer_id_of(const struct tokenizer *t, const char *content) {
    uint8_t bytes[LIMIT_TOKEN_BYTES * 2];
    size_t len = strlen(content);
    int32_t id = find(t, content, len, TOKENIZER_ADDED);
    if (id >= 0 || len > sizeof bytes) return id;
    if (tokenizer_json_spelled(content, len, bytes, &len)) return find(t, bytes, len, TOKENIZER_ALPHABET);
    return find(t, content, len, TOKENIZER_USED);
}

int32_t tokenizer_next_special(const struct tokenizer *t, int32_t id) {
    for (uint32_t next = (uint32_t)(id + 1); next < t->n_vocab; next++)
        if (t->flags[next] & TOKENIZER_SPECIAL) return (int32_t)next;
    return -1;
}
