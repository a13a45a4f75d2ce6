#include "node/hold.h"

#include "base/size.h"
#include "node/compute.h"

#include <stdlib.h>
#include <string.h>

enum { WORKS_MAX = 2 * LIMIT_NODE_STAGES };

struct hold_key hold_key_of(const struct node_model *m, uint32_t a, uint32_t b, uint32_t n_blocks) {
    return (struct hold_key){.plan_hash = m->plan_hash,
                             .head_boot = m->head_boot,
                             .a = a,
                             .b = b,
                             .n_blocks = n_blocks,
                             .max_rows = m->max_rows,
                             .max_context = m->max_context};
}

static bool same(const struct hold_key *x, const struct hold_key *y) {
    return x->plan_hash == y->plan_hash && x->head_boot == y->head_boot && x->a == y->a && x->b == y->b &&
           x->n_blocks == y->n_blocks && x->max_rows == y->max_rows && x->max_context == y->max_context;
}

void hold_init(struct hold_list *l, struct compute *c, uint64_t max_bytes) {
    *l = (struct hold_list){.compute = c, .max_bytes = max_bytes};
    list_init(&l->all);
}

static void forget(struct holding *h) {
    list_remove(&h->all);
    free(h->work);
    free(h);
}

void hold_fini(struct hold_list *l) {
    if (!l->compute) return;
    LIST_EACH(it, &l->all) {
        struct holding *h = LIST_ENTRY(it, struct holding, all);
        stage_free(h->stage);
        forget(h);
    }
}

uint64_t hold_bytes(const struct hold_list *l) {
    uint64_t bytes = 0;
    LIST_EACH(it, &l->all) {
        const struct holding *h = LIST_ENTRY(it, struct holding, all);
        if (h->state != HOLD_FREEING) bytes += h->memory_bytes;
    }
    return bytes;
}

void hold_unname_all(struct hold_list *l) { LIST_EACH(it, &l->all) LIST_ENTRY(it, struct holding, all)->named = false; }

// The one of these layers that can still be used.
static struct holding *find(const struct hold_list *l, const struct hold_key *k) {
    LIST_EACH(it, &l->all) {
        struct holding *h = LIST_ENTRY(it, struct holding, all);
        if (h->state != HOLD_FREEING && !atomic_load(&h->given_up) && same(&h->key, k)) return h;
    }
    return NULL;
}

void hold_name(struct hold_list *l, const struct hold_key *k) {
    struct holding *h = find(l, k);
    if (h) h->named = true;
}

static bool push(struct hold_list *l, struct holding *h, enum work_type type) {
    *h->work = (struct work){.type = type, .hold = h};
    if (l->n_works >= WORKS_MAX || compute_push(l->compute, &l->compute->lazy, h->work)) return false;
    l->n_works++;
    return true;
}

static bool free_one(struct hold_list *l, struct holding *h) {
    if (!push(l, h, WORK_FREE)) return false;
    h->state = HOLD_FREEING;
    return true;
}

// Frees what no assignment names, the longest unused first, until so many bytes are free. The lazy thread frees it
// before it begins with what is pushed later.
static bool make_room(struct hold_list *l, uint64_t bytes) {
    while (hold_bytes(l) + bytes > l->max_bytes) {
        struct holding *oldest = NULL;
        LIST_EACH(it, &l->all) {
            struct holding *h = LIST_ENTRY(it, struct holding, all);
            if (h->state == HOLD_RESIDENT && !h->user && !h->named && (!oldest || h->used < oldest->used)) oldest = h;
        }
        if (!oldest || !free_one(l, oldest)) return false;
    }
    return true;
}

// Whether memory will come back without anybody's doing: a load that was given up, jobs of an ended assignment.
static bool room_will_come(const struct hold_list *l) {
    LIST_EACH(it, &l->all) {
        const struct holding *h = LIST_ENTRY(it, struct holding, all);
        if (h->state == HOLD_LOADING && !h->user) return true;
        if (h->state == HOLD_RESIDENT && h->user && !h->named) return true;
    }
    return false;
}

static int check_memory(struct hold_list *l, const struct hold_key *k, const struct node_model *m, uint64_t *bytes,
                        struct err *e) {
    const struct stage_config config = {.hparams = &m->hparams,
                                        .mode = m->mode,
                                        .a = k->a,
                                        .b = k->b,
                                        .n_kv_blocks = k->n_blocks,
                                        .max_rows = k->max_rows,
                                        .max_context = k->max_context};
    struct stage_memory s;
    stage_memory(&config, l->compute->lazy.be->ops, &s);
    *bytes = s.weights_bytes + s.kv_bytes + s.scratch_bytes;
    if (*bytes <= l->max_bytes) {
        if (make_room(l, *bytes)) return ERR_OK;
        if (room_will_come(l)) return err_set(e, ERR_UNAVAILABLE, "memory is being given back");
    }
    uint64_t held = hold_bytes(l);
    char need[SIZE_TEXT_BYTES], weights[SIZE_TEXT_BYTES], kv[SIZE_TEXT_BYTES], scratch[SIZE_TEXT_BYTES];
    char most[SIZE_TEXT_BYTES];
    return err_set(e, ERR_LIMIT, "layers [%u, %u) need %s (weights %s, KV %s, scratch %s), this node may use %s%s",
                   k->a, k->b, size_text_up(*bytes, need), size_text(s.weights_bytes, weights),
                   size_text(s.kv_bytes, kv), size_text(s.scratch_bytes, scratch), size_text(l->max_bytes, most),
                   *bytes <= l->max_bytes && held ? " and holds other layers" : "");
}

static int add(struct hold_list *l, const struct hold_key *k, const struct node_model *m, struct holding **out,
               struct err *e) {
    uint64_t bytes;
    int rc = check_memory(l, k, m, &bytes, e);
    if (rc) return rc;
    struct holding *h = calloc(1, sizeof *h);
    struct work *w = malloc(sizeof *w);
    if (!h || !w) {
        free(h);
        free(w);
        return err_set(e, ERR_NOMEM, "layers [%u, %u): no memory", k->a, k->b);
    }
    h->state = HOLD_LOADING;
    h->key = *k;
    h->model = *m;
    h->memory_bytes = bytes;
    h->work = w;
    list_push_back(&l->all, &h->all);
    if (!push(l, h, WORK_LOAD)) {
        forget(h);
        return err_set(e, ERR_LIMIT, "too many loads wait for this node's compute thread");
    }
    *out = h;
    return ERR_OK;
}

int hold_want(struct hold_list *l, const struct hold_key *k, const struct node_model *m, struct assignment *user,
              struct holding **out, struct err *e) {
    struct holding *h = find(l, k);
    if (h && h->user) return err_set(e, ERR_UNAVAILABLE, "an assignment that ends has jobs in hand");
    if (!h) {
        int rc = add(l, k, m, &h, e);
        if (rc) return rc;
    }
    h->user = user;
    h->used = ++l->uses;
    *out = h;
    return ERR_OK;
}

void hold_release(struct hold_list *l, struct holding *h) {
    if (!h) return;
    h->user = NULL;
    h->used = ++l->uses;
}

void hold_tidy(struct hold_list *l, uint64_t head_boot, bool idle) {
    bool wake = false;
    LIST_EACH(it, &l->all) {
        struct holding *h = LIST_ENTRY(it, struct holding, all);
        if (h->user) continue;
        if (h->state == HOLD_LOADING && !atomic_exchange(&h->given_up, true)) wake = true;
        bool useless = idle || h->key.head_boot != head_boot;
        if (h->state == HOLD_RESIDENT && useless && !free_one(l, h))
            break; // the queue is full: it stays a little longer
    }
    if (wake) fetch_wake(&l->compute->fetch);
}

bool hold_done(struct hold_list *l, struct work *w, struct assignment **user) {
    struct holding *h = w->hold;
    l->n_works--;
    *user = h->user;
    if (w->type == WORK_LOAD && w->rc == ERR_OK) {
        h->state = HOLD_RESIDENT;
        atomic_store(&h->given_up, false); // it was done before it heard
        return true;
    }
    stage_free(h->stage); // of a FREE that was not carried out, because the node ends
    forget(h);
    return false;
}
