// Attention of the self-test: caches in the layout of the kernels, and queries at the ends of blocks and segments.
#include "compute/selftest_int.h"

static void put_key(struct selftest *t, uint32_t hd, uint32_t pos, const int8_t *k, float dk, const int8_t *v,
                    float dv) {
    uint8_t *rec = t->kv + pos / REF_KEY_BLOCK * kv_record_bytes(KV_I8, hd), *vs = rec + kv_half_bytes(KV_I8, hd);
    uint32_t j = pos % REF_KEY_BLOCK;
    for (uint32_t d = 0; d < hd; d++) {
        rec[d / 4 * 256 + j * 4 + d % 4] = (uint8_t)k[d] ^ t->k->kv_xor;
        vs[j / 4 * (4 * hd) + d * 4 + j % 4] = (uint8_t)v[d];
    }
    memcpy(rec + REF_KEY_BLOCK * hd + j * 4, &dk, 4);
    memcpy(vs + REF_KEY_BLOCK * hd + j * 4, &dv, 4);
}

static const uint32_t positions[QUERIES] = {0, 1, 63, 64, 65, 127, 700, 1023, 1024, 1500, 2100};

// Runs all queries over the keys in t->kv. common: what they share, with the values of the first; qs: their scales.
static void run_queries(struct selftest *t, enum kv_type type, uint32_t hd, uint32_t window, struct att_query common,
                        const float *qs) {
    struct kv_view view = {
        .base = t->kv, .stride = kv_record_bytes(type, hd), .blocks = t->blocks, .type = type, .head_dim = hd};
    for (uint32_t at = 0; at < QUERIES; at += ATT_TILE) {
        struct att_query q[ATT_TILE];
        uint32_t n = QUERIES - at < ATT_TILE ? QUERIES - at : ATT_TILE;
        for (uint32_t i = 0; i < n; i++) {
            q[i] = common;
            if (common.q8) q[i].q8 += (at + i) * hd;
            if (common.q) q[i].q += (at + i) * hd;
            q[i].qs = qs[at + i];
            q[i].pos = positions[at + i];
            q[i].lo = ref_first_key(q[i].pos, window);
            q[i].out = t->y + (at + i) * hd;
        }
        t->k->attention(&view, q, n);
        for (uint32_t i = 0; i < n; i++) t->fault |= q[i].fault;
    }
    selftest_hash(t, t->y, QUERIES * hd * sizeof *t->y);
    selftest_end(t);
}

// Keys and queries of an int8 cache; qs: their scales.
static void put_cache(struct selftest *t, uint32_t hd, float qs[QUERIES]) {
    float f[128];
    for (uint32_t i = 0; i < KEY_BLOCKS; i++) t->blocks[i] = i;
    for (uint32_t pos = 0; pos < KEYS; pos++) {
        int8_t k[128], v[128];
        for (uint32_t i = 0; i < hd; i++) f[i] = selftest_random(t) * 2;
        float dk = t->k->quant(f, hd, k, &t->fault);
        for (uint32_t i = 0; i < hd; i++) f[i] = selftest_random(t);
        if (pos == 5) memset(f, 0, sizeof f);
        float dv = t->k->quant(f, hd, v, &t->fault);
        put_key(t, hd, pos, k, dk, v, dv);
    }
    for (uint32_t p = 0; p < QUERIES; p++) {
        for (uint32_t i = 0; i < hd; i++) f[i] = selftest_random(t) * (p > 8 ? 12.0f : 2.0f);
        qs[p] = t->k->quant(f, hd, t->q + p * hd, &t->fault) * (REF_LOG2E / sqrtf((float)hd));
    }
}

void selftest_attention(struct selftest *t, uint32_t hd) {
    float qs[QUERIES];
    put_cache(t, hd, qs);
    run_queries(t, KV_I8, hd, 0, (struct att_query){.q8 = t->q}, qs);
    run_queries(t, KV_I8, hd, 100, (struct att_query){.q8 = t->q}, qs);
}

// Caches of f16, and caps on scores: int8 in both forms of tanh, f16 under a window of more than a segment.
void selftest_caps(struct selftest *t) {
    enum { HD = 48 };
    float qs[QUERIES], cap = ref_attention_cap(4.0f);
    put_cache(t, 64, qs);
    run_queries(t, KV_I8, 64, 0, (struct att_query){.q8 = t->q, .cap = cap}, qs);
    for (uint32_t pos = 0; pos < KEYS; pos++) {
        uint8_t *k = t->kv + pos / REF_KEY_BLOCK * kv_record_bytes(KV_F16, HD), *v = k + kv_half_bytes(KV_F16, HD);
        uint32_t j = pos % REF_KEY_BLOCK;
        for (uint32_t d = 0; d < HD; d++) {
            uint16_t h[2];
            for (int i = 0; i < 2; i++) h[i] = ref_f16_from_f32(selftest_random(t), &t->fault);
            memcpy(k + (d * REF_KEY_BLOCK + j) * 2, &h[0], 2);
            memcpy(v + (j * HD + d) * 2, &h[1], 2);
        }
    }
    for (uint32_t i = 0; i < QUERIES * HD; i++) t->x[i] = selftest_random(t) * 4.0f;
    for (uint32_t p = 0; p < QUERIES; p++) qs[p] = REF_LOG2E / sqrtf((float)HD);
    run_queries(t, KV_F16, HD, 0, (struct att_query){.q = t->x}, qs);
    run_queries(t, KV_F16, HD, 1100, (struct att_query){.q = t->x, .cap = cap}, qs);
}
