// The scalar rules of NUMERICS 2.1, 6.1, 7.1 and 12, and bit casts. Every operation is one rounding in the written
// order. A `bool *fault` is only ever set to true.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "the numeric contract needs IEEE binary32 evaluation"
#endif

#define REF_LOG2E       0x1.715476p+0f
#define REF_INV127      0x1.020408p-7f
#define REF_INV255      0x1.010102p-8f
#define REF_TINY        0x1p-80f        // a maximum below it quantises to zeros
#define REF_EXP2_LOW    -125.0f         // exp2 is 0 below
#define REF_NO_KEYS     -1e30f          // M of an attention state that has seen no key
#define REF_TANH_SMALL  0x1.19999ap-1f  // 12.1: tanh is a polynomial below, a quotient from there on
#define REF_TANH_LARGE  16.0f           // it is 1 from there on
#define REF_GELU_LINEAR -0x1.26aec2p+1f // 12.3: -2 log2(e) sqrt(2/pi), and 0.044715 times that
#define REF_GELU_CUBIC  -0x1.a5a7dp-4f
#define REF_RNE_MAGIC   0x1.8p23f
#define REF_ABS_BITS    0x7fffffffu
#define REF_INF_BITS    0x7f800000u
#define REF_ACT_BLOCK   128u  // activations of one scale
#define REF_SEGMENT     1024u // values of K summed before a segment's sum joins the total
#define REF_FLOAT_RUN   64u   // values of K in one fma chain of the float path
#define REF_KEY_BLOCK   64u
#define REF_KEY_SEGMENT 1024u

static inline uint32_t ref_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float ref_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline bool ref_is_finite(float f) { return (ref_bits(f) & REF_ABS_BITS) < REF_INF_BITS; }

static inline uint16_t ref_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline uint32_t ref_load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

// 2.1: nearest even; NaN, Inf and a result of Inf are faults with value 0.
static inline uint16_t ref_bf16_from_f32(float f, bool *fault) {
    uint32_t u = ref_bits(f), r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    if ((u & REF_ABS_BITS) >= REF_INF_BITS || (r & 0x7fffu) == 0x7f80u) {
        *fault = true;
        return 0;
    }
    return (uint16_t)r;
}

static inline float ref_f32_from_bf16(uint16_t h) { return ref_float((uint32_t)h << 16); }

// Exact, subnormals included. NaN and Inf stay what they are: loaders refuse weights that hold them.
static inline float ref_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, m = h & 0x3ffu;
    if (exponent == 31) return ref_float(sign | REF_INF_BITS | m << 13);
    if (exponent) return ref_float(sign | (exponent + 112) << 23 | m << 13);
    return ref_float(ref_bits((float)m * 0x1p-24f) | sign);
}

// 6.8: nearest even; what does not fit f16 (>= 65520) or is no number is a fault with value 0.
static inline uint16_t ref_f16_from_f32(float f, bool *fault) {
    uint32_t u = ref_bits(f), sign = (u >> 16) & 0x8000u, a = u & REF_ABS_BITS;
    if (a >= 0x477ff000u) { // 65520
        *fault = true;
        return 0;
    }
    if (a < 0x38800000u) // below 2^-14: a multiple of 2^-24, by the adder's own rounding
        return (uint16_t)(sign | (ref_bits(ref_float(a) + 0.5f) - ref_bits(0.5f)));
    return (uint16_t)(sign | (((a + 0xfffu + ((a >> 13) & 1u)) >> 13) - 0x1c000u));
}

// 6.1.
static inline float ref_exp2(float x, bool *fault) {
    if (!ref_is_finite(x)) {
        *fault = true;
        return 0.0f;
    }
    if (x < REF_EXP2_LOW) return 0.0f;
    if (x > 127.0f) x = 127.0f;
    float n = (x + REF_RNE_MAGIC) - REF_RNE_MAGIC, f = x - n;
    float p = ref_float(0x3920e99au);
    p = fmaf(p, f, ref_float(0x3aafa2b5u));
    p = fmaf(p, f, ref_float(0x3c1d96deu));
    p = fmaf(p, f, ref_float(0x3d63576au));
    p = fmaf(p, f, ref_float(0x3e75fdedu));
    p = fmaf(p, f, ref_float(0x3f317218u));
    p = fmaf(p, f, 1.0f);
    return ref_float(ref_bits(p) + ((uint32_t)(int32_t)n << 23));
}

// 2^k of an integer-valued k <= 0.
static inline float ref_pow2(float k) {
    return k >= REF_EXP2_LOW ? ref_float((uint32_t)(127 + (int32_t)k) << 23) : 0.0f;
}

static inline float ref_silu(float g, bool *fault) { return g / (1.0f + ref_exp2(g * -REF_LOG2E, fault)); }

// 12.1. Odd in every bit; at most 1.8 units in the last place off.
static inline float ref_tanh(float x, bool *fault) {
    uint32_t sign = ref_bits(x) & ~REF_ABS_BITS;
    float a = ref_float(ref_bits(x) & REF_ABS_BITS), y;
    if (!ref_is_finite(x)) {
        *fault = true;
        return 0.0f;
    }
    if (a < REF_TANH_SMALL) {
        float z = a * a, p = ref_float(0xbbcd9823u);
        p = fmaf(p, z, ref_float(0x3cac9e83u));
        p = fmaf(p, z, ref_float(0xbd5c943du));
        p = fmaf(p, z, ref_float(0x3e088693u));
        p = fmaf(p, z, ref_float(0xbeaaaaa5u));
        y = fmaf(a * z, p, a);
    } else {
        float b = a < REF_TANH_LARGE ? a : REF_TANH_LARGE;
        y = 1.0f - 2.0f / (1.0f + ref_exp2(b * (2.0f * REF_LOG2E), fault));
    }
    return ref_float(ref_bits(y) | sign);
}

// 12.2. inverse is 1.0f / cap.
static inline float ref_softcap(float x, float cap, float inverse, bool *fault) {
    return cap * ref_tanh(x * inverse, fault);
}

// 12.3: the tanh form of GELU, as a sigmoid.
static inline float ref_gelu(float g, bool *fault) {
    float k = fmaf(g * g, REF_GELU_CUBIC, REF_GELU_LINEAR);
    return g / (1.0f + ref_exp2(g * k, fault));
}

// 12.6.
static inline float ref_sigmoid(float x, bool *fault) { return 1.0f / (1.0f + ref_exp2(x * -REF_LOG2E, fault)); }
