// Steps on their way through this node: frame -> work -> compute thread -> frame.
#include "node/node_int.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MIN = 64 };

int route_steps_init(struct node *n) {
    while (n->n_idle < LIMIT_STEPS_IN_FLIGHT) {
        struct work *w = calloc(1, sizeof *w);
        if (!w) return ERR_NOMEM;
        w->type = WORK_STEP;
        w->step = step_new();
        n->idle[n->n_idle++] = w;
        if (!w->step) return ERR_NOMEM;
    }
    return ERR_OK;
}

// Room for the rows of a step. Buffers only grow, and the pool hands out the one given back last, so that decode steps
// soon find theirs ready.
static int make_room(struct work *w, uint32_t rows, uint32_t hidden, uint32_t control_bytes) {
    if (rows > w->rows_cap || hidden != w->hidden) {
        uint32_t cap = ROWS_MIN;
        while (cap < rows) cap *= 2;
        compute_free_buffers(w);
        w->in = malloc((size_t)cap * hidden * sizeof *w->in);
        w->out = malloc((size_t)cap * hidden * sizeof *w->out);
        w->fault = malloc(cap);
        w->hidden = hidden;
        if (!w->in || !w->out || !w->fault) return ERR_NOMEM;
        w->rows_cap = cap;
    }
    if (control_bytes > w->control_cap) {
        uint32_t cap = (control_bytes + 4095) / 4096 * 4096;
        free(w->control);
        w->control = malloc(cap);
        w->control_cap = w->control ? cap : 0;
        if (!w->control) return ERR_NOMEM;
    }
    return ERR_OK;
}

static int fill(struct node *n, struct work *w, const struct link_frame *f, struct err *e) {
    const struct hparams *h = &n->model.hparams;
    uint64_t row_bytes = n->stage_index > 0 ? 2ull * h->hidden + 1 : 0;
    int rc = control_get_step(n->control, f->control, f->h.control_bytes, w->step, e);
    if (rc) return rc;
    w->step->id = f->h.step;
    w->step->epoch = f->h.epoch;
    rc = step_check(w->step, h->n_vocab, n->route.n_blocks, e);
    if (rc) return rc;
    uint32_t rows = w->step->n_rows;
    if (rows > n->model.max_rows)
        return err_set(e, ERR_LIMIT, "step: %u rows, at most %u are agreed", rows, n->model.max_rows);
    if (f->h.rows != rows || f->h.payload_bytes != rows * row_bytes || (row_bytes && rows && f->h.dtype != DT_BF16))
        return err_set(e, ERR_FORMAT, "step: %u rows with %u payload bytes, %lu are right", rows, f->h.payload_bytes,
                       rows * row_bytes);
    if (make_room(w, rows, h->hidden, f->h.control_bytes)) return err_set(e, ERR_NOMEM, "step: no memory");
    w->has_in = row_bytes > 0;
    w->load = n->load;
    w->control_bytes = f->h.control_bytes;
    memcpy(w->control, f->control, f->h.control_bytes);
    memset(w->fault, 0, rows);
    if (w->has_in && rows) {
        size_t hidden_bytes = (size_t)rows * h->hidden * 2;
        memcpy(w->in, f->payload, hidden_bytes);
        for (uint32_t i = 0; i < rows; i++) w->fault[i] = f->payload[hidden_bytes + i] != 0;
    }
    return ERR_OK;
}

void route_step(struct node *n, const struct link_frame *f) {
    struct err e;
    // Frames of another epoch, or from before the load was done, are what a change of route leaves behind.
    if (!n->assigned || !n->ready_sent || n->failed || f->h.epoch != n->epoch) return;
    if (f->h.step <= n->accepted_step) return; // twice or late: nothing changes
    if (f->h.step != n->accepted_step + 1) {
        err_set(&e, ERR_FORMAT, "step %lu came after step %lu", f->h.step, n->accepted_step);
        session_send_failed(n, e.text);
        return;
    }
    if (n->n_idle == 0) {
        session_send_failed(n, "more steps are in flight than the protocol allows");
        return;
    }
    struct work *w = n->idle[--n->n_idle];
    int rc = fill(n, w, f, &e);
    if (!rc) {
        n->accepted_step = f->h.step;
        rc = compute_push(&n->compute, w);
        if (rc) err_set(&e, rc, "the queue of the compute thread is full");
    }
    if (rc) {
        n->idle[n->n_idle++] = w;
        session_send_failed(n, e.text);
    }
}

static void step_done(struct node *n, struct work *w) {
    if (!n->assigned || n->failed || w->load != n->load) return;
    if (w->rc) {
        session_send_failed(n, w->e.text);
        return;
    }
    uint32_t rows = w->step->n_rows;
    struct frame_header h = {.epoch = n->epoch, .step = w->step->id, .rows = rows};
    if (n->is_last) {
        h.type = FRAME_TOKENS;
        h.stage = n->stage_index;
        link_send_control(n->head, h, control_put_tokens(n->control, &w->result));
    } else if (n->next) {
        h.type = FRAME_STEP;
        h.stage = n->stage_index + 1;
        h.dtype = DT_BF16;
        link_send(n->next, h, (struct control_bytes){w->control, w->control_bytes}, w->out,
                  rows * n->model.hparams.hidden * 2, w->fault, rows);
    } else {
        return; // the link broke, which is being dealt with
    }
    n->done_step = w->step->id;
}

static void load_done(struct node *n, struct work *w) {
    n->n_loads--;
    if (n->assigned && w->load == n->load) {
        if (w->rc) {
            session_send_failed(n, w->e.text);
        } else {
            n->stage = w->stage;
            n->stage_bytes = w->memory_bytes;
            route_check_ready(n);
        }
    }
    compute_free_work(w);
}

void route_done(void *arg) {
    struct node *n = arg;
    for (struct work *w = queue_pop(&n->compute.done, 0); w; w = queue_pop(&n->compute.done, 0)) {
        if (w->type == WORK_LOAD) {
            load_done(n, w);
        } else {
            step_done(n, w);
            n->idle[n->n_idle++] = w;
        }
    }
}
