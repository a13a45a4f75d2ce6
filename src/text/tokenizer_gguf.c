#include "text/tokenizer_gguf.h"
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

#define MARK "\xe2\x96\x81"

// Tokens that end or begin a turn, in files whose converter did not know that nobody but a template may write them.
static const char *const turns[] = {"<|eot_id|>",    "<|im_end|>",      "<|im_start|>",  "<|end|>",
                                    "<end_of_turn>", "<start_of_turn>", "<|endoftext|>", "<|end_of_text|>",
                                    "<|eom_id|>",    "<|user|>",        "<|assistant|>", "<|system|>",
                                    "<EOT>",         "[EOT]",           "[e~[",          "<|observation|>"};

static bool equals(struct gguf_string s, const char *text) {
    return s.len_bytes == strlen(text) && memcmp(s.text, text, s.len_bytes) == 0;
}

static bool is_one_of(const struct vocab_token *t, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (equals((struct gguf_string){t->spelling, t->len_bytes}, list[i])) return true;
    return false;
}

// Items of an array of n tokens; *v NULL: the key is missing.
static int array_of(const struct gguf *g, const char *key, uint64_t n, const struct gguf_value **v, struct err *e) {
    *v = gguf_find(g, key);
    if (!*v) return ERR_OK;
    if ((*v)->type != GGUF_ARRAY || (n && (*v)->n_items < n))
        return err_set(e, ERR_FORMAT, "%s must be an array with an entry for each of %llu tokens", key,
                       (unsigned long long)n);
    return ERR_OK;
}

static int type_of(const struct gguf_value *types, uint64_t i, const struct gguf_string *text, enum vocab_type *type,
                   struct err *e) {
    static const enum vocab_type known[] = {VOCAB_NORMAL, VOCAB_NORMAL, VOCAB_UNKNOWN, VOCAB_CONTROL,
                                            VOCAB_USER,   VOCAB_UNUSED, VOCAB_BYTE};
    int64_t number = 1;
    uint8_t byte;
    if (types &&
        (!gguf_item_integer(types, i, &number) || number < 0 || number >= (int64_t)(sizeof known / sizeof *known)))
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.token_type[%llu] is not 0 to 6", (unsigned long long)i);
    *type = known[number];
    if (!types && vocab_is_byte(text->text, text->len_bytes, &byte)) *type = VOCAB_BYTE;
    return ERR_OK;
}

static int load_vocab(struct vocab *v, const struct gguf *g, struct err *e) {
    static const char key[] = "tokenizer.ggml.tokens";
    const struct gguf_value *tokens = gguf_find(g, key), *types, *scores;
    if (!tokens) return err_set(e, ERR_FORMAT, "%s is missing", key);
    if (tokens->type != GGUF_ARRAY || tokens->item_type != GGUF_STRING)
        return err_set(e, ERR_FORMAT, "%s must be an array of strings", key);
    int rc = vocab_init(v, key, tokens->n_items, e);
    if (!rc) rc = array_of(g, "tokenizer.ggml.token_type", tokens->n_items, &types, e);
    if (!rc) rc = array_of(g, "tokenizer.ggml.scores", tokens->n_items, &scores, e);
    const uint8_t *at = tokens->data;
    for (uint32_t i = 0; i < v->n && !rc; i++) {
        struct gguf_string text;
        struct vocab_token token;
        double score = 0;
        if (!gguf_next_string(tokens, &at, &text) || text.len_bytes > UINT32_MAX)
            return err_set(e, ERR_FORMAT, "%s[%u] is no string", key, i);
        token = (struct vocab_token){.spelling = text.text, .len_bytes = (uint32_t)text.len_bytes};
        rc = type_of(types, i, &text, &token.type, e);
        if (!rc && scores && !gguf_item_number(scores, i, &score))
            rc = err_set(e, ERR_FORMAT, "tokenizer.ggml.scores[%u] is no number", i);
        token.score = (float)score;
        if (!rc) rc = vocab_set(v, key, i, &token, e);
    }
    return rc;
}

// An id that the file names; -1: none, or one beyond the vocabulary, which files have where they mean none.
static int id_of(const struct gguf *g, const char *key, const struct vocab *v, int32_t *id, struct err *e) {
    int rc = gguf_get_id(g, key, id, e);
    if (rc || *id < 0 || (uint32_t)*id >= v->n) *id = -1;
    return rc;
}

static int mark_control(struct vocab *v, const struct gguf *g, struct err *e) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t id;
        int rc = id_of(g, keys[i], v, &id, e);
        if (rc) return rc;
        if (id >= 0 && v->tokens[id].type != VOCAB_BYTE) v->tokens[id].type = VOCAB_CONTROL;
    }
    for (uint32_t i = 0; i < v->n; i++) {
        struct vocab_token *t = &v->tokens[i];
        if ((t->type == VOCAB_USER || t->type == VOCAB_NORMAL) && is_one_of(t, turns, sizeof turns / sizeof *turns))
            t->type = VOCAB_CONTROL;
    }
    return ERR_OK;
}

// Phi-3's control tokens, but for these, swallow the white space behind them, which GGUF does not say.
static bool swallows_space(const struct gguf *g, const struct vocab_token *t) {
    static const char *const not_these[] = {"<unk>", "<s>", "<|endoftext|>"};
    struct gguf_string arch = {"", 0};
    if (gguf_get_string(g, "general.architecture", &arch, NULL) || !equals(arch, "phi3")) return false;
    return t->type == VOCAB_CONTROL && !is_one_of(t, not_these, 3);
}

static int load_added(struct tokenizer *t, const struct vocab *v, const struct gguf *g, struct err *e) {
    int rc = ERR_OK;
    for (uint32_t i = 0; i < v->n && !rc; i++) {
        const struct vocab_token *token = &v->tokens[i];
        bool special = token->type == VOCAB_CONTROL || token->type == VOCAB_UNKNOWN;
        if (!special && token->type != VOCAB_USER) continue;
        struct added_token added = {
            .id = (int32_t)i, .special = special, .rstrip = !t->decoder.alphabet && swallows_space(g, token)};
        rc = tokenizer_build_added(t, token->spelling, token->len_bytes, &added, ADDED_RAW, e);
    }
    return rc;
}

static int load_merges(struct tokenizer *t, const struct vocab *v, const struct gguf *g, struct err *e) {
    static const char key[] = "tokenizer.ggml.merges";
    const struct gguf_value *merges = gguf_find(g, key);
    if (!merges) return err_set(e, ERR_FORMAT, "%s is missing", key);
    if (merges->type != GGUF_ARRAY || merges->item_type != GGUF_STRING || merges->n_items > LIMIT_MERGES)
        return err_set(e, ERR_FORMAT, "%s must be an array of at most %d strings", key, LIMIT_MERGES);
    if (bpe_make_merges(&t->bpe, merges->n_items)) return err_set(e, ERR_NOMEM, "no memory for %s", key);
    const uint8_t *at = merges->data;
    for (uint32_t i = 0; i < merges->n_items; i++) {
        struct gguf_string m;
        if (!gguf_next_string(merges, &at, &m)) return err_set(e, ERR_FORMAT, "%s[%u] is no string", key, i);
        const char *space = m.len_bytes > 1 ? memchr(m.text + 1, ' ', m.len_bytes - 1) : NULL;
        if (!space) return err_set(e, ERR_FORMAT, "%s[%u] must be \"a b\"", key, i);
        size_t left = (size_t)(space - m.text);
        int rc = tokenizer_build_merge(t, v, (struct spelling){m.text, left},
                                       (struct spelling){space + 1, m.len_bytes - left - 1}, i, key, e);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int load_around(struct tokenizer *t, const struct vocab *v, const struct gguf *g, bool bos, struct err *e) {
    bool eos = false;
    int32_t bos_id, eos_id;
    int rc = id_of(g, "tokenizer.ggml.bos_token_id", v, &bos_id, e);
    if (!rc) rc = id_of(g, "tokenizer.ggml.eos_token_id", v, &eos_id, e);
    if (!rc) rc = gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &bos, e);
    if (!rc) rc = gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &eos, e);
    if (!rc && bos && bos_id >= 0) rc = tokenizer_build_around(t, false, bos_id, "tokenizer.ggml.bos_token_id", e);
    if (!rc && eos && eos_id >= 0) rc = tokenizer_build_around(t, true, eos_id, "tokenizer.ggml.eos_token_id", e);
    return rc;
}

// ---- kinds ---------------------------------------------------------------------------------------------------------

static int load_pre(struct tokenizer *t, const struct gguf *g, const struct pre **pre, struct err *e) {
    static const char key[] = "tokenizer.ggml.pre";
    struct gguf_string name = {"", 0};
    int rc = gguf_get_string(g, key, &name, e);
    if (rc) return rc;
    if (name.len_bytes == 0) name = (struct gguf_string){"default", 7}; // tokenizer_gguf_doubt tells of it
    *pre = pre_find(name.text, name.len_bytes);
    if (!*pre)
        return err_set(e, ERR_UNSUPPORTED, "%s: the pre-tokenizer \"%.*s\" is unknown", key,
                       (int)(name.len_bytes > 64 ? 64 : name.len_bytes), name.text);
    if ((*pre)->nfc) rc = norm_add(&t->norm, &(struct norm_step){.kind = NORM_NFC}, e);
    for (size_t i = 0; i < sizeof(*pre)->patterns / sizeof *(*pre)->patterns && !rc && (*pre)->patterns[i]; i++)
        rc = pretok_add(&t->pretok, (*pre)->patterns[i], strlen((*pre)->patterns[i]), false, PRETOK_ISOLATED, false, e);
    return rc;
}

static int load_byte_level(struct tokenizer *t, const struct vocab *v, const struct gguf *g, struct err *e) {
    const struct pre *pre;
    t->decoder.alphabet = true;
    int rc = load_pre(t, g, &pre, e);
    if (!rc) rc = tokenizer_build_tokens(t, v, "tokenizer.ggml.tokens", v->n_bytes, e);
    if (!rc) rc = tokenizer_build_starts(t, v, e);
    if (!rc) rc = load_merges(t, v, g, e);
    if (!rc && pre->whole) rc = tokenizer_build_whole(t, v, e);
    if (!rc) rc = load_added(t, v, g, e);
    return rc ? rc : load_around(t, v, g, pre->bos, e);
}

static int unknown_of(struct tokenizer *t, const struct vocab *v, const struct gguf *g, struct err *e) {
    int rc = id_of(g, "tokenizer.ggml.unknown_token_id", v, &t->bpe.unk, e);
    for (uint32_t i = 0; i < v->n && t->bpe.unk < 0 && !rc; i++)
        if (v->tokens[i].type == VOCAB_UNKNOWN) t->bpe.unk = (int32_t)i;
    t->bpe.fuse_unk = true;
    return rc;
}

// SentencePiece and its kin: by_scores, or by a list of merges.
static int load_by_chars(struct tokenizer *t, const struct vocab *v, const struct gguf *g, bool by_scores,
                         struct err *e) {
    struct decoder *d = &t->decoder;
    bool prefix = by_scores, squeeze = false;
    *d = (struct decoder){.bytes = true, .from = MARK, .from_bytes = 3, .to = " ", .to_bytes = 1};
    d->decoding.byte_by_byte = true;
    int rc = gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix, e);
    if (!rc) rc = gguf_get_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &squeeze, e);
    if (!rc && squeeze)
        rc = err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.remove_extra_whitespaces is set, which is not supported");
    d->decoding.strip_spaces = prefix;
    struct norm_step step = {.kind = NORM_PREPEND, .to = MARK, .to_bytes = 3};
    if (!rc && prefix) rc = norm_add(&t->norm, &step, e);
    step = (struct norm_step){.kind = NORM_REPLACE, .from = " ", .from_bytes = 1, .to = MARK, .to_bytes = 3};
    if (!rc) rc = norm_add(&t->norm, &step, e);
    if (!rc) rc = tokenizer_build_tokens(t, v, "tokenizer.ggml.tokens", v->n_bytes, e);
    if (!rc && by_scores) rc = tokenizer_build_scores(t, v, "tokenizer.ggml.scores", e);
    if (!rc && !by_scores) rc = tokenizer_build_starts(t, v, e);
    if (!rc && !by_scores) rc = load_merges(t, v, g, e);
    if (!rc) rc = unknown_of(t, v, g, e);
    if (!rc) rc = load_added(t, v, g, e);
    return rc ? rc : load_around(t, v, g, true, e);
}

int tokenizer_gguf_load(struct tokenizer *t, const struct gguf *g, struct err *e) {
    static const char key[] = "tokenizer.ggml.model";
    struct gguf_string kind = {"", 0};
    struct vocab v = {0};
    int rc = gguf_get_string(g, key, &kind, e);
    if (!rc && kind.len_bytes == 0) rc = err_set(e, ERR_FORMAT, "%s is missing: the file has no tokenizer", key);
    if (rc) return rc;
    bool bytes = equals(kind, "gpt2"), scores = equals(kind, "llama"), merges = equals(kind, "gemma4");
    if (!bytes && !scores && !merges)
        return err_set(e, ERR_UNSUPPORTED, "%s is \"%.*s\", only \"gpt2\", \"llama\" and \"gemma4\" are supported", key,
                       (int)(kind.len_bytes > 64 ? 64 : kind.len_bytes), kind.text);
    if (scores && !gguf_find(g, "tokenizer.ggml.scores"))
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.scores is missing");
    bpe_init(&t->bpe);
    rc = load_vocab(&v, g, e);
    if (!rc) rc = mark_control(&v, g, e);
    if (!rc) rc = bytes ? load_byte_level(t, &v, g, e) : load_by_chars(t, &v, g, scores, e);
    vocab_fini(&v);
    return rc;
}

const char *tokenizer_gguf_doubt(const struct gguf *g) {
    struct gguf_string kind = {"", 0}, pre = {"", 0};
    if (gguf_get_string(g, "tokenizer.ggml.model", &kind, NULL) || gguf_get_string(g, "tokenizer.ggml.pre", &pre, NULL))
        return NULL;
    if (!gguf_find(g, "tokenizer.ggml.token_type"))
        return "tokenizer.ggml.token_type is missing: which tokens are control tokens is guessed, and answers may be "
               "nonsense";
    if (equals(kind, "gpt2") && pre.len_bytes == 0)
        return "tokenizer.ggml.pre is missing: \"default\" is taken, and texts may become other tokens than those that "
               "the model knows";
    return NULL;
}
