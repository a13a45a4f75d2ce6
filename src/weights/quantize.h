// Float rows -> block rows: L8 as NUMERICS 2.2 makes it, Q8_0 and Q4_0 by the usual GGUF rules, the other types by a
// search for the scales of least weighted squared error. Deterministic: every machine makes the same bytes from the
// same floats, by f32 operations in a written order.
#pragma once
#include "base/err.h"
#include "tensor/dtype.h"
#include <stdint.h>

// n_rows rows of k values of a float type -> the same rows in block type `to` (any but those that are only converted).
// dst has n_rows * dtype_row_bytes(to, k) bytes; a last block that is not full has zeros behind its values. ERR_FORMAT:
// a NaN or Inf among the values, or one that is too large for the type's scales.
int quantize_rows(enum dtype from, const void *src, uint64_t n_rows, uint64_t k, enum dtype to, void *dst,
                  struct err *e) MUST_CHECK;
// One row of any float type to f32, exactly.
void floats_to_f32(enum dtype from, const void *src, uint64_t n, float *dst);
// n values of f32 to a float type, to the nearest, ties to even. ERR_FORMAT: a NaN, an Inf, or too large for F16.
int floats_from_f32(enum dtype to, const float *src, uint64_t n, void *dst, struct err *e) MUST_CHECK;
// ERR_FORMAT: a NaN or Inf among n values of a float type.
int floats_check(enum dtype from, const void *src, uint64_t n, struct err *e) MUST_CHECK;
