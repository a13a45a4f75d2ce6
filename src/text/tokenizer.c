#include "os/file.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_spm.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

static int load_json(struct tokenizer *t, const char *json, size_t len_bytes, struct err *e) {
    json_error_t je;
    json_t *root = json_loadb(json, len_bytes, JSON_ALLOW_NUL, &je);
    if (!root) return err_set(e, ERR_FORMAT, "not JSON: %s at byte %d", je.text, je.position);
    int rc = tokenizer_json_load(t, root, e);
    json_decref(root);
    return rc;
}

// What a tokenizer is made from: one of these.
struct source {
    const char *json;
    const uint8_t *spm;
    size_t len_bytes;
    const char *config; // beside spm
    const struct gguf *gguf;
};

static int load(struct tokenizer *t, const struct source *s, struct err *e) {
    if (s->len_bytes > LIMIT_TOKENIZER_BYTES)
        return err_set(e, ERR_LIMIT, "%zu bytes, at most %d", s->len_bytes, LIMIT_TOKENIZER_BYTES);
    if (s->gguf) return tokenizer_gguf_load(t, s->gguf, e);
    if (s->spm) return tokenizer_spm_load(t, s->spm, s->len_bytes, s->config, e);
    return load_json(t, s->json, s->len_bytes, e);
}

static int make(const struct source *s, const char *name, struct tokenizer **t, struct err *e) {
    struct tokenizer *made = calloc(1, sizeof *made);
    int rc = made ? load(made, s, e) : err_set(e, ERR_NOMEM, "no memory for a tokenizer");
    if (!rc) {
        *t = made;
        return ERR_OK;
    }
    tokenizer_free(made);
    if (e) err_prefix(e, "%s", name);
    return rc;
}

int tokenizer_new(const char *json, size_t len_bytes, struct tokenizer **t, struct err *e) {
    return make(&(struct source){.json = json, .len_bytes = len_bytes}, "tokenizer.json", t, e);
}

int tokenizer_new_spm(const uint8_t *model, size_t len_bytes, const char *config, struct tokenizer **t, struct err *e) {
    return make(&(struct source){.spm = model, .len_bytes = len_bytes, .config = config}, "tokenizer.model", t, e);
}

int tokenizer_new_gguf(const struct gguf *g, struct tokenizer **t, struct err *e) {
    return make(&(struct source){.gguf = g}, "GGUF metadata", t, e);
}

// tokenizer_config.json beside a tokenizer.model; *config NULL: there is none.
static int read_config(const char *path, char **config, struct err *e) {
    const char *slash = strrchr(path, '/');
    char folder[LIMIT_PATH], name[LIMIT_PATH];
    size_t n = slash ? (size_t)(slash - path) : 1, len;
    if (n >= sizeof folder) return err_set(e, ERR_LIMIT, "%s: the path is too long", path);
    memcpy(folder, slash ? path : ".", n);
    folder[n] = 0;
    int rc = file_join(name, sizeof name, n ? folder : "/", "tokenizer_config.json", e);
    if (!rc) rc = file_read(name, LIMIT_CONFIG_BYTES * 16, config, &len, e);
    return rc == ERR_NOT_FOUND ? ERR_OK : rc;
}

int tokenizer_open(const char *path, struct tokenizer **t, struct err *e) {
    static const char spm[] = ".model";
    char *data = NULL, *config = NULL;
    size_t len = 0, n = strlen(path);
    bool is_spm = n >= sizeof spm - 1 && strcmp(path + n - (sizeof spm - 1), spm) == 0;
    int rc = file_read(path, LIMIT_TOKENIZER_BYTES, &data, &len, e);
    if (!rc && is_spm) rc = read_config(path, &config, e);
    struct source s = {.len_bytes = len};
    if (is_spm) {
        s.spm = (const uint8_t *)data;
        s.config = config;
    } else {
        s.json = data;
    }
    if (!rc) rc = make(&s, path, t, e);
    free(data);
    free(config);
    return rc;
}

int tokenizer_open_folder(const char *folder, struct tokenizer **t, struct err *e) {
    char path[LIMIT_PATH];
    int rc = file_join(path, sizeof path, folder, "tokenizer.json", e);
    if (rc) return rc;
    if (!file_exists(path)) {
        rc = file_join(path, sizeof path, folder, "tokenizer.model", e);
        if (rc) return rc;
        if (!file_exists(path))
            return err_set(e, ERR_NOT_FOUND, "%s: no tokenizer.json and no tokenizer.model in it", folder);
    }
    return tokenizer_open(path, t, e);
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    bpe_fini(&t->bpe);
    pretok_fini(&t->pretok);
    added_fini(&t->added_raw);
    added_fini(&t->added_normalized);
    norm_fini(&t->norm);
    free(t->spelling);
    free(t->spelling_bytes);
    free(t->spellings);
    free(t->bytes);
    free(t->len_bytes);
    free(t->flags);
    free(t->blob);
    free(t);
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

// first: no text comes before this section.
typedef int section_fn(struct encoding *c, const uint8_t *text, size_t len, bool first, const struct added_rule *rule,
                       struct err *e);

// Adds the tokens of one set where they occur and gives what lies between them to section(), with the breaks in it.
static int encode_around(struct encoding *c, const struct added *a, const uint8_t *text, size_t len, bool first,
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
            rc = section(c, text + done, m.start - done, first && done == 0, &inner, e);
            free(moved);
        }
        if (more && !rc) rc = ids_add(c->out, m.token->id);
        done = m.end;
    }
    return rc;
}

static int encode_plain(struct encoding *c, const uint8_t *text, size_t len, bool first, const struct added_rule *rule,
                        struct err *e) {
    (void)rule;
    return pretok_run(&c->t->pretok, &c->pretok, text, len, first, encode_piece, c, e);
}

static int encode_raw_section(struct encoding *c, const uint8_t *text, size_t len, bool first,
                              const struct added_rule *rule, struct err *e) {
    const struct added *a = &c->t->added_normalized;
    if (!norm_may_change(&c->t->norm, text, len)) return encode_around(c, a, text, len, first, rule, encode_plain, e);
    struct norm_text n;
    int rc = norm_run(&c->t->norm, text, len, rule->breaks, rule->n_breaks, first, &n, e);
    if (rc) return rc;
    struct added_rule inner = *rule;
    inner.breaks = n.breaks;
    rc = encode_around(c, a, n.data, n.len_bytes, first, &inner, encode_plain, e);
    norm_text_fini(&n);
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
    if (!rc) rc = encode_around(&c, &t->added_raw, bytes, len, true, rule, encode_raw_section, &inner);
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

struct tokenizer_decoding tokenizer_decoding(const struct tokenizer *t) {
    return t->decoder.decoding;
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
    if (tokenizer_build_bytes(&t->decoder, content, len, bytes, &len)) return find(t, bytes, len, TOKENIZER_SPELLED);
    return find(t, content, len, TOKENIZER_USED);
}

int32_t tokenizer_next_special(const struct tokenizer *t, int32_t id) {
    for (uint32_t next = (uint32_t)(id + 1); next < t->n_vocab; next++)
        if (t->flags[next] & TOKENIZER_SPECIAL) return (int32_t)next;
    return -1;
}
