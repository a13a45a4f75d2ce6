// The HTTP thread's side of a reader: tokens become text, text becomes events or one JSON object. Called by the thread
// that libmicrohttpd runs the connection on, one at a time.
#pragma once
#include "gateway/reader.h"

enum stream_state {
    STREAM_SLEEPS, // the connection is suspended now
    STREAM_STARTS, // an answer that is streamed: send 200, then stream_read
    STREAM_WHOLE,  // an answer that is not: r->out holds it
    STREAM_FAILED, // r->error says why; no byte of an answer has gone out
    STREAM_GONE    // close the connection
};

// What to do with the connection now, before anything was sent.
enum stream_state stream_poll(struct reader *r);

enum { STREAM_END = -1, STREAM_BROKEN = -2 };
// Up to max bytes of the stream; 0: the connection is suspended; STREAM_END after the last byte; STREAM_BROKEN: close.
long stream_read(struct reader *r, char *to, size_t max);
