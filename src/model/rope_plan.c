// What becomes of the frequencies once they are read: the choice by context, their way to other machines, and the
// growth of queries with their position.
#include "model/rope.h"

#include "compute/ref/ref.h"
#include <math.h>

void model_set_context(struct hparams *h, uint32_t context) {
    if (h->rope_short_context == 0) return;
    h->rope[0] = context > h->rope_short_context ? h->rope_long : h->rope_short;
}

uint32_t model_rope_get(const struct hparams *h, double values[LIMIT_ROPE_VALUES]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ROPE_SETS; i++) {
        const struct rope_set *r = &h->rope[i];
        if (r->n_freq == 0) continue;
        for (uint32_t k = 0; k < r->n_freq; k++) values[n++] = r->fq[k];
        values[n++] = (double)r->factor;
    }
    return n;
}

int model_rope_put(struct hparams *h, const double *values, uint32_t n, struct err *e) {
    uint32_t want = 0;
    for (uint32_t i = 0; i < ROPE_SETS; i++) want += h->rope[i].n_freq ? h->rope[i].n_freq + 1 : 0;
    if (n != want) return err_set(e, ERR_FORMAT, "%u RoPE values; the model has %u", n, want);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(values[i])) return err_set(e, ERR_FORMAT, "RoPE value %u is not finite", i);
    for (uint32_t i = 0; i < ROPE_SETS; i++) {
        struct rope_set *r = &h->rope[i];
        if (r->n_freq == 0) continue;
        for (uint32_t k = 0; k < r->n_freq; k++) r->fq[k] = *values++;
        r->factor = (float)*values++;
    }
    return ERR_OK;
}

float rope_q_factor(const struct hparams *h, uint32_t pos) {
    return ref_position_factor(pos, h->q_original, h->q_beta);
}
