// RoPE frequencies as the head of the route makes them (NUMERICS 5): any scaling acts on inv_freq here, once.
#pragma once
#include "model/model.h"
#include <jansson.h>

// Reads rope_parameters, or the older rope_theta and rope_scaling, and fills n_freq, fq and rope_factor. head_dim and
// max_context are set. A rope_type that depends on the length of the text, or is not known, is ERR_UNSUPPORTED.
int rope_parse(const json_t *config, struct hparams *h, struct err *e) MUST_CHECK;
