#include "base/buf.h"
#include "gguf/gguf.h"
#include "os/file.h"
#include "weights/gguf_names.h"
#include "weights/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { F32 = 0, Q4_0 = 2, Q4_K = 12, IQ2_XXS = 16, I8 = 24 };

static char folder[] = "/tmp/loom-gguf-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state) {
    (void)state;
    file_remove_tree(folder);
    return 0;
}

// ---- A file in the making

struct maker {
    struct gguf_writer *w;
    uint64_t data_bytes;
};

static void begin(struct maker *m, const char *arch) {
    *m = (struct maker){0};
    assert_int_equal(gguf_writer_new(&m->w), 0);
    if (arch) assert_int_equal(gguf_put_string(m->w, "general.architecture", arch, strlen(arch)), 0);
}

static void tensor(struct maker *m, const char *name, uint32_t type, uint64_t bytes, uint32_t n_dims, uint64_t a,
                   uint64_t b, uint64_t c) {
    const uint64_t dim[] = {a, b, c};
    uint64_t at;
    assert_int_equal(gguf_put_tensor(m->w, name, dim, n_dims, type, bytes, &at), 0);
}

// The header, then data 0, 1, 2, ... of all tensors.
static void finish(struct maker *m, struct buf *out) {
    buf_init(out, 1 << 24);
    assert_int_equal(gguf_writer_header(m->w, out), 0);
    for (uint64_t i = 0; i < gguf_writer_data_bytes(m->w); i++)
        assert_int_equal(buf_add(out, &(uint8_t){(uint8_t)i}, 1), 0);
    gguf_writer_free(m->w);
}

static void write_file(const char *name, const struct buf *b) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write(path, b->data, b->len_bytes, 0600, NULL), 0);
}

static void refused(struct buf *b, int code, const char *word, const char *other) {
    struct tensors *t;
    struct err e;
    int rc = tensors_open_memory(b->data, b->len_bytes, &t, &e);
    if (rc != code || !strstr(e.text, word) || !strstr(e.text, other)) fail_msg("%d %s", rc, rc ? e.text : "");
    buf_fini(b);
}

// ---- Whole files

static void names_and_shapes(void **state) {
    (void)state;
    struct maker m;
    struct buf b;
    struct tensors *t;
    struct err e;
    begin(&m, "qwen3moe");
    tensor(&m, "token_embd.weight", Q4_K, 2 * 5 * 144, 2, 512, 5, 1);
    tensor(&m, "blk.3.attn_q_norm.weight", F32, 64, 1, 16, 1, 1);
    tensor(&m, "blk.3.ffn_gate_exps.weight", Q4_0, 3 * 4 * 2 * 18, 3, 64, 4, 3);
    tensor(&m, "rope_freqs.weight", F32, 32, 1, 8, 1, 1);
    tensor(&m, "blk.0.ssm_conv1d.weight", I8, 4, 1, 4, 1, 1);
    finish(&m, &b);
    if (tensors_open_memory(b.data, b.len_bytes, &t, &e)) fail_msg("%s", e.text);
    assert_int_equal(tensors_count(t), 7);
    const struct tensor *x = tensors_find(t, "model.embed_tokens.weight");
    assert_non_null(x);
    assert_int_equal(x->type, DT_Q4_K);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(x->dim[0], 5);
    assert_int_equal(x->dim[1], 512);
    assert_int_equal(x->bytes, 2 * 5 * 144);
    assert_int_equal(x->data[0], 0);
    assert_non_null(tensors_find(t, "model.layers.3.self_attn.q_norm.weight"));
    assert_non_null(tensors_find(t, "rope_freqs.weight"));
    assert_non_null(tensors_find(t, "blk.0.ssm_conv1d.weight"));
    assert_null(tensors_find(t, "blk.3.ffn_gate_exps.weight"));
    const struct tensor *first = tensors_find(t, "model.layers.3.mlp.experts.0.gate_proj.weight");
    const struct tensor *last = tensors_find(t, "model.layers.3.mlp.experts.2.gate_proj.weight");
    assert_non_null(first);
    assert_non_null(last);
    assert_null(tensors_find(t, "model.layers.3.mlp.experts.3.gate_proj.weight"));
    assert_int_equal(last->n_dims, 2);
    assert_int_equal(last->dim[0], 4);
    assert_int_equal(last->dim[1], 64);
    assert_int_equal(last->bytes, 4 * 2 * 18);
    assert_ptr_equal(last->data, first->data + 2 * last->bytes);
    struct gguf_string arch;
    assert_int_equal(gguf_get_string(tensors_gguf(t), "general.architecture", &arch, &e), 0);
    assert_memory_equal(arch.text, "qwen3moe", 8);
    tensors_free(t);
    buf_fini(&b);
}

static void aliases(void **state) {
    (void)state;
    struct maker m;
    struct buf b;
    struct tensors *t;
    struct err e;
    begin(&m, "phi3");
    tensor(&m, "blk.0.attn_qkv.weight", Q4_0, 8 * 18, 2, 32, 8, 1);
    finish(&m, &b);
    assert_int_equal(tensors_open_memory(b.data, b.len_bytes, &t, &e), 0);
    const struct tensor *fused = tensors_find(t, "model.layers.0.self_attn.qkv_proj.weight");
    assert_non_null(fused);
    const uint8_t *data = fused->data;
    for (int i = 0; i < 100; i++) { // the list grows and moves
        char name[32];
        snprintf(name, sizeof name, "rows %d", i);
        fused = tensors_find(t, "model.layers.0.self_attn.qkv_proj.weight");
        assert_int_equal(tensors_alias(t, name, fused, 5, 3, &e), 0);
    }
    const struct tensor *x = tensors_find(t, "rows 99");
    assert_ptr_equal(x->data, data + 5 * 18);
    assert_int_equal(x->dim[0], 3);
    assert_int_equal(x->dim[1], 32);
    assert_int_equal(x->bytes, 3 * 18);
    fused = tensors_find(t, "model.layers.0.self_attn.qkv_proj.weight");
    assert_int_equal(tensors_alias(t, "rows 0", fused, 0, 1, &e), ERR_FORMAT);
    tensors_free(t);
    buf_fini(&b);
}

static void refuses_types(void **state) {
    (void)state;
    struct maker m;
    struct buf b;
    begin(&m, "llama");
    tensor(&m, "blk.0.ffn_up.weight", IQ2_XXS, 66, 2, 256, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_UNSUPPORTED, "tensor blk.0.ffn_up.weight: type IQ2_XXS", "not supported");
    begin(&m, "llama");
    tensor(&m, "blk.0.ffn_up.weight", 9999, 66, 2, 256, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_UNSUPPORTED, "blk.0.ffn_up.weight", "9999");
    begin(&m, "llama");
    tensor(&m, "blk.0.ffn_up.weight", 999, 66, 2, 256, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_UNSUPPORTED, "type unknown (999)", "and L8 are");
    begin(&m, "llama");
    tensor(&m, "output.weight", Q4_K, 144, 2, 128, 2, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "output.weight", "blocks of 256");
}

static void refuses_places(void **state) {
    (void)state;
    struct maker m;
    struct buf b;
    // The writer is told fewer bytes than the shape has: past the end, or into the next one.
    begin(&m, "llama");
    tensor(&m, "a", F32, 32, 1, 8, 1, 1);
    tensor(&m, "b", F32, 32, 1, 9, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor b: its 36 bytes", "not inside");
    begin(&m, "llama");
    tensor(&m, "a", F32, 32, 1, 9, 1, 1);
    tensor(&m, "b", F32, 32, 1, 7, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor b: its data overlaps", "tensor a");
    begin(&m, "llama");
    tensor(&m, "a", F32, 32, 3, 1ull << 40, 1ull << 20, 8);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor a", "2^64");
    begin(&m, "llama");
    tensor(&m, "a", F32, 32, 2, 8, 0, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor a", "0");
    begin(&m, "llama");
    tensor(&m, "token_embd.weight", F32, 32, 1, 8, 1, 1);
    tensor(&m, "model.embed_tokens.weight", F32, 32, 1, 8, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor model.embed_tokens.weight", "twice");
    begin(&m, "llama"); // by the name that the file has
    tensor(&m, "model.embed_tokens.weight", F32, 32, 1, 8, 1, 1);
    tensor(&m, "token_embd.weight", F32, 32, 1, 8, 1, 1);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "tensor token_embd.weight", "twice");
    begin(&m, "qwen3moe");
    tensor(&m, "blk.0.ffn_up_exps.weight", F32, 2000 * 4, 3, 1, 1, 2000);
    finish(&m, &b);
    refused(&b, ERR_FORMAT, "blk.0.ffn_up_exps.weight", "experts");
    begin(&m, "llama");
    tensor(&m, "a", F32, 32, 1, 8, 1, 1);
    finish(&m, &b);
    b.len_bytes -= 1;
    refused(&b, ERR_FORMAT, "tensor a", "not inside");
}

static void file_names(void **state) {
    (void)state;
    char out[LIMIT_PATH];
    assert_true(tensors_file_name("a/m.gguf", 0, out));
    assert_string_equal(out, "a/m.gguf");
    assert_false(tensors_file_name("a/m.gguf", 1, out));
    assert_true(tensors_file_name("a/m-00002-of-00003.gguf", 0, out));
    assert_string_equal(out, "a/m-00001-of-00003.gguf");
    assert_true(tensors_file_name("a/m-00002-of-00003.gguf", 2, out));
    assert_string_equal(out, "a/m-00003-of-00003.gguf");
    assert_false(tensors_file_name("a/m-00002-of-00003.gguf", 3, out));
    assert_false(tensors_file_name("a/m-2-of-3.gguf", 1, out));
}

// ---- Split ones

static void put_u16(struct maker *m, const char *key, uint16_t v) {
    const struct gguf_value value = {.key = {key, strlen(key)},
                                     .type = GGUF_U16,
                                     .item_type = GGUF_U16,
                                     .n_items = 1,
                                     .data = (const uint8_t *)&v,
                                     .data_bytes = 2};
    assert_int_equal(gguf_put_value(m->w, &value), 0);
}

// Shard no of count with n_own tensors of 32 bytes, in a file of this name.
static void shard(const char *file, uint16_t no, uint16_t count, uint32_t n_all, uint32_t n_own) {
    struct maker m;
    struct buf b;
    begin(&m, no == 0 ? "llama" : NULL);
    put_u16(&m, "split.no", no);
    put_u16(&m, "split.count", count);
    assert_int_equal(gguf_put_u32(m.w, "split.tensors.count", n_all), 0);
    for (uint32_t i = 0; i < n_own; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.attn_norm.weight", no * 10u + i);
        tensor(&m, name, F32, 32, 1, 8, 1, 1);
    }
    finish(&m, &b);
    write_file(file, &b);
    buf_fini(&b);
}

static int open_one(const char *file, struct tensors **t, struct err *e) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return tensors_open(path, t, e);
}

static void split(void **state) {
    (void)state;
    static const char *const files[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    struct tensors *t;
    struct err e;
    shard(files[0], 0, 3, 3, 0); // metadata only
    shard(files[1], 1, 3, 3, 2);
    shard(files[2], 2, 3, 3, 1);
    for (int i = 0; i < 3; i++) {
        if (open_one(files[i], &t, &e)) fail_msg("%s", e.text);
        assert_int_equal(tensors_count(t), 3);
        // Names by the first shard's architecture, metadata of the first shard, data of its own file.
        const struct tensor *x = tensors_find(t, "model.layers.20.input_layernorm.weight");
        assert_non_null(x);
        assert_int_equal(x->data[5], 5);
        uint8_t byte;
        assert_int_equal(tensors_read(t, x, 7, &byte, 1, &e), 0);
        assert_int_equal(byte, 7);
        assert_non_null(gguf_find(tensors_gguf(t), "general.architecture"));
        tensors_free(t);
    }
}

static void split_refused(const char *open, int code, const char *word, const char *other) {
    struct tensors *t;
    struct err e;
    int rc = open_one(open, &t, &e);
    if (rc != code || !strstr(e.text, word) || !strstr(e.text, other)) fail_msg("%d %s", rc, rc ? e.text : "");
}

static void bad_splits(void **state) {
    (void)state;
    shard("x-00001-of-00002.gguf", 0, 2, 2, 1);
    split_refused("x-00001-of-00002.gguf", ERR_NOT_FOUND, "x-00002-of-00002.gguf", "missing");
    shard("x-00002-of-00002.gguf", 0, 2, 2, 1); // the first one over again
    split_refused("x-00001-of-00002.gguf", ERR_FORMAT, "x-00002-of-00002.gguf", "split.no");
    split_refused("x-00002-of-00002.gguf", ERR_FORMAT, "x-00002-of-00002.gguf", "names back");
    shard("x-00002-of-00002.gguf", 1, 3, 2, 1);
    split_refused("x-00001-of-00002.gguf", ERR_FORMAT, "x-00002-of-00002.gguf", "split.count");
    shard("x-00002-of-00002.gguf", 1, 2, 5, 1);
    split_refused("x-00001-of-00002.gguf", ERR_FORMAT, "split.tensors.count", "");
    shard("x-00001-of-00002.gguf", 0, 2, 5, 1);
    split_refused("x-00001-of-00002.gguf", ERR_FORMAT, "split.tensors.count is 5", "2 tensors");
    shard("renamed.gguf", 0, 2, 2, 1);
    split_refused("renamed.gguf", ERR_FORMAT, "renamed.gguf", "names back");
    shard("y.gguf", 1, 1, 1, 1);
    split_refused("y.gguf", ERR_FORMAT, "y.gguf", "split.no is 1");
    // A link to the first file in place of the second.
    char from[512], to[512];
    shard("z-00001-of-00002.gguf", 0, 2, 2, 1);
    snprintf(from, sizeof from, "%s/z-00001-of-00002.gguf", folder);
    snprintf(to, sizeof to, "%s/z-00002-of-00002.gguf", folder);
    assert_int_equal(symlink(from, to), 0);
    split_refused("z-00001-of-00002.gguf", ERR_FORMAT, "z-00002-of-00002.gguf", "split.no");
    struct buf b = {0};
    buf_init(&b, 16);
    assert_int_equal(buf_add(&b, "hello", 5), 0);
    write_file("empty.gguf", &b);
    split_refused("empty.gguf", ERR_FORMAT, "empty.gguf", "GGUF");
    buf_fini(&b);
}

// ---- Names

static void names(void **state) {
    (void)state;
    static const struct {
        const char *arch, *gguf, *hf; // hf with the number of an expert, where it has one
        uint32_t expert;
    } all[] = {
        {"llama", "token_embd.weight", "model.embed_tokens.weight", UINT32_MAX},
        {"llama", "output.weight", "lm_head.weight", UINT32_MAX},
        {"llama", "output_norm.weight", "model.norm.weight", UINT32_MAX},
        {"llama", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", UINT32_MAX},
        {"llama", "blk.31.attn_q.weight", "model.layers.31.self_attn.q_proj.weight", UINT32_MAX},
        {"llama", "blk.31.ffn_norm.weight", "model.layers.31.post_attention_layernorm.weight", UINT32_MAX},
        {"llama", "blk.1.ffn_gate_inp.weight", "model.layers.1.block_sparse_moe.gate.weight", UINT32_MAX},
        {"llama", "blk.1.ffn_up_exps.weight", "model.layers.1.block_sparse_moe.experts.7.w3.weight", 7},
        {"llama", "blk.1.ffn_down_exps.weight", "model.layers.1.block_sparse_moe.experts.0.w2.weight", 0},
        {"qwen2", "blk.2.attn_k.bias", "model.layers.2.self_attn.k_proj.bias", UINT32_MAX},
        {"qwen3", "blk.2.attn_k_norm.weight", "model.layers.2.self_attn.k_norm.weight", UINT32_MAX},
        {"qwen3moe", "blk.2.ffn_gate_inp.weight", "model.layers.2.mlp.gate.weight", UINT32_MAX},
        {"qwen3moe", "blk.2.ffn_gate_exps.weight", "model.layers.2.mlp.experts.127.gate_proj.weight", 127},
        {"mistral3", "blk.2.ffn_up.weight", "model.layers.2.mlp.up_proj.weight", UINT32_MAX},
        {"phi3", "blk.2.attn_qkv.weight", "model.layers.2.self_attn.qkv_proj.weight", UINT32_MAX},
        {"phi3", "blk.2.ffn_up.weight", "model.layers.2.mlp.gate_up_proj.weight", UINT32_MAX},
        {"phi3", "blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight", UINT32_MAX},
        {"olmo2", "blk.2.post_attention_norm.weight", "model.layers.2.post_attention_layernorm.weight", UINT32_MAX},
        {"olmo2", "blk.2.post_ffw_norm.weight", "model.layers.2.post_feedforward_layernorm.weight", UINT32_MAX},
        {"smollm3", "blk.2.ffn_norm.weight", "model.layers.2.post_attention_layernorm.weight", UINT32_MAX},
        {"seed_oss", "blk.2.post_attention_norm.weight", "model.layers.2.post_attention_layernorm.weight", UINT32_MAX},
        {"gemma2", "blk.2.ffn_norm.weight", "model.layers.2.pre_feedforward_layernorm.weight", UINT32_MAX},
        {"gemma3", "blk.2.post_attention_norm.weight", "model.layers.2.post_attention_layernorm.weight", UINT32_MAX},
        {"gemma3", "blk.2.attn_q_norm.weight", "model.layers.2.self_attn.q_norm.weight", UINT32_MAX},
        {"glm4moe", "blk.2.exp_probs_b.bias", "model.layers.2.mlp.gate.e_score_correction_bias", UINT32_MAX},
        {"glm4moe", "blk.2.ffn_down_shexp.weight", "model.layers.2.mlp.shared_experts.down_proj.weight", UINT32_MAX},
        {"glm4moe", "blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", UINT32_MAX},
        {"minimax-m2", "blk.2.exp_probs_b.bias", "model.layers.2.block_sparse_moe.e_score_correction_bias", UINT32_MAX},
        {"minimax-m2", "blk.2.ffn_gate_exps.weight", "model.layers.2.block_sparse_moe.experts.255.w1.weight", 255},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char out[LIMIT_TENSOR_NAME], whole[LIMIT_TENSOR_NAME];
        uint32_t expert;
        bool is_stack;
        if (!gguf_names_to_hf(all[i].arch, all[i].gguf, out, &is_stack)) fail_msg("%s", all[i].gguf);
        assert_int_equal(is_stack, all[i].expert != UINT32_MAX);
        const char *hole = strstr(out, "%u");
        if (hole)
            snprintf(whole, sizeof whole, "%.*s%u%s", (int)(hole - out), out, all[i].expert, hole + 2);
        else
            snprintf(whole, sizeof whole, "%s", out);
        assert_string_equal(whole, all[i].hf);
        if (!gguf_names_from_hf(all[i].arch, all[i].hf, out, &expert)) fail_msg("%s", all[i].hf);
        assert_string_equal(out, all[i].gguf);
        assert_int_equal(expert, all[i].expert);
    }
    static const char *const strange[] = {"blk.0.attn_qkv.weight", "blk.x.attn_q.weight", "blk.00.attn_q.weight",
                                          "blk.0.attn_q.scale",    "blk.0.attn_q",        "blk.999.attn_q.weight",
                                          "attn_q.weight",         "rope_freqs.weight",   ""};
    char out[LIMIT_TENSOR_NAME];
    bool is_stack;
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        if (gguf_names_to_hf("llama", strange[i], out, &is_stack)) fail_msg("%s -> %s", strange[i], out);
    assert_false(gguf_names_to_hf("gpt2", "token_embd.weight", out, &is_stack));
    assert_string_equal(gguf_names_arch("Glm4MoeForCausalLM"), "glm4moe");
    assert_null(gguf_names_arch("GPT2LMHeadModel"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_shapes), cmocka_unit_test(aliases),
                                       cmocka_unit_test(refuses_types),    cmocka_unit_test(refuses_places),
                                       cmocka_unit_test(file_names),       cmocka_unit_test(split),
                                       cmocka_unit_test(bad_splits),       cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
