// What becomes of tensors when they are loaded: types that are converted, rows in RoPE pairs, norms without their 1.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/part.h"
#include "weights/dequant.h"
#include "weights/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 256, HEAD_DIM = 32, ROWS_MAX = 256 };

#define COMMON                                                                                                         \
    "\"num_hidden_layers\":1,\"hidden_size\":256,\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":32," \
    "\"intermediate_size\":256,\"vocab_size\":64,\"max_position_embeddings\":128,\"tie_word_embeddings\":true"
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"]," COMMON

// A model whose matrices have one type, of random bytes, all but the embedding (F32).
struct made {
    struct hparams h;
    struct tensors *tensors;
    enum dtype type;
    uint8_t *data[64];
    uint32_t n;
    struct rng rng;
    struct backend *be;
    struct model_part *part;
};

// Random blocks with finite scales; floats near 1.
static void fill(struct made *m, enum dtype type, uint8_t *p, uint64_t bytes) {
    const struct dtype_info *info = dtype_info(type);
    for (uint64_t at = 0; at < bytes; at += info->block_bytes) {
        float f = (float)rng_unit(&m->rng) + 0.5f;
        if (type == DT_F32) memcpy(p + at, &f, sizeof f);
        if (type == DT_F32) continue;
        do
            for (uint32_t i = 0; i < info->block_bytes; i++) p[at + i] = (uint8_t)rng_u32(&m->rng);
        while (!dtype_row_is_finite(type, p + at, info->block_values));
    }
}

static int add(void *arg, const struct tensor_need *need) {
    struct made *m = arg;
    struct err e;
    const uint64_t k = need->dim[1] ? need->dim[1] : need->dim[0], rows = need->dim[1] ? need->dim[0] : 1;
    struct tensor t = {.name = need->name,
                       .type = need->is_matrix && need->name[6] != 'e' ? m->type : DT_F32,
                       .n_dims = need->dim[1] ? 2 : 1,
                       .dim = {need->dim[0], need->dim[1]}};
    t.bytes = rows * dtype_row_bytes(t.type, k);
    t.data = m->data[m->n] = malloc(t.bytes);
    fill(m, t.type, m->data[m->n++], t.bytes);
    return tensors_add(m->tensors, &t, &e);
}

static void make(struct made *m, const char *config, enum dtype type) {
    struct err e;
    *m = (struct made){.type = type};
    rng_init(&m->rng, 11);
    if (model_parse_config(config, strlen(config), &m->h, &e)) fail_msg("%s", e.text);
    assert_int_equal(tensors_new(&m->tensors), ERR_OK);
    assert_int_equal(model_needs(&m->h, 0, 1, add, m), 0);
    assert_int_equal(backend_cpu_new(&(struct backend_cpu_config){.isa = ISA_REF, .n_threads = 1}, &m->be, &e), ERR_OK);
}

static int load(struct made *m, const struct run_mode *mode, struct err *e) {
    return model_part_load(&m->h, mode, m->tensors, m->be, 0, 1, NULL, &m->part, e);
}

static void drop(struct made *m) {
    model_part_free(m->part);
    m->be->ops->free(m->be);
    tensors_free(m->tensors);
    for (uint32_t i = 0; i < m->n; i++) free(m->data[i]);
}

// Rows of a loaded matrix as f32.
static void rows_of(struct made *m, const struct weight *w, uint32_t n, float *out) {
    int32_t ids[ROWS_MAX];
    uint32_t pos[ROWS_MAX];
    uint8_t fault[ROWS_MAX] = {0};
    const uint64_t bytes = (uint64_t)n * HIDDEN * sizeof *out;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(pos[i] = i);
    struct batch b = {.n_rows = n, .row_pos = pos, .fault = fault};
    float *x = m->be->ops->mem_alloc(m->be, bytes);
    m->be->ops->embed(m->be, w, ids, 1, &b, true, x);
    m->be->ops->mem_get(m->be, out, x, bytes);
    m->be->ops->mem_free(m->be, x);
}

static const struct tensor *tensor_of(const struct made *m, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "model.layers.0.%s", name);
    const struct tensor *t = tensors_find(m->tensors, full);
    assert_non_null(t);
    return t;
}

// Row `row` of a tensor as f32.
static void values_of(const struct tensor *t, uint64_t row, float *out) {
    dequant_row(t->type, t->data + row * dtype_row_bytes(t->type, t->dim[1]), t->dim[1], out);
}

// What L8 makes of a row of f32, as f32.
static void through_l8(float *x) {
    uint8_t row[2 * 132];
    assert_int_equal(quantize_rows(DT_F32, x, 1, HIDDEN, DT_L8, row, NULL), 0);
    dequant_row(DT_L8, row, HIDDEN, x);
}

static void converted(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_Q2_K, DT_Q3_K, DT_IQ4_NL, DT_IQ4_XS, DT_Q4_K, DT_Q8_0};
    static const struct run_mode modes[] = {{.weights = WEIGHTS_NATIVE, .kv = KV_I8},
                                            {.weights = WEIGHTS_AS_IS, .kv = KV_I8},
                                            {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true}};
    static float have[ROWS_MAX * HIDDEN], want[HIDDEN];
    for (size_t i = 0; i < 3 * sizeof types / sizeof *types; i++) {
        const struct run_mode *mode = &modes[i % 3];
        const enum dtype type = types[i / 3];
        struct made m;
        struct err e;
        char text[256], word[64];
        make(&m, LLAMA "}", type);
        if (load(&m, mode, &e)) fail_msg("%s", e.text);
        rows_of(&m, m.part->layers[0].matrix[MAT_Q], 256, have);
        const bool native = dtype_info(type)->is_block && !mode->verify, l8 = i % 3 == 0 && !native;
        for (uint32_t r = 0; r < 256; r++) {
            values_of(tensor_of(&m, "self_attn.q_proj.weight"), r, want);
            if (l8) through_l8(want);
            assert_memory_equal(have + r * HIDDEN, want, sizeof want);
        }
        assert_int_equal(m.part->layers[0].has_block, native || l8);
        model_conversions(&m.h, mode, m.tensors, 0, 1, text, sizeof text);
        snprintf(word, sizeof word, "%s to %s (7 matrices)", dtype_info(type)->name, l8 ? "L8" : "F32");
        assert_int_equal(strstr(text, word) != NULL, !native);
        drop(&m);
    }
}

static void pairs(void **state) {
    (void)state;
    static float have[ROWS_MAX * HIDDEN], want[HIDDEN];
    struct made m;
    struct err e;
    make(&m, LLAMA ",\"attention_bias\":true,\"loom_qk_interleaved\":true}", DT_F32);
    const struct run_mode mode = {.weights = WEIGHTS_AS_IS, .kv = KV_I8};
    if (load(&m, &mode, &e)) fail_msg("%s", e.text);
    const struct {
        enum layer_matrix which;
        enum layer_vector bias;
        const char *name, *bias_name;
        uint32_t rows;
    } all[] = {{MAT_Q, VEC_BIAS_Q, "self_attn.q_proj.weight", "self_attn.q_proj.bias", 256},
               {MAT_K, VEC_BIAS_K, "self_attn.k_proj.weight", "self_attn.k_proj.bias", 64},
               {MAT_V, VEC_BIAS_V, "self_attn.v_proj.weight", "self_attn.v_proj.bias", 64}};
    for (size_t i = 0; i < 3; i++) {
        float bias[256];
        rows_of(&m, m.part->layers[0].matrix[all[i].which], all[i].rows, have);
        m.be->ops->mem_get(m.be, bias, m.part->layers[0].vector[all[i].bias], all[i].rows * sizeof *bias);
        const float *file_bias = (const float *)(const void *)tensor_of(&m, all[i].bias_name)->data;
        for (uint32_t head = 0; head < all[i].rows; head += HEAD_DIM)
            for (uint32_t j = 0; j < HEAD_DIM / 2; j++)
                for (uint32_t half = 0; half < 2; half++) { // value j and j + n/2 turn together
                    uint32_t row = head + j + half * HEAD_DIM / 2, in_file = head + 2 * j + half;
                    if (all[i].which == MAT_V) in_file = row;
                    values_of(tensor_of(&m, all[i].name), in_file, want);
                    assert_memory_equal(have + row * HIDDEN, want, sizeof want);
                    assert_true(bias[row] == file_bias[in_file]);
                }
    }
    drop(&m);
}

static void norms(void **state) {
    (void)state;
    static const char GEMMA[] = "{\"architectures\":[\"Gemma3ForCausalLM\"]," COMMON ",\"attention_bias\":true%s}";
    const struct run_mode mode = {.weights = WEIGHTS_AS_IS, .kv = KV_I8};
    for (int has_one = 0; has_one < 2; has_one++) {
        struct made m;
        struct err e;
        char config[768];
        float have[HIDDEN];
        snprintf(config, sizeof config, GEMMA, has_one ? ",\"loom_norm_has_one\":true" : "");
        make(&m, config, DT_F32);
        if (load(&m, &mode, &e)) fail_msg("%s", e.text);
        const struct {
            const float *loaded;
            const char *name;
            bool is_norm;
        } all[] = {{m.part->layers[0].vector[VEC_ATTN_NORM], "model.layers.0.input_layernorm.weight", true},
                   {m.part->layers[0].vector[VEC_K_NORM], "model.layers.0.self_attn.k_norm.weight", true},
                   {m.part->layers[0].vector[VEC_MLP_POST], "model.layers.0.post_feedforward_layernorm.weight", true},
                   {m.part->layers[0].vector[VEC_BIAS_Q], "model.layers.0.self_attn.q_proj.bias", false},
                   {m.part->final_norm, "model.norm.weight", true}};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            const struct tensor *t = tensors_find(m.tensors, all[i].name);
            const float *file = (const float *)(const void *)t->data;
            m.be->ops->mem_get(m.be, have, all[i].loaded, t->bytes);
            for (uint64_t x = 0; x < t->dim[0]; x++)
                assert_true(have[x] == (all[i].is_norm && !has_one ? file[x] + 1 : file[x]));
        }
        drop(&m);
    }
}

#define FP8                                                                                                            \
    ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","           \
    "\"weight_block_size\":[128,128]}}"

static void fp8(void **state) {
    (void)state;
    static float have[ROWS_MAX * HIDDEN], want[HIDDEN];
    static const struct run_mode modes[] = {{.weights = WEIGHTS_NATIVE, .kv = KV_I8},
                                            {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true}};
    for (int i = 0; i < 2; i++) {
        struct made m;
        struct err e;
        make(&m, LLAMA FP8, DT_F8_E4M3);
        if (load(&m, &modes[i], &e)) fail_msg("%s", e.text);
        const struct tensor *t = tensor_of(&m, "mlp.down_proj.weight");
        const struct tensor *s = tensor_of(&m, "mlp.down_proj.weight_scale_inv");
        assert_true(s->dim[0] == 2 && s->dim[1] == 2);
        rows_of(&m, m.part->layers[0].matrix[MAT_DOWN], 256, have);
        for (uint32_t r = 0; r < 256; r++) {
            dequant_f8_rows(t->data + r * HIDDEN, r, 1, HIDDEN, DT_F32, s->data, want);
            if (i == 0) through_l8(want);
            assert_memory_equal(have + r * HIDDEN, want, sizeof want);
        }
        drop(&m);
    }
}

// A bad scale in the last row of the last matrix is found, and named.
static void refused(void **state) {
    (void)state;
    static const struct {
        enum dtype type;
        const char *config;
        uint32_t offset;
    } all[] = {{DT_Q8_0, LLAMA "}", 0},
               {DT_Q4_K, LLAMA "}", 2},
               {DT_Q2_K, LLAMA "}", 80},
               {DT_F32, LLAMA "}", 2},
               {DT_F8_E4M3, LLAMA FP8, 0}};
    const struct run_mode mode = {.weights = WEIGHTS_NATIVE, .kv = KV_I8};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct made m;
        struct err e;
        make(&m, all[i].config, all[i].type);
        const struct tensor *t = tensor_of(&m, "mlp.down_proj.weight");
        uint8_t *last = (uint8_t *)(uintptr_t)t->data + t->bytes - dtype_info(t->type)->block_bytes;
        memset(last + all[i].offset, 0x7f, 1);
        memset(last + all[i].offset + (t->type != DT_F8_E4M3), t->type == DT_F32 ? 0xff : 0x7f, 1);
        if (t->type == DT_F32) memcpy(last, (uint8_t[]){0, 0, 0x80, 0x7f}, 4);
        assert_int_equal(load(&m, &mode, &e), ERR_FORMAT);
        if (!strstr(e.text, "layers.0.mlp.down_proj.weight") || !strstr(e.text, "NaN")) fail_msg("%s", e.text);
        m.part = NULL;
        drop(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(converted), cmocka_unit_test(pairs), cmocka_unit_test(norms),
                                       cmocka_unit_test(fp8), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
