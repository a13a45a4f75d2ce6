#include "cmd/gguf_text.h"

#include "base/limits.h"
#include "cmd/gguf_pre.h"
#include "cmd/gguf_vocab.h"
#include "model/gguf_config.h"
#include "model/gguf_export.h"
#include "os/file.h"
#include "text/tokenizer_gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What is read of a folder.
struct text {
    const struct hparams *h;
    struct gguf_writer *w;
    json_t *tokenizer, *config; // tokenizer.json, tokenizer_config.json; NULL: not there
    struct gguf_vocab vocab;
    struct gguf_text_lacks lacks;
};

static int no_room(int rc, struct err *e) { return rc ? err_set(e, rc, "no room for the tokenizer") : ERR_OK; }

// ---- Tokens

static int read_json_tokens(struct text *t, struct err *e) {
    const json_t *model = json_object_get(t->tokenizer, "model"), *vocab = json_object_get(model, "vocab");
    const bool bytes = gguf_pre_flag(model, "byte_fallback", false);
    const char *unk = json_string_value(json_object_get(model, "unk_token")), *text;
    json_t *id;
    if (strcmp(gguf_pre_type(model), "BPE") != 0 || !json_is_object(vocab))
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: model \"%.32s\"; only BPE is supported",
                       gguf_pre_type(model));
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
        const size_t len = strlen(text);
        const bool is_byte = bytes && len == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>';
        enum gguf_token_type type = is_byte ? GGUF_TOKEN_BYTE : GGUF_TOKEN_NORMAL;
        if (unk && strcmp(unk, text) == 0) type = GGUF_TOKEN_UNKNOWN;
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return err_set(e, ERR_FORMAT, "tokenizer.json: model.vocab: the id of \"%.64s\" is no whole number", text);
        const uint64_t number = (uint64_t)json_integer_value(id);
        if (number < t->vocab.n && t->vocab.type[number] != GGUF_TOKEN_UNUSED)
            return err_set(e, ERR_FORMAT, "tokenizer.json: model.vocab: \"%.64s\" and \"%.64s\" both have id %llu",
                           t->vocab.text[number].text, text, (unsigned long long)number);
        int rc = gguf_vocab_set(&t->vocab, "tokenizer.json", number, text, len, 0, type, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

// A token that stands for itself. Readers look for user tokens in the text as it is: with spaces, not with their mark.
static int set_added(struct text *t, const char *what, uint64_t id, const char *content, bool special, bool marks,
                     struct err *e) {
    char text[LIMIT_TOKEN_BYTES];
    size_t n = 0;
    enum gguf_token_type type = special ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_USER;
    if (id < t->vocab.n && t->vocab.type[id] == GGUF_TOKEN_UNKNOWN) type = GGUF_TOKEN_UNKNOWN;
    for (const char *s = content; *s;) {
        if (n == sizeof text)
            return err_set(e, ERR_LIMIT, "%s: token %llu is over %d bytes", what, (unsigned long long)id,
                           LIMIT_TOKEN_BYTES);
        const bool mark = marks && type == GGUF_TOKEN_USER && strncmp(s, GGUF_PRE_MARK, 3) == 0;
        text[n++] = mark ? ' ' : *s;
        s += mark ? 3 : 1;
    }
    const bool added =
        id < t->vocab.n && (t->vocab.type[id] == GGUF_TOKEN_CONTROL || t->vocab.type[id] == GGUF_TOKEN_USER);
    if (added && (t->vocab.text[id].len_bytes != n || memcmp(t->vocab.text[id].text, text, n) != 0))
        return err_set(e, ERR_FORMAT, "%s: two added tokens have id %llu", what, (unsigned long long)id);
    return gguf_vocab_set(&t->vocab, what, id, text, n, -1000, type, e);
}

static int read_added(struct text *t, bool marks, struct err *e) {
    size_t i;
    json_t *v;
    const char *key;
    json_array_foreach(json_object_get(t->tokenizer, "added_tokens"), i, v) {
        const char *content = json_string_value(json_object_get(v, "content"));
        const json_t *id = json_object_get(v, "id");
        if (!content || !json_is_integer(id) || json_integer_value(id) < 0)
            return err_set(e, ERR_FORMAT, "tokenizer.json: added_tokens[%zu] has no id or no content", i);
        int rc = set_added(t, "tokenizer.json", (uint64_t)json_integer_value(id), content,
                           gguf_pre_flag(v, "special", false), marks, e);
        if (rc) return rc;
    }
    if (t->tokenizer) return ERR_OK;
    json_object_foreach(json_object_get(t->config, "added_tokens_decoder"), key, v) {
        const char *content = json_string_value(json_object_get(v, "content"));
        char *end;
        const uint64_t id = strtoull(key, &end, 10);
        if (!content || key[0] < '0' || key[0] > '9' || *end)
            return err_set(e, ERR_FORMAT,
                           "tokenizer_config.json: added_tokens_decoder: \"%.64s\" is no id with a content", key);
        if (id >= t->vocab.n) continue; // of rows that the model does not have
        int rc = set_added(t, "tokenizer_config.json", id, content, gguf_pre_flag(v, "special", false), marks, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

// A merge as one string, "left right"; *left_bytes: where its space is. NULL: none.
static char *merge_text(const json_t *merge, size_t *left_bytes) {
    const char *one = json_string_value(merge), *left = json_string_value(json_array_get(merge, 0)),
               *right = json_string_value(json_array_get(merge, 1));
    char *out = NULL;
    if (one) {
        const char *space = one[0] ? strchr(one + 1, ' ') : NULL;
        if (!space) return NULL;
        *left_bytes = (size_t)(space - one);
        return strdup(one);
    }
    if (!left || !right || asprintf(&out, "%s %s", left, right) < 0) return NULL;
    *left_bytes = strlen(left);
    return out;
}

static int put_merges(struct text *t, struct err *e) {
    const json_t *merges = json_object_get(json_object_get(t->tokenizer, "model"), "merges");
    const size_t n = json_array_size(merges);
    struct gguf_string *list = calloc(n + 1, sizeof *list);
    int rc = list ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the merges");
    for (size_t i = 0; i < n && !rc; i++) {
        size_t left;
        char *text = merge_text(json_array_get(merges, i), &left);
        if (!text) rc = err_set(e, ERR_FORMAT, "tokenizer.json: merges[%zu] is no pair", i);
        list[i] = (struct gguf_string){text, text ? strlen(text) : 0};
    }
    if (!rc) rc = no_room(gguf_put_array(t->w, "tokenizer.ggml.merges", GGUF_STRING, list, n), e);
    for (size_t i = 0; list && i < n; i++) free((void *)(uintptr_t)list[i].text);
    free(list);
    return rc;
}

// SentencePiece joins the pair whose result has the greatest score, where tokenizer.json has a list of merges in that
// very order: a token's place in it is its score.
static int score_by_merges(struct text *t, struct err *e) {
    const json_t *model = json_object_get(t->tokenizer, "model"), *merges = json_object_get(model, "merges"),
                 *vocab = json_object_get(model, "vocab");
    const size_t n = json_array_size(merges);
    for (uint32_t i = 0; i < t->vocab.n; i++)
        if (t->vocab.type[i] == GGUF_TOKEN_NORMAL) t->vocab.score[i] = -(float)n - 1;
    for (size_t i = n; i-- > 0;) {
        size_t left;
        char *text = merge_text(json_array_get(merges, i), &left);
        if (!text) return err_set(e, ERR_FORMAT, "tokenizer.json: merges[%zu] is no pair", i);
        memmove(text + left, text + left + 1, strlen(text + left));
        const json_t *id = json_object_get(vocab, text);
        free(text);
        if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < t->vocab.n)
            t->vocab.score[json_integer_value(id)] = -(float)i;
    }
    return ERR_OK;
}

// ---- Special tokens

static int64_t special_id(const struct text *t, const char *name) {
    char key[32];
    snprintf(key, sizeof key, "%s_token", name);
    const json_t *v = json_object_get(t->config, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    return text ? gguf_vocab_find(&t->vocab, text) : -1;
}

struct around {
    const struct text *t;
    int64_t first, last; // ids of the tokens that a text begins and ends with; -1: none
};

static bool post_step(void *arg, const json_t *step) {
    struct around *a = arg;
    const json_t *single = json_object_get(step, "single");
    const size_t n = json_array_size(single);
    if (strcmp(gguf_pre_type(step), "TemplateProcessing") != 0 || n < 2) return true;
    for (int end = 0; end < 2; end++) {
        const json_t *item = json_array_get(single, end ? n - 1 : 0);
        const char *id = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *ids =
            json_object_get(json_object_get(json_object_get(step, "special_tokens"), id ? id : ""), "ids");
        const json_t *first = json_array_get(ids, 0);
        if (json_is_integer(first)) *(end ? &a->last : &a->first) = json_integer_value(first);
    }
    return true;
}

static int put_id(struct text *t, const char *key, int64_t id) {
    return id < 0 ? ERR_OK : gguf_put_u32(t->w, key, (uint32_t)id);
}

// The first end token, and what else ends an answer as end of turn and of message: two more, and control tokens only,
// as readers make such of what these keys name. Where that is not all, a key of ours has the whole list.
static int put_ends(struct text *t, int64_t eos) {
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    const struct hparams *h = t->h;
    uint32_t n = 0;
    int rc = put_id(t, "tokenizer.ggml.eos_token_id", eos);
    for (uint32_t i = 0; i < h->n_eos && !rc; i++) {
        const bool is_plain = t->vocab.type[h->eos_ids[i]] == GGUF_TOKEN_NORMAL;
        if (h->eos_ids[i] == eos) continue;
        if (n < 2 && !is_plain)
            rc = put_id(t, keys[n++], h->eos_ids[i]);
        else
            t->lacks.ends = true;
    }
    if (!rc && t->lacks.ends) rc = gguf_put_array(t->w, GGUF_END_TOKENS, GGUF_I32, h->eos_ids, h->n_eos);
    return rc;
}

static int put_special(struct text *t, struct err *e) {
    int64_t bos = special_id(t, "bos"), eos = special_id(t, "eos");
    struct around a = {t, -1, -1};
    gguf_pre_each(json_object_get(t->tokenizer, "post_processor"), "processors", post_step, &a);
    if (bos < 0) bos = a.first >= 0 ? a.first : t->h->bos_id;
    if (eos < 0 && t->h->n_eos) eos = t->h->eos_ids[0];
    bool add_bos = a.first >= 0 && a.first == bos, add_eos = a.last >= 0 && a.last == eos;
    if (!t->tokenizer) { // SentencePiece alone: the configuration says it
        add_bos = gguf_pre_flag(t->config, "add_bos_token", true);
        add_eos = gguf_pre_flag(t->config, "add_eos_token", false);
    }
    int rc = put_id(t, "tokenizer.ggml.bos_token_id", bos);
    if (!rc) rc = put_ends(t, eos);
    if (!rc) rc = put_id(t, "tokenizer.ggml.unknown_token_id", special_id(t, "unk"));
    if (!rc) rc = put_id(t, "tokenizer.ggml.padding_token_id", special_id(t, "pad"));
    if (!rc) rc = gguf_put_bool(t->w, "tokenizer.ggml.add_bos_token", add_bos && bos >= 0);
    if (!rc) rc = gguf_put_bool(t->w, "tokenizer.ggml.add_eos_token", add_eos && eos >= 0);
    return no_room(rc, e);
}

// ---- Templates

static int put_named(struct text *t, const json_t *list, struct err *e) {
    struct gguf_string names[64];
    uint64_t n = 0;
    int rc = ERR_OK;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        const char *name = json_string_value(json_object_get(v, "name")),
                   *text = json_string_value(json_object_get(v, "template"));
        char key[128];
        if (!name || !text || n == 64) return err_set(e, ERR_FORMAT, "tokenizer_config.json: chat_template[%zu]", i);
        const bool main = strcmp(name, "default") == 0;
        snprintf(key, sizeof key, "tokenizer.chat_template%s%.64s", main ? "" : ".", main ? "" : name);
        if (!main) names[n++] = (struct gguf_string){name, strlen(name)};
        if (!rc) rc = gguf_put_string(t->w, key, text, strlen(text));
    }
    if (!rc && n) rc = gguf_put_array(t->w, "tokenizer.chat_templates", GGUF_STRING, names, n);
    return no_room(rc, e);
}

static int put_template(struct text *t, const char *folder, struct err *e) {
    static const char key[] = "tokenizer.chat_template";
    char path[LIMIT_PATH], *text;
    size_t len;
    int rc = file_join(path, sizeof path, folder, "chat_template.jinja", e);
    if (rc) return rc;
    if (file_exists(path)) {
        rc = file_read(path, LIMIT_CONFIG_BYTES, &text, &len, e);
        if (rc) return rc;
        rc = no_room(gguf_put_string(t->w, key, text, len), e);
        free(text);
        return rc;
    }
    const json_t *v = json_object_get(t->config, "chat_template");
    if (json_is_array(v)) return put_named(t, v, e);
    return json_is_string(v) ? no_room(gguf_put_string(t->w, key, json_string_value(v), json_string_length(v)), e)
                             : ERR_OK;
}

// ---- All of it

static int read_json(const char *folder, const char *name, size_t max_bytes, json_t **out, struct err *e) {
    char path[LIMIT_PATH], *text;
    size_t len;
    json_error_t why;
    *out = NULL;
    int rc = file_join(path, sizeof path, folder, name, e);
    if (rc || !file_exists(path)) return rc;
    rc = file_read(path, max_bytes, &text, &len, e);
    if (rc) return rc;
    *out = json_loadb(text, len, 0, &why);
    free(text);
    return *out ? ERR_OK : err_set(e, ERR_FORMAT, "%s: %s at byte %d", path, why.text, why.position);
}

static int put_text(struct gguf_writer *w, const char *key, const char *text) {
    return gguf_put_string(w, key, text, strlen(text));
}

static int export_json(struct text *t, struct err *e) {
    struct gguf_pre s;
    gguf_pre_read(t->tokenizer, gguf_export_arch(t->h), &s);
    int rc = read_json_tokens(t, e);
    if (!rc) rc = read_added(t, !s.byte_level, e);
    if (!rc && s.odd[0]) rc = err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s: GGUF has no word for it", s.odd);
    if (!rc && s.byte_level && !s.name[0])
        rc = err_set(
            e, ERR_UNSUPPORTED,
            "tokenizer.json: GGUF has no name for a pre_tokenizer of these patterns with%s NFC, ignore_merges %s",
            s.nfc ? "" : "out", s.whole ? "true" : "false");
    if (rc) return rc;
    rc = put_text(t->w, "tokenizer.ggml.model", s.byte_level ? "gpt2" : "llama");
    if (!rc) rc = put_text(t->w, "tokenizer.ggml.pre", s.byte_level ? s.name : "default");
    if (!rc && !s.byte_level) rc = gguf_put_bool(t->w, "tokenizer.ggml.add_space_prefix", s.prefix);
    if (rc) return no_room(rc, e);
    if (!s.byte_level && (rc = score_by_merges(t, e))) return rc;
    rc = no_room(gguf_vocab_put(&t->vocab, !s.byte_level, t->w), e);
    return !rc && s.byte_level ? put_merges(t, e) : rc;
}

static int export_spm(struct text *t, const char *path, struct err *e) {
    char *data;
    size_t len;
    int rc = file_read(path, LIMIT_TOKENIZER_BYTES, &data, &len, e);
    if (rc) return rc;
    rc = gguf_vocab_read_spm(&t->vocab, (const uint8_t *)data, len, e);
    free(data);
    if (!rc) rc = read_added(t, true, e);
    if (rc) return rc;
    const bool gemma = strncmp(gguf_export_arch(t->h), "gemma", 5) == 0;
    rc = put_text(t->w, "tokenizer.ggml.model", "llama");
    if (!rc) rc = put_text(t->w, "tokenizer.ggml.pre", "default");
    if (!rc)
        rc = gguf_put_bool(t->w, "tokenizer.ggml.add_space_prefix",
                           gguf_pre_flag(t->config, "add_prefix_space", !gemma));
    return no_room(rc ? rc : gguf_vocab_put(&t->vocab, true, t->w), e);
}

int gguf_text_export(const char *folder, const struct hparams *h, struct gguf_writer *w, struct gguf_text_lacks *lacks,
                     struct err *e) {
    struct text t = {.h = h, .w = w};
    char path[LIMIT_PATH];
    int rc = read_json(folder, "tokenizer.json", LIMIT_TOKENIZER_BYTES, &t.tokenizer, e);
    if (!rc) rc = read_json(folder, "tokenizer_config.json", LIMIT_TOKENIZER_BYTES, &t.config, e);
    if (!rc) rc = file_join(path, sizeof path, folder, "tokenizer.model", e);
    if (!rc) rc = gguf_vocab_init(&t.vocab, h->n_vocab, e);
    const bool any = t.tokenizer || (!rc && file_exists(path));
    t.lacks.tokenizer = !any;
    if (!rc && !any) rc = no_room(put_text(w, "tokenizer.ggml.model", "none"), e);
    if (!rc && !any) rc = no_room(put_id(&t, "tokenizer.ggml.bos_token_id", h->bos_id), e);
    if (!rc && !any) rc = no_room(put_ends(&t, h->n_eos ? h->eos_ids[0] : -1), e);
    if (!rc && any) rc = t.tokenizer ? export_json(&t, e) : export_spm(&t, path, e);
    if (!rc && any) rc = put_special(&t, e);
    if (!rc && any) rc = put_template(&t, folder, e);
    if (lacks) *lacks = t.lacks;
    gguf_vocab_fini(&t.vocab);
    json_decref(t.tokenizer);
    json_decref(t.config);
    return rc ? err_prefix(e, "%s", folder) : ERR_OK;
}
