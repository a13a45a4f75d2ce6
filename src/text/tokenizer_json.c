// tokenizer.json -> struct tokenizer. Each section has one function; what it cannot honour is refused by name. The
// steps before and after the model are in tokenizer_steps.c.
#include "text/tokenizer_json.h"
#include <stdlib.h>
#include <string.h>

// A field that must be absent, null, false, 0 or "".
static int must_be_off(const json_t *obj, const char *where, const char *field, struct err *e) {
    const json_t *v = json_object_get(obj, field);
    bool off = !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    if (off) return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "%s.%s is set; only BPE without it is supported", where, field);
}

const char *tokenizer_json_type(const json_t *obj) {
    const char *type = json_string_value(json_object_get(obj, "type"));
    return type ? type : "(none)";
}

bool tokenizer_json_flag(const json_t *obj, const char *field, bool absent) {
    const json_t *v = json_object_get(obj, field);
    return v ? json_is_true(v) : absent;
}

static int see_id(const json_t *v, const char *what, uint32_t *n_vocab, struct err *e) {
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id >= LIMIT_VOCAB)
        return err_set(e, ERR_FORMAT, "%s: the id must be an integer from 0 to %d", what, LIMIT_VOCAB - 1);
    if ((uint32_t)id >= *n_vocab) *n_vocab = (uint32_t)id + 1;
    return ERR_OK;
}

// Sizes the tables by the highest id and the sum of all contents of added tokens.
static int measure(const json_t *vocab, const json_t *added, uint32_t *n_vocab, size_t *added_bytes, struct err *e) {
    const char *key;
    json_t *v;
    size_t i;
    int rc = ERR_OK;
    json_object_foreach((json_t *)vocab, key, v) {
        rc = see_id(v, "model.vocab", n_vocab, e);
        if (rc) return rc;
    }
    json_array_foreach(added, i, v) {
        const json_t *content = json_object_get(v, "content");
        if (!json_is_string(content)) return err_set(e, ERR_FORMAT, "added_tokens[%zu].content must be a string", i);
        rc = see_id(json_object_get(v, "id"), "added_tokens", n_vocab, e);
        if (rc) return rc;
        *added_bytes += json_string_length(content);
    }
    return ERR_OK;
}

static int load_vocab(struct vocab *into, const json_t *vocab, struct err *e) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)vocab, key, v) {
        uint32_t id = (uint32_t)json_integer_value(v);
        if (into->tokens[id].type != VOCAB_NONE)
            return err_set(e, ERR_FORMAT, "model.vocab: id %u is given twice, again to \"%.64s\"", id, key);
        size_t n = strlen(key);
        struct vocab_token token = {.spelling = key, .len_bytes = (uint32_t)n, .type = VOCAB_NORMAL};
        int rc = n > UINT32_MAX ? ERR_LIMIT : vocab_set(into, "model.vocab", id, &token, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

// The two parts of a merge, from "a b" or ["a", "b"].
static bool parts(const json_t *m, struct spelling *left, struct spelling *right) {
    if (json_is_string(m)) {
        const char *l = json_string_value(m), *space = strchr(l, ' ');
        if (!space || strchr(space + 1, ' ') || strlen(l) != json_string_length(m)) return false;
        *left = (struct spelling){l, (size_t)(space - l)};
        *right = (struct spelling){space + 1, strlen(space + 1)};
    } else {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b)) return false;
        *left = (struct spelling){json_string_value(a), json_string_length(a)};
        *right = (struct spelling){json_string_value(b), json_string_length(b)};
    }
    return left->len_bytes > 0 && right->len_bytes > 0;
}

static int load_merges(struct tokenizer *t, const struct vocab *v, const json_t *merges, struct err *e) {
    size_t i;
    json_t *m;
    if (bpe_make_merges(&t->bpe, json_array_size(merges))) return err_set(e, ERR_NOMEM, "no memory for model.merges");
    json_array_foreach(merges, i, m) {
        struct spelling left, right;
        if (!parts(m, &left, &right))
            return err_set(e, ERR_FORMAT, "model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", i);
        int rc = tokenizer_build_merge(t, v, left, right, (uint32_t)i, "model.merges", e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int load_unknown(struct tokenizer *t, const struct vocab *v, const json_t *model, struct err *e) {
    const json_t *unk = json_object_get(model, "unk_token");
    if (!unk || json_is_null(unk)) return ERR_OK;
    t->bpe.unk = json_is_string(unk) ? vocab_find(v, json_string_value(unk), json_string_length(unk)) : -1;
    t->bpe.fuse_unk = tokenizer_json_flag(model, "fuse_unk", false);
    if (t->bpe.unk < 0 && !t->decoder.alphabet) // all bytes have a token there: it is never asked for
        return err_set(e, ERR_FORMAT, "model.unk_token is not in model.vocab");
    return ERR_OK;
}

static int fill_model(struct tokenizer *t, const struct vocab *v, const json_t *model, size_t added_bytes,
                      struct err *e) {
    bpe_init(&t->bpe);
    int rc = tokenizer_build_tokens(t, v, "model.vocab", added_bytes, e);
    if (!rc) rc = tokenizer_build_starts(t, v, e);
    if (!rc) rc = load_unknown(t, v, model, e);
    if (!rc && !t->decoder.alphabet && !tokenizer_json_flag(model, "byte_fallback", false))
        for (int b = 0; b < 256; b++) t->bpe.byte_id[b] = -1;
    if (!rc) rc = load_merges(t, v, json_object_get(model, "merges"), e);
    if (!rc && tokenizer_json_flag(model, "ignore_merges", false)) rc = tokenizer_build_whole(t, v, e);
    return rc;
}

static int load_added(struct tokenizer *t, const struct vocab *vocab, const json_t *list, struct err *e) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        const json_t *c = json_object_get(v, "content");
        const char *content = json_string_value(c);
        size_t len = json_string_length(c);
        uint32_t id = (uint32_t)json_integer_value(json_object_get(v, "id"));
        int32_t same = vocab_find(vocab, content, len);
        bool taken = same >= 0 ? (uint32_t)same != id : t->flags[id] != 0;
        if (taken || t->flags[id] & TOKENIZER_ADDED)
            return err_set(e, ERR_FORMAT, "added_tokens[%zu]: id %u and \"%.64s\" do not belong together alone", i, id,
                           content);
        bool special = tokenizer_json_flag(v, "special", false);
        struct added_token token = {
            .id = (int32_t)id,
            .single_word = tokenizer_json_flag(v, "single_word", false),
            .lstrip = tokenizer_json_flag(v, "lstrip", false),
            .rstrip = tokenizer_json_flag(v, "rstrip", false),
            .special = special,
        };
        int rc = tokenizer_build_added(
            t, content, len, &token, tokenizer_json_flag(v, "normalized", !special) ? ADDED_NORMALIZED : ADDED_RAW, e);
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
        if (!json_is_array(json_object_get(tokens, "ids")))
            return err_set(e, ERR_FORMAT, "post_processor.single[%zu] names no entry of special_tokens", i);
        json_array_foreach(json_object_get(tokens, "ids"), j, id) {
            int rc = tokenizer_build_around(t, behind, json_is_integer(id) ? json_integer_value(id) : -1,
                                            "post_processor.special_tokens", e);
            if (rc) return rc;
        }
    }
    return ERR_OK;
}

static int load_post(struct tokenizer *t, const json_t *p, int depth, struct err *e) {
    if (!p || json_is_null(p) || strcmp(tokenizer_json_type(p), "ByteLevel") == 0) return ERR_OK;
    if (strcmp(tokenizer_json_type(p), "TemplateProcessing") == 0) return load_around(t, p, e);
    const json_t *list = json_object_get(p, "processors");
    if (strcmp(tokenizer_json_type(p), "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ERR_UNSUPPORTED,
                       "post_processor.type \"%.64s\": only ByteLevel, TemplateProcessing and a Sequence",
                       tokenizer_json_type(p));
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        int rc = load_post(t, v, depth + 1, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int load_model(struct tokenizer *t, const json_t *root, struct err *e) {
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *tokens = json_object_get(model, "vocab");
    struct vocab v = {0};
    uint32_t n = 0;
    size_t added_bytes = 0;
    if (json_object_get(model, "type") && strcmp(tokenizer_json_type(model), "BPE") != 0)
        return err_set(e, ERR_UNSUPPORTED, "model.type is \"%.64s\", only \"BPE\" is supported",
                       tokenizer_json_type(model));
    if (!json_is_object(tokens)) return err_set(e, ERR_FORMAT, "model.vocab must be an object");
    if (!json_is_array(json_object_get(model, "merges")))
        return err_set(e, ERR_FORMAT, "model.merges must be an array");
    int rc = ERR_OK;
    for (size_t i = 0; i < sizeof off / sizeof *off && !rc; i++) rc = must_be_off(model, "model", off[i], e);
    if (!rc) rc = measure(tokens, added, &n, &added_bytes, e);
    if (!rc) rc = vocab_init(&v, "model.vocab", n, e);
    if (!rc) rc = load_vocab(&v, tokens, e);
    if (!rc) rc = fill_model(t, &v, model, added_bytes, e);
    if (!rc) rc = load_added(t, &v, added, e);
    vocab_fini(&v);
    return rc;
}

int tokenizer_json_load(struct tokenizer *t, const json_t *root, struct err *e) {
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(json_object_get(root, "model"))) return err_set(e, ERR_FORMAT, "model must be an object");
    if (added && !json_is_null(added) && !json_is_array(added))
        return err_set(e, ERR_FORMAT, "added_tokens must be an array");
    int rc = tokenizer_steps_load(t, root, e);
    if (!rc) rc = load_model(t, root, e);
    if (!rc) rc = load_post(t, json_object_get(root, "post_processor"), 0, e);
    return rc;
}
