#include "model/family.h"

#include <stdio.h>
#include <string.h>

static const struct family *const FAMILIES[] = {&family_qwen3, &family_qwen3_moe};

const struct family *family_find(const char *architecture) {
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (strcmp(FAMILIES[i]->architecture, architecture) == 0) return FAMILIES[i];
    return NULL;
}

const char *family_names(void) { return "Qwen3ForCausalLM, Qwen3MoeForCausalLM"; }

static int visit(const struct tensor_visitor *v, const char *name, uint32_t n, uint32_t k, bool is_matrix,
                 enum tensor_place place) {
    struct tensor_need need = {.dim = {n, k}, .is_matrix = is_matrix};
    struct tensor_slot slot = {.place = place};
    snprintf(need.name, sizeof need.name, "%s", name);
    return v->fn(v->arg, &need, &slot);
}

int family_walk(const struct hparams *h, uint32_t a, uint32_t b, const struct tensor_visitor *v) {
    bool last = b == h->n_layers;
    int rc = 0;
    if (a == 0 || (last && h->tied_embedding))
        rc = visit(v, "model.embed_tokens.weight", h->n_vocab, h->hidden, true, PLACE_EMBED);
    for (uint32_t i = a; i < b && !rc; i++) rc = h->family->tensors(h, i, v);
    if (!rc && last) rc = visit(v, "model.norm.weight", h->hidden, 0, false, PLACE_FINAL_NORM);
    if (!rc && last && !h->tied_embedding) rc = visit(v, "lm_head.weight", h->n_vocab, h->hidden, true, PLACE_HEAD);
    return rc;
}
