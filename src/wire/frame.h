// Frames: what every link of the cluster carries. A fixed header of 64 bytes (little-endian), control bytes (Protocol
// Buffers, see control.h) padded with zeros to a multiple of 8, and a payload (rows, a piece of a tensor). A decode
// step is small, so padding counts; the receiver lays the body so that the payload is aligned to 64 (frame_body_shift).
// doc/wire.md draws it and states the compatibility rule.
//
// No length is believed before it was compared with the limit of the frame's type. No sockets here; thread-safe.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

enum { FRAME_HEADER_BYTES = 64, FRAME_ALIGN = 64, FRAME_PAD = 8, FRAME_VERSION = 2 };

enum frame_type {        // values travel: append only
    FRAME_ENROL = 1,     // node -> head, without certificate: one-time secret, signing request
    FRAME_ENROLLED = 2,  // head -> node: the certificate, the CA's
    FRAME_REFUSED = 3,   // head -> node: why; the link ends
    FRAME_JOIN = 4,      // node -> head: what the node is
    FRAME_WELCOME = 5,   // head -> node: what is computed, and how; payload: config.json
    FRAME_LOAD = 6,      // head -> node: hold these layers for this epoch
    FRAME_READY = 7,     // node -> head: they are held, the links to the next stage stand
    FRAME_FAILED = 8,    // node -> head: this stage will not work here in this epoch, why
    FRAME_HEARTBEAT = 9, // node -> head: how far each of its stages is
    FRAME_ECHO = 10,     // head -> node: the heartbeat's time, back; step: which one is stable
    FRAME_STEP = 11,     // to a stage: the step; payload: hidden rows in bf16, then a fault byte a row (not to stage 0)
    FRAME_TOKENS = 12,   // last stage -> head: the step's result
    FRAME_BYE = 13,      // either way: this end leaves on purpose, why
    FRAME_BULK = 14,     // node -> head: this link is for what follows
    FRAME_ASK = 15,      // node -> head: describe these tensors; step: the number of the question
    FRAME_MANIFEST = 16, // head -> node: type, shape, bytes, SHA-256 of each
    FRAME_FETCH = 17,    // node -> head: a piece of a tensor; step: the number of the question
    FRAME_CHUNK = 18,    // head -> node: payload: the piece
    FRAME_ATTACH = 19,   // node -> node: what this stage of this epoch sends will come on this link
    FRAME_NEXT = 20,     // head -> node: who holds the stage after this one now
    FRAME_HOT = 21,      // head -> node: run steps as they come and send what comes out, or stop that
    FRAME_UNLOAD = 22,   // head -> node: the stage is not needed here any more
    FRAME_REPLAY = 23,   // to a holder that starts empty: what its sequences were; step: as of which; payload as STEP
    FRAME_FED = 24,      // node -> head: the replay is computed; step: as of which
    FRAME_LEAVE = 25,    // node -> head: this machine is wanted back, or is free again
    FRAME_MAY_LEAVE = 26, // head -> node: nothing depends on this node any more
    FRAME_N
};

struct frame_header {
    enum frame_type type;
    uint32_t epoch, stage;
    uint64_t step; // number of a step, or of a question
    uint32_t rows;
    uint32_t dtype;         // enum dtype of the payload; 0 without one
    uint32_t control_bytes; // without padding
    uint32_t payload_bytes;
    uint32_t body_crc; // CRC-32C of control and payload, without padding
};

const char *frame_name(enum frame_type t); // "JOIN"; "?" if there is no such type

// Writes the header with its own checksum.
void frame_pack(const struct frame_header *h, uint8_t out[FRAME_HEADER_BYTES]);
// Checks magic, checksum, version (ERR_UNSUPPORTED names both), type, and both lengths against the type's limits and
// against the two bounds given (what this link may carry now). ERR_FORMAT, ERR_LIMIT.
int frame_unpack(const uint8_t in[FRAME_HEADER_BYTES], uint32_t max_control_bytes, uint32_t max_payload_bytes,
                 struct frame_header *h, struct err *e) MUST_CHECK;

// Bytes between this header and the next one.
uint64_t frame_body_bytes(const struct frame_header *h);
// Where the payload starts in the body.
uint32_t frame_payload_offset(const struct frame_header *h);
// How far behind an address that is aligned to FRAME_ALIGN the body has to start for the payload to be aligned too.
uint32_t frame_body_shift(const struct frame_header *h);
// The checksum for body_crc. Either part may be NULL with length 0.
uint32_t frame_crc(const void *control, uint32_t control_bytes, const void *payload, uint32_t payload_bytes);
// Checks a whole body: checksum, zero padding.
int frame_check_body(const struct frame_header *h, const uint8_t *body, struct err *e) MUST_CHECK;
