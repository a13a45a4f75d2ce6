// What this machine is: instruction sets, processors, memory. Thread-safe.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_features {
    bool avx2;   // AVX2 with FMA and F16C
    bool avx512; // the above and AVX-512 F, BW, DQ, VL, VNNI
};

// What the processor can do and the kernel lets us use; asked once, then remembered.
const struct cpu_features *cpu_features(void);
// The model as the processor names it, "unknown" if it does not.
const char *cpu_model_name(void);

uint32_t cpu_count_online(void);   // logical processors of the machine
uint32_t cpu_count_physical(void); // cores: logical ones that share a core count once
uint32_t cpu_count_usable(void); // logical ones that this process may run on (affinity mask), cut by the cgroup's quota

// Bytes of memory. The cgroup's limit (0: none) counts for a process in a container; available is what can be had now
// without swapping, and not more than the cgroup leaves.
uint64_t cpu_memory_total_bytes(void);
uint64_t cpu_memory_cgroup_limit_bytes(void);
uint64_t cpu_memory_available_bytes(void);
uint64_t cpu_memory_own_bytes(void); // resident, of this process
