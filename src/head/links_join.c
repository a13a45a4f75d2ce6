// How a connection becomes a node: ENROL with a one-time secret, or JOIN with a certificate.
#include "head/links_int.h"

#include "base/log.h"
#include "base/size.h"
#include "net/token.h"
#include "os/clock.h"

#include <stdio.h>
#include <string.h>

enum { COPY_SPARE_MS = 500 };

void links_enrol(struct peer *p, const struct link_frame *f) {
    struct links *k = p->links;
    struct control_enrol m;
    struct control_enrolled answer;
    char name[CA_NAME_MAX];
    size_t bytes = 0;
    struct err e;
    if (control_get_enrol(k->control, f->control, f->h.control_bytes, &m, &e)) {
        links_nonsense(p, e.text);
        return;
    }
    // The request is looked at first: a broken one must not use up the token.
    int rc = ca_issue(k->ca, m.csr, m.csr_bytes, answer.cert, &bytes, name, &e);
    if (!rc) rc = token_use(k->state_dir, m.secret, &e);
    if (rc) {
        links_refuse(p, e.text, false);
        return;
    }
    answer.cert_bytes = (uint32_t)bytes;
    answer.ca_bytes = (uint32_t)ca_certificate(k->ca, answer.ca);
    LOG_I("links", "%s is enrolled as %s", link_peer_address(p->link), name);
    p->enrolled = true;
    link_send_control(p->link, (struct frame_header){.type = FRAME_ENROLLED},
                      control_put_enrolled(k->control, &answer));
    // The node closes when it has read this; if it does not, the deadline for new connections will.
}

// Empty: the node may join.
static void reason_against(const struct links *k, const struct peer *p, const struct control_join *m, char *why,
                           size_t why_bytes) {
    why[0] = 0;
    if (strncmp(link_peer_name(p->link), "node-", 5) != 0)
        snprintf(why, why_bytes, "the certificate is not a node's");
    else if (m->ln != CONTROL_LN)
        snprintf(why, why_bytes, "it computes by version %u of the numeric contract, the head by version %d", m->ln,
                 CONTROL_LN);
    else if (m->selftest != k->selftest)
        snprintf(why, why_bytes, "its self-test gives %016lx, the head's %016lx: its numbers would be others",
                 m->selftest, k->selftest);
}

// The node that joined with the same certificate before, or NULL.
static struct peer *find_older(struct links *k, const struct peer *p) {
    LIST_EACH(it, &k->peers) {
        struct peer *old = LIST_ENTRY(it, struct peer, all);
        if (old != p && old->kind == PEER_NODE && strcmp(link_peer_name(old->link), link_peer_name(p->link)) == 0)
            return old;
    }
    return NULL;
}

// The same process again, or one that took the place of a silent one (it was killed, its cable is out), is the same
// node, and the old connection does not know yet. But while the older process is heard, this one has a copy of its
// state folder: let in, the two would throw each other out for ever.
static bool is_copy(const struct links *k, const struct peer *older, const struct control_join *m) {
    uint64_t silent_us = clock_now_us() - older->heard_us;
    return m->boot != older->boot && silent_us < 3 * k->heartbeat_us + COPY_SPARE_MS * 1000ull;
}

static void send_welcome(struct peer *p) {
    const struct links *k = p->links;
    const struct hparams *h = k->model.hparams;
    struct control_welcome w = {.node = p->id,
                                .weights = (uint32_t)k->model.mode.weights,
                                .kv = (uint32_t)k->model.mode.kv,
                                .verify = k->model.mode.verify,
                                .max_rows = k->model.max_rows,
                                .max_context = k->model.max_context,
                                .plan_hash = model_plan_hash(h, &k->model.mode),
                                .boot = k->boot,
                                .heartbeat_us = k->heartbeat_us};
    snprintf(w.model, sizeof w.model, "%s", k->model.name ? k->model.name : "");
    w.n_rope = model_rope_get(h, w.rope);
    link_send(p->link, (struct frame_header){.type = FRAME_WELCOME}, control_put_welcome(k->control, &w),
              k->model.config_json, (uint32_t)k->model.config_bytes, NULL, 0);
}

void links_join(struct peer *p, const struct link_frame *f) {
    struct links *k = p->links;
    struct control_join m;
    struct err e;
    char why[256];
    if (control_get_join(k->control, f->control, f->h.control_bytes, &m, &e)) {
        LOG_W("links", "%s may not join: %s", link_peer_address(p->link), e.text);
        links_refuse(p, e.text, false);
        return;
    }
    struct peer *older = find_older(k, p);
    bool retry = false;
    reason_against(k, p, &m, why, sizeof why);
    if (!why[0] && !older && k->nodes.count >= LIMIT_NODES) {
        snprintf(why, sizeof why, "%d nodes are joined already", LIMIT_NODES);
        retry = true;
    } else if (!why[0] && older && is_copy(k, older, &m)) {
        snprintf(why, sizeof why,
                 "a node with this certificate is joined already, from %s: each machine needs its own --state",
                 older->info.address);
        retry = true;
    }
    if (why[0]) {
        LOG_W("links", "%s (%s) may not join: %s", m.name, link_peer_address(p->link), why);
        links_refuse(p, why, retry);
        return;
    }
    if (older) links_nonsense(older, "it joined again");
    if (map_put(&k->nodes, p->id, p)) {
        links_refuse(p, "the head has no memory for it", true);
        return;
    }
    p->kind = PEER_NODE;
    p->port = m.port;
    p->boot = m.boot;
    p->heard_us = clock_now_us();
    p->info = (struct links_node){.node = p->id, .memory_bytes = m.memory_bytes};
    snprintf(p->info.name, sizeof p->info.name, "%s", m.name);
    snprintf(p->info.isa, sizeof p->info.isa, "%s", m.isa);
    snprintf(p->info.address, sizeof p->info.address, "%s", link_peer_address(p->link));
    link_settle(p->link);
    link_set_limits(p->link, LINKS_NODE_CONTROL, 0, LINKS_QUEUE_BYTES);
    send_welcome(p);
    char memory[SIZE_TEXT_BYTES];
    LOG_I("links", "node %lu joined: %s at %s, %s, %s", p->id, m.name, p->info.address, m.isa,
          size_text(m.memory_bytes, memory));
    k->handlers.joined(k->handlers.arg, p->id, m.memory_bytes);
}
