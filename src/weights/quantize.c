#include "weights/quantize.h"

#include <math.h>
#include <string.h>

enum { L8_VALUES = 128, GROUP_VALUES = 32 };

// Below this a group counts as zero, so that no reciprocal overflows.
#define TINY   0x1p-80f
#define INV127 0x1.020408p-7f

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    return float_of(bits_of((float)mantissa * 0x1p-24f) | sign);
}

// Nearest even; Inf where the value is too large. Finite input only.
static uint16_t f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    // Below 2^-14 the result is a multiple of 2^-24: the addition does the rounding.
    if (a < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000));
    uint32_t r = a + 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (r - 0x38000000) >> 13);
}

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void floats_to_f32(enum dtype from, const void *src, uint64_t n, float *dst) {
    const uint8_t *s = src; // memcpy below, because rows of a file may lie at odd addresses
    ASSERT(dtype_info(from)->is_float);
    if (from == DT_F32) {
        memcpy(dst, s, n * sizeof *dst);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, s + 2 * i, sizeof h);
        dst[i] = from == DT_BF16 ? float_of((uint32_t)h << 16) : f16_to_f32(h);
    }
}

// The bits of the largest magnitude; a NaN or Inf gives 0x7f800000 or more.
static uint32_t amax_bits(const float *x, uint32_t n) {
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & 0x7fffffff;
        m = u > m ? u : m;
    }
    return m;
}

// NUMERICS 2.2; n <= 128, the codes behind the last value stay 0.
static void block_l8(const float *x, uint32_t n, float amax, uint8_t *out) {
    float d = 0;
    int8_t q[L8_VALUES] = {0};
    if (amax >= TINY) {
        float id = 127.0f / amax;
        for (uint32_t i = 0; i < n; i++) q[i] = (int8_t)rintf(x[i] * id);
        d = amax * INV127;
    }
    uint32_t u = bits_of(d);
    put_u16(out, (uint16_t)u);
    put_u16(out + 2, (uint16_t)(u >> 16));
    memcpy(out + 4, q, sizeof q);
}

static void block_q8_0(const float *x, uint32_t n, float amax, uint8_t *out) {
    float d = amax / 127.0f, id = amax >= TINY ? 1.0f / d : 0;
    int8_t q[GROUP_VALUES] = {0};
    for (uint32_t i = 0; i < n; i++) q[i] = (int8_t)rintf(x[i] * id);
    put_u16(out, f32_to_f16(d));
    memcpy(out + 2, q, sizeof q);
}

// The value of the largest magnitude becomes -8 exactly, whatever its sign: d may be negative.
static void block_q4_0(const float *x, uint32_t n, float amax, uint8_t *out) {
    float extreme = 0;
    for (uint32_t i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    float d = extreme / -8.0f, id = amax >= TINY ? 1.0f / d : 0;
    uint8_t q[GROUP_VALUES];
    memset(q, 8, sizeof q); // the code of zero
    for (uint32_t i = 0; i < n; i++) {
        int v = (int)(x[i] * id + 8.5f);
        q[i] = (uint8_t)(v > 15 ? 15 : v);
    }
    put_u16(out, f32_to_f16(d));
    for (uint32_t i = 0; i < GROUP_VALUES / 2; i++) out[2 + i] = (uint8_t)(q[i] | q[i + GROUP_VALUES / 2] << 4);
}

// A largest value from which the f16 scale would become Inf.
static float amax_limit(enum dtype to) {
    if (to == DT_L8) return INFINITY;
    return to == DT_Q8_0 ? 65520.0f * 127.0f : 65520.0f * 8.0f;
}

int quantize_rows(enum dtype from, const void *src, uint64_t n_rows, uint64_t k, enum dtype to, void *dst,
                  struct err *e) {
    ASSERT(to == DT_L8 || to == DT_Q8_0 || to == DT_Q4_0, "quantize to %s", dtype_info(to)->name);
    const uint8_t *s = src;
    uint8_t *out = dst;
    uint32_t size = dtype_info(to)->block_values, value_bytes = dtype_info(from)->block_bytes;
    float x[L8_VALUES];
    for (uint64_t r = 0; r < n_rows; r++) {
        for (uint64_t at = 0; at < k; at += size) {
            uint32_t n = k - at < size ? (uint32_t)(k - at) : size;
            floats_to_f32(from, s + (r * k + at) * value_bytes, n, x);
            uint32_t m = amax_bits(x, n);
            if (m >= 0x7f800000u)
                return err_set(e, ERR_FORMAT, "NaN or Inf in row %llu, values %llu to %llu", (unsigned long long)r,
                               (unsigned long long)at, (unsigned long long)(at + n - 1));
            if (float_of(m) >= amax_limit(to))
                return err_set(e, ERR_FORMAT, "row %llu: %g is too large for %s", (unsigned long long)r,
                               (double)float_of(m), dtype_info(to)->name);
            if (to == DT_L8) block_l8(x, n, float_of(m), out);
            if (to == DT_Q8_0) block_q8_0(x, n, float_of(m), out);
            if (to == DT_Q4_0) block_q4_0(x, n, float_of(m), out);
            out += dtype_info(to)->block_bytes;
        }
    }
    return ERR_OK;
}

int floats_check(enum dtype from, const void *src, uint64_t n, struct err *e) {
    const uint8_t *s = src;
    float x[L8_VALUES];
    for (uint64_t at = 0; at < n; at += L8_VALUES) {
        uint32_t m = n - at < L8_VALUES ? (uint32_t)(n - at) : L8_VALUES;
        floats_to_f32(from, s + at * dtype_info(from)->block_bytes, m, x);
        if (amax_bits(x, m) >= 0x7f800000u)
            return err_set(e, ERR_FORMAT, "NaN or Inf among values %llu to %llu", (unsigned long long)at,
                           (unsigned long long)(at + m - 1));
    }
    return ERR_OK;
}
