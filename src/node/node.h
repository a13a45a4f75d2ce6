// `loom node`: one per machine and device. Joins a head, holds the layers that it is told to, computes steps. It knows
// no HTTP, no text and no users. Threads: the loop (links, heartbeats), and two compute threads with workers of their
// own: one runs the steps of the stages that serve, the other one, at low priority, loads weights (hashes, fetches,
// repacks) and replays for the stages that wait.
#pragma once
#include "base/err.h"
#include "compute/backend.h"
#include <stdint.h>

struct node_config {
    const char *join;        // a join token, or HOST:PORT for a node that was enrolled before
    const char *state_dir;   // its key and certificate, and the weight cache
    const char *model_dir;   // NULL, or a folder with the model's files: tensors whose hash fits are not fetched
    const char *name;        // shown in status; NULL: the host's name
    const char *listen_addr; // for other nodes; "0.0.0.0:0": any port
    uint64_t memory_bytes;   // what may be used; 0: what the machine has free, less a tenth
    uint64_t cache_bytes;    // bound of the weight cache on disk; 0: 64 GiB
    const char *busy_when;   // a command for /bin/sh, exit code 0: the owner needs the machine; NULL: nobody asks
    uint32_t busy_every_s;   // seconds from one run of it to the next; 0: 5
    uint32_t drain_ms;       // after SIGTERM: how long to wait until others hold what this node holds; 0: not at all
    struct backend_cpu_config cpu;
    bool once; // leave when the head goes away (a local node); else reconnect until stopped
};

// Runs until SIGTERM/SIGINT (returns ERR_OK) or a failure that waiting cannot mend.
int node_run(const struct node_config *c, struct err *e) MUST_CHECK;
