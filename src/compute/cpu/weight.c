#include "compute/cpu/weight.h"

// Offsets by hand: f16 vectors are 32 bytes, byte vectors 16, and the codes start at a multiple of 64.
static const struct panel_layout layouts[DT_N] = {
    [DT_L8] = {.codes = 64, .bytes = 64 + 2048},
    [DT_Q8_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 2048},
    [DT_Q4_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 1024, .offset = 8},
    [DT_Q4_1] = {.n_d = 4, .n_m = 4, .m = 128, .codes = 256, .bytes = 256 + 1024},
    [DT_Q5_0] = {.n_d = 4, .codes = 128, .bytes = 128 + 1280, .offset = 16},
    [DT_Q5_1] = {.n_d = 4, .n_m = 4, .m = 128, .codes = 256, .bytes = 256 + 1280},
    [DT_Q4_K] =
        {.n_d = 1, .n_m = 1, .m = 32, .n_sc = 4, .sc = 64, .n_mn = 4, .mn = 128, .codes = 192, .bytes = 192 + 1024},
    [DT_Q5_K] =
        {.n_d = 1, .n_m = 1, .m = 32, .n_sc = 4, .sc = 64, .n_mn = 4, .mn = 128, .codes = 192, .bytes = 192 + 1280},
    [DT_Q6_K] = {.n_d = 1, .n_sc = 8, .sc = 64, .codes = 192, .bytes = 192 + 1536, .offset = 32},
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

// Four codes at a time: those of values 4 q .. 4 q + 3 are the bytes of word q of `c`, and stand together in a record.
static uint32_t get_word(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void put_word(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

enum { WORDS = REF_ACT_BLOCK / 4 };

// Where the low bits of words q and q + 1 stand, q even, and the bits above them of the run that q is in.
static uint32_t low_at(uint32_t high, uint32_t q) {
    return (high ? q / 2 + q * high / 8 + 1 : q / 2) * PANEL_WORDS_BYTES;
}

static uint32_t high_at(uint32_t high, uint32_t q) {
    return q * high / 8 * (high == 1 ? PANEL_RUN5_BYTES : PANEL_RUN6_BYTES);
}

static void put_codes(int bits, uint8_t *at, const uint8_t *c) {
    if (bits == 8) {
        for (uint32_t q = 0; q < WORDS; q++) put_word(at + q * PANEL_WORDS_BYTES, get_word(c + q * 4));
        return;
    }
    const uint32_t high = (uint32_t)bits - 4, low = 0x0f0f0f0f;
    for (uint32_t q = 0; q < WORDS; q += 2)
        put_word(at + low_at(high, q), (get_word(c + q * 4) & low) | (get_word(c + q * 4 + 4) & low) << 4);
    for (uint32_t q = 0; high && q < WORDS;) {
        uint8_t *to = at + high_at(high, q);
        uint32_t v = 0;
        for (uint32_t shift = 0; shift < 8; shift += high, q++) v |= (get_word(c + q * 4) >> 4 & low) << shift;
        put_word(to, v);
    }
}

static void get_codes(int bits, const uint8_t *at, uint8_t *c) {
    if (bits == 8) {
        for (uint32_t q = 0; q < WORDS; q++) put_word(c + q * 4, get_word(at + q * PANEL_WORDS_BYTES));
        return;
    }
    const uint32_t high = (uint32_t)bits - 4, low = 0x0f0f0f0f, few = high == 2 ? 0x03030303 : 0x01010101;
    for (uint32_t q = 0; q < WORDS; q++) {
        uint32_t v = get_word(at + low_at(high, q)) >> q % 2 * 4 & low;
        if (high) v |= (get_word(at + high_at(high, q)) >> q * high % 8 & few) << 4;
        put_word(c + q * 4, v);
    }
}

// One row's share of a record.
static void put_block(const struct weight *w, uint8_t *rec, uint32_t lane, const struct ref_block *b) {
    const struct panel_layout *l = panel_layout(w->type);
    if (w->type == DT_L8) memcpy(rec + lane * 4, &b->d32, 4);
    for (uint32_t g = 0; g < l->n_d; g++) put_u16(rec + l->d + g * 32, lane, b->d[g]);
    for (uint32_t g = 0; g < l->n_m; g++) put_u16(rec + l->m + g * 32, lane, b->m[g]);
    for (uint32_t g = 0; g < l->n_sc; g++) rec[l->sc + g * 16 + lane] = (uint8_t)b->sc[g];
    for (uint32_t g = 0; g < l->n_mn; g++) rec[l->mn + g * 16 + lane] = (uint8_t)b->mn[g];
    uint8_t codes[REF_ACT_BLOCK], flip = is_signed(w->type) ? w->code_xor : 0;
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) codes[i] = (uint8_t)((b->q[i] + l->offset) ^ flip);
    put_codes(panel_bits(w->type), rec + l->codes + lane * 4, codes);
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
    uint8_t codes[REF_ACT_BLOCK], flip = is_signed(w->type) ? w->code_xor : 0;
    get_codes(panel_bits(w->type), rec + l->codes + lane * 4, codes);
    for (uint32_t i = 0; i < REF_ACT_BLOCK; i++) {
        int code = codes[i] ^ flip;
        b->q[i] = (int16_t)(is_signed(w->type) && code >= 128 ? code - 256 : code - l->offset);
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
