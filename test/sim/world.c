#include "state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void world_tell(struct world *w, uint32_t who, const char *fmt, ...) {
    struct trace *t = &w->trace[who];
    char *line = t->line[t->n++ % TRACE_LINES];
    int n = snprintf(line, sizeof t->line[0], "%10.3f ms  ", (double)w->net.now_us / MS);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + n, sizeof t->line[0] - (size_t)n, fmt, args);
    va_end(args);
}

void world_broken(struct world *w, const char *fmt, ...) {
    if (w->failed) return; // the first one counts
    w->failed = true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(w->why, sizeof w->why, fmt, args);
    va_end(args);
}

bool world_chance(struct world *w, uint32_t percent) { return rng_below(&w->rng, 100) < percent; }

uint32_t world_between(struct world *w, uint32_t low, uint32_t high) {
    return low + rng_below(&w->rng, high - low + 1);
}

// --- what the brain was told of nodes, and whether they could serve -------------------------------------------------

// Feasible here means: even if each node had to carry embedding and head and all layers were as large as the largest,
// there would be room. Then a plan exists in any order of the nodes.
static void look_at_peers(struct world *w) {
    const struct plan_model *m = &w->config.model;
    uint64_t blocks = (w->config.wish.context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint64_t layer = LAYER_BYTES_MAX + blocks * m->kv_block_bytes, n_layers = 0;
    uint64_t fixed = m->embed_bytes + m->head_bytes + m->scratch_bytes;
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (w->peers[i].memory_bytes > fixed) n_layers += (w->peers[i].memory_bytes - fixed) / layer;
    w->feasible = n_layers >= m->n_layers;
}

static void peer_joined(struct world *w, uint64_t session, uint64_t memory_bytes) {
    ASSERT(w->n_peers < 64, "too many peers");
    w->peers[w->n_peers++] = (struct peer){session, memory_bytes};
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

// --- the head: carries out what the brain says, and checks it -------------------------------------------------------

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

static void carry_step(struct world *w, const struct brain_action *a) {
    const struct step *s = a->step;
    struct err e;
    if (s->epoch != w->epoch || s->id != w->step + 1)
        world_broken(w, "step %llu of epoch %u follows step %llu of epoch %u", (unsigned long long)s->id, s->epoch,
                     (unsigned long long)w->step, w->epoch);
    w->step = s->id;
    if (step_check(s, TOY_VOCAB, w->config.wish.max_blocks, &e))
        world_broken(w, "the head made a bad step: %s", e.text);
    if (s->n_rows > w->config.chunk_rows) world_broken(w, "a step of %u rows", s->n_rows);
    world_tell(w, 0, "step %llu: %u seqs, %u rows, %u releases", (unsigned long long)s->id, s->n_seqs, s->n_rows,
               s->n_releases);
    w->stats->n_steps++;
    uint32_t to = machine_of(w, a->node);
    if (to) net_send(&w->net, 0, to, msg_step(s, NULL, a->node));
}

static void carry_event(struct world *w, const struct gen_event *e) {
    bool struck = e->token >= 0 && ++w->n_events % 50 == 0;
    if (struck && w->fault == TOY_LOSE_EVENT) return;
    check_event(w, e);
    if (struck && w->fault == TOY_REPEAT_EVENT) check_event(w, e);
}

static void carry_load(struct world *w, const struct brain_load *l) {
    world_tell(w, 0, "load: node %llu, epoch %u, layers %u .. %u", (unsigned long long)l->node, l->epoch, l->a, l->b);
    uint32_t to = machine_of(w, l->node);
    if (!to) return;
    struct msg *m = msg_new(MSG_LOAD, l->node, l->epoch);
    m->load = *l;
    net_send(&w->net, 0, to, m);
}

static void carry_out(struct world *w) {
    struct brain_action a;
    while (brain_next(w->brain, &a)) {
        uint32_t to = a.type == ACT_DROP_NODE ? machine_of(w, a.node) : 0;
        switch (a.type) {
        case ACT_LOAD:
            carry_load(w, &a.load);
            break;
        case ACT_STEP:
            carry_step(w, &a);
            break;
        case ACT_EVENT:
            carry_event(w, &a.event);
            break;
        case ACT_DROP_NODE:
            world_tell(w, 0, "drop node %llu: %s", (unsigned long long)a.node, a.why);
            peer_left(w, a.node);
            if (to) net_send(&w->net, 0, to, msg_new(MSG_CLOSE, a.node, 0));
            break;
        case ACT_ROUTE_UP:
            world_tell(w, 0, "route up: epoch %u, %u stages", a.epoch, a.n_stages);
            if (a.epoch <= w->epoch) world_broken(w, "epoch %u follows epoch %u", a.epoch, w->epoch);
            w->epoch = a.epoch;
            w->step = 0;
            w->was_up = w->route_up = true;
            break;
        case ACT_ROUTE_DOWN:
            if (w->route_up) w->no_route_since_us = w->net.now_us;
            w->route_up = false;
            world_tell(w, 0, "route down: %s", a.why);
            break;
        }
    }
    uint64_t due = brain_deadline_us(w->brain);
    if (due == UINT64_MAX || due == w->tick_us) return;
    w->tick_us = due;
    net_at(&w->net, due, EV_TICK, 0, 0);
}

static void head_takes(struct world *w, struct msg *m) {
    uint64_t now = w->net.now_us;
    switch (m->type) {
    case MSG_JOIN:
        world_tell(w, 0, "node %llu joined", (unsigned long long)m->session);
        peer_joined(w, m->session, m->bytes);
        brain_node_joined(w->brain, now, m->session, m->bytes);
        break;
    case MSG_BEAT:
        brain_heartbeat(w->brain, now, m->session, m->epoch, m->done_step, m->bytes);
        break;
    case MSG_READY:
        brain_node_ready(w->brain, now, m->session, m->epoch);
        break;
    case MSG_FAILED:
        brain_node_failed(w->brain, now, m->session, m->epoch, "planted");
        break;
    case MSG_RESULT:
        brain_step_result(w->brain, now, m->result);
        break;
    case MSG_RESET:
        world_tell(w, 0, "node %llu: link reset", (unsigned long long)m->session);
        peer_left(w, m->session);
        brain_node_lost(w->brain, now, m->session, "link reset");
        break;
    case MSG_LOAD:
    case MSG_STEP:
    case MSG_CLOSE:
        ASSERT(false, "message %d to the head", m->type);
    }
    msg_free(m);
    carry_out(w);
}

// --- clients and chance ---------------------------------------------------------------------------------------------

static void client_submits(struct world *w, uint32_t who) {
    struct request *q = &w->requests[who];
    struct err e;
    q->r.prompt = q->prompt;
    int rc = brain_submit(w->brain, w->net.now_us, who + 1, &q->r, &e);
    if (rc == ERR_UNAVAILABLE) {
        if (w->was_up && w->feasible) world_broken(w, "request %u: %s, though machines are there", who + 1, e.text);
        w->stats->n_refused++;
        net_at(&w->net, w->net.now_us + 500 * MS, EV_SUBMIT, who, 0);
    } else if (rc) {
        world_broken(w, "request %u: %s", who + 1, e.text);
    } else {
        q->submitted = true;
        if (world_chance(w, 12)) net_at(&w->net, w->net.now_us + world_between(w, 1, 1500) * MS, EV_CANCEL, who, 0);
    }
    carry_out(w);
}

static void client_cancels(struct world *w, uint32_t who) {
    w->requests[who].cancelled = true;
    brain_cancel(w->brain, w->net.now_us, who + 1);
    brain_cancel(w->brain, w->net.now_us, who + 1);
    carry_out(w);
}

static void chaos(struct world *w) {
    uint32_t who = world_between(w, 1, w->n_machines), other = world_between(w, 0, w->n_machines);
    struct machine *m = w->machine[who];
    uint64_t until = w->net.now_us + world_between(w, 10, 900) * MS;
    switch (rng_below(&w->rng, 9)) {
    case 0:
    case 1:
    case 2:
        machine_kill(w, who);
        break;
    case 3:
        world_tell(w, who, "frozen until %llu ms", (unsigned long long)until / MS);
        m->frozen_until_us = until;
        break;
    case 4:
        world_tell(w, who, "cut both ways to %u", other);
        net_cut(&w->net, who * NET_ENDS + other, until);
        net_cut(&w->net, other * NET_ENDS + who, until);
        break;
    case 5:
        world_tell(w, who, "cut one way to %u", other);
        net_cut(&w->net, who * NET_ENDS + other, until);
        break;
    case 6:
        world_tell(w, who, "device hangs");
        m->hung = m->busy;
        break;
    case 7:
        m->slow = world_between(w, 1, 5);
        break;
    case 8:
        if (world_chance(w, 50)) w->head_frozen_until_us = until;
        break;
    }
    uint64_t next = w->net.now_us + w->chaos_every_us / 2 + rng_below(&w->rng, w->chaos_every_us);
    if (next < w->chaos_end_us) net_at(&w->net, next, EV_CHAOS, 0, 0);
}

// --- one run --------------------------------------------------------------------------------------------------------

static void make_requests(struct world *w) {
    w->n_requests = w->n_open = world_between(w, 4, REQUESTS_MAX);
    w->requests = calloc(w->n_requests, sizeof *w->requests);
    ASSERT(w->requests, "no memory");
    bool burst = world_chance(w, 40);
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct request *q = &w->requests[i];
        q->r.n_prompt = world_between(w, 1, world_chance(w, 50) ? 30 : w->config.max_context - 1);
        uint32_t room = w->config.max_context - q->r.n_prompt;
        q->r.max_tokens = world_between(w, 1, room);
        for (uint32_t j = 0; j < q->r.n_prompt; j++) q->prompt[j] = (int32_t)rng_below(&w->rng, TOY_POISON);
        if (world_chance(w, 4)) q->prompt[rng_below(&w->rng, q->r.n_prompt)] = TOY_POISON;
        q->r.sampling = (struct sampling){.temperature = 1, .top_p = 1, .seed = rng_u64(&w->rng)};
        if (world_chance(w, 50)) {
            q->r.n_stop_ids = 2;
            q->r.stop_ids[0] = TOY_STOP;
            q->r.stop_ids[1] = TOY_STOP + 1;
        }
        q->r.prompt = q->prompt;
        q->n_answer = toy_oracle(&q->r, w->config.model.n_layers, q->answer, &q->finish);
        net_at(&w->net, 200 * MS + (burst ? rng_below(&w->rng, 50) : world_between(w, 0, 4000)) * MS, EV_SUBMIT, i, 0);
    }
}

static void make_world(struct world *w, uint64_t seed) {
    rng_init(&w->rng, seed);
    net_init(&w->net, seed ^ 0x5EED, EV_LINK);
    w->net.delay_us = world_chance(w, 50) ? 200 : 4000;
    w->net.twice_percent = world_chance(w, 60) ? 5 : 0;
    struct brain_config *c = &w->config;
    c->model.n_layers = world_between(w, 2, TOY_LAYERS_MAX);
    for (uint32_t i = 0; i < c->model.n_layers; i++) c->model.layer_bytes[i] = world_between(w, 80, LAYER_BYTES_MAX);
    c->model.embed_bytes = c->model.head_bytes = 50;
    c->model.kv_block_bytes = world_between(w, 1, 8);
    c->model.scratch_bytes = 10;
    c->max_context = world_between(w, 2, 4) * LIMIT_BLOCK_TOKENS - world_between(w, 0, 20);
    c->wish.context = c->max_context;
    uint32_t least = (c->max_context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    c->wish.max_blocks = world_chance(w, 60) ? world_between(w, least, 3 * least) : TOY_BLOCKS_MAX;
    c->n_vocab = TOY_VOCAB;
    c->chunk_rows = world_chance(w, 30) ? world_between(w, 1, 16) : world_between(w, 16, 300);
    c->max_seqs = world_between(w, 1, 24);
    w->n_machines = world_between(w, 1, MACHINES_MAX);
    c->min_nodes = world_between(w, 1, w->n_machines);
    c->settle_us = 100 * MS;
    c->wait_for_node_us = world_chance(w, 50) ? 1 * SECOND : 6 * SECOND;
    c->heartbeat_us = HEARTBEAT;
    c->node_timeout_us = 300 * MS;
    c->step_deadline_us = 300 * MS;
    c->load_deadline_us = 500 * MS;
    uint64_t whole = (uint64_t)c->model.n_layers * (125 + 4 * c->model.kv_block_bytes) + 120;
    uint32_t needed = world_between(w, 1, w->n_machines); // about so many machines hold the model
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        w->machine[i] = calloc(1, sizeof *w->machine[i]);
        ASSERT(w->machine[i], "no memory");
        list_init(&w->machine[i]->inbox);
        w->machine[i]->memory_bytes = whole / needed + 180 + world_between(w, 0, 300);
        w->machine[i]->slow = 1;
        net_at(&w->net, world_between(w, 0, 150) * MS, EV_BOOT, i, 0);
    }
    w->load_fail_percent = world_chance(w, 30) ? 10 : 0;
    w->chaos_every_us = world_between(w, 100, 2500) * MS;
    w->chaos_end_us = world_chance(w, 85) ? world_between(w, 1, 10) * SECOND : 0;
    if (w->chaos_end_us) net_at(&w->net, 300 * MS, EV_CHAOS, 0, 0);
    make_requests(w);
}

static void handle(struct world *w, const struct net_event *e) {
    struct net *n = &w->net;
    bool at_head = e->type == EV_SUBMIT || e->type == EV_CANCEL || e->type == EV_TICK ||
                   (e->type == EV_LINK && e->who % NET_ENDS == 0);
    uint32_t machine = e->type == EV_LINK ? e->who % NET_ENDS : e->who;
    if (at_head && n->now_us < w->head_frozen_until_us) {
        net_at(n, w->head_frozen_until_us, e->type, e->who, e->what);
        return;
    }
    if (!at_head && e->type != EV_CHAOS && n->now_us < w->machine[machine]->frozen_until_us) {
        net_at(n, w->machine[machine]->frozen_until_us, e->type, e->who, e->what);
        return;
    }
    bool current =
        at_head || e->type == EV_CHAOS || (w->machine[machine]->session && w->machine[machine]->boot == e->what);
    struct msg *m;
    switch ((enum event_type)e->type) {
    case EV_LINK:
        while ((m = net_take(n, e->who))) {
            if (at_head)
                head_takes(w, m);
            else
                machine_takes(w, machine, m);
        }
        break;
    case EV_BEAT:
        if (current) machine_beat(w, machine);
        break;
    case EV_DONE:
        if (current) machine_done(w, machine);
        break;
    case EV_LAYER:
        if (current) machine_layer(w, machine);
        break;
    case EV_BOOT:
        machine_boot(w, machine);
        break;
    case EV_SUBMIT:
        client_submits(w, e->who);
        break;
    case EV_CANCEL:
        client_cancels(w, e->who);
        break;
    case EV_TICK:
        w->tick_us = 0;
        brain_tick(w->brain, n->now_us);
        carry_out(w);
        break;
    case EV_CHAOS:
        chaos(w);
        break;
    }
}

static void check_end(struct world *w) {
    static struct brain_status s;
    brain_status(w->brain, &s);
    if (w->n_open)
        world_broken(w, "%u requests never ended (route %s, epoch %u, %u running, %u waiting): %s", w->n_open,
                     s.route_up ? "up" : "down", s.epoch, s.n_running, s.n_waiting, s.why_down);
    if (!w->n_open && (s.n_running || s.n_waiting || s.blocks_used))
        world_broken(w, "at the end %u run, %u wait, %u blocks are used", s.n_running, s.n_waiting, s.blocks_used);
    for (uint32_t i = 1; i <= w->n_machines && s.route_up; i++) {
        struct machine *m = w->machine[i];
        if (!m->session || m->load.epoch != s.epoch) continue;
        if (toy_slots_used(&m->stage))
            world_broken(w, "at the end node %u holds %u slots", i, toy_slots_used(&m->stage));
        for (uint32_t b = 0; b < TOY_BLOCKS_MAX; b++)
            if (m->stage.owner[b]) world_broken(w, "at the end node %u holds block %u", i, b);
    }
    w->stats->n_requests += w->n_requests;
    w->stats->n_preemptions += s.n_preemptions;
    w->stats->n_route_changes += s.n_route_changes;
    w->stats->n_nodes_lost += s.n_nodes_lost;
    w->stats->simulated_us += w->net.now_us;
}

static void print_trace(const struct world *w, FILE *out) {
    for (uint32_t i = 0; i <= w->n_machines; i++) {
        const struct trace *t = &w->trace[i];
        fprintf(out, i ? "node %u\n" : "head\n", i);
        for (uint64_t j = t->n > TRACE_LINES ? t->n - TRACE_LINES : 0; j < t->n; j++)
            fprintf(out, "    %s\n", t->line[j % TRACE_LINES]);
    }
}

bool world_run(uint64_t seed, enum toy_fault fault, struct world_stats *stats, char *why, size_t why_bytes,
               void *trace) {
    struct world *w = calloc(1, sizeof *w);
    ASSERT(w, "no memory");
    w->stats = stats;
    w->fault = fault;
    make_world(w, seed);
    struct err e;
    int rc = brain_new(&w->config, &w->brain, &e);
    ASSERT(rc == ERR_OK, "%s", e.text);
    // Two seconds after the last answer and the last disturbance every release has arrived everywhere.
    uint64_t quiet_us = UINT64_MAX, limit_us = w->chaos_end_us + LIVENESS;
    struct net_event ev;
    while (!w->failed && net_pop(&w->net, &ev) && w->net.now_us < limit_us && w->net.now_us < quiet_us) {
        handle(w, &ev);
        if (w->n_open == 0 && quiet_us == UINT64_MAX)
            quiet_us = (w->net.now_us > w->chaos_end_us ? w->net.now_us : w->chaos_end_us) + 2 * SECOND;
    }
    if (!w->failed) check_end(w);
    if (w->failed) snprintf(why, why_bytes, "seed %llu: %s", (unsigned long long)seed, w->why);
    if (w->failed && trace) print_trace(w, trace);
    bool ok = !w->failed;
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        machine_forget(w->machine[i]);
        free(w->machine[i]);
    }
    net_fini(&w->net);
    brain_free(w->brain);
    free(w->requests);
    free(w);
    return ok;
}
