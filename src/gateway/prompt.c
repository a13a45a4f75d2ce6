#include "gateway/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// More ids than any window has are counted as well, so that the error can name their number.
enum { PROMPT_IDS_MAX = 2 * LIMIT_PROMPT_BYTES };

// Which of several prompts it is.
static void name_prompt(char name[32], uint32_t i, bool nested) {
    snprintf(name, 32, nested ? "prompt[%u]" : "prompt", i);
}

// A prompt too long to be rendered or counted is the client's doing; everything else is what the code says.
static int text_error(struct api_error *e, const struct err *why, const char *param) {
    if (why->code == ERR_LIMIT) return errors_set(e, 400, "context_length_exceeded", param, "%s", why->text);
    return errors_from(e, why->code, param, why->text);
}

// A text that surely does not fit the window is not worth the time that its ids take.
static int refuse_early(const struct gateway_model *m, const char *param, const char *text, size_t len_bytes,
                        struct api_error *e) {
    size_t least = tokenizer_least_tokens(m->tokenizer, text, len_bytes);
    if (least < m->context) return ERR_OK;
    return errors_set(e, 400, "context_length_exceeded", param,
                      "The window of this model is %u tokens, but there are %zu or more in the %s. Shorten it",
                      m->context, least, param);
}

static int chat_prompt(const struct gateway_model *m, const char *body, size_t len_bytes, struct prompts *p,
                       struct api_error *e) {
    struct err why;
    struct chat_prompt text = {0};
    if (!m->chat_template) {
        return errors_set(e, 400, "unsupported_value", "model",
                          "The model '%s' has no chat template: use /v1/completions", m->id);
    }
    int rc = chat_template_render(m->chat_template, body, len_bytes, NULL, true, &text, &why);
    static const char kwargs[] = "chat_template_kwargs"; // the helper begins with what it complains of
    if (rc) return text_error(e, &why, strncmp(why.text, kwargs, sizeof kwargs - 1) == 0 ? kwargs : "messages");
    rc = refuse_early(m, "messages", text.text, text.len_bytes, e);
    if (!rc &&
        tokenizer_encode_breaks(m->tokenizer, text.text, text.len_bytes, text.breaks, text.n_breaks, &p->list[0], &why))
        rc = text_error(e, &why, "messages");
    if (!rc) reason_init(&p->reason, text.text, text.len_bytes);
    chat_prompt_fini(&text);
    return rc ? ERR_USAGE : ERR_OK;
}

static int add_ids(struct ids *out, const int32_t *ids, uint32_t n) {
    int rc = ERR_OK;
    for (uint32_t i = 0; i < n && !rc; i++) rc = ids_add(out, ids[i]);
    return rc;
}

// The client of a completion writes the whole context, control tokens included.
static int text_prompt(const struct gateway_model *m, const char *name, const json_t *text, struct ids *out,
                       struct api_error *e) {
    struct err why = {.code = ERR_NOMEM, .text = "out of memory"};
    uint32_t n = 0;
    const int32_t *around = tokenizer_prefix(m->tokenizer, &n);
    int rc = refuse_early(m, name, json_string_value(text), json_string_length(text), e);
    if (rc) return rc;
    rc = add_ids(out, around, n);
    if (!rc) {
        rc = tokenizer_encode(m->tokenizer, json_string_value(text), json_string_length(text), true, out, &why);
    }
    around = tokenizer_suffix(m->tokenizer, &n);
    if (!rc) rc = add_ids(out, around, n);
    return rc ? text_error(e, &why, name) : ERR_OK;
}

static int ids_prompt(const struct gateway_model *m, const char *name, const json_t *array, struct ids *out,
                      struct api_error *e) {
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= m->n_vocab) {
            return errors_set(e, 400, "invalid_value", name, "'%s': entry %zu must be a token id from 0 to %u", name, i,
                              m->n_vocab - 1);
        }
        if (ids_add(out, (int32_t)id)) return errors_from(e, ERR_NOMEM, NULL, "out of memory");
    }
    return ERR_OK;
}

static int completion_prompts(const struct gateway_model *m, const json_t *prompt, struct prompts *p,
                              struct api_error *e) {
    if (json_is_string(prompt)) return text_prompt(m, "prompt", prompt, &p->list[0], e);
    if (json_is_integer(json_array_get(prompt, 0))) return ids_prompt(m, "prompt", prompt, &p->list[0], e);
    for (uint32_t i = 0; i < p->n; i++) {
        const json_t *one = json_array_get(prompt, i);
        char name[32];
        name_prompt(name, i, true);
        int rc = json_is_string(one)  ? text_prompt(m, name, one, &p->list[i], e)
                 : json_is_array(one) ? ids_prompt(m, name, one, &p->list[i], e)
                                      : errors_set(e, 400, "invalid_type", "prompt",
                                                   "'prompt': entry %u must be a string or an array of ids, not %s", i,
                                                   request_type_name(one));
        if (rc) return rc;
    }
    return ERR_OK;
}

static int check_window(const struct gateway_model *m, struct request *r, const struct prompts *p,
                        struct api_error *e) {
    char param[32] = "messages";
    bool nested = json_is_array(r->prompt) && !json_is_integer(json_array_get(r->prompt, 0));
    uint32_t longest_at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!r->chat) name_prompt(param, i, nested);
        if (p->list[i].n == 0) {
            return errors_set(e, 400, "invalid_value", param, "'%s' has no tokens: one at least is needed", param);
        }
        if (p->list[i].n > p->list[longest_at].n) longest_at = i;
    }
    if (!r->chat) name_prompt(param, longest_at, nested);
    size_t longest = p->list[longest_at].n;
    uint64_t answer = r->max_tokens ? r->max_tokens : 1;
    if (longest + answer > m->context) {
        return errors_set(e, 400, "context_length_exceeded", param,
                          "The window of this model is %u tokens, but %llu were asked for (%zu in the %s, %llu for the "
                          "answer). Shorten one of them",
                          m->context, (unsigned long long)(longest + answer), longest, param,
                          (unsigned long long)answer);
    }
    return ERR_OK;
}

static uint32_t count_prompts(const struct request *r) {
    if (r->chat || json_is_string(r->prompt) || json_is_integer(json_array_get(r->prompt, 0))) return 1;
    size_t n = json_array_size(r->prompt);
    return n > LIMIT_ANSWER_CHOICES ? LIMIT_ANSWER_CHOICES + 1 : (uint32_t)n;
}

int prompt_make(const struct gateway_model *m, struct request *r, const char *body, size_t len_bytes, struct prompts *p,
                struct api_error *e) {
    *p = (struct prompts){.n = count_prompts(r)};
    if (p->n == 0)
        return errors_set(e, 400, "invalid_value", "prompt", "'prompt' is empty: one entry at least is needed");
    if (p->n * r->n > LIMIT_ANSWER_CHOICES) {
        return errors_set(e, 400, "invalid_value", "prompt", "More than %d answers are asked for: prompts times 'n'",
                          LIMIT_ANSWER_CHOICES);
    }
    p->list = calloc(p->n, sizeof *p->list);
    if (!p->list) return errors_from(e, ERR_NOMEM, NULL, "out of memory");
    for (uint32_t i = 0; i < p->n; i++) ids_init(&p->list[i], PROMPT_IDS_MAX);
    reason_init(&p->reason, NULL, 0);
    int rc = r->chat ? chat_prompt(m, body, len_bytes, p, e) : completion_prompts(m, r->prompt, p, e);
    if (!rc) rc = check_window(m, r, p, e);
    if (rc) prompt_fini(p);
    return rc;
}

void prompt_fini(struct prompts *p) {
    for (uint32_t i = 0; i < p->n && p->list; i++) ids_fini(&p->list[i]);
    free(p->list);
    *p = (struct prompts){0};
}
