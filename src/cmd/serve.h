// What `loom serve` starts, for `loom demo` too: head, nodes on this machine, gateway.
#pragma once
#include "base/limits.h"
#include "cmd/cmd.h"
#include "cmd/local_nodes.h"
#include "gateway/gateway.h"

struct serve_flags {
    struct compute_flags compute;
    const char *listen, *cluster, *state, *config, *template_path;
    uint32_t local_nodes, min_nodes, wait_for_node_s, node_timeout_ms, suspect_ms, resume_s;
    const char *redundancy;
    bool quiet_nodes; // local nodes log errors only
};
extern const struct serve_flags serve_defaults;

struct serve {
    struct serve_flags flags;
    struct opened_model model;
    struct text_side text;
    struct head *head;
    struct gateway *gateway;
    struct local_nodes *nodes; // NULL: none
    char state[LIMIT_PATH];
};

// Starts all of it; it may not be ready to answer yet (head_wait_ready). serve_stop is needed after a failure, too.
int serve_start(struct serve *s, const char *model_path, struct err *e) MUST_CHECK;
void serve_stop(struct serve *s);
// "http://127.0.0.1:8080", as a client on this machine reaches it.
void serve_url(const struct serve *s, char *out, size_t out_bytes);
