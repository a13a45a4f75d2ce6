// From a checked request to token ids: the chat template or the plain text through the tokenizer, or the client's own
// ids. Any thread; may take long for a long prompt.
#pragma once
#include "gateway/gateway.h"
#include "gateway/request.h"
#include "text/reason.h"

struct prompts {      // owns its memory
    struct ids *list; // [n]
    uint32_t n;
    struct reason reason; // where an answer to a chat begins: in or behind its reasoning
};

// body is the JSON as it came, of which r was made. All prompts and the tokens asked for fit the window then, and each
// prompt has a token at least; r->max_tokens is set. On an error p holds nothing.
int prompt_make(const struct gateway_model *m, struct request *r, const char *body, size_t len_bytes, struct prompts *p,
                struct api_error *e) MUST_CHECK;
void prompt_fini(struct prompts *p);
