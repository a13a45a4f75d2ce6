// The HTTP endpoint: OpenAI-shaped requests in, JSON and server-sent events out. It sees the head through one struct of
// operations, and text/ for tokenizer and template. Threads: libmicrohttpd's own pool; sinks are called by the head's
// thread and only hand tokens over.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include "base/gen.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

// Receives the events of one request. After a successful submit exactly one event with finish != GEN_GOING comes, also
// after a cancel; the sink must live until then. event() must not block.
struct gateway_sink {
    void (*event)(struct gateway_sink *sink, const struct gen_event *ev);
};

struct gateway_health {
    bool ready; // a canary token went through all stages of the current route
    char why[256];
    uint64_t retry_after_us;
};

struct gateway_ops { // any thread
    void *head;
    int (*submit)(void *head, const struct gen_request *r, struct gateway_sink *sink, uint64_t *id, struct err *e);
    void (*cancel)(void *head, uint64_t id);
    // Nobody will want the request again: the next process need not go on with it. NULL: this head keeps nothing.
    void (*forget)(void *head, uint64_t id);
    // Calls take once with what an earlier process left; list is valid during the call. Within or after it, what is to
    // go on is submitted again, with its id in *id, and the rest forgotten. NULL: as above.
    void (*restore)(void *head, void (*take)(void *arg, const struct gen_restored *list, uint32_t n), void *arg);
    void (*health)(void *head, struct gateway_health *h);
    int (*metrics)(void *head, struct buf *out); // adds lines in the Prometheus text format
    int (*status)(void *head, struct buf *out);  // adds one JSON object: what `loom status --json` prints
};

struct gateway_model {
    const char *id; // shown in /v1/models; requests may name it or any of its aliases
    uint64_t created_s;
    uint32_t context; // tokens of prompt and answer together
    uint32_t n_vocab; // rows of the output head
    const struct tokenizer *tokenizer;
    struct chat_template *chat_template; // NULL: the model has none, chat is a 400
    struct sampling defaults;            // temperature, top_p, top_k, min_p of generation_config.json
    int32_t stop_ids[LIMIT_STOP_IDS];
    uint32_t n_stop_ids;
};

struct gateway_config {
    const char *listen_addr; // "127.0.0.1:8080"; no host: every address; port 0: any
    uint32_t n_threads;
    // Deadlines in milliseconds; 0: the default in brackets.
    uint32_t header_ms;    // from connecting to a whole header; twice that for a body (15 s)
    uint32_t idle_ms;      // between two requests of a connection (75 s)
    uint32_t stall_ms;     // a reader of a stream that takes nothing is cut off (30 s)
    uint32_t heartbeat_ms; // a stream without tokens gets a comment so often (15 s)
    // How long the answer to a client whose stream broke is made further, so that the client can come back for the rest
    // (doc/api.md); 0: it is cancelled at once, events have no ids, and nothing is restored.
    uint32_t resume_ms;
    struct gateway_model model;
    struct gateway_ops ops;
};

struct gateway;
// Whether a gateway could listen there now: for one who has much to do before it needs the gateway. Errors as those of
// gateway_new.
int gateway_check_listen(const char *listen_addr, struct err *e) MUST_CHECK;
// The strings and what the pointers show are the caller's and outlive the gateway; ops may be called until gateway_free
// returned. ERR_USAGE: listen_addr; ERR_NET: the port is taken.
int gateway_new(const struct gateway_config *c, struct gateway **g, struct err *e) MUST_CHECK;
uint32_t gateway_port(const struct gateway *g);
// Ends open streams with an error event, cancels what is being made and waits until the head has sent the last event of
// each request: the head must still be running.
void gateway_free(struct gateway *g);
