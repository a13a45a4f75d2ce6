#include "tensor/dtype.h"

#include <string.h>

static const struct dtype_info infos[DT_N] = {
    [DT_F32] = {"F32", 1, 4, true, false, false},
    [DT_F16] = {"F16", 1, 2, true, false, false},
    [DT_BF16] = {"BF16", 1, 2, true, false, false},
    [DT_L8] = {"L8", 128, 132, false, true, false},
    [DT_Q8_0] = {"Q8_0", 32, 34, false, true, false},
    [DT_Q4_0] = {"Q4_0", 32, 18, false, true, false},
    [DT_Q4_1] = {"Q4_1", 32, 20, false, true, false},
    [DT_Q5_0] = {"Q5_0", 32, 22, false, true, false},
    [DT_Q5_1] = {"Q5_1", 32, 24, false, true, false},
    [DT_Q4_K] = {"Q4_K", 256, 144, false, true, false},
    [DT_Q5_K] = {"Q5_K", 256, 176, false, true, false},
    [DT_Q6_K] = {"Q6_K", 256, 210, false, true, false},
    [DT_I8] = {"I8", 1, 1, false, false, false},
    [DT_U8] = {"U8", 1, 1, false, false, false},
    [DT_I32] = {"I32", 1, 4, false, false, false},
    [DT_I64] = {"I64", 1, 8, false, false, false},
    [DT_F64] = {"F64", 1, 8, false, false, false},
    [DT_U16] = {"U16", 1, 2, false, false, false},
    [DT_U32] = {"U32", 1, 4, false, false, false},
    [DT_Q2_K] = {"Q2_K", 256, 84, false, false, true},
    [DT_Q3_K] = {"Q3_K", 256, 110, false, false, true},
    [DT_IQ4_NL] = {"IQ4_NL", 32, 18, false, false, true},
    [DT_IQ4_XS] = {"IQ4_XS", 256, 136, false, false, true},
    [DT_F8_E4M3] = {"F8_E4M3", 1, 1, false, false, true},
};

// ggml's numbers. loom: enum dtype, or -1 for what is known by name only. The numbers from 133 on are ik_llama.cpp's
// own, and those of its row-interleaved types (200 and more) stand for rows that lie in groups of 4, 8 or 16. L8 is
// Loom's own, under a number ("L8") that others refuse.
static const struct gguf_number {
    uint32_t number;
    int loom;
    const char *name;
} gguf_numbers[] = {
    {0, DT_F32, "F32"},        {1, DT_F16, "F16"},     {2, DT_Q4_0, "Q4_0"},   {3, DT_Q4_1, "Q4_1"},
    {4, -1, "Q4_2"},           {5, -1, "Q4_3"},        {6, DT_Q5_0, "Q5_0"},   {7, DT_Q5_1, "Q5_1"},
    {8, DT_Q8_0, "Q8_0"},      {9, -1, "Q8_1"},        {10, DT_Q2_K, "Q2_K"},  {11, DT_Q3_K, "Q3_K"},
    {12, DT_Q4_K, "Q4_K"},     {13, DT_Q5_K, "Q5_K"},  {14, DT_Q6_K, "Q6_K"},  {15, -1, "Q8_K"},
    {16, -1, "IQ2_XXS"},       {17, -1, "IQ2_XS"},     {18, -1, "IQ3_XXS"},    {19, -1, "IQ1_S"},
    {20, DT_IQ4_NL, "IQ4_NL"}, {21, -1, "IQ3_S"},      {22, -1, "IQ2_S"},      {23, DT_IQ4_XS, "IQ4_XS"},
    {24, DT_I8, "I8"},         {25, -1, "I16"},        {26, DT_I32, "I32"},    {27, DT_I64, "I64"},
    {28, DT_F64, "F64"},       {29, -1, "IQ1_M"},      {30, DT_BF16, "BF16"},  {31, -1, "Q4_0_4_4"},
    {32, -1, "Q4_0_4_8"},      {33, -1, "Q4_0_8_8"},   {34, -1, "TQ1_0"},      {35, -1, "TQ2_0"},
    {36, -1, "IQ4_NL_4_4"},    {37, -1, "IQ4_NL_4_8"}, {38, -1, "IQ4_NL_8_8"}, {39, -1, "MXFP4"},
    {40, -1, "NVFP4"},         {41, -1, "Q1_0"},       {42, -1, "Q2_0"},       {133, -1, "Q6_0"},
    {134, -1, "IQ1_BN"},       {135, -1, "IQ2_BN"},    {137, -1, "IQ2_K"},     {138, -1, "IQ3_K"},
    {139, -1, "IQ4_K"},        {140, -1, "IQ5_K"},     {141, -1, "IQ6_K"},     {144, -1, "IQ4_KS"},
    {145, -1, "IQ2_KS"},       {146, -1, "IQ4_KSS"},   {152, -1, "IQ5_KS"},    {153, -1, "IQ2_KT"},
    {154, -1, "IQ3_KT"},       {155, -1, "IQ4_KT"},    {156, -1, "IQ3_KS"},    {157, -1, "IQ2_KL"},
    {158, -1, "IQ1_KT"},       {0x384c, DT_L8, "L8"},
};

const struct dtype_info *dtype_info(enum dtype t) {
    ASSERT((unsigned)t < DT_N, "dtype %d", (int)t);
    return &infos[t];
}

int dtype_from_name(const char *name) {
    for (int t = 0; t < DT_N; t++)
        if (strcmp(name, infos[t].name) == 0) return t;
    return -1;
}

static const struct gguf_number *find_number(uint32_t ggml_type) {
    for (size_t i = 0; i < sizeof gguf_numbers / sizeof *gguf_numbers; i++)
        if (gguf_numbers[i].number == ggml_type) return &gguf_numbers[i];
    return NULL;
}

int dtype_from_gguf(uint32_t ggml_type) {
    const struct gguf_number *n = find_number(ggml_type);
    return n ? n->loom : -1;
}

int dtype_to_gguf(enum dtype t) {
    for (size_t i = 0; i < sizeof gguf_numbers / sizeof *gguf_numbers; i++)
        if (gguf_numbers[i].loom == (int)t) return (int)gguf_numbers[i].number;
    return -1;
}

const char *dtype_gguf_name(uint32_t ggml_type) {
    const struct gguf_number *n = find_number(ggml_type);
    if (n) return n->name;
    return ggml_type >= 200 && ggml_type < 400 ? "of interleaved rows" : "unknown";
}

uint64_t dtype_row_bytes(enum dtype t, uint64_t k) {
    const struct dtype_info *i = dtype_info(t);
    return (k + i->block_values - 1) / i->block_values * i->block_bytes;
}

static bool f16_is_finite(const uint8_t *p) { return (p[1] & 0x7c) != 0x7c; }

static bool f32_is_finite(const uint8_t *p) { return ((uint32_t)(p[3] & 0x7f) << 1 | p[2] >> 7) != 0xff; }

static bool value_is_finite(enum dtype t, const uint8_t *p) {
    switch (t) {
    case DT_F32:
    case DT_L8:
        return f32_is_finite(p);
    case DT_BF16:
        return ((uint32_t)(p[1] & 0x7f) << 1 | p[0] >> 7) != 0xff;
    case DT_F64:
        return ((uint32_t)(p[7] & 0x7f) << 4 | p[6] >> 4) != 0x7ff;
    case DT_F16:
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_Q5_0:
    case DT_IQ4_NL:
    case DT_IQ4_XS:
        return f16_is_finite(p);
    case DT_Q4_1:
    case DT_Q5_1:
    case DT_Q4_K:
    case DT_Q5_K:
        return f16_is_finite(p) && f16_is_finite(p + 2);
    case DT_Q6_K:
        return f16_is_finite(p + 208);
    case DT_Q2_K:
        return f16_is_finite(p + 80) && f16_is_finite(p + 82);
    case DT_Q3_K:
        return f16_is_finite(p + 108);
    case DT_F8_E4M3: // the type has no Inf
        return (*p & 0x7f) != 0x7f;
    default:
        return true;
    }
}

bool dtype_row_is_finite(enum dtype t, const void *row, uint64_t k) {
    const struct dtype_info *info = dtype_info(t);
    const uint8_t *p = row;
    for (uint64_t at = 0; at < k; at += info->block_values, p += info->block_bytes)
        if (!value_is_finite(t, p)) return false;
    return true;
}
