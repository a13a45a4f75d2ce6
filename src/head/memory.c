// What local stages will take, by the same reckoning as the plan that they will get.
#include "engine/stage.h"
#include "head/head_internal.h"
#include "os/cpu.h"

#include <stdlib.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

uint32_t head_max_blocks(const struct head_config *c) {
    return (c->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS * c->sequences;
}

uint64_t head_local_memory_bytes(const struct head_config *c) {
    return c->memory_bytes ? c->memory_bytes : cpu_memory_available_bytes() / 10 * 9;
}

static int count_blocks(const struct head_config *c, struct head_memory *out, uint32_t *n_blocks, struct err *e) {
    const uint32_t least = (c->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    struct plan_node node = {.id = 1, .memory_bytes = head_local_memory_bytes(c)};
    struct plan_wish wish = {.context = c->context, .max_blocks = head_max_blocks(c)};
    struct plan_model *m = malloc(sizeof *m);
    struct plan *p = malloc(sizeof *p);
    int rc = m && p ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a plan");
    if (!rc) rc = head_plan_model(&c->model->hparams, &c->mode, c->chunk_rows, m, e);
    if (!rc)
        *out = (struct head_memory){.least_bytes = plan_stage_bytes(m, 0, m->n_layers, least),
                                    .limit_bytes = node.memory_bytes};
    *n_blocks = least;
    if (!rc) rc = plan_make(&node, 1, m, &wish, p, e);
    if (!rc) *n_blocks = p->n_blocks;
    free(m);
    free(p);
    return rc;
}

int head_memory(const struct head_config *c, struct head_memory *m, struct err *e) {
    const struct hparams *h = &c->model->hparams;
    uint32_t n_blocks, a = 0;
    struct backend *be;
    *m = (struct head_memory){0};
    const int fits = count_blocks(c, m, &n_blocks, e);
    if (fits && fits != ERR_LIMIT) return fits;
    int rc = backend_cpu_new(&(struct backend_cpu_config){.isa = c->cpu.isa, .n_threads = 1}, &be, fits ? NULL : e);
    if (rc) return rc;
    for (uint32_t i = 0; i < c->n_stages && a < h->n_layers; i++) {
        uint32_t n = c->layers[i] < h->n_layers - a ? c->layers[i] : h->n_layers - a;
        struct stage_config sc = {.hparams = h, .mode = c->mode, .a = a, .b = a + n};
        struct stage_memory s;
        sc.n_kv_blocks = n_blocks;
        sc.max_rows = c->chunk_rows;
        if (n == 0) continue;
        stage_memory(&sc, be->ops, &s);
        m->weights_bytes += model_file_layer_bytes(h, &c->mode, be->ops, c->model->tensors, a, a + n);
        m->kv_bytes += s.kv_bytes;
        m->scratch_bytes += s.scratch_bytes;
        a += n;
    }
    be->ops->free(be);
    // The rows of a layer lie together, so that the first block of each is in a page of its own.
    m->kv_begin_bytes = (uint64_t)h->n_layers * HUGE_PAGE_BYTES;
    if (m->kv_begin_bytes > m->kv_bytes) m->kv_begin_bytes = m->kv_bytes;
    m->kv_tokens = (uint64_t)n_blocks * LIMIT_BLOCK_TOKENS;
    return fits;
}
