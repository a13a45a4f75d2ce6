#include "compute/cpu/weight.h"

// Offsets by hand: f16 vectors are 32 bytes, byte vectors 16, and the codes start at a multiple of 64.
static const struct panel_layout layouts[DT_N] = {
    [DT_L8] = {.codes = 64, .bytes = 64 + 2048},
    [DT_Q8_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 2048},
    [DT_Q4_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 1024, .nibbles = 1, .offset = 8},
    [DT_Q4_1] = {.n_d = 4, .n_m = 4, .m = 128, .codes = 256, .bytes = 256 + 1024, .nibbles = 1},
    [DT_Q5_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 2048, .offset = 16},
    [DT_Q5_1] = {.n_d = 4, .n_m = 4, .m = 128, .codes = 256, .bytes = 256 + 2048},
    [DT_Q4_K] = {.n_d = 1,
                 .n_m = 1,
                 .m = 32,
                 .n_sc = 4,
                 .sc = 64,
                 .n_mn = 4,
                 .mn = 128,
                 .codes = 192,
                 .bytes = 192 + 1024,
                 .nibbles = 1},
    [DT_Q5_K] =
        {.n_d = 1, .n_m = 1, .m = 32, .n_sc = 4, .sc = 64, .n_mn = 4, .mn = 128, .codes = 192, .bytes = 192 + 2048},
    [DT_Q6_K] = {.n_d = 1, .n_sc = 8, .sc = 64, .codes = 192, .bytes = 192 + 2048, .offset = 32},
};

const struct panel_layout *panel_layout(enum dtype t) {
    ASSERT(layouts[t].bytes > 0, "%s has no panels", dtype_info(t)->name);
    return &layouts[t];
}

uint64_t weight_panel_bytes(enum dtype t, uint32_t k) {
    const struct dtype_info *info = dtype_info(t);
    if (info->is_float) return (uint64_t)k * PANEL_ROWS * info->block_bytes;
    return (uint64_t)ref_n_blocks(k) * panel_layout(t)->bytes;
}

uint64_t weight_data_bytes(enum dtype t, uint32_t n_rows, uint32_t k, bool panels) {
    if (!panels) return n_rows * dtype_row_bytes(t, k);
    return (n_rows + PANEL_ROWS - 1) / PANEL_ROWS * weight_panel_bytes(t, k);
}

static bool is_signed(enum dtype t) { return t == DT_L8 || t == DT_Q8_0; }

static void put_u16(uint8_t *p, uint32_t lane, uint16_t v) { memcpy(p + lane * 2, &v, 2); }

static uint16_t get_u16(const uint8_t *p, uint32_t lane) {
    uint16_t v;
    memcpy(&v, p + lane * 2, 2);
    return v;
}

// Place of code i of a row in the codes of a record; with nibbles, the byte that holds it.
static uint32_t code_at(const struct panel_layout *l, uint32_t i, uint32_t lane) {
    if (l->nibbles) return i / 8 * 64 + lane * 4 + i % 4;
    return i / 4 * 64 + lane * 4 + i % 4;
}

// One row's share of a record.
static void put_block(const struct weight *w, uint8_t *rec, uint32_t lane, const struct ref_block *b) {
    const struct panel_layout *l = panel_layout(w->type);
    if (w->type == DT_L8) memcpy(rec + lane * 4, &b->d32, 4);
    for (uint32_t g = 0; g < l->n_d; g++) put_u16(rec + l->d + g * 32, lane, b->d[g]);
    for (uint32_t g = 0; g < l->n_m; g++) put_u16(rec + l->m + g * 32, lane, b->m[g]);
    for (uint32_t g = 0; g < l->n_sc; g++) rec[l->sc + g * 16 + lane] = (uint8_t)b->sc[g];
    for (uint32_t g = 0; g < l->n_mn; g++) rec[l->mn + g * 16 + lane] = (uint8_t)b->mn[g];
    uint8_t *codes = rec + l->codes;
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        uint32_t at = code_at(l, i, lane), shift = l->nibbles && i & 4 ? 4 : 0;
        uint8_t code = (uint8_t)(b->q[i] + l->offset);
        if (!l->nibbles)
            codes[at] = is_signed(w->type) ? code ^ w->code_xor : code;
        else
            codes[at] = (uint8_t)((codes[at] & (0xf0 >> shift)) | code << shift);
    }
}

static void get_block(const struct weight *w, const uint8_t *rec, uint32_t lane, struct ref_block *b) {
    const struct panel_layout *l = panel_layout(w->type);
    memset(b, 0, sizeof *b);
    if (w->type == DT_L8) memcpy(&b->d32, rec + lane * 4, 4);
    for (uint32_t g = 0; g < l->n_d; g++) b->d[g] = get_u16(rec + l->d + g * 32, lane);
    for (uint32_t g = 0; g < l->n_m; g++) b->m[g] = get_u16(rec + l->m + g * 32, lane);
    for (uint32_t g = 0; g < l->n_sc; g++) {
        uint8_t sc = rec[l->sc + g * 16 + lane];
        b->sc[g] = w->type == DT_Q6_K ? (int16_t)(sc >= 128 ? sc - 256 : sc) : sc;
    }
    for (uint32_t g = 0; g < l->n_mn; g++) b->mn[g] = rec[l->mn + g * 16 + lane];
    const uint8_t *codes = rec + l->codes;
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        int code = codes[code_at(l, i, lane)];
        if (l->nibbles) code = i & 4 ? code >> 4 : code & 15;
        if (is_signed(w->type)) {
            code ^= w->code_xor;
            code = code >= 128 ? code - 256 : code;
        }
        b->q[i] = (int16_t)(code - l->offset);
    }
}

static void store_block_row(struct weight *w, uint32_t row, const uint8_t *src) {
    uint8_t *panel = w->data + row / PANEL_ROWS * w->panel_bytes;
    uint32_t rec_bytes = panel_layout(w->type)->bytes;
    for (uint32_t i = 0; i < w->n_blocks; i++) {
        struct ref_block b;
        ref_block_read(w->type, src, w->k, i, &b);
        put_block(w, panel + (size_t)i * rec_bytes, row % PANEL_ROWS, &b);
    }
}

static void store_float_row(struct weight *w, uint32_t row, const uint8_t *src) {
    uint32_t size = dtype_info(w->type)->block_bytes, lane = row % PANEL_ROWS;
    uint8_t *panel = w->data + row / PANEL_ROWS * w->panel_bytes;
    for (uint32_t k = 0; k < w->k; k++) { // of known sizes, so that no copy is a call
        uint8_t *to = panel + ((size_t)panel_float_at(k, w->k) * PANEL_ROWS + lane) * size;
        if (size == 2)
            memcpy(to, src + (size_t)k * 2, 2);
        else
            memcpy(to, src + (size_t)k * 4, 4);
    }
}

// Rows that do not exist must add nothing to lanes that are computed all the same: zero scales do it, and codes that
// mean zero keep the sums small.
static void clear_tail(struct weight *w) {
    struct ref_block zero = {0};
    uint32_t rec_bytes = panel_layout(w->type)->bytes;
    for (uint32_t row = w->n_rows; row < w->n_panels * PANEL_ROWS; row++)
        for (uint32_t i = 0; i < w->n_blocks; i++)
            put_block(w, w->data + row / PANEL_ROWS * w->panel_bytes + (size_t)i * rec_bytes, row % PANEL_ROWS, &zero);
}

void weight_store(struct weight *w, uint32_t row, uint32_t n_rows, const uint8_t *src) {
    uint64_t row_bytes = dtype_row_bytes(w->type, w->k);
    ASSERT(row % PANEL_ROWS == 0 && n_rows <= w->n_rows - row, "rows %u + %u of %u", row, n_rows, w->n_rows);
    if (!w->panels) {
        memcpy(w->data + row * row_bytes, src, n_rows * row_bytes);
        return;
    }
    bool is_float = dtype_info(w->type)->is_float;
    uint32_t packed = is_float ? 0 : weight_pack(w, row, n_rows, src);
    src += packed * row_bytes;
    for (uint32_t i = packed; i < n_rows; i++, src += row_bytes)
        if (is_float)
            store_float_row(w, row + i, src);
        else
            store_block_row(w, row + i, src);
    if (!is_float && row + n_rows == w->n_rows) clear_tail(w);
}

void weight_row_f32(const struct weight *w, uint32_t row, float *out) {
    if (!w->panels) {
        ref_row_f32(w->type, w->data + row * dtype_row_bytes(w->type, w->k), w->k, out);
        return;
    }
    const uint8_t *panel = w->data + row / PANEL_ROWS * w->panel_bytes;
    uint32_t lane = row % PANEL_ROWS;
    if (dtype_info(w->type)->is_float) {
        for (uint32_t k = 0; k < w->k; k++)
            out[k] = ref_load_float(w->type, panel, panel_float_at(k, w->k) * PANEL_ROWS + lane);
        return;
    }
    for (uint32_t i = 0; i < w->n_blocks; i++) {
        struct ref_block b;
        float values[REF_ACT_BLOCK];
        uint32_t at = i * REF_ACT_BLOCK, n = w->k - at < REF_ACT_BLOCK ? w->k - at : REF_ACT_BLOCK;
        get_block(w, panel + (size_t)i * panel_layout(w->type)->bytes, lane, &b);
        ref_block_f32(w->type, &b, values);
        memcpy(out + at, values, n * sizeof *out);
    }
}
