// The search for the scale (and minimum) of a group. For a given set of codes the best scale is a small linear problem
// of weighted least squares; which codes are worth trying is what the search varies: the step between two of them, from
// a little under to a little over what would span the values exactly. Outermost values may be clamped then, and the
// many in the middle gain by it.
#include "base/err.h"
#include "weights/quantize_int.h"

#include <math.h>
#include <stdbool.h>

// Sums over a group that do not depend on the codes, and those that do.
struct sums {
    float w, wx;        // fixed
    float wq, wqq, wqx; // of one set of codes
};

static float add_lanes(const float *lane) {
    float sum = lane[0];
    for (int i = 1; i < QUANT_LANES; i++) sum += lane[i];
    return sum;
}

static void fixed_sums(const struct quantize_group *g, struct sums *s) {
    float w[QUANT_LANES] = {0}, wx[QUANT_LANES] = {0};
    for (uint32_t i = 0; i < g->n; i += QUANT_LANES) {
        for (uint32_t l = 0; l < QUANT_LANES; l++) {
            w[l] += g->w[i + l];
            wx[l] += g->w[i + l] * g->x[i + l];
        }
    }
    s->w = add_lanes(w);
    s->wx = add_lanes(wx);
}

// The codes are round((x - from) * inverse), clamped.
static void code_sums(const struct quantize_group *g, float from, float inverse, float lo, float hi, struct sums *s) {
    float wq[QUANT_LANES] = {0}, wqq[QUANT_LANES] = {0}, wqx[QUANT_LANES] = {0};
    for (uint32_t i = 0; i < g->n; i += QUANT_LANES) {
        for (uint32_t l = 0; l < QUANT_LANES; l++) {
            float q = quantize_round((g->x[i + l] - from) * inverse);
            q = q < lo ? lo : q;
            q = q > hi ? hi : q;
            float b = g->w[i + l] * q;
            wq[l] += b;
            wqq[l] += b * q;
            wqx[l] += b * g->x[i + l];
        }
    }
    s->wq = add_lanes(wq);
    s->wqq = add_lanes(wqq);
    s->wqx = add_lanes(wqx);
}

// The best scale and offset (x ~ scale * q + offset) for the codes behind s, and what they gain over all zeros:
// the weighted error is that of all zeros less the gain.
static bool solve(const struct sums *s, bool free_min, float *scale, float *offset, float *gain) {
    float det = s->w * s->wqq - s->wq * s->wq;
    if (!(det > 0x1p-16f * s->w * s->wqq)) return false; // one code for all
    *scale = (s->w * s->wqx - s->wx * s->wq) / det;
    *offset = (s->wqq * s->wx - s->wq * s->wqx) / det;
    if (!free_min && *offset > 0) {
        *offset = 0;
        *scale = s->wqx / s->wqq;
    }
    *gain = *scale * s->wqx + *offset * s->wx;
    return *scale > 0;
}

void quantize_fit_min(const struct quantize_group *g, int n_max, bool free_min, float *scale, float *min) {
    enum { FROM = -10, TO = 8 }; // tenths of a code that the span is made wider by
    ASSERT(g->n % QUANT_LANES == 0 && g->n <= QUANT_GROUP);
    struct sums s;
    float lo = g->x[0], hi = g->x[0], best = -INFINITY;
    for (uint32_t i = 1; i < g->n; i++) {
        lo = g->x[i] < lo ? g->x[i] : lo;
        hi = g->x[i] > hi ? g->x[i] : hi;
    }
    if (!free_min && lo > 0) lo = 0;
    *scale = (hi - lo) / (float)n_max;
    *min = -lo;
    float span = hi - lo;
    if (!(span >= 0x1p-100f)) {
        *scale = 0;
        return;
    }
    fixed_sums(g, &s);
    for (int k = FROM; k <= TO; k++) {
        float a, b, gain;
        code_sums(g, lo, ((float)n_max + 0.1f * (float)k) / span, 0, (float)n_max, &s);
        if (!solve(&s, free_min, &a, &b, &gain) || gain <= best) continue;
        best = gain;
        *scale = a;
        *min = -b;
    }
}

float quantize_fit_signed(const struct quantize_group *g, int n_max) {
    enum { FROM = -9, TO = 9 };
    ASSERT(g->n % QUANT_LANES == 0 && g->n <= QUANT_GROUP);
    float extreme = 0, best = -1, scale = 0;
    for (uint32_t i = 0; i < g->n; i++)
        if (fabsf(g->x[i]) > fabsf(extreme)) extreme = g->x[i];
    if (!(fabsf(extreme) >= 0x1p-100f)) return 0;
    for (int k = FROM; k <= TO; k++) {
        struct sums s;
        code_sums(g, 0, -((float)n_max + 0.1f * (float)k) / extreme, (float)-n_max, (float)(n_max - 1), &s);
        float gain = s.wqq > 0 ? s.wqx * s.wqx / s.wqq : 0;
        if (gain <= best) continue;
        best = gain;
        scale = s.wqq > 0 ? s.wqx / s.wqq : 0;
    }
    return scale;
}

float quantize_codes(const struct quantize_group *g, float scale, float min, int lo, int hi, int8_t *q) {
    float error[QUANT_LANES] = {0}, inverse = fabsf(scale) >= 0x1p-100f ? 1 / scale : 0;
    for (uint32_t i = 0; i < g->n; i += QUANT_LANES) {
        for (uint32_t l = 0; l < QUANT_LANES; l++) {
            float c = quantize_round((g->x[i + l] + min) * inverse);
            c = c < (float)lo ? (float)lo : c;
            c = c > (float)hi ? (float)hi : c;
            float miss = scale * c - min - g->x[i + l];
            error[l] += g->w[i + l] * miss * miss;
            q[i + l] = (int8_t)c;
        }
    }
    return add_lanes(error);
}
