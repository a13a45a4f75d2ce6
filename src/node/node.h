// `loom node`: one per machine and device. Joins a head, holds the layers that it is told to, computes steps. It knows
// no HTTP, no text and no users. Threads: the loop (links, heartbeats), and one compute thread with the device's
// workers, which also loads: hashes, fetches and repacks weights between epochs.
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
    struct backend_cpu_config cpu;
    bool once; // leave when the head goes away (a local node); else reconnect until stopped
};

// Runs until SIGTERM/SIGINT (returns ERR_OK) or a failure that waiting cannot mend.
int node_run(const struct node_config *c, struct err *e) MUST_CHECK;
