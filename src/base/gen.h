// One answer to be made: what the gateway asks of the head, and what comes back. Plain data.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "base/step.h"
#include <stdbool.h>
#include <stdint.h>

struct gen_request {
    const int32_t *prompt; // [n_prompt] token ids; read only during the call that takes the request
    uint32_t n_prompt;     // >= 1
    uint32_t max_tokens;   // >= 1; n_prompt + max_tokens <= context
    struct sampling sampling;
    int32_t stop_ids[LIMIT_STOP_IDS]; // end tokens; the one that ends the answer is the last token event
    uint32_t n_stop_ids;
    // What is told already of an answer that goes on: it is not told again, and the first event has index n_known.
    const int32_t *known; // [n_known], read as prompt is; no token of them ended the answer
    uint32_t n_known;     // < max_tokens
    bool restored;        // taken by an earlier process: it waits for machines where a new request would be refused
    // What the one who asks must have again to go on with the request in another process; read as prompt is.
    const uint8_t *keep; // [keep_bytes], at most LIMIT_KEEP_BYTES; NULL: the request ends with this process
    uint32_t keep_bytes;
};

enum gen_finish {
    GEN_GOING,     // a token, more to come
    GEN_STOP,      // the token is one of stop_ids
    GEN_LENGTH,    // the token is number max_tokens
    GEN_CANCELLED, // the one who asked cancelled; no token
    GEN_FAILED     // code and text say why; no token
};

struct gen_event {
    uint64_t id;    // of the request
    int32_t token;  // -1: none
    uint32_t index; // 0 for the first token of the answer; events come in order, each index once
    enum gen_finish finish;
    int code;         // enum err_code, with GEN_FAILED
    const char *text; // with GEN_FAILED: one sentence for the user; static or valid during the call
};

// A request that an earlier process took and did not see through.
struct gen_restored {
    uint64_t id;
    struct gen_request request; // known: what was told; keep: as it was given
    enum gen_finish finish;     // GEN_GOING, or how the known tokens ended it
};
