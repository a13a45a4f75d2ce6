// Splits an answer into reasoning ("<think>" to "</think>") and content, while it streams. Rules:
// - An answer may begin with "<think>", after at most 56 bytes of white space, which are dropped. Later ones are text
//   that the model quotes.
// - If the prompt ends with "<think>", the answer begins inside; if it ends with "</think>", all of it is content.
// - One newline behind "<think>", one before "</think>" and up to two behind that belong to the tags, to neither text.
// - Without a "</think>", everything up to the end is reasoning.
// Thread-confined; no allocation but in the caller's buffers. How the text was cut into calls makes no difference.
#pragma once
#include "base/buf.h"

enum reason_state {
    REASON_START,    // nothing but white space yet: "<think>" would open
    REASON_OPENED,   // behind "<think>": one newline is dropped
    REASON_THINKING, // until "</think>"
    REASON_CLOSED,   // behind "</think>": newlines_left more are dropped
    REASON_CONTENT   // for good
};

enum { REASON_HELD_MAX = 64 };

struct reason {
    enum reason_state state;
    uint32_t newlines_left;
    uint32_t held_n;
    char held[REASON_HELD_MAX]; // an end of the text that may turn out to belong to a tag
};

// prompt is the rendered one with its generation prompt. NULL: this model does not reason, all is content.
void reason_init(struct reason *r, const char *prompt, size_t len_bytes);
// Adds to reasoning and content what text completes. ERR_NOMEM: a buffer is full.
int reason_feed(struct reason *r, const char *text, size_t len_bytes, struct buf *reasoning,
                struct buf *content) MUST_CHECK;
// The end of the answer: adds what was held.
int reason_flush(struct reason *r, struct buf *reasoning, struct buf *content) MUST_CHECK;
