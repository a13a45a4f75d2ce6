// Any bytes as the body of a request: the first chooses the endpoint, the rest is the JSON. Refused with an error that
// is JSON itself, or a request within the limits, with prompts of valid ids that fit the window.
#include "gateway/prompt.h"
#include "../test/unit/text/tiny.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const struct api_error *e) {
    struct buf out;
    buf_init(&out, 1 << 16);
    ASSERT(e->status >= 400 && e->status <= 599 && e->message[0]);
    ASSERT(errors_add_json(e, &out) == ERR_OK);
    json_t *j = json_loadb((const char *)out.data, out.len_bytes, 0, NULL);
    ASSERT(j, "an error that is no JSON");
    json_decref(j);
    buf_fini(&out);
}

static void check_request(const struct request *r) {
    const struct sampling *s = &r->sampling;
    ASSERT(r->model && r->n >= 1 && r->n <= LIMIT_CHOICES && r->n_stop <= LIMIT_STOP_STRINGS);
    ASSERT(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    ASSERT(s->min_p >= 0 && s->min_p <= 1);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        ASSERT(r->stop_len_bytes[i] >= 1 && r->stop_len_bytes[i] <= LIMIT_STOP_BYTES);
    }
}

static void check_prompts(const struct gateway_model *m, const struct request *r, const struct prompts *p) {
    ASSERT(p->n >= 1 && p->n * r->n <= LIMIT_ANSWER_CHOICES);
    for (uint32_t i = 0; i < p->n; i++) {
        ASSERT(p->list[i].n >= 1 && p->list[i].n + r->max_tokens <= m->context);
        for (size_t k = 0; k < p->list[i].n; k++) ASSERT((uint32_t)p->list[i].data[k] < m->n_vocab);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct sampling defaults = {.temperature = 1, .top_p = 1};
    static struct gateway_model m = {.id = "tiny", .context = 64};
    if (!m.tokenizer) {
        struct tokenizer *t = tiny_new(&(struct tiny){.normalizer = "null"});
        m.tokenizer = t;
        m.n_vocab = tokenizer_n_vocab(t);
    }
    if (size == 0) return 0;
    struct request r;
    struct prompts p;
    struct api_error e;
    const char *body = (const char *)data + 1;
    if (request_parse(&r, data[0] & 1, body, size - 1, &defaults, &e)) {
        check_error(&e);
        return 0;
    }
    check_request(&r);
    if (prompt_make(&m, &r, body, size - 1, &p, &e)) {
        check_error(&e);
    } else {
        check_prompts(&m, &r, &p);
        prompt_fini(&p);
    }
    request_fini(&r);
    return 0;
}
