// What a step reads and multiplies, counted by operation: against counts by hand of two small models.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/model.h"

#include <string.h>

#define COMMON                                                                                                         \
    "\"num_hidden_layers\":2,\"hidden_size\":128,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32," \
    "\"intermediate_size\":256,\"vocab_size\":64,\"max_position_embeddings\":512,\"rope_theta\":10000.0,"              \
    "\"rms_norm_eps\":1e-6,"
// The second layer has a window of 20.
#define DENSE                                                                                                          \
    "{\"architectures\":[\"Qwen3ForCausalLM\"]," COMMON "\"use_sliding_window\":true,\"sliding_window\":20,"           \
    "\"max_window_layers\":1,\"tie_word_embeddings\":true}"
// Four experts of 64 in the second layer only, two of them for a row.
#define MOE                                                                                                            \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," COMMON "\"num_experts\":4,\"num_experts_per_tok\":2,"              \
    "\"moe_intermediate_size\":64,\"norm_topk_prob\":true,\"mlp_only_layers\":[0],\"tie_word_embeddings\":false}"

enum { HIDDEN = 128, Q = 128, KV = 64, FFN = 256, VOCAB = 64, EXPERT = 64 };

struct made {
    struct hparams h;
    struct tensors *tensors;
    struct backend *be;
    struct model_matrices m;
};

// The type is all that counts here: there are no values.
static int add(void *arg, const struct tensor_need *need) {
    struct err e;
    struct made *m = arg;
    uint64_t n = need->dim[0] * (need->dim[1] ? need->dim[1] : 1);
    struct tensor t = {.name = need->name,
                       .type = DT_F32,
                       .n_dims = need->dim[1] ? 2 : 1,
                       .dim = {need->dim[0], need->dim[1]},
                       .data = (const uint8_t *)"",
                       .bytes = n * sizeof(float)};
    return tensors_add(m->tensors, &t, &e);
}

static const struct run_mode L8 = {.weights = WEIGHTS_L8, .kv = KV_I8};

static void make(struct made *m, const char *config) {
    struct err e;
    if (model_parse_config(config, strlen(config), &m->h, &e)) fail_msg("%s", e.text);
    assert_int_equal(tensors_new(&m->tensors), ERR_OK);
    assert_int_equal(model_needs(&m->h, 0, m->h.n_layers, add, m), 0);
    assert_int_equal(backend_cpu_new(&(struct backend_cpu_config){.isa = ISA_REF, .n_threads = 1}, &m->be, &e), ERR_OK);
    model_matrices(&m->h, &L8, m->be->ops, m->tensors, &m->m);
}

static void drop(struct made *m) {
    tensors_free(m->tensors);
    m->be->ops->free(m->be);
}

static double l8(const struct made *m, uint32_t n, uint32_t k) { return (double)m->be->ops->weight_bytes(DT_L8, n, k); }

static void matrices_of_a_dense_model(void **state) {
    struct made m;
    (void)state;
    make(&m, DENSE);
    assert_int_equal(m.m.most, DT_L8);
    assert_true(m.m.macs[OP_QKV] == 2.0 * HIDDEN * (Q + 2 * KV));
    assert_true(m.m.bytes[OP_QKV] == 2 * (l8(&m, Q, HIDDEN) + 2 * l8(&m, KV, HIDDEN)));
    assert_true(m.m.macs[OP_O] == 2.0 * Q * HIDDEN);
    assert_true(m.m.macs[OP_FFN] == 2.0 * 3 * HIDDEN * FFN);
    assert_true(m.m.bytes[OP_FFN] == 2 * (2 * l8(&m, FFN, HIDDEN) + l8(&m, HIDDEN, FFN)));
    assert_true(m.m.macs[OP_HEAD] == (double)VOCAB * HIDDEN); // the embedding, tied
    assert_true(m.m.bytes[OP_EXPERTS] == 0 && m.m.bytes[OP_ROUTER] == 0 && m.m.bytes[OP_REST] == 0);
    drop(&m);
}

static void a_chunk_and_a_window(void **state) {
    struct made m;
    struct model_work w = {{0}, {0}};
    (void)state;
    make(&m, DENSE);
    // Two sequences of 16 rows from position 10 on. All keys: 26 in all, 11 + ... + 26 pairs = 296. The window of 20
    // cuts from the row at 20 on (keys 1 to 20): keys 0 to 25 are read all the same; 11 + ... + 20 + 6 * 20 = 275.
    model_add_step(&m.h, KV_I8, &m.m, &(struct model_step){.n_seqs = 2, .n_rows = 16, .pos = 10}, &w);
    assert_true(w.macs[OP_FFN] == 32 * m.m.macs[OP_FFN] && w.bytes[OP_FFN] == m.m.bytes[OP_FFN]);
    assert_true(w.macs[OP_HEAD] == 0 && w.bytes[OP_HEAD] == 0);
    double kv_bytes = (double)model_kv_bytes_per_token(&m.h, KV_I8, 1);
    assert_true(w.macs[OP_ATTENTION] == 2.0 * 2 * (296 + 275) * Q);
    assert_true(w.bytes[OP_ATTENTION] == 2 * (26 + 26) * kv_bytes);
    // A row far behind: the window's 20 keys, and all 101.
    memset(&w, 0, sizeof w);
    model_add_step(&m.h, KV_I8, &m.m, &(struct model_step){.n_seqs = 1, .n_rows = 1, .pos = 100, .draws = true}, &w);
    assert_true(w.bytes[OP_ATTENTION] == (101 + 20) * kv_bytes);
    assert_true(w.macs[OP_ATTENTION] == 2.0 * (101 + 20) * Q);
    assert_true(w.macs[OP_HEAD] == m.m.macs[OP_HEAD] && w.bytes[OP_HEAD] == m.m.bytes[OP_HEAD]);
    // Attention over a cache of floats has no integers.
    memset(&w, 0, sizeof w);
    model_add_step(&m.h, KV_F16, &m.m, &(struct model_step){.n_seqs = 1, .n_rows = 1, .pos = 100}, &w);
    assert_true(w.macs[OP_ATTENTION] == 0 && w.bytes[OP_ATTENTION] > 0);
    drop(&m);
}

static void experts(void **state) {
    struct made m;
    struct model_work w = {{0}, {0}};
    (void)state;
    make(&m, MOE);
    double all = 4.0 * 3 * HIDDEN * EXPERT, bytes = 4 * (2 * l8(&m, EXPERT, HIDDEN) + l8(&m, HIDDEN, EXPERT));
    assert_true(m.m.macs[OP_EXPERTS] == all && m.m.bytes[OP_EXPERTS] == bytes);
    assert_true(m.m.macs[OP_FFN] == 3.0 * HIDDEN * FFN);
    assert_true(m.m.macs[OP_ROUTER] == 0 && m.m.bytes[OP_ROUTER] > 0);
    assert_true(m.m.bytes[OP_HEAD] == l8(&m, VOCAB, HIDDEN)); // the embedding is another matrix
    // One row chooses half of them; two rows, each of which chooses half: three quarters are read.
    model_add_step(&m.h, KV_I8, &m.m, &(struct model_step){.n_seqs = 1, .n_rows = 1, .pos = 0}, &w);
    assert_true(w.macs[OP_EXPERTS] == all / 2 && w.bytes[OP_EXPERTS] == bytes / 2);
    memset(&w, 0, sizeof w);
    model_add_step(&m.h, KV_I8, &m.m, &(struct model_step){.n_seqs = 2, .n_rows = 1, .pos = 0}, &w);
    assert_true(w.macs[OP_EXPERTS] == all && w.bytes[OP_EXPERTS] == bytes * 3 / 4);
    drop(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matrices_of_a_dense_model),
                                       cmocka_unit_test(a_chunk_and_a_window), cmocka_unit_test(experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
