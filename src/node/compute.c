#include "node/compute.h"

#include "os/clock.h"

#include <stdlib.h>
#include <string.h>

static int run_job(struct worker *k, struct work *w) {
    struct holding *h = w->hold;
    if (atomic_load(w->over)) return err_set(&w->e, ERR_CANCELLED, "the assignment is over");
    if (w->hot == k->is_lazy) atomic_fetch_add(&k->compute->waited, 1u + queue_count(&k->todo));
    if (h->be != k->be) stage_move(h->stage, k->be);
    h->be = k->be;
    if (w->reset) stage_reset(h->stage);
    const struct holder_job *j = w->job;
    uint64_t begin_us = clock_now_us();
    int rc = stage_run(h->stage, j->step, j->hidden, w->out, j->fault, w->wants_result ? &w->result : NULL, &w->e);
    w->us = clock_now_us() - begin_us;
    return rc;
}

static int carry_out(struct worker *k, struct work *w) {
    struct compute *c = k->compute;
    if (atomic_load(&c->quit)) return err_set(&w->e, ERR_CANCELLED, "the node ends");
    switch (w->type) {
    case WORK_RUN:
        return run_job(k, w);
    case WORK_LOAD:
        return loader_run(c, w->hold, &w->e);
    case WORK_FREE:
        stage_free(w->hold->stage);
        w->hold->stage = NULL;
        return ERR_OK;
    case WORK_HELLO:
        break;
    }
    if (k->is_lazy) thread_lower_priority();
    return backend_cpu_new(&k->cpu, &k->be, &w->e);
}

static void run(void *arg) {
    struct worker *k = arg;
    for (struct work *w = queue_pop(&k->todo, QUEUE_FOREVER); w; w = queue_pop(&k->todo, QUEUE_FOREVER)) {
        w->rc = carry_out(k, w);
        int rc = queue_push(&k->compute->done, w);
        ASSERT(rc == 0, "the queue of results holds what the queues of work hold");
    }
}

static int start_worker(struct compute *c, struct worker *k, const char *name, struct err *e) {
    k->compute = c;
    int rc = queue_init(&k->todo, COMPUTE_QUEUE, false, e);
    if (!rc) rc = thread_start(&k->thread, name, run, k, e);
    if (rc) return rc;
    k->runs = true;
    rc = compute_push(c, k, &k->hello);
    ASSERT(rc == 0, "an empty queue takes one");
    struct work *w = queue_pop(&c->done, QUEUE_FOREVER);
    ASSERT(w == &k->hello);
    if (w->rc) *e = w->e;
    return w->rc;
}

int compute_start(struct compute *c, const struct backend_cpu_config *cpu, const char *cache_dir, uint64_t cache_bytes,
                  const char *model_dir, struct err *e) {
    *c = (struct compute){.hot = {.cpu = *cpu}, .lazy = {.cpu = *cpu, .is_lazy = true}};
    c->hot.todo.fd = c->lazy.todo.fd = c->done.fd = -1;
    int rc = fetch_init(&c->fetch, e);
    if (!rc) rc = cache_init(&c->cache, cache_dir, cache_bytes, model_dir, &c->loading_bytes, &c->quit, e);
    if (!rc) rc = queue_init(&c->done, 4 * COMPUTE_QUEUE, true, e); // the loop may be late
    if (!rc) rc = start_worker(c, &c->hot, "hot", e);
    if (!rc) rc = start_worker(c, &c->lazy, "lazy", e);
    if (!rc) return ERR_OK;
    compute_stop(c);
    compute_fini(c);
    return rc;
}

void compute_stop(struct compute *c) {
    struct worker *list[] = {&c->hot, &c->lazy};
    atomic_store(&c->quit, true);
    for (uint32_t i = 0; i < 2; i++)
        if (list[i]->runs) queue_close(&list[i]->todo);
    for (uint32_t i = 0; i < 2; i++)
        if (list[i]->runs) thread_join(&list[i]->thread);
}

void compute_fini(struct compute *c) {
    struct worker *list[] = {&c->hot, &c->lazy};
    for (uint32_t i = 0; i < 2; i++) {
        if (list[i]->be) list[i]->be->ops->free(list[i]->be);
        if (list[i]->todo.items) queue_fini(&list[i]->todo);
        *list[i] = (struct worker){0};
    }
    if (c->done.items) queue_fini(&c->done);
    cache_fini(&c->cache);
    fetch_fini(&c->fetch);
}

int compute_push(struct compute *c, struct worker *k, struct work *w) {
    (void)c;
    return queue_push(&k->todo, w);
}
