// Which type each tensor of a quantised file gets: the mixtures that users of llama.cpp know by these names. All keep
// norms, biases and routers in F32.
#pragma once
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

struct recipe {
    const char *name;   // "q4_k_m"
    enum dtype type;    // of most matrices
    uint32_t file_type; // general.file_type
    bool is_mixed;      // some matrices get more bits
};

// NULL: no such recipe. recipe_names: a list for help and errors.
const struct recipe *recipe_find(const char *name);
const char *recipe_names(void);

struct recipe_model {
    uint32_t n_layers, n_experts;
    bool tied_embedding; // the embedding is the output head too
    bool is_70b;         // 80 layers whose heads share K and V: attn_v is small there
};

// name: as GGUF has it; k: values of a row; a row that the type's blocks do not divide gets one whose blocks do.
enum dtype recipe_type(const struct recipe *r, const struct recipe_model *m, const char *name, uint64_t k);
