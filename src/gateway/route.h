// The paths that are served.
#pragma once
#include "gateway/gateway.h"
#include "gateway/metrics.h"

struct route_reply {
    struct buf body;
    unsigned retry_after_s; // 0: no Retry-After
};

struct route {
    const char *path;
    enum metrics_route metrics;
    bool is_post;
    bool chat;                                            // of a POST
    bool resumes;                                         // path is followed by the id of an answer: a stream of it
    int (*get)(struct gateway *g, struct route_reply *r); // of a GET: fills r, returns the status
    const char *content_type;
};

const struct route *route_find(const char *path); // NULL: there is none
