// Inputs come from an integer generator, so that they are the same everywhere before any kernel ran. The wanted hashes
// are those of the numeric contract; every implementation has to reach them.
#include "compute/selftest_int.h"

#include <stdlib.h>

static const struct {
    const char *name;
    uint64_t hash;
} wanted[SELFTEST_HASHES] = {
    {"exp2", 0x7d3ec289c027fea7},
    {"exp2_dense", 0xf2b6b68440d29c32},
    {"silu", 0x440785b4c7375163},
    {"bf16", 0x889fce9314a82db7},
    {"quant_i8", 0xe125054e7a04010a},
    {"quant_many", 0xe2be59e8194f8a43},
    {"rmsnorm", 0x7ec517228633d91b},
    {"subnormal", 0x546b536141973b8b},
    {"rope", 0xff05ae98a2a78a33},
    {"hadamard", 0xf20aa2f7bb050b29},
    {"rope_table", 0xda2cfbb881769615},
    {"dot_Q8_0", 0x922046abd5eab766},
    {"dot_Q4_0", 0xee6a699108acfc48},
    {"dot_Q4_1", 0xc1052a9f1c2759ae},
    {"dot_Q5_0", 0x273ba129649d06c1},
    {"dot_Q5_1", 0x30f1c5142fda9a10},
    {"dot_Q4_K", 0x50227ea1bd648bd1},
    {"dot_Q5_K", 0x7f1061f9b28efbe8},
    {"dot_Q6_K", 0xc676e56e2c340cf6},
    {"dot_L8", 0xcb0ab43146406486},
    {"dot_F32", 0xb1903dbc755493db},
    {"make_l8", 0xdeb61e24068342d7},
    {"dot_tail", 0xbb9966c130d1608a},
    {"attention_64", 0x11aa35d8b58e91fc},
    {"attention_64_win100", 0x2c5f8f3644f0a272},
    {"attention_128", 0xb389e9f70f03469c},
    {"attention_128_win100", 0x469c2f6cf268f008},
    {"router_topk", 0x4a350e52779f44b7},
    {"sampler", 0x45ca9c13cf92c5a9},
    {"tanh", 0x0bd9963149e67688},
    {"softcap", 0xbb50acb07aeb5c7b},
    {"gelu", 0x611dcd6c798ce53f},
    {"attention_64_cap", 0xf5108c4689b8be01},
    {"attention_f16", 0x3dcfa7ba1d32615f},
    {"attention_f16_cap", 0xed269c5de050085d},
    {"router_sigmoid", 0x9c55773430c3fa94},
    {"position_factor", 0xb0478ca631b19e64},
};

static uint32_t random_u32(struct selftest *t) {
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return (uint32_t)(t->random >> 16);
}

static float random_unit(struct selftest *t) { return (float)(int32_t)(random_u32(t) >> 8) * 0x1p-23f - 1.0f; }

float selftest_random(struct selftest *t) {
    float a = random_unit(t), b = random_unit(t);
    return a * b * 3.0f;
}

// FNV-1a.
void selftest_hash(struct selftest *t, const void *data, size_t bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        t->hash ^= p[i];
        t->hash *= 1099511628211ull;
    }
}

void selftest_end(struct selftest *t) {
    struct selftest_result *r = t->r;
    r->name[t->n] = wanted[t->n].name;
    r->want[t->n] = wanted[t->n].hash;
    r->hash[t->n] = t->hash;
    if (t->hash != wanted[t->n].hash) r->n_wrong++;
    t->n++;
    t->hash = 14695981039346656037ull;
}

static void exp2_of_x(struct selftest *t, uint32_t n) {
    t->k->exp2(t->x, n, t->y, &t->fault);
    selftest_hash(t, t->y, n * sizeof *t->y);
}

static void test_exp2(struct selftest *t) {
    for (uint32_t at = 0; at < 1u << 20; at += FLOATS) {
        for (uint32_t i = 0; i < FLOATS; i++) t->x[i] = -(float)(at + i) * 0x1p-13f;
        exp2_of_x(t, FLOATS);
    }
    for (int i = -130; i <= 130; i++) {
        t->x[2 * (i + 130)] = (float)i;
        t->x[2 * (i + 130) + 1] = (float)i + 0.5f;
    }
    exp2_of_x(t, 2 * 261);
    selftest_end(t);
    for (uint32_t at = 0; at < 1u << 23; at += FLOATS) {
        for (uint32_t i = 0; i < FLOATS; i++) t->x[i] = -(float)(random_u32(t) >> 9) * 0x1p-23f;
        exp2_of_x(t, FLOATS);
    }
    selftest_end(t);
    for (int i = -4000; i <= 4000; i++) {
        t->x[i + 4000] = (float)i * 0.03125f;
        t->w[i + 4000] = 1.0f;
    }
    t->k->silu_mul(t->x, t->w, 8001, t->y, &t->fault);
    selftest_hash(t, t->y, 8001 * sizeof *t->y);
    selftest_end(t);
    for (int i = 0; i < 6144 - 1024; i++) selftest_random(t); // what the file of test vectors took
}

// Quantises n values of x in blocks of 128 and hashes codes, then scales (or block by block).
static void hash_quantised(struct selftest *t, const float *x, uint32_t n) {
    float d[256] = {0};
    for (uint32_t b = 0; b < n / 128; b++) {
        struct act_block a;
        t->k->quant_row(x + b * 128, 128, &a, &t->fault);
        memcpy(t->q + b * 128, a.q, 128);
        d[b] = a.d;
    }
    selftest_hash(t, t->q, n);
    selftest_hash(t, d, n / 128 * sizeof *d);
}

// Random values with a zero block, subnormals, exact ties, tiny values and bf16 ties in front.
static void test_rounding(struct selftest *t) {
    enum { N = 32768 };
    float *x = t->x;
    for (uint32_t i = 0; i < N; i++) {
        x[i] = selftest_random(t) * (i % 97 == 0 ? 40.0f : 1.0f);
        t->w[i] = -0.0f;
    }
    memset(x, 0, 512);
    for (uint32_t i = 128; i < 256; i++) x[i] = ref_float(random_u32(t) & 0x807fffffu);
    for (int i = 256; i < 384; i++) x[i] = (float)(i - 320) * 0.5f;
    x[300] = 63.5f;
    for (uint32_t i = 384; i < 512; i++) x[i] *= 0x1p-79f;
    for (uint32_t i = 512; i < 640; i++) x[i] = ref_float(0x3f808000u + ((i - 512) << 16));
    t->k->add(x, t->w, N, true, t->y, &t->fault);
    for (uint32_t i = 0; i < N; i++) {
        uint16_t h = (uint16_t)(ref_bits(t->y[i]) >> 16);
        selftest_hash(t, &h, sizeof h);
    }
    selftest_end(t);
    hash_quantised(t, x, N);
    selftest_end(t);
    for (int k = 0; k < 16384; k++) {
        float scale = ref_float(0x3a000000u + (random_u32(t) & 0x0fffffffu) % 0x0b000000u);
        for (int i = 0; i < 128; i++) x[i] = selftest_random(t) * scale;
        hash_quantised(t, x, 128);
    }
    selftest_end(t);
}

static void test_norm(struct selftest *t) {
    static const uint32_t lengths[] = {64, 128, 256, 896, 1024, 1536, 4096};
    uint32_t at = 0;
    for (uint32_t i = 0; i < 8000; i++) {
        float v = selftest_random(t) * (i % 131 == 0 ? 200.0f : 1.0f);
        t->x[i] = ref_f32_from_bf16(ref_bf16_from_f32(v, &t->fault));
        t->w[i] = 1.0f + 0.3f * selftest_random(t);
    }
    for (uint32_t i = 0; i < 7; i++) {
        t->k->rmsnorm(t->x + at, t->w + at, lengths[i], 1e-6f, t->y + at);
        at += lengths[i];
    }
    selftest_hash(t, t->y, at * sizeof *t->y);
    selftest_end(t);
}

// A matrix in this kernel set's own layout. row_bytes apart in t->rows.
static void load_matrix(struct selftest *t, enum dtype type, uint32_t n_rows, uint32_t k, struct weight *w) {
    *w = (struct weight){.type = type,
                         .n_rows = n_rows,
                         .k = k,
                         .n_panels = 1,
                         .n_blocks = ref_n_blocks(k),
                         .panels = t->k->panels,
                         .code_xor = t->k->code_xor,
                         .data = t->panel};
    w->panel_bytes = w->panels ? weight_panel_bytes(type, k) : 0;
    memset(t->panel, 0, PANEL_BYTES);
    if (w->panels)
        weight_store(w, 0, n_rows, t->rows);
    else
        w->data = t->rows;
}

// Fails under flush-to-zero or denormals-are-zero.
static void test_subnormal(struct selftest *t) {
    struct weight w;
    float v[16], o[LIMIT_HEAD_DIM] = {0};
    struct ref_att_state s;
    for (uint32_t i = 0; i < 256; i++) {
        t->w[i] = selftest_random(t) * 0x1p-70f;
        t->x[i] = selftest_random(t) * 0x1p-68f;
    }
    memcpy(t->rows, t->w, 256 * sizeof(float));
    load_matrix(t, DT_F32, 1, 256, &w);
    t->k->matmul(&(struct matmul_job){.w = &w, .x = t->x, .y = v}, 0, 0, 1);
    selftest_hash(t, v, sizeof *v);
    for (uint32_t i = 0; i < 256; i++) t->w[i] = selftest_random(t) * 0x1p-128f;
    for (uint32_t i = 0; i < 256; i++) t->x[i] = selftest_random(t);
    t->k->rmsnorm(t->x, t->w, 256, 1e-6f, t->y);
    selftest_hash(t, t->y, 256 * sizeof *t->y);
    ref_att_clear(&s);
    for (uint32_t i = 0; i < 64; i++) o[i] = (float)(int)(selftest_random(t) * 1000);
    ref_att_merge(&s, -118.0f, 40.0f, 0.003f, o, 64);
    memset(o, 0, sizeof o);
    ref_att_merge(&s, 0.0f, 1.0f, 0x1p-30f, o, 64);
    ref_att_merge(&s, 3.0f, 1.0f, 0x1p-30f, o, 64);
    selftest_hash(t, s.o, 64 * sizeof *s.o);
    selftest_hash(t, &s.l, sizeof s.l);
    selftest_end(t);
}

static void test_rope(struct selftest *t) {
    static const uint32_t positions[8] = {0, 1, 2, 777, 4096, 32767, 100000, 131071};
    double fq[64];
    float *cos = t->x, *sin = t->w, *y = t->y;
    for (int i = 0; i < 64; i++)
        fq[i] = (double)(1.0f / (1.0f + (float)i * 0.37f + (float)(i * i) * 1.3f)) * 0x1.45f306dc9c883p-1;
    for (uint32_t k = 0; k < 8; k++) {
        ref_rope_row(positions[k], fq, 64, cos + k * 64, sin + k * 64);
        for (uint32_t i = 0; i < 128; i++) y[k * 128 + i] = selftest_random(t);
        t->k->rope(y + k * 128, 64, cos + k * 64, sin + k * 64);
    }
    selftest_hash(t, cos, 512 * sizeof *cos);
    selftest_hash(t, sin, 512 * sizeof *sin);
    selftest_hash(t, y, 1024 * sizeof *y);
    selftest_end(t);
    for (uint32_t k = 0; k < 8; k++) t->k->hadamard(y + k * 128, 128);
    selftest_hash(t, y, 1024 * sizeof *y);
    selftest_end(t);
    for (uint32_t p = 0; p < 131072; p += 97) {
        ref_rope_row(p, fq, 64, cos, sin);
        selftest_hash(t, cos, 64 * sizeof *cos);
        selftest_hash(t, sin, 64 * sizeof *sin);
    }
    selftest_end(t);
}

// A row of random codes with sane scales, now and then a subnormal one.
static void random_row(struct selftest *t, enum dtype type, uint32_t k, uint8_t *row) {
    const struct dtype_info *info = dtype_info(type);
    uint32_t n = (k + info->block_values - 1) / info->block_values;
    for (uint32_t b = 0; b < n; b++, row += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++) row[i] = (uint8_t)random_u32(t);
        uint32_t half[2];
        for (int i = 0; i < 2; i++) {
            half[i] = 0x1800 + random_u32(t) % 0x800;
            half[i] |= random_u32(t) & 0x8000u;
        }
        if (random_u32(t) % 17 == 0) half[0] = random_u32(t) % 64;
        if (type == DT_L8) {
            float f = ref_float(0x3a800000u + (random_u32(t) & 0x7fffffu));
            memcpy(row, &f, sizeof f);
            continue;
        }
        bool has_min = type == DT_Q4_1 || type == DT_Q5_1 || type == DT_Q4_K || type == DT_Q5_K;
        uint8_t *at = row + (type == DT_Q6_K ? 208 : 0);
        for (int i = 0; i <= has_min; i++) {
            at[2 * i] = (uint8_t)half[i];
            at[2 * i + 1] = (uint8_t)(half[i] >> 8);
        }
    }
}

// Hashes the products of the matrix and the first n_tokens rows of activations. The rows are repeated to make kernels
// run all their tiles; a repetition that differs spoils the hash.
static void hash_products(struct selftest *t, const struct weight *w, uint32_t n_tokens) {
    float y[TILED_TOKENS * DOT_ROWS];
    uint32_t rows[TILED_TOKENS], row_bytes = w->n_rows * sizeof *y;
    for (uint32_t i = 0; i < TILED_TOKENS; i++) rows[i] = i % n_tokens;
    struct matmul_job j = {
        .w = w, .a = t->a, .x = t->x, .x_stride = DOT_K, .rows = rows, .y = y, .y_stride = w->n_rows};
    t->k->matmul(&j, 0, 0, TILED_TOKENS);
    selftest_hash(t, y, n_tokens * row_bytes);
    for (uint32_t i = n_tokens; i < TILED_TOKENS; i++)
        if (memcmp(y + i * w->n_rows, y + rows[i] * w->n_rows, row_bytes) != 0) selftest_hash(t, "tile", 4);
}

static void test_dots_float(struct selftest *t) {
    struct weight w;
    float *wf = t->w;
    for (uint32_t i = 0; i < DOT_ROWS * DOT_K; i++)
        wf[i] = ref_f32_from_bf16(ref_bf16_from_f32(selftest_random(t), &t->fault));
    memcpy(t->rows, wf, DOT_ROWS * DOT_K * sizeof *wf);
    load_matrix(t, DT_F32, DOT_ROWS, DOT_K, &w);
    hash_products(t, &w, DOT_TOKENS);
    selftest_end(t);
    for (uint32_t r = 0; r < DOT_ROWS; r++) // the loader's L8 rows of the same weights
        for (uint32_t b = 0; b < DOT_BLOCKS; b++) {
            struct act_block a;
            uint8_t *p = t->rows + (r * DOT_BLOCKS + b) * 132;
            t->k->quant_row(wf + r * DOT_K + b * 128, 128, &a, &t->fault);
            memcpy(p, &a.d, 4);
            memcpy(p + 4, a.q, 128);
        }
    selftest_hash(t, t->rows, DOT_ROWS * DOT_BLOCKS * 132);
    load_matrix(t, DT_L8, DOT_ROWS, DOT_K, &w);
    hash_products(t, &w, 1);
    selftest_end(t);
}

static void test_dots(struct selftest *t) {
    static const enum dtype types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_L8};
    struct weight w;
    for (uint32_t i = 0; i < DOT_TOKENS * DOT_K; i++) t->x[i] = selftest_random(t);
    for (uint32_t i = 0; i < DOT_TOKENS; i++)
        t->k->quant_row(t->x + i * DOT_K, DOT_K, t->a + i * DOT_BLOCKS, &t->fault);
    for (uint32_t i = 0; i < 9; i++) {
        uint64_t bytes = dtype_row_bytes(types[i], DOT_K);
        for (uint32_t r = 0; r < DOT_ROWS; r++) random_row(t, types[i], DOT_K, t->rows + r * bytes);
        load_matrix(t, types[i], DOT_ROWS, DOT_K, &w);
        hash_products(t, &w, DOT_TOKENS);
        selftest_end(t);
    }
    test_dots_float(t);
    for (uint32_t i = 0; i < 9; i += 8) { // a last block of 64
        random_row(t, types[i], 576, t->rows);
        t->k->quant_row(t->x, 576, t->a, &t->fault);
        load_matrix(t, types[i], 1, 576, &w);
        hash_products(t, &w, 1);
    }
    selftest_end(t);
}

static void test_choices(struct selftest *t) {
    uint32_t index[16 * 8];
    float weight[16 * 8];
    int32_t token[64];
    for (uint32_t k = 0; k < 16; k++) {
        for (uint32_t i = 0; i < 128; i++) t->x[i] = (float)(int)(selftest_random(t) * 8) * 0.25f;
        ref_router(t->x, 128, 8, true, index + k * 8, weight + k * 8, &t->fault);
    }
    selftest_hash(t, index, sizeof index);
    selftest_hash(t, weight, sizeof weight);
    selftest_end(t);
    for (uint32_t i = 0; i < 4096; i++) t->x[i] = selftest_random(t) * 3;
    t->x[77] = t->x[1234] = 11;
    struct sampler_scratch scratch = {.u = t->u, .entries = t->entries};
    for (uint32_t p = 0; p < 64; p++) {
        struct sampling s = {.temperature = p < 4 ? 0.0f : 0.5f + 0.02f * (float)p,
                             .top_k = p % 3 ? (int32_t)(20 + p) : 0,
                             .top_p = p % 5 ? 0.95f : 1.0f,
                             .min_p = p % 7 ? 0.0f : 0.02f,
                             .seed = 1234567890123456789ull,
                             .choice = p / 32};
        token[p] = sampler_draw(t->k, t->x, 4096, &s, p, &scratch, &t->fault);
    }
    selftest_hash(t, token, sizeof token);
    selftest_end(t);
}

// Rules of section 12: tanh through both of its forms, caps, GELU.
static void test_tanh(struct selftest *t) {
    enum { N = 40000 };
    static const float caps[] = {30.0f, 50.0f, 0.7f};
    for (int i = 0; i < N; i++) t->y[i] = (float)(i - N / 2) * 0x1p-11f;
    t->k->softcap(t->y, N, 1.0f, &t->fault);
    selftest_hash(t, t->y, N * sizeof *t->y);
    selftest_end(t);
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < N; i++) t->y[i] = selftest_random(t) * 20.0f;
        t->k->softcap(t->y, N, caps[k], &t->fault);
        selftest_hash(t, t->y, N * sizeof *t->y);
    }
    selftest_end(t);
    for (int i = 0; i < N; i++) {
        t->x[i] = (float)(i - N / 2) * 0x1p-10f;
        t->w[i] = selftest_random(t);
    }
    t->k->gelu_mul(t->x, t->w, N, t->y, &t->fault);
    selftest_hash(t, t->y, N * sizeof *t->y);
    selftest_end(t);
}

static void test_router(struct selftest *t) {
    uint32_t index[16 * 8];
    float weight[16 * 8], f[64];
    for (uint32_t k = 0; k < 16; k++) {
        struct ref_sigmoid_router r = {
            .n = 128, .top_k = 8, .n_groups = 8, .top_groups = k % 8 + 1, .norm_topk = k % 2 == 0, .bias = t->w};
        for (uint32_t i = 0; i < 128; i++) {
            t->x[i] = (float)(int)(selftest_random(t) * 8) * 0.25f;
            t->w[i] = (float)(int)(selftest_random(t) * 8) * 0.125f;
        }
        ref_router_sigmoid(&r, t->x, index + k * 8, weight + k * 8, &t->fault);
    }
    selftest_hash(t, index, sizeof index);
    selftest_hash(t, weight, sizeof weight);
    selftest_end(t);
    for (uint32_t p = 0; p < 4096; p++) {
        f[p % 64] = ref_position_factor(p * 97, p % 5 == 0 ? 1 : 64, 0.1f);
        if (p % 64 == 63) selftest_hash(t, f, sizeof f);
    }
    selftest_end(t);
}

int selftest_run(enum isa isa, struct selftest_result *r, struct err *e) {
    const struct kern *k = kern_find(isa);
    if (!k) return err_set(e, ERR_UNSUPPORTED, "this CPU has no %s", isa_name(isa));
    struct selftest *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    if (!t) return err_set(e, ERR_NOMEM, "no memory for the self-test");
    memset(t, 0, sizeof *t);
    *r = (struct selftest_result){0};
    t->k = k;
    t->r = r;
    t->random = 88172645463325252ull;
    t->hash = 14695981039346656037ull;
    test_exp2(t);
    test_rounding(t);
    test_norm(t);
    test_subnormal(t);
    test_rope(t);
    test_dots(t);
    selftest_attention(t, 64);
    selftest_attention(t, 128);
    test_choices(t);
    test_tanh(t);
    selftest_caps(t);
    test_router(t);
    ASSERT(t->n == SELFTEST_HASHES, "%u hashes", t->n);
    bool fault = t->fault;
    free(t);
    for (int i = 0; i < SELFTEST_HASHES; i++)
        if (r->hash[i] != r->want[i])
            return err_set(e, ERR_NUMERIC, "self-test of %s: %s is %016llx, must be %016llx", k->name, r->name[i],
                           (unsigned long long)r->hash[i], (unsigned long long)r->want[i]);
    if (fault) return err_set(e, ERR_NUMERIC, "self-test of %s: a fault on finite numbers", k->name);
    return ERR_OK;
}

uint64_t selftest_digest(const struct selftest_result *r) {
    uint64_t h = 14695981039346656037ull;
    for (int i = 0; i < SELFTEST_HASHES; i++)
        for (int b = 0; b < 64; b += 8) h = (h ^ (r->hash[i] >> b & 0xff)) * 1099511628211ull;
    return h;
}
