// Any bytes as config.json and as generation_config.json: refused with a text, or hyper-parameters within the limits.
#include "base/err.h"
#include "model/model.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int count_need(void *arg, const struct tensor_need *n) {
    ASSERT(n->name[0] && n->dim[0]);
    ++*(uint64_t *)arg;
    return 0;
}

// Either choice of a RoPE that depends on the context.
static void check_rope(struct hparams *h, uint32_t context) {
    double values[LIMIT_ROPE_VALUES];
    struct err e;
    model_set_context(h, context);
    uint32_t n = model_rope_get(h, values);
    for (uint32_t i = 0; i < n; i++) ASSERT(isfinite(values[i]));
    int rc = model_rope_put(h, values, n, &e);
    ASSERT(rc == ERR_OK);
}

static void check(struct hparams *h) {
    ASSERT(h->family && h->n_layers >= 1 && h->n_layers <= LIMIT_LAYERS);
    ASSERT(h->hidden >= 1 && h->hidden <= LIMIT_HIDDEN && h->n_vocab >= 1 && h->n_vocab <= LIMIT_VOCAB);
    ASSERT(h->head_dim >= 2 && h->head_dim <= LIMIT_HEAD_DIM && h->n_kv_heads >= 1 && h->n_heads % h->n_kv_heads == 0);
    ASSERT(h->max_context >= 1 && h->max_context <= LIMIT_CONTEXT && h->top_k <= h->n_experts);
    ASSERT(h->n_eos <= LIMIT_STOP_IDS && h->top_k <= LIMIT_TOP_K && h->top_groups <= h->n_groups);
    ASSERT(isfinite(h->head_scale) && isfinite(h->embed_scale) && isfinite(h->routed_scale));
    uint64_t n = 0;
    int rc = model_needs(h, 0, 1, count_need, &n);
    ASSERT(rc == 0 && n > 0);
    for (uint32_t i = 0; i < h->n_layers; i++)
        ASSERT(h->rope_of[i] == ROPE_NONE || (h->rope_of[i] < ROPE_SETS && h->rope[h->rope_of[i]].n_freq > 0));
    check_rope(h, 1);
    check_rope(h, LIMIT_CONTEXT);
    volatile uint64_t sink = model_plan_hash(h, &(struct run_mode){.kv = KV_I8});
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct hparams h;
    struct gen_defaults g;
    struct err e;
    int rc = model_parse_config((const char *)data, size, &h, &e);
    if (rc)
        ASSERT(e.code == rc && e.text[0]);
    else
        check(&h);
    h.n_vocab = 1000;
    h.n_eos = 0;
    rc = model_parse_generation((const char *)data, size, &h, &g, &e);
    if (rc == 0) ASSERT(g.top_p > 0 && g.top_p <= 1 && g.temperature >= 0 && g.top_k >= 0 && h.n_eos <= LIMIT_STOP_IDS);
    return 0;
}
