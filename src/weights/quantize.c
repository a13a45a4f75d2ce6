#include "weights/quantize.h"
#include "weights/quantize_int.h"

#include <math.h>
#include <string.h>

enum { L8_VALUES = 128, GROUP_VALUES = 32, MAX_VALUES = QUANT_SUPER };

// Below this a group counts as zero, so that no reciprocal overflows.
#define TINY   0x1p-80f
#define INV127 0x1.020408p-7f

static uint16_t get_u16(const uint8_t *p) { // rows of a file may lie at odd addresses
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

// Loops over groups of a fixed length are what compilers make vectors of.
static void widen_group(const uint8_t *src, float *dst) {
    uint16_t h[GROUP_VALUES];
    uint32_t u[GROUP_VALUES];
    memcpy(h, src, sizeof h);
    for (uint32_t i = 0; i < GROUP_VALUES; i++) u[i] = (uint32_t)h[i] << 16;
    memcpy(dst, u, sizeof u);
}

void floats_to_f32(enum dtype from, const void *src, uint64_t n, float *dst) {
    const uint8_t *s = src;
    ASSERT(dtype_info(from)->is_float);
    if (from == DT_F32) {
        memcpy(dst, s, n * sizeof *dst);
        return;
    }
    if (from == DT_BF16) {
        uint64_t i = 0;
        for (; i + GROUP_VALUES <= n; i += GROUP_VALUES) widen_group(s + 2 * i, dst + i);
        for (; i < n; i++) dst[i] = quantize_float((uint32_t)get_u16(s + 2 * i) << 16);
        return;
    }
    for (uint64_t i = 0; i < n; i++) dst[i] = quantize_f16_to_f32(get_u16(s + 2 * i));
}

// The bits of the largest magnitude of n values, a multiple of GROUP_VALUES; a NaN or Inf gives 0x7f800000 or more.
static uint32_t amax_bits(const float *x, uint32_t n) {
    int32_t m[GROUP_VALUES] = {0}; // signed, for which machines have a vector compare
    for (uint32_t at = 0; at < n; at += GROUP_VALUES)
        for (uint32_t i = 0; i < GROUP_VALUES; i++) {
            int32_t u = (int32_t)(quantize_bits(x[at + i]) & 0x7fffffff);
            m[i] = u > m[i] ? u : m[i];
        }
    for (uint32_t i = 1; i < GROUP_VALUES; i++) m[0] = m[i] > m[0] ? m[i] : m[0];
    return (uint32_t)m[0];
}

// Codes of a group: x * id to the nearest, ties to even.
static void round_group(const float *x, float id, int8_t *q) {
    int32_t v[GROUP_VALUES];
    for (uint32_t i = 0; i < GROUP_VALUES; i++) v[i] = (int32_t)quantize_round(x[i] * id);
    for (uint32_t i = 0; i < GROUP_VALUES; i++) q[i] = (int8_t)v[i];
}

// In all blocks the values behind the last one of a row are 0.

// NUMERICS 2.2.
static void block_l8(const float *x, float amax, uint8_t *out) {
    float d = 0;
    int8_t q[L8_VALUES] = {0};
    if (amax >= TINY) {
        float id = 127.0f / amax;
        for (uint32_t g = 0; g < L8_VALUES; g += GROUP_VALUES) round_group(x + g, id, q + g);
        d = amax * INV127;
    }
    uint32_t u = quantize_bits(d);
    quantize_put_u16(out, (uint16_t)u);
    quantize_put_u16(out + 2, (uint16_t)(u >> 16));
    memcpy(out + 4, q, sizeof q);
}

static void block_q8_0(const float *x, float amax, uint8_t *out) {
    float d = amax / 127.0f, id = amax >= TINY ? 1.0f / d : 0;
    int8_t q[GROUP_VALUES];
    round_group(x, id, q);
    quantize_put_u16(out, quantize_f32_to_f16(d));
    memcpy(out + 2, q, sizeof q);
}

// The value of the largest magnitude becomes -8 exactly, whatever its sign: d may be negative.
static void block_q4_0(const float *x, float amax, uint8_t *out) {
    float extreme = 0;
    for (uint32_t i = GROUP_VALUES; i-- > 0;) // the first of equals; zeros of any sign count as plus zero
        extreme = fabsf(x[i]) == amax && amax > 0 ? x[i] : extreme;
    float d = extreme / -8.0f, id = amax >= TINY ? 1.0f / d : 0;
    int32_t q[GROUP_VALUES];
    for (uint32_t i = 0; i < GROUP_VALUES; i++) {
        int32_t v = (int32_t)(x[i] * id + 8.5f); // of zero: 8
        q[i] = v > 15 ? 15 : v;
    }
    quantize_put_u16(out, quantize_f32_to_f16(d));
    for (uint32_t i = 0; i < GROUP_VALUES / 2; i++) out[2 + i] = (uint8_t)(q[i] | q[i + GROUP_VALUES / 2] << 4);
}

static void block_of(enum dtype to, const float *x, float amax, uint8_t *out) {
    switch (to) {
    case DT_L8:
        block_l8(x, amax, out);
        return;
    case DT_Q8_0:
        block_q8_0(x, amax, out);
        return;
    case DT_Q4_0:
        block_q4_0(x, amax, out);
        return;
    case DT_Q4_1:
        quantize_block_q4_1(x, out);
        return;
    case DT_Q5_0:
        quantize_block_q5_0(x, out);
        return;
    case DT_Q5_1:
        quantize_block_q5_1(x, out);
        return;
    case DT_Q4_K:
        quantize_block_q4_k(x, out);
        return;
    case DT_Q5_K:
        quantize_block_q5_k(x, out);
        return;
    case DT_Q6_K:
        quantize_block_q6_k(x, out);
        return;
    default:
        ASSERT(false, "quantize to %s", dtype_info(to)->name);
    }
}

// A largest value from which an f16 scale or minimum would become Inf, with room for what a search may add to it.
static float amax_limit(enum dtype to) {
    if (to == DT_L8) return INFINITY;
    if (to == DT_Q8_0) return 65520.0f * 127.0f;
    return to == DT_Q4_0 ? 65520.0f * 8.0f : 32768.0f;
}

int quantize_rows(enum dtype from, const void *src, uint64_t n_rows, uint64_t k, enum dtype to, void *dst,
                  struct err *e) {
    const uint8_t *s = src;
    uint8_t *out = dst;
    uint32_t size = dtype_info(to)->block_values, value_bytes = dtype_info(from)->block_bytes;
    ASSERT(size > 1 && size <= MAX_VALUES, "quantize to %s", dtype_info(to)->name);
    float x[MAX_VALUES];
    for (uint64_t r = 0; r < n_rows; r++) {
        for (uint64_t at = 0; at < k; at += size) {
            uint32_t n = k - at < size ? (uint32_t)(k - at) : size;
            floats_to_f32(from, s + (r * k + at) * value_bytes, n, x);
            for (uint32_t i = n; i < size; i++) x[i] = 0;
            uint32_t m = amax_bits(x, size);
            if (m >= 0x7f800000u)
                return err_set(e, ERR_FORMAT, "NaN or Inf in row %llu, values %llu to %llu", (unsigned long long)r,
                               (unsigned long long)at, (unsigned long long)(at + n - 1));
            if (quantize_float(m) >= amax_limit(to))
                return err_set(e, ERR_FORMAT, "row %llu: %g is too large for %s", (unsigned long long)r,
                               (double)quantize_float(m), dtype_info(to)->name);
            block_of(to, x, quantize_float(m), out);
            out += dtype_info(to)->block_bytes;
        }
    }
    return ERR_OK;
}

static uint16_t bf16_of(uint32_t u) { return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); }

int floats_from_f32(enum dtype to, const float *src, uint64_t n, void *dst, struct err *e) {
    uint8_t *out = dst;
    ASSERT(dtype_info(to)->is_float);
    int rc = floats_check(DT_F32, src, n, e);
    if (rc) return rc;
    if (to == DT_F32) {
        memcpy(out, src, n * sizeof *src);
        return ERR_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h = to == DT_F16 ? quantize_f32_to_f16(src[i]) : bf16_of(quantize_bits(src[i]));
        if ((h & 0x7fff) == (to == DT_F16 ? 0x7c00 : 0x7f80))
            return err_set(e, ERR_FORMAT, "%g is too large for %s", (double)src[i], dtype_info(to)->name);
        quantize_put_u16(out + 2 * i, h);
    }
    return ERR_OK;
}

int floats_check(enum dtype from, const void *src, uint64_t n, struct err *e) {
    const uint8_t *s = src;
    float x[L8_VALUES];
    for (uint64_t at = 0; at < n; at += L8_VALUES) {
        uint32_t m = n - at < L8_VALUES ? (uint32_t)(n - at) : L8_VALUES;
        floats_to_f32(from, s + at * dtype_info(from)->block_bytes, m, x);
        for (uint32_t i = m; i < L8_VALUES; i++) x[i] = 0;
        if (amax_bits(x, L8_VALUES) >= 0x7f800000u)
            return err_set(e, ERR_FORMAT, "NaN or Inf among values %llu to %llu", (unsigned long long)at,
                           (unsigned long long)(at + m - 1));
    }
    return ERR_OK;
}
