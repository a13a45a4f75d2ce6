// From the body of a chat request to the ids of its prompt: template and tokenizer in one call.
#pragma once
#include "text/ids.h"
#include "text/template.h"
#include "text/tokenizer.h"

// Appends the ids to out; prompt, if not NULL, receives the rendered text (chat_prompt_fini it, also needed to tell
// reason_init whether thinking has begun). Errors are those of chat_template_render and tokenizer_encode_breaks; a
// text without a byte is ERR_USAGE.
int chat_encode(const struct tokenizer *t, struct chat_template *ct, const char *request_json, size_t len_bytes,
                const char *extra_kwargs, bool add_generation_prompt, struct ids *out, struct chat_prompt *prompt,
                struct err *e) MUST_CHECK;
