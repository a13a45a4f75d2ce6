// Control messages <-> plain structs. The Protocol Buffers code stays behind this door. What comes out of a get was
// bounded and checked as far as a message by itself can be: lengths, counts, texts (UTF-8 without control characters).
//
// A struct control holds the memory for both directions, so that nothing is allocated for a message. One thread uses it
// at a time.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "base/step.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    CONTROL_LN = 1, // version of the numeric contract that this program computes by
    CONTROL_SECRET_BYTES = 16,
    CONTROL_CERT_BYTES = 2048, // of a certificate or signing request, DER
    CONTROL_TEXT_MAX = ERR_TEXT_MAX,
    CONTROL_NAME_MAX = 64, // names of nodes, in certificates and for people
    CONTROL_ADDRESS_MAX = 128,
    CONTROL_KEY_BYTES = 16,
    CONTROL_SHA_BYTES = 32
};

#define CONTROL_MEMORY_MAX (1ull << 50) // bytes of memory that a node may claim to have

struct control_enrol {
    uint8_t secret[CONTROL_SECRET_BYTES];
    uint8_t csr[CONTROL_CERT_BYTES];
    uint32_t csr_bytes;
};

struct control_enrolled {
    uint8_t cert[CONTROL_CERT_BYTES], ca[CONTROL_CERT_BYTES];
    uint32_t cert_bytes, ca_bytes;
};

struct control_join {
    uint32_t ln, port;
    uint64_t selftest, memory_bytes;
    uint64_t boot; // random, of this process; 0: not told
    char isa[16], name[CONTROL_NAME_MAX];
};

struct control_welcome {
    uint64_t node;
    char model[128];
    uint32_t weights, kv; // enum weight_mode, enum kv_type: the receiver compares with what it knows
    bool verify;
    uint32_t max_rows, max_context;
    uint64_t plan_hash, heartbeat_us;
    uint64_t boot; // random, of the head's process
    uint32_t n_rope;
    double rope[LIMIT_ROPE_VALUES]; // frequencies and factors (model_rope_get); travel as bits
};

// Who holds the next stage: each gets every step that this stage sends.
struct control_next {
    uint32_t n; // 0: this is the last stage
    struct control_holder {
        uint64_t node; // its number; the receiver's own number: the next stage is here too, no link is needed
        char address[CONTROL_ADDRESS_MAX], name[CONTROL_NAME_MAX];
        bool replay; // it starts empty: a replay first
    } holder[LIMIT_HOLDERS];
};

struct control_load {
    uint32_t n_stages, a, b, n_blocks;
    bool hot;
    uint8_t route_key[CONTROL_KEY_BYTES];
    struct control_next next;
};

struct control_heartbeat {
    uint64_t time_us, rtt_us, loading_bytes, memory_used_bytes, steps, busy_us;
    uint64_t waited; // steps of hot stages that found the compute thread busy for a shadow: 0, or something is wrong
    uint32_t slots_used, blocks_used; // the most of any stage
    uint32_t n_stages;
    struct control_stage_state {
        uint32_t stage;
        bool hot;
        uint64_t accepted, done; // last step taken in order; last one computed
        uint32_t waiting_rows;
        uint64_t lag_us;        // how long computing those would take
    } stage[LIMIT_NODE_STAGES]; // of the epoch in the header
};

struct control_ask {
    uint32_t n;
    char name[LIMIT_ASK_TENSORS][LIMIT_TENSOR_NAME];
};

struct control_manifest {
    uint32_t n;
    struct control_tensor {
        bool found;             // else the rest is zero
        uint32_t dtype, n_dims; // dtype: enum dtype, known; n_dims: 1 .. 4
        uint64_t dim[4];        // each >= 1
        uint64_t bytes;
        uint8_t sha256[CONTROL_SHA_BYTES];
    } entry[LIMIT_ASK_TENSORS];
};

struct control_fetch {
    char name[LIMIT_TENSOR_NAME];
    uint64_t offset;
    uint32_t bytes; // 1 .. LIMIT_CHUNK_BYTES
};

// Bytes that live in the struct control until the next put.
struct control_bytes {
    const uint8_t *data;
    uint32_t len;
};

struct control;

struct control *control_new(void); // NULL: no memory
void control_free(struct control *c);

// Bytes of the longest start of text that is UTF-8 without control characters, cut between characters at max_bytes.
size_t control_text_prefix(const char *text, size_t max_bytes);
// Copies a text as far as it fits; what may not stand in a message becomes ' ' or '?'.
void control_text_clean(const char *from, char *to, size_t to_bytes);

struct control_bytes control_put_enrol(struct control *c, const struct control_enrol *m);
struct control_bytes control_put_enrolled(struct control *c, const struct control_enrolled *m);
struct control_bytes control_put_text(struct control *c, const char *text); // cut and cleaned
// REFUSED: a text, and whether the same end may be let in later.
struct control_bytes control_put_refused(struct control *c, const char *text, bool retry);
struct control_bytes control_put_join(struct control *c, const struct control_join *m);
struct control_bytes control_put_welcome(struct control *c, const struct control_welcome *m);
struct control_bytes control_put_load(struct control *c, const struct control_load *m);
struct control_bytes control_put_heartbeat(struct control *c, const struct control_heartbeat *m);
struct control_bytes control_put_ask(struct control *c, const struct control_ask *m);
struct control_bytes control_put_manifest(struct control *c, const struct control_manifest *m);
struct control_bytes control_put_fetch(struct control *c, const struct control_fetch *m);
struct control_bytes control_put_attach(struct control *c, const uint8_t key[CONTROL_KEY_BYTES]);
struct control_bytes control_put_next(struct control *c, const struct control_next *m);
struct control_bytes control_put_hot(struct control *c, bool hot);
struct control_bytes control_put_failed(struct control *c, const char *text, enum stage_failure what);
struct control_bytes control_put_leave(struct control *c, bool leave, const char *why); // leave false: it is back

// ERR_FORMAT or ERR_LIMIT names message and field; the struct holds nothing of use then.
int control_get_enrol(struct control *c, const void *data, uint32_t len, struct control_enrol *m,
                      struct err *e) MUST_CHECK;
int control_get_enrolled(struct control *c, const void *data, uint32_t len, struct control_enrolled *m,
                         struct err *e) MUST_CHECK;
int control_get_text(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX],
                     struct err *e) MUST_CHECK;
int control_get_refused(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX], bool *retry,
                        struct err *e) MUST_CHECK;
int control_get_join(struct control *c, const void *data, uint32_t len, struct control_join *m,
                     struct err *e) MUST_CHECK;
int control_get_welcome(struct control *c, const void *data, uint32_t len, struct control_welcome *m,
                        struct err *e) MUST_CHECK;
int control_get_load(struct control *c, const void *data, uint32_t len, struct control_load *m,
                     struct err *e) MUST_CHECK;
int control_get_heartbeat(struct control *c, const void *data, uint32_t len, struct control_heartbeat *m,
                          struct err *e) MUST_CHECK;
int control_get_ask(struct control *c, const void *data, uint32_t len, struct control_ask *m, struct err *e) MUST_CHECK;
int control_get_manifest(struct control *c, const void *data, uint32_t len, struct control_manifest *m,
                         struct err *e) MUST_CHECK;
int control_get_fetch(struct control *c, const void *data, uint32_t len, struct control_fetch *m,
                      struct err *e) MUST_CHECK;
int control_get_attach(struct control *c, const void *data, uint32_t len, uint8_t key[CONTROL_KEY_BYTES],
                       struct err *e) MUST_CHECK;
int control_get_next(struct control *c, const void *data, uint32_t len, struct control_next *m,
                     struct err *e) MUST_CHECK;
int control_get_hot(struct control *c, const void *data, uint32_t len, bool *hot, struct err *e) MUST_CHECK;
int control_get_failed(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX],
                       enum stage_failure *what, struct err *e) MUST_CHECK;
int control_get_leave(struct control *c, const void *data, uint32_t len, bool *leave, char why[CONTROL_TEXT_MAX],
                      struct err *e) MUST_CHECK;

// Steps and their results. id and epoch are in the frame's header and are given and set by the caller. A step that came
// in fits its arrays, but nothing more is promised: step_check follows.
// What goes with a step: the last one that every holder of every stage has; of a piece of a replay, its place.
struct control_step_mark {
    uint64_t stable;
    bool first, last; // REPLAY only
};
struct control_bytes control_put_step(struct control *c, const struct step *s, const struct control_step_mark *mark);
int control_get_step(struct control *c, const void *data, uint32_t len, struct step *s, struct control_step_mark *mark,
                     struct err *e) MUST_CHECK;
struct control_bytes control_put_tokens(struct control *c, const struct step_result *r);
// Slots are below LIMIT_SEQS, tokens >= -1 (with a fault: -1).
int control_get_tokens(struct control *c, const void *data, uint32_t len, struct step_result *r,
                       struct err *e) MUST_CHECK;
