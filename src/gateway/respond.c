#include "gateway/respond.h"

#include <string.h>

static int add(struct buf *out, const char *s) { return buf_add(out, s, strlen(s)); }

static int add_text(struct buf *out, const struct buf *text) {
    return buf_add_json_string(out, (const char *)text->data, text->len_bytes);
}

int respond_models(const struct gateway_model *m, struct buf *out) {
    int rc = add(out, "{\"object\":\"list\",\"data\":[{\"id\":");
    if (!rc) rc = buf_add_json_string(out, m->id, strlen(m->id));
    if (!rc) {
        rc = buf_addf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"loom\",\"context_length\":%u}]}",
                      (unsigned long long)m->created_s, m->context);
    }
    return rc;
}

int respond_health(const struct gateway_health *h, struct buf *out) {
    if (h->ready) return add(out, "{\"status\":\"ok\"}");
    int rc = add(out, "{\"status\":\"unavailable\",\"reason\":");
    if (!rc) rc = buf_add_json_string(out, h->why, strnlen(h->why, sizeof h->why));
    if (!rc) rc = add(out, "}");
    return rc;
}

static int add_head(const struct respond_head *h, const char *object, struct buf *out) {
    int rc = buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", h->id, object,
                      (unsigned long long)h->created_s);
    if (!rc) rc = buf_add_json_string(out, h->model, strlen(h->model));
    // Signed, as the client's "seed" is.
    if (!rc) rc = buf_addf(out, ",\"seed\":%lld,\"choices\":[", (long long)h->seed);
    return rc;
}

static int add_usage(const struct respond_usage *u, struct buf *out) {
    return buf_addf(out, "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu}",
                    (unsigned long long)u->prompt_tokens, (unsigned long long)u->completion_tokens,
                    (unsigned long long)(u->prompt_tokens + u->completion_tokens));
}

int respond_open(const struct respond_head *h, struct buf *out) {
    return add_head(h, h->chat ? "chat.completion" : "text_completion", out);
}

int respond_choice(const struct respond_head *h, uint32_t index, const struct buf *content, const struct buf *reasoning,
                   const char *finish_reason, struct buf *out) {
    int rc = buf_addf(out, "%s{\"index\":%u,", index ? "," : "", index);
    if (!rc) rc = add(out, h->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    if (!rc) rc = add_text(out, content);
    if (!rc && reasoning) {
        rc = add(out, ",\"reasoning_content\":");
        if (!rc) rc = add_text(out, reasoning);
    }
    if (!rc && h->chat) rc = add(out, ",\"refusal\":null}");
    if (!rc) rc = buf_addf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\"}", finish_reason);
    return rc;
}

int respond_close(const struct respond_usage *u, struct buf *out) {
    int rc = add(out, "],");
    if (!rc) rc = add_usage(u, out);
    if (!rc) rc = add(out, "}");
    return rc;
}

static int open_event(const struct respond_head *h, struct buf *out) {
    int rc = add(out, "data: ");
    if (!rc) rc = add_head(h, h->chat ? "chat.completion.chunk" : "text_completion", out);
    return rc;
}

static int close_choice(const struct respond_head *h, const char *finish_reason, struct buf *out) {
    int rc = finish_reason ? buf_addf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_reason)
                           : add(out, ",\"logprobs\":null,\"finish_reason\":null}]");
    if (!rc && h->with_usage) rc = add(out, ",\"usage\":null");
    if (!rc) rc = add(out, "}\n\n");
    return rc;
}

int respond_role(const struct respond_head *h, uint32_t index, struct buf *out) {
    int rc = open_event(h, out);
    if (!rc) rc = buf_addf(out, "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", index);
    return rc ? rc : close_choice(h, NULL, out);
}

int respond_delta(const struct respond_head *h, uint32_t index, const char *field, const struct buf *text,
                  struct buf *out) {
    int rc = open_event(h, out);
    if (!rc) rc = buf_addf(out, h->chat ? "{\"index\":%u,\"delta\":{\"%s\":" : "{\"index\":%u,\"%s\":", index, field);
    if (!rc) rc = add_text(out, text);
    if (!rc && h->chat) rc = add(out, "}");
    return rc ? rc : close_choice(h, NULL, out);
}

int respond_finish(const struct respond_head *h, uint32_t index, const char *finish_reason, struct buf *out) {
    int rc = open_event(h, out);
    if (!rc) rc = buf_addf(out, h->chat ? "{\"index\":%u,\"delta\":{}" : "{\"index\":%u,\"text\":\"\"", index);
    return rc ? rc : close_choice(h, finish_reason, out);
}

int respond_usage(const struct respond_head *h, const struct respond_usage *u, struct buf *out) {
    int rc = open_event(h, out);
    if (!rc) rc = add(out, "],");
    if (!rc) rc = add_usage(u, out);
    if (!rc) rc = add(out, "}\n\n");
    return rc;
}

int respond_done(struct buf *out) { return add(out, "data: [DONE]\n\n"); }

int respond_heartbeat(struct buf *out) { return add(out, ": keep-alive\n\n"); }
