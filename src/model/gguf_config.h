// From a GGUF file's metadata to the config.json that the model's Hugging Face folder would have, so that everything
// above the file reads one kind of settings. What only GGUF files have is said by keys of our own:
//   "loom_qk_interleaved": true   rows of q and k lie in RoPE pairs (hparams.qk_interleaved)
//   "loom_norm_has_one": true     Gemma's norms with their 1
//   "loom_rope_factors": [..]     a divisor for each RoPE frequency
//   "loom_types": ["Q6_K", ..]    about what the matrices are: embedding, layers, output head (hparams.layer_type)
#pragma once
#include "base/err.h"
#include "weights/tensors.h"
#include <stddef.h>

// All end tokens of the model, an array of their ids: in files of ours whose model has more of them than the keys of
// the format hold. Where it is there it counts alone.
#define GGUF_END_TOKENS "loom.eos_token_ids"

enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 }; // values of expert_gating_func

// t: an opened GGUF file. *config is the text of a config.json, *generation of a generation_config.json or NULL; both
// the caller's to free(). An architecture or a setting that this build does not compute is ERR_UNSUPPORTED with its
// key.
int gguf_config_make(const struct tensors *t, char **config, size_t *config_bytes, char **generation,
                     size_t *generation_bytes, struct err *e) MUST_CHECK;
