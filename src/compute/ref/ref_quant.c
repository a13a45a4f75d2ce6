#include "compute/ref/ref.h"

float ref_quant(const float *x, uint32_t n, int8_t *q, bool *fault) {
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = ref_bits(x[i]) & REF_ABS_BITS;
        if (u > m) m = u;
    }
    if (m >= REF_INF_BITS) {
        *fault = true;
        m = 0;
    }
    float amax = ref_float(m);
    if (amax < REF_TINY) {
        memset(q, 0, n);
        return 0.0f;
    }
    float id = 127.0f / amax;
    for (uint32_t i = 0; i < n; i++) q[i] = (int8_t)rintf(x[i] * id);
    return amax * REF_INV127;
}

void ref_act_sums(struct act_block *a) {
    a->sum = 0;
    for (uint32_t g = 0; g < 8; g++) {
        int32_t s = 0;
        for (uint32_t i = 0; i < 16; i++) s += a->q[g * 16 + i];
        a->sum16[g] = s;
        a->sum += s;
    }
    for (uint32_t g = 0; g < 4; g++) a->sum32[g] = a->sum16[2 * g] + a->sum16[2 * g + 1];
}

void ref_quant_row(const float *x, uint32_t k, struct act_block *a, bool *fault) {
    for (uint32_t at = 0; at < k; at += REF_ACT_BLOCK, a++) {
        uint32_t n = k - at < REF_ACT_BLOCK ? k - at : REF_ACT_BLOCK;
        memset(a->q, 0, sizeof a->q);
        a->d = ref_quant(x + at, n, a->q, fault);
        ref_act_sums(a);
    }
}
