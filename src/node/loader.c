// How a stage comes to be: names of the tensors, their hashes from the head, their bytes from disk or from the head,
// repacking, KV cache. Compute thread.
#include "node/compute.h"

#include "base/log.h"
#include "os/clock.h"

#include <stdlib.h>
#include <string.h>

// A question about few tensors: the head hashes what nobody asked for before, and progress has to show meanwhile.
enum { ASK_TENSORS = 8 };

// What is resident. A load that asks for just this keeps it.
struct holding {
    uint64_t plan_hash, head_boot;
    uint32_t a, b, n_blocks, max_rows, max_context;
    struct stage *stage;
    struct tensors *tensors;
    struct file_map *maps; // [n_maps], behind the tensors
    uint32_t n_maps;
    uint64_t memory_bytes;
};

// The needs of a layer range and what the head says about them.
struct need_list {
    char (*name)[LIMIT_TENSOR_NAME]; // [n]
    struct control_tensor *info;     // [n]
    uint32_t n, cap;
    struct strmap seen; // a tied output head needs the embedding, which may be there already
};

struct stage *loader_stage(const struct compute *c) {
    return c->held ? c->held->stage : NULL;
}

static void drop_files(struct holding *h) {
    tensors_free(h->tensors);
    for (uint32_t i = 0; i < h->n_maps; i++) file_map_close(&h->maps[i]);
    free(h->maps);
    h->tensors = NULL;
    h->maps = NULL;
    h->n_maps = 0;
}

static void free_holding(struct holding *h) {
    if (!h) return;
    stage_free(h->stage);
    drop_files(h);
    free(h);
}

void loader_drop(struct compute *c) {
    free_holding(c->held);
    c->held = NULL;
}

static int add_need(void *arg, const struct tensor_need *need) {
    struct need_list *l = arg;
    size_t n = strnlen(need->name, sizeof need->name);
    uint32_t at;
    if (n >= LIMIT_TENSOR_NAME) return ERR_LIMIT;
    if (strmap_get(&l->seen, need->name, n, &at)) return ERR_OK;
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 256;
        void *p = cap <= LIMIT_TENSORS ? realloc(l->name, cap * sizeof *l->name) : NULL;
        if (!p) return ERR_NOMEM;
        l->name = p;
        l->cap = cap;
    }
    memcpy(l->name[l->n], need->name, n + 1);
    return strmap_put(&l->seen, need->name, n, l->n++);
}

static int ask_head(struct compute *c, uint64_t load, struct need_list *l, struct err *e) {
    struct control_ask *ask = malloc(sizeof *ask);
    struct control_manifest *m = malloc(sizeof *m);
    l->info = calloc(l->n ? l->n : 1, sizeof *l->info);
    int rc = ask && m && l->info ? ERR_OK : err_set(e, ERR_NOMEM, "manifest: no memory");
    for (uint32_t at = 0; at < l->n && !rc; at += ASK_TENSORS) {
        ask->n = l->n - at < ASK_TENSORS ? l->n - at : ASK_TENSORS;
        memcpy(ask->name, l->name[at], ask->n * sizeof ask->name[0]);
        rc = fetch_manifest(&c->fetch, load, ask, m, e);
        for (uint32_t i = 0; i < ask->n && !rc; i++) {
            l->info[at + i] = m->entry[i];
            if (!m->entry[i].found) rc = err_set(e, ERR_NOT_FOUND, "the head's model has no tensor %s", ask->name[i]);
            atomic_fetch_add(&c->loading_bytes, 1); // a question answered is progress too
        }
    }
    free(ask);
    free(m);
    return rc;
}

struct sink {
    struct compute *c;
    struct cache_put put;
};

static int sink_add(void *arg, const void *data, size_t len, struct err *e) {
    struct sink *s = arg;
    return cache_put_add(&s->c->cache, &s->put, data, len, e);
}

static int fetch_one(struct compute *c, uint64_t load, const char *name, const struct control_tensor *t,
                     struct file_map *map, struct err *e) {
    struct sink s = {.c = c};
    int rc = cache_put_begin(&c->cache, t, &s.put, e);
    if (rc) return rc;
    rc = fetch_tensor(&c->fetch, load, name, t->bytes, sink_add, &s, e);
    if (rc) {
        cache_put_abort(&s.put);
        return rc;
    }
    return cache_put_end(&c->cache, &s.put, t, map, e);
}

static int hold_tensor(struct compute *c, uint64_t load, const char *name, const struct control_tensor *t,
                       struct holding *h, struct err *e) {
    struct file_map *map = &h->maps[h->n_maps];
    const uint8_t *data = NULL;
    int rc = cache_find(&c->cache, name, t, map, &data, e);
    if (rc == ERR_NOT_FOUND) {
        rc = fetch_one(c, load, name, t, map, e);
        data = map->data;
    }
    if (rc) return err_prefix(e, "tensor %s", name);
    if (map->data) h->n_maps++;
    struct tensor one = {
        .name = name, .type = (enum dtype)t->dtype, .n_dims = t->n_dims, .data = data, .bytes = t->bytes};
    memcpy(one.dim, t->dim, sizeof one.dim);
    return tensors_add(h->tensors, &one, e);
}

static void on_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    (void)done_bytes;
    (void)total_bytes;
    struct compute *c = arg;
    atomic_fetch_add(&c->loading_bytes, 1);
}

static struct stage_config config_of(const struct work *w) {
    return (struct stage_config){.hparams = &w->model->hparams,
                                 .mode = w->model->mode,
                                 .a = w->a,
                                 .b = w->b,
                                 .n_kv_blocks = w->n_blocks,
                                 .max_rows = w->model->max_rows,
                                 .max_context = w->model->max_context};
}

static int build(struct compute *c, struct work *w, struct holding *h, struct err *e) {
    struct stage_config config = config_of(w);
    struct model_progress progress = {.fn = on_progress, .arg = c};
    struct model_part *part;
    int rc = model_part_load(config.hparams, &config.mode, h->tensors, c->be, w->a, w->b, &progress, &part, e);
    if (rc) return rc;
    if (atomic_load(&c->fetch.wanted) != w->load) {
        model_part_free(part);
        return err_set(e, ERR_CANCELLED, "the load was given up for another one");
    }
    return stage_new(&config, c->be, part, &h->stage, e);
}

static int check_memory(struct compute *c, const struct work *w, uint64_t *bytes, struct err *e) {
    struct stage_config config = config_of(w);
    struct stage_memory m;
    stage_memory(&config, c->be->ops, &m);
    *bytes = m.weights_bytes + m.kv_bytes + m.scratch_bytes;
    if (*bytes <= c->memory_bytes) return ERR_OK;
    return err_set(
        e, ERR_LIMIT, "layers [%u, %u) need %lu MB (weights %lu, KV %lu, scratch %lu), this node may use %lu MB", w->a,
        w->b, *bytes >> 20, m.weights_bytes >> 20, m.kv_bytes >> 20, m.scratch_bytes >> 20, c->memory_bytes >> 20);
}

static bool is_held(const struct compute *c, const struct work *w) {
    const struct holding *h = c->held;
    return h && h->plan_hash == w->model->plan_hash && h->head_boot == w->model->head_boot && h->a == w->a &&
           h->b == w->b && h->n_blocks == w->n_blocks && h->max_rows == w->model->max_rows &&
           h->max_context == w->model->max_context;
}

static int gather(struct compute *c, const struct work *w, struct need_list *l, struct holding *h, struct err *e) {
    int rc = model_needs(&w->model->hparams, w->a, w->b, add_need, l);
    if (rc) return err_set(e, rc, "layers [%u, %u): their tensors could not be listed", w->a, w->b);
    rc = ask_head(c, w->load, l, e);
    if (!rc && tensors_new(&h->tensors)) rc = err_set(e, ERR_NOMEM, "tensors: no memory");
    h->maps = calloc(l->n ? l->n : 1, sizeof *h->maps);
    if (!rc && !h->maps) rc = err_set(e, ERR_NOMEM, "tensors: no memory");
    for (uint32_t i = 0; i < l->n && !rc; i++) rc = hold_tensor(c, w->load, l->name[i], &l->info[i], h, e);
    return rc;
}

int loader_run(struct compute *c, struct work *w, struct err *e) {
    if (atomic_load(&c->fetch.wanted) != w->load) return err_set(e, ERR_CANCELLED, "of an older load");
    if (is_held(c, w)) {
        stage_reset(c->held->stage);
        w->stage = c->held->stage;
        w->memory_bytes = c->held->memory_bytes;
        return ERR_OK;
    }
    loader_drop(c); // before anything new: both may not fit
    cache_begin(&c->cache);
    uint64_t start_ms = clock_now_ms();
    struct need_list list = {0};
    strmap_init(&list.seen, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * 64, 0); // names of our own model code
    struct holding *h = calloc(1, sizeof *h);
    int rc = h ? check_memory(c, w, &h->memory_bytes, e) : err_set(e, ERR_NOMEM, "loader: no memory");
    if (!rc) rc = gather(c, w, &list, h, e);
    if (!rc) rc = build(c, w, h, e);
    if (!rc) drop_files(h); // the stage has copies of all: who changes or shortens a file now does no harm
    free(list.name);
    free(list.info);
    strmap_fini(&list.seen);
    if (rc) {
        free_holding(h);
        return rc;
    }
    h->plan_hash = w->model->plan_hash;
    h->head_boot = w->model->head_boot;
    h->a = w->a;
    h->b = w->b;
    h->n_blocks = w->n_blocks;
    h->max_rows = w->model->max_rows;
    h->max_context = w->model->max_context;
    c->held = h;
    w->stage = h->stage;
    w->memory_bytes = h->memory_bytes;
    LOG_I("node", "layers [%u, %u) are loaded: %lu MB in %lu ms", w->a, w->b, h->memory_bytes >> 20,
          clock_now_ms() - start_ms);
    return ERR_OK;
}
