#include "model/family.h"

#include <string.h>

static const struct family *const FAMILIES[] = {
    &family_llama,      &family_qwen2,   &family_qwen3,  &family_qwen3_moe, &family_mistral,
    &family_ministral3, &family_mixtral, &family_phi3,   &family_olmo3,     &family_smollm3,
    &family_seed_oss,   &family_gemma2,  &family_gemma3, &family_glm4_moe,  &family_minimax_m2};

#define MLA        "its latent attention (MLA) comes later"
#define DELTA_RULE "its linear-attention layers (gated delta rule) come later"
#define GEMMA4     "its per-layer embeddings and heads of two widths come later"

// Known, and not yet computed.
static const struct {
    const char *architecture, *why;
} LATER[] = {
    {"DeepseekV2ForCausalLM", MLA},
    {"DeepseekV3ForCausalLM", MLA},
    {"DeepseekV32ForCausalLM", MLA},
    {"DeepseekV4ForCausalLM", MLA},
    {"KimiK2ForCausalLM", MLA},
    {"Glm4MoeLiteForCausalLM", MLA},
    {"Qwen3NextForCausalLM", DELTA_RULE},
    {"Qwen3_5ForCausalLM", DELTA_RULE},
    {"Qwen3_5ForConditionalGeneration", DELTA_RULE},
    {"Qwen3_5MoeForCausalLM", DELTA_RULE},
    {"Qwen3_5MoeForConditionalGeneration", DELTA_RULE},
    {"Gemma4ForCausalLM", GEMMA4},
    {"Gemma4ForConditionalGeneration", GEMMA4},
    {"GptOssForCausalLM", "its attention sinks and MXFP4 experts come later"},
};

const struct family *family_find(const char *architecture, const char **why) {
    *why = NULL;
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (strcmp(FAMILIES[i]->architecture, architecture) == 0) return FAMILIES[i];
    for (size_t i = 0; i < sizeof LATER / sizeof *LATER; i++)
        if (strcmp(LATER[i].architecture, architecture) == 0) *why = LATER[i].why;
    return NULL;
}

const char *family_names(void) {
    return "Llama, Qwen2, Qwen3, Qwen3Moe, Mistral, Ministral3, Mixtral, Phi3, Olmo3, SmolLM3, SeedOss, Gemma2, "
           "Gemma3, "
           "Glm4Moe, MiniMaxM2";
}
