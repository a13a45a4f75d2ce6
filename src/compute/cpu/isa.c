#include "compute/cpu/kern.h"

#include <cpuid.h>

static const char *const names[] = {
    [ISA_AUTO] = "auto", [ISA_REF] = "ref", [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512"};

int isa_from_name(const char *name) {
    for (int i = ISA_AUTO; i <= ISA_AVX512; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

const char *isa_name(enum isa isa) { return names[isa]; }

// F16C by hand: not every compiler knows its name in __builtin_cpu_supports.
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

enum isa isa_best(void) { return has_avx512() ? ISA_AVX512 : has_avx2() ? ISA_AVX2 : ISA_REF; }

const struct kern *kern_find(enum isa isa) {
    switch (isa == ISA_AUTO ? isa_best() : isa) {
    case ISA_AVX512:
        return has_avx512() ? &kern_avx512 : NULL;
    case ISA_AVX2:
        return has_avx2() ? &kern_avx2 : NULL;
    default:
        return &kern_ref;
    }
}
