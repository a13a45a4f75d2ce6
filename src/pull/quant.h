// GGUF files of a hub, as their names tell: which quantisation, and which shard of a split model. Pure text work.
#pragma once
#include "pull/listing.h"
#include <stdbool.h>

enum { QUANT_LABEL_BYTES = 48 };

// "Qwen3-8B-Q4_K_M.gguf" -> "Q4_K_M", "a/b-UD-IQ2_XXS-00001-of-00003.gguf" -> "UD-IQ2_XXS", in capitals; else the name
// of the folder, if that is one, else the name of the file without shard and suffix.
void quant_label(const char *path, char out[QUANT_LABEL_BYTES]);

bool quant_is_type(const char *s); // "Q4_K_M", in capitals or not, rather than a file's name

// One model as one or several GGUF files.
struct quant_model {
    char label[QUANT_LABEL_BYTES];
    uint64_t size_bytes;
    uint32_t first, n; // in quant_models.files
    uint32_t shards;   // as the names say: n, if none is missing
};
struct quant_models {
    struct quant_model *models;
    uint32_t n;
    uint32_t *files; // indices in the listing; the shards of a model lie together, in order
};

// All models among the GGUF files of the listing; projectors and importance matrices are none. ERR_NOMEM.
int quant_models(const struct listing *l, struct quant_models *out, struct err *e) MUST_CHECK;
void quant_models_fini(struct quant_models *m);
