// Values of any weight type as f32, by the formula that its format was published with (NUMERICS 3.4, and its like for
// the types that Loom only converts). All of them are exact but for one last rounding, so that every machine gets the
// same bits.
#pragma once
#include "base/err.h"
#include "tensor/dtype.h"
#include <stdint.h>

// Whether dequant_row knows the type: the float types, the block types, those that are converted.
bool dequant_knows(enum dtype t);
// One row of n values. n is a multiple of the type's block, but for L8. The values of F8_E4M3 come without their
// scales.
void dequant_row(enum dtype t, const void *row, uint64_t n, float *out);
// E4M3 with a scale for each 128 x 128 values: rows [row, row + n_rows) of k values, whose first byte src is. scales:
// [rows / 128 rounded up][k / 128 rounded up] of a float type.
void dequant_f8_rows(const void *src, uint64_t row, uint64_t n_rows, uint64_t k, enum dtype scale_type,
                     const void *scales, float *out);
