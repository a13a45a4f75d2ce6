// The head's side of the cluster's sockets: listens, enrols nodes that show a join token, accepts nodes with a
// certificate of the cluster's CA, carries out what the brain decided and reports what nodes say. It decides nothing.
// It keeps what was sent to stage 0 in this epoch, so that a node that starts empty can be filled (replay/sent.h).
//
// Everything here is called on the loop's thread, and the handlers are called there.
#pragma once
#include "base/buf.h"
#include "base/step.h"
#include "head/brain.h"
#include "model/model.h"
#include "net/loop.h"
#include "weights/tensors.h"

struct links;

struct links_handlers { // as in brain.h
    void *arg;
    void (*joined)(void *arg, uint64_t node, uint64_t memory_bytes);
    void (*lost)(void *arg, uint64_t node, const char *why);
    void (*heartbeat)(void *arg, uint64_t node, uint32_t epoch, const struct cluster_stage_state *states,
                      uint32_t n_states, uint64_t loading_bytes);
    void (*ready)(void *arg, uint64_t node, uint32_t epoch, uint32_t stage);
    void (*fed)(void *arg, uint64_t node, uint32_t epoch, uint32_t stage);
    // node may be CLUSTER_HEAD: the replay that the last FEED asked for cannot be given.
    void (*failed)(void *arg, uint64_t node, uint32_t epoch, uint32_t stage, enum stage_failure what, const char *why);
    void (*leave)(void *arg, uint64_t node, bool leave, const char *why);
    void (*result)(void *arg, uint64_t node, const struct step_result *r);
};

// What every node must know about the model to compute its part; sent when it joins.
struct links_model {
    const char *name;
    const char *config_json; // the model's config.json, as it is
    uint64_t config_bytes;
    const struct hparams *hparams; // with RoPE bits: they travel
    struct run_mode mode;
    uint32_t max_rows, max_context;
    const struct tensors *tensors; // served to nodes that lack them, by name, with SHA-256
};

struct links_config {
    const char *state_dir;   // CA, tokens: made at first start
    const char *listen_addr; // "0.0.0.0:7701"; port 0: any
    uint64_t heartbeat_us;
    uint64_t boot; // names the weights that nodes may still have from an earlier process; 0: none, draw one
    struct links_model model;
};

// ERR_UNAVAILABLE: another head has this state_dir.
int links_new(struct loop *l, const struct links_config *c, const struct links_handlers *h, struct links **out,
              struct err *e) MUST_CHECK;
void links_free(struct links *k);
uint32_t links_port(const struct links *k); // the port that was bound

// LOAD, NEXT, FEED, HOT, UNLOAD, MAY_LEAVE, DROP_NODE; no lost() follows the last.
void links_act(struct links *k, const struct cluster_action *a);
// Of the epoch of the last LOAD: goes to all nodes that the last FEED named, now or when they can take it. Copied.
void links_step(struct links *k, const struct step *s);
void links_stable(struct links *k, uint64_t step); // brain_stable: goes with the next steps

struct links_node {
    uint64_t node;
    char name[64], address[64], isa[16];
    uint64_t memory_bytes, memory_used_bytes;
    uint32_t epoch, n_stages;
    struct links_stage { // what it was told to hold, and how far it said it is
        uint32_t stage, a, b;
        bool hot, last;
        uint64_t accepted, done, lag_us;
        uint32_t waiting_rows;
    } stage[LIMIT_NODE_STAGES];
    uint32_t blocks_used, slots_used; // as the node's last heartbeat said
    uint64_t steps, busy_us, waited;
    uint64_t sent_bytes, received_bytes;
    double rtt_ms;      // of heartbeats
    uint64_t silent_us; // since its last frame
};
// Fills out[0..max) and returns how many nodes are linked.
uint32_t links_nodes(const struct links *k, struct links_node *out, uint32_t max);
uint64_t links_waited(const struct links *k); // `waited` of all nodes, those that are gone included
