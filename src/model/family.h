// What a family of models is to the rest of model/: the settings it reads, the tensors of a layer and where each goes,
// and the layer itself as backend operations.
#pragma once
#include "model/model.h"
#include "model/part.h"
#include <jansson.h>

// Where a tensor of the file goes. which: enum layer_matrix, layer_vector or expert_matrix.
enum tensor_place { PLACE_MATRIX, PLACE_VECTOR, PLACE_EXPERT, PLACE_EMBED, PLACE_FINAL_NORM, PLACE_HEAD };
struct tensor_slot {
    enum tensor_place place;
    uint32_t layer, which, expert;
};
// Who looks at the tensors one by one; a value other than 0 ends the walk and is handed on.
struct tensor_visitor {
    int (*fn)(void *arg, const struct tensor_need *need, const struct tensor_slot *slot);
    void *arg;
};

struct family {
    const char *name;         // "qwen3"
    const char *architecture; // as config.json names it
    // Reads what only this family has; the common fields are set.
    int (*parse)(const json_t *config, struct hparams *h, struct err *e);
    int (*tensors)(const struct hparams *h, uint32_t layer, const struct tensor_visitor *v);
    void (*layer)(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                  const struct batch *b, float *x);
};

extern const struct family family_qwen3, family_qwen3_moe;

// NULL: not known. family_names: a list for error texts.
const struct family *family_find(const char *architecture);
const char *family_names(void);
// All tensors of layers [a, b) with what comes before and after them (model_needs says which).
int family_walk(const struct hparams *h, uint32_t a, uint32_t b, const struct tensor_visitor *v);
