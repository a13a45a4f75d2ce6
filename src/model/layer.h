// The layer of all families as backend operations, switched by the hyper-parameters.
#pragma once
#include "model/part.h"

// x [n_rows][hidden] becomes what the layer makes of it; its KV goes to layer `layer` - p->a of kv.
void layer_run(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
               const struct batch *b, float *x);
