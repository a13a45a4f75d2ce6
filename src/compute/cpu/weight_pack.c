// Rows of the usual types into panels, four rows at a time: four words of each are turned into four vectors of a word
// of each, since the lanes of a record stand side by side. What a record is says weight.h; put_block in weight.c fills
// one code by code, for every type, and is what this is compared with.
//
// Roof: memory. 64 codes are four loads, eight shuffles and four stores of 16 bytes, inside the first-level cache but
// for the first touch of each line.
#include "compute/cpu/weight.h"

#include <emmintrin.h>

enum {
    ROWS = 4,
    LANE_STEP = PANEL_ROWS * 4 // from four codes of a row to its next four, in a record
};

// Four rows: where each has the block that is packed.
struct rows {
    const uint8_t *at[ROWS];
};

static void turn(__m128i v[ROWS]) {
    __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpackhi_epi32(v[0], v[1]);
    __m128i c = _mm_unpacklo_epi32(v[2], v[3]), d = _mm_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm_unpacklo_epi64(a, c);
    v[1] = _mm_unpackhi_epi64(a, c);
    v[2] = _mm_unpacklo_epi64(b, d);
    v[3] = _mm_unpackhi_epi64(b, d);
}

static void store(uint8_t *to, __m128i v) { _mm_storeu_si128((__m128i *)(void *)to, v); }

static __m128i load(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }

// n codes of one byte, a multiple of 16, `from` bytes behind the beginning of the block.
static void put_bytes(uint8_t *to, const struct rows *r, uint32_t from, uint32_t n, uint8_t flip) {
    const __m128i bits = _mm_set1_epi8((char)flip);
    for (uint32_t i = 0; i < n; i += 16) {
        __m128i v[ROWS];
        for (int k = 0; k < ROWS; k++) v[k] = _mm_xor_si128(load(r->at[k] + from + i), bits);
        turn(v);
        for (uint32_t k = 0; k < ROWS; k++) store(to + (i / 4 + k) * LANE_STEP, v[k]);
    }
}

// 16 codes of four bits, which are one half of 16 bytes each: four words, of which two make one of a record.
static void put_nibbles(uint8_t *to, const struct rows *r, uint32_t from, bool high) {
    const __m128i mask = _mm_set1_epi8(15);
    __m128i v[ROWS];
    for (int k = 0; k < ROWS; k++) {
        __m128i x = load(r->at[k] + from);
        v[k] = _mm_and_si128(high ? _mm_srli_epi16(x, 4) : x, mask);
    }
    turn(v);
    store(to, _mm_or_si128(v[0], _mm_slli_epi16(v[1], 4)));
    store(to + LANE_STEP, _mm_or_si128(v[2], _mm_slli_epi16(v[3], 4)));
}

static void pack_l8(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const struct rows *r, uint8_t flip) {
    for (uint32_t k = 0; k < ROWS; k++) memcpy(rec + l->d + (lane + k) * 4, r->at[k], 4);
    put_bytes(rec + l->codes + lane * 4, r, 4, REF_ACT_BLOCK, flip);
}

static void pack_q8_0(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const struct rows *r, uint8_t flip) {
    for (uint32_t g = 0; g < 4; g++) {
        for (uint32_t k = 0; k < ROWS; k++) memcpy(rec + l->d + g * 32 + (lane + k) * 2, r->at[k] + g * 34, 2);
        put_bytes(rec + l->codes + lane * 4 + g * 8 * LANE_STEP, r, g * 34 + 2, 32, flip);
    }
}

// A group has values 0 to 15 in the low nibbles of its bytes, 16 to 31 in the high ones.
static void pack_q4_0(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const struct rows *r) {
    for (uint32_t g = 0; g < 4; g++) {
        uint8_t *to = rec + l->codes + lane * 4 + g * 4 * LANE_STEP;
        for (uint32_t k = 0; k < ROWS; k++) memcpy(rec + l->d + g * 32 + (lane + k) * 2, r->at[k] + g * 18, 2);
        put_nibbles(to, r, g * 18 + 2, false);
        put_nibbles(to + 2 * LANE_STEP, r, g * 18 + 2, true);
    }
}

// Scale and minimum j of a super-block's eight: 6 bits each, in 12 bytes.
static void k_scale(const uint8_t *s, uint32_t j, uint8_t *sc, uint8_t *mn) {
    *sc = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
    *mn = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
}

// Half of a super-block: 32 values in the low and 32 in the high nibbles of 32 bytes, then 64 more.
static void pack_q4_k(const struct panel_layout *l, uint8_t *rec, uint32_t lane, const struct rows *r, uint32_t half) {
    for (uint32_t k = 0; k < ROWS; k++) {
        memcpy(rec + l->d + (lane + k) * 2, r->at[k], 2);
        memcpy(rec + l->m + (lane + k) * 2, r->at[k] + 2, 2);
        for (uint32_t g = 0; g < 4; g++)
            k_scale(r->at[k] + 4, half * 4 + g, rec + l->sc + g * 16 + lane + k, rec + l->mn + g * 16 + lane + k);
    }
    for (uint32_t g = 0; g < 4; g++) {
        uint8_t *to = rec + l->codes + lane * 4 + g * 4 * LANE_STEP;
        uint32_t from = 16 + half * 64 + g / 2 * 32;
        put_nibbles(to, r, from, g % 2);
        put_nibbles(to + 2 * LANE_STEP, r, from + 16, g % 2);
    }
}

static void pack_block(const struct weight *w, uint8_t *rec, uint32_t lane, const uint8_t *src, uint32_t block) {
    const struct panel_layout *l = panel_layout(w->type);
    const uint64_t row_bytes = dtype_row_bytes(w->type, w->k);
    const struct dtype_info *info = dtype_info(w->type);
    const uint64_t at = (uint64_t)block * REF_ACT_BLOCK / info->block_values * info->block_bytes;
    struct rows r;
    for (uint32_t k = 0; k < ROWS; k++) r.at[k] = src + k * row_bytes + at;
    if (w->type == DT_L8)
        pack_l8(l, rec, lane, &r, w->code_xor);
    else if (w->type == DT_Q8_0)
        pack_q8_0(l, rec, lane, &r, w->code_xor);
    else if (w->type == DT_Q4_0)
        pack_q4_0(l, rec, lane, &r);
    else
        pack_q4_k(l, rec, lane, &r, block % 2);
}

uint32_t weight_pack(struct weight *w, uint32_t row, uint32_t n_rows, const uint8_t *src) {
    const enum dtype t = w->type;
    if (t != DT_L8 && t != DT_Q8_0 && t != DT_Q4_0 && t != DT_Q4_K) return 0;
    if (t != DT_L8 && w->k % REF_ACT_BLOCK) return 0; // a last block that is not full
    const uint64_t row_bytes = dtype_row_bytes(t, w->k);
    const uint32_t rec_bytes = panel_layout(t)->bytes, n_packed = n_rows / ROWS * ROWS;
    for (uint32_t at = 0; at < n_packed; at += PANEL_ROWS) {
        uint8_t *rec = w->data + (row + at) / PANEL_ROWS * w->panel_bytes;
        uint32_t n = n_packed - at < PANEL_ROWS ? n_packed - at : PANEL_ROWS;
        for (uint32_t b = 0; b < w->n_blocks; b++, rec += rec_bytes)
            for (uint32_t lane = 0; lane < n; lane += ROWS) pack_block(w, rec, lane, src + (at + lane) * row_bytes, b);
    }
    return n_packed;
}
