// The inside of a tokenizer: tokenizer.c uses it, tokenizer_build.c fills it with what the loaders of each kind of file
// (tokenizer_json.c, tokenizer_spm.c, tokenizer_gguf.c) have read.
#pragma once
#include "text/added.h"
#include "text/bpe.h"
#include "text/norm.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

enum { TOKENIZER_AROUND_MAX = 16 }; // ids that the post-processor puts on one side

enum tokenizer_flag {
    TOKENIZER_USED = 1,    // the id is a token
    TOKENIZER_ADDED = 2,   // an added one
    TOKENIZER_SPECIAL = 4, // a control token
    TOKENIZER_SPELLED = 8, // bytes are what its spelling in the file stands for
};

// How the spelling of a token becomes the bytes that it stands for.
struct decoder {
    bool alphabet; // the spelling is in the byte-level alphabet; nothing below applies
    bool bytes;    // "<0x0A>" is a byte
    char from[PRETOK_MARK_BYTES], to[PRETOK_MARK_BYTES]; // replaced everywhere; to is not the longer one
    uint8_t from_bytes, to_bytes;
    struct tokenizer_decoding decoding;
};

struct tokenizer {
    uint32_t n_vocab;
    const uint8_t **bytes; // [n_vocab], into blob
    uint32_t *len_bytes;   // [n_vocab]
    uint8_t *flags;        // [n_vocab] enum tokenizer_flag
    uint8_t *blob;
    size_t blob_len_bytes, blob_cap_bytes;
    const uint8_t **spelling; // [n_vocab] with ignore_merges, into spellings
    uint32_t *spelling_bytes;
    uint8_t *spellings;

    struct decoder decoder;
    struct norm norm;
    struct added added_raw;        // matched in the text as it is
    struct added added_normalized; // matched in the normalised text
    struct pretok pretok;
    struct bpe bpe;
    int32_t prefix[TOKENIZER_AROUND_MAX], suffix[TOKENIZER_AROUND_MAX];
    uint32_t n_prefix, n_suffix;

    // Bytes of the longest token, and of the longest one with a certain byte in it: for tokenizer_least_tokens.
    uint32_t longest_bytes, longest_with[256];
};

// The bytes of a spelling, to out (as long as the spelling). False: it is not in the byte-level alphabet, and stands
// for itself.
bool tokenizer_build_bytes(const struct decoder *d, const char *spelling, size_t len_bytes, uint8_t *out,
                           size_t *out_len_bytes);

// ---- Building, in this order; on errors the caller frees what was made. Each names what in errors.

// Tables for all tokens of v, with their bytes as t->decoder says; more_bytes: of the contents of all added tokens.
int tokenizer_build_tokens(struct tokenizer *t, const struct vocab *v, const char *what, size_t more_bytes,
                           struct err *e) MUST_CHECK;
// What the joining starts from: bytes if t->decoder.alphabet, else characters.
int tokenizer_build_starts(struct tokenizer *t, const struct vocab *v, struct err *e) MUST_CHECK;
struct spelling {
    const char *text;
    size_t len_bytes;
};
// One merge, after bpe_make_merges; ERR_FORMAT if one of the three is no token.
int tokenizer_build_merge(struct tokenizer *t, const struct vocab *v, struct spelling left, struct spelling right,
                          uint32_t rank, const char *what, struct err *e) MUST_CHECK;
// Instead of these: starts from characters, and all merges that the vocabulary's scores mean, as two neighbours join if
// they spell a token.
int tokenizer_build_scores(struct tokenizer *t, const struct vocab *v, const char *what, struct err *e) MUST_CHECK;
// A piece that is a token stays whole.
int tokenizer_build_whole(struct tokenizer *t, const struct vocab *v, struct err *e) MUST_CHECK;
// Where an added token is looked for.
enum added_where {
    ADDED_RAW,        // in the text as it came
    ADDED_NORMALIZED, // in the normalised text, its content normalised as well
    ADDED_SPELLED     // in the normalised text, its content as it stands
};
int tokenizer_build_added(struct tokenizer *t, const char *content, size_t len_bytes, const struct added_token *token,
                          enum added_where match, struct err *e) MUST_CHECK;
// One more id before or behind a text.
int tokenizer_build_around(struct tokenizer *t, bool behind, int64_t id, const char *what, struct err *e) MUST_CHECK;
