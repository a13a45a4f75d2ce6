// Weight matrices as the CPU kernels read them. With ISA_REF rows stay as the file has them. Else 16 rows form a panel
// in which a lane is a row, so that no kernel ever sums across lanes:
//
//   block types   a panel is a record per 128 values of K: scales first, then codes. Codes of one byte stand as
//                 [128/4][16 rows][4]; codes of four bits as [128/8][16 rows][4], the low nibble of a byte being value
//                 i, the high one value i + 4. Codes of five and six bits stand in runs of 32 and 16 values: first
//                 the bits above the low four as [16 rows][4], those of value i lowest in a byte, then those of i + 4,
//                 i + 8 and so on; then the low four bits like codes of four bits. So kernels read memory in one
//                 stream. Every record is a multiple of 64 bytes.
//   float types   [k][16 rows], but the four runs of 64 that are summed side by side (NUMERICS 3.3) stand
//                 interleaved, for the same reason: value k is at place panel_float_at(k).
//
// Rows behind the last one, and values behind K, are zero.
#pragma once
#include "compute/backend.h"
#include "compute/ref/ref.h"

enum {
    PANEL_ROWS = 16,
    PANEL_WORDS_BYTES = PANEL_ROWS * 4,           // four codes of one byte, or eight of four bits, of each row
    PANEL_RUN5_BYTES = 5 * PANEL_WORDS_BYTES,     // a run of 32 codes of five bits
    PANEL_RUN6_BYTES = 3 * PANEL_WORDS_BYTES,     // a run of 16 codes of six bits
    PANEL_WIDE_BYTES = PANEL_ROWS * REF_ACT_BLOCK // codes of a record as bytes
};

enum { FLOAT_RUNS = 4, FLOAT_GROUP = FLOAT_RUNS * REF_FLOAT_RUN };

// Place of value k in a float panel of n values: in full groups of 256, [64][4 runs]; behind them in order.
static inline uint32_t panel_float_at(uint32_t k, uint32_t n) {
    uint32_t group = k / FLOAT_GROUP * FLOAT_GROUP, i = k % FLOAT_GROUP;
    return group + FLOAT_GROUP > n ? k : group + i % REF_FLOAT_RUN * FLOAT_RUNS + i / REF_FLOAT_RUN;
}

struct weight {
    struct backend *be;
    enum dtype type;
    uint32_t n_rows, k, n_panels;
    uint32_t n_blocks;    // of 128 values
    bool panels;          // false: plain rows
    uint8_t code_xor;     // 0x80: signed bytes are stored as unsigned ones, for vpdpbusd
    uint64_t panel_bytes; // of 16 rows
    uint8_t *data;
};

// Where the parts of a record stand. A part that a type has not has size 0.
struct panel_layout {
    uint16_t d, m;   // offset of f16 [n_d][16] and [n_m][16]; L8: f32 [16] at d
    uint16_t sc, mn; // offset of bytes [n_sc][16], [n_mn][16]
    uint16_t codes;  // offset of the codes
    uint16_t bytes;  // of the record
    uint8_t n_d, n_m, n_sc, n_mn;
    int8_t offset; // stored code - offset = q; 0 for signed bytes
};
const struct panel_layout *panel_layout(enum dtype t);

// Bits of a stored code.
static inline int panel_bits(enum dtype t) {
    switch (t) {
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q4_K:
        return 4;
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_Q5_K:
        return 5;
    case DT_Q6_K:
        return 6;
    default:
        return 8;
    }
}

uint64_t weight_panel_bytes(enum dtype t, uint32_t k);
// Bytes of the data of a matrix, with or without panels.
uint64_t weight_data_bytes(enum dtype t, uint32_t n_rows, uint32_t k, bool panels);
// Puts rows [row, row + n_rows) from src; row is a multiple of 16.
void weight_store(struct weight *w, uint32_t row, uint32_t n_rows, const uint8_t *src);
// weight_pack.c: the same for panels of the types that most files have, quickly. Returns how many rows it did: none if
// the type is not among them or rows end inside a block, else all but those behind the last multiple of four.
uint32_t weight_pack(struct weight *w, uint32_t row, uint32_t n_rows, const uint8_t *src);
// One row as f32 (NUMERICS 3.4).
void weight_row_f32(const struct weight *w, uint32_t row, float *out);
