#include "state.h"

#include <string.h>

// The head: carries out what the brain says, feeds it what nodes say, and checks both.

// --- what the brain was told of nodes, and whether they could serve

// Feasible here means: even if each node had to carry embedding and head and all layers were as large as the largest,
// there would be room. Then a plan exists in any order of the nodes.
static void look_at_peers(struct world *w) {
    const struct plan_model *m = &w->config.model;
    uint64_t blocks = (w->config.wish.context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint64_t layer = LAYER_BYTES_MAX + blocks * m->kv_block_bytes, n_layers = 0;
    uint64_t fixed = m->embed_bytes + m->head_bytes + m->scratch_bytes;
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (w->peers[i].memory_bytes > fixed && !w->peers[i].leaving)
            n_layers += (w->peers[i].memory_bytes - fixed) / layer;
    w->feasible = n_layers >= m->n_layers;
}

static void peer_joined(struct world *w, uint64_t session, uint64_t memory_bytes) {
    ASSERT(w->n_peers < 64, "too many peers");
    w->peers[w->n_peers++] = (struct peer){session, memory_bytes, false};
    look_at_peers(w);
}

static void peer_left(struct world *w, uint64_t session) {
    for (uint32_t i = 0; i < w->n_peers; i++) {
        if (w->peers[i].session != session) continue;
        for (; i + 1 < w->n_peers; i++) w->peers[i] = w->peers[i + 1];
        w->n_peers--;
    }
    look_at_peers(w);
}

static void peer_leaves(struct world *w, uint64_t session, bool leave) {
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (w->peers[i].session == session) w->peers[i].leaving = leave;
    look_at_peers(w);
}

// --- what the brain says

static void check_event(struct world *w, const struct gen_event *e) {
    struct request *q = e->id >= 1 && e->id <= w->n_requests ? &w->requests[e->id - 1] : NULL;
    unsigned long long id = e->id;
    if (!q || !q->submitted || q->ended) {
        world_broken(w, "request %llu: an event after its end, or before its begin", id);
        return;
    }
    if (e->index != q->n_got) world_broken(w, "request %llu: event %u, %u tokens so far", id, e->index, q->n_got);
    if (e->token >= 0 && (q->n_got >= q->n_answer || q->answer[q->n_got] != e->token))
        world_broken(w, "request %llu: token %u is %d, the oracle says %d of %u", id, q->n_got, e->token,
                     q->n_got < q->n_answer ? q->answer[q->n_got] : -1, q->n_answer);
    if (e->token >= 0) q->n_got++;
    if (e->token >= 0) w->stats->n_tokens++;
    if (e->finish == GEN_GOING) return;
    q->ended = true;
    w->n_open--;
    world_tell(w, 0, "request %llu ends: finish %d, code %d, %u tokens", id, e->finish, e->code, q->n_got);
    if (e->finish == GEN_CANCELLED) {
        if (!q->cancelled) world_broken(w, "request %llu: cancelled by nobody", id);
        w->stats->n_cancelled++;
    } else if (e->finish == GEN_FAILED && e->code == ERR_UNAVAILABLE) {
        if (w->feasible || w->route_up || w->net.now_us - w->no_route_since_us < w->config.wait_for_node_us)
            world_broken(w, "request %llu: refused (%s), though machines were there", id, e->text);
        w->stats->n_unavailable++;
    } else {
        if (e->finish == GEN_FAILED && e->code != ERR_NUMERIC) world_broken(w, "request %llu: %s", id, e->text);
        if (e->finish != q->finish || q->n_got != q->n_answer)
            world_broken(w, "request %llu: finish %d after %u tokens, the oracle says %d after %u", id, e->finish,
                         q->n_got, q->finish, q->n_answer);
        w->stats->n_finished += e->finish != GEN_FAILED;
        w->stats->n_faults += e->finish == GEN_FAILED;
    }
}

// Steps to all holders of stage 0, as far as their links take them.
static void pump(struct world *w, struct feed *f) {
    uint32_t to = machine_of(w, f->node);
    struct sent_piece p;
    struct err e;
    while (f->cursor && to && net_waiting(&w->net, 0, to) < ROOM) {
        enum sent_kind kind = sent_next(f->cursor, &p);
        if (kind == SENT_NOTHING) return;
        if (kind == SENT_LOST) {
            world_tell(w, 0, "node %llu was too slow", (unsigned long long)f->node);
            w->stats->n_lost_cursors++;
            sent_close(f->cursor);
            f->cursor = NULL;
            if (sent_open(w->sent, true, &f->cursor, &e))
                brain_node_failed(w->brain, w->net.now_us, CLUSTER_HEAD, w->feed_epoch, 0, STAGE_NO_REPLAY, e.text);
            continue;
        }
        struct msg *m = msg_step(kind == SENT_REPLAY ? MSG_REPLAY : MSG_STEP, f->node, 0, p.what, NULL, NULL);
        m->epoch = m->step.epoch = w->feed_epoch;
        m->step.id = p.step;
        m->connection = HEAD_CONNECTION;
        m->stable = brain_stable(w->brain);
        m->first = p.first;
        m->last = p.last;
        net_send(&w->net, 0, to, m);
    }
}

void head_pump(struct world *w) {
    for (uint32_t i = 0; i < w->n_feeds; i++) pump(w, &w->feed[i]);
}

static void carry_feed(struct world *w, const struct cluster_action *a) {
    struct feed old[LIMIT_HOLDERS];
    uint32_t n_old = w->n_feeds;
    struct err e;
    if (a->epoch != w->feed_epoch) {
        sent_reset(w->sent);
        n_old = 0;
    }
    w->feed_epoch = a->epoch;
    memcpy(old, w->feed, sizeof old);
    for (uint32_t i = 0; i < a->n_next; i++) {
        struct feed *f = &w->feed[i];
        *f = (struct feed){.node = a->next[i].node};
        for (uint32_t k = 0; k < n_old; k++) {
            if (old[k].node != f->node || a->next[i].replay) continue;
            f->cursor = old[k].cursor;
            old[k].cursor = NULL;
        }
        world_tell(w, 0, "feed node %llu%s", (unsigned long long)f->node, a->next[i].replay ? " with a replay" : "");
        if (!f->cursor && sent_open(w->sent, a->next[i].replay, &f->cursor, &e)) {
            f->cursor = NULL;
            w->stats->n_no_replay++;
            brain_node_failed(w->brain, w->net.now_us, CLUSTER_HEAD, a->epoch, 0, STAGE_NO_REPLAY, e.text);
        }
    }
    for (uint32_t k = 0; k < n_old; k++) sent_close(old[k].cursor);
    w->n_feeds = a->n_next;
}

static void carry_step(struct world *w, const struct step *s) {
    struct err e;
    if (s->epoch != w->epoch || s->id != w->step + 1)
        world_broken(w, "step %llu of epoch %u follows step %llu of epoch %u", (unsigned long long)s->id, s->epoch,
                     (unsigned long long)w->step, w->epoch);
    w->step = s->id;
    if (step_check(s, TOY_VOCAB, w->config.wish.max_blocks, &e))
        world_broken(w, "the head made a bad step: %s", e.text);
    if (s->n_rows > w->config.chunk_rows) world_broken(w, "a step of %u rows", s->n_rows);
    world_tell(w, 0, "step %llu: %u seqs, %u rows, %u releases; stable %llu", (unsigned long long)s->id, s->n_seqs,
               s->n_rows, s->n_releases, (unsigned long long)brain_stable(w->brain));
    w->stats->n_steps++;
    if (sent_step(w->sent, s, NULL, NULL, &e)) w->stats->n_log_full++;
}

static void carry_event(struct world *w, const struct gen_event *e) {
    bool struck = e->token >= 0 && ++w->n_events % 50 == 0;
    if (struck && w->fault == TOY_LOSE_EVENT) return;
    check_event(w, e);
    if (struck && w->fault == TOY_REPEAT_EVENT) check_event(w, e);
}

// A better route may be taken when there is nothing to do.
static bool is_busy(struct world *w) {
    static struct brain_status s;
    brain_status(w->brain, &s);
    return s.n_running + s.n_waiting > 0;
}

static void carry_action(struct world *w, const struct cluster_action *a) {
    static const char *const name[] = {"load", "next", "feed", "hot", "unload", "may leave"};
    uint32_t to = machine_of(w, a->node);
    switch (a->type) {
    case CLUSTER_LOAD:
    case CLUSTER_NEXT:
    case CLUSTER_HOT:
    case CLUSTER_UNLOAD:
    case CLUSTER_MAY_LEAVE:
        world_tell(
            w, 0, "node %llu: %s stage %u of epoch %u%s; next %llu%s, %llu%s", (unsigned long long)a->node,
            name[a->type], a->stage, a->epoch, a->hot ? ", hot" : "",
            (unsigned long long)(a->n_next > 0 ? a->next[0].node : 0), a->n_next > 0 && a->next[0].replay ? "*" : "",
            (unsigned long long)(a->n_next > 1 ? a->next[1].node : 0), a->n_next > 1 && a->next[1].replay ? "*" : "");
        if (to) net_send(&w->net, 0, to, msg_action(a));
        break;
    case CLUSTER_FEED:
        carry_feed(w, a);
        break;
    case CLUSTER_DROP_NODE:
        world_tell(w, 0, "drop node %llu: %s", (unsigned long long)a->node, a->why);
        peer_left(w, a->node);
        if (to) net_send(&w->net, 0, to, msg_new(MSG_CLOSE, a->node, 0, 0));
        break;
    case CLUSTER_ROUTE_UP:
        world_tell(w, 0, "route up: epoch %u, %u stages", a->epoch, a->n_stages);
        if (a->epoch <= w->epoch) world_broken(w, "epoch %u follows epoch %u", a->epoch, w->epoch);
        if (a->epoch != w->feed_epoch) world_broken(w, "epoch %u is up, and nobody is fed", a->epoch);
        w->epoch = a->epoch;
        w->step = 0;
        w->was_up = w->route_up = true;
        break;
    case CLUSTER_ROUTE_DOWN:
        if (w->route_up) w->no_route_since_us = w->net.now_us;
        if (w->net.now_us < w->watch_until_us && is_busy(w))
            world_broken(w, "epoch %u ends (%s), though a node was lost whose stages others held", w->epoch, a->why);
        w->route_up = false;
        world_tell(w, 0, "route down: %s", a->why);
        break;
    }
}

void head_carries_out(struct world *w) {
    struct brain_action a;
    while (brain_next(w->brain, &a)) {
        switch (a.type) {
        case ACT_CLUSTER:
            carry_action(w, &a.cluster);
            break;
        case ACT_STEP:
            carry_step(w, a.step);
            break;
        case ACT_EVENT:
            carry_event(w, &a.event);
            break;
        }
    }
    if (w->route_up && w->feed_epoch == w->epoch) sent_stable(w->sent, brain_stable(w->brain));
    head_pump(w);
    uint64_t due = brain_deadline_us(w->brain);
    if (due == UINT64_MAX || due == w->tick_us) return;
    w->tick_us = due;
    net_at(&w->net, due, EV_TICK, 0, 0);
}

// --- what nodes say

static bool is_leaving(const struct world *w, uint64_t session) {
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (w->peers[i].session == session) return w->peers[i].leaving;
    return true;
}

// Whether each stage would still have a holder that can go on at once.
static bool can_do_without(struct world *w, uint64_t node) {
    static struct brain_status s;
    brain_status(w->brain, &s);
    if (!s.route_up || s.n_running + s.n_waiting == 0) return false; // idle: a better route may be taken
    for (uint32_t i = 0; i < s.n_stages; i++) {
        const struct cluster_stage *stage = &s.cluster.stage[i];
        bool any = false;
        for (uint32_t k = 0; k < stage->n; k++)
            any |= stage->holder[k].node != node && stage->holder[k].phase == HOLDING_LEVEL &&
                   !is_leaving(w, stage->holder[k].node);
        if (!any) return false;
    }
    return true;
}

static void node_lost(struct world *w, uint64_t node) {
    bool can = can_do_without(w, node);
    uint32_t epoch = w->epoch;
    static struct brain_status s;
    world_tell(w, 0, "node %llu: link reset", (unsigned long long)node);
    peer_left(w, node);
    brain_node_lost(w->brain, w->net.now_us, node, "link reset");
    brain_status(w->brain, &s);
    if (can && (!s.route_up || s.epoch != epoch))
        world_broken(w, "node %llu is lost, others hold what it held, and epoch %u ends", (unsigned long long)node,
                     epoch);
    if (!can || w->load_fail_percent || w->net.now_us < w->disturbed_until_us) {
        world_disturb(w, w->net.now_us + WATCH);
        return;
    }
    w->watch_until_us = w->net.now_us + WATCH;
    w->stats->n_watched++;
}

void head_takes(struct world *w, struct msg *m) {
    uint64_t now = w->net.now_us;
    switch (m->type) {
    case MSG_JOIN:
        world_tell(w, 0, "node %llu joined", (unsigned long long)m->session);
        peer_joined(w, m->session, m->bytes);
        brain_node_joined(w->brain, now, m->session, m->bytes);
        break;
    case MSG_BEAT:
        brain_heartbeat(w->brain, now, m->session, m->epoch, m->states, m->n_states, m->bytes);
        break;
    case MSG_READY:
        brain_node_ready(w->brain, now, m->session, m->epoch, m->stage);
        break;
    case MSG_FED:
        world_tell(w, 0, "node %llu is fed for stage %u", (unsigned long long)m->session, m->stage);
        brain_node_fed(w->brain, now, m->session, m->epoch, m->stage);
        break;
    case MSG_FAILED:
        world_tell(w, 0, "node %llu: stage %u failed%s", (unsigned long long)m->session, m->stage,
                   m->failure == STAGE_NO_REPLAY ? ": no replay"
                   : m->failure == STAGE_GAP     ? ": a gap"
                                                 : "");
        brain_node_failed(w->brain, now, m->session, m->epoch, m->stage, m->failure, "planted");
        break;
    case MSG_LEAVE:
        world_tell(w, 0, "node %llu %s", (unsigned long long)m->session, m->leave ? "wants to leave" : "is back");
        peer_leaves(w, m->session, m->leave);
        brain_node_leave(w->brain, now, m->session, m->leave, "its machine is wanted back");
        break;
    case MSG_RESULT:
        brain_step_result(w->brain, now, m->session, m->result);
        break;
    case MSG_RESET:
        node_lost(w, m->session);
        break;
    case MSG_ACTION:
    case MSG_CLOSE:
    case MSG_STEP:
    case MSG_REPLAY:
    case MSG_ATTACH:
    case MSG_ATTACHED:
        ASSERT(false, "message %d to the head", m->type);
    }
    msg_free(m);
    head_carries_out(w);
}

// --- the end

// Everybody who is level has everything, and when that is computed nothing is left: no slot, no block, no row.
static void check_part(struct world *w, struct part *p) {
    struct holder_counts c;
    holder_counts(p->holder, &c);
    uint32_t who = p->machine->who;
    if (c.accepted != w->step)
        world_broken(w, "at the end node %u has step %llu of stage %u, %llu were sent", who,
                     (unsigned long long)c.accepted, p->stage, (unsigned long long)w->step);
    holder_stable(p->holder, c.accepted);
    if (p->sent) sent_stable(p->sent, c.accepted);
    holder_set_chunk(p->holder, 1);
    part_run_all(w, p);
    if (toy_slots_used(p->toy) || toy_blocks_used(p->toy))
        world_broken(w, "at the end node %u holds %u slots, %u blocks of stage %u", who, toy_slots_used(p->toy),
                     toy_blocks_used(p->toy), p->stage);
    if (!p->sent) return;
    struct sent_counts s;
    feed_close_all(p);
    sent_counts(p->sent, &s);
    if (s.n_slots || s.n_steps)
        world_broken(w, "at the end node %u keeps %u sequences, %u steps of stage %u", who, s.n_slots, s.n_steps,
                     p->stage);
}

void head_check_end(struct world *w) {
    static struct brain_status s;
    brain_status(w->brain, &s);
    if (w->n_open)
        world_broken(w, "%u requests never ended (route %s, epoch %u, %u running, %u waiting): %s", w->n_open,
                     s.route_up ? "up" : "down", s.epoch, s.n_running, s.n_waiting, s.why_down);
    if (!w->n_open && (s.n_running || s.n_waiting || s.blocks_used))
        world_broken(w, "at the end %u run, %u wait, %u blocks are used", s.n_running, s.n_waiting, s.blocks_used);
    for (uint32_t i = 0; s.route_up && i < s.n_stages; i++) {
        for (uint32_t k = 0; k < s.cluster.stage[i].n; k++) {
            if (s.cluster.stage[i].holder[k].phase != HOLDING_LEVEL) continue;
            uint32_t who = machine_of(w, s.cluster.stage[i].holder[k].node);
            struct part *p = who ? part_find(w->machine[who], s.epoch, i) : NULL;
            if (!p || !part_computes(p) || w->machine[who]->hot.hung || w->machine[who]->lazy.hung) continue;
            check_part(w, p);
        }
    }
    w->stats->n_requests += w->n_requests;
    w->stats->n_preemptions += s.n_preemptions;
    w->stats->n_route_changes += s.n_route_changes;
    w->stats->n_nodes_lost += s.n_nodes_lost;
    w->stats->n_promotions += s.cluster.n_promotions;
    w->stats->n_suspicions += s.cluster.n_suspicions;
    w->stats->n_false_alarms += s.cluster.n_false_alarms;
    w->stats->n_drained += s.cluster.n_drained;
    w->stats->simulated_us += w->net.now_us;
}
