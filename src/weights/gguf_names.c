#include "weights/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LLAMA = 1 << 0,
    MISTRAL3 = 1 << 1,
    QWEN2 = 1 << 2,
    QWEN3 = 1 << 3,
    QWEN3MOE = 1 << 4,
    PHI3 = 1 << 5,
    OLMO2 = 1 << 6,
    SMOLLM3 = 1 << 7,
    SEED_OSS = 1 << 8,
    GEMMA2 = 1 << 9,
    GEMMA3 = 1 << 10,
    GLM4MOE = 1 << 11,
    MINIMAX_M2 = 1 << 12,
    GEMMA = GEMMA2 | GEMMA3,
    ANY = (1 << 13) - 1,
    PLAIN_MLP = ANY & ~(PHI3 | MINIMAX_M2), // also dense layers among those of experts
    MIXTRAL_LIKE = LLAMA | MINIMAX_M2,      // names of Mixtral's experts
    QWEN_LIKE = QWEN3MOE | GLM4MOE
};

static const struct arch {
    const char *gguf, *hf;
    uint32_t bit;
} ARCHES[] = {
    {"llama", "LlamaForCausalLM", LLAMA},
    {"llama", "MistralForCausalLM", LLAMA},
    {"llama", "MixtralForCausalLM", LLAMA},
    {"mistral3", "Ministral3ForCausalLM", MISTRAL3},
    {"qwen2", "Qwen2ForCausalLM", QWEN2},
    {"qwen3", "Qwen3ForCausalLM", QWEN3},
    {"qwen3moe", "Qwen3MoeForCausalLM", QWEN3MOE},
    {"phi3", "Phi3ForCausalLM", PHI3},
    {"olmo2", "Olmo3ForCausalLM", OLMO2},
    {"smollm3", "SmolLM3ForCausalLM", SMOLLM3},
    {"seed_oss", "SeedOssForCausalLM", SEED_OSS},
    {"gemma2", "Gemma2ForCausalLM", GEMMA2},
    {"gemma3", "Gemma3ForCausalLM", GEMMA3},
    {"glm4moe", "Glm4MoeForCausalLM", GLM4MOE},
    {"minimax-m2", "MiniMaxM2ForCausalLM", MINIMAX_M2},
};

// Tensors outside the layers.
static const char *const WHOLE[][2] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Tensors of layer i: "blk.i.<gguf>" and "model.layers.i.<hf>", both with ".weight" or ".bias" behind it if `ending`.
// "%u" stands for the expert in what GGUF has as one stack. The first row that fits counts.
static const struct row {
    const char *gguf, *hf;
    uint32_t arches;
    bool ending;
} ROWS[] = {
    {"attn_norm", "input_layernorm", ANY & ~OLMO2, true},
    {"attn_q", "self_attn.q_proj", ANY, true},
    {"attn_k", "self_attn.k_proj", ANY, true},
    {"attn_v", "self_attn.v_proj", ANY, true},
    {"attn_qkv", "self_attn.qkv_proj", PHI3, true},
    {"attn_output", "self_attn.o_proj", ANY, true},
    {"attn_q_norm", "self_attn.q_norm", QWEN3 | QWEN3MOE | OLMO2 | GEMMA3 | GLM4MOE | MINIMAX_M2, true},
    {"attn_k_norm", "self_attn.k_norm", QWEN3 | QWEN3MOE | OLMO2 | GEMMA3 | GLM4MOE | MINIMAX_M2, true},
    {"post_attention_norm", "post_attention_layernorm", OLMO2 | SEED_OSS | GEMMA | GLM4MOE, true},
    {"ffn_norm", "pre_feedforward_layernorm", GEMMA, true},
    {"ffn_norm", "post_attention_layernorm", ANY & ~(OLMO2 | SEED_OSS | GEMMA | GLM4MOE), true},
    {"post_ffw_norm", "post_feedforward_layernorm", OLMO2 | GEMMA, true},
    {"ffn_gate", "mlp.gate_proj", PLAIN_MLP, true},
    {"ffn_up", "mlp.up_proj", PLAIN_MLP, true},
    {"ffn_up", "mlp.gate_up_proj", PHI3, true},
    {"ffn_down", "mlp.down_proj", PLAIN_MLP | PHI3, true},
    {"ffn_gate_inp", "block_sparse_moe.gate", MIXTRAL_LIKE, true},
    {"ffn_gate_exps", "block_sparse_moe.experts.%u.w1", MIXTRAL_LIKE, true},
    {"ffn_down_exps", "block_sparse_moe.experts.%u.w2", MIXTRAL_LIKE, true},
    {"ffn_up_exps", "block_sparse_moe.experts.%u.w3", MIXTRAL_LIKE, true},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", MINIMAX_M2, false},
    {"ffn_gate_inp", "mlp.gate", QWEN_LIKE, true},
    {"ffn_gate_exps", "mlp.experts.%u.gate_proj", QWEN_LIKE, true},
    {"ffn_down_exps", "mlp.experts.%u.down_proj", QWEN_LIKE, true},
    {"ffn_up_exps", "mlp.experts.%u.up_proj", QWEN_LIKE, true},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", GLM4MOE, false},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", GLM4MOE, true},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", GLM4MOE, true},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", GLM4MOE, true},
};

enum { N_ARCHES = sizeof ARCHES / sizeof *ARCHES, N_ROWS = sizeof ROWS / sizeof *ROWS };

static uint32_t arch_bit(const char *arch) {
    for (size_t i = 0; i < N_ARCHES; i++)
        if (strcmp(arch, ARCHES[i].gguf) == 0) return ARCHES[i].bit;
    return 0;
}

// "<prefix><number>.<rest>": the number and what follows its dot; NULL: something else.
static const char *after_number(const char *name, const char *prefix, uint32_t max, uint32_t *number) {
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0) return NULL;
    size_t digits = strspn(name + n, "0123456789");
    if (digits == 0 || digits > 6 || name[n + digits] != '.' || (digits > 1 && name[n] == '0')) return NULL;
    *number = (uint32_t)strtoul(name + n, NULL, 10);
    return *number < max ? name + n + digits + 1 : NULL;
}

// Whether rest is the pattern, with the row's ending; a "%u" in it takes the expert's number (none without it).
static bool matches(const struct row *r, const char *pattern, const char *rest, uint32_t *expert, const char **ending) {
    const char *hole = strstr(pattern, "%u");
    *expert = UINT32_MAX;
    if (hole) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%.*s", (int)(hole - pattern), pattern);
        rest = after_number(rest, prefix, LIMIT_EXPERTS, expert);
        if (!rest) return false;
        pattern = hole + 3; // what follows the number and its dot
    }
    size_t n = strlen(pattern);
    if (strncmp(rest, pattern, n) != 0) return false;
    *ending = rest + n;
    if (!r->ending) return **ending == 0;
    return strcmp(*ending, ".weight") == 0 || strcmp(*ending, ".bias") == 0;
}

bool gguf_names_to_hf(const char *arch, const char *name, char out[LIMIT_TENSOR_NAME], bool *is_stack) {
    const uint32_t bit = arch_bit(arch);
    uint32_t layer, unused;
    *is_stack = false;
    if (!bit) return false;
    for (size_t i = 0; i < sizeof WHOLE / sizeof *WHOLE; i++)
        if (strcmp(name, WHOLE[i][0]) == 0) {
            snprintf(out, LIMIT_TENSOR_NAME, "%s", WHOLE[i][1]);
            return true;
        }
    const char *rest = after_number(name, "blk.", LIMIT_LAYERS, &layer), *ending;
    for (size_t i = 0; rest && i < N_ROWS; i++) {
        if (!(ROWS[i].arches & bit) || !matches(&ROWS[i], ROWS[i].gguf, rest, &unused, &ending)) continue;
        snprintf(out, LIMIT_TENSOR_NAME, "model.layers.%u.%s%s", layer, ROWS[i].hf, ending);
        *is_stack = strstr(ROWS[i].hf, "%u") != NULL;
        return true;
    }
    return false;
}

bool gguf_names_from_hf(const char *arch, const char *name, char out[LIMIT_TENSOR_NAME], uint32_t *expert) {
    const uint32_t bit = arch_bit(arch);
    uint32_t layer;
    *expert = UINT32_MAX;
    if (!bit) return false;
    for (size_t i = 0; i < sizeof WHOLE / sizeof *WHOLE; i++)
        if (strcmp(name, WHOLE[i][1]) == 0) {
            snprintf(out, LIMIT_TENSOR_NAME, "%s", WHOLE[i][0]);
            return true;
        }
    const char *rest = after_number(name, "model.layers.", LIMIT_LAYERS, &layer), *ending;
    for (size_t i = 0; rest && i < N_ROWS; i++) {
        if (!(ROWS[i].arches & bit) || !matches(&ROWS[i], ROWS[i].hf, rest, expert, &ending)) continue;
        snprintf(out, LIMIT_TENSOR_NAME, "blk.%u.%s%s", layer, ROWS[i].gguf, ending);
        return true;
    }
    return false;
}

const char *gguf_names_arch(const char *hf_architecture) {
    for (size_t i = 0; i < N_ARCHES; i++)
        if (strcmp(hf_architecture, ARCHES[i].hf) == 0) return ARCHES[i].gguf;
    return NULL;
}

bool gguf_names_is_known(const char *arch) { return arch_bit(arch) != 0; }

const char *gguf_names_known(void) {
    return "llama, mistral3, qwen2, qwen3, qwen3moe, phi3, olmo2, smollm3, seed_oss, gemma2, gemma3, glm4moe, "
           "minimax-m2";
}
