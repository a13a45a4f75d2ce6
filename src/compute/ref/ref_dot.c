// Weights: field layouts of the block types, the block value t(n,b), and the sums over K.
#include "compute/ref/ref.h"

// The 6-bit scales and minima of Q4_K and Q5_K: 8 of each in 12 bytes.
static void read_k_scale(const uint8_t *s, uint32_t j, int16_t *sc, int16_t *mn) {
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (int16_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *mn = (int16_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

static void read_l8(const uint8_t *row, uint32_t block, struct ref_block *b) {
    const uint8_t *p = row + (size_t)block * 132;
    const int8_t *w = (const int8_t *)p + 4;
    b->d32 = ref_float(ref_load_u32(p));
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) b->q[i] = w[i];
}

// One group of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
static void read_group32(enum dtype t, const uint8_t *p, uint32_t g, struct ref_block *b) {
    bool has_min = t == DT_Q4_1 || t == DT_Q5_1, has_high = t == DT_Q5_0 || t == DT_Q5_1;
    int16_t offset = t == DT_Q4_0 ? 8 : t == DT_Q5_0 ? 16 : 0;
    int16_t *q = b->q + g * 32;
    b->d[g] = ref_load_u16(p);
    p += 2;
    if (t == DT_Q8_0) {
        const int8_t *w = (const int8_t *)p;
        for (uint32_t i = 0; i < 32; i++) q[i] = w[i];
        return;
    }
    if (has_min) {
        b->m[g] = ref_load_u16(p);
        p += 2;
    }
    uint32_t high = 0;
    if (has_high) {
        high = ref_load_u32(p);
        p += 4;
    }
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t lo = (p[i] & 15u) | (high >> i & 1u) << 4, hi = p[i] >> 4 | (high >> (i + 16) & 1u) << 4;
        q[i] = (int16_t)((int16_t)lo - offset);
        q[i + 16] = (int16_t)((int16_t)hi - offset);
    }
}

// Half a super-block of 256: Q4_K, Q5_K.
static void read_k(enum dtype t, const uint8_t *p, uint32_t half, struct ref_block *b) {
    const uint8_t *qs = p + (t == DT_Q5_K ? 48 : 16) + half * 64, *qh = p + 16;
    b->d[0] = ref_load_u16(p);
    b->m[0] = ref_load_u16(p + 2);
    for (uint32_t g = 0; g < 4; g++) {
        read_k_scale(p + 4, half * 4 + g, &b->sc[g], &b->mn[g]);
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t byte = qs[(g >> 1) * 32 + i], q = g & 1 ? byte >> 4 : byte & 15u;
            if (t == DT_Q5_K) q |= (qh[i] >> (half * 4 + g) & 1u) << 4;
            b->q[g * 32 + i] = (int16_t)q;
        }
    }
}

static void read_q6_k(const uint8_t *p, uint32_t half, struct ref_block *b) {
    const uint8_t *ql = p + half * 64, *qh = p + 128 + half * 32;
    const int8_t *sc = (const int8_t *)p + 192 + half * 8;
    b->d[0] = ref_load_u16(p + 208);
    for (uint32_t g = 0; g < 8; g++) b->sc[g] = sc[g];
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        uint32_t l = i & 31, c = i >> 5, byte = ql[l + 32 * (c & 1)];
        uint32_t q = (c < 2 ? byte & 15u : byte >> 4) | (qh[l] >> (2 * c) & 3u) << 4;
        b->q[i] = (int16_t)((int16_t)q - 32);
    }
}

void ref_block_read(enum dtype t, const uint8_t *row, uint32_t k, uint32_t block, struct ref_block *b) {
    uint32_t k0 = block * REF_ACT_BLOCK;
    memset(b, 0, sizeof *b);
    if (t == DT_L8) {
        read_l8(row, block, b);
        return;
    }
    const struct dtype_info *info = dtype_info(t);
    ASSERT(info->is_block, "%s is no block type", info->name);
    if (info->block_values == 32) {
        for (uint32_t g = 0; g < 4 && k0 + g * 32 < k; g++)
            read_group32(t, row + (size_t)(k0 / 32 + g) * info->block_bytes, g, b);
        return;
    }
    const uint8_t *p = row + (size_t)(block / 2) * info->block_bytes;
    if (t == DT_Q6_K)
        read_q6_k(p, block & 1, b);
    else
        read_k(t, p, block & 1, b);
}

static int32_t dot_group(const int16_t *q, const int8_t *a, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += q[i] * a[i];
    return sum;
}

static float dot_group32(enum dtype t, const struct ref_block *b, const struct act_block *a) {
    float v = 0.0f;
    for (uint32_t g = 0; g < 4; g++) {
        v = fmaf(ref_f32_from_f16(b->d[g]), (float)dot_group(b->q + g * 32, a->q + g * 32, 32), v);
        if (t == DT_Q4_1 || t == DT_Q5_1) v = fmaf(ref_f32_from_f16(b->m[g]), (float)a->sum32[g], v);
    }
    return v;
}

float ref_block_dot(enum dtype t, const struct ref_block *b, const struct act_block *a) {
    if (t == DT_L8) return fmaf(b->d32, (float)dot_group(b->q, a->q, REF_ACT_BLOCK), 0.0f);
    if (dtype_info(t)->block_values == 32) return dot_group32(t, b, a);
    int32_t j = 0, n = 0;
    if (t == DT_Q6_K) {
        for (uint32_t g = 0; g < 8; g++) j += b->sc[g] * dot_group(b->q + g * 16, a->q + g * 16, 16);
        return fmaf(ref_f32_from_f16(b->d[0]), (float)j, 0.0f);
    }
    for (uint32_t g = 0; g < 4; g++) {
        j += b->sc[g] * dot_group(b->q + g * 32, a->q + g * 32, 32);
        n += b->mn[g] * a->sum32[g];
    }
    float v = fmaf(ref_f32_from_f16(b->d[0]), (float)j, 0.0f);
    return fmaf(-ref_f32_from_f16(b->m[0]), (float)n, v);
}

void ref_block_f32(enum dtype t, const struct ref_block *b, float *out) {
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        uint32_t g = i / 32;
        float q = b->q[i];
        switch (t) {
        case DT_L8:
            out[i] = b->d32 * q;
            break;
        case DT_Q4_1:
        case DT_Q5_1:
            out[i] = fmaf(ref_f32_from_f16(b->d[g]), q, ref_f32_from_f16(b->m[g]));
            break;
        case DT_Q4_K:
        case DT_Q5_K:
            out[i] = fmaf(ref_f32_from_f16(b->d[0]) * b->sc[g], q, -(ref_f32_from_f16(b->m[0]) * b->mn[g]));
            break;
        case DT_Q6_K:
            out[i] = (ref_f32_from_f16(b->d[0]) * b->sc[i / 16]) * q;
            break;
        default:
            out[i] = ref_f32_from_f16(b->d[g]) * q;
        }
    }
}

float ref_dot(enum dtype t, const uint8_t *row, const struct act_block *a, uint32_t k) {
    uint32_t n = ref_n_blocks(k), per_segment = REF_SEGMENT / REF_ACT_BLOCK;
    float total = 0.0f;
    for (uint32_t s = 0; s < n; s += per_segment) {
        float acc = 0.0f;
        for (uint32_t i = s; i < n && i < s + per_segment; i++) {
            struct ref_block b;
            ref_block_read(t, row, k, i, &b);
            acc = fmaf(a[i].d, ref_block_dot(t, &b, &a[i]), acc);
        }
        total = total + acc;
    }
    return total;
}

float ref_load_float(enum dtype t, const uint8_t *row, uint32_t i) {
    if (t == DT_F32) return ref_float(ref_load_u32(row + (size_t)i * 4));
    uint16_t h = ref_load_u16(row + (size_t)i * 2);
    return t == DT_F16 ? ref_f32_from_f16(h) : ref_f32_from_bf16(h);
}

float ref_dot_float(enum dtype t, const uint8_t *row, const float *x, uint32_t k) {
    float total = 0.0f;
    for (uint32_t c = 0; c < k; c += REF_FLOAT_RUN) {
        float s = 0.0f;
        for (uint32_t i = c; i < k && i < c + REF_FLOAT_RUN; i++) s = fmaf(ref_load_float(t, row, i), x[i], s);
        total = total + s;
    }
    return total;
}

void ref_row_f32(enum dtype t, const uint8_t *row, uint32_t k, float *out) {
    if (dtype_info(t)->is_float) {
        for (uint32_t i = 0; i < k; i++) out[i] = ref_load_float(t, row, i);
        return;
    }
    for (uint32_t at = 0; at < k; at += REF_ACT_BLOCK) {
        struct ref_block b;
        float values[REF_ACT_BLOCK];
        ref_block_read(t, row, k, at / REF_ACT_BLOCK, &b);
        ref_block_f32(t, &b, values);
        memcpy(out + at, values, sizeof *out * (k - at < REF_ACT_BLOCK ? k - at : REF_ACT_BLOCK));
    }
}
