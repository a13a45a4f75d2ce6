// One answer in the making: between the head's thread, which hands tokens in, and an HTTP thread, which pulls text out.
//
//   new --prepare--> waiting --first event--> started --all choices ended--> done
//    |                  |                        |
//    +-- an error ------+------------------------+--> failed (to be told), or gone (nobody is there to be told)
//
// While there is nothing to do for its HTTP thread the connection is suspended ("sleeps"); whoever changes something
// wakes it, exactly once. An answer is shared: by the exchange of the connection, by the thread that prepares it, and
// by each choice that the head works on. The last one frees it.
#pragma once
#include "base/buf.h"
#include "gateway/errors.h"
#include "gateway/gateway.h"
#include "gateway/metrics.h"
#include "gateway/respond.h"
#include "text/detok.h"
#include "text/reason.h"
#include "text/stop.h"
#include <pthread.h>
#include <stdatomic.h>

struct MHD_Connection;

struct answer_shared { // what all answers of a gateway know
    const struct gateway_config *config;
    struct metrics metrics;
    atomic_size_t body_bytes; // of all request bodies in memory
    atomic_uint answers;      // alive
};

struct choice {
    struct gateway_sink sink; // the first field: event() gets its address
    struct answer *answer;
    uint32_t index;
    // Under the answer's lock. Tokens wait in tokens[head .. head + count), at most max_tokens of them.
    uint64_t id;
    bool submitted, cancelled;
    bool closed; // its text is complete; tokens that still come are dropped
    int32_t *tokens;
    uint32_t head, count, cap;
    enum gen_finish finish;
    int code;
    char why[256];
    // The HTTP thread's.
    struct detok *detok;
    struct stop *stop;
    struct reason reason;
    struct buf content, reasoning; // the whole text, or of a stream what the token at hand added
    const char *finish_reason;
    bool role_sent;
};

struct answer {
    pthread_mutex_t lock;
    struct answer_shared *shared;
    struct respond_head head; // filled by prepare; read-only afterwards
    bool stream, wake_each;   // wake_each: each token matters at once
    uint32_t max_tokens;      // of a choice
    struct buf body;          // of the request, until prepared
    uint64_t born_us;

    // Under the lock.
    uint32_t refs;
    struct MHD_Connection *connection;
    bool sleeping, prepared, arrived, started, heartbeat, gone, failed;
    struct api_error error; // with failed; does not change any more then
    uint64_t slept_ms;      // since when it sleeps
    uint64_t pulled_ms;     // when the HTTP thread last asked for bytes of a stream
    struct choice *choices; // [n_choices]; there once prepared
    uint32_t n_choices, turn;

    // The HTTP thread's.
    struct respond_usage usage;
    struct buf safe; // text behind the stop matcher
    struct buf out;  // bytes of a stream that are not taken yet, from out_at; or the whole answer
    size_t out_at;
    bool finished; // the last byte of the stream is in out
    bool no_route; // the head gave up for want of a route: it knows when there may be one again
};

// Takes body over. The caller holds one reference, and answer_prepare another, which it gives back. The connection is
// suspended by answer_sleep or answer_poll. NULL: no memory; body is still the caller's.
struct answer *answer_new(struct answer_shared *s, bool chat, struct buf *body, struct MHD_Connection *connection);
void answer_unref(struct answer *a);

// Parses, renders, tokenises and hands the choices to the head. Any thread but an HTTP one: it may take long.
void answer_prepare(struct answer *a);

// Any thread.
void answer_gone(struct answer *a);                                // the client went away
void answer_fail(struct answer *a, const struct api_error *error); // to be told to the client, if it can be
// Once in a while: true if the reader of the stream has taken nothing for too long; it is given up then.
bool answer_tick(struct answer *a, uint64_t now_ms);

// When the head can serve again, by its own account. It may take the head's locks: not to be called with the answer's.
unsigned answer_retry_after_s(const struct answer *a);

// For stream.c.
void answer_suspend_locked(struct answer *a);
void answer_close_choice(struct answer *a, struct choice *c); // cancels what is still being made
