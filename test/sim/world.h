// A whole cluster in one process under one seed: the real brain, toy nodes, simulated machines, links and clients, and
// whatever chance does to them. The checker compares every answer with the oracle and looks for leaks at the end.
#pragma once
#include "toy.h"

struct world_stats {
    uint64_t n_requests, n_finished, n_cancelled, n_faults, n_unavailable, n_refused;
    uint64_t n_tokens, n_steps, n_preemptions, n_route_changes, n_nodes_lost, n_stale_frames;
    uint64_t n_promotions, n_suspicions, n_false_alarms, n_drained;
    uint64_t n_replays, n_chunks, n_lost_cursors, n_log_full, n_no_replay;
    uint64_t n_watched; // losses that must not end the epoch, nor do soon
    uint64_t n_gaps;    // steps that a node could not take
    uint64_t simulated_us;
};

// Runs one seed; fault is planted into every toy node. True: all promises held. Otherwise why [why_bytes] says which
// one did not, and trace (a FILE, may be NULL) gets the last events of the head and of every node.
bool world_run(uint64_t seed, enum toy_fault fault, struct world_stats *stats, char *why, size_t why_bytes,
               void *trace);
