// Element and block types, one table. Field layouts of the block types are GGUF's; L8 is Loom's own: f32 scale, then
// 128 int8 (NUMERICS 3.2). A row of a block type is its blocks one after the other; rows are contiguous.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum dtype { // values travel on the wire: append only
    DT_F32 = 0,
    DT_F16 = 1,
    DT_BF16 = 2,
    DT_L8 = 3,
    DT_Q8_0 = 4,
    DT_Q4_0 = 5,
    DT_Q4_1 = 6,
    DT_Q5_0 = 7,
    DT_Q5_1 = 8,
    DT_Q4_K = 9,
    DT_Q5_K = 10,
    DT_Q6_K = 11,
    DT_I8 = 12, // plain data, never a weight
    DT_U8 = 13,
    DT_I32 = 14,
    DT_I64 = 15,
    DT_F64 = 16,
    DT_U16 = 17,
    DT_U32 = 18,
    DT_Q2_K = 19, // from here on: types that files have, and that are converted when they are loaded (NUMERICS 3.5)
    DT_Q3_K = 20,
    DT_IQ4_NL = 21,
    DT_IQ4_XS = 22,
    DT_F8_E4M3 = 23, // with one F32 or BF16 scale for each 128 x 128 values, in a tensor of its own
    DT_N
};

struct dtype_info {
    const char *name;      // "F32", "Q4_K", ...
    uint32_t block_values; // values of a block; 1 for plain types
    uint32_t block_bytes;
    bool is_float;     // F32, F16, BF16
    bool is_block;     // may be a weight of the integer path
    bool is_converted; // a weight in files only: L8 or float once it is loaded
};

const struct dtype_info *dtype_info(enum dtype t); // asserts t < DT_N
int dtype_from_name(const char *name);             // -1: no such type
int dtype_from_gguf(uint32_t ggml_type);           // -1: not known to Loom
int dtype_to_gguf(enum dtype t);                   // -1: GGUF has no such type
const char *dtype_gguf_name(uint32_t ggml_type);   // "IQ2_XXS": for error texts; any number
// Bytes of one row of k values, the last block padded with zero codes.
uint64_t dtype_row_bytes(enum dtype t, uint64_t k);
// Whether every float of a row is finite: the values of a float type, the scales of a block type. Loaders refuse a
// tensor for which this is false (NUMERICS 1.5), so that kernels need not look.
bool dtype_row_is_finite(enum dtype t, const void *row, uint64_t k);
