// Questions to the head about weights, and its answers, between the lazy thread, which asks and waits, and the loop
// thread, which owns the bulk link. Several questions travel at once; answers come in the order of the questions.
#pragma once
#include "os/queue.h"
#include "wire/control.h"
#include "wire/frame.h"
#include <stdatomic.h>

struct fetch_message { // either way; whoever pops it frees it
    struct frame_header h;
    uint32_t bytes;
    uint8_t data[]; // control bytes of a question; control bytes or payload of an answer
};

struct fetch {
    struct queue asks, answers; // asks has an fd for the loop
    uint64_t next_ask;          // lazy thread
    struct control *control;    // lazy thread
};

int fetch_init(struct fetch *f, struct err *e) MUST_CHECK;
void fetch_fini(struct fetch *f);

// Loop thread. wake: whoever waits looks at once whether its load was given up. answer: copies; drops what nobody can
// be waiting for.
void fetch_wake(struct fetch *f);
int fetch_answer(struct fetch *f, const struct frame_header *h, const void *data, uint32_t bytes) MUST_CHECK;

// Lazy thread. ERR_CANCELLED: *given_up was set. ERR_FORMAT: the head broke its word.
int fetch_manifest(struct fetch *f, const atomic_bool *given_up, const struct control_ask *ask,
                   struct control_manifest *m, struct err *e) MUST_CHECK;
int fetch_tensor(struct fetch *f, const atomic_bool *given_up, const char *name, uint64_t bytes,
                 int (*sink)(void *arg, const void *data, size_t len, struct err *e), void *arg,
                 struct err *e) MUST_CHECK;
