// What matmul_avx2.c and matmul_avx512.c share: how a panel is walked, which no instruction set changes. Nobody else
// includes it.
#pragma once
#include "compute/cpu/kern.h"

#include <xmmintrin.h>

// PASS: tokens that a panel serves segment by segment, their totals on the stack. WIDE: so many make it worth while to
// write the codes of a segment out as bytes first.
enum { PER_SEGMENT = REF_SEGMENT / REF_ACT_BLOCK, PASS = 64, WIDE = 16 };

static ALWAYS_INLINE bool is_packed(enum dtype type) { return panel_bits(type) == 5 || panel_bits(type) == 6; }

// What a tile needs beside its tokens: n_blocks records of a panel from block `first` on, all of one segment.
struct segment {
    const uint8_t *rec, *wide; // wide: their codes as bytes, or NULL
    uint32_t first, n_blocks;
    uint32_t n_tiles; // full ones, which share the work of asking for the next segment; 0: nobody asks (ahead)
};

// Asks for a part of what lies a segment behind rec, so that memory delivers it while this segment is computed.
static ALWAYS_INLINE void ahead(const struct segment *s, const uint8_t *rec, uint32_t rec_bytes, uint32_t part) {
    const char *next = (const char *)rec + PER_SEGMENT * rec_bytes;
    for (uint32_t i = part * 64; s->n_tiles && i < rec_bytes; i += s->n_tiles * 64) _mm_prefetch(next + i, _MM_HINT_T1);
}

// A few tokens are bound by memory, and the processor's own prefetcher keeps more lines under way than a core may ask
// for. It wants one stream: the scales, which stand before the codes, are touched first, in whatever order the compiler
// puts their loads.
static ALWAYS_INLINE void scales_first(const uint8_t *rec, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)rec + i, _MM_HINT_T0);
}
