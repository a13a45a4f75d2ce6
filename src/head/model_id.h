// Which model this is, without reading all of it: a digest of its plan hash, the table of its tensors, and size and
// time of the files of its folder. Equal as long as nobody touched the files and asked for the same numbers.
#pragma once
#include "head/open.h"

void model_id_digest(const struct opened_model *m, const struct run_mode *mode, uint64_t digest[2]);
