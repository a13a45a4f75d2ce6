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

void world_disturb(struct world *w, uint64_t until_us) {
    if (until_us > w->disturbed_until_us) w->disturbed_until_us = until_us;
    w->watch_until_us = 0;
}

bool world_chance(struct world *w, uint32_t percent) { return rng_below(&w->rng, 100) < percent; }

uint32_t world_between(struct world *w, uint32_t low, uint32_t high) {
    return low + rng_below(&w->rng, high - low + 1);
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
    head_carries_out(w);
}

static void client_cancels(struct world *w, uint32_t who) {
    w->requests[who].cancelled = true;
    brain_cancel(w->brain, w->net.now_us, who + 1);
    brain_cancel(w->brain, w->net.now_us, who + 1);
    head_carries_out(w);
}

// All that hold one stage are killed together.
static void kill_stage(struct world *w) {
    static struct brain_status s;
    brain_status(w->brain, &s);
    if (!s.route_up) return;
    const struct cluster_stage *stage = &s.cluster.stage[rng_below(&w->rng, s.n_stages)];
    for (uint32_t k = 0; k < stage->n; k++) {
        uint32_t who = machine_of(w, stage->holder[k].node);
        if (who) net_at(&w->net, w->net.now_us + rng_below(&w->rng, 2000), EV_KILL, who, w->machine[who]->boot << 32);
    }
}

static void break_link(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        for (uint32_t k = 0; m->parts[i].id && k < m->parts[i].n_next; k++)
            if (!m->parts[i].next[k].is_local) feed_break(w, m, &m->parts[i].next[k]);
}

static void chaos(struct world *w) {
    uint32_t who = world_between(w, 1, w->n_machines), other = world_between(w, 0, w->n_machines);
    struct machine *m = w->machine[who];
    uint64_t until = w->net.now_us + world_between(w, 10, 900) * MS;
    uint32_t what = w->gentle ? 0 : rng_below(&w->rng, 14);
    if (what > 1) world_disturb(w, (what == 8 ? w->net.now_us + 10 * SECOND : until) + SECOND);
    switch (what) {
    case 0:
    case 1: // alone
        machine_kill(w, m);
        break;
    case 2: // while the others recover
        machine_kill(w, m);
        if (other)
            net_at(&w->net, w->net.now_us + world_between(w, 5, 60) * MS, EV_KILL, other,
                   w->machine[other]->boot << 32);
        break;
    case 3: // together
        machine_kill(w, m);
        if (other)
            net_at(&w->net, w->net.now_us + rng_below(&w->rng, 2000), EV_KILL, other, w->machine[other]->boot << 32);
        break;
    case 4:
        kill_stage(w);
        break;
    case 5:
        world_tell(w, who, "frozen until %llu ms", (unsigned long long)until / MS);
        m->frozen_until_us = until;
        break;
    case 6:
        world_tell(w, who, "cut both ways to %u", other);
        net_cut(&w->net, who * NET_ENDS + other, until);
        net_cut(&w->net, other * NET_ENDS + who, until);
        break;
    case 7:
        world_tell(w, who, "cut one way to %u", other);
        net_cut(&w->net, who * NET_ENDS + other, until);
        break;
    case 8:
        world_tell(w, who, "device hangs");
        m->hot.hung = m->hot.busy;
        m->lazy.hung = m->lazy.busy;
        break;
    case 9:
        m->slow = world_between(w, 1, 5);
        break;
    case 10:
        if (world_chance(w, 50)) w->head_frozen_until_us = until;
        break;
    case 11:
    case 12:
        machine_leaves(w, m);
        break;
    case 13:
        break_link(w, m);
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
    bool burst = !w->gentle && world_chance(w, 40);
    uint32_t spread_ms = w->gentle ? 9000 : 4000;
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
        net_at(&w->net, 200 * MS + (burst ? rng_below(&w->rng, 50) : world_between(w, 0, spread_ms)) * MS, EV_SUBMIT, i,
               0);
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
    w->gentle = world_chance(w, 20);
    w->passes_over = !w->gentle && world_chance(w, 25);
    w->n_machines = world_between(w, !w->gentle && world_chance(w, 30) ? 1 : 4, MACHINES_MAX);
    c->min_nodes = world_between(w, 1, w->n_machines);
    c->settle_us = 100 * MS;
    c->wait_for_node_us = world_chance(w, 50) ? 1 * SECOND : 6 * SECOND;
    c->heartbeat_us = HEARTBEAT;
    c->node_timeout_us = 300 * MS;
    c->suspect_us = world_between(w, 45, 120) * MS;
    c->first_epoch = 1;
    c->redundancy =
        (enum cluster_redundancy)(w->gentle || world_chance(w, 60) ? REDUNDANCY_SHADOW : rng_below(&w->rng, 3));
    c->step_deadline_us = 300 * MS;
    c->load_deadline_us = 500 * MS;
    uint64_t whole = (uint64_t)c->model.n_layers * (125 + 4 * c->model.kv_block_bytes) + 120;
    uint32_t needed = world_between(w, 1, w->n_machines);            // about so many machines hold the model
    if (w->gentle || world_chance(w, 70)) needed = (needed + 1) / 2; // and there is room for second holders
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        w->machine[i] = calloc(1, sizeof *w->machine[i]);
        ASSERT(w->machine[i], "no memory");
        w->machine[i]->who = i;
        w->machine[i]->memory_bytes = whole / needed + 180 + world_between(w, 0, 300);
        w->machine[i]->slow = 1;
        net_at(&w->net, world_between(w, 0, 150) * MS, EV_BOOT, i, 0);
    }
    w->connection = HEAD_CONNECTION;
    w->holder_bytes = 16 << 20;
    w->sent_bytes = world_chance(w, 80) ? 8 << 20 : world_between(w, 10, 60) << 10;
    w->head_bytes = world_chance(w, 80) ? 8 << 20 : world_between(w, 10, 60) << 10;
    w->load_fail_percent = !w->gentle && world_chance(w, 30) ? 10 : 0;
    w->chaos_every_us = world_between(w, w->gentle ? 1500 : 100, 2500) * MS;
    w->chaos_end_us = world_chance(w, 85) ? world_between(w, 1, 10) * SECOND : 0;
    if (w->chaos_end_us) net_at(&w->net, 300 * MS, EV_CHAOS, 0, 0);
    make_requests(w);
}

static void links_move(struct world *w, uint32_t link) {
    uint32_t from = link / NET_ENDS, to = link % NET_ENDS;
    struct msg *m;
    while ((m = net_take(&w->net, link))) {
        if (to == 0)
            head_takes(w, m);
        else
            machine_takes(w, w->machine[to], from, m);
    }
    // There is room again.
    if (from == 0)
        head_pump(w);
    else if (w->net.now_us >= w->machine[from]->frozen_until_us)
        feed_pump_all(w, w->machine[from]);
}

static void at_machine(struct world *w, const struct net_event *e) {
    struct machine *m = w->machine[e->who];
    uint32_t what = (uint32_t)e->what;
    if (e->type != EV_BOOT && (!m->session || m->boot != e->what >> 32)) return; // of an earlier life
    switch ((enum event_type)e->type) {
    case EV_BEAT:
        machine_beat(w, m);
        break;
    case EV_DONE:
        part_done(w, m, what == 0);
        break;
    case EV_LAYER:
        part_layer(w, m, what);
        break;
    case EV_DIAL:
        feed_dial(w, m, what);
        break;
    case EV_DOWN:
        feed_down(w, m, what);
        break;
    case EV_BOOT:
        machine_boot(w, m);
        break;
    case EV_KILL:
        machine_kill(w, m);
        break;
    case EV_RETURN:
        machine_returns(w, m);
        break;
    case EV_LINK:
    case EV_SUBMIT:
    case EV_CANCEL:
    case EV_TICK:
    case EV_CHAOS:
        ASSERT(false, "event %d at a machine", e->type);
    }
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
    if (!at_head && e->type != EV_CHAOS && e->type != EV_KILL && n->now_us < w->machine[machine]->frozen_until_us) {
        net_at(n, w->machine[machine]->frozen_until_us, e->type, e->who, e->what);
        return;
    }
    switch ((enum event_type)e->type) {
    case EV_LINK:
        links_move(w, e->who);
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
        head_carries_out(w);
        break;
    case EV_CHAOS:
        chaos(w);
        break;
    case EV_BEAT:
    case EV_DONE:
    case EV_LAYER:
    case EV_DIAL:
    case EV_DOWN:
    case EV_BOOT:
    case EV_KILL:
    case EV_RETURN:
        at_machine(w, e);
    }
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
    struct sent_config sc = {0, w->config.chunk_rows, w->head_bytes};
    if (!rc) rc = sent_new(&sc, &w->sent, &e);
    ASSERT(rc == ERR_OK, "%s", e.text);
    w->scratch = step_new();
    ASSERT(w->scratch, "no memory");
    // Two seconds after the last answer and the last disturbance every release has arrived everywhere.
    uint64_t quiet_us = UINT64_MAX, limit_us = w->chaos_end_us + LIVENESS;
    struct net_event ev;
    while (!w->failed && net_pop(&w->net, &ev) && w->net.now_us < limit_us && w->net.now_us < quiet_us) {
        handle(w, &ev);
        if (w->n_open == 0 && quiet_us == UINT64_MAX)
            quiet_us = (w->net.now_us > w->chaos_end_us ? w->net.now_us : w->chaos_end_us) + 2 * SECOND;
    }
    if (!w->failed) head_check_end(w);
    if (w->failed) snprintf(why, why_bytes, "seed %llu: %s", (unsigned long long)seed, w->why);
    if (w->failed && trace) print_trace(w, trace);
    bool ok = !w->failed;
    for (uint32_t i = 1; i <= w->n_machines; i++) {
        machine_forget(w->machine[i]);
        free(w->machine[i]);
    }
    net_fini(&w->net);
    brain_free(w->brain);
    sent_free(w->sent);
    step_free(w->scratch);
    free(w->requests);
    free(w);
    return ok;
}
