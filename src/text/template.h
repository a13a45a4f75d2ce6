// Chat templates: Jinja2 itself, in sandboxed helper processes (/usr/bin/python3, python3-jinja2), because templates
// are written and tested against it. A helper has no network, no files, bounded memory, and a deadline; one that
// misses it is killed and a new one takes its place. It gets the client's request as the bytes that came, since numbers
// and key order must reach the prompt as they are.
//
// What a client wrote stays text. The helper puts a private code point, drawn at random for each request and checked
// to occur nowhere in it, into everything in the request's strings that reads like a control token; it takes them out
// of the rendered prompt again and reports where they were: the character before such a break is the client's, and no
// control token is made of it. A string that ends with the beginning of a control token gets a break too, so that two
// strings cannot make one together. Added tokens that are not special are left alone: templates look for "<think>" in
// what the assistant said, as the model's authors meant it.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;
struct tokenizer;
struct chat_template;

enum { TEMPLATE_HELPERS_MAX = 16, TEMPLATE_DEADLINE_MS = 5000 };

struct chat_template_options {
    uint32_t n_helpers;   // 1 .. TEMPLATE_HELPERS_MAX; renders at once; 0: 2
    uint32_t deadline_ms; // of one render, or of compiling; 0: TEMPLATE_DEADLINE_MS
};

// From a model's folder: the template is override_path if that is not NULL, else chat_template.jinja, else
// "chat_template" of tokenizer_config.json (a string, or a list of named ones); additional_chat_templates/NAME.jinja
// are named ones as well. A request with tools gets "tool_use" if there is one, all others get "default". bos_token,
// eos_token and the like come from tokenizer_config.json too. ERR_NOT_FOUND: the model has no template. ERR_FORMAT:
// Jinja refuses it. The helpers start here, so that a machine without jinja2 is told at once (ERR_UNAVAILABLE).
int chat_template_open(const char *model_dir, const char *override_path, const struct tokenizer *t,
                       const struct chat_template_options *options, struct chat_template **ct,
                       struct err *e) MUST_CHECK;
// The same from the metadata of a GGUF file: tokenizer.chat_template and tokenizer.chat_template.NAME, and the tokens
// that it names. path names the file in errors.
int chat_template_open_gguf(const struct gguf *g, const char *path, const char *override_path,
                            const struct tokenizer *t, const struct chat_template_options *options,
                            struct chat_template **ct, struct err *e) MUST_CHECK;
// From texts: template is Jinja source, tokenizer_config the JSON of that file or NULL. template NULL: the config's.
int chat_template_new(const char *template_text, const char *tokenizer_config, const struct tokenizer *t,
                      const struct chat_template_options *options, struct chat_template **ct, struct err *e) MUST_CHECK;
// No render may be running.
void chat_template_free(struct chat_template *ct);

struct chat_prompt { // owns its memory
    char *text;      // UTF-8, a NUL behind it
    size_t len_bytes;
    size_t *breaks; // byte offsets in text, ascending, for tokenizer_encode_breaks
    size_t n_breaks;
};
void chat_prompt_fini(struct chat_prompt *p);

// Renders the body of a request: its messages, tools, documents and chat_template_kwargs, the bytes as they came.
// extra_kwargs, a JSON object or NULL, are defaults that the request's own chat_template_kwargs override. Content given
// as a list of text parts is joined by newlines where the template does not go through lists itself. Any thread; waits
// for a free helper. ERR_USAGE: the template or the request is at fault, or takes longer than the deadline together;
// the text says how (a 400). ERR_LIMIT: the prompt is larger than LIMIT_PROMPT_BYTES (a 400). ERR_UNAVAILABLE: no
// helper came free or could be started.
int chat_template_render(struct chat_template *ct, const char *request_json, size_t len_bytes, const char *extra_kwargs,
                         bool add_generation_prompt, struct chat_prompt *out, struct err *e) MUST_CHECK;
