#include "state.h"

#include <string.h>

// A machine and the node on it. A frozen one takes nothing and does nothing until it thaws (handle() in world.c puts
// its events off); one whose device hangs goes on with its heartbeats.

uint32_t machine_of(const struct world *w, uint64_t session) {
    for (uint32_t i = 1; i <= w->n_machines; i++)
        if (w->machine[i]->session == session) return i;
    return 0;
}

// An event that is void if the machine does not live that long.
void machine_at(struct world *w, struct machine *m, uint64_t in_us, int type, uint32_t what) {
    net_at(&w->net, w->net.now_us + in_us, type, m->who, m->boot << 32 | what);
}

void machine_send(struct world *w, struct machine *m, enum msg_type type, uint32_t epoch, uint32_t stage) {
    net_send(&w->net, m->who, 0, msg_new(type, m->session, epoch, stage));
}

void machine_forget(struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (m->parts[i].id) part_free(&m->parts[i]);
    m->boot++;
    m->session = m->loaded_bytes = m->stable = 0;
    m->epoch = m->n_resident = 0;
    m->leaving = m->may_leave = false;
    m->hot = m->lazy = (struct thread){0};
    memset(m->incoming, 0, sizeof m->incoming);
}

void machine_boot(struct world *w, struct machine *m) {
    if (m->session) return;
    m->session = ++w->session;
    for (uint32_t i = 1; i <= w->n_machines; i++)
        for (uint32_t k = 0; k < CONNECTIONS_MAX; k++)
            if (w->machine[i]->incoming[k].from == m->who) w->machine[i]->incoming[k] = (struct incoming){0};
    struct msg *join = msg_new(MSG_JOIN, m->session, 0, 0);
    join->bytes = m->memory_bytes;
    world_tell(w, m->who, "joins as %llu", (unsigned long long)m->session);
    net_send(&w->net, m->who, 0, join);
    machine_at(w, m, HEARTBEAT, EV_BEAT, 0);
}

// Those who send it steps see the end of their links as well, sooner or later than the head.
static void tell_neighbours(struct world *w, const struct machine *m) {
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        struct machine *o = w->machine[i];
        for (uint32_t k = 0; k < PARTS_MAX && o != m; k++)
            for (uint32_t j = 0; o->parts[k].id && j < o->parts[k].n_next; j++)
                if (o->parts[k].next[j].node == m->session && world_chance(w, 80))
                    machine_at(w, o, world_between(w, 0, 5000), EV_DOWN, (uint32_t)o->parts[k].next[j].connection);
    }
}

void machine_kill(struct world *w, struct machine *m) {
    if (!m->session) return;
    world_tell(w, m->who, "killed");
    if (world_chance(w, 50))
        for (uint32_t to = 0; to <= w->n_machines; to++) net_drop(&w->net, m->who * NET_ENDS + to);
    machine_send(w, m, MSG_RESET, 0, 0);
    tell_neighbours(w, m);
    if (w->watch_until_us) world_disturb(w, w->net.now_us + WATCH);
    machine_forget(m);
    net_at(&w->net, w->net.now_us + world_between(w, 50, 3000) * MS, EV_BOOT, m->who, 0);
}

void machine_beat(struct world *w, struct machine *m) {
    struct cluster_stage_state states[PARTS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        const struct part *p = &m->parts[i];
        struct holder_counts c;
        if (!p->id || p->state == PART_ENDED) continue;
        holder_counts(p->holder, &c);
        states[n++] = (struct cluster_stage_state){p->stage, c.accepted, c.done, c.waiting_rows * 20u};
    }
    struct msg *b = msg_beat(m->session, m->epoch, states, n);
    b->bytes = m->loaded_bytes;
    net_send(&w->net, m->who, 0, b);
    machine_at(w, m, HEARTBEAT, EV_BEAT, 0);
    feed_check(w, m);
    feed_pump_all(w, m);
    part_pump(w, m);
}

void machine_leaves(struct world *w, struct machine *m) {
    if (!m->session || m->leaving) return;
    world_tell(w, m->who, "wants to leave");
    m->leaving = true;
    struct msg *g = msg_new(MSG_LEAVE, m->session, 0, 0);
    g->leave = true;
    net_send(&w->net, m->who, 0, g);
    if (world_chance(w, 30)) machine_at(w, m, world_between(w, 1, 2000) * MS, EV_RETURN, 0);
}

void machine_returns(struct world *w, struct machine *m) {
    if (!m->leaving) return;
    world_tell(w, m->who, "is free again");
    m->leaving = m->may_leave = false;
    machine_send(w, m, MSG_LEAVE, 0, 0);
}

// Whoever was told this is needed by nobody: it may be switched off without a word.
static void may_leave(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        const struct part *p = &m->parts[i];
        if (p->id && p->state != PART_ENDED && p->epoch == w->epoch && w->route_up && m->leaving)
            world_broken(w, "node %u may leave, and holds stage %u of epoch %u", m->who, p->stage, p->epoch);
    }
    m->may_leave = true;
    world_tell(w, m->who, "may leave");
    if (world_chance(w, 50))
        machine_at(w, m, world_between(w, 0, 20) * MS, EV_KILL, 0);
    else
        machine_at(w, m, world_between(w, 100, 2000) * MS, EV_RETURN, 0);
}

static void obey(struct world *w, struct machine *m, const struct cluster_action *a) {
    struct part *p = part_find(m, a->epoch, a->stage);
    switch (a->type) {
    case CLUSTER_LOAD:
        if (a->epoch >= m->epoch) part_load(w, m, a);
        break;
    case CLUSTER_NEXT:
        if (!p) break;
        feed_set_next(w, p, a);
        part_check_ready(w, p);
        break;
    case CLUSTER_HOT:
        if (p) part_hot(w, p, a->hot);
        break;
    case CLUSTER_UNLOAD:
        if (p) part_end(w, p);
        break;
    case CLUSTER_MAY_LEAVE:
        may_leave(w, m);
        break;
    case CLUSTER_FEED:
    case CLUSTER_DROP_NODE:
    case CLUSTER_ROUTE_UP:
    case CLUSTER_ROUTE_DOWN:
        ASSERT(false, "action %d for a node", a->type);
    }
    part_pump(w, m);
}

void machine_takes(struct world *w, struct machine *m, uint32_t from, struct msg *g) {
    bool current = m->session && g->session == m->session;
    if (current && g->type == MSG_CLOSE) {
        world_tell(w, m->who, "was dropped");
        tell_neighbours(w, m);
        machine_forget(m);
        net_at(&w->net, w->net.now_us + world_between(w, 20, 1500) * MS, EV_BOOT, m->who, 0);
    } else if (current && g->type == MSG_ACTION) {
        obey(w, m, g->action);
    } else if (current && g->type == MSG_ATTACH) {
        feed_attach(w, m, from, g);
    } else if (current && g->type == MSG_ATTACHED) {
        feed_attached(w, m, g->connection);
    } else if (current) {
        feed_arrived(w, m, g);
    }
    msg_free(g);
}
