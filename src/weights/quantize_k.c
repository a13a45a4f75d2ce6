// Q4_K, Q5_K, Q6_K: super-blocks of 256 with one f16 scale (and one f16 scale of minima) and an integer scale for each
// group. Every group is fitted by itself; then its scale has to become a small multiple of the super-block's, which
// costs more than the codes do, so the neighbours of the nearest multiple are tried, and at last the super-block's
// scales are fitted to what was chosen.
#include "weights/quantize_int.h"

#include <math.h>

enum { GROUPS = QUANT_SUPER / QUANT_GROUP, Q6_VALUES = 16, Q6_GROUPS = QUANT_SUPER / Q6_VALUES, MAX_SCALE = 63 };

// A super-block's scale as f16. Small ones are subnormal and have few bits: one that was rounded down by so much that
// `most` times it no longer reaches the largest group's scale becomes the next larger one.
static uint16_t super_scale(float scale, int most) {
    const uint16_t h = quantize_f32_to_f16(scale);
    const float reach = fabsf(quantize_f16_to_f32(h)) * ((float)most + 0.5f);
    return fabsf(scale) * (float)most > reach ? (uint16_t)(h + 1) : h;
}

static float mean_square(const float *x) {
    float lane[QUANT_LANES] = {0}, sum = 0;
    for (uint32_t i = 0; i < QUANT_SUPER; i += QUANT_LANES)
        for (uint32_t l = 0; l < QUANT_LANES; l++) lane[l] += x[i + l] * x[i + l];
    for (uint32_t l = 0; l < QUANT_LANES; l++) sum += lane[l];
    return sum / QUANT_SUPER;
}

// Large weights matter more: they meet large activations more often than chance would have it.
static void group_of(const float *x, float mean, uint32_t n, struct quantize_group *g) {
    g->n = n;
    for (uint32_t i = 0; i < n; i++) {
        g->x[i] = x[i];
        g->w[i] = mean + x[i] * x[i];
    }
}

// ---- Q4_K, Q5_K

struct min_block {
    struct quantize_group group[GROUPS];
    float scale[GROUPS], min[GROUPS]; // as the search found them
    uint16_t d, dmin;
    uint8_t sc[GROUPS], mn[GROUPS];
    int8_t q[GROUPS][QUANT_GROUP];
};

static uint8_t whole(float x) {
    float r = quantize_round(x);
    return (uint8_t)(r < 0 ? 0 : r > MAX_SCALE ? MAX_SCALE : r);
}

// The best pair of multiples for group i beside the nearest ones. Returns the error.
static float choose_group(struct min_block *b, uint32_t i, int n_max) {
    float d = quantize_f16_to_f32(b->d), dmin = quantize_f16_to_f32(b->dmin), best = INFINITY;
    int sc = whole(d > 0 ? b->scale[i] / d : 0), mn = whole(dmin > 0 ? b->min[i] / dmin : 0);
    for (int s = sc - 1; s <= sc + 1; s++) {
        for (int m = mn - 1; m <= mn + 1; m++) {
            int8_t q[QUANT_GROUP];
            if (s < 0 || s > MAX_SCALE || m < 0 || m > MAX_SCALE) continue;
            float error = quantize_codes(&b->group[i], d * (float)s, dmin * (float)m, 0, n_max, q);
            if (error >= best) continue;
            best = error;
            b->sc[i] = (uint8_t)s;
            b->mn[i] = (uint8_t)m;
            memcpy(b->q[i], q, sizeof q);
        }
    }
    return best;
}

static float choose(struct min_block *b, float d, float dmin, int n_max) {
    float error = 0;
    b->d = super_scale(d, MAX_SCALE);
    b->dmin = super_scale(dmin, MAX_SCALE);
    for (uint32_t i = 0; i < GROUPS; i++) error += choose_group(b, i, n_max);
    return error;
}

// d and dmin of least weighted squares for the multiples and codes chosen. False: there is no better pair.
static bool refit(const struct min_block *b, float *d, float *dmin) {
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (uint32_t i = 0; i < GROUPS; i++) {
        const struct quantize_group *g = &b->group[i];
        for (uint32_t k = 0; k < QUANT_GROUP; k++) {
            float a = (float)(b->sc[i] * b->q[i][k]), m = (float)b->mn[i], w = g->w[k];
            aa += w * a * a;
            ab += w * a * m;
            bb += w * m * m;
            ax += w * a * g->x[k];
            bx += w * m * g->x[k];
        }
    }
    float det = aa * bb - ab * ab;
    if (!(det > 0x1p-10f * aa * bb)) return false;
    *d = (ax * bb - bx * ab) / det;
    *dmin = (ab * ax - aa * bx) / det;
    return *d > 0 && *dmin > 0;
}

// The 6-bit scales and minima: four of each in the low bits of eight bytes, the rest spread over what is free.
static void put_scales(const struct min_block *b, uint8_t *out) {
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = (uint8_t)(b->sc[i] | (b->sc[i + 4] >> 4) << 6);
        out[i + 4] = (uint8_t)(b->mn[i] | (b->mn[i + 4] >> 4) << 6);
        out[i + 8] = (uint8_t)((b->sc[i + 4] & 15) | (b->mn[i + 4] & 15) << 4);
    }
}

static void fit_block(const float *x, int n_max, struct min_block *b) {
    float mean = mean_square(x), d = 0, dmin = 0;
    for (uint32_t i = 0; i < GROUPS; i++) {
        group_of(x + i * QUANT_GROUP, mean, QUANT_GROUP, &b->group[i]);
        quantize_fit_min(&b->group[i], n_max, false, &b->scale[i], &b->min[i]);
        d = b->scale[i] > d ? b->scale[i] : d;
        dmin = b->min[i] > dmin ? b->min[i] : dmin;
    }
    float error = choose(b, d / MAX_SCALE, dmin / MAX_SCALE, n_max);
    struct min_block again = *b;
    if (refit(b, &d, &dmin) && choose(&again, d, dmin, n_max) < error) *b = again;
}

static void put_min_block(const struct min_block *b, bool five, uint8_t *out) {
    quantize_put_u16(out, b->d);
    quantize_put_u16(out + 2, b->dmin);
    put_scales(b, out + 4);
    uint8_t *high = out + 16, *low = five ? out + 48 : out + 16;
    if (five) memset(high, 0, 32);
    for (uint32_t i = 0; i < GROUPS; i++) {
        for (uint32_t k = 0; k < QUANT_GROUP; k++) {
            uint8_t *byte = &low[i / 2 * QUANT_GROUP + k], code = (uint8_t)b->q[i][k];
            *byte = (uint8_t)(i & 1 ? *byte | (code & 15) << 4 : code & 15);
            if (five) high[k] = (uint8_t)(high[k] | (code >> 4) << i);
        }
    }
}

void quantize_block_q4_k(const float *x, uint8_t *out) {
    struct min_block b;
    fit_block(x, 15, &b);
    put_min_block(&b, false, out);
}

void quantize_block_q5_k(const float *x, uint8_t *out) {
    struct min_block b;
    fit_block(x, 31, &b);
    put_min_block(&b, true, out);
}

// ---- Q6_K

enum { MIN_MULTIPLE = -128, MAX_MULTIPLE = 127 };

struct signed_block {
    struct quantize_group group[Q6_GROUPS];
    float scale[Q6_GROUPS];
    uint16_t d;
    int8_t sc[Q6_GROUPS], q[Q6_GROUPS][Q6_VALUES];
};

// The multiple of d for each group, the nearest or one beside it. Returns the error.
static float choose_signed(struct signed_block *b, float scale) {
    float sum = 0, d;
    b->d = super_scale(scale, -MIN_MULTIPLE);
    d = quantize_f16_to_f32(b->d);
    for (uint32_t i = 0; i < Q6_GROUPS; i++) {
        float best = INFINITY, ratio = d != 0 ? b->scale[i] / d : 0;
        // Neighbours on both sides of what is within reach, so that there is always one to choose.
        ratio = ratio < MIN_MULTIPLE + 1 ? MIN_MULTIPLE + 1 : ratio > MAX_MULTIPLE - 1 ? MAX_MULTIPLE - 1 : ratio;
        const int nearest = (int)quantize_round(ratio);
        for (int s = nearest - 1; s <= nearest + 1; s++) {
            int8_t q[QUANT_GROUP];
            float error = quantize_codes(&b->group[i], d * (float)s, 0, -32, 31, q);
            if (error >= best) continue;
            best = error;
            b->sc[i] = (int8_t)s;
            memcpy(b->q[i], q, Q6_VALUES);
        }
        sum += best;
    }
    return sum;
}

static bool refit_signed(const struct signed_block *b, float *d) {
    float aa = 0, ax = 0;
    for (uint32_t i = 0; i < Q6_GROUPS; i++) {
        for (uint32_t k = 0; k < Q6_VALUES; k++) {
            float a = (float)(b->sc[i] * b->q[i][k]), w = b->group[i].w[k];
            aa += w * a * a;
            ax += w * a * b->group[i].x[k];
        }
    }
    *d = ax / aa;
    return aa > 0;
}

void quantize_block_q6_k(const float *x, uint8_t *out) {
    struct signed_block b;
    float mean = mean_square(x), extreme = 0;
    for (uint32_t i = 0; i < Q6_GROUPS; i++) {
        group_of(x + i * Q6_VALUES, mean, Q6_VALUES, &b.group[i]);
        b.scale[i] = quantize_fit_signed(&b.group[i], 32);
        if (fabsf(b.scale[i]) > fabsf(extreme)) extreme = b.scale[i];
    }
    float error = choose_signed(&b, extreme / -128), d;
    struct signed_block again = b;
    if (refit_signed(&b, &d) && choose_signed(&again, d) < error) b = again;
    memset(out, 0, 192);
    for (uint32_t i = 0; i < QUANT_SUPER; i++) {
        uint32_t half = i / 128, l = i % 32, c = i / 32 % 4, code = (uint32_t)(b.q[i / Q6_VALUES][i % Q6_VALUES] + 32);
        uint8_t *low = &out[half * 64 + l + 32 * (c & 1)], *high = &out[128 + half * 32 + l];
        *low = (uint8_t)(*low | (code & 15) << (c < 2 ? 0 : 4));
        *high = (uint8_t)(*high | (code >> 4) << (2 * c));
    }
    for (uint32_t i = 0; i < Q6_GROUPS; i++) out[192 + i] = (uint8_t)b.sc[i];
    quantize_put_u16(out + 208, b.d);
}
