#include "text/tokenizer_spm.h"
#include "text/spm.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MARK "\xe2\x96\x81"

// ---- the model -----------------------------------------------------------------------------------------------------

enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { TRAINER_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_UNK = 40, TRAINER_BOS = 41, TRAINER_EOS = 42, TYPE_BPE = 2 };
enum { NORMALIZER_NAME = 1, NORMALIZER_MAP = 2, NORMALIZER_PREFIX = 3, NORMALIZER_SQUEEZE = 4, NORMALIZER_ESCAPE = 5 };

// What tokenizer.model and tokenizer_config.json say besides the pieces; as absent fields have it.
struct spm {
    struct spm_message model;
    uint64_t n_pieces;
    uint64_t type;                           // 1: unigram
    bool prefix, squeeze, escapes, suffixes; // of spaces
    struct spm_message name, map;            // of the normaliser
    int64_t unk, bos, eos;
    const json_t *added; // added_tokens_decoder, or NULL
    bool legacy, add_bos, add_eos;
};

static int broken_at(const char *what, struct err *e) {
    return err_set(e, ERR_FORMAT, "%s is no protobuf of a SentencePiece model", what);
}

static int read_trainer(struct spm *s, struct spm_message p, struct err *e) {
    struct spm_field f;
    bool broken = false;
    while (spm_next(&p, &f, &broken)) {
        if (f.number == TRAINER_TYPE) s->type = f.value;
        if (f.number == TRAINER_SUFFIX) s->suffixes = f.value != 0;
        if (f.number == TRAINER_UNK) s->unk = (int32_t)f.value;
        if (f.number == TRAINER_BOS) s->bos = (int32_t)f.value;
        if (f.number == TRAINER_EOS) s->eos = (int32_t)f.value;
    }
    return broken ? broken_at("trainer_spec", e) : ERR_OK;
}

static int read_normalizer(struct spm *s, struct spm_message p, struct err *e) {
    struct spm_field f;
    bool broken = false;
    while (spm_next(&p, &f, &broken)) {
        if (f.number == NORMALIZER_NAME) s->name = f.bytes;
        if (f.number == NORMALIZER_MAP) s->map = f.bytes;
        if (f.number == NORMALIZER_PREFIX) s->prefix = f.value != 0;
        if (f.number == NORMALIZER_SQUEEZE) s->squeeze = f.value != 0;
        if (f.number == NORMALIZER_ESCAPE) s->escapes = f.value != 0;
    }
    return broken ? broken_at("normalizer_spec", e) : ERR_OK;
}

static int refuse(const struct spm *s, struct err *e) {
    static const char *const types[] = {"(none)", "UNIGRAM", "BPE", "WORD", "CHAR"};
    if (s->type != TYPE_BPE)
        return err_set(e, ERR_UNSUPPORTED, "trainer_spec.model_type is %s, only BPE is supported",
                       types[s->type < 5 ? s->type : 0]);
    if (s->map.at != s->map.end)
        return err_set(e, ERR_UNSUPPORTED, "normalizer_spec.name is \"%.*s\", only identity is supported",
                       (int)(s->name.end - s->name.at > 64 ? 64 : s->name.end - s->name.at), (const char *)s->name.at);
    if (s->squeeze)
        return err_set(e, ERR_UNSUPPORTED, "normalizer_spec.remove_extra_whitespaces is set, which is not supported");
    if (!s->escapes || s->suffixes)
        return err_set(e, ERR_UNSUPPORTED, "%s is not supported",
                       s->suffixes ? "trainer_spec.treat_whitespace_as_suffix"
                                   : "normalizer_spec.escape_whitespaces: false");
    return ERR_OK;
}

static int read_model(struct spm *s, struct err *e) {
    struct spm_message p = s->model;
    struct spm_field f;
    bool broken = false;
    int rc = ERR_OK;
    while (!rc && spm_next(&p, &f, &broken)) {
        if (f.number == MODEL_PIECE) s->n_pieces++;
        if (f.number == MODEL_TRAINER) rc = read_trainer(s, f.bytes, e);
        if (f.number == MODEL_NORMALIZER) rc = read_normalizer(s, f.bytes, e);
    }
    if (rc) return rc;
    return broken ? broken_at("the file", e) : refuse(s, e);
}

static int read_pieces(const struct spm *s, struct vocab *v, struct err *e) {
    static const enum vocab_type types[] = {
        [SPM_NORMAL] = VOCAB_NORMAL, [SPM_UNKNOWN] = VOCAB_UNKNOWN, [SPM_CONTROL] = VOCAB_CONTROL,
        [SPM_USER] = VOCAB_USER,     [SPM_UNUSED] = VOCAB_UNUSED,   [SPM_BYTE] = VOCAB_BYTE};
    struct spm_message m = s->model;
    struct spm_piece p;
    uint32_t id = 0;
    bool found;
    int rc = spm_next_piece(&m, &id, &p, &found, e);
    for (; !rc && found; rc = spm_next_piece(&m, &id, &p, &found, e)) {
        struct vocab_token token = {
            .spelling = p.text, .len_bytes = p.len_bytes, .score = p.score, .type = types[p.type]};
        rc = vocab_set(v, "pieces", id - 1, &token, e);
        if (rc) break;
    }
    return rc;
}

// ---- tokenizer_config.json -----------------------------------------------------------------------------------------

static bool flag_of(const json_t *config, const char *name, bool absent) {
    const json_t *v = json_object_get(config, name);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

// The id that a key of added_tokens_decoder spells; -1: none.
static int64_t id_of_key(const char *key) {
    char *end;
    if (*key < '0' || *key > '9') return -1;
    long long id = strtoll(key, &end, 10);
    return *end || id >= LIMIT_VOCAB ? -1 : id;
}

static int read_added(const struct spm *s, uint64_t *n, size_t *bytes, struct err *e) {
    const char *key;
    json_t *v;
    *n = s->n_pieces;
    json_object_foreach((json_t *)s->added, key, v) {
        int64_t id = id_of_key(key);
        const json_t *content = json_object_get(v, "content");
        if (id < 0 || !json_is_string(content))
            return err_set(e, ERR_FORMAT,
                           "tokenizer_config.json: added_tokens_decoder[\"%.32s\"]: an id below %d and "
                           "a content are needed",
                           key, LIMIT_VOCAB);
        if ((uint64_t)id >= *n) *n = (uint64_t)id + 1;
        *bytes += json_string_length(content);
    }
    return ERR_OK;
}

static int add_configured(struct tokenizer *t, const struct spm *s, struct err *e) {
    const char *key;
    json_t *v;
    int rc = ERR_OK;
    json_object_foreach((json_t *)s->added, key, v) {
        const json_t *content = json_object_get(v, "content");
        bool special = flag_of(v, "special", false);
        struct added_token token = {
            .id = (int32_t)id_of_key(key),
            .single_word = flag_of(v, "single_word", false),
            .lstrip = flag_of(v, "lstrip", false),
            .rstrip = flag_of(v, "rstrip", false),
            .special = special,
        };
        rc = tokenizer_build_added(t, json_string_value(content), json_string_length(content), &token,
                                   flag_of(v, "normalized", !special) ? ADDED_NORMALIZED : ADDED_RAW, e);
        if (rc) break;
    }
    return rc;
}

static int add_own(struct tokenizer *t, const struct vocab *v, struct err *e) {
    int rc = ERR_OK;
    for (uint32_t id = 0; id < v->n && !rc; id++) {
        const struct vocab_token *token = &v->tokens[id];
        bool special = token->type == VOCAB_CONTROL || token->type == VOCAB_UNKNOWN;
        if ((!special && token->type != VOCAB_USER) || t->flags[id] & TOKENIZER_ADDED) continue;
        struct added_token added = {.id = (int32_t)id, .special = special};
        rc =
            tokenizer_build_added(t, token->spelling, token->len_bytes, &added, special ? ADDED_RAW : ADDED_SPELLED, e);
    }
    return rc;
}

// ---- all together --------------------------------------------------------------------------------------------------

static int add_steps(struct tokenizer *t, const struct spm *s, struct err *e) {
    struct decoder *d = &t->decoder;
    *d = (struct decoder){.bytes = true, .from = MARK, .from_bytes = 3, .to = " ", .to_bytes = 1};
    d->decoding.byte_by_byte = true;
    d->decoding.strip_spaces = s->prefix;
    struct norm_step step = {.kind = NORM_PREPEND, .to = MARK, .to_bytes = 3, .first_only = !s->legacy};
    int rc = s->prefix ? norm_add(&t->norm, &step, e) : ERR_OK;
    step = (struct norm_step){.kind = NORM_REPLACE, .from = " ", .from_bytes = 1, .to = MARK, .to_bytes = 3};
    return rc ? rc : norm_add(&t->norm, &step, e);
}

static int fill(struct tokenizer *t, const struct spm *s, struct err *e) {
    struct vocab v = {0};
    uint64_t n = 0;
    size_t added_bytes = 0;
    int rc = read_added(s, &n, &added_bytes, e);
    if (!rc) rc = vocab_init(&v, "pieces", n, e);
    if (!rc) rc = read_pieces(s, &v, e);
    if (!rc) rc = add_steps(t, s, e);
    bpe_init(&t->bpe);
    if (!rc) rc = tokenizer_build_tokens(t, &v, "pieces", added_bytes + v.n_bytes, e);
    if (!rc) rc = tokenizer_build_scores(t, &v, "pieces", e);
    if (!rc && s->unk >= 0 && s->unk < (int64_t)s->n_pieces) t->bpe.unk = (int32_t)s->unk;
    t->bpe.fuse_unk = true;
    if (!rc) rc = add_configured(t, s, e);
    if (!rc) rc = add_own(t, &v, e);
    if (!rc && s->add_bos && s->bos >= 0) rc = tokenizer_build_around(t, false, s->bos, "trainer_spec.bos_id", e);
    if (!rc && s->add_eos && s->eos >= 0) rc = tokenizer_build_around(t, true, s->eos, "trainer_spec.eos_id", e);
    vocab_fini(&v);
    return rc;
}

int tokenizer_spm_load(struct tokenizer *t, const uint8_t *model, size_t len_bytes, const char *config, struct err *e) {
    json_error_t je;
    json_t *root = config ? json_loads(config, JSON_ALLOW_NUL, &je) : NULL;
    if (config && !json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_FORMAT, "tokenizer_config.json: %s", root ? "must be an object" : je.text);
    }
    const json_t *added = json_object_get(root, "added_tokens_decoder");
    struct spm s = {
        .model = {model, model + len_bytes},
        .type = 1,
        .prefix = true,
        .squeeze = true,
        .escapes = true,
        .bos = 1,
        .eos = 2,
        .added = json_is_object(added) ? added : NULL,
        .legacy = flag_of(root, "legacy", true),
        .add_bos = flag_of(root, "add_bos_token", true),
        .add_eos = flag_of(root, "add_eos_token", false),
    };
    int rc = read_model(&s, e);
    if (!rc) rc = fill(t, &s, e);
    json_decref(root);
    return rc;
}
