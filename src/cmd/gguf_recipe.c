#include "cmd/gguf_recipe.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct recipe recipes[] = {
    {"q8_0", DT_Q8_0, 7, false},   {"q6_k", DT_Q6_K, 18, false},  {"q5_k_m", DT_Q5_K, 17, true},
    {"q5_k_s", DT_Q5_K, 16, true}, {"q5_1", DT_Q5_1, 9, false},   {"q5_0", DT_Q5_0, 8, false},
    {"q4_k_m", DT_Q4_K, 15, true}, {"q4_k_s", DT_Q4_K, 14, true}, {"q4_1", DT_Q4_1, 3, false},
    {"q4_0", DT_Q4_0, 2, false},   {"l8", DT_L8, 1024, false},    {"bf16", DT_BF16, 32, false},
    {"f16", DT_F16, 1, false},     {"f32", DT_F32, 0, false},
};

const struct recipe *recipe_find(const char *name) {
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcasecmp(recipes[i].name, name) == 0) return &recipes[i];
    return NULL;
}

const char *recipe_names(void) {
    return "q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, l8, bf16, f16, f32";
}

// The first and last eighths of the layers, and each third between them: errors made there cost most.
static bool gets_more(uint32_t layer, uint32_t n_layers) {
    uint32_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

static enum dtype more_for_attention(const struct recipe *r, const struct recipe_model *m, const char *part,
                                     uint32_t layer) {
    const bool is_v = strcmp(part, "attn_v.weight") == 0, medium = strstr(r->name, "_m") != NULL;
    enum dtype t = r->type;
    if (m->n_experts == 8 && (is_v || strcmp(part, "attn_k.weight") == 0)) return DT_Q8_0;
    if (is_v && medium && gets_more(layer, m->n_layers)) return DT_Q6_K;
    if (is_v && t == DT_Q4_K && ((!medium && layer < 4) || m->is_70b)) return DT_Q5_K;
    if (m->n_experts == 8 && t == DT_Q4_K && strcmp(part, "attn_output.weight") == 0) return DT_Q5_K;
    if (medium && strcmp(part, "attn_qkv.weight") == 0) return t == DT_Q4_K ? DT_Q5_K : DT_Q6_K;
    return t;
}

static enum dtype more_bits(const struct recipe *r, const struct recipe_model *m, const char *name) {
    if (!r->is_mixed || strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return r->type;
    char *part;
    const unsigned long number = strtoul(name + 4, &part, 10);
    if (*part++ != '.' || number > UINT32_MAX) return r->type;
    const uint32_t layer = (uint32_t)number;
    if (strncmp(part, "attn_", 5) == 0) return more_for_attention(r, m, part, layer);
    if (strncmp(part, "ffn_down", 8) != 0) return r->type;
    if (strstr(r->name, "_m")) return gets_more(layer, m->n_layers) ? DT_Q6_K : r->type;
    return r->type == DT_Q4_K && layer < m->n_layers / 8 ? DT_Q5_K : r->type;
}

static enum dtype that_divides(enum dtype t, uint64_t k) {
    const bool whole = t == DT_L8 || k % dtype_info(t)->block_values == 0;
    if (whole) return t;
    if (t == DT_Q4_K) t = DT_Q5_0;
    if (t == DT_Q5_K) t = DT_Q5_1;
    if (t == DT_Q6_K) t = DT_Q8_0;
    return k % dtype_info(t)->block_values ? DT_F16 : t;
}

enum dtype recipe_type(const struct recipe *r, const struct recipe_model *m, const char *name, uint64_t k) {
    const bool head = strcmp(name, "output.weight") == 0,
               embedding = strcmp(name, "token_embd.weight") == 0 && m->tied_embedding;
    enum dtype t = r->type;
    if (!dtype_info(t)->is_block) return t;
    if (!head && !embedding)
        t = more_bits(r, m, name);
    else if (t != DT_Q8_0 && t != DT_L8)
        t = k % dtype_info(DT_Q6_K)->block_values ? DT_Q8_0 : DT_Q6_K;
    return that_divides(t, k);
}
