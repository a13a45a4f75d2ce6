#include "node/compute.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE_CAP = LIMIT_STEPS_IN_FLIGHT + 8 };

static int run_step(struct compute *c, struct work *w) {
    struct stage *s = loader_stage(c);
    if (!s || w->load != atomic_load(&c->fetch.wanted)) return err_set(&w->e, ERR_CANCELLED, "of an older load");
    return stage_run(s, w->step, w->has_in ? w->in : NULL, w->out, w->fault, &w->result, &w->e);
}

static void run(void *arg) {
    struct compute *c = arg;
    for (struct work *w = queue_pop(&c->todo, QUEUE_FOREVER); w; w = queue_pop(&c->todo, QUEUE_FOREVER)) {
        w->rc = w->type == WORK_STEP ? run_step(c, w) : loader_run(c, w, &w->e);
        int rc = queue_push(&c->done, w);
        ASSERT(rc == 0, "the queue of results holds what the queue of work holds");
    }
    loader_drop(c);
}

int compute_start(struct compute *c, struct backend *be, uint64_t memory_bytes, const char *cache_dir,
                  uint64_t cache_bytes, const char *model_dir, struct err *e) {
    *c = (struct compute){.be = be, .memory_bytes = memory_bytes};
    c->todo.fd = c->done.fd = -1;
    int rc = fetch_init(&c->fetch, e);
    if (!rc) rc = cache_init(&c->cache, cache_dir, cache_bytes, model_dir, &c->loading_bytes, &c->quit, e);
    if (!rc) rc = queue_init(&c->todo, QUEUE_CAP, false, e);
    if (!rc) rc = queue_init(&c->done, 2 * QUEUE_CAP, true, e);
    if (!rc) rc = thread_start(&c->thread, "compute", run, c, e);
    if (!rc) return ERR_OK;
    if (c->todo.items) queue_fini(&c->todo);
    if (c->done.items) queue_fini(&c->done);
    cache_fini(&c->cache);
    fetch_fini(&c->fetch);
    return rc;
}

void compute_free_buffers(struct work *w) {
    free(w->in);
    free(w->out);
    free(w->fault);
    w->in = w->out = NULL;
    w->fault = NULL;
    w->rows_cap = 0;
}

void compute_free_work(struct work *w) {
    if (!w) return;
    compute_free_buffers(w);
    step_free(w->step);
    free(w->control);
    free((void *)(uintptr_t)w->model);
    free(w);
}

void compute_stop(struct compute *c) {
    atomic_store(&c->quit, true);
    fetch_want(&c->fetch, UINT64_MAX);
    queue_close(&c->todo);
    thread_join(&c->thread);
    for (struct work *w = queue_pop(&c->done, 0); w; w = queue_pop(&c->done, 0)) compute_free_work(w);
    queue_fini(&c->todo);
    queue_fini(&c->done);
    cache_fini(&c->cache);
    fetch_fini(&c->fetch);
}

int compute_push(struct compute *c, struct work *w) { return queue_push(&c->todo, w); }
