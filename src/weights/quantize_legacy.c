// Q4_1, Q5_0, Q5_1: groups of 32 with an f16 scale, and a minimum in two of them. The scales are searched for.
#include "weights/quantize_int.h"

static void group_of(const float *x, struct quantize_group *g) {
    float sum = 0;
    g->n = QUANT_GROUP;
    for (uint32_t i = 0; i < QUANT_GROUP; i++) sum += x[i] * x[i];
    float mean = sum / QUANT_GROUP;
    for (uint32_t i = 0; i < QUANT_GROUP; i++) {
        g->x[i] = x[i];
        g->w[i] = mean + x[i] * x[i];
    }
}

// Value i and i + 16 share a byte; their fifth bits lie in a word of their own.
static void put_codes(const uint8_t *q, bool five, uint8_t *out) {
    if (five) {
        uint32_t high = 0;
        for (uint32_t i = 0; i < QUANT_GROUP; i++) high |= (uint32_t)(q[i] >> 4) << i;
        quantize_put_u16(out, (uint16_t)high);
        quantize_put_u16(out + 2, (uint16_t)(high >> 16));
        out += 4;
    }
    for (uint32_t i = 0; i < QUANT_GROUP / 2; i++) out[i] = (uint8_t)((q[i] & 15) | (q[i + QUANT_GROUP / 2] & 15) << 4);
}

static void with_min(const float *x, int n_max, uint8_t *out) {
    struct quantize_group g;
    float scale, min;
    int8_t codes[QUANT_GROUP];
    uint8_t q[QUANT_GROUP];
    group_of(x, &g);
    quantize_fit_min(&g, n_max, true, &scale, &min);
    uint16_t d = quantize_f32_to_f16(scale), m = quantize_f32_to_f16(-min);
    quantize_codes(&g, quantize_f16_to_f32(d), -quantize_f16_to_f32(m), 0, n_max, codes);
    for (uint32_t i = 0; i < QUANT_GROUP; i++) q[i] = (uint8_t)codes[i];
    quantize_put_u16(out, d);
    quantize_put_u16(out + 2, m);
    put_codes(q, n_max > 15, out + 4);
}

void quantize_block_q4_1(const float *x, uint8_t *out) { with_min(x, 15, out); }

void quantize_block_q5_1(const float *x, uint8_t *out) { with_min(x, 31, out); }

void quantize_block_q5_0(const float *x, uint8_t *out) {
    struct quantize_group g;
    int8_t codes[QUANT_GROUP];
    uint8_t q[QUANT_GROUP];
    group_of(x, &g);
    uint16_t d = quantize_f32_to_f16(quantize_fit_signed(&g, 16));
    quantize_codes(&g, quantize_f16_to_f32(d), 0, -16, 15, codes);
    for (uint32_t i = 0; i < QUANT_GROUP; i++) q[i] = (uint8_t)(codes[i] + 16);
    quantize_put_u16(out, d);
    put_codes(q, true, out + 2);
}
