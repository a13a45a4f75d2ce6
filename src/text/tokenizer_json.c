// tokenizer.json -> struct tokenizer. Each section has one function; what it cannot honour is refused by name.
#include "text/tokenizer_impl.h"
#include <stdlib.h>
#include <string.h>

enum { ALPHABET_END = 256 + 68 }; // code points of the byte-level alphabet end below this

static bool prints(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

// The byte-level alphabet: printable bytes of Latin-1 stand for themselves, the others for 256, 257, ... in order.
static int alphabet_of(int byte) {
    if (prints(byte)) return byte;
    int n = 0;
    for (int b = 0; b < byte; b++) n += !prints(b);
    return 256 + n;
}

static int byte_of(unsigned c) {
    if (c < 256) return prints((int)c) ? (int)c : -1;
    int n = 256;
    for (int b = 0; b < 256; b++)
        if (!prints(b) && (unsigned)n++ == c) return b;
    return -1;
}

bool tokenizer_json_spelled(const char *spelling, size_t len_bytes, uint8_t *out, size_t *out_len_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < len_bytes; i++) {
        unsigned c = (uint8_t)spelling[i];
        if (c >= 0x80) { // valid UTF-8, of which only the two-byte part reaches into the alphabet
            if (c > 0xc5 || i + 1 == len_bytes) return false;
            c = (c & 0x1f) << 6 | ((uint8_t)spelling[++i] & 0x3f);
        }
        int byte = c < ALPHABET_END ? byte_of(c) : -1;
        if (byte < 0) return false;
        out[n++] = (uint8_t)byte;
    }
    *out_len_bytes = n;
    return true;
}

// A field that must be absent, null, false, 0 or "".
static int must_be_off(const json_t *obj, const char *where, const char *field, struct err *e) {
    const json_t *v = json_object_get(obj, field);
    bool off = !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    if (off) return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "%s.%s is set; only byte-level BPE without it is supported", where, field);
}

static const char *type_of(const json_t *obj) {
    const char *type = json_string_value(json_object_get(obj, "type"));
    return type ? type : "(none)";
}

static bool flag_of(const json_t *obj, const char *field, bool absent) {
    const json_t *v = json_object_get(obj, field);
    return v ? json_is_true(v) : absent;
}

static int see_id(const json_t *v, const char *what, uint32_t *n_vocab, size_t *n_bytes, size_t len, struct err *e) {
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id >= LIMIT_VOCAB)
        return err_set(e, ERR_FORMAT, "%s: the id must be an integer from 0 to %d", what, LIMIT_VOCAB - 1);
    if (len > LIMIT_TOKEN_BYTES * 2)
        return err_set(e, ERR_LIMIT, "%s: token %lld is spelled with %zu bytes, at most %d", what, (long long)id, len,
                       LIMIT_TOKEN_BYTES * 2);
    if ((uint32_t)id >= *n_vocab) *n_vocab = (uint32_t)id + 1;
    *n_bytes += len;
    return ERR_OK;
}

// Sizes the tables by the highest id and the sum of all spellings.
static int make_tables(struct tokenizer *t, const json_t *vocab, const json_t *added, struct err *e) {
    const char *key;
    json_t *v;
    size_t i, n_bytes = 1;
    int rc = ERR_OK;
    json_object_foreach((json_t *)vocab, key, v) {
        rc = see_id(v, "model.vocab", &t->n_vocab, &n_bytes, strlen(key), e);
        if (rc) return rc;
    }
    json_array_foreach(added, i, v) {
        const json_t *content = json_object_get(v, "content");
        if (!json_is_string(content)) return err_set(e, ERR_FORMAT, "added_tokens[%zu].content must be a string", i);
        rc = see_id(json_object_get(v, "id"), "added_tokens", &t->n_vocab, &n_bytes, json_string_length(content), e);
        if (rc) return rc;
    }
    if (t->n_vocab == 0) return err_set(e, ERR_FORMAT, "model.vocab is empty");
    t->bytes = calloc(t->n_vocab, sizeof *t->bytes);
    t->len_bytes = calloc(t->n_vocab, sizeof *t->len_bytes);
    t->flags = calloc(t->n_vocab, sizeof *t->flags);
    t->blob = malloc(n_bytes);
    t->blob_cap_bytes = n_bytes;
    if (!t->bytes || !t->len_bytes || !t->flags || !t->blob)
        return err_set(e, ERR_NOMEM, "no memory for %u tokens", t->n_vocab);
    return ERR_OK;
}

static void keep(struct tokenizer *t, uint32_t id, const void *bytes, size_t len, unsigned flags) {
    ASSERT(t->blob_len_bytes + len <= t->blob_cap_bytes, "token %u", id);
    memcpy(t->blob + t->blob_len_bytes, bytes, len);
    t->bytes[id] = t->blob + t->blob_len_bytes;
    t->len_bytes[id] = (uint32_t)len;
    t->flags[id] = (uint8_t)(flags | TOKENIZER_USED);
    t->blob_len_bytes += len;
}

static int load_vocab(struct tokenizer *t, const json_t *vocab, struct err *e) {
    uint8_t bytes[LIMIT_TOKEN_BYTES * 2];
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)vocab, key, v) {
        uint32_t id = (uint32_t)json_integer_value(v);
        if (t->flags[id])
            return err_set(e, ERR_FORMAT, "model.vocab: id %u is given twice, again to \"%.64s\"", id, key);
        size_t n = strlen(key);
        // A spelling outside the alphabet stands for itself, as the reference's decoder has it.
        if (tokenizer_json_spelled(key, n, bytes, &n))
            keep(t, id, bytes, n, TOKENIZER_ALPHABET);
        else
            keep(t, id, key, n, 0);
        if (t->len_bytes[id] > LIMIT_TOKEN_BYTES)
            return err_set(e, ERR_LIMIT, "model.vocab: token %u has more than %d bytes", id, LIMIT_TOKEN_BYTES);
    }
    return ERR_OK;
}

static int32_t vocab_id(const json_t *vocab, const char *spelling) {
    const json_t *v = json_object_get(vocab, spelling);
    return v ? (int32_t)json_integer_value(v) : -1;
}

static int load_bytes(struct tokenizer *t, const json_t *vocab, struct err *e) {
    for (int b = 0; b < 256; b++) {
        int c = alphabet_of(b);
        char spelling[3] = {(char)c};
        if (c >= 0x80) {
            spelling[0] = (char)(0xc0 | c >> 6);
            spelling[1] = (char)(0x80 | (c & 0x3f));
        }
        t->bpe.byte_id[b] = vocab_id(vocab, spelling);
        bool in_utf8 = b != 0xc0 && b != 0xc1 && b < 0xf5;
        if (in_utf8 && t->bpe.byte_id[b] < 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "model.vocab has no token for byte 0x%02x (\"%s\"): not a byte-level BPE", b, spelling);
    }
    return ERR_OK;
}

// The two halves of a merge, from "a b" or ["a", "b"]: copied one after the other, each with its NUL.
static bool halves(const json_t *m, char *left, char *right, size_t cap) {
    const char *l, *r;
    size_t l_len, r_len;
    if (json_is_string(m)) {
        l = json_string_value(m);
        r = strchr(l, ' ');
        if (!r || strchr(r + 1, ' ')) return false;
        l_len = (size_t)(r - l);
        r++;
        r_len = json_string_length(m) - l_len - 1;
    } else {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b)) return false;
        l = json_string_value(a), l_len = json_string_length(a);
        r = json_string_value(b), r_len = json_string_length(b);
    }
    if (l_len == 0 || r_len == 0 || l_len >= cap || r_len >= cap) return false;
    memcpy(left, l, l_len);
    memcpy(right, r, r_len);
    left[l_len] = right[r_len] = 0;
    return strlen(left) == l_len && strlen(right) == r_len; // a NUL inside is no spelling
}

static int load_merges(struct tokenizer *t, const json_t *vocab, const json_t *merges, struct err *e) {
    enum { CAP = LIMIT_TOKEN_BYTES * 2 + 1 };
    char left[CAP], right[CAP], both[2 * CAP];
    size_t i;
    json_t *m;
    json_array_foreach(merges, i, m) {
        if (!halves(m, left, right, CAP))
            return err_set(e, ERR_FORMAT, "model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", i);
        size_t l_len = strlen(left);
        memcpy(both, left, l_len);
        strcpy(both + l_len, right);
        int32_t l = vocab_id(vocab, left), r = vocab_id(vocab, right), id = vocab_id(vocab, both);
        if (l < 0 || r < 0 || id < 0)
            return err_set(e, ERR_FORMAT, "model.merges[%zu]: \"%.64s\" is not in model.vocab", i,
                           l < 0   ? left
                           : r < 0 ? right
                                   : both);
        bpe_add_merge(&t->bpe, l, r, (uint32_t)i, id);
    }
    return ERR_OK;
}

static int load_model(struct tokenizer *t, const json_t *model, const json_t *added, struct err *e) {
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
        return err_set(e, ERR_UNSUPPORTED, "model.type is \"%.64s\", only \"BPE\" is supported", type_of(model));
    if (!json_is_object(vocab)) return err_set(e, ERR_FORMAT, "model.vocab must be an object");
    if (!json_is_array(merges)) return err_set(e, ERR_FORMAT, "model.merges must be an array");
    int rc = ERR_OK;
    for (size_t i = 0; i < sizeof off / sizeof *off && !rc; i++) rc = must_be_off(model, "model", off[i], e);
    if (!rc) rc = make_tables(t, vocab, added, e);
    if (!rc && bpe_init(&t->bpe, json_array_size(merges))) rc = err_set(e, ERR_NOMEM, "no memory for model.merges");
    if (!rc) rc = load_vocab(t, vocab, e);
    if (!rc) rc = load_bytes(t, vocab, e);
    if (!rc) rc = load_merges(t, vocab, merges, e);
    if (rc || !flag_of(model, "ignore_merges", false)) return rc;
    if (bpe_init_pieces(&t->bpe, t->n_vocab, t->bytes, t->len_bytes))
        return err_set(e, ERR_NOMEM, "no memory for model.vocab");
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->flags[id] & TOKENIZER_ALPHABET) bpe_add_piece(&t->bpe, (int32_t)id);
    return ERR_OK;
}

static int load_normalizer(struct tokenizer *t, const json_t *n, const char *where, int depth, struct err *e) {
    if (!n || json_is_null(n)) return ERR_OK;
    if (strcmp(type_of(n), "NFC") == 0) {
        t->nfc = true;
        return ERR_OK;
    }
    const json_t *list = json_object_get(n, "normalizers");
    if (strcmp(type_of(n), "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ERR_UNSUPPORTED, "%s.type is \"%.64s\", only null, \"NFC\" and a \"Sequence\" of these",
                       where, type_of(n));
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        int rc = load_normalizer(t, v, "normalizer.normalizers", depth + 1, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int load_added(struct tokenizer *t, const json_t *list, const json_t *vocab, struct err *e) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        const json_t *c = json_object_get(v, "content");
        const uint8_t *content = (const uint8_t *)json_string_value(c);
        size_t len = json_string_length(c);
        uint32_t id = (uint32_t)json_integer_value(json_object_get(v, "id"));
        const json_t *same = memchr(content, 0, len) ? NULL : json_object_get(vocab, (const char *)content);
        bool taken = same ? json_integer_value(same) != id : t->flags[id] != 0;
        if (taken || t->flags[id] & TOKENIZER_ADDED)
            return err_set(e, ERR_FORMAT, "added_tokens[%zu]: id %u and \"%.64s\" do not belong together alone", i, id,
                           (const char *)content);
        if (len > LIMIT_TOKEN_BYTES)
            return err_set(e, ERR_LIMIT, "added_tokens[%zu] has more than %d bytes", i, LIMIT_TOKEN_BYTES);
        bool special = flag_of(v, "special", false), normalized = flag_of(v, "normalized", !special);
        struct added_token token = {
            .id = (int32_t)id,
            .single_word = flag_of(v, "single_word", false),
            .lstrip = flag_of(v, "lstrip", false),
            .rstrip = flag_of(v, "rstrip", false),
            .special = special,
        };
        keep(t, id, content, len, TOKENIZER_ADDED | (special ? TOKENIZER_SPECIAL : 0u));
        uint8_t *nfc = normalized && t->nfc ? tokenizer_nfc(content, len, &len) : NULL;
        int rc = normalized && t->nfc && !nfc ? ERR_NOMEM : ERR_OK;
        if (!rc) rc = added_add(normalized ? &t->added_normalized : &t->added_raw, nfc ? nfc : content, len, &token);
        free(nfc);
        if (rc) return err_set(e, rc, "no memory for added_tokens");
    }
    return ERR_OK;
}

static int load_split(struct tokenizer *t, const json_t *p, struct err *e) {
    static const char *const names[] = {
        [PRETOK_ISOLATED] = "Isolated",
        [PRETOK_REMOVED] = "Removed",
        [PRETOK_CONTIGUOUS] = "Contiguous",
        [PRETOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [PRETOK_MERGED_WITH_NEXT] = "MergedWithNext",
    };
    const json_t *pattern = json_object_get(p, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const json_t *text = json_is_string(regex) ? regex : string;
    const char *behavior = json_string_value(json_object_get(p, "behavior"));
    if (!json_is_string(text))
        return err_set(e, ERR_FORMAT, "pre_tokenizer Split: pattern must be {\"Regex\": ...} or {\"String\": ...}");
    for (size_t i = 0; behavior && i < sizeof names / sizeof *names; i++)
        if (strcmp(behavior, names[i]) == 0)
            return pretok_add(&t->pretok, json_string_value(text), json_string_length(text), text == string,
                              (enum pretok_behavior)i, flag_of(p, "invert", false), e);
    return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Split: behavior \"%.64s\" is unknown", behavior ? behavior : "");
}

static int load_pretok(struct tokenizer *t, const json_t *p, bool *byte_level, int depth, struct err *e) {
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    const char *type = type_of(p);
    if (*byte_level)
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer has \"%.64s\" behind ByteLevel, which must be the last",
                       type);
    if (strcmp(type, "Split") == 0) return load_split(t, p, e);
    if (strcmp(type, "Digits") == 0)
        return pretok_add(&t->pretok, "\\p{N}", 5, false,
                          flag_of(p, "individual_digits", false) ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS, false, e);
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        t->pretok.prefix_space = flag_of(p, "add_prefix_space", true);
        t->pretok.prefix_at = t->pretok.n_steps;
        if (!flag_of(p, "use_regex", true)) return ERR_OK;
        return pretok_add(&t->pretok, gpt2, sizeof gpt2 - 1, false, PRETOK_ISOLATED, false, e);
    }
    const json_t *list = json_object_get(p, "pretokenizers");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer.type \"%.64s\": only Split, Digits, ByteLevel and a Sequence",
                       type);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        int rc = load_pretok(t, v, byte_level, depth + 1, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int load_around(struct tokenizer *t, const json_t *p, struct err *e) {
    size_t i, j;
    json_t *item, *id;
    bool behind = false;
    json_array_foreach(json_object_get(p, "single"), i, item) {
        if (json_object_get(item, "Sequence")) {
            behind = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *tokens = json_object_get(json_object_get(p, "special_tokens"), name ? name : "");
        int32_t *ids = behind ? t->suffix : t->prefix;
        uint32_t *n = behind ? &t->n_suffix : &t->n_prefix;
        if (!json_is_array(json_object_get(tokens, "ids")))
            return err_set(e, ERR_FORMAT, "post_processor.single[%zu] names no entry of special_tokens", i);
        json_array_foreach(json_object_get(tokens, "ids"), j, id) {
            json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
            if (value < 0 || value >= t->n_vocab || !t->flags[value] || *n == TOKENIZER_AROUND_MAX)
                return err_set(e, ERR_FORMAT, "post_processor.special_tokens[\"%.64s\"].ids: no token, or too many",
                               name);
            ids[(*n)++] = (int32_t)value;
        }
    }
    return ERR_OK;
}

static int load_post(struct tokenizer *t, const json_t *p, int depth, struct err *e) {
    if (!p || json_is_null(p) || strcmp(type_of(p), "ByteLevel") == 0) return ERR_OK;
    if (strcmp(type_of(p), "TemplateProcessing") == 0) return load_around(t, p, e);
    const json_t *list = json_object_get(p, "processors");
    if (strcmp(type_of(p), "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ERR_UNSUPPORTED,
                       "post_processor.type \"%.64s\": only ByteLevel, TemplateProcessing and a Sequence", type_of(p));
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        int rc = load_post(t, v, depth + 1, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

int tokenizer_json_load(struct tokenizer *t, const json_t *root, struct err *e) {
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *decoder = json_object_get(root, "decoder");
    if (!json_is_object(model)) return err_set(e, ERR_FORMAT, "model must be an object");
    if (added && !json_is_null(added) && !json_is_array(added))
        return err_set(e, ERR_FORMAT, "added_tokens must be an array");
    bool byte_level = false;
    int rc = load_normalizer(t, json_object_get(root, "normalizer"), "normalizer", 0, e);
    if (!rc && pre && !json_is_null(pre)) rc = load_pretok(t, pre, &byte_level, 0, e);
    if (!rc && !byte_level)
        rc = err_set(e, ERR_UNSUPPORTED, "pre_tokenizer has no ByteLevel: only byte-level BPE is supported");
    if (!rc && decoder && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        rc =
            err_set(e, ERR_UNSUPPORTED, "decoder.type is \"%.64s\", only \"ByteLevel\" is supported", type_of(decoder));
    if (!rc) rc = load_model(t, model, added, e);
    if (!rc) rc = load_added(t, added, json_object_get(model, "vocab"), e);
    if (!rc) rc = load_post(t, json_object_get(root, "post_processor"), 0, e);
    return rc;
}
