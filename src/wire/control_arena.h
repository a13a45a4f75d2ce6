// Inside wire/ only: the memory of a struct control, the two doors to protobuf-c, and what all messages share.
#pragma once
#include "wire/control.h"
#include "wire/loom.pb-c.h"

enum {
    CONTROL_ARENA_BYTES = 1 << 20, // what a message may unfold to; a larger one is refused
    CONTROL_OUT_BYTES = 256 << 10
};

struct control {
    ProtobufCAllocator allocator; // hands out of arena, never frees
    size_t used_bytes;
    struct { // columns of a step that goes out
        uint32_t slot[LIMIT_SEQS], pos[LIMIT_SEQS], n_rows[LIMIT_SEQS], first_block[LIMIT_SEQS], n_blocks[LIMIT_SEQS];
        uint32_t sampled[LIMIT_SEQS], choice[LIMIT_SEQS], fault[LIMIT_SEQS];
        int32_t top_k[LIMIT_SEQS], token[LIMIT_SEQS];
        float temperature[LIMIT_SEQS], top_p[LIMIT_SEQS], min_p[LIMIT_SEQS];
        uint64_t seed[LIMIT_SEQS];
    } col;
    _Alignas(64) uint8_t out[CONTROL_OUT_BYTES];
    _Alignas(64) uint8_t arena[CONTROL_ARENA_BYTES];
};

struct control_bytes control_pack(struct control *c, const ProtobufCMessage *m);
// What comes back lives until the next unpack. ERR_FORMAT names the message.
int control_unpack(struct control *c, const ProtobufCMessageDescriptor *d, const void *data, uint32_t len, void **m,
                   struct err *e) MUST_CHECK;

// Copies a text that fits and may stand in logs and on terminals. ERR_LIMIT, ERR_FORMAT name the field.
int control_take_text(const char *field, const char *from, char *to, size_t to_bytes, struct err *e) MUST_CHECK;
int control_take_exact(const char *field, const ProtobufCBinaryData *from, uint8_t *to, size_t want,
                       struct err *e) MUST_CHECK;
// Structs that go out are const and protobuf-c's texts and bytes are not; it only reads them.
char *control_text_of(const char *s);
ProtobufCBinaryData control_binary(const uint8_t *data, size_t len);
