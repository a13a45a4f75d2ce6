#include "tensor/dtype.h"

#include <string.h>

static const struct dtype_info infos[DT_N] = {
    [DT_F32] = {"F32", 1, 4, true, false},       [DT_F16] = {"F16", 1, 2, true, false},
    [DT_BF16] = {"BF16", 1, 2, true, false},     [DT_L8] = {"L8", 128, 132, false, true},
    [DT_Q8_0] = {"Q8_0", 32, 34, false, true},   [DT_Q4_0] = {"Q4_0", 32, 18, false, true},
    [DT_Q4_1] = {"Q4_1", 32, 20, false, true},   [DT_Q5_0] = {"Q5_0", 32, 22, false, true},
    [DT_Q5_1] = {"Q5_1", 32, 24, false, true},   [DT_Q4_K] = {"Q4_K", 256, 144, false, true},
    [DT_Q5_K] = {"Q5_K", 256, 176, false, true}, [DT_Q6_K] = {"Q6_K", 256, 210, false, true},
    [DT_I8] = {"I8", 1, 1, false, false},        [DT_U8] = {"U8", 1, 1, false, false},
    [DT_I32] = {"I32", 1, 4, false, false},      [DT_I64] = {"I64", 1, 8, false, false},
    [DT_F64] = {"F64", 1, 8, false, false},      [DT_U16] = {"U16", 1, 2, false, false},
    [DT_U32] = {"U32", 1, 4, false, false},
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
        return f16_is_finite(p);
    case DT_Q4_1:
    case DT_Q5_1:
    case DT_Q4_K:
    case DT_Q5_K:
        return f16_is_finite(p) && f16_is_finite(p + 2);
    case DT_Q6_K:
        return f16_is_finite(p + 208);
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
