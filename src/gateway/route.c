#include "gateway/route.h"

#include "gateway/respond.h"
#include "gateway/server.h"
#include <string.h>

static int get_models(struct gateway *g, struct route_reply *r) {
    return respond_models(&g->config.model, &r->body) ? 500 : 200;
}

static int get_health(struct gateway *g, struct route_reply *r) {
    struct gateway_health h = {0};
    g->config.ops.health(g->config.ops.head, &h);
    if (!h.ready) r->retry_after_s = h.retry_after_us < 1000000 ? 1 : (unsigned)(h.retry_after_us / 1000000);
    if (respond_health(&h, &r->body)) return 500;
    return h.ready ? 200 : 503;
}

static int get_metrics(struct gateway *g, struct route_reply *r) {
    if (metrics_add(&g->shared.metrics, &r->body)) return 500;
    return g->config.ops.metrics(g->config.ops.head, &r->body) ? 500 : 200;
}

static int get_status(struct gateway *g, struct route_reply *r) {
    return g->config.ops.status(g->config.ops.head, &r->body) ? 500 : 200;
}

static const struct route routes[] = {
    {"/v1/models", METRICS_MODELS, false, false, false, get_models, "application/json"},
    {"/v1/chat/completions", METRICS_CHAT, true, true, false, NULL, "application/json"},
    {"/v1/completions", METRICS_COMPLETIONS, true, false, false, NULL, "application/json"},
    {"/health", METRICS_HEALTH, false, false, false, get_health, "application/json"},
    {"/metrics", METRICS_METRICS, false, false, false, get_metrics, "text/plain; version=0.0.4; charset=utf-8"},
    {"/loom/v1/status", METRICS_STATUS, false, false, false, get_status, "application/json"},
    {"/loom/v1/answers/", METRICS_ANSWERS, false, false, true, NULL, "text/event-stream"},
};

const struct route *route_find(const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        if (r->resumes ? strncmp(r->path, path, strlen(r->path)) == 0 : strcmp(r->path, path) == 0) return r;
    }
    return NULL;
}
