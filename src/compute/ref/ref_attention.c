#include "compute/ref/ref.h"

void ref_att_clear(struct ref_att_state *s) {
    s->m = REF_NO_KEYS;
    s->l = 0.0f;
    memset(s->o, 0, sizeof s->o);
}

void ref_att_merge(struct ref_att_state *s, float mb, float lb, float w, const float *o, uint32_t hd) {
    float m = s->m > mb ? s->m : mb, al = ref_pow2(s->m - m), be = ref_pow2(mb - m);
    s->l = fmaf(lb, be, s->l * al);
    float wb = w * be;
    for (uint32_t d = 0; d < hd; d++) s->o[d] = fmaf(wb, o[d], s->o[d] * al);
    s->m = m;
}

void ref_attention_begin(struct ref_attention *a) {
    ref_att_clear(&a->total);
    ref_att_clear(&a->segment);
}

// 12.4: scores of valid keys, in log2 units, under a cap in log2 units.
static void cap_scores(float *t, const bool *valid, float cap, bool *fault) {
    float inverse = 1.0f / cap;
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++)
        if (valid[j]) t[j] = ref_softcap(t[j], cap, inverse, fault);
}

// Scores t of a block -> weights e (0 where a key is not valid), the integer maximum and the sum of 6.3.
static void softmax_block(const float *t, const bool *valid, float *e, float *mb, float *lb, bool *fault) {
    float max = REF_NO_KEYS, l[8] = {0};
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        if (!valid[j]) continue;
        if (!ref_is_finite(t[j])) *fault = true;
        if (t[j] > max) max = t[j];
    }
    *mb = ceilf(max);
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        e[j] = valid[j] ? ref_exp2(t[j] - *mb, fault) : 0.0f;
        l[j & 7] = l[j & 7] + e[j];
    }
    *lb = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

// Ends a segment after its last block.
static void end_block(struct ref_attention *a, uint32_t hd, uint32_t j0, uint32_t pos) {
    uint32_t next = j0 + REF_KEY_BLOCK;
    if (next % REF_KEY_SEGMENT != 0 && next <= pos) return;
    ref_att_merge(&a->total, a->segment.m, a->segment.l, 1.0f, a->segment.o, hd);
    ref_att_clear(&a->segment);
}

void ref_attention_block_i8(struct ref_attention *a, const int8_t *q, float qs, const struct ref_keys_i8 *keys,
                            uint32_t hd, float cap, uint32_t j0, uint32_t lo, uint32_t pos, bool *fault) {
    float t[REF_KEY_BLOCK] = {0}, e[REF_KEY_BLOCK], o[LIMIT_HEAD_DIM], mb, lb, max = 0.0f;
    bool valid[REF_KEY_BLOCK];
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        valid[j] = j0 + j >= lo && j0 + j <= pos;
        if (!valid[j]) continue;
        int32_t sum = 0;
        for (uint32_t d = 0; d < hd; d++) sum += q[d] * keys->k[j * hd + d];
        t[j] = (float)sum * (qs * keys->dk[j]);
    }
    if (cap > 0.0f) cap_scores(t, valid, cap, fault);
    softmax_block(t, valid, e, &mb, &lb, fault);
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        if (!valid[j]) continue;
        e[j] = e[j] * keys->dv[j];
        if (e[j] > max) max = e[j];
    }
    float r = max < REF_TINY ? 0.0f : 255.0f / max;
    int32_t sum[LIMIT_HEAD_DIM] = {0};
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        int32_t p = valid[j] ? (int32_t)rintf(e[j] * r) : 0;
        for (uint32_t d = 0; p != 0 && d < hd; d++) sum[d] += p * keys->v[j * hd + d];
    }
    for (uint32_t d = 0; d < hd; d++) o[d] = (float)sum[d];
    ref_att_merge(&a->segment, mb, lb, max * REF_INV255, o, hd);
    end_block(a, hd, j0, pos);
}

void ref_attention_block_float(struct ref_attention *a, const float *q, float scale, const float *k, const float *v,
                               uint32_t hd, float cap, uint32_t j0, uint32_t lo, uint32_t pos, bool *fault) {
    float t[REF_KEY_BLOCK] = {0}, e[REF_KEY_BLOCK], o[LIMIT_HEAD_DIM] = {0}, mb, lb;
    bool valid[REF_KEY_BLOCK];
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++) {
        valid[j] = j0 + j >= lo && j0 + j <= pos;
        if (!valid[j]) continue;
        float s = 0.0f;
        for (uint32_t d = 0; d < hd; d++) s = fmaf(q[d], k[j * hd + d], s);
        t[j] = s * scale;
    }
    if (cap > 0.0f) cap_scores(t, valid, cap, fault);
    softmax_block(t, valid, e, &mb, &lb, fault);
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++)
        for (uint32_t d = 0; valid[j] && d < hd; d++) o[d] = fmaf(e[j], v[j * hd + d], o[d]);
    ref_att_merge(&a->segment, mb, lb, 1.0f, o, hd);
    end_block(a, hd, j0, pos);
}

void ref_attention_end(const struct ref_attention *a, uint32_t hd, float *out) {
    for (uint32_t d = 0; d < hd; d++) out[d] = a->total.o[d] / a->total.l;
}
