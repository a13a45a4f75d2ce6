#include "text/chat.h"

int chat_encode(const struct tokenizer *t, struct chat_template *ct, const char *request_json, size_t len_bytes,
                const char *extra_kwargs, bool add_generation_prompt, struct ids *out, struct chat_prompt *prompt,
                struct err *e) {
    struct chat_prompt p = {0};
    int rc = chat_template_render(ct, request_json, len_bytes, extra_kwargs, add_generation_prompt, &p, e);
    if (!rc && p.len_bytes == 0) rc = err_set(e, ERR_USAGE, "the chat template rendered nothing");
    if (!rc) rc = tokenizer_encode_breaks(t, p.text, p.len_bytes, p.breaks, p.n_breaks, out, e);
    if (!rc && prompt)
        *prompt = p;
    else
        chat_prompt_fini(&p);
    return rc;
}
