// The head's side of the cluster's sockets: listens, enrols nodes that show a join token, accepts nodes with a
// certificate of the cluster's CA, carries out what the brain decided and reports what nodes say. It decides nothing.
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

struct links_handlers {
    void *arg;
    void (*joined)(void *arg, uint64_t node, uint64_t memory_bytes);
    void (*lost)(void *arg, uint64_t node, const char *why);
    void (*heartbeat)(void *arg, uint64_t node, uint32_t epoch, uint64_t done_step, uint64_t loading_bytes);
    void (*ready)(void *arg, uint64_t node, uint32_t epoch);
    void (*failed)(void *arg, uint64_t node, uint32_t epoch, const char *why);
    void (*result)(void *arg, const struct step_result *r);
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
    struct links_model model;
};

// ERR_UNAVAILABLE: another head has this state_dir.
int links_new(struct loop *l, const struct links_config *c, const struct links_handlers *h, struct links **out,
              struct err *e) MUST_CHECK;
void links_free(struct links *k);
uint32_t links_port(const struct links *k); // the port that was bound

void links_load(struct links *k, const struct brain_load *load);
void links_step(struct links *k, uint64_t node, const struct step *s); // copies what it needs
void links_drop(struct links *k, uint64_t node, const char *why);      // no lost() follows

struct links_node {
    uint64_t node;
    char name[64], address[64], isa[16];
    uint64_t memory_bytes, memory_used_bytes;
    uint32_t epoch, a, b;
    uint32_t blocks_used, slots_used; // as the node's last heartbeat said
    uint64_t steps, busy_us;
    uint64_t sent_bytes, received_bytes;
    double rtt_ms; // of heartbeats
};
// Fills out[0..max) and returns how many nodes are linked.
uint32_t links_nodes(const struct links *k, struct links_node *out, uint32_t max);
