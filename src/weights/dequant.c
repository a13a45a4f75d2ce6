#include "weights/dequant.h"

#include "weights/quantize.h"
#include <math.h>
#include <string.h>

enum { SUPER = 256, GROUP = 32, F8_TILE = 128 };

static float f16_at(const uint8_t *p) {
    float f;
    floats_to_f32(DT_F16, p, 1, &f);
    return f;
}

static void block_q8_0(const uint8_t *p, float *out) {
    const float d = f16_at(p);
    const int8_t *q = (const int8_t *)p + 2;
    for (uint32_t i = 0; i < GROUP; i++) out[i] = d * (float)q[i];
}

// 4 or 5 bits, value i in the low half of byte i, value i + 16 in its high half; the fifth bits in 4 bytes.
static uint32_t code_of(const uint8_t *nibbles, const uint8_t *high, uint32_t i) {
    uint32_t q = i < GROUP / 2 ? nibbles[i] & 15u : nibbles[i - GROUP / 2] >> 4;
    return high ? q | (high[i / 8] >> i % 8 & 1u) << 4 : q;
}

static void block_signed(const uint8_t *p, bool five, float *out) {
    const float d = f16_at(p);
    for (uint32_t i = 0; i < GROUP; i++) {
        int q = (int)(five ? code_of(p + 6, p + 2, i) : code_of(p + 2, NULL, i)) - (five ? 16 : 8);
        out[i] = d * (float)q;
    }
}

static void block_with_min(const uint8_t *p, bool five, float *out) {
    const float d = f16_at(p), m = f16_at(p + 2);
    for (uint32_t i = 0; i < GROUP; i++)
        out[i] = fmaf(d, (float)(five ? code_of(p + 8, p + 4, i) : code_of(p + 4, NULL, i)), m);
}

// Scale and minimum of group g of 8: 6 bits each, packed into 12 bytes.
static void k_scale(const uint8_t *s, uint32_t g, float *scale, float *min) {
    uint32_t sc = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (uint32_t)(s[g - 4] >> 6) << 4;
    uint32_t mn = g < 4 ? s[g + 4] & 63u : s[g + 4] >> 4 | (uint32_t)(s[g] >> 6) << 4;
    *scale = (float)sc;
    *min = (float)mn;
}

static void block_q4_q5_k(const uint8_t *p, bool five, float *out) {
    const float d = f16_at(p), dmin = f16_at(p + 2);
    const uint8_t *high = p + 16, *low = p + (five ? 48 : 16);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t g = i / GROUP, l = i % GROUP, byte = low[i / 64 * GROUP + l];
        uint32_t q = g & 1 ? byte >> 4 : byte & 15u;
        float scale, min;
        k_scale(p + 4, g, &scale, &min);
        if (five) q |= (high[l] >> g & 1u) << 4;
        out[i] = fmaf(d * scale, (float)q, -(dmin * min));
    }
}

static void block_q6_k(const uint8_t *p, float *out) {
    const float d = f16_at(p + 208);
    const int8_t *scale = (const int8_t *)p + 192;
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t half = i / 128, c = i % 128 / GROUP, l = i % GROUP;
        uint32_t byte = p[64 * half + GROUP * (c & 1) + l];
        uint32_t q = (c < 2 ? byte & 15u : byte >> 4) | (p[128 + GROUP * half + l] >> 2 * c & 3u) << 4;
        out[i] = d * (float)scale[i / 16] * (float)((int)q - 32);
    }
}

// 2 bits of value i of a super-block of Q2_K or Q3_K: four values share a byte, 32 values apart.
static uint32_t two_bits(const uint8_t *qs, uint32_t i) {
    return qs[i / 128 * GROUP + i % GROUP] >> 2 * (i % 128 / GROUP) & 3u;
}

static void block_q2_k(const uint8_t *p, float *out) {
    const float d = f16_at(p + 80), dmin = f16_at(p + 82);
    for (uint32_t i = 0; i < SUPER; i++) {
        const uint8_t s = p[i / 16];
        out[i] = fmaf(d * (float)(s & 15), (float)two_bits(p + 16, i), -(dmin * (float)(s >> 4)));
    }
}

// Scale g of 16: the low 4 bits in the first 8 bytes, the high 2 in the other 4.
static int q3_scale(const uint8_t *s, uint32_t g) {
    int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    return (low | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
}

static void block_q3_k(const uint8_t *p, float *out) {
    const float d = f16_at(p + 108);
    for (uint32_t i = 0; i < SUPER; i++) {
        bool high = p[i % GROUP] >> i / GROUP & 1;
        int q = (int)two_bits(p + 32, i) - (high ? 0 : 4);
        out[i] = d * (float)q3_scale(p + 96, i / 16) * (float)q;
    }
}

static const int8_t NONLINEAR[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void group_nonlinear(float d, const uint8_t *qs, float *out) {
    for (uint32_t i = 0; i < GROUP; i++) out[i] = d * (float)NONLINEAR[code_of(qs, NULL, i)];
}

static void block_iq4_xs(const uint8_t *p, float *out) {
    const float d = f16_at(p);
    const uint32_t high = p[2] | (uint32_t)p[3] << 8;
    for (uint32_t g = 0; g < SUPER / GROUP; g++) {
        uint32_t s = (p[4 + g / 2] >> 4 * (g & 1) & 15u) | (high >> 2 * g & 3u) << 4;
        group_nonlinear(d * (float)((int)s - 32), p + 8 + 16 * g, out + GROUP * g);
    }
}

// Sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no Inf; all exponent and mantissa bits set is NaN.
static float f8_value(uint8_t b) {
    int exponent = b >> 3 & 15, mantissa = b & 7;
    if ((b & 0x7f) == 0x7f) return NAN;
    float m = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return b & 0x80 ? -m : m;
}

static void l8_row(const uint8_t *p, uint64_t n, float *out) {
    const struct dtype_info *info = dtype_info(DT_L8);
    for (uint64_t at = 0; at < n; at += info->block_values, p += info->block_bytes) {
        const int8_t *q = (const int8_t *)p + 4;
        float d;
        memcpy(&d, p, sizeof d);
        for (uint64_t i = at; i < n && i < at + info->block_values; i++) out[i] = d * (float)q[i - at];
    }
}

static void block_of(enum dtype t, const uint8_t *p, float *out) {
    switch (t) {
    case DT_Q8_0:
        block_q8_0(p, out);
        return;
    case DT_Q4_0:
    case DT_Q5_0:
        block_signed(p, t == DT_Q5_0, out);
        return;
    case DT_Q4_1:
    case DT_Q5_1:
        block_with_min(p, t == DT_Q5_1, out);
        return;
    case DT_Q4_K:
    case DT_Q5_K:
        block_q4_q5_k(p, t == DT_Q5_K, out);
        return;
    case DT_Q6_K:
        block_q6_k(p, out);
        return;
    case DT_Q2_K:
        block_q2_k(p, out);
        return;
    case DT_Q3_K:
        block_q3_k(p, out);
        return;
    case DT_IQ4_NL:
        group_nonlinear(f16_at(p), p + 2, out);
        return;
    case DT_IQ4_XS:
        block_iq4_xs(p, out);
        return;
    default:
        ASSERT(false, "%s to f32", dtype_info(t)->name);
    }
}

bool dequant_knows(enum dtype t) {
    const struct dtype_info *info = dtype_info(t);
    return info->is_float || info->is_block || info->is_converted;
}

void dequant_row(enum dtype t, const void *row, uint64_t n, float *out) {
    const struct dtype_info *info = dtype_info(t);
    const uint8_t *p = row;
    if (info->is_float) {
        floats_to_f32(t, p, n, out);
        return;
    }
    if (t == DT_L8) {
        l8_row(p, n, out);
        return;
    }
    if (t == DT_F8_E4M3) {
        for (uint64_t i = 0; i < n; i++) out[i] = f8_value(p[i]);
        return;
    }
    ASSERT(n % info->block_values == 0);
    for (uint64_t at = 0; at < n; at += info->block_values, p += info->block_bytes) block_of(t, p, out + at);
}

void dequant_f8_rows(const void *src, uint64_t row, uint64_t n_rows, uint64_t k, enum dtype scale_type,
                     const void *scales, float *out) {
    const uint64_t per_row = (k + F8_TILE - 1) / F8_TILE;
    const uint32_t scale_bytes = dtype_info(scale_type)->block_bytes;
    float value[256];
    for (uint32_t i = 0; i < 256; i++) value[i] = f8_value((uint8_t)i);
    const uint8_t *p = src;
    for (uint64_t r = row; r < row + n_rows; r++, p += k, out += k) {
        const uint8_t *s = (const uint8_t *)scales + r / F8_TILE * per_row * scale_bytes;
        for (uint64_t at = 0; at < k; at += F8_TILE, s += scale_bytes) {
            float scale;
            floats_to_f32(scale_type, s, 1, &scale);
            for (uint64_t i = at; i < k && i < at + F8_TILE; i++) out[i] = value[p[i]] * scale;
        }
    }
}
