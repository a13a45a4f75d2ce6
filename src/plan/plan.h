// Which node holds which layers: a pure function of nodes, model and wishes, with reasons in numbers.
// This planner splits by free memory into contiguous ranges; it gives every node of the route at least one layer.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

struct plan_node {
    uint64_t id;           // the caller's name for it
    uint64_t memory_bytes; // what Loom may use there, weights already resident included
};

struct plan_model {
    uint32_t n_layers;
    uint64_t layer_bytes[LIMIT_LAYERS]; // weights of each layer, in memory
    uint64_t embed_bytes, head_bytes;   // with the first and the last layer; a tied head counts on both
    uint64_t kv_block_bytes;            // one block of one layer
    uint64_t scratch_bytes;             // per stage
};

struct plan_wish {
    uint32_t context;    // tokens of one sequence that must fit
    uint32_t max_blocks; // never more KV blocks than this
    uint32_t max_stages; // 0: as many as there are nodes
};

struct plan_stage {
    uint64_t node;
    uint32_t a, b;
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
};

struct plan {
    uint32_t n_stages;
    struct plan_stage stage[LIMIT_STAGES];
    uint32_t n_blocks; // KV blocks, the same on every stage; at least enough for one sequence of wish->context
    uint32_t n_left_out;
    struct {
        uint64_t node;
        char why[160]; // "0.3 GB free, one layer with KV for 8192 tokens needs 0.9 GB"
    } left_out[LIMIT_NODES];
};

// Nodes are used in the order given (the first holds the embedding). ERR_LIMIT: nothing fits; the text says how many
// bytes are missing and what would make it fit (a shorter context, a further node of so many bytes).
int plan_make(const struct plan_node *nodes, uint32_t n_nodes, const struct plan_model *m, const struct plan_wish *w,
              struct plan *p, struct err *e) MUST_CHECK;
