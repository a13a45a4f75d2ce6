// What this machine can do at most, measured now: the roof that speeds are compared with.
#pragma once
#include "compute/backend.h"
#include <stdint.h>

// GB/s of n_threads that read memory no cache holds, from huge pages where the system gives them. 0: no memory.
double roof_read_gb_s(uint32_t n_threads);
// Int8 multiply-adds of the instruction set in registers, in TOP/s (a multiply-add is two operations), n_threads.
// ISA_REF has no such instruction: 0.
double roof_int8_tops(enum isa isa, uint32_t n_threads);
