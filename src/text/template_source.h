// Where a model's chat templates come from: a folder, a GGUF file, or texts.
#pragma once
#include "gguf/gguf.h"
#include "text/tokenizer.h"
#include <jansson.h>

enum { TEMPLATE_NAMES = 64 }; // templates of one model

struct template_source {
    json_t *templates; // {name: Jinja source}, owned; without one the model has no template
    json_t *files;     // {name: what it stands in, within the folder or GGUF file}, owned
    json_t *variables; // bos_token and the like, which templates may print; owned
};

// template_text NULL: "chat_template" of tokenizer_config, the JSON of that file or NULL. ERR_FORMAT, ERR_LIMIT,
// ERR_NOMEM; the caller frees s in any case.
int template_source_texts(const char *template_text, const char *tokenizer_config, struct template_source *s,
                          struct err *e) MUST_CHECK;
int template_source_folder(const char *folder, const char *override_path, struct template_source *s,
                           struct err *e) MUST_CHECK;
int template_source_gguf(const struct gguf *g, const struct tokenizer *t, const char *override_path,
                         struct template_source *s, struct err *e) MUST_CHECK;
void template_source_fini(struct template_source *s);
