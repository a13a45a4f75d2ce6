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

// The best of n scores that is not taken, ties to the lower index; n where all are taken.
static uint32_t best_left(const float *score, uint32_t n, const bool *taken) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!taken[i] && (best == n || score[i] > score[best])) best = i;
    return best;
}

// Marks as taken the experts of all groups but the best.
static void close_groups(const struct ref_sigmoid_router *s, const float *score, bool *taken) {
    uint32_t size = s->n / s->n_groups;
    float of_group[LIMIT_EXPERTS] = {0};
    bool stays[LIMIT_EXPERTS] = {false};
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const float *c = score + g * size;
        bool seen[LIMIT_EXPERTS] = {false};
        uint32_t first = best_left(c, size, seen);
        seen[first] = true;
        uint32_t second = best_left(c, size, seen);
        of_group[g] = second < size ? c[first] + c[second] : c[first];
    }
    for (uint32_t i = 0; i < s->top_groups; i++) stays[best_left(of_group, s->n_groups, stays)] = true;
    for (uint32_t e = 0; e < s->n; e++) taken[e] = !stays[e / size];
}

void ref_router_sigmoid(const struct ref_sigmoid_router *s, const float *logits, uint32_t *index, float *weight,
                        bool *fault) {
    float sigmoid[LIMIT_EXPERTS] = {0}, score[LIMIT_EXPERTS] = {0}, sum = 0.0f;
    bool taken[LIMIT_EXPERTS] = {false};
    ASSERT(s->n <= LIMIT_EXPERTS && s->n_groups >= 1 && s->n % s->n_groups == 0, "%u experts in %u groups", s->n,
           s->n_groups);
    ASSERT(s->top_groups >= 1 && s->top_groups <= s->n_groups && s->top_k <= s->n / s->n_groups * s->top_groups,
           "%u experts of %u groups", s->top_k, s->top_groups);
    for (uint32_t e = 0; e < s->n; e++) {
        sigmoid[e] = ref_sigmoid(logits[e], fault);
        score[e] = s->bias ? sigmoid[e] + s->bias[e] : sigmoid[e];
    }
    if (s->top_groups < s->n_groups) close_groups(s, score, taken);
    for (uint32_t a = 0; a < s->top_k; a++) {
        index[a] = best_left(score, s->n, taken);
        taken[index[a]] = true;
        weight[a] = sigmoid[index[a]];
        sum = sum + weight[a];
    }
    sum = sum + 0x1.79ca1p-67f; // f32 of 1e-20
    for (uint32_t a = 0; s->norm_topk && a < s->top_k; a++) weight[a] = weight[a] / sum;
}
