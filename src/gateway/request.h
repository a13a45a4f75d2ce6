// The JSON body of a request, checked key by key: what is not supported is an error that names the parameter, nothing
// is dropped in silence. Values that change nothing, as clients send them by default, are accepted. Any thread; a
// struct request belongs to one at a time.
#pragma once
#include "base/limits.h"
#include "base/step.h"
#include "gateway/errors.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request {
    json_t *root; // owned; strings below live in it
    bool chat;    // else a completion
    const char *model;
    json_t *prompt; // of a completion: a string, or an array of strings, of ids or of arrays of ids
    bool stream, include_usage;
    struct sampling sampling; // the seed is filled in even if the client gave none
    uint32_t n;               // choices of each prompt, 1 .. LIMIT_CHOICES
    uint32_t max_tokens;      // 0: to the end of the window
    const char *stop[LIMIT_STOP_STRINGS];
    size_t stop_len_bytes[LIMIT_STOP_STRINGS];
    uint32_t n_stop;
};

// body is not kept. defaults: the sampling of a client that says nothing. On an error r holds nothing.
int request_parse(struct request *r, bool chat, const char *body, size_t len_bytes, const struct sampling *defaults,
                  struct api_error *e) MUST_CHECK;
void request_fini(struct request *r);

// For the files that share the work: request.c knows the parameters, messages.c what a chat may hold.
int request_check_messages(const json_t *messages, struct api_error *e) MUST_CHECK;
// "a string", "an array": for messages.
const char *request_type_name(const json_t *v);
