#include "base/crc32c.h"

#include <string.h>

// table[k][b]: what byte b contributes when k more bytes follow it in the same group of eight.
static uint32_t table[8][256];

// Before main, so that threads only ever read.
__attribute__((constructor)) static void table_fill(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
        table[0][b] = c;
    }
    for (uint32_t b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++) table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

static uint32_t by_table(uint32_t c, const uint8_t *p, size_t len_bytes) {
    for (; len_bytes >= 8; len_bytes -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8); // little-endian, as all machines that the build knows
        w ^= c;
        c = table[7][w & 255] ^ table[6][w >> 8 & 255] ^ table[5][w >> 16 & 255] ^ table[4][w >> 24 & 255] ^
            table[3][w >> 32 & 255] ^ table[2][w >> 40 & 255] ^ table[1][w >> 48 & 255] ^ table[0][w >> 56];
    }
    for (; len_bytes; len_bytes--, p++) c = c >> 8 ^ table[0][(c ^ *p) & 255];
    return c;
}

#if defined(__x86_64__)
// The instruction made for this polynomial: weights travel in frames, at the speed of the link.
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t c, const uint8_t *p, size_t len_bytes) {
    uint64_t wide = c;
    for (; len_bytes >= 8; len_bytes -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        wide = __builtin_ia32_crc32di(wide, w);
    }
    c = (uint32_t)wide;
    for (; len_bytes; len_bytes--, p++) c = __builtin_ia32_crc32qi(c, *p);
    return c;
}

static uint32_t (*step)(uint32_t c, const uint8_t *p, size_t len_bytes) = by_table;

__attribute__((constructor)) static void choose_step(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) step = by_instruction;
}
#else
static uint32_t step(uint32_t c, const uint8_t *p, size_t len_bytes) { return by_table(c, p, len_bytes); }
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t len_bytes) { return ~step(~crc, data, len_bytes); }
