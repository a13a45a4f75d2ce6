#include "head/local.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stage.h"
#include "os/clock.h"
#include "os/queue.h"
#include "os/thread.h"

enum { MAX_JOBS = LIMIT_STEPS_IN_FLIGHT + 8 };

// What travels to the compute thread and back: a load, or a step with its result. Taken from a fixed pool.
struct job {
    struct local *owner;
    bool is_load;
    uint32_t epoch, n_blocks;
    struct step *step;
    struct step_result result;
    int rc;
    struct err err;
};

struct local {
    struct loop *loop;
    struct local_handlers handlers;
    struct hparams hparams;
    struct run_mode mode;
    uint32_t max_rows, max_context, n_stages;
    struct backend *backend;
    struct model_part *part[LIMIT_STAGES]; // NULL once a stage owns it
    uint32_t first_layer[LIMIT_STAGES + 1];
    struct stage *stage[LIMIT_STAGES];
    pthread_mutex_t stage_lock; // stage[] is replaced by the compute thread while others count
    uint32_t n_blocks;
    uint32_t epoch;      // compute thread
    uint16_t *hidden[2]; // rows between two stages
    uint8_t *fault;
    struct queue jobs, unused;
    struct job job[MAX_JOBS];
    struct thread thread;
    bool thread_runs;
};

static int make_stage(struct local *x, uint32_t i, uint32_t n_blocks, struct err *e) {
    struct stage_config c = {.hparams = &x->hparams,
                             .mode = x->mode,
                             .a = x->first_layer[i],
                             .b = x->first_layer[i + 1],
                             .n_kv_blocks = n_blocks,
                             .max_rows = x->max_rows,
                             .max_context = x->max_context};
    struct model_part *part = x->part[i];
    x->part[i] = NULL;
    struct stage *s = NULL;
    int rc = stage_new(&c, x->backend, part, &s, e);
    pthread_mutex_lock(&x->stage_lock);
    x->stage[i] = rc ? NULL : s;
    pthread_mutex_unlock(&x->stage_lock);
    return rc;
}

// The weights stay for the life of the process, so the number of blocks is set by the first load.
static int load(struct local *x, struct job *j) {
    int rc = ERR_OK;
    if (x->n_blocks && x->n_blocks != j->n_blocks)
        return err_set(&j->err, ERR_LIMIT, "the local stages were made with %u KV blocks, not %u", x->n_blocks,
                       j->n_blocks);
    for (uint32_t i = 0; i < x->n_stages && !rc; i++) {
        if (x->stage[i]) {
            stage_reset(x->stage[i]);
        } else {
            rc = make_stage(x, i, j->n_blocks, &j->err);
        }
    }
    if (rc) return rc;
    x->n_blocks = j->n_blocks;
    x->epoch = j->epoch;
    return ERR_OK;
}

static int run_step(struct local *x, struct job *j) {
    const struct step *s = j->step;
    int rc = step_check(s, x->hparams.n_vocab, x->n_blocks, &j->err);
    memset(x->fault, 0, s->n_rows);
    for (uint32_t i = 0; i < x->n_stages && !rc; i++)
        rc = stage_run(x->stage[i], s, i ? x->hidden[(i + 1) & 1] : NULL, x->hidden[i & 1], x->fault, &j->result,
                       &j->err);
    return rc;
}

static void deliver(void *arg) {
    struct job *j = arg;
    struct local *x = j->owner;
    if (j->rc) {
        x->handlers.failed(x->handlers.arg, j->epoch, j->err.text);
    } else if (j->is_load) {
        x->handlers.ready(x->handlers.arg, j->epoch);
    } else {
        x->handlers.result(x->handlers.arg, &j->result);
    }
    int rc = queue_push(&x->unused, j);
    ASSERT(rc == ERR_OK, "the pool of jobs overflowed");
}

static void compute(void *arg) {
    struct local *x = arg;
    struct job *j;
    while ((j = queue_pop(&x->jobs, QUEUE_FOREVER))) {
        j->err.text[0] = 0;
        j->result.n = 0;
        if (j->is_load) {
            j->rc = load(x, j);
        } else if (j->epoch != x->epoch) {
            j->rc = ERR_OK; // of a route that is no more: an empty result, which the brain ignores by its epoch
            j->result.id = j->step->id;
            j->result.epoch = j->epoch;
        } else {
            j->rc = run_step(x, j);
        }
        while (loop_post(x->loop, deliver, j))
            clock_sleep_ms(1); // the loop is behind: without this result it would wait
    }
}

static int make_buffers(struct local *x, struct err *e) {
    size_t row_bytes = (size_t)x->hparams.hidden * sizeof(uint16_t);
    x->fault = calloc(x->max_rows, 1);
    for (int i = 0; i < 2; i++) x->hidden[i] = calloc(x->max_rows, row_bytes);
    if (!x->fault || !x->hidden[0] || !x->hidden[1]) return err_set(e, ERR_NOMEM, "no memory for hidden rows");
    int rc = queue_init(&x->jobs, MAX_JOBS, false, e);
    if (!rc) rc = queue_init(&x->unused, MAX_JOBS, false, e);
    for (int i = 0; i < MAX_JOBS && !rc; i++) {
        x->job[i].owner = x;
        x->job[i].step = step_new();
        rc = x->job[i].step ? queue_push(&x->unused, &x->job[i]) : err_set(e, ERR_NOMEM, "no memory for steps");
    }
    return rc;
}

// One progress bar over all stages: each reports its own bytes.
struct progress_sum {
    const struct model_progress *out;
    uint64_t before_bytes, total_bytes;
};

static void add_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    struct progress_sum *p = arg;
    (void)total_bytes;
    if (p->out->fn) p->out->fn(p->out->arg, p->before_bytes + done_bytes, p->total_bytes);
}

static int load_parts(struct local *x, const struct local_config *c, struct err *e) {
    struct progress_sum sum = {.out = &c->progress};
    sum.total_bytes = model_layer_bytes(&x->hparams, &x->mode, x->backend->ops, 0, x->hparams.n_layers);
    struct model_progress p = {.fn = add_progress, .arg = &sum};
    for (uint32_t i = 0; i < c->n_stages; i++) {
        uint32_t a = x->first_layer[i], b = a + c->layers[i];
        x->first_layer[i + 1] = b;
        int rc = model_part_load(&x->hparams, &x->mode, c->model->tensors, x->backend, a, b, &p, &x->part[i], e);
        if (rc) return err_prefix(e, "%s", c->model->path);
        sum.before_bytes += model_layer_bytes(&x->hparams, &x->mode, x->backend->ops, a, b);
    }
    return ERR_OK;
}

static int check_split(const struct local_config *c, struct err *e) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n_stages; i++) {
        if (!c->layers[i]) return err_set(e, ERR_USAGE, "--split: stage %u has no layer; every stage needs one", i);
        sum += c->layers[i];
    }
    if (c->n_stages < 1 || sum != c->model->hparams.n_layers)
        return err_set(e, ERR_USAGE, "--split: the stages hold %llu layers, the model has %u", (unsigned long long)sum,
                       c->model->hparams.n_layers);
    return ERR_OK;
}

int local_new(struct loop *l, const struct local_config *c, const struct local_handlers *h, struct local **out,
              struct err *e) {
    int rc = check_split(c, e);
    if (rc) return rc;
    struct local *x = calloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_NOMEM, "no memory for the local stages");
    x->loop = l;
    x->handlers = *h;
    x->hparams = c->model->hparams;
    x->mode = c->mode;
    x->max_rows = c->max_rows;
    x->max_context = c->max_context;
    x->n_stages = c->n_stages;
    pthread_mutex_init(&x->stage_lock, NULL);
    rc = make_buffers(x, e);
    if (!rc) rc = backend_cpu_new(&c->cpu, &x->backend, e);
    if (!rc) rc = load_parts(x, c, e);
    if (!rc) rc = thread_start(&x->thread, "loom-compute", compute, x, e);
    x->thread_runs = !rc;
    if (rc) {
        local_free(x);
        return rc;
    }
    *out = x;
    return ERR_OK;
}

void local_free(struct local *x) {
    if (!x) return;
    if (x->thread_runs) {
        queue_close(&x->jobs);
        thread_join(&x->thread);
    }
    for (uint32_t i = 0; i < x->n_stages; i++) {
        if (x->stage[i]) stage_free(x->stage[i]);
        if (x->part[i]) model_part_free(x->part[i]);
    }
    if (x->backend) x->backend->ops->free(x->backend);
    for (int i = 0; i < MAX_JOBS; i++) step_free(x->job[i].step);
    if (x->jobs.items) queue_fini(&x->jobs);
    if (x->unused.items) queue_fini(&x->unused);
    pthread_mutex_destroy(&x->stage_lock);
    free(x->hidden[0]);
    free(x->hidden[1]);
    free(x->fault);
    free(x);
}

static void send(struct local *x, struct job *j) {
    int rc = queue_push(&x->jobs, j);
    ASSERT(rc == ERR_OK, "the compute queue overflowed"); // it holds as many as there are jobs
}

void local_load(struct local *x, uint32_t epoch, uint32_t n_blocks) {
    struct job *j = queue_pop(&x->unused, 0);
    ASSERT(j, "more loads and steps in flight than LIMIT_STEPS_IN_FLIGHT");
    j->is_load = true;
    j->epoch = epoch;
    j->n_blocks = n_blocks;
    send(x, j);
}

void local_step(struct local *x, const struct step *s) {
    struct job *j = queue_pop(&x->unused, 0);
    ASSERT(j, "more steps in flight than LIMIT_STEPS_IN_FLIGHT");
    j->is_load = false;
    j->epoch = s->epoch;
    step_copy(j->step, s);
    send(x, j);
}

void local_counts(const struct local *x, struct local_counts *c) {
    *c = (struct local_counts){0};
    pthread_mutex_t *lock = (pthread_mutex_t *)&x->stage_lock;
    pthread_mutex_lock(lock);
    for (uint32_t i = 0; i < x->n_stages; i++) {
        struct stage_counts k;
        if (!x->stage[i]) continue;
        stage_counts(x->stage[i], &k);
        if (k.blocks_used > c->blocks_used) c->blocks_used = k.blocks_used;
        if (k.slots_used > c->slots_used) c->slots_used = k.slots_used;
        c->steps = k.steps;
        c->busy_us += k.busy_us;
    }
    pthread_mutex_unlock(lock);
}
