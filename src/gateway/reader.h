// One who reads an answer, for one connection: wakes and sleeps with it, and turns tokens into text and events
// (stream.c). An answer has one reader at a time; the newest wins, since a client that comes back may have noticed that
// its connection is dead before this side did.
//
// While there is nothing to do for its HTTP thread the connection is suspended ("sleeps"); whoever changes something
// wakes it, exactly once. A reader is shared by the exchange of the connection and, for moments, by the watcher; it
// holds a reference to its answer.
#pragma once
#include "gateway/answer.h"
#include "gateway/resume.h"
#include "text/detok.h"
#include "text/stop.h"

struct MHD_Connection;

struct voice { // of one choice; the HTTP thread's
    struct choice *choice;
    uint32_t index;
    uint32_t n_read; // tokens
    bool closed;     // its text is complete
    struct detok *detok;
    struct stop *stop;
    struct reason reason;
    struct buf content, reasoning; // the whole text, or of a stream what the token at hand added
    const char *finish_reason;
    bool role_sent;
    uint32_t n_events; // made of this choice
    uint32_t n_had;    // of them the client has already: not sent again
};

struct reader {
    struct answer *answer;
    struct MHD_Connection *connection;
    // Under the answer's lock.
    uint32_t refs;
    bool sleeping, arrived, started, heartbeat, gone, failed;
    bool told;              // the client may know an event's id: it may come back
    struct api_error error; // with failed; does not change any more then
    uint64_t slept_ms;      // since when it sleeps
    uint64_t pulled_ms;     // when the HTTP thread last asked for bytes of a stream
    // The HTTP thread's.
    struct resume *resume; // where to go on, NULL: from the start; owned
    struct voice *voices;  // [ask.n_choices]; there once the answer was prepared
    uint32_t turn;
    struct respond_usage usage;
    struct buf safe; // text behind the stop matcher
    struct buf out;  // bytes of a stream that are not taken yet, from out_at; or the whole answer
    size_t out_at;
    bool finished; // the last byte of the stream is in out
    bool no_route; // the head gave up for want of a route: it knows when there may be one again
};

// The answer's reader from now on; one that it had is given up. resume is taken over, NULL: from the start, by a client
// that asked for the answer. The caller holds a reference to a, and gets one to the reader. NULL: no memory; resume is
// still the caller's.
struct reader *reader_new(struct answer *a, struct MHD_Connection *connection, struct resume *resume);
void reader_ref(struct reader *r);
void reader_unref(struct reader *r);

// Any thread.
void reader_gone(struct reader *r);                                // the client went away
void reader_fail(struct reader *r, const struct api_error *error); // to be told to the client, if it can be
// Once in a while: true if the reader of the stream has taken nothing for too long; it is given up then.
bool reader_tick(struct reader *r, uint64_t now_ms);

// With the answer's lock.
void reader_arrived_locked(struct reader *r, bool wake); // something came for it
void reader_prepared_locked(struct reader *r);
void reader_fail_locked(struct reader *r, const struct api_error *error);
void reader_suspend_locked(struct reader *r);

// The HTTP thread, once the answer is prepared: what turns tokens into text. False: no memory.
bool reader_open_voices(struct reader *r);
