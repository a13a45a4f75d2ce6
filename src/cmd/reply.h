// One answer in this process: submits a request to a head and waits for its tokens, one at a time.
#pragma once
#include <pthread.h>
#include <stdbool.h>

#include "base/gen.h"
#include "gateway/gateway.h"

struct reply {
    struct gateway_sink sink; // first: the head's thread sees only this
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct gateway_ops ops;
    uint64_t id;
    int32_t *tokens; // [max_tokens]
    uint32_t n_tokens, n_taken, max_tokens;
    bool ended;
    enum gen_finish finish;
    struct err err;                       // with GEN_FAILED
    uint64_t start_us, first_us, last_us; // of submit, of the first and of the last token
};

int reply_start(struct reply *a, const struct gateway_ops *ops, const struct gen_request *r, struct err *e) MUST_CHECK;
// Waits for the next token: true and *token, or false when there are no more.
bool reply_next(struct reply *a, int32_t *token);
void reply_cancel(struct reply *a); // reply_next still has to reach the end
// Waits for the end.
void reply_fini(struct reply *a);
