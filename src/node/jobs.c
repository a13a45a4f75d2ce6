// Jobs on their way to the compute threads and back.
//
// A hot stage has several jobs at its thread, which therefore never waits for the loop; a promoted one that still has
// to catch up has two, so that the other stages' steps need not wait long behind its chunks. Of all lazy stages
// together one job is out at a time, and none while the lazy thread loads: whichever is made hot has at most one short
// job to wait for.
#include "node/node_int.h"

#include "base/log.h"

#include <stdlib.h>

enum { ROWS_MIN = 64, CATCH_UP_JOBS = 2 };

static struct work *idle_work(struct assignment *a) {
    for (uint32_t i = 0; i < HOLDER_JOBS; i++)
        if (!a->work[i].owner) return &a->work[i];
    return NULL;
}

// Room for the output. Buffers only grow.
static int make_room(const struct assignment *a, struct work *w, uint32_t rows) {
    if (a->is_last || rows <= w->out_rows) return ERR_OK;
    uint32_t cap = ROWS_MIN;
    while (cap < rows) cap *= 2;
    free(w->out);
    w->out = malloc((size_t)cap * a->hidden * sizeof *w->out);
    w->out_rows = w->out ? cap : 0;
    return w->out ? ERR_OK : ERR_NOMEM;
}

static bool give(struct assignment *a) {
    struct compute *c = &a->node->compute;
    struct work *w = idle_work(a);
    const struct holder_job *job = w ? holder_next(a->holder) : NULL;
    if (!job) return false;
    w->type = WORK_RUN;
    w->owner = a;
    w->hold = a->hold;
    w->over = &a->over;
    w->job = job;
    w->hot = a->hot;
    w->reset = !a->has_run;
    w->wants_result = a->is_last && job->send;
    w->rc = ERR_OK;
    int rc = make_room(a, w, job->step->n_rows);
    if (!rc) rc = compute_push(c, a->hot ? &c->hot : &c->lazy, w);
    if (rc) {
        w->owner = NULL;
        holder_done(a->holder, job);
        assign_fail(a, rc == ERR_NOMEM ? "no memory for a step's output" : "the queue of the compute thread is full");
        return false;
    }
    a->has_run = true;
    a->n_out++;
    a->at_hot = a->hot;
    a->last_sends = job->send;
    a->node->lazy_out += !a->hot;
    return true;
}

static void pump_hot(struct assignment *a) {
    if (!assign_computes(a) || !a->hot || (a->n_out && !a->at_hot)) return;
    while (a->n_out < (a->n_out && !a->last_sends ? CATCH_UP_JOBS : HOLDER_JOBS) && give(a)) {
    }
}

// The one that had its turn goes to the end of the list.
static void pump_lazy(struct node *n) {
    if (n->lazy_out || n->holds.n_works) return;
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (!assign_computes(a) || a->hot || a->n_out || !give(a)) continue;
        list_remove(&a->all);
        list_push_back(&n->assignments, &a->all);
        return;
    }
}

void jobs_pump(struct node *n) {
    LIST_EACH(it, &n->assignments) pump_hot(LIST_ENTRY(it, struct assignment, all));
    pump_lazy(n);
}

// How many rows a lazy job should have follows from how long the last ones took.
static void measure(struct assignment *a, const struct work *w) {
    uint32_t rows = w->job->step->n_rows, max = a->key.max_rows;
    if (w->hot || rows < 4) return; // of few rows a pass costs more than its rows
    double us = (double)w->us / rows;
    a->us_per_row = a->us_per_row > 0 ? a->us_per_row * 0.75 + us * 0.25 : us;
    double want = a->us_per_row > 0 ? NODE_CHUNK_US / a->us_per_row : max;
    uint32_t chunk = want < NODE_CHUNK_ROWS_MIN ? NODE_CHUNK_ROWS_MIN : want < max ? (uint32_t)want : max;
    a->chunk_rows = chunk < max ? chunk : max;
    holder_set_chunk(a->holder, a->chunk_rows);
}

// Else the last few steps before a pause would wait for the next request, and with them the blocks that they release.
void jobs_check_idle(struct node *n, uint64_t now_us) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        struct holder_counts c;
        if (!assign_computes(a)) continue;
        holder_counts(a->holder, &c);
        if (c.accepted != a->last_accepted) a->last_accepted_us = now_us;
        a->last_accepted = c.accepted;
        holder_set_idle(a->holder, now_us >= a->last_accepted_us + NODE_IDLE_MS * 1000ull);
    }
    jobs_pump(n);
}

static void keep_output(struct assignment *a, const struct work *w) {
    const struct holder_job *j = w->job;
    struct err e;
    if (j->replay)
        sent_replayed(a->sent, j->step->id, j->fed, j->step, w->out, j->fault);
    else if (sent_step(a->sent, j->step, w->out, j->fault, &e))
        LOG_D("node", "stage %u gives no replay any more: %s", a->stage, e.text);
}

static void finish(struct assignment *a, struct work *w) {
    const struct holder_job *j = w->job;
    measure(a, w);
    if (a->is_last && j->send && a->state != ASSIGN_KEPT) session_send_tokens(a->node, a, &w->result);
    if (a->sent) keep_output(a, w);
}

// Not of one that was forgotten meanwhile.
static void tell_fed(const struct assignment *a, uint64_t as_of) {
    struct holder_counts c;
    holder_counts(a->holder, &c);
    if (c.done == as_of) session_send(a->node, FRAME_FED, a->epoch, a->stage, as_of);
}

static void job_done(struct node *n, struct work *w) {
    struct assignment *a = w->owner;
    bool alive = assign_computes(a) || a->state == ASSIGN_KEPT;
    w->owner = NULL;
    a->n_out--;
    n->lazy_out -= !a->at_hot;
    if (alive && !w->rc) finish(a, w);
    bool fed = alive && !w->rc && w->job->fed && a->state != ASSIGN_KEPT;
    uint64_t step = w->job->step->id;
    holder_done(a->holder, w->job);
    if (fed) tell_fed(a, step);
    if (alive && w->rc) assign_fail(a, w->e.text);
    feed_check_room(a);
    feed_pump(a);
    if (a->state != ASSIGN_ENDED || a->n_out) return;
    assign_free(a);
    assign_settle_soon(n);
}

static void layers_done(struct node *n, struct work *w) {
    struct assignment *a;
    struct holding *h = w->hold;
    struct err e = w->e;
    bool resident = hold_done(&n->holds, w, &a);
    if (a && resident) {
        ASSERT(a->hold == h && a->state == ASSIGN_LOADING, "state %d", a->state);
        a->state = ASSIGN_RESIDENT;
        assign_check_ready(a);
    } else if (a) {
        a->hold = NULL;
        a->state = ASSIGN_WAITING; // what failed is gone already
        assign_fail(a, e.text);
    }
    assign_settle_soon(n);
}

void jobs_done(void *arg) {
    struct node *n = arg;
    for (struct work *w = queue_pop(&n->compute.done, 0); w; w = queue_pop(&n->compute.done, 0)) {
        if (w->type == WORK_RUN)
            job_done(n, w);
        else
            layers_done(n, w);
    }
    jobs_pump(n);
}

void jobs_describe(const struct assignment *a, struct control_stage_state *s) {
    struct holder_counts c;
    holder_counts(a->holder, &c);
    *s = (struct control_stage_state){.stage = a->stage,
                                      .hot = c.hot,
                                      .accepted = c.accepted,
                                      .done = c.done,
                                      .waiting_rows = c.waiting_rows,
                                      .lag_us = (uint64_t)(c.waiting_rows * a->us_per_row)};
}
