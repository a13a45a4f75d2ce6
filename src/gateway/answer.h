// One answer in the making: the head's thread hands tokens in, and a reader (reader.h) makes text and events of them
// for a connection. The tokens stay as long as the answer does, so that another reader can begin anew: what it says is
// a function of the tokens and of struct answer_ask alone.
//
//   new --prepare--> being made --all choices ended--> ended
//    |                  |  ^                              |
//    |      reader gone v  | another one              reader gone
//    |               waiting --too long--> cancelled      v
//    +-- an error, or not to be kept ----> cancelled    kept for a while
//
// An answer is shared: by its reader, by the thread that prepares it, by each choice that the head works on, and by the
// table of those that can be resumed. The last one frees it.
#pragma once
#include "base/buf.h"
#include "base/list.h"
#include "gateway/errors.h"
#include "gateway/gateway.h"
#include "gateway/metrics.h"
#include "gateway/respond.h"
#include "text/reason.h"
#include <pthread.h>
#include <stdatomic.h>

struct keep;
struct reader;

struct answer_shared { // what all answers of a gateway know
    const struct gateway_config *config;
    struct metrics metrics;
    struct keep *keep;        // NULL: nothing can be resumed
    atomic_size_t body_bytes; // of all request bodies in memory
    atomic_uint answers;      // alive
    atomic_bool stopping;     // what is cancelled now may be wanted of the next process
};

// What makes the same events of the same tokens.
struct answer_ask {
    struct respond_head head;
    uint32_t n_choices;
    uint32_t max_tokens; // of a choice, at most
    uint64_t prompt_tokens;
    struct reason reason; // where each choice begins
    char *stops;          // the stop strings, one behind the other; the answer's
    uint32_t n_stops;
    uint16_t stop_bytes[LIMIT_STOP_STRINGS];
};

struct choice {
    struct gateway_sink sink; // the first field: event() gets its address
    struct answer *answer;
    uint32_t index;
    // Under the answer's lock.
    uint64_t id;
    bool submitted, cancelled;
    bool journaled, forgotten; // by the head
    bool closed;               // its text is complete; tokens that still come are dropped
    bool starved;              // no memory for its tokens
    int32_t *tokens;
    uint32_t n_tokens, cap;
    uint32_t n_counted; // in the metrics
    enum gen_finish finish;
    int code;
    char why[256];
};

struct answer {
    pthread_mutex_t lock;
    struct answer_shared *shared;
    struct answer_ask ask;  // filled by prepare; read-only afterwards
    bool stream, wake_each; // wake_each: each token matters at once
    struct buf body;        // of the request, until prepared
    uint64_t born_us;

    // Under the lock.
    uint32_t refs;
    struct reader *reader; // NULL: nobody listens
    bool prepared, unwanted;
    bool kept;              // in the table
    uint64_t quiet_ms;      // since when nobody listens
    uint64_t ended_ms;      // 0: not yet, as far as the table knows
    struct choice *choices; // [ask.n_choices]; there once prepared
    struct list in_table;   // under the table's lock
};

// Takes body over; one reference is the caller's. NULL: no memory; body is still the caller's.
struct answer *answer_new(struct answer_shared *s, bool chat, struct buf *body);
void answer_ref(struct answer *a);
void answer_unref(struct answer *a);
// Room for the choices that ask names. False: no memory.
bool answer_make_choices(struct answer *a);

// Parses, renders, tokenises and hands the choices to the head; gives back a reference. Any thread but an HTTP one: it
// may take long.
void answer_prepare(struct answer *a);
// Hands one choice to the head; r->restored: *id of it goes on. The choice's last event gives back a reference.
int answer_submit(struct answer *a, struct choice *c, const struct gen_request *r, struct err *e) MUST_CHECK;

// Any thread. Cancels what is still being made, and lets the next process forget it.
void answer_cancel(struct answer *a);
void answer_forget(struct answer *a);                         // the latter alone: all of it was delivered
void answer_close_choice(struct answer *a, struct choice *c); // its text is complete
bool answer_has_ended_locked(const struct answer *a);
// When the head can serve again, by its own account. It may take the head's locks: not to be called with the answer's.
unsigned answer_retry_after_s(const struct answer *a);
