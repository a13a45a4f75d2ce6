// Writes what goes out: JSON objects and the events of a stream, into a buffer. Any thread.
#pragma once
#include "base/buf.h"
#include "gateway/gateway.h"
#include <stdbool.h>
#include <stdint.h>

// What is the same in every object of one answer.
struct respond_head {
    bool chat;
    bool with_usage; // a stream with include_usage: other events say "usage":null
    bool with_ids;   // a stream that can be resumed: events have an id
    char id[40];     // chatcmpl-..., cmpl-...
    const char *model;
    uint64_t created_s, seed;
};

struct respond_usage {
    uint64_t prompt_tokens, completion_tokens;
};

int respond_models(const struct gateway_model *m, struct buf *out) MUST_CHECK;
int respond_health(const struct gateway_health *h, struct buf *out) MUST_CHECK;

// A whole answer: respond_open, for each choice respond_choice, respond_close. reasoning NULL: the model gave none.
int respond_open(const struct respond_head *h, struct buf *out) MUST_CHECK;
int respond_choice(const struct respond_head *h, uint32_t index, const struct buf *content, const struct buf *reasoning,
                   const char *finish_reason, struct buf *out) MUST_CHECK;
int respond_close(const struct respond_usage *u, struct buf *out) MUST_CHECK;

// Events. field is "content", "reasoning_content" (chat) or "text" (completions).
int respond_role(const struct respond_head *h, uint32_t index, struct buf *out) MUST_CHECK;
int respond_delta(const struct respond_head *h, uint32_t index, const char *field, const struct buf *text,
                  struct buf *out) MUST_CHECK;
int respond_finish(const struct respond_head *h, uint32_t index, const char *finish_reason, struct buf *out) MUST_CHECK;
int respond_usage(const struct respond_head *h, const struct respond_usage *u, struct buf *out) MUST_CHECK;
int respond_done(struct buf *out) MUST_CHECK;
int respond_heartbeat(struct buf *out) MUST_CHECK;
