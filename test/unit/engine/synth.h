// A tiny model made of random numbers, so that the engine can be tested without a model file.
#pragma once
#include "base/rng.h"
#include "engine/stage.h"
#include "weights/quantize.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// Four layers: in the family of experts the second is dense, in the other one the last two have a window.
#define SYNTH_COMMON                                                                                                   \
    "\"num_hidden_layers\":4,\"hidden_size\":48,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"  \
    "\"intermediate_size\":80,\"vocab_size\":100,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,"               \
    "\"rope_theta\":10000.0,\"eos_token_id\":2,"
#define SYNTH_DENSE                                                                                                    \
    "{\"architectures\":[\"Qwen3ForCausalLM\"]," SYNTH_COMMON "\"use_sliding_window\":true,\"sliding_window\":20,"     \
    "\"max_window_layers\":2,\"tie_word_embeddings\":true}"
#define SYNTH_MOE                                                                                                      \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SYNTH_COMMON "\"num_experts\":4,\"num_experts_per_tok\":2,"        \
    "\"moe_intermediate_size\":32,\"norm_topk_prob\":true,\"mlp_only_layers\":[1]}"

// Of whole super-blocks, for the types of GGUF files.
#define SYNTH_WIDE                                                                                                     \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":256,"                        \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":512,"                   \
    "\"vocab_size\":100,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"                 \
    "\"eos_token_id\":2,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":256,"                    \
    "\"norm_topk_prob\":true,\"mlp_only_layers\":[1]}"

struct synth {
    struct hparams h;
    struct tensors *tensors;
    void *data[512];
    uint32_t n;
    enum dtype type; // of the matrices in the files
    struct rng rng;
};

static inline int synth_add(void *arg, const struct tensor_need *need) {
    struct synth *s = arg;
    struct err e;
    uint64_t n = need->dim[0] * (need->dim[1] ? need->dim[1] : 1);
    float *x = malloc(n * sizeof *x);
    s->data[s->n++] = x;
    for (uint64_t i = 0; i < n; i++) x[i] = (float)(need->dim[1] ? rng_unit(&s->rng) - 0.5 : rng_unit(&s->rng) + 0.5);
    struct tensor t = {.name = need->name,
                       .type = DT_F32,
                       .n_dims = need->dim[1] ? 2 : 1,
                       .dim = {need->dim[0], need->dim[1]},
                       .data = (const uint8_t *)x,
                       .bytes = n * sizeof *x};
    if (need->is_matrix && s->type != DT_F32) {
        t.type = s->type;
        t.bytes = need->dim[0] * dtype_row_bytes(s->type, need->dim[1]);
        void *blocks = malloc(t.bytes);
        if (quantize_rows(DT_F32, x, need->dim[0], need->dim[1], s->type, blocks, &e)) fail_msg("%s", e.text);
        free(x);
        t.data = blocks;
        s->data[s->n - 1] = blocks;
    }
    return tensors_add(s->tensors, &t, &e);
}

static inline void synth_open_as(struct synth *s, const char *config, enum dtype type) {
    struct err e;
    s->n = 0;
    s->type = type;
    rng_init(&s->rng, 7);
    if (model_parse_config(config, strlen(config), &s->h, &e)) fail_msg("%s", e.text);
    assert_int_equal(tensors_new(&s->tensors), ERR_OK);
    assert_int_equal(model_needs(&s->h, 0, s->h.n_layers, synth_add, s), 0);
}

static inline void synth_open(struct synth *s, const char *config) { synth_open_as(s, config, DT_F32); }

static inline void synth_close(struct synth *s) {
    tensors_free(s->tensors);
    for (uint32_t i = 0; i < s->n; i++) free(s->data[i]);
}

static inline struct stage *synth_stage(const struct synth *s, struct backend *be, struct run_mode mode, uint32_t a,
                                        uint32_t b) {
    struct err e;
    struct model_part *part;
    struct stage *stage;
    struct stage_config c = {
        .hparams = &s->h, .mode = mode, .a = a, .b = b, .n_kv_blocks = 32, .max_rows = 128, .max_context = 320};
    if (model_part_load(&s->h, &mode, s->tensors, be, a, b, NULL, &part, &e)) fail_msg("%s", e.text);
    if (stage_new(&c, be, part, &stage, &e)) fail_msg("%s", e.text);
    return stage;
}

// Adds rows of a sequence to a step; the block ids follow first_id. Tokens are a function of slot and position.
static inline struct step_seq *synth_rows(struct step *s, uint32_t slot, uint32_t pos, uint32_t n, uint32_t first_id) {
    uint32_t have = (pos + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    struct step_seq *q = &s->seqs[s->n_seqs++];
    *q = (struct step_seq){.slot = slot,
                           .pos = pos,
                           .row = s->n_rows,
                           .n_rows = n,
                           .first_block = have,
                           .block = s->n_blocks,
                           .sample = true,
                           .sampling = {.top_p = 1}};
    for (; have * LIMIT_BLOCK_TOKENS < pos + n; have++, q->n_blocks++) s->blocks[s->n_blocks++] = first_id + have;
    for (uint32_t i = 0; i < n; i++) s->tokens[s->n_rows++] = (int32_t)((slot * 31 + (pos + i) * 7) % 100);
    return q;
}
