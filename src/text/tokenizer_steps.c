// Normaliser, pre-tokenizer and decoder of a tokenizer.json.
#include "text/pre.h"
#include "text/tokenizer_json.h"
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 4 };

static int too_long(const char *where, struct err *e) {
    return err_set(e, ERR_UNSUPPORTED, "%s: a string of more than %d bytes", where, NORM_TO_BYTES);
}

// Calls one() for each entry of a list; false if there is no list.
typedef int step_fn(struct tokenizer *t, const json_t *step, int depth, struct err *e);
static bool each(struct tokenizer *t, const json_t *list, int depth, step_fn *one, int *rc, struct err *e) {
    size_t i;
    json_t *v;
    if (!json_is_array(list) || depth >= DEPTH_MAX) return false;
    *rc = ERR_OK;
    json_array_foreach(list, i, v) {
        *rc = one(t, v, depth + 1, e);
        if (*rc) return true;
    }
    return true;
}

// ---- normalizer ----------------------------------------------------------------------------------------------------

static int load_prepend(struct tokenizer *t, const json_t *n, struct err *e) {
    const json_t *text = json_object_get(n, "prepend");
    struct norm_step step = {.kind = NORM_PREPEND, .to_bytes = (uint32_t)json_string_length(text)};
    if (!json_is_string(text)) return err_set(e, ERR_FORMAT, "normalizer Prepend: prepend must be a string");
    if (json_string_length(text) > NORM_TO_BYTES) return too_long("normalizer Prepend", e);
    memcpy(step.to, json_string_value(text), step.to_bytes);
    return norm_add(&t->norm, &step, e);
}

static int load_replace(struct tokenizer *t, const json_t *n, struct err *e) {
    const json_t *content = json_object_get(n, "content"), *pattern = json_object_get(n, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    struct norm_step step = {.kind = NORM_REPLACE, .to_bytes = (uint32_t)json_string_length(content)};
    if (!json_is_string(content) || (!json_is_string(regex) && !json_is_string(string)))
        return err_set(e, ERR_FORMAT,
                       "normalizer Replace: pattern must be {\"Regex\": ...} or {\"String\": ...}, "
                       "content a string");
    if (json_string_length(content) > NORM_TO_BYTES) return too_long("normalizer Replace", e);
    memcpy(step.to, json_string_value(content), step.to_bytes);
    const json_t *text = json_is_string(regex) ? regex : string;
    size_t len = json_string_length(text);
    if (text == string && len > 0 && len <= NORM_TO_BYTES) {
        memcpy(step.from, json_string_value(text), len);
        step.from_bytes = (uint32_t)len;
    } else {
        int rc = pattern_new(json_string_value(text), len, text == string, "normalizer Replace", &step.pattern, e);
        if (rc) return rc;
    }
    return norm_add(&t->norm, &step, e);
}

static int load_normalizer(struct tokenizer *t, const json_t *n, int depth, struct err *e) {
    static const struct {
        const char *type;
        enum norm_kind kind;
    } plain[] = {{"NFC", NORM_NFC},
                 {"NFD", NORM_NFD},
                 {"NFKC", NORM_NFKC},
                 {"NFKD", NORM_NFKD},
                 {"Lowercase", NORM_LOWERCASE},
                 {"StripAccents", NORM_STRIP_ACCENTS}};
    if (!n || json_is_null(n)) return ERR_OK;
    const char *type = tokenizer_json_type(n);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0) return norm_add(&t->norm, &(struct norm_step){.kind = plain[i].kind}, e);
    if (strcmp(type, "Prepend") == 0) return load_prepend(t, n, e);
    if (strcmp(type, "Replace") == 0) return load_replace(t, n, e);
    if (strcmp(type, "Strip") == 0) {
        struct norm_step step = {.kind = NORM_STRIP,
                                 .left = tokenizer_json_flag(n, "strip_left", true),
                                 .right = tokenizer_json_flag(n, "strip_right", true)};
        return norm_add(&t->norm, &step, e);
    }
    int rc;
    if (strcmp(type, "Sequence") == 0 && each(t, json_object_get(n, "normalizers"), depth, load_normalizer, &rc, e))
        return rc;
    return err_set(e, ERR_UNSUPPORTED,
                   "normalizer.type is \"%.64s\", only NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, "
                   "Replace and a Sequence of these are supported",
                   type);
}

// ---- pre_tokenizer -------------------------------------------------------------------------------------------------

// False: no behaviour of that name.
static bool behavior_of(const json_t *p, const char *absent, enum pretok_behavior *behavior) {
    static const char *const names[] = {
        [PRETOK_ISOLATED] = "Isolated",
        [PRETOK_REMOVED] = "Removed",
        [PRETOK_CONTIGUOUS] = "Contiguous",
        [PRETOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [PRETOK_MERGED_WITH_NEXT] = "MergedWithNext",
    };
    const char *name = json_string_value(json_object_get(p, "behavior"));
    if (!name) name = absent;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *behavior = (enum pretok_behavior)i;
        if (strcmp(name, names[i]) == 0) return true;
    }
    return false;
}

static int load_split(struct tokenizer *t, const json_t *p, struct err *e) {
    const json_t *pattern = json_object_get(p, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const json_t *text = json_is_string(regex) ? regex : string;
    enum pretok_behavior behavior;
    if (!json_is_string(text))
        return err_set(e, ERR_FORMAT, "pre_tokenizer Split: pattern must be {\"Regex\": ...} or {\"String\": ...}");
    if (!behavior_of(p, "", &behavior)) return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Split: unknown behavior");
    return pretok_add(&t->pretok, json_string_value(text), json_string_length(text), text == string, behavior,
                      tokenizer_json_flag(p, "invert", false), e);
}

// prepend_scheme; files from before it say add_prefix_space.
static int scheme_of(const json_t *p, enum pretok_scheme *scheme, struct err *e) {
    static const char *const names[] = {[PRETOK_NEVER] = "never", [PRETOK_FIRST] = "first", [PRETOK_ALWAYS] = "always"};
    const char *name = json_string_value(json_object_get(p, "prepend_scheme"));
    *scheme = tokenizer_json_flag(p, "add_prefix_space", true) ? PRETOK_ALWAYS : PRETOK_NEVER;
    if (!name) return ERR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *scheme = (enum pretok_scheme)i;
        if (strcmp(name, names[i]) == 0) return ERR_OK;
    }
    return err_set(e, ERR_UNSUPPORTED, "Metaspace: prepend_scheme \"%.64s\" is none of first, always, never", name);
}

static int load_metaspace(struct tokenizer *t, const json_t *p, struct err *e) {
    const json_t *mark = json_object_get(p, "replacement");
    enum pretok_scheme scheme;
    int rc = scheme_of(p, &scheme, e);
    if (rc) return rc;
    return pretok_add_metaspace(&t->pretok, json_is_string(mark) ? json_string_value(mark) : "\xe2\x96\x81",
                                json_is_string(mark) ? json_string_length(mark) : 3, scheme,
                                tokenizer_json_flag(p, "split", true), e);
}

static int load_byte_level(struct tokenizer *t, const json_t *p, struct err *e) {
    int rc = ERR_OK;
    t->decoder.alphabet = true;
    if (tokenizer_json_flag(p, "add_prefix_space", true)) rc = pretok_add_prefix(&t->pretok, e);
    if (!rc && tokenizer_json_flag(p, "use_regex", true))
        rc = pretok_add(&t->pretok, PRE_GPT2, sizeof PRE_GPT2 - 1, false, PRETOK_ISOLATED, false, e);
    return rc;
}

static int load_plain_pretok(struct tokenizer *t, const char *type, const json_t *p, bool *known, struct err *e) {
    static const struct {
        const char *type, *pattern;
        enum pretok_behavior behavior;
        bool invert;
    } plain[] = {{"Whitespace", "\\w+|[^\\w\\s]+", PRETOK_REMOVED, true},
                 {"WhitespaceSplit", "\\s", PRETOK_REMOVED, false},
                 {"Digits", "\\p{N}", PRETOK_CONTIGUOUS, false},
                 {"Punctuation", "[!-/:-@\\[-`{-~\\p{P}]", PRETOK_ISOLATED, false}};
    *known = true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(type, plain[i].type) != 0) continue;
        enum pretok_behavior behavior = plain[i].behavior;
        if (strcmp(type, "Digits") == 0 && tokenizer_json_flag(p, "individual_digits", false))
            behavior = PRETOK_ISOLATED;
        if (strcmp(type, "Punctuation") == 0 && !behavior_of(p, "Isolated", &behavior))
            return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer Punctuation: unknown behavior");
        return pretok_add(&t->pretok, plain[i].pattern, strlen(plain[i].pattern), false, behavior, plain[i].invert, e);
    }
    *known = false;
    return ERR_OK;
}

static int load_pretok(struct tokenizer *t, const json_t *p, int depth, struct err *e) {
    const char *type = tokenizer_json_type(p);
    if (t->decoder.alphabet)
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer has \"%.64s\" behind ByteLevel, which must be the last",
                       type);
    if (strcmp(type, "Split") == 0) return load_split(t, p, e);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(t, p, e);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(t, p, e);
    bool known;
    int rc = load_plain_pretok(t, type, p, &known, e);
    if (known) return rc;
    if (strcmp(type, "Sequence") == 0 && each(t, json_object_get(p, "pretokenizers"), depth, load_pretok, &rc, e))
        return rc;
    if (strcmp(type, "Sequence") == 0)
        return err_set(e, ERR_FORMAT,
                       "pre_tokenizer.type \"Sequence\": its list \"pretokenizers\" is missing, or a "
                       "Sequence is inside of too many others");
    return err_set(e, ERR_UNSUPPORTED,
                   "pre_tokenizer.type \"%.64s\": only Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                   "Metaspace, ByteLevel and a Sequence of these",
                   type);
}

// ---- decoder -------------------------------------------------------------------------------------------------------

// What stands between two steps of a decoder, in the order in which they may come.
enum decoding { DECODING_PIECES, DECODING_FUSED };

static int decode_replaced(struct decoder *d, const char *from, size_t from_bytes, const char *to, size_t to_bytes,
                           const char *where, struct err *e) {
    if (d->from_bytes)
        return err_set(e, ERR_UNSUPPORTED, "decoder %s: more than one replacement is not supported", where);
    if (from_bytes == 0 || from_bytes > PRETOK_MARK_BYTES || to_bytes > from_bytes)
        return err_set(e, ERR_UNSUPPORTED, "decoder %s: a mark of 1 to %d bytes, for something shorter", where,
                       PRETOK_MARK_BYTES);
    d->from_bytes = (uint8_t)from_bytes;
    d->to_bytes = (uint8_t)to_bytes;
    memcpy(d->from, from, from_bytes);
    memcpy(d->to, to, to_bytes);
    return ERR_OK;
}

static int load_decoder_metaspace(struct decoder *d, const json_t *p, struct err *e) {
    const json_t *mark = json_object_get(p, "replacement");
    enum pretok_scheme scheme;
    int rc = scheme_of(p, &scheme, e);
    if (rc) return rc;
    d->decoding.strip_first_token = scheme != PRETOK_NEVER;
    return decode_replaced(d, json_is_string(mark) ? json_string_value(mark) : "\xe2\x96\x81",
                           json_is_string(mark) ? json_string_length(mark) : 3, " ", 1, "Metaspace", e);
}

static int load_decoder_strip(struct decoder *d, const json_t *p, bool fused, struct err *e) {
    const char *content = json_string_value(json_object_get(p, "content"));
    json_int_t start = json_integer_value(json_object_get(p, "start"));
    json_int_t stop = json_integer_value(json_object_get(p, "stop"));
    if (!content || strcmp(content, " ") != 0 || start < 0 || start > UINT8_MAX || stop != 0 || !fused)
        return err_set(e, ERR_UNSUPPORTED, "decoder Strip: only spaces at the start of the fused text are supported");
    d->decoding.strip_spaces = (uint8_t)start;
    return ERR_OK;
}

static int load_decoder_step(struct decoder *d, const json_t *p, enum decoding *at, struct err *e) {
    const char *type = tokenizer_json_type(p);
    if (strcmp(type, "Fuse") == 0) {
        *at = DECODING_FUSED;
        return ERR_OK;
    }
    if (strcmp(type, "Strip") == 0) return load_decoder_strip(d, p, *at == DECODING_FUSED, e);
    if (*at != DECODING_PIECES)
        return err_set(e, ERR_UNSUPPORTED, "decoder has \"%.64s\" behind Fuse; only Strip may follow it", type);
    if (strcmp(type, "ByteFallback") == 0) {
        d->bytes = true;
        return ERR_OK;
    }
    if (strcmp(type, "Metaspace") == 0) return load_decoder_metaspace(d, p, e);
    if (strcmp(type, "Replace") == 0) {
        const json_t *from = json_object_get(json_object_get(p, "pattern"), "String"),
                     *to = json_object_get(p, "content");
        if (json_is_string(from) && json_is_string(to))
            return decode_replaced(d, json_string_value(from), json_string_length(from), json_string_value(to),
                                   json_string_length(to), "Replace", e);
    }
    return err_set(
        e, ERR_UNSUPPORTED,
        "decoder.type \"%.64s\": only ByteLevel, or Replace of a String, ByteFallback, Fuse, Strip, Metaspace "
        "and a Sequence of these",
        type);
}

static int load_decoder(struct tokenizer *t, const json_t *p, struct err *e) {
    struct decoder *d = &t->decoder;
    bool none = !p || json_is_null(p), list = !none && strcmp(tokenizer_json_type(p), "Sequence") == 0;
    const json_t *steps = list ? json_object_get(p, "decoders") : NULL;
    const json_t *only = list ? (json_array_size(steps) == 1 ? json_array_get(steps, 0) : NULL) : p;
    bool alphabet = only && strcmp(tokenizer_json_type(only), "ByteLevel") == 0;
    if (d->alphabet) {
        if (none || alphabet) return ERR_OK;
        return err_set(e, ERR_UNSUPPORTED,
                       "decoder.type is \"%.64s\", only \"ByteLevel\" is supported behind a "
                       "pre_tokenizer ByteLevel",
                       tokenizer_json_type(p));
    }
    if (none || alphabet)
        return err_set(e, ERR_UNSUPPORTED,
                       none ? "decoder is missing: spaces would come between all tokens"
                            : "pre_tokenizer has no ByteLevel, but decoder.type is \"ByteLevel\"");
    d->decoding.byte_by_byte = true;
    enum decoding at = DECODING_PIECES;
    if (!list) return load_decoder_step(d, p, &at, e);
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step) {
        int rc = load_decoder_step(d, step, &at, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

int tokenizer_steps_load(struct tokenizer *t, const json_t *root, struct err *e) {
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    int rc = load_normalizer(t, json_object_get(root, "normalizer"), 0, e);
    if (!rc && pre && !json_is_null(pre)) rc = load_pretok(t, pre, 0, e);
    return rc ? rc : load_decoder(t, json_object_get(root, "decoder"), e);
}
