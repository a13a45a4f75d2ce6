// The reference forms behind the interface of the kernels.
#include "compute/cpu/kern.h"
#include "compute/cpu/kv_layout.h"

static void exp2_ref(const float *x, uint32_t n, float *y, bool *fault) {
    for (uint32_t i = 0; i < n; i++) y[i] = ref_exp2(x[i], fault);
}

static void silu_mul_ref(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    for (uint32_t i = 0; i < n; i++) h[i] = ref_silu(g[i], fault) * u[i];
}

static void gelu_mul_ref(const float *g, const float *u, uint32_t n, float *h, bool *fault) {
    for (uint32_t i = 0; i < n; i++) h[i] = ref_gelu(g[i], fault) * u[i];
}

static void softcap_ref(float *x, uint32_t n, float cap, bool *fault) {
    float inverse = 1.0f / cap;
    for (uint32_t i = 0; i < n; i++) x[i] = ref_softcap(x[i], cap, inverse, fault);
}

static void add_ref(const float *a, const float *b, uint32_t n, bool round_bf16, float *y, bool *fault) {
    for (uint32_t i = 0; i < n; i++) {
        float v = a[i] + b[i];
        y[i] = round_bf16 ? ref_f32_from_bf16(ref_bf16_from_f32(v, fault)) : v;
    }
}

static void axpy_ref(float w, const float *x, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = fmaf(w, x[i], y[i]);
}

enum { REF_TILE = 32 };

// A row of a block type times up to REF_TILE tokens: each block is unpacked once.
static void block_row(const struct matmul_job *j, uint32_t row, uint32_t t0, uint32_t n) {
    const struct weight *w = j->w;
    const uint8_t *src = w->data + row * dtype_row_bytes(w->type, w->k);
    float acc[REF_TILE] = {0}, total[REF_TILE] = {0};
    for (uint32_t i = 0; i < w->n_blocks; i++) {
        struct ref_block b;
        ref_block_read(w->type, src, w->k, i, &b);
        bool ends = (i + 1) % (REF_SEGMENT / REF_ACT_BLOCK) == 0 || i + 1 == w->n_blocks;
        for (uint32_t t = 0; t < n; t++) {
            const struct act_block *a = &j->a[(size_t)matmul_row(j, t0 + t) * w->n_blocks + i];
            acc[t] = fmaf(a->d, ref_block_dot(w->type, &b, a), acc[t]);
            if (!ends) continue;
            total[t] = total[t] + acc[t];
            acc[t] = 0.0f;
        }
    }
    for (uint32_t t = 0; t < n; t++) j->y[(t0 + t) * j->y_stride + row] = j->bias ? total[t] + j->bias[row] : total[t];
}

static void float_row(const struct matmul_job *j, uint32_t row, uint32_t t0, uint32_t n) {
    const struct weight *w = j->w;
    const uint8_t *src = w->data + row * dtype_row_bytes(w->type, w->k);
    for (uint32_t t = t0; t < t0 + n; t++) {
        float v = ref_dot_float(w->type, src, j->x + matmul_row(j, t) * j->x_stride, w->k);
        j->y[t * j->y_stride + row] = j->bias ? v + j->bias[row] : v;
    }
}

static void matmul_ref(const struct matmul_job *j, uint32_t panel, uint32_t t0, uint32_t n) {
    uint32_t begin = panel * PANEL_ROWS, end = begin + PANEL_ROWS < j->w->n_rows ? begin + PANEL_ROWS : j->w->n_rows;
    bool is_float = dtype_info(j->w->type)->is_float;
    for (uint32_t t = 0; t < n; t += REF_TILE)
        for (uint32_t row = begin; row < end; row++)
            (is_float ? float_row : block_row)(j, row, t0 + t, n - t < REF_TILE ? n - t : REF_TILE);
}

// Row-major [64][hd] copies of a block of an int8 cache.
static void unpack_i8(const uint8_t *rec, uint32_t hd, int8_t *k, int8_t *v) {
    const int8_t *ks = (const int8_t *)rec, *vs = ks + kv_half_bytes(KV_I8, hd);
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++)
        for (uint32_t d = 0; d < hd; d++) {
            k[j * hd + d] = ks[d / 4 * 256 + j * 4 + d % 4];
            v[j * hd + d] = vs[j / 4 * (hd * 4) + d * 4 + j % 4];
        }
}

static void unpack_float(const uint8_t *rec, enum kv_type t, uint32_t hd, float *k, float *v) {
    enum dtype type = t == KV_F16 ? DT_F16 : DT_F32;
    const uint8_t *vs = rec + kv_half_bytes(t, hd);
    for (uint32_t j = 0; j < REF_KEY_BLOCK; j++)
        for (uint32_t d = 0; d < hd; d++) {
            k[j * hd + d] = ref_load_float(type, rec, d * REF_KEY_BLOCK + j);
            v[j * hd + d] = ref_load_float(type, vs, j * hd + d);
        }
}

union unpacked {
    struct {
        int8_t k[REF_KEY_BLOCK * LIMIT_HEAD_DIM], v[REF_KEY_BLOCK * LIMIT_HEAD_DIM];
    } i8;
    struct {
        float k[REF_KEY_BLOCK * LIMIT_HEAD_DIM], v[REF_KEY_BLOCK * LIMIT_HEAD_DIM];
    } f;
};

static void attention_ref(const struct kv_view *kv, struct att_query *q, uint32_t n) {
    uint32_t hd = kv->head_dim, first = q[0].lo, last = q[0].pos;
    struct ref_attention a[ATT_TILE];
    union unpacked u;
    for (uint32_t i = 0; i < n; i++) {
        ref_attention_begin(&a[i]);
        first = q[i].lo < first ? q[i].lo : first;
        last = q[i].pos > last ? q[i].pos : last;
    }
    for (uint32_t b = first / REF_KEY_BLOCK; b <= last / REF_KEY_BLOCK; b++) {
        const uint8_t *rec = kv_record(kv, b), *vs = rec + kv_half_bytes(kv->type, hd);
        const struct ref_keys_i8 keys = {u.i8.k, u.i8.v, kv_scales(rec, hd), kv_scales(vs, hd)};
        uint32_t j0 = b * REF_KEY_BLOCK;
        if (kv->type == KV_I8)
            unpack_i8(rec, hd, u.i8.k, u.i8.v);
        else
            unpack_float(rec, kv->type, hd, u.f.k, u.f.v);
        for (uint32_t i = 0; i < n; i++) {
            if (j0 > q[i].pos || j0 + REF_KEY_BLOCK <= q[i].lo) continue;
            if (kv->type == KV_I8)
                ref_attention_block_i8(&a[i], q[i].q8, q[i].qs, &keys, hd, q[i].cap, j0, q[i].lo, q[i].pos,
                                       &q[i].fault);
            else
                ref_attention_block_float(&a[i], q[i].q, q[i].qs, u.f.k, u.f.v, hd, q[i].cap, j0, q[i].lo, q[i].pos,
                                          &q[i].fault);
        }
    }
    for (uint32_t i = 0; i < n; i++) ref_attention_end(&a[i], hd, q[i].out);
}

static int32_t best_ref(const float *l, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!ref_is_finite(l[i])) return -1;
        if (l[i] > l[best]) best = i;
    }
    return (int32_t)best;
}

static void sample_u_ref(const float *l, uint32_t n, float best, float scale, uint32_t *u, bool *fault) {
    for (uint32_t i = 0; i < n; i++) u[i] = (uint32_t)rintf(ref_exp2((l[i] - best) * scale, fault) * 0x1p30f);
}

const struct kern kern_ref = {
    .name = "cpu/ref",
    .isa = ISA_REF,
    .quant_row = ref_quant_row,
    .quant = ref_quant,
    .rmsnorm = ref_rmsnorm,
    .exp2 = exp2_ref,
    .silu_mul = silu_mul_ref,
    .gelu_mul = gelu_mul_ref,
    .softcap = softcap_ref,
    .add = add_ref,
    .axpy = axpy_ref,
    .rope = ref_rope,
    .hadamard = ref_hadamard,
    .matmul = matmul_ref,
    .attention = attention_ref,
    .best = best_ref,
    .sample_u = sample_u_ref,
};
