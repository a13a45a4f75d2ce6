// A SentencePiece model as a protobuf: its fields, and its pieces. Everything points into the bytes of the file.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum spm_type { // of a piece, as they are written
    SPM_NORMAL = 1,
    SPM_UNKNOWN = 2,
    SPM_CONTROL = 3,
    SPM_USER = 4,
    SPM_UNUSED = 5,
    SPM_BYTE = 6
};

struct spm_piece {
    const char *text; // not NUL-terminated, never empty
    uint32_t len_bytes;
    float score;
    enum spm_type type;
};

// What is left of a message.
struct spm_message {
    const uint8_t *at, *end;
};

struct spm_field {
    uint32_t number;
    uint64_t value;           // of a varint, or of four or eight bytes
    struct spm_message bytes; // of a field with a length
};

// The next field of a message; false at its end, or where it is broken: then *broken.
bool spm_next(struct spm_message *m, struct spm_field *f, bool *broken);
// The next piece of a model, in the order of their ids, which *id counts (start with 0): other fields are passed over.
// *found false: there is none. A type that nobody knows is SPM_NORMAL. ERR_FORMAT: a piece that is broken, without a
// text, or with one of more than twice LIMIT_TOKEN_BYTES; or the model is broken.
int spm_next_piece(struct spm_message *model, uint32_t *id, struct spm_piece *piece, bool *found,
                   struct err *e) MUST_CHECK;
