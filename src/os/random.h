// Bytes that nobody can predict: tokens, keys, and the seeds of hash maps whose keys come from outside. Thread-safe.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Fills out from the kernel. Dies if the kernel has none: a program that went on would hand out guessable secrets.
void random_bytes(void *out, size_t len_bytes);
uint64_t random_u64(void);
