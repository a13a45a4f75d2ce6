// What a family of models is to the rest of model/: how its config.json is read and how its files call the experts. All
// else that tells families apart is in the hyper-parameters.
#pragma once
#include "model/model.h"
#include "model/part.h"
#include <jansson.h>

// Where a tensor of the file goes. which: enum layer_matrix, layer_vector or expert_matrix. PLACE_SCALE: the block
// scales of the FP8 matrix that comes right after it; nothing is kept of them.
enum tensor_place { PLACE_MATRIX, PLACE_VECTOR, PLACE_EXPERT, PLACE_EMBED, PLACE_FINAL_NORM, PLACE_HEAD, PLACE_SCALE };
struct tensor_slot {
    enum tensor_place place;
    uint32_t layer, which, expert;
};
// Who looks at the tensors one by one; a value other than 0 ends the walk and is handed on.
struct tensor_visitor {
    int (*fn)(void *arg, const struct tensor_need *need, const struct tensor_slot *slot);
    void *arg;
};

// How files call the tensors of a layer's experts: "model.layers.<n>." comes before, ".weight" after a matrix.
struct moe_names {
    const char *block;         // "mlp"
    const char *router_bias;   // "gate.e_score_correction_bias", without ".weight"
    const char *matrix[EXP_N]; // "gate_proj"
};
extern const struct moe_names family_moe_names, family_block_sparse_names;

// Which RoPE the layers with a window have, where config.json does not say it layer type by layer type.
enum window_rope {
    WINDOW_ROPE_SAME,
    WINDOW_ROPE_UNSCALED, // the same theta without the scaling: OLMo 3
    WINDOW_ROPE_LOCAL     // rope_local_base_freq: Gemma 3
};

struct family {
    const char *name;         // "qwen3"
    const char *architecture; // as config.json names it
    const char *defaults;     // a JSON object: what a field is that config.json does not have
    // Reads what only this family has; the common fields are set, RoPE is not.
    int (*parse)(const json_t *config, struct hparams *h, struct err *e);
    const struct moe_names *moe; // NULL: no experts
    enum window_rope window_rope;
    bool is_fused; // q, k, v and gate, up lie in one matrix each: "self_attn.qkv_proj", "mlp.gate_up_proj"
};

extern const struct family family_llama, family_qwen2, family_qwen3, family_mistral, family_ministral3, family_phi3,
    family_olmo3, family_smollm3, family_seed_oss;                                               // family_dense.c
extern const struct family family_gemma2, family_gemma3;                                         // family_gemma.c
extern const struct family family_qwen3_moe, family_mixtral, family_glm4_moe, family_minimax_m2; // family_moe.c

// NULL: not known, and *why says what is missing for those that Loom knows of, or NULL.
const struct family *family_find(const char *architecture, const char **why);
const char *family_names(void); // a list for error texts
// All tensors of layers [a, b) with what comes before and after them (model_needs says which): tensors.c.
int family_walk(const struct hparams *h, uint32_t a, uint32_t b, const struct tensor_visitor *v);

// Bit of a layer's matrix in hparams.fp8_not; of the experts' by which.
static inline uint32_t fp8_bit(enum tensor_place place, uint32_t which) {
    return 1u << (place == PLACE_EXPERT ? MAT_N + which : which);
}
// Name of a matrix of a layer without ".weight" and the experts' numbers: "self_attn.q_proj", "mlp.experts.gate_proj".
void family_matrix_name(const struct family *f, enum tensor_place place, uint32_t which, char *out, size_t size);
// The number of "<prefix><number>.<rest>"; *rest is NULL where the name is none of these.
uint32_t family_layer_number(const char *name, const char *prefix, const char **rest);
