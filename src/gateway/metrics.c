#include "gateway/metrics.h"

static const int statuses[METRICS_STATUSES] = {200, 400, 404, 405, 413, 415, 429, 499, 500, 501, 503, 0};
static const char *const routes[METRICS_ROUTES] = {"/v1/models", "/v1/chat/completions", "/v1/completions",  "/health",
                                                   "/metrics",   "/loom/v1/status",      "/loom/v1/answers", "other"};

void metrics_count(struct metrics *m, enum metrics_route route, int status) {
    int i = 0;
    while (i < METRICS_STATUSES - 1 && statuses[i] != status) i++;
    m->requests[route][i]++;
}

static int add_requests(const struct metrics *m, struct buf *out) {
    int rc = buf_addf(out, "# HELP loom_http_requests_total Requests answered; code 499: the client went away first.\n"
                           "# TYPE loom_http_requests_total counter\n");
    for (int r = 0; r < METRICS_ROUTES && !rc; r++) {
        for (int s = 0; s < METRICS_STATUSES && !rc; s++) {
            uint64_t n = m->requests[r][s];
            if (n == 0) continue;
            rc = buf_addf(out, "loom_http_requests_total{path=\"%s\",code=\"%d\"} %llu\n", routes[r], statuses[s],
                          (unsigned long long)n);
        }
    }
    return rc;
}

int metrics_add(const struct metrics *m, struct buf *out) {
    const struct {
        const char *name, *type, *help;
        double value;
    } lines[] = {
        {"loom_http_connections", "gauge", "Connections open now.", (double)m->connections},
        {"loom_http_streams", "gauge", "Answers being streamed now.", (double)m->streams},
        {"loom_http_disconnects_total", "counter", "Clients that went away before the end.", (double)m->disconnects},
        {"loom_http_stalls_total", "counter", "Readers of streams cut off because they took nothing.",
         (double)m->stalls},
        {"loom_http_resumes_total", "counter", "Streams that a client came back for.", (double)m->resumes},
        {"loom_http_late_total", "counter", "Connections cut off because a header or body did not come in time.",
         (double)m->late_headers},
        {"loom_prompt_tokens_total", "counter", "Tokens of prompts accepted.", (double)m->prompt_tokens},
        {"loom_completion_tokens_total", "counter", "Tokens delivered.", (double)m->completion_tokens},
        {"loom_first_token_seconds_count", "counter", "Answers that began.", (double)m->first_tokens},
        {"loom_first_token_seconds_sum", "counter", "Their waits from request to first token, added up.",
         (double)m->first_token_us / 1e6},
    };
    int rc = add_requests(m, out);
    for (size_t i = 0; i < sizeof lines / sizeof *lines && !rc; i++) {
        rc = buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.16g\n", lines[i].name, lines[i].help, lines[i].name,
                      lines[i].type, lines[i].name, lines[i].value);
    }
    return rc;
}
