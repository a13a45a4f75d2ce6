// Nodes on this machine, started and watched by the program itself: `loom serve --local-nodes` and `loom demo`.
// One thread (the main one) calls everything here.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct local_nodes;

struct local_nodes_config {
    uint32_t n, head_port, threads;
    const char *state_dir; // of the head: makes the token; each node gets a folder in it
    const char *isa;       // NULL: auto
    uint64_t memory_bytes; // of each node
    bool verbose, quiet;
};

int local_nodes_start(const struct local_nodes_config *c, struct local_nodes **out, struct err *e) MUST_CHECK;
// Starts those that died anew, a second later each time.
void local_nodes_supervise(struct local_nodes *l);
pid_t local_nodes_pid(const struct local_nodes *l, uint32_t i); // 0: not running
void local_nodes_stop(struct local_nodes *l);                   // asks them to leave, then ends them; NULL: nothing
