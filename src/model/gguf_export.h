// From a model's Hugging Face folder to what a GGUF file says of it: the hyper-parameters as metadata, and what becomes
// of the rows of its tensors. The inverse of gguf_config.h; names of tensors are in weights/gguf_names.h.
#pragma once
#include "gguf/gguf.h"
#include "model/model.h"
#include "weights/tensors.h"

// general.architecture; NULL: GGUF has none for the model.
const char *gguf_export_arch(const struct hparams *h);
// Adds the keys of general.* and of the architecture. config: the text of config.json from which h was parsed. name:
// how the model is called. ERR_UNSUPPORTED: GGUF has no such architecture, or no key for a setting of this model.
int gguf_export_config(const char *config, size_t config_bytes, const struct hparams *h, const struct gen_defaults *g,
                       const char *name, struct gguf_writer *w, struct err *e) MUST_CHECK;

// Whether the settings that h has come back from a file made so, RoPE's values but for the last bit of f32. t: the
// file's, of whose tensors only the divisors of frequencies are looked into. ERR_UNSUPPORTED, naming what is lost.
int gguf_export_check(const struct hparams *h, const struct tensors *t, struct err *e) MUST_CHECK;

// Tensors that the folder has as numbers in config.json: divisors of the RoPE frequencies. i from 0; false: no more.
// values: [LIMIT_HEAD_DIM / 2], *n of them.
bool gguf_export_factors(const char *config, size_t config_bytes, const struct hparams *h, uint32_t i,
                         const char **gguf_name, float *values, uint32_t *n);

// Which row of the folder's tensor row `row` of the file's is: GGUF has the rows of q and k of some architectures in
// pairs that turn together. hf_name: with ".weight" or ".bias".
uint64_t gguf_export_row(const struct hparams *h, const char *hf_name, uint64_t row);
// Whether the file's values are the folder's plus one (norms of Gemma).
bool gguf_export_adds_one(const struct hparams *h, const char *hf_name);
