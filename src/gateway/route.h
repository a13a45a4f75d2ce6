// The paths that are served.
#pragma once
#include "gateway/gateway.h"
#include "gateway/metrics.h"

struct route {
    const char *path;
    enum metrics_route metrics;
    bool is_post;
    bool chat; // of a POST
    // Of a GET: writes the response; the status is returned.
    int (*get)(struct gateway *g, struct buf *out, unsigned *retry_after_s);
    const char *content_type;
};

const struct route *route_find(const char *path); // NULL: there is none
