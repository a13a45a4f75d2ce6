// A stream of frames, cut as a link cuts it.
#include "base/crc32c.h"
#include "wire/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fix(uint8_t raw[FRAME_HEADER_BYTES]) {
    uint32_t c = crc32c(0, raw, 60);
    for (int i = 0; i < 4; i++) raw[60 + i] = (uint8_t)(c >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err e;
    while (size >= FRAME_HEADER_BYTES) {
        uint8_t raw[FRAME_HEADER_BYTES], again[FRAME_HEADER_BYTES];
        struct frame_header h;
        memcpy(raw, data, sizeof raw);
        // A checksum would stop a fuzzer at the door: a zero one is made right.
        if (memcmp(raw + 60, "\0\0\0\0", 4) == 0) fix(raw);
        if (frame_unpack(raw, 1 << 20, 1 << 20, &h, &e)) {
            if (e.code == ERR_OK) abort();
            return 0;
        }
        frame_pack(&h, again);
        if (memcmp(raw, again, sizeof raw) != 0) abort();
        data += sizeof raw;
        size -= sizeof raw;
        uint64_t bytes = frame_body_bytes(&h);
        if (bytes > (2u << 20) || bytes > size) return 0;
        uint8_t *body = malloc(bytes ? bytes : 1);
        if (!body) return 0;
        memcpy(body, data, bytes);
        int rc = frame_check_body(&h, body, &e);
        h.body_crc = frame_crc(body, h.control_bytes, body + frame_payload_offset(&h), h.payload_bytes);
        int again_rc = frame_check_body(&h, body, &e);
        if (rc == ERR_OK && again_rc != ERR_OK) abort();
        free(body);
        data += bytes;
        size -= bytes;
    }
    return 0;
}
