#include "state.h"

#include <stdlib.h>
#include <string.h>

// The stages that a node holds, each with the real books of what came in (holder) and what went out (sent), and two
// compute threads: one for stages that are hot, one for the others.

struct part *part_find(struct machine *m, uint32_t epoch, uint32_t stage) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        if (p->id && p->state != PART_ENDED && p->epoch == epoch && p->stage == stage) return p;
    }
    return NULL;
}

bool part_computes(const struct part *p) { return p->state == PART_RESIDENT || p->state == PART_SERVING; }

bool part_takes_steps(const struct part *p) { return p->state == PART_LOADING || part_computes(p); }

void part_free(struct part *p) {
    feed_close_all(p);
    holder_free(p->holder);
    sent_free(p->sent);
    free(p->toy);
    *p = (struct part){0};
}

void part_end(struct world *w, struct part *p) {
    if (p->state == PART_ENDED) return;
    p->state = PART_ENDED;
    feed_drop_next(w, p);
    feed_detach(w, p->machine, p->epoch, p->stage);
    if (p->n_out == 0) part_free(p);
}

void part_fail(struct world *w, struct part *p, const char *why) {
    if (p->state == PART_FAILED || p->state == PART_ENDED) return;
    world_tell(w, p->machine->who, "stage %u of epoch %u failed: %s", p->stage, p->epoch, why);
    p->state = PART_FAILED;
    feed_close_all(p);
    machine_send(w, p->machine, MSG_FAILED, p->epoch, p->stage);
}

// --- loading

// Whether the head reckons right with this machine's memory.
static void check_memory(struct world *w, struct machine *m) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        const struct part *p = &m->parts[i];
        if (p->id && p->state != PART_ENDED) bytes += plan_stage_bytes(&w->config.model, p->a, p->b, p->n_blocks);
    }
    if (bytes > m->memory_bytes)
        world_broken(w, "node %u is to hold %llu bytes, and has %llu", m->who, (unsigned long long)bytes,
                     (unsigned long long)m->memory_bytes);
}

static bool is_resident(struct machine *m, const struct cluster_action *a) {
    for (uint32_t i = 0; i < m->n_resident; i++)
        if (m->resident[i].a == a->a && m->resident[i].b == a->b && m->resident[i].n_blocks == a->n_blocks) return true;
    return false;
}

static void note_resident(struct machine *m, const struct part *p) {
    uint32_t at = m->n_resident < 8 ? m->n_resident++ : (uint32_t)p->id % 8;
    m->resident[at].a = p->a;
    m->resident[at].b = p->b;
    m->resident[at].n_blocks = p->n_blocks;
}

static void make_books(struct world *w, struct part *p) {
    struct err e;
    struct holder_config in = {p->stage ? 8 : 0, w->config.chunk_rows, w->holder_bytes};
    struct sent_config out = {8, w->config.chunk_rows, w->sent_bytes};
    int rc = holder_new(&in, &p->holder, &e);
    if (!rc && !p->is_last) rc = sent_new(&out, &p->sent, &e);
    ASSERT(!rc, "%s", e.text);
    uint32_t chunk = world_between(w, 1, 24);
    holder_set_chunk(p->holder, chunk < w->config.chunk_rows ? chunk : w->config.chunk_rows);
    holder_set_hot(p->holder, p->hot);
    holder_stable(p->holder, p->machine->stable);
    if (p->sent) sent_stable(p->sent, p->machine->stable);
}

// With the planted fault, the sequences of the epoch before live on.
static struct toy_stage *make_toy(struct world *w, const struct part *p, struct toy_stage *old) {
    struct toy_stage *t = calloc(1, sizeof *t);
    ASSERT(t, "no memory");
    t->fault = w->fault;
    toy_load(t, w->config.model.n_layers, p->a, p->b, p->n_blocks);
    if (old && w->fault == TOY_KEEP_EPOCH) {
        memcpy(t->slot, old->slot, sizeof t->slot);
        memcpy(t->owner, old->owner, sizeof t->owner);
    }
    free(old);
    return t;
}

static struct toy_stage *take_toy(struct machine *m, uint32_t a, uint32_t b) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        if (!p->id || p->a != a || p->b != b || p->n_out) continue;
        struct toy_stage *t = p->toy;
        p->toy = NULL;
        return t;
    }
    return NULL;
}

void part_load(struct world *w, struct machine *m, const struct cluster_action *a) {
    struct toy_stage *old = a->epoch > m->epoch ? take_toy(m, a->a, a->b) : NULL;
    if (a->epoch != m->epoch) m->stable = 0;
    m->epoch = a->epoch;
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        struct part *p = &m->parts[i];
        if (p->id && (p->epoch != a->epoch || p->stage == a->stage)) part_end(w, p);
    }
    uint32_t at = 0;
    while (at < PARTS_MAX && m->parts[at].id) at++;
    ASSERT(at < PARTS_MAX, "too many stages");
    struct part *p = &m->parts[at];
    *p = (struct part){.id = ++w->part & UINT32_MAX, .machine = m, .epoch = a->epoch, .stage = a->stage};
    p->n_stages = a->n_stages;
    p->a = a->a;
    p->b = a->b;
    p->n_blocks = a->n_blocks;
    p->hot = a->hot;
    p->is_last = a->b == w->config.model.n_layers;
    if (p->is_last != (a->stage + 1 == a->n_stages) || (p->is_last && a->n_next))
        world_broken(w, "stage %u of %u has layers up to %u", a->stage, a->n_stages, a->b);
    world_tell(w, m->who, "loads stage %u of epoch %u: layers %u .. %u, %s", a->stage, a->epoch, a->a, a->b,
               a->hot ? "hot" : "lazy");
    make_books(w, p);
    p->toy = make_toy(w, p, old);
    p->layers_left = is_resident(m, a) ? 1 : a->b - a->a;
    p->stuck = world_chance(w, w->load_fail_percent);
    feed_set_next(w, p, a);
    feed_settle(w, m);
    feed_renew_local(w, m, p->epoch, p->stage);
    if (world_chance(w, w->load_fail_percent)) part_fail(w, p, "planted");
    machine_at(w, m, world_between(w, 1, 20) * MS, EV_LAYER, (uint32_t)p->id);
}

static struct part *by_id(struct machine *m, uint64_t id) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (m->parts[i].id == id) return &m->parts[i];
    return NULL;
}

void part_layer(struct world *w, struct machine *m, uint64_t id) {
    struct part *p = by_id(m, id);
    if (!p || p->stuck || p->state != PART_LOADING) return;
    check_memory(w, m);
    m->loaded_bytes += 100;
    if (--p->layers_left) {
        machine_at(w, m, world_between(w, 1, 40) * MS, EV_LAYER, (uint32_t)id);
        return;
    }
    note_resident(m, p);
    p->state = PART_RESIDENT;
    part_check_ready(w, p);
    part_pump(w, m);
}

void part_check_ready(struct world *w, struct part *p) {
    if (p->state != PART_RESIDENT) return;
    if (p->hot && p->n_next && !p->next[0].is_local && !p->next[0].attached) return;
    p->state = PART_SERVING;
    world_tell(w, p->machine->who, "stage %u of epoch %u is ready", p->stage, p->epoch);
    machine_send(w, p->machine, MSG_READY, p->epoch, p->stage);
}

void part_hot(struct world *w, struct part *p, bool hot) {
    if (p->hot == hot) return;
    struct holder_counts c;
    holder_counts(p->holder, &c);
    world_tell(w, p->machine->who, "stage %u turns %s: has %llu, did %llu, stable %llu", p->stage, hot ? "hot" : "lazy",
               (unsigned long long)c.accepted, (unsigned long long)c.done, (unsigned long long)p->machine->stable);
    p->hot = hot;
    p->was_lazy = true;
    holder_set_hot(p->holder, hot);
    if (hot)
        feed_open_all(w, p);
    else
        feed_close_all(p);
    feed_pump(w, p);
    part_pump(w, p->machine);
}

// --- jobs

static void start(struct world *w, struct machine *m, bool hot) {
    struct thread *t = hot ? &m->hot : &m->lazy;
    if (t->busy || t->n == 0) return;
    t->busy = true;
    uint64_t cost = world_between(w, 500, 2000) + t->work[0].job->step->n_rows * 20u;
    machine_at(w, m, m->slow * cost * (hot ? 1 : 2), EV_DONE, hot ? 0 : 1);
}

static bool give(struct world *w, struct part *p) {
    struct machine *m = p->machine;
    const struct holder_job *j = p->n_out < HOLDER_JOBS ? holder_next(p->holder) : NULL;
    if (!j) return false;
    struct thread *t = p->hot ? &m->hot : &m->lazy;
    t->work[t->n++] = (struct work){p, j};
    p->n_out++;
    p->at_hot = p->hot;
    p->last_sends = j->send;
    start(w, m, p->hot);
    return true;
}

static void pump_hot(struct world *w, struct part *p) {
    if (!part_computes(p) || !p->hot || (p->n_out && !p->at_hot)) return;
    while (p->n_out < (p->n_out && !p->last_sends ? 2 : HOLDER_JOBS) && give(w, p)) {
    }
}

static void pump_lazy(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (m->parts[i].id && m->parts[i].state == PART_LOADING) return; // that thread loads
    uint32_t from = rng_below(&w->rng, PARTS_MAX);
    for (uint32_t i = 0; i < PARTS_MAX && !m->lazy.n; i++) {
        struct part *p = &m->parts[(from + i) % PARTS_MAX];
        if (p->id && part_computes(p) && !p->hot && p->n_out == 0) give(w, p);
    }
}

void part_pump(struct world *w, struct machine *m) {
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (m->parts[i].id) pump_hot(w, &m->parts[i]);
    pump_lazy(w, m);
}

// The faults that are planted into chunks.
static const struct step *spoil(struct world *w, const struct holder_job *j) {
    struct step *s = w->scratch;
    bool chunk = !j->send && !j->replay;
    if (!chunk || (w->fault != TOY_CHUNK_ORDER && w->fault != TOY_CHUNK_RELEASE)) return j->step;
    step_copy(s, j->step);
    if (w->fault == TOY_CHUNK_RELEASE) s->n_releases = 0;
    if (w->fault == TOY_CHUNK_ORDER && s->n_rows > 1) {
        int32_t token = s->tokens[0];
        s->tokens[0] = s->tokens[s->n_rows - 1];
        s->tokens[s->n_rows - 1] = token;
        uint64_t *h = (uint64_t *)(uintptr_t)j->hidden, row = h ? h[0] : 0;
        if (h) h[0] = h[s->n_rows - 1];
        if (h) h[s->n_rows - 1] = row;
    }
    return s;
}

static void send_result(struct world *w, struct part *p, const struct step_result *r) {
    net_send(&w->net, p->machine->who, 0, msg_result(r, p->machine->session));
}

// Computes a job and keeps its output. False: the stage says that it cannot be.
static bool compute(struct world *w, struct part *p, const struct holder_job *j, struct step_result *result) {
    static uint64_t out[LIMIT_STEP_ROWS];
    struct err e;
    bool shadow = !j->send && !j->replay;
    bool left_out = w->fault == TOY_SHADOW_MISSES && shadow && ++p->machine->n_lazy_runs % 20 == 0;
    bool twice = w->fault == TOY_RUN_TWICE && j->send && j->step->id % 50 == 0;
    memset(out, 0, j->step->n_rows * sizeof out[0]);
    if (!left_out && !toy_run(p->toy, spoil(w, j), j->hidden, out, j->fault, result, &e)) {
        world_broken(w, "node %u, stage %u, epoch %u, step %llu: %s", p->machine->who, p->stage, p->epoch,
                     (unsigned long long)j->step->id, e.text);
        return false;
    }
    if (twice && !toy_run(p->toy, j->step, j->hidden, out, j->fault, result, &e)) world_broken(w, "twice: %s", e.text);
    if (p->sent && j->replay)
        sent_replayed(p->sent, j->step->id, j->fed, j->step, out, j->fault);
    else if (p->sent && sent_step(p->sent, j->step, out, j->fault, &e))
        w->stats->n_log_full++;
    return true;
}

void part_run_all(struct world *w, struct part *p) {
    static struct step_result result;
    struct thread *t = p->at_hot ? &p->machine->hot : &p->machine->lazy;
    for (uint32_t i = 0; i < t->n && !w->failed; i++) {
        if (t->work[i].part != p) continue;
        compute(w, p, t->work[i].job, &result);
        holder_done(p->holder, t->work[i].job);
    }
    for (const struct holder_job *j; !w->failed && (j = holder_next(p->holder));) {
        compute(w, p, j, &result);
        holder_done(p->holder, j);
    }
}

void part_done(struct world *w, struct machine *m, bool hot) {
    struct thread *t = hot ? &m->hot : &m->lazy;
    static struct step_result result;
    if (t->hung) return; // the machine beats, but the job never ends
    struct part *p = t->work[0].part;
    const struct holder_job *j = t->work[0].job;
    memmove(t->work, t->work + 1, --t->n * sizeof t->work[0]);
    bool fed = false;
    t->busy = false;
    p->n_out--;
    if (part_computes(p) && compute(w, p, j, &result)) {
        world_tell(w, m->who, "stage %u: %s%llu%s", p->stage, j->replay ? "replay as of " : "step ",
                   (unsigned long long)j->step->id, j->send ? "" : ", not sent");
        w->stats->n_chunks += !j->send && !j->replay;
        bool silent = w->fault == TOY_HOT_SILENT && p->was_lazy && j->send;
        if (silent) p->was_lazy = false;
        if (p->is_last && j->send && !silent) send_result(w, p, &result);
        w->stats->n_replays += j->fed;
        fed = j->fed;
    }
    uint64_t step = j->step->id;
    struct holder_counts c;
    holder_done(p->holder, j);
    holder_counts(p->holder, &c);
    if (fed && c.done == step) machine_send(w, m, MSG_FED, p->epoch, p->stage);
    feed_pump(w, p);
    if (p->state == PART_ENDED && p->n_out == 0) part_free(p);
    start(w, m, hot);
    part_pump(w, m);
}
