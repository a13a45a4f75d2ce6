// Ids back to text, one at a time: what comes out is always whole characters. Bytes that are no UTF-8 become U+FFFD
// exactly where a decoder of the whole answer would put it, so the pieces joined are the reference's text. (Where byte
// tokens of SentencePiece make a whole character and then bytes that are none, it would give up the character as well;
// here it was told already.)
// A detok belongs to one thread at a time; it allocates only in detok_new.
#pragma once
#include "text/tokenizer.h"

struct detok;

// Leaves out control tokens, except "<think>" and "</think>" where a model has these among them. The tokenizer must
// outlive it. NULL: no memory.
struct detok *detok_new(const struct tokenizer *t);
void detok_free(struct detok *d);
// The text goes on from one that was there before: no space is dropped at its beginning, as it would be by a decoder
// that knows nothing of what came before. Before the first id.
void detok_continue(struct detok *d);
// Forgets what is held, for another answer.
void detok_reset(struct detok *d);

// The text that id completes: *len_bytes bytes, valid until the next call, perhaps none. An id that is no token gives
// none. The last character may be held until its remaining bytes come.
const char *detok_feed(struct detok *d, int32_t id, size_t *len_bytes);
// The end of the answer: the held bytes as U+FFFD.
const char *detok_flush(struct detok *d, size_t *len_bytes);
