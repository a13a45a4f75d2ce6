// Files that have a model's tensors in another form than the walk names them: matrices side by side in one, the experts
// of a layer in one stack, the whole model inside a larger one. Rows lie one behind the other in all of these, so that
// a second name is enough.
#include "model/family.h"

#include "base/text.h"
#include "gguf/gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fit {
    const struct hparams *h;
    struct tensors *t;
    uint32_t n_own;                  // tensors of the files, before names are added
    bool *taken;                     // [n_own]: a need of the model
    char arch[32];                   // of a GGUF file; "": it is none
    char missing[LIMIT_TENSOR_NAME]; // first need of a GGUF file that is not there; "": none
    struct err *e;
};

static void take(const struct fit *f, const struct tensor *one) {
    const uint32_t i = (uint32_t)(one - tensors_at(f->t, 0));
    if (i < f->n_own) f->taken[i] = true;
}

static int bad_rows(const struct fit *f, const struct tensor *base, uint64_t rows) {
    char text[LIMIT_TENSOR_NAME];
    return err_set(f->e, ERR_FORMAT, "tensor %s: %llu rows in %u dimensions, but %s it %llu",
                   tensors_file_tensor(f->t, base->name, text), base->n_dims ? (unsigned long long)base->dim[0] : 0ull,
                   base->n_dims, f->arch[0] ? "the keys of the file make" : "config.json makes",
                   (unsigned long long)rows);
}

// The model inside a larger one: "model.x" is "language_model.model.x", or "model.language_model.x" in later files.
static int from_wrapper(struct fit *f, const struct tensor_need *need, bool *found) {
    static const char *const OUTER[] = {"language_model.", "model.language_model."};
    static const char MODEL[] = "model.";
    char name[LIMIT_TENSOR_NAME];
    const struct tensor *base = NULL;
    for (size_t i = 0; i < sizeof OUTER / sizeof *OUTER && !base; i++) {
        const char *rest = need->name;
        if (i == 1 && strncmp(rest, MODEL, sizeof MODEL - 1) == 0) rest += sizeof MODEL - 1;
        snprintf(name, sizeof name, "%s%s", OUTER[i], rest);
        base = tensors_find(f->t, name);
    }
    *found = base != NULL;
    if (!base) return ERR_OK;
    take(f, base);
    struct tensor one = *base;
    one.name = need->name;
    return tensors_add(f->t, &one, f->e);
}

// q, k and v lie in one matrix in this order; so do gate and up.
static int from_fused(struct fit *f, const struct tensor_need *need, const struct tensor_slot *slot) {
    const struct hparams *h = f->h;
    uint64_t q = (uint64_t)h->n_heads * h->head_dim, kv = (uint64_t)h->n_kv_heads * h->head_dim;
    const struct {
        enum layer_matrix which;
        const char *name;
        uint64_t row, rows;
    } parts[] = {{MAT_Q, "self_attn.qkv_proj", 0, q + 2 * kv},
                 {MAT_K, "self_attn.qkv_proj", q, q + 2 * kv},
                 {MAT_V, "self_attn.qkv_proj", q + kv, q + 2 * kv},
                 {MAT_GATE, "mlp.gate_up_proj", 0, 2ull * h->ffn},
                 {MAT_UP, "mlp.gate_up_proj", h->ffn, 2ull * h->ffn}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[LIMIT_TENSOR_NAME];
        if (slot->which != parts[i].which) continue;
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", slot->layer, parts[i].name);
        const struct tensor *base = tensors_find(f->t, name);
        if (!base) return ERR_OK;
        take(f, base);
        if (base->n_dims != 2 || base->dim[0] != parts[i].rows) return bad_rows(f, base, parts[i].rows);
        return tensors_alias(f->t, need->name, base, parts[i].row, need->dim[0], f->e);
    }
    return ERR_OK;
}

// "experts.gate_up_proj" [n_experts][2 * ffn][hidden], gate first, and "experts.down_proj" [n_experts][hidden][ffn].
static int from_stack(struct fit *f, const struct tensor_need *need, const struct tensor_slot *slot) {
    const struct hparams *h = f->h;
    bool down = slot->which == EXP_DOWN;
    char name[LIMIT_TENSOR_NAME];
    snprintf(name, sizeof name, "model.layers.%u.%s.experts.%s", slot->layer, h->family->moe->block,
             down ? "down_proj" : "gate_up_proj");
    const struct tensor *base = tensors_find(f->t, name);
    if (!base) return ERR_OK;
    take(f, base);
    uint64_t rows = down ? need->dim[0] : 2 * need->dim[0], row_bytes = dtype_row_bytes(base->type, need->dim[1]);
    if (base->n_dims != 3 || base->dim[0] != h->n_experts || base->dim[1] != rows || base->dim[2] != need->dim[1] ||
        base->bytes != h->n_experts * rows * row_bytes)
        return bad_rows(f, base, h->n_experts);
    uint64_t row = slot->expert * rows + (slot->which == EXP_UP ? need->dim[0] : 0);
    const struct tensor one = {.name = need->name,
                               .type = base->type,
                               .n_dims = 2,
                               .dim = {need->dim[0], need->dim[1]},
                               .data = base->data + row * row_bytes,
                               .bytes = need->dim[0] * row_bytes};
    return tensors_add(f->t, &one, f->e);
}

static int fit_one(void *arg, const struct tensor_need *need, const struct tensor_slot *slot) {
    struct fit *f = arg;
    const struct tensor *own = tensors_find(f->t, need->name);
    bool found = own != NULL;
    int rc = ERR_OK;
    if (own) take(f, own);
    if (!found) rc = from_wrapper(f, need, &found);
    if (rc || found) return rc;
    if (slot->place == PLACE_MATRIX && f->h->family->is_fused) rc = from_fused(f, need, slot);
    if (slot->place == PLACE_EXPERT) rc = from_stack(f, need, slot);
    if (f->arch[0] && !f->missing[0] && !rc && !tensors_find(f->t, need->name))
        snprintf(f->missing, sizeof f->missing, "%s", need->name);
    return rc;
}

// Scales of a matrix that is a need: the loader looks for them by the matrix's type.
static bool is_scale_of_taken(const struct fit *f, const char *name) {
    static const char END[] = "_scale_inv";
    char base[LIMIT_TENSOR_NAME];
    if (!text_ends(name, END)) return false;
    snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - (sizeof END - 1)), name);
    const struct tensor *one = tensors_find(f->t, base);
    const uint32_t i = one ? (uint32_t)(one - tensors_at(f->t, 0)) : f->n_own;
    return i < f->n_own && f->taken[i];
}

// Tensors that no need names and that change no result all the same: tables which follow from the settings, what was
// made a setting already, and parts of the model that a text does not go through (drafting layers, other senses).
static bool is_harmless_gguf(const struct fit *f, const char *name) {
    const char *rest;
    if (strncmp(name, "v.", 2) == 0 || strncmp(name, "mm.", 3) == 0) return true;
    if (strcmp(name, "rope_freqs.weight") == 0) return true; // gguf_config_rope.c puts it into the frequencies
    if (strcmp(name, "rope_factors_long.weight") == 0 || strcmp(name, "rope_factors_short.weight") == 0)
        return f->h->rope_short_context > 0;
    uint32_t layer = family_layer_number(name, "blk.", &rest);
    if (rest)
        return strncmp(rest, "attn_rot_embd", 13) == 0 ||
               (layer >= f->h->n_layers && layer < f->h->n_layers + f->h->n_ignored_layers);
    layer = family_layer_number(name, "model.layers.", &rest);
    return rest && layer >= f->h->n_layers; // how many there may be is not looked at here
}

// Folders have many a thing beside the layers; only the layers and what is around them is looked at.
static bool is_harmless_folder(const struct fit *f, const char *name) {
    static const char *const OUTER[] = {"model.language_model.", "language_model.model.", "model."};
    static const char *const TABLES[] = {"rotary_emb.inv_freq", ".masked_bias"};
    const char *inner = name, *rest;
    for (size_t i = 0; i < sizeof OUTER / sizeof *OUTER && inner == name; i++)
        if (strncmp(name, OUTER[i], strlen(OUTER[i])) == 0) inner += strlen(OUTER[i]);
    if (inner == name) return strcmp(name, "lm_head.bias") != 0;
    for (size_t i = 0; i < sizeof TABLES / sizeof *TABLES; i++)
        if (text_ends(name, TABLES[i])) return true;
    const uint32_t layer = family_layer_number(inner, "layers.", &rest);
    if (rest) return layer >= f->h->n_layers;
    return strncmp(inner, "norm.", 5) != 0 && strncmp(inner, "embed_tokens.", 13) != 0;
}

static int check_taken(const struct fit *f) {
    char text[LIMIT_TENSOR_NAME];
    for (uint32_t i = 0; i < f->n_own; i++) {
        const char *name = tensors_at(f->t, i)->name;
        if (f->taken[i] || is_scale_of_taken(f, name)) continue;
        if (f->arch[0] ? is_harmless_gguf(f, name) : is_harmless_folder(f, name)) continue;
        return err_set(f->e, ERR_UNSUPPORTED,
                       "tensor %s: this build does not know what it is for; without it the model would be another one",
                       tensors_file_tensor(f->t, name, text));
    }
    if (!f->missing[0]) return ERR_OK;
    return err_set(f->e, ERR_NOT_FOUND, "tensor %s is not there; the settings or other layers ask for it",
                   tensors_file_tensor(f->t, f->missing, text));
}

int model_fit_tensors(const struct hparams *h, struct tensors *t, struct err *e) {
    struct err own; // the visitors put text into it, wanted or not
    struct fit f = {.h = h, .t = t, .n_own = tensors_count(t), .e = e ? e : &own};
    f.taken = calloc(f.n_own + 1, sizeof *f.taken);
    if (!f.taken) return err_set(e, ERR_NOMEM, "no memory for a list of %u tensors", f.n_own);
    struct gguf_string arch = {"", 0};
    int rc = tensors_gguf(t) ? gguf_get_string(tensors_gguf(t), "general.architecture", &arch, f.e) : ERR_OK;
    snprintf(f.arch, sizeof f.arch, "%.*s", arch.len_bytes < sizeof f.arch ? (int)arch.len_bytes : 31, arch.text);
    if (!rc) rc = family_walk(h, 0, h->n_layers, &(struct tensor_visitor){fit_one, &f});
    if (!rc) rc = check_taken(&f);
    free(f.taken);
    return rc;
}
