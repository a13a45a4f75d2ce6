// A model's tokenizer: byte-level BPE, or BPE over characters as SentencePiece has it, with the same ids as HF
// tokenizers or SentencePiece gives. From tokenizer.json, from tokenizer.model, or from the metadata of a GGUF file.
//
// Control tokens (added tokens with "special": true) are made from text only where the caller allows it. Text from a
// client is encoded without them, so that "<|im_start|>" in a message is just these characters. Added tokens that are
// not special ("<think>", "<tool_call>") are matched everywhere, as the reference does: templates and clients write
// them as ordinary text.
//
// A tokenizer is read-only after it was made; every function here may be called from any thread.
#pragma once
#include "base/limits.h"
#include "text/ids.h"
#include <stdbool.h>
#include <stdint.h>

struct tokenizer;
struct gguf;

// From the bytes of a tokenizer.json, which are not kept. ERR_FORMAT, ERR_LIMIT, ERR_NOMEM; ERR_UNSUPPORTED names the
// field that this tokenizer cannot honour.
int tokenizer_new(const char *json, size_t len_bytes, struct tokenizer **t, struct err *e) MUST_CHECK;
// From the bytes of a SentencePiece model. config: the JSON of tokenizer_config.json, which knows of tokens that were
// added later; NULL: none.
int tokenizer_new_spm(const uint8_t *model, size_t len_bytes, const char *config, struct tokenizer **t,
                      struct err *e) MUST_CHECK;
// From the metadata of a GGUF file, which is not kept.
int tokenizer_new_gguf(const struct gguf *g, struct tokenizer **t, struct err *e) MUST_CHECK;
// What makes it doubtful that such a tokenizer is the model's, although it was made: for people. NULL: nothing.
const char *tokenizer_gguf_doubt(const struct gguf *g);
// From a file with the name of a tokenizer.json or tokenizer.model; errors name it.
int tokenizer_open(const char *path, struct tokenizer **t, struct err *e) MUST_CHECK;
// From a model's folder: tokenizer.json, else tokenizer.model. ERR_NOT_FOUND: it has neither.
int tokenizer_open_folder(const char *folder, struct tokenizer **t, struct err *e) MUST_CHECK;
void tokenizer_free(struct tokenizer *t); // NULL: nothing

// Appends the ids of text to out. Nothing is put before or after it. breaks, in ascending order, are byte offsets: the
// character before each is a client's, and no control token is made of it. chat_template_render gives them.
// ERR_FORMAT: not UTF-8; ERR_LIMIT: longer than LIMIT_PROMPT_BYTES, or more ids than out may hold; ERR_NOMEM.
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len_bytes, bool allow_special, struct ids *out,
                     struct err *e) MUST_CHECK;
int tokenizer_encode_breaks(const struct tokenizer *t, const char *text, size_t len_bytes, const size_t *breaks,
                            size_t n_breaks, struct ids *out, struct err *e) MUST_CHECK;
// No fewer ids than this come of text, control tokens or not: for one who would not wait to hear that it is too long.
// Time grows with the length only. 0 where nothing can be said.
size_t tokenizer_least_tokens(const struct tokenizer *t, const char *text, size_t len_bytes);
// What the post-processor puts around a plain prompt (a first <s>, say): for completions, not for chat, whose template
// writes it. *n ids, owned by the tokenizer.
const int32_t *tokenizer_prefix(const struct tokenizer *t, uint32_t *n);
const int32_t *tokenizer_suffix(const struct tokenizer *t, uint32_t *n);

uint32_t tokenizer_n_vocab(const struct tokenizer *t); // highest id + 1; some below may be unused
// The bytes that id stands for (for an added token: its content), owned by the tokenizer; at most LIMIT_TOKEN_BYTES.
// NULL and 0 for an id that is no token, negative ones included.
const uint8_t *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len_bytes);
// What a decoder does besides putting the bytes of tokens one after another.
struct tokenizer_decoding {
    uint8_t strip_spaces;   // so many spaces are dropped where a text begins
    bool strip_first_token; // all spaces of the token that a text begins with are dropped
    bool byte_by_byte;      // each byte that is in no whole character becomes a U+FFFD of its own
};
struct tokenizer_decoding tokenizer_decoding(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
// The id of an added token by its content, or of an ordinary one by its spelling in the file ("Ġthe"); -1: none.
int32_t tokenizer_id_of(const struct tokenizer *t, const char *content);
// The first control token above id (start with -1); -1: none.
int32_t tokenizer_next_special(const struct tokenizer *t, int32_t id);
