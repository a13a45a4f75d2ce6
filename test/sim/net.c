#include "net.h"

#include <stdlib.h>
#include <string.h>

void net_init(struct net *n, uint64_t seed, int link_event) {
    *n = (struct net){.delay_us = 200, .link_event = link_event};
    rng_init(&n->rng, seed);
    for (uint32_t i = 0; i < NET_ENDS * NET_ENDS; i++) list_init(&n->link[i].queue);
}

void net_fini(struct net *n) {
    for (uint32_t i = 0; i < NET_ENDS * NET_ENDS; i++) net_drop(n, i);
    free(n->heap);
}

static bool before(const struct net_event *a, const struct net_event *b) {
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void net_at(struct net *n, uint64_t at_us, int type, uint32_t who, uint64_t what) {
    if (n->n == n->cap) {
        n->cap = n->cap ? 2 * n->cap : 256;
        n->heap = realloc(n->heap, n->cap * sizeof *n->heap);
        ASSERT(n->heap, "no memory");
    }
    struct net_event e = {at_us < n->now_us ? n->now_us : at_us, n->order++, type, who, what};
    uint32_t i = n->n++;
    for (; i > 0 && before(&e, &n->heap[(i - 1) / 2]); i = (i - 1) / 2) n->heap[i] = n->heap[(i - 1) / 2];
    n->heap[i] = e;
}

bool net_pop(struct net *n, struct net_event *e) {
    if (n->n == 0) return false;
    *e = n->heap[0];
    struct net_event last = n->heap[--n->n];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < n->n && before(&n->heap[child + 1], &n->heap[child])) child++;
        if (child >= n->n || !before(&n->heap[child], &last)) break;
        n->heap[i] = n->heap[child];
        i = child;
    }
    n->heap[i] = last;
    n->now_us = e->at_us;
    return true;
}

struct msg *msg_new(enum msg_type type, uint64_t session, uint32_t epoch, uint32_t stage) {
    struct msg *m = calloc(1, sizeof *m);
    ASSERT(m, "no memory");
    m->type = type;
    m->session = session;
    m->epoch = epoch;
    m->stage = stage;
    return m;
}

static void *copy(const void *from, size_t bytes) {
    void *to = malloc(bytes + 1);
    ASSERT(to, "no memory");
    if (bytes) memcpy(to, from, bytes);
    return to;
}

struct msg *msg_step(enum msg_type type, uint64_t session, uint32_t stage, const struct step *step, const void *hidden,
                     const uint8_t *fault) {
    struct msg *m = msg_new(type, session, step->epoch, stage);
    size_t seqs = step->n_seqs * sizeof *step->seqs, tokens = step->n_rows * sizeof *step->tokens;
    size_t blocks = step->n_blocks * sizeof *step->blocks, releases = step->n_releases * sizeof *step->releases;
    size_t rows = hidden ? step->n_rows * sizeof *m->hidden : 0, faults = hidden ? step->n_rows : 0;
    uint8_t *p = malloc(rows + seqs + tokens + blocks + releases + faults + 1);
    ASSERT(p, "no memory");
    m->memory = p;
    if (hidden) m->hidden = memcpy(p, hidden, rows);
    p += rows;
    m->step.seqs = (struct step_seq *)(void *)p;
    m->step.tokens = (int32_t *)(void *)(p + seqs);
    m->step.blocks = (uint32_t *)(void *)(p + seqs + tokens);
    m->step.releases = (uint32_t *)(void *)(p + seqs + tokens + blocks);
    step_copy(&m->step, step);
    if (hidden) m->fault = memcpy(p + seqs + tokens + blocks + releases, fault, faults);
    return m;
}

struct msg *msg_result(const struct step_result *r, uint64_t session) {
    struct msg *m = msg_new(MSG_RESULT, session, r->epoch, 0);
    m->result = copy(r, sizeof *r);
    return m;
}

struct msg *msg_action(const struct cluster_action *a) {
    struct msg *m = msg_new(MSG_ACTION, a->node, a->epoch, a->stage);
    m->action = copy(a, sizeof *a);
    return m;
}

struct msg *msg_beat(uint64_t session, uint32_t epoch, const struct cluster_stage_state *states, uint32_t n_states) {
    struct msg *m = msg_new(MSG_BEAT, session, epoch, 0);
    m->states = copy(states, n_states * sizeof *states);
    m->n_states = n_states;
    return m;
}

void msg_free(struct msg *m) {
    if (!m) return;
    free(m->memory);
    free(m->states);
    free(m->action);
    free(m->result);
    free(m);
}

static void put(struct net *n, uint32_t link, struct msg *m) {
    struct net_link *l = &n->link[link];
    m->deliver_us = n->now_us + n->delay_us / 2 + rng_below(&n->rng, n->delay_us);
    if (rng_below(&n->rng, 100) == 0) m->deliver_us += 20 * n->delay_us;
    if (m->deliver_us < l->last_us) m->deliver_us = l->last_us; // in order
    l->last_us = m->deliver_us;
    list_push_back(&l->queue, &m->link);
    l->n++;
    net_at(n, m->deliver_us, n->link_event, link, 0);
}

void net_send(struct net *n, uint32_t from, uint32_t to, struct msg *m) {
    struct msg *twin = NULL;
    if (rng_below(&n->rng, 100) < n->twice_percent) {
        if (m->type == MSG_STEP) {
            twin = msg_step(MSG_STEP, m->session, m->stage, &m->step, m->hidden, m->fault);
            twin->connection = m->connection;
            twin->stable = m->stable;
        }
        if (m->type == MSG_RESULT) twin = msg_result(m->result, m->session);
        if (m->type == MSG_READY || m->type == MSG_FED) twin = msg_new(m->type, m->session, m->epoch, m->stage);
    }
    put(n, from * NET_ENDS + to, m);
    if (twin) put(n, from * NET_ENDS + to, twin);
}

uint32_t net_waiting(const struct net *n, uint32_t from, uint32_t to) { return n->link[from * NET_ENDS + to].n; }

static void forget(struct net_link *l, struct msg *m) {
    list_remove(&m->link);
    l->n--;
    msg_free(m);
}

struct msg *net_take(struct net *n, uint32_t link) {
    struct net_link *l = &n->link[link];
    if (list_is_empty(&l->queue) || n->now_us < l->cut_until_us) return NULL;
    struct msg *m = LIST_ENTRY(list_front(&l->queue), struct msg, link);
    if (m->deliver_us > n->now_us) return NULL;
    list_remove(&m->link);
    l->n--;
    return m;
}

void net_cut(struct net *n, uint32_t link, uint64_t until_us) {
    if (until_us <= n->link[link].cut_until_us) return;
    n->link[link].cut_until_us = until_us;
    net_at(n, until_us, n->link_event, link, 0);
}

void net_drop(struct net *n, uint32_t link) {
    struct net_link *l = &n->link[link];
    LIST_EACH(it, &l->queue) forget(l, LIST_ENTRY(it, struct msg, link));
}

void net_break(struct net *n, uint32_t from, uint32_t to, uint64_t connection) {
    struct net_link *l = &n->link[from * NET_ENDS + to];
    LIST_EACH(it, &l->queue) {
        struct msg *m = LIST_ENTRY(it, struct msg, link);
        if (m->connection == connection) forget(l, m);
    }
}
