// Who holds which stage, and how far each is: LOAD, NEXT, HOT, ATTACH, LEAVE, HEARTBEAT.
#include "wire/control_arena.h"

#include <stdio.h>
#include <string.h>

// Messages of the holders, for as long as one put lasts.
struct holder_list {
    Loom__Holder holder[LIMIT_HOLDERS];
    Loom__Holder *at[LIMIT_HOLDERS];
};

static void put_holders(const struct control_next *m, struct holder_list *list) {
    ASSERT(m->n <= LIMIT_HOLDERS);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct control_holder *h = &m->holder[i];
        Loom__Holder *p = &list->holder[i];
        loom__holder__init(p);
        p->node = h->node;
        p->address = control_text_of(h->address);
        p->name = control_text_of(h->name);
        p->replay = h->replay;
        list->at[i] = p;
    }
}

// A holder has address and name, or neither (it is the receiver); none is there twice.
static int take_holders(const char *message, size_t n, Loom__Holder *const *from, struct control_next *m,
                        struct err *e) {
    char field[48];
    *m = (struct control_next){.n = (uint32_t)n};
    if (n > LIMIT_HOLDERS) return err_set(e, ERR_LIMIT, "%s: %zu holders, at most %d", message, n, LIMIT_HOLDERS);
    for (uint32_t i = 0; i < n; i++) {
        struct control_holder *h = &m->holder[i];
        h->node = from[i]->node;
        h->replay = from[i]->replay;
        for (uint32_t k = 0; k < i; k++)
            if (m->holder[k].node == h->node)
                return err_set(e, ERR_FORMAT, "%s: node %lu is there twice", message, h->node);
        snprintf(field, sizeof field, "%s: address", message);
        int rc = control_take_text(field, from[i]->address, h->address, sizeof h->address, e);
        snprintf(field, sizeof field, "%s: name", message);
        if (!rc) rc = control_take_text(field, from[i]->name, h->name, sizeof h->name, e);
        if (rc) return rc;
        if (!h->address[0] != !h->name[0])
            return err_set(e, ERR_FORMAT, "%s: node %lu has %s", message, h->node,
                           h->name[0] ? "a name and no address" : "an address and no name");
    }
    return ERR_OK;
}

struct control_bytes control_put_load(struct control *c, const struct control_load *m) {
    Loom__Load p = LOOM__LOAD__INIT;
    struct holder_list list;
    put_holders(&m->next, &list);
    p.n_stages = m->n_stages;
    p.a = m->a;
    p.b = m->b;
    p.n_blocks = m->n_blocks;
    p.hot = m->hot;
    p.route_key = control_binary(m->route_key, sizeof m->route_key);
    p.n_next = m->next.n;
    p.next = list.at;
    return control_pack(c, &p.base);
}

int control_get_load(struct control *c, const void *data, uint32_t len, struct control_load *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__load__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Load *p = v;
    *m = (struct control_load){.n_stages = p->n_stages, .a = p->a, .b = p->b, .n_blocks = p->n_blocks, .hot = p->hot};
    if (p->n_stages < 1 || p->n_stages > LIMIT_STAGES)
        return err_set(e, ERR_LIMIT, "LOAD: n_stages is %u, 1 to %d are right", p->n_stages, LIMIT_STAGES);
    if (p->a >= p->b || p->b > LIMIT_LAYERS)
        return err_set(e, ERR_FORMAT, "LOAD: layers [%u, %u) are none", p->a, p->b);
    rc = take_holders("LOAD", p->n_next, p->next, &m->next, e);
    return rc ? rc : control_take_exact("LOAD: route_key", &p->route_key, m->route_key, sizeof m->route_key, e);
}

struct control_bytes control_put_next(struct control *c, const struct control_next *m) {
    Loom__Next p = LOOM__NEXT__INIT;
    struct holder_list list;
    put_holders(m, &list);
    p.n_holder = m->n;
    p.holder = list.at;
    return control_pack(c, &p.base);
}

int control_get_next(struct control *c, const void *data, uint32_t len, struct control_next *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__next__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Next *p = v;
    return take_holders("NEXT", p->n_holder, p->holder, m, e);
}

struct control_bytes control_put_hot(struct control *c, bool hot) {
    Loom__Hot p = LOOM__HOT__INIT;
    p.hot = hot;
    return control_pack(c, &p.base);
}

int control_get_hot(struct control *c, const void *data, uint32_t len, bool *hot, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__hot__descriptor, data, len, &v, e);
    if (!rc) *hot = ((const Loom__Hot *)v)->hot;
    return rc;
}

struct control_bytes control_put_leave(struct control *c, bool leave, const char *why) {
    char clean[CONTROL_TEXT_MAX];
    control_text_clean(why, clean, sizeof clean);
    Loom__Leave p = LOOM__LEAVE__INIT;
    p.leave = leave;
    p.why = clean;
    return control_pack(c, &p.base);
}

int control_get_leave(struct control *c, const void *data, uint32_t len, bool *leave, char why[CONTROL_TEXT_MAX],
                      struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__leave__descriptor, data, len, &v, e);
    if (rc) return rc;
    *leave = ((const Loom__Leave *)v)->leave;
    return control_take_text("LEAVE: why", ((const Loom__Leave *)v)->why, why, CONTROL_TEXT_MAX, e);
}

struct control_bytes control_put_attach(struct control *c, const uint8_t key[CONTROL_KEY_BYTES]) {
    Loom__Attach p = LOOM__ATTACH__INIT;
    p.route_key = control_binary(key, CONTROL_KEY_BYTES);
    return control_pack(c, &p.base);
}

int control_get_attach(struct control *c, const void *data, uint32_t len, uint8_t key[CONTROL_KEY_BYTES],
                       struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__attach__descriptor, data, len, &v, e);
    if (rc) return rc;
    return control_take_exact("ATTACH: route_key", &((const Loom__Attach *)v)->route_key, key, CONTROL_KEY_BYTES, e);
}

struct control_bytes control_put_heartbeat(struct control *c, const struct control_heartbeat *m) {
    Loom__Heartbeat p = LOOM__HEARTBEAT__INIT;
    Loom__Heartbeat__Stage stage[LIMIT_NODE_STAGES], *at[LIMIT_NODE_STAGES];
    ASSERT(m->n_stages <= LIMIT_NODE_STAGES);
    for (uint32_t i = 0; i < m->n_stages; i++) {
        const struct control_stage_state *s = &m->stage[i];
        loom__heartbeat__stage__init(&stage[i]);
        stage[i].stage = s->stage;
        stage[i].hot = s->hot;
        stage[i].accepted = s->accepted;
        stage[i].done = s->done;
        stage[i].waiting_rows = s->waiting_rows;
        stage[i].lag_us = s->lag_us;
        at[i] = &stage[i];
    }
    p.time_us = m->time_us;
    p.rtt_us = m->rtt_us;
    p.loading_bytes = m->loading_bytes;
    p.memory_used_bytes = m->memory_used_bytes;
    p.slots_used = m->slots_used;
    p.blocks_used = m->blocks_used;
    p.steps = m->steps;
    p.busy_us = m->busy_us;
    p.waited = m->waited;
    p.n_stage = m->n_stages;
    p.stage = at;
    return control_pack(c, &p.base);
}

static int take_stage(const Loom__Heartbeat__Stage *p, struct control_heartbeat *m, struct err *e) {
    if (p->stage >= LIMIT_STAGES)
        return err_set(e, ERR_LIMIT, "HEARTBEAT: stage %u, the last one is %d", p->stage, LIMIT_STAGES - 1);
    for (uint32_t i = 0; i < m->n_stages; i++)
        if (m->stage[i].stage == p->stage)
            return err_set(e, ERR_FORMAT, "HEARTBEAT: stage %u is there twice", p->stage);
    m->stage[m->n_stages++] = (struct control_stage_state){.stage = p->stage,
                                                           .hot = p->hot,
                                                           .accepted = p->accepted,
                                                           .done = p->done,
                                                           .waiting_rows = p->waiting_rows,
                                                           .lag_us = p->lag_us};
    return ERR_OK;
}

int control_get_heartbeat(struct control *c, const void *data, uint32_t len, struct control_heartbeat *m,
                          struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__heartbeat__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Heartbeat *p = v;
    *m = (struct control_heartbeat){.time_us = p->time_us,
                                    .rtt_us = p->rtt_us,
                                    .loading_bytes = p->loading_bytes,
                                    .memory_used_bytes = p->memory_used_bytes,
                                    .steps = p->steps,
                                    .busy_us = p->busy_us,
                                    .waited = p->waited,
                                    .slots_used = p->slots_used,
                                    .blocks_used = p->blocks_used};
    if (p->n_stage > LIMIT_NODE_STAGES)
        return err_set(e, ERR_LIMIT, "HEARTBEAT: %zu stages, at most %d", p->n_stage, LIMIT_NODE_STAGES);
    for (size_t i = 0; i < p->n_stage && !rc; i++) rc = take_stage(p->stage[i], m, e);
    return rc;
}
