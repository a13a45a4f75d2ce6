#include "state.h"

// A machine and the node on it. A frozen one takes nothing and does nothing until it thaws (handle() in world.c puts
// its events off); one whose device hangs goes on with its heartbeats.

uint32_t machine_of(const struct world *w, uint64_t session) {
    for (uint32_t i = 1; i <= w->n_machines; i++)
        if (w->machine[i]->session == session) return i;
    return 0;
}

void machine_forget(struct machine *m) {
    m->boot++;
    m->session = 0;
    m->busy = m->hung = m->stuck = false;
    m->load.epoch = 0;
    m->loaded_bytes = 0;
    msg_free(m->now);
    m->now = NULL;
    for (struct list *l; (l = list_pop_front(&m->inbox));) msg_free(LIST_ENTRY(l, struct msg, link));
}

void machine_boot(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    if (m->session) return;
    m->session = ++w->session;
    m->stage.epoch = 0;
    struct msg *join = msg_new(MSG_JOIN, m->session, 0);
    join->bytes = m->memory_bytes;
    world_tell(w, who, "joins as %llu", (unsigned long long)m->session);
    net_send(&w->net, who, 0, join);
    net_at(&w->net, w->net.now_us + HEARTBEAT, EV_BEAT, who, m->boot);
}

void machine_kill(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    if (!m->session) return;
    world_tell(w, who, "killed");
    if (world_chance(w, 50))
        for (uint32_t to = 0; to <= w->n_machines; to++) net_drop(&w->net, who * NET_ENDS + to);
    net_send(&w->net, who, 0, msg_new(MSG_RESET, m->session, 0));
    // The stage before it sees the end of its link as well, perhaps sooner than the head.
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        struct machine *o = w->machine[i];
        if (o->session && o->load.epoch && o->load.next_node == m->session && i != who && world_chance(w, 50))
            net_send(&w->net, i, 0, msg_new(MSG_FAILED, o->session, o->load.epoch));
    }
    machine_forget(m);
    net_at(&w->net, w->net.now_us + world_between(w, 50, 3000) * MS, EV_BOOT, who, 0);
}

static void machine_loads(struct world *w, uint32_t who, const struct brain_load *l) {
    struct machine *m = w->machine[who];
    world_tell(w, who, "loads epoch %u: layers %u .. %u", l->epoch, l->a, l->b);
    m->load = *l;
    m->layers_left = l->b - l->a;
    m->boot++; // what an earlier load or step had set going is void
    m->busy = m->hung = false;
    msg_free(m->now);
    m->now = NULL;
    m->stage.fault = w->fault;
    toy_load(&m->stage, w->config.model.n_layers, l->a, l->b, l->n_blocks, l->epoch);
    m->stuck = world_chance(w, w->load_fail_percent);
    if (world_chance(w, w->load_fail_percent)) {
        m->stuck = true;
        net_send(&w->net, who, 0, msg_new(MSG_FAILED, m->session, l->epoch));
    }
    net_at(&w->net, w->net.now_us + world_between(w, 1, 20) * MS, EV_LAYER, who, m->boot);
    net_at(&w->net, w->net.now_us + HEARTBEAT, EV_BEAT, who, m->boot);
}

void machine_layer(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    if (m->stuck) return;
    m->loaded_bytes += 100;
    if (--m->layers_left) {
        net_at(&w->net, w->net.now_us + world_between(w, 1, 40) * MS, EV_LAYER, who, m->boot);
        return;
    }
    world_tell(w, who, "ready for epoch %u", m->load.epoch);
    net_send(&w->net, who, 0, msg_new(MSG_READY, m->session, m->load.epoch));
}

void machine_beat(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    struct msg *b = msg_new(MSG_BEAT, m->session, m->stage.epoch);
    b->done_step = m->stage.last_step;
    b->bytes = m->loaded_bytes;
    net_send(&w->net, who, 0, b);
    net_at(&w->net, w->net.now_us + HEARTBEAT, EV_BEAT, who, m->boot);
}

// Takes what has arrived, in order, until there is a step to compute.
static void machine_goes_on(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    while (!m->busy && !list_is_empty(&m->inbox)) {
        struct msg *g = LIST_ENTRY(list_pop_front(&m->inbox), struct msg, link);
        if (g->session != m->session) {
            msg_free(g);
        } else if (g->type == MSG_CLOSE) {
            world_tell(w, who, "was dropped");
            msg_free(g);
            machine_forget(m);
            net_at(&w->net, w->net.now_us + world_between(w, 20, 1500) * MS, EV_BOOT, who, 0);
        } else if (g->type == MSG_LOAD) {
            if (g->load.epoch > m->load.epoch) machine_loads(w, who, &g->load);
            msg_free(g);
        } else {
            ASSERT(g->type == MSG_STEP, "message %d to a node", g->type);
            m->now = g;
            m->busy = true;
            uint64_t cost = m->slow * (world_between(w, 500, 2000) + g->step.n_rows * 20u);
            net_at(&w->net, w->net.now_us + cost, EV_DONE, who, m->boot);
        }
    }
}

void machine_done(struct world *w, uint32_t who) {
    struct machine *m = w->machine[who];
    if (m->hung) return; // it beats, but the step never ends
    struct msg *g = m->now;
    struct err e;
    static struct step_result result;
    m->now = NULL;
    m->busy = false;
    switch (toy_run(&m->stage, &g->step, g->rows, &result, &e)) {
    case TOY_DROPPED:
        w->stats->n_stale_frames++;
        break;
    case TOY_BROKEN:
        world_broken(w, "node %u, epoch %u: %s", who, g->step.epoch, e.text);
        break;
    case TOY_RUN:
        world_tell(w, who, "step %llu of epoch %u", (unsigned long long)g->step.id, g->step.epoch);
        if (m->stage.b == m->stage.n_layers) {
            net_send(&w->net, who, 0, msg_result(&result, m->session));
        } else {
            uint32_t next = machine_of(w, m->load.next_node);
            if (next) net_send(&w->net, who, next, msg_step(&g->step, g->rows, m->load.next_node));
        }
    }
    msg_free(g);
    machine_goes_on(w, who);
}

// LOAD and CLOSE end what is being computed and void the frames that wait behind it.
void machine_takes(struct world *w, uint32_t who, struct msg *g) {
    struct machine *m = w->machine[who];
    if (!m->session || g->session != m->session) {
        msg_free(g);
        return;
    }
    if (m->busy && g->type != MSG_STEP) {
        m->boot++;
        m->busy = false;
        msg_free(m->now);
        m->now = NULL;
        net_at(&w->net, w->net.now_us + HEARTBEAT, EV_BEAT, who, m->boot);
        for (struct list *l; (l = list_pop_front(&m->inbox));) msg_free(LIST_ENTRY(l, struct msg, link));
    }
    list_push_back(&m->inbox, &g->link);
    machine_goes_on(w, who);
}
