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
    uint64_t log_block_bytes; // of the rows sent to the stage after, kept for a block; the last stage keeps none
    uint64_t scratch_bytes;   // per stage
};

struct plan_wish {
    uint32_t context;    // tokens of one sequence that must fit
    uint32_t max_blocks; // never more KV blocks than this
    uint32_t max_stages; // 0: as many as there are nodes
    bool redundant;      // every stage must find a second holder: fewer KV blocks, if need be, down to one sequence's
};

struct plan_stage {
    uint64_t node;
    uint32_t a, b;
    uint64_t weight_bytes, kv_bytes, log_bytes, scratch_bytes;
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

// What layers [a, b) with so many KV blocks take of a node's memory, as one stage.
uint64_t plan_stage_bytes(const struct plan_model *m, uint32_t a, uint32_t b, uint32_t n_blocks);

// Nodes are used in the order given (the first holds the embedding). ERR_LIMIT: nothing fits; the text says how many
// bytes are missing and what would make it fit (a shorter context, a further node of so many bytes).
int plan_make(const struct plan_node *nodes, uint32_t n_nodes, const struct plan_model *m, const struct plan_wish *w,
              struct plan *p, struct err *e) MUST_CHECK;

// --- second holders of stages

struct plan_room { // a node, and what it does already
    uint64_t node;
    uint64_t memory_bytes, used_bytes; // used: plan_stage_bytes of each stage that it holds
    uint32_t n_stages;                 // that it holds
    bool serves;                       // one of them as the one that serves it
    bool closed;                       // takes nothing new
};

// Where layers [a, b) find room: at a node that serves nothing, else at any; among those at the one that keeps the most
// memory free, the first of equals. exclude: nodes, which may be there or not. Returns an index, n_rooms: nowhere.
uint32_t plan_place(const struct plan_model *m, uint32_t a, uint32_t b, uint32_t n_blocks,
                    const struct plan_room *rooms, uint32_t n_rooms, const uint64_t *exclude, uint32_t n_exclude);
// A second holder for each stage of p, the largest stage first; rooms know already what each node serves, and are
// brought up to date. second [LIMIT_STAGES]: indices of rooms, n_rooms: none. Returns how many stages found one.
uint32_t plan_seconds(const struct plan_model *m, const struct plan *p, struct plan_room *rooms, uint32_t n_rooms,
                      uint32_t *second);
