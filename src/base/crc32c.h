// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, as iSCSI and ext4 use it): the checksum of frames and of files that this
// program writes. It finds accidents, not attacks.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Goes on from the checksum of what came before (0 at the start): crc32c(crc32c(0, a, n), b, m) is that of a then b.
// Thread-safe.
uint32_t crc32c(uint32_t crc, const void *data, size_t len_bytes);
