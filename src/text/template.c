#include "text/template.h"
#include "base/buf.h"
#include "os/clock.h"
#include "text/helper.h"
#include "text/template_source.h"
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// The longest answer: the text, and a break of four bytes for each two bytes of it.
enum { ANSWER_MAX_BYTES = 3 * LIMIT_PROMPT_BYTES + 16, CPU_SPARE_S = 2, TRIES = 2 };

struct slot {
    struct helper helper;
    bool busy;
};

struct chat_template {
    char *load; // the header that makes a helper know this model, JSON
    uint32_t deadline_ms, n_slots;
    pthread_mutex_t mutex; // of slots[].busy; a busy slot's helper belongs to the one who took it
    pthread_cond_t freed;
    struct slot slots[TEMPLATE_HELPERS_MAX];
};

// ---- what the model says -------------------------------------------------------------------------------------------

static json_t *specials_of(const struct tokenizer *t) {
    json_t *list = json_array();
    for (int32_t id = -1; (id = tokenizer_next_special(t, id)) >= 0;) {
        size_t n;
        const uint8_t *content = tokenizer_token_bytes(t, id, &n);
        json_array_append_new(list, json_stringn((const char *)content, n));
    }
    return list;
}

static int make_load(const struct template_source *s, const struct tokenizer *t, uint32_t deadline_ms, char **load,
                     struct err *e) {
    if (json_object_size(s->templates) == 0) return err_set(e, ERR_NOT_FOUND, "the model has no chat template");
    json_t *header =
        json_pack("{s:s, s:i, s:O, s:O, s:O, s:o, s:i}", "op", "load", "cpu_s", (int)(deadline_ms / 1000 + CPU_SPARE_S),
                  "templates", s->templates, "files", s->files, "variables", s->variables, "specials", specials_of(t),
                  "limit_bytes", (int)LIMIT_PROMPT_BYTES);
    *load = header ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return *load ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a chat template");
}

// ---- helpers -------------------------------------------------------------------------------------------------------

static int failed(const uint8_t *answer, struct err *e) {
    const char *text = (const char *)answer + 1;
    switch (answer[0]) {
    case HELPER_BAD_TEMPLATE:
        return err_set(e, ERR_FORMAT, "%s", text);
    case HELPER_TOO_LARGE:
        return err_set(e, ERR_LIMIT, "%s", text);
    default:
        return err_set(e, ERR_USAGE, "%s", text);
    }
}

// A helper that knows the model; one that runs already does.
static int ready(struct chat_template *ct, struct helper *h, struct err *e) {
    if (h->pid) return ERR_OK;
    uint8_t *answer = NULL;
    size_t n = 0;
    int rc = helper_start(h, e);
    if (rc) return rc;
    rc = helper_call(h, ct->load, strlen(ct->load), NULL, 0, ANSWER_MAX_BYTES, ct->deadline_ms, &answer, &n, e);
    if (rc == ERR_USAGE) rc = err_set(e, ERR_FORMAT, "chat template: it is not compiled within %u ms", ct->deadline_ms);
    if (!rc && answer[0] != HELPER_OK) {
        rc = failed(answer, e);
        helper_stop(h);
    }
    free(answer);
    return rc;
}

static struct slot *take(struct chat_template *ct) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1 + ct->deadline_ms / 1000;
    struct slot *found = NULL;
    pthread_mutex_lock(&ct->mutex);
    for (int waited = 0; !found && !waited;) {
        // The first free one that runs already, else the first free one.
        for (uint32_t i = 0; i < ct->n_slots; i++) {
            struct slot *s = &ct->slots[i];
            if (!s->busy && (!found || (s->helper.pid && !found->helper.pid))) found = s;
        }
        if (!found) waited = pthread_cond_timedwait(&ct->freed, &ct->mutex, &until);
    }
    if (found) found->busy = true;
    pthread_mutex_unlock(&ct->mutex);
    return found;
}

static void give_back(struct chat_template *ct, struct slot *s) {
    pthread_mutex_lock(&ct->mutex);
    s->busy = false;
    pthread_cond_signal(&ct->freed);
    pthread_mutex_unlock(&ct->mutex);
}

// ---- public --------------------------------------------------------------------------------------------------------

// Puts the folder or file in front of an error that does not begin with a path in it.
static void name_place(struct err *e, const char *place) {
    if (e && strncmp(e->text, place, strlen(place)) != 0) err_prefix(e, "%s", place);
}

static int make(const struct template_source *s, const struct tokenizer *t, const struct chat_template_options *options,
                struct chat_template **ct, struct err *e) {
    struct chat_template *made = calloc(1, sizeof *made);
    if (!made) return err_set(e, ERR_NOMEM, "no memory for a chat template");
    made->n_slots = options && options->n_helpers ? options->n_helpers : 2;
    made->deadline_ms = options && options->deadline_ms ? options->deadline_ms : TEMPLATE_DEADLINE_MS;
    if (made->n_slots > TEMPLATE_HELPERS_MAX) made->n_slots = TEMPLATE_HELPERS_MAX;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&made->mutex, NULL);
    int rc = make_load(s, t, made->deadline_ms, &made->load, e);
    if (!rc) rc = ready(made, &made->slots[0].helper, e);
    if (rc)
        chat_template_free(made);
    else
        *ct = made;
    return rc;
}

int chat_template_new(const char *template_text, const char *tokenizer_config, const struct tokenizer *t,
                      const struct chat_template_options *options, struct chat_template **ct, struct err *e) {
    struct template_source s;
    int rc = template_source_texts(template_text, tokenizer_config, &s, e);
    if (!rc) rc = make(&s, t, options, ct, e);
    template_source_fini(&s);
    return rc;
}

int chat_template_open(const char *model_dir, const char *override_path, const struct tokenizer *t,
                       const struct chat_template_options *options, struct chat_template **ct, struct err *e) {
    struct template_source s;
    int rc = template_source_folder(model_dir, override_path, &s, e);
    if (!rc) {
        rc = make(&s, t, options, ct, e);
        if (rc) name_place(e, override_path ? override_path : model_dir);
    }
    template_source_fini(&s);
    return rc;
}

int chat_template_open_gguf(const struct gguf *g, const char *path, const char *override_path,
                            const struct tokenizer *t, const struct chat_template_options *options,
                            struct chat_template **ct, struct err *e) {
    struct template_source s;
    int rc = template_source_gguf(g, t, override_path, &s, e);
    if (!rc) rc = make(&s, t, options, ct, e);
    if (rc) name_place(e, override_path ? override_path : path);
    template_source_fini(&s);
    return rc;
}

void chat_template_free(struct chat_template *ct) {
    if (!ct) return;
    for (uint32_t i = 0; i < ct->n_slots; i++) {
        ASSERT(!ct->slots[i].busy, "a render is running");
        helper_stop(&ct->slots[i].helper);
    }
    pthread_mutex_destroy(&ct->mutex);
    pthread_cond_destroy(&ct->freed);
    free(ct->load);
    free(ct);
}

void chat_prompt_fini(struct chat_prompt *p) {
    free(p->text);
    free(p->breaks);
    *p = (struct chat_prompt){0};
}

// An answer of the helper: status, u32 count, u32 offsets, text. It is checked like any foreign bytes.
static int unpack(const uint8_t *answer, size_t n, struct chat_prompt *out, struct err *e) {
    uint32_t count = 0, at = 0, last = 0;
    if (answer[0] != HELPER_OK) return failed(answer, e);
    if (n >= 5) memcpy(&count, answer + 1, sizeof count);
    if (n < 5 || count > (n - 5) / sizeof at)
        return err_set(e, ERR_FORMAT, "chat template: broken answer of the helper");
    size_t start = 5 + count * sizeof at;
    struct chat_prompt p = {.text = malloc(n - start + 1), .breaks = malloc((count + 1) * sizeof *p.breaks)};
    p.len_bytes = n - start;
    p.n_breaks = count;
    int rc = p.text && p.breaks ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a prompt of %zu bytes", n);
    for (uint32_t i = 0; i < count && !rc; i++, last = at) {
        memcpy(&at, answer + 5 + i * sizeof at, sizeof at);
        if (at < last || at > p.len_bytes) rc = err_set(e, ERR_FORMAT, "chat template: broken answer of the helper");
        p.breaks[i] = at;
    }
    if (rc) {
        chat_prompt_fini(&p);
        return rc;
    }
    memcpy(p.text, answer + start, p.len_bytes + 1); // the answer has a NUL behind it
    *out = p;
    return ERR_OK;
}

static int make_header(const struct chat_template *ct, const char *extra_kwargs, bool add_generation_prompt,
                       struct buf *header, struct err *e) {
    json_t *kwargs = json_loads(extra_kwargs ? extra_kwargs : "{}", 0, NULL);
    bool object = json_is_object(kwargs);
    json_decref(kwargs);
    if (!object) return err_set(e, ERR_USAGE, "template variables must be a JSON object");
    int rc = buf_addf(header, "{\"op\": \"render\", \"cpu_s\": %u, \"add_generation_prompt\": %s, \"kwargs\": %s}",
                      ct->deadline_ms / 1000 + CPU_SPARE_S, add_generation_prompt ? "true" : "false",
                      extra_kwargs ? extra_kwargs : "{}");
    return rc ? err_set(e, ERR_LIMIT, "template variables have more than %zu bytes", header->max_bytes) : ERR_OK;
}

int chat_template_render(struct chat_template *ct, const char *request_json, size_t len_bytes, const char *extra_kwargs,
                         bool add_generation_prompt, struct chat_prompt *out, struct err *e) {
    if (len_bytes > LIMIT_HTTP_BODY)
        return err_set(e, ERR_LIMIT, "request of %zu bytes, at most %d", len_bytes, LIMIT_HTTP_BODY);
    struct buf header;
    buf_init(&header, LIMIT_CONFIG_BYTES);
    int rc = make_header(ct, extra_kwargs, add_generation_prompt, &header, e);
    struct slot *s = rc ? NULL : take(ct);
    if (!rc && !s) rc = err_set(e, ERR_UNAVAILABLE, "chat template: all %u helpers are busy", ct->n_slots);
    uint8_t *answer = NULL;
    size_t n = 0;
    // A helper may die while it is idle (the system is out of memory, say): a new one gets the request once more.
    for (int left = TRIES; !rc && left > 0 && !answer; left--) {
        rc = ready(ct, &s->helper, e);
        if (rc) break;
        rc = helper_call(&s->helper, header.data, header.len_bytes, request_json, len_bytes, ANSWER_MAX_BYTES,
                         ct->deadline_ms, &answer, &n, e);
        if (rc == ERR_IO && left > 1) rc = ERR_OK;
    }
    if (s) give_back(ct, s);
    buf_fini(&header);
    if (!rc) rc = unpack(answer, n, out, e);
    free(answer);
    return rc;
}
