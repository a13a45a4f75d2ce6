// How a stage comes to be: names of the tensors, their hashes from the head, their bytes from disk or from the head,
// repacking, KV cache. Lazy thread.
#include "node/compute.h"

#include "base/log.h"
#include "base/size.h"
#include "os/clock.h"

#include <stdlib.h>
#include <string.h>

// A question about few tensors: the head hashes what nobody asked for before, and progress has to show meanwhile.
enum { ASK_TENSORS = 8 };

// The tensors' bytes, while the stage is made of them.
struct source {
    struct tensors *tensors;
    struct file_map *maps; // [n_maps], behind the tensors
    uint32_t n_maps;
};

// The needs of a layer range and what the head says about them.
struct need_list {
    char (*name)[LIMIT_TENSOR_NAME]; // [n]
    struct control_tensor *info;     // [n]
    uint32_t n, cap;
    struct strmap seen; // a tied output head needs the embedding, which may be there already
};

static void drop_source(struct source *s) {
    tensors_free(s->tensors);
    for (uint32_t i = 0; i < s->n_maps; i++) file_map_close(&s->maps[i]);
    free(s->maps);
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

static int ask_head(struct compute *c, const atomic_bool *given_up, struct need_list *l, struct err *e) {
    struct control_ask *ask = malloc(sizeof *ask);
    struct control_manifest *m = malloc(sizeof *m);
    l->info = calloc(l->n ? l->n : 1, sizeof *l->info);
    int rc = ask && m && l->info ? ERR_OK : err_set(e, ERR_NOMEM, "manifest: no memory");
    for (uint32_t at = 0; at < l->n && !rc; at += ASK_TENSORS) {
        ask->n = l->n - at < ASK_TENSORS ? l->n - at : ASK_TENSORS;
        memcpy(ask->name, l->name[at], ask->n * sizeof ask->name[0]);
        rc = fetch_manifest(&c->fetch, given_up, ask, m, e);
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

static int fetch_one(struct compute *c, const atomic_bool *given_up, const char *name, const struct control_tensor *t,
                     struct file_map *map, struct err *e) {
    struct sink s = {.c = c};
    int rc = cache_put_begin(&c->cache, t, &s.put, e);
    if (rc) return rc;
    rc = fetch_tensor(&c->fetch, given_up, name, t->bytes, sink_add, &s, e);
    if (rc) {
        cache_put_abort(&s.put);
        return rc;
    }
    return cache_put_end(&c->cache, &s.put, t, map, e);
}

static int hold_tensor(struct compute *c, const atomic_bool *given_up, const char *name, const struct control_tensor *t,
                       struct source *h, struct err *e) {
    struct file_map *map = &h->maps[h->n_maps];
    const uint8_t *data = NULL;
    int rc = cache_find(&c->cache, name, t, map, &data, e);
    if (rc == ERR_NOT_FOUND) {
        rc = fetch_one(c, given_up, name, t, map, e);
        data = map->data;
    }
    if (rc) return err_prefix(e, "tensor %s", name);
    if (map->data) h->n_maps++;
    tensors_put_data(h->tensors, name, data);
    return ERR_OK;
}

// Brings the tensors, in the order in which they are needed, while those that are there are converted already.
struct supply {
    struct compute *c;
    struct holding *h;
    struct need_list *list;
    struct source *source;
    struct thread thread;
    struct queue there; // of info[], in its order; closed at the end
    uint32_t n_there;   // taken out of it
    int rc;             // of the whole, once it is closed
    struct err e;
};

// The supply's own thread. Cache and questions are its alone until it ends.
static void bring(void *arg) {
    struct supply *s = arg;
    struct need_list *l = s->list;
    for (uint32_t i = 0; i < l->n && !s->rc; i++) {
        s->rc = hold_tensor(s->c, &s->h->given_up, l->name[i], &l->info[i], s->source, &s->e);
        if (!s->rc) s->rc = queue_push(&s->there, &l->info[i]);
    }
    queue_close(&s->there);
}

static int await(void *arg, const char *name, struct err *e) {
    struct supply *s = arg;
    uint32_t i;
    bool known = strmap_get(&s->list->seen, name, strlen(name), &i);
    ASSERT(known, "%s was not asked for", name);
    while (s->n_there <= i && queue_pop(&s->there, QUEUE_FOREVER)) s->n_there++;
    if (s->n_there > i) return ERR_OK;
    *e = s->e;
    return s->rc;
}

static void on_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    (void)done_bytes;
    (void)total_bytes;
    struct supply *s = arg;
    atomic_fetch_add(&s->c->loading_bytes, 1);
}

static int build(struct supply *s, struct err *e) {
    struct holding *h = s->h;
    const struct hold_key *k = &h->key;
    const struct stage_config config = {.hparams = &h->model.hparams,
                                        .mode = h->model.mode,
                                        .a = k->a,
                                        .b = k->b,
                                        .n_kv_blocks = k->n_blocks,
                                        .max_rows = k->max_rows,
                                        .max_context = k->max_context};
    struct model_progress progress = {.fn = on_progress, .await = await, .arg = s};
    struct model_part *part;
    h->be = s->c->lazy.be;
    int rc = model_part_load(config.hparams, &config.mode, s->source->tensors, h->be, k->a, k->b, &progress, &part, e);
    if (rc) return rc;
    if (atomic_load(&h->given_up)) {
        model_part_free(part);
        return err_set(e, ERR_CANCELLED, "the load was given up");
    }
    return stage_new(&config, h->be, part, &h->stage, e);
}

static int supply_and_build(struct supply *s, struct err *e) {
    int rc = queue_init(&s->there, s->list->n, false, e);
    if (rc) return rc;
    rc = thread_start(&s->thread, "supply", bring, s, e);
    if (!rc) {
        rc = build(s, e);
        if (rc) atomic_store(&s->h->given_up, true); // nobody needs the rest
        thread_join(&s->thread);
    }
    queue_fini(&s->there);
    return rc;
}

// What the tensors are, before there is any of their bytes.
static int describe(struct compute *c, const struct holding *h, struct need_list *l, struct source *s, struct err *e) {
    const struct hold_key *k = &h->key;
    int rc = model_needs(&h->model.hparams, k->a, k->b, add_need, l);
    if (rc) return err_set(e, rc, "layers [%u, %u): their tensors could not be listed", k->a, k->b);
    rc = ask_head(c, &h->given_up, l, e);
    if (!rc && tensors_new(&s->tensors)) rc = err_set(e, ERR_NOMEM, "tensors: no memory");
    s->maps = calloc(l->n ? l->n : 1, sizeof *s->maps);
    if (!rc && !s->maps) rc = err_set(e, ERR_NOMEM, "tensors: no memory");
    for (uint32_t i = 0; i < l->n && !rc; i++) {
        const struct control_tensor *t = &l->info[i];
        struct tensor one = {.name = l->name[i],
                             .type = (enum dtype)t->dtype,
                             .n_dims = t->n_dims,
                             .bytes = t->bytes,
                             .is_mapped = true};
        memcpy(one.dim, t->dim, sizeof one.dim);
        rc = tensors_add(s->tensors, &one, e);
    }
    return rc;
}

int loader_run(struct compute *c, struct holding *h, struct err *e) {
    if (atomic_load(&h->given_up)) return err_set(e, ERR_CANCELLED, "the load was given up");
    LOG_I("node", "layers [%u, %u) will take %lu MB", h->key.a, h->key.b, h->memory_bytes >> 20);
    cache_begin(&c->cache);
    uint64_t start_ms = clock_now_ms();
    struct need_list list = {0};
    struct source source = {0};
    strmap_init(&list.seen, LIMIT_TENSORS, (size_t)LIMIT_TENSORS * 64, 0); // names of our own model code
    int rc = describe(c, h, &list, &source, e);
    if (!rc) rc = supply_and_build(&(struct supply){.c = c, .h = h, .list = &list, .source = &source}, e);
    drop_source(&source); // the stage has copies of all: who changes or shortens a file now does no harm
    free(list.name);
    free(list.info);
    strmap_fini(&list.seen);
    if (rc) return rc;
    char bytes[SIZE_TEXT_BYTES];
    LOG_I("node", "layers [%u, %u) are loaded: %s in %lu ms", h->key.a, h->key.b, size_text(h->memory_bytes, bytes),
          clock_now_ms() - start_ms);
    return ERR_OK;
}
