// Pieces of reading config.json that families share. A field that is missing or null keeps its default.
#pragma once
#include "model/family.h"
#include "model/fields.h"

#define CONFIG_FILE "config.json"

// sliding_window and the layers that have it: as layer_types says, else all but each full_every-th one.
// CONFIG_ALL_LAYERS: all of them.
enum { CONFIG_ALL_LAYERS = 1 << 30 };
int config_windows(const json_t *config, struct hparams *h, uint32_t full_every, struct err *e) MUST_CHECK;
// The same for files with use_sliding_window, where layers from max_window_layers on have one if they have no
// layer_types.
int config_windows_from(const json_t *config, struct hparams *h, struct err *e) MUST_CHECK;
// attention_bias: of q, k and v, with_o: and of the output; fallback: where it is missing.
int config_attention_bias(const json_t *config, struct hparams *h, bool fallback, bool with_o,
                          struct err *e) MUST_CHECK;
// Number of experts, how many a token gets, and the width of one (ffn_key).
int config_experts(const json_t *config, struct hparams *h, const char *ffn_key, struct err *e) MUST_CHECK;
// quantization_config: FP8 in blocks of 128 x 128, and which matrices it leaves alone. All else is ERR_UNSUPPORTED.
int config_fp8(const json_t *config, struct hparams *h, struct err *e) MUST_CHECK;
