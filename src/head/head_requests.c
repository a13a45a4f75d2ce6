#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "head/head.h"
#include "head/head_internal.h"
#include "net/loop.h"
#include "os/clock.h"

// One request on its way from a gateway thread to the loop; owns a copy of what the request shows.
struct submission {
    struct head *head;
    uint64_t id;
    struct gateway_sink *sink;
    struct gen_request request;
    int32_t tokens[]; // prompt, known; then the bytes of keep
};

struct of_request { // of a request that was handed in
    struct head *head;
    uint64_t id;
};

// ---- events to the one who asked

void head_canary_failed(struct head *h, int code, const char *text) {
    LOG_W("head", "the first token did not come: %s", text);
    err_set(&h->canary_err, code, "%s", text);
    head_publish(h);
}

static void hand_over(struct head *h, const struct gen_event *ev) {
    if (ev->token >= 0 && !h->ready && h->route_up) {
        h->ready = true;
        LOG_I("head", "ready: a token came through all %u stages of epoch %u", h->n_stages, h->epoch);
        head_publish(h);
    }
    if (ev->id == HEAD_CANARY_ID) {
        if (ev->finish != GEN_GOING) h->canary_runs = false;
        if (ev->finish == GEN_FAILED) head_canary_failed(h, ev->code, ev->text);
        return;
    }
    struct gateway_sink *sink = ev->finish == GEN_GOING ? map_get(&h->sinks, ev->id) : map_remove(&h->sinks, ev->id);
    if (sink) sink->event(sink, ev);
}

void head_tell(struct head *h) {
    if (!h->n_events) return;
    bool first = false;
    for (uint32_t i = 0; i < h->n_events; i++) first |= h->events[i].index == 0 && h->events[i].token >= 0;
    if (h->journal && first)
        journal_settle(h->journal); // the requests themselves
    else if (h->journal)
        journal_flush(h->journal);
    for (uint32_t i = 0; i < h->n_events; i++) hand_over(h, &h->events[i]);
    h->n_events = 0;
}

void head_take_event(struct head *h, const struct gen_event *ev) {
    if (h->journal && ev->finish == GEN_FAILED)
        journal_drop(h->journal, ev->id);
    else if (h->journal)
        journal_event(h->journal, ev);
    if (h->n_events == LIMIT_SEQS || ev->text) head_tell(h);
    if (ev->text) // which is valid only now
        hand_over(h, ev);
    else
        h->events[h->n_events++] = *ev;
}

static void fail(struct head *h, uint64_t id, int code, const char *text) {
    struct gen_event ev = {.id = id, .token = -1, .finish = GEN_FAILED, .code = code, .text = text};
    head_take_event(h, &ev);
}

// ---- requests from gateway threads

static void take_submission(void *arg) {
    struct submission *s = arg;
    struct head *h = s->head;
    struct err e;
    int rc = map_put(&h->sinks, s->id, s->sink);
    if (rc) {
        // Without a place in the map the sink would never hear of its request: tell it here.
        struct gen_event ev = {.id = s->id,
                               .token = -1,
                               .finish = GEN_FAILED,
                               .code = ERR_UNAVAILABLE,
                               .text = "too many requests are open"};
        s->sink->event(s->sink, &ev);
        free(s);
        return;
    }
    rc = h->stopping ? err_set(&e, ERR_UNAVAILABLE, "the server is stopping")
                     : brain_submit(h->brain, clock_now_us(), s->id, &s->request, &e);
    if (!rc && h->journal && !s->request.restored) journal_request(h->journal, s->id, &s->request);
    if (rc) fail(h, s->id, rc, e.text);
    free(s);
    head_act(h);
    if (h->journal) journal_flush(h->journal);
}

static struct submission *copy_request(const struct gen_request *r) {
    size_t n = (size_t)r->n_prompt + r->n_known;
    struct submission *s = malloc(sizeof *s + n * sizeof s->tokens[0] + r->keep_bytes);
    if (!s) return NULL;
    uint8_t *keep = (uint8_t *)(s->tokens + n);
    s->request = *r;
    s->request.prompt = memcpy(s->tokens, r->prompt, r->n_prompt * sizeof s->tokens[0]);
    s->request.known = s->tokens + r->n_prompt;
    if (r->n_known) memcpy(s->tokens + r->n_prompt, r->known, r->n_known * sizeof s->tokens[0]);
    if (r->keep) s->request.keep = memcpy(keep, r->keep, r->keep_bytes);
    return s;
}

static int op_submit(void *head, const struct gen_request *r, struct gateway_sink *sink, uint64_t *id, struct err *e) {
    struct head *h = head;
    if (r->n_prompt < 1 || r->max_tokens < 1)
        return err_set(e, ERR_USAGE, "%u prompt tokens and %u to answer: each has to be at least 1", r->n_prompt,
                       r->max_tokens);
    if (r->n_prompt > h->context || r->max_tokens > h->context - r->n_prompt)
        return err_set(e, ERR_LIMIT, "%u prompt tokens and %u to answer are over the window of %u", r->n_prompt,
                       r->max_tokens, h->context);
    struct submission *s = copy_request(r);
    if (!s) return err_set(e, ERR_NOMEM, "no memory for the prompt");
    if (!r->restored) *id = atomic_fetch_add(&h->next_id, 1);
    s->head = h;
    s->sink = sink;
    s->id = *id;
    int rc = loop_post(h->loop, take_submission, s);
    if (rc) {
        free(s);
        return err_set(e, ERR_UNAVAILABLE, "too many requests wait");
    }
    return ERR_OK;
}

static void take_cancellation(void *arg) {
    struct of_request *c = arg;
    brain_cancel(c->head->brain, clock_now_us(), c->id);
    head_act(c->head);
    free(c);
}

static void take_forgetting(void *arg) {
    struct of_request *c = arg;
    journal_drop(c->head->journal, c->id);
    journal_flush(c->head->journal);
    free(c);
}

// False: no memory, or the loop has too much to do.
static bool post(struct head *h, uint64_t id, void (*take)(void *arg)) {
    struct of_request *c = malloc(sizeof *c);
    if (!c) return false;
    *c = (struct of_request){.head = h, .id = id};
    if (!loop_post(h->loop, take, c)) return true;
    free(c);
    return false;
}

static void op_cancel(void *head, uint64_t id) {
    if (post(head, id, take_cancellation)) return;
    LOG_E("head", "request %llu could not be cancelled: it will run to its end", (unsigned long long)id);
}

static void op_forget(void *head, uint64_t id) {
    struct head *h = head;
    if (!h->journal || post(h, id, take_forgetting)) return;
    LOG_W("head", "request %llu stays in the journal until it is too old", (unsigned long long)id);
}

static void op_restore(void *head, void (*take)(void *arg, const struct gen_restored *list, uint32_t n), void *arg) {
    struct head *h = head;
    take(arg, h->restored, h->n_restored);
    free(h->restored);
    h->restored = NULL;
    h->n_restored = 0;
}

struct gateway_ops head_gateway_ops(struct head *h) {
    return (struct gateway_ops){.head = h,
                                .submit = op_submit,
                                .cancel = op_cancel,
                                .forget = op_forget,
                                .restore = op_restore,
                                .health = head_health,
                                .metrics = head_metrics,
                                .status = head_status};
}
