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

struct msg *msg_new(enum msg_type type, uint64_t session, uint32_t epoch) {
    struct msg *m = calloc(1, sizeof *m);
    ASSERT(m, "no memory");
    m->type = type;
    m->session = session;
    m->epoch = epoch;
    return m;
}

struct msg *msg_step(const struct step *step, const struct toy_rows *rows, uint64_t session) {
    struct msg *m = msg_new(MSG_STEP, session, step->epoch);
    size_t seqs = step->n_seqs * sizeof *step->seqs, tokens = step->n_rows * sizeof *step->tokens;
    size_t blocks = step->n_blocks * sizeof *step->blocks, releases = step->n_releases * sizeof *step->releases;
    uint8_t *p = malloc(seqs + tokens + blocks + releases + 1);
    m->rows = malloc(sizeof *m->rows);
    ASSERT(p && m->rows, "no memory");
    m->memory = p;
    m->step.seqs = (struct step_seq *)(void *)p;
    m->step.tokens = (int32_t *)(void *)(p + seqs);
    m->step.blocks = (uint32_t *)(void *)(p + seqs + tokens);
    m->step.releases = (uint32_t *)(void *)(p + seqs + tokens + blocks);
    step_copy(&m->step, step);
    if (rows) {
        memcpy(m->rows->hidden, rows->hidden, step->n_rows * sizeof rows->hidden[0]);
        memcpy(m->rows->fault, rows->fault, step->n_rows * sizeof rows->fault[0]);
    }
    return m;
}

struct msg *msg_result(const struct step_result *r, uint64_t session) {
    struct msg *m = msg_new(MSG_RESULT, session, r->epoch);
    m->result = malloc(sizeof *r);
    ASSERT(m->result, "no memory");
    *m->result = *r;
    return m;
}

void msg_free(struct msg *m) {
    if (!m) return;
    free(m->memory);
    free(m->rows);
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
    net_at(n, m->deliver_us, n->link_event, link, 0);
}

void net_send(struct net *n, uint32_t from, uint32_t to, struct msg *m) {
    struct msg *twin = NULL;
    if (rng_below(&n->rng, 100) < n->twice_percent) {
        if (m->type == MSG_STEP) twin = msg_step(&m->step, m->rows, m->session);
        if (m->type == MSG_RESULT) twin = msg_result(m->result, m->session);
        if (m->type == MSG_READY) twin = msg_new(MSG_READY, m->session, m->epoch);
    }
    put(n, from * NET_ENDS + to, m);
    if (twin) put(n, from * NET_ENDS + to, twin);
}

struct msg *net_take(struct net *n, uint32_t link) {
    struct net_link *l = &n->link[link];
    if (list_is_empty(&l->queue) || n->now_us < l->cut_until_us) return NULL;
    struct msg *m = LIST_ENTRY(list_front(&l->queue), struct msg, link);
    if (m->deliver_us > n->now_us) return NULL;
    list_remove(&m->link);
    return m;
}

void net_cut(struct net *n, uint32_t link, uint64_t until_us) {
    if (until_us <= n->link[link].cut_until_us) return;
    n->link[link].cut_until_us = until_us;
    net_at(n, until_us, n->link_event, link, 0);
}

void net_drop(struct net *n, uint32_t link) {
    LIST_EACH(it, &n->link[link].queue) {
        list_remove(it);
        msg_free(LIST_ENTRY(it, struct msg, link));
    }
}
