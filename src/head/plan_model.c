#include <string.h>

#include "head/head_internal.h"
#include "engine/stage.h"
#include "replay/budget.h"

// Every CPU backend stores a weight in the same number of bytes, so the reference one tells for all.
int head_plan_model(const struct hparams *p, const struct run_mode *mode, uint32_t max_rows, struct plan_model *m,
                    struct err *e) {
    struct backend *be;
    struct backend_cpu_config one = {.isa = ISA_REF, .n_threads = 1};
    int rc = backend_cpu_new(&one, &be, e);
    if (rc) return rc;
    *m = (struct plan_model){.n_layers = p->n_layers, .scratch_bytes = stage_scratch_bytes(p, max_rows, false)};
    m->log_block_bytes = budget_block_bytes(p->hidden);
    m->embed_bytes = model_layer_bytes(p, mode, be->ops, 0, 0);
    m->head_bytes = model_layer_bytes(p, mode, be->ops, p->n_layers, p->n_layers);
    uint64_t head_weights = m->head_bytes;
    m->head_bytes += stage_scratch_bytes(p, max_rows, true) - m->scratch_bytes;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        uint64_t bytes = model_layer_bytes(p, mode, be->ops, i, i + 1);
        if (i == 0) bytes -= m->embed_bytes;
        if (i + 1 == p->n_layers) bytes -= head_weights;
        m->layer_bytes[i] = bytes;
    }
    struct kv_spec kv = {
        .type = mode->kv, .n_layers = 1, .n_kv_heads = p->n_kv_heads, .head_dim = p->head_dim, .n_blocks = 1};
    m->kv_block_bytes = be->ops->kv_block_bytes(&kv);
    be->ops->free(be);
    return ERR_OK;
}
