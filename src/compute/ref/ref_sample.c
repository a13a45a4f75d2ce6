// The sampler as the contract reads: it sorts. compute/cpu/sampler.c draws the same tokens without sorting.
#include "base/rng.h"
#include "compute/ref/ref.h"

#include <stdlib.h>

void ref_penalise(float *logits, uint32_t n_vocab, const struct ref_penalties *p) {
    for (uint32_t i = 0; i < p->n_bias; i++)
        if ((uint32_t)p->bias[i].token < n_vocab) {
            float *l = &logits[p->bias[i].token];
            *l = *l + p->bias[i].bias;
        }
    for (uint32_t i = 0; i < p->n_seen; i++) {
        if ((uint32_t)p->seen[i].token >= n_vocab) continue;
        float *l = &logits[p->seen[i].token];
        uint32_t count = p->seen[i].in_answer;
        if (p->repetition != 1.0f) *l = *l > 0.0f ? *l / p->repetition : *l * p->repetition;
        if (p->frequency != 0.0f && count > 0) *l = fmaf(-p->frequency, (float)count, *l);
        if (p->presence != 0.0f && count > 0) *l = *l - p->presence;
    }
}

uint64_t ref_draw(const struct sampling *p, uint32_t pos, uint64_t sum) {
    uint32_t c[4] = {pos, p->choice, 0x4C4F4F4Du, 0};
    philox4x32(c, (uint32_t)p->seed, (uint32_t)(p->seed >> 32));
    return (uint64_t)(((unsigned __int128)((uint64_t)c[1] << 32 | c[0]) * sum) >> 64);
}

uint64_t ref_top_p_mass(float top_p, uint64_t sum) {
    uint64_t p = (uint64_t)rintf(top_p * 0x1p24f);
    return (sum >> 24) * p + (((sum & 0xffffffu) * p) >> 24);
}

float ref_logprob(float l, float best, uint64_t sum) { return (float)((double)(l - best) - log((double)sum / 0x1p30)); }

static int by_rank(const void *a, const void *b) {
    const struct ref_ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int by_token(const void *a, const void *b) {
    const struct ref_ranked *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

// Lists the allowed tokens in id order; returns their number and the place of the best. 0 with a fault.
static uint32_t list_allowed(const float *logits, uint32_t n_vocab, const uint32_t *allowed, struct ref_ranked *r,
                             uint32_t *best, bool *fault) {
    uint32_t n = 0;
    *best = 0;
    for (uint32_t t = 0; t < n_vocab; t++) {
        if (!ref_is_finite(logits[t])) {
            *fault = true;
            return 0;
        }
        if (allowed && !(allowed[t / 32] >> (t % 32) & 1u)) continue;
        r[n] = (struct ref_ranked){.logit = logits[t], .token = (int32_t)t};
        if (r[n].logit > r[*best].logit) *best = n;
        n++;
    }
    if (n == 0) *fault = true;
    return n;
}

// Steps 4 to 6 on ranked tokens: how many of them are kept.
static uint32_t keep(const struct ref_ranked *r, uint32_t n_all, const struct sampling *p) {
    uint32_t n = p->top_k > 0 && (uint32_t)p->top_k < n_all ? (uint32_t)p->top_k : n_all;
    if (p->top_p < 1.0f) {
        uint64_t sum = 0, reached = 0;
        for (uint32_t i = 0; i < n; i++) sum += r[i].u;
        uint64_t mass = ref_top_p_mass(p->top_p, sum);
        uint32_t m = 0;
        do reached += r[m++].u;
        while (m < n && reached < mass);
        n = m;
    }
    uint32_t min = (uint32_t)rintf(p->min_p * 0x1p30f);
    while (n > 1 && r[n - 1].u < min) n--;
    return n;
}

int32_t ref_sample(const float *logits, uint32_t n_vocab, const struct sampling *p, uint32_t pos,
                   const uint32_t *allowed, struct ref_ranked *scratch, bool *fault) {
    uint32_t best_at, n = list_allowed(logits, n_vocab, allowed, scratch, &best_at, fault);
    if (n == 0) return -1;
    int32_t best = scratch[best_at].token;
    if (p->temperature < 0x1p-20f) return best;
    float best_logit = scratch[best_at].logit, scale = REF_LOG2E / p->temperature;
    for (uint32_t i = 0; i < n; i++)
        scratch[i].u = (uint32_t)rintf(ref_exp2((scratch[i].logit - best_logit) * scale, fault) * 0x1p30f);
    if (*fault) return -1;
    qsort(scratch, n, sizeof *scratch, by_rank);
    uint32_t n_kept = keep(scratch, n, p);
    qsort(scratch, n_kept, sizeof *scratch, by_token);
    uint64_t sum = 0, running = 0;
    for (uint32_t i = 0; i < n_kept; i++) sum += scratch[i].u;
    uint64_t target = ref_draw(p, pos, sum);
    for (uint32_t i = 0; i < n_kept; i++) {
        running += scratch[i].u;
        if (running > target) return scratch[i].token;
    }
    return best;
}
