// Float rows -> block rows, as NUMERICS 2.2 (L8) and the usual GGUF rules (Q8_0, Q4_0) make them. Deterministic:
// every machine makes the same bytes from the same floats.
#pragma once
#include "base/err.h"
#include "tensor/dtype.h"
#include <stdint.h>

// n_rows rows of k values of a float type -> the same rows in block type `to` (L8, Q8_0, Q4_0). dst has
// n_rows * dtype_row_bytes(to, k) bytes. ERR_FORMAT: a NaN or Inf among the values.
int quantize_rows(enum dtype from, const void *src, uint64_t n_rows, uint64_t k, enum dtype to, void *dst,
                  struct err *e) MUST_CHECK;
// One row of any float type to f32, exactly.
void floats_to_f32(enum dtype from, const void *src, uint64_t n, float *dst);
// ERR_FORMAT: a NaN or Inf among n values of a float type.
int floats_check(enum dtype from, const void *src, uint64_t n, struct err *e) MUST_CHECK;
