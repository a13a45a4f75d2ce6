#include "cmd/shapes.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define QWEN3(hidden, ffn, layers, heads, kv, tied)                                                                    \
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": " #hidden ", \"intermediate_size\": " #ffn           \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv         \
    ", \"head_dim\": 128, \"vocab_size\": 151936, \"max_position_embeddings\": 40960, \"rms_norm_eps\": 1e-6, "        \
    "\"rope_theta\": 1000000, \"tie_word_embeddings\": " #tied ", \"bos_token_id\": 151643, \"eos_token_id\": 151645}"
#define QWEN3_MOE(hidden, layers, heads, kv, ffn, experts)                                                             \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": " #hidden ", \"intermediate_size\": 6144, "       \
    "\"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv           \
    ", \"head_dim\": 128, \"vocab_size\": 151936, \"max_position_embeddings\": 40960, \"rms_norm_eps\": 1e-6, "        \
    "\"rope_theta\": 1000000, \"num_experts\": " #experts ", \"num_experts_per_tok\": 8, "                             \
    "\"moe_intermediate_size\": " #ffn                                                                                 \
    ", \"norm_topk_prob\": true, \"bos_token_id\": 151643, \"eos_token_id\": 151645}"
#define LLAMA3(hidden, ffn, layers, heads, dim, context, scaling, tied)                                                \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": " #hidden ", \"intermediate_size\": " #ffn           \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": 8, "          \
    "\"head_dim\": " #dim ", \"vocab_size\": 128256, \"max_position_embeddings\": " #context                           \
    ", \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, " scaling "\"tie_word_embeddings\": " #tied                     \
    ", \"bos_token_id\": 128000, \"eos_token_id\": 128009}"
#define LLAMA3_SCALING(factor)                                                                                         \
    "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": " #factor ", \"low_freq_factor\": 1, "                  \
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}, "

static const struct {
    const char *name, *config;
} shapes[] = {
    {"qwen3-0.6b", QWEN3(1024, 3072, 28, 16, 8, true)},
    {"qwen3-1.7b", QWEN3(2048, 6144, 28, 16, 8, true)},
    {"qwen3-4b", QWEN3(2560, 9728, 36, 32, 8, true)},
    {"qwen3-8b", QWEN3(4096, 12288, 36, 32, 8, false)},
    {"qwen3-14b", QWEN3(5120, 17408, 40, 40, 8, false)},
    {"qwen3-32b", QWEN3(5120, 25600, 64, 64, 8, false)},
    {"qwen3-30b-a3b", QWEN3_MOE(2048, 48, 32, 4, 768, 128)},
    {"qwen3-235b-a22b", QWEN3_MOE(4096, 94, 64, 4, 1536, 128)},
    {"llama3.2-1b", LLAMA3(2048, 8192, 16, 32, 64, 131072, LLAMA3_SCALING(32), true)},
    {"llama3.2-3b", LLAMA3(3072, 8192, 28, 24, 128, 131072, LLAMA3_SCALING(32), true)},
    {"llama3-8b", LLAMA3(4096, 14336, 32, 32, 128, 8192, "", false)},
    {"llama3.1-8b", LLAMA3(4096, 14336, 32, 32, 128, 131072, LLAMA3_SCALING(8), false)},
    {"llama3-70b", LLAMA3(8192, 28672, 80, 64, 128, 8192, "", false)},
    {"mistral-7b",
     "{\"architectures\": [\"MistralForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 32768, "
     "\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000, \"bos_token_id\": 1, "
     "\"eos_token_id\": 2}"},
    {"mixtral-8x7b",
     "{\"architectures\": [\"MixtralForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 32000, "
     "\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000, \"num_local_experts\": 8, "
     "\"num_experts_per_tok\": 2, \"bos_token_id\": 1, \"eos_token_id\": 2}"},
};

const char *shapes_find(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcasecmp(shapes[i].name, name) == 0) return shapes[i].config;
    return NULL;
}

const char *shapes_names(void) {
    return "qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, qwen3-30b-a3b, qwen3-235b-a22b, "
           "llama3-8b, "
           "llama3-70b, llama3.1-8b, llama3.2-1b, llama3.2-3b, mistral-7b, mixtral-8x7b";
}
