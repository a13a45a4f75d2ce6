// The HTTP thread's side of an answer: tokens become text, text becomes events or one JSON object. Called by the thread
// that libmicrohttpd runs the connection on, one at a time.
#pragma once
#include "gateway/answer.h"

enum stream_state {
    STREAM_SLEEPS, // the connection is suspended now
    STREAM_STARTS, // an answer that is streamed: send 200, then stream_read
    STREAM_WHOLE,  // an answer that is not: a->out holds it
    STREAM_FAILED, // a->error says why; no byte of an answer has gone out
    STREAM_GONE    // close the connection
};

// What to do with the connection now, before anything was sent.
enum stream_state stream_poll(struct answer *a);

enum { STREAM_END = -1, STREAM_BROKEN = -2 };
// Up to max bytes of the stream; 0: the connection is suspended; STREAM_END after the last byte; STREAM_BROKEN: close.
long stream_read(struct answer *a, char *to, size_t max);
