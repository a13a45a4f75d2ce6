#include "compute/ref/ref.h"

static bool is_chosen(const uint32_t *index, uint32_t n, uint32_t e) {
    for (uint32_t i = 0; i < n; i++)
        if (index[i] == e) return true;
    return false;
}

void ref_router(const float *logits, uint32_t n, uint32_t top_k, bool norm_topk, uint32_t *index, float *weight,
                bool *fault) {
    for (uint32_t e = 0; e < n; e++)
        if (!ref_is_finite(logits[e])) *fault = true;
    for (uint32_t a = 0; a < top_k; a++) {
        uint32_t best = n;
        for (uint32_t e = 0; e < n; e++)
            if (!is_chosen(index, a, e) && (best == n || logits[e] > logits[best])) best = e;
        index[a] = best;
    }
    float first = logits[index[0]], sum = 0.0f;
    for (uint32_t a = 0; a < top_k; a++) {
        weight[a] = ref_exp2((logits[index[a]] - first) * REF_LOG2E, fault);
        if (norm_topk) sum = sum + weight[a];
    }
    for (uint32_t e = 0; !norm_topk && e < n; e++) sum = sum + ref_exp2((logits[e] - first) * REF_LOG2E, fault);
    for (uint32_t a = 0; a < top_k; a++) weight[a] = weight[a] / sum;
}
