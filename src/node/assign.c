// Stages that the head assigned to this node: how they come, change and go.
#include "node/node_int.h"

#include "base/log.h"
#include "os/clock.h"
#include "replay/budget.h"

#include <stdlib.h>
#include <string.h>

struct assignment *assign_find(const struct node *n, uint32_t epoch, uint32_t stage) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state != ASSIGN_ENDED && a->epoch == epoch && a->stage == stage) return a;
    }
    return NULL;
}

bool assign_computes(const struct assignment *a) { return a->state == ASSIGN_RESIDENT || a->state == ASSIGN_SERVING; }

bool assign_takes_steps(const struct assignment *a) {
    return a->state == ASSIGN_WAITING || a->state == ASSIGN_LOADING || assign_computes(a);
}

bool assign_are_none(const struct node *n) {
    LIST_EACH(it, &n->assignments)
    if (LIST_ENTRY(it, struct assignment, all)->state != ASSIGN_ENDED) return false;
    return true;
}

void assign_free(struct assignment *a) {
    ASSERT(a->n_out == 0 && a->n_next == 0, "%u jobs are out, %u links stand", a->n_out, a->n_next);
    list_remove(&a->all);
    hold_release(&a->node->holds, a->hold);
    holder_free(a->holder);
    sent_free(a->sent);
    for (uint32_t i = 0; i < HOLDER_JOBS; i++) free(a->work[i].out);
    free(a);
}

static void end(struct assignment *a) {
    struct node *n = a->node;
    if (a->state == ASSIGN_ENDED) return;
    bool loading = a->state == ASSIGN_LOADING;
    a->state = ASSIGN_ENDED;
    atomic_store(&a->over, true);
    peers_drop_next(a);
    peers_detach(n, a->epoch, a->stage);
    if (loading) { // whoever wants these layers next may take the load over
        hold_release(&n->holds, a->hold);
        a->hold = NULL;
    }
    assign_settle_soon(n);
    if (a->n_out == 0) assign_free(a);
}

void assign_end_all(struct node *n) { LIST_EACH(it, &n->assignments) end(LIST_ENTRY(it, struct assignment, all)); }

static void end_others(struct node *n, uint32_t epoch) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->epoch != epoch || a->key.head_boot != n->model.head_boot) end(a);
    }
}

void assign_fail(struct assignment *a, const char *why) {
    if (a->state == ASSIGN_FAILED || a->state == ASSIGN_ENDED || a->state == ASSIGN_KEPT) return;
    if (a->state == ASSIGN_LOADING) {
        hold_release(&a->node->holds, a->hold);
        a->hold = NULL;
        assign_settle_soon(a->node);
    }
    a->state = ASSIGN_FAILED;
    feed_close_all(a);
    feed_check_room(a);
    session_send_failed(a->node, a->epoch, a->stage, STAGE_BROKEN, why);
}

void assign_keep_all(struct node *n) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (!assign_computes(a)) {
            if (a->state != ASSIGN_KEPT) end(a);
            continue;
        }
        a->state = ASSIGN_KEPT;
        peers_drop_next(a);
        feed_check_room(a);
        loop_timer_set(n->keep_timer, clock_now_us() + NODE_KEEP_MS * 1000ull);
    }
}

static int check_load(const struct node *n, const struct frame_header *h, const struct control_load *m, struct err *e) {
    uint32_t n_layers = n->model.hparams.n_layers;
    bool last = m->b == n_layers;
    if (m->b > n_layers || h->stage >= m->n_stages || last != (h->stage + 1 == m->n_stages) ||
        (m->a == 0) != (h->stage == 0) || (last && m->next.n) || m->n_blocks < 1)
        return err_set(e, ERR_FORMAT, "LOAD: stage %u of %u with layers [%u, %u) of %u makes no sense", h->stage,
                       m->n_stages, m->a, m->b, n_layers);
    uint32_t held = 0;
    LIST_EACH(it, &n->assignments) held += LIST_ENTRY(it, struct assignment, all)->state != ASSIGN_ENDED;
    if (held >= LIMIT_NODE_STAGES)
        return err_set(e, ERR_LIMIT, "LOAD: this node holds %u stages, which is the most", held);
    return ERR_OK;
}

static int make_books(struct assignment *a, uint32_t max_rows, struct err *e) {
    uint32_t n_blocks = a->key.n_blocks;
    a->max_in_bytes = a->stage ? budget_waiting_bytes(a->n_stages, max_rows, a->hidden)
                               : budget_tokens_bytes(a->n_stages, max_rows, n_blocks);
    const struct holder_config in = {
        .hidden_bytes = a->stage ? a->hidden * 2 : 0, .max_rows = max_rows, .max_bytes = a->max_in_bytes};
    const struct sent_config out = {.hidden_bytes = a->hidden * 2,
                                    .max_rows = max_rows,
                                    .max_bytes = budget_sent_bytes(a->n_stages, max_rows, a->hidden, n_blocks)};
    int rc = holder_new(&in, &a->holder, e);
    if (!rc && !a->is_last) rc = sent_new(&out, &a->sent, e);
    if (rc) return rc;
    holder_set_hot(a->holder, a->hot);
    a->chunk_rows = max_rows < NODE_CHUNK_ROWS_MIN ? max_rows : NODE_CHUNK_ROWS_MIN;
    holder_set_chunk(a->holder, a->chunk_rows);
    holder_stable(a->holder, a->node->stable);
    if (a->sent) sent_stable(a->sent, a->node->stable);
    return ERR_OK;
}

static int create(struct node *n, const struct frame_header *h, const struct control_load *m, struct assignment **out,
                  struct err *e) {
    struct assignment *a = calloc(1, sizeof *a);
    if (!a) return err_set(e, ERR_NOMEM, "LOAD: no memory");
    a->node = n;
    a->state = ASSIGN_WAITING;
    a->epoch = h->epoch;
    a->stage = h->stage;
    a->n_stages = m->n_stages;
    a->key = hold_key_of(&n->model, m->a, m->b, m->n_blocks);
    memcpy(a->route_key, m->route_key, sizeof a->route_key);
    a->is_last = m->b == n->model.hparams.n_layers;
    a->hot = m->hot;
    a->hidden = n->model.hparams.hidden;
    a->n_vocab = n->model.hparams.n_vocab;
    a->link_by_us = clock_now_us() + NODE_NEXT_MS * 1000ull;
    list_push_back(&n->assignments, &a->all);
    int rc = make_books(a, n->model.max_rows, e);
    if (rc) {
        end(a);
        return rc;
    }
    *out = a;
    return ERR_OK;
}

void assign_load(struct node *n, const struct frame_header *h, const struct control_load *m) {
    struct err e;
    if (h->epoch != n->epoch) n->stable = 0;
    n->epoch = h->epoch;
    end_others(n, h->epoch);
    struct assignment *a = assign_find(n, h->epoch, h->stage);
    if (a) end(a); // it is loaded again
    int rc = check_load(n, h, m, &e);
    if (!rc) rc = create(n, h, m, &a, &e);
    if (rc) {
        session_send_failed(n, h->epoch, h->stage, STAGE_BROKEN, e.text);
        return;
    }
    LOG_I("node", "epoch %u: stage %u of %u, layers [%u, %u), %u KV blocks, %s", h->epoch, h->stage, m->n_stages, m->a,
          m->b, m->n_blocks, m->hot ? "hot" : "lazy");
    peers_set_next(a, &m->next);
    peers_settle(n);
    feed_renew_local(n, a->epoch, a->stage);
    assign_settle_soon(n);
}

void assign_unload(struct node *n, const struct frame_header *h) {
    struct assignment *a = assign_find(n, h->epoch, h->stage);
    if (!a) return;
    LOG_I("node", "epoch %u: stage %u is not needed here any more", h->epoch, h->stage);
    end(a);
}

void assign_next(struct node *n, const struct frame_header *h, const struct control_next *m) {
    struct assignment *a = assign_find(n, h->epoch, h->stage);
    if (!a || a->is_last || a->state == ASSIGN_KEPT) return;
    peers_set_next(a, m);
    assign_check_ready(a);
}

void assign_hot(struct node *n, const struct frame_header *h, bool hot) {
    struct assignment *a = assign_find(n, h->epoch, h->stage);
    if (!a || a->hot == hot || a->state == ASSIGN_KEPT) return;
    LOG_D("node", "epoch %u: stage %u turns %s", h->epoch, h->stage, hot ? "hot" : "lazy");
    a->hot = hot;
    holder_set_hot(a->holder, hot);
    if (hot)
        feed_open_all(a);
    else
        feed_close_all(a);
    feed_pump(a);
    jobs_pump(n);
}

void assign_check_ready(struct assignment *a) {
    if (a->state != ASSIGN_RESIDENT) return;
    if (a->hot && a->n_next && !a->next[0]->is_local && !a->next[0]->attached) return;
    a->state = ASSIGN_SERVING;
    session_send(a->node, FRAME_READY, a->epoch, a->stage, 0);
}

void assign_end_foreign(struct node *n) {
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->key.head_boot != n->model.head_boot) end(a);
    }
    assign_settle_soon(n);
}

void assign_end_kept(void *arg) {
    struct node *n = arg;
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state == ASSIGN_KEPT) end(a);
    }
}

static bool any_kept(const struct node *n) {
    LIST_EACH(it, &n->assignments)
    if (LIST_ENTRY(it, struct assignment, all)->state == ASSIGN_KEPT) return true;
    return false;
}

// False: the list has changed, and another round follows.
static bool begin(struct assignment *a) {
    struct node *n = a->node;
    struct err e;
    int rc = hold_want(&n->holds, &a->key, &n->model, a, &a->hold, &e);
    if (rc == ERR_UNAVAILABLE) return true;
    if (rc && any_kept(n)) { // what serves comes before what might serve again
        assign_end_kept(n);
        return false;
    }
    if (rc) {
        assign_fail(a, e.text);
        return true;
    }
    a->state = ASSIGN_LOADING;
    if (a->hold->state != HOLD_RESIDENT) return true;
    a->state = ASSIGN_RESIDENT;
    assign_check_ready(a);
    return true;
}

void assign_settle_soon(struct node *n) { loop_timer_set(n->settle_timer, 0); }

void assign_settle(void *arg) {
    struct node *n = arg;
    hold_unname_all(&n->holds);
    LIST_EACH(it, &n->assignments) {
        const struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state != ASSIGN_ENDED) hold_name(&n->holds, &a->key);
    }
    LIST_EACH(it, &n->assignments) {
        struct assignment *a = LIST_ENTRY(it, struct assignment, all);
        if (a->state == ASSIGN_WAITING && !begin(a)) return;
    }
    hold_tidy(&n->holds, n->model.head_boot, n->away && n->may_leave);
    jobs_pump(n);
}
