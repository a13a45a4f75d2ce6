// Rows of the usual types into panels, four codes at a time. What a record is says weight.h; put_block in weight.c
// fills one code by code, for every type, and is what this is compared with.
//
// Roof: memory. A record of 2112 bytes is 512 words read and as many written, all of them inside the first-level cache
// but for the first touch of each line.
#include "compute/cpu/weight.h"

static uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

enum { LANE_STEP = PANEL_ROWS * 4 }; // from four codes of a row to its next four, in a record

// Codes of one byte, n a multiple of 4.
static void put_bytes(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t flip) {
    for (uint32_t i = 0; i < n / 4; i++) store_u32(to + i * LANE_STEP, load_u32(from + 4 * i) ^ flip);
}

// 32 codes of four bits: words lo and hi of each pair are values 8 j .. 8 j + 3 and the four after these, `from` having
// one code a byte once it is shifted.
static void put_nibbles(uint8_t *to, const uint8_t *from, uint32_t n_bytes, uint32_t shift) {
    for (uint32_t j = 0; j < n_bytes / 8; j++) {
        uint32_t lo = load_u32(from + 8 * j) >> shift & 0x0f0f0f0fu;
        uint32_t hi = load_u32(from + 8 * j + 4) >> shift & 0x0f0f0f0fu;
        store_u32(to + j * LANE_STEP, lo | hi << 4);
    }
}

static void pack_l8(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const uint8_t *src, uint32_t flip) {
    memcpy(rec + l->d + lane * 4, src, 4);
    put_bytes(rec + l->codes + lane * 4, src + 4, REF_ACT_BLOCK, flip);
}

static void pack_q8_0(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const uint8_t *src, uint32_t flip) {
    for (uint32_t g = 0; g < 4; g++, src += 34) {
        memcpy(rec + l->d + g * 32 + lane * 2, src, 2);
        put_bytes(rec + l->codes + lane * 4 + g * 8 * LANE_STEP, src + 2, 32, flip);
    }
}

// A group has values 0 to 15 in the low nibbles of its bytes, 16 to 31 in the high ones.
static void pack_q4_0(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const uint8_t *src) {
    for (uint32_t g = 0; g < 4; g++, src += 18) {
        uint8_t *to = rec + l->codes + lane * 4 + g * 4 * LANE_STEP;
        memcpy(rec + l->d + g * 32 + lane * 2, src, 2);
        put_nibbles(to, src + 2, 16, 0);
        put_nibbles(to + 2 * LANE_STEP, src + 2, 16, 4);
    }
}

// Half of a super-block: 64 values in the low and the high nibbles of 32 bytes, then 64 more. The scales are few.
static void pack_q4_k(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const uint8_t *src, uint32_t half) {
    const uint8_t *s = src + 4, *qs = src + 16 + half * 64;
    memcpy(rec + l->d + lane * 2, src, 2);
    memcpy(rec + l->m + lane * 2, src + 2, 2);
    for (uint32_t g = 0; g < 4; g++) {
        uint32_t j = half * 4 + g;
        rec[l->sc + g * 16 + lane] = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        rec[l->mn + g * 16 + lane] = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
        put_nibbles(rec + l->codes + lane * 4 + g * 4 * LANE_STEP, qs + g / 2 * 32, 32, g % 2 * 4);
    }
}

bool weight_pack(struct weight *w, uint32_t row, uint32_t n_rows, const uint8_t *src) {
    const enum dtype t = w->type;
    if (t != DT_L8 && t != DT_Q8_0 && t != DT_Q4_0 && t != DT_Q4_K) return false;
    if (t != DT_L8 && w->k % REF_ACT_BLOCK) return false; // a last block that is not full
    const struct panel_layout *l = panel_layout(t);
    const struct dtype_info *info = dtype_info(t);
    const uint32_t flip = w->code_xor * 0x01010101u;
    const uint64_t row_bytes = dtype_row_bytes(t, w->k);
    const uint32_t step = t == DT_L8 ? info->block_bytes : REF_ACT_BLOCK / 32 * info->block_bytes;
    for (uint32_t at = 0; at < n_rows; at += PANEL_ROWS) {
        uint8_t *rec = w->data + (row + at) / PANEL_ROWS * w->panel_bytes;
        const uint32_t n = n_rows - at < PANEL_ROWS ? n_rows - at : PANEL_ROWS;
        for (uint32_t b = 0; b < w->n_blocks; b++, rec += l->bytes)
            for (uint32_t lane = 0; lane < n; lane++) {
                const uint8_t *from = src + (at + lane) * row_bytes;
                if (t == DT_L8)
                    pack_l8(l, rec, lane, from + (size_t)b * step, flip);
                else if (t == DT_Q8_0)
                    pack_q8_0(l, rec, lane, from + (size_t)b * step, flip);
                else if (t == DT_Q4_0)
                    pack_q4_0(l, rec, lane, from + (size_t)b * step);
                else
                    pack_q4_k(l, rec, lane, from + (size_t)(b / 2) * info->block_bytes, b % 2);
            }
    }
    return true;
}
