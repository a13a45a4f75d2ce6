// RoPE frequencies as the head of the route makes them (NUMERICS 5): any scaling acts on inv_freq here, once.
#pragma once
#include "model/model.h"
#include <jansson.h>

// Reads rope_parameters, or the older rope_theta and rope_scaling, and fills the sets that h's layers use. head_dim,
// max_context and window_layer are set, and rope_of is ROPE_NONE where a layer has no RoPE. A rope_type that is not
// known is ERR_UNSUPPORTED.
int rope_parse(const json_t *config, struct hparams *h, struct err *e) MUST_CHECK;
// The object with the parameters of all layers: rope_parameters or rope_scaling; NULL: there is none.
const json_t *rope_object(const json_t *config);
// The context for which a scaling was made: from the config itself (Phi-3), else from the parameters, else the model's
// own window.
int rope_original_context(const json_t *config, const json_t *parameters, const struct hparams *h, double *context,
                          struct err *e) MUST_CHECK;
// How queries at a position grow, by +, *, / and one table of numbers only, so that all machines get the same bits.
float rope_q_factor(const struct hparams *h, uint32_t pos);
