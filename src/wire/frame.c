#include "wire/frame.h"

#include "base/crc32c.h"

#include <string.h>

static const uint8_t magic[4] = {'L', 'O', 'O', 'M'};

// What a frame of each type may hold at most. A type without a name does not exist.
static const struct {
    const char *name;
    uint32_t control_bytes, payload_bytes;
} types[FRAME_N] = {
    [FRAME_ENROL] = {"ENROL", 8192, 0},
    [FRAME_ENROLLED] = {"ENROLLED", 8192, 0},
    [FRAME_REFUSED] = {"REFUSED", 2048, 0},
    [FRAME_JOIN] = {"JOIN", 2048, 0},
    [FRAME_WELCOME] = {"WELCOME", 8192, LIMIT_CONFIG_BYTES},
    [FRAME_LOAD] = {"LOAD", 2048, 0},
    [FRAME_READY] = {"READY", 0, 0},
    [FRAME_FAILED] = {"FAILED", 2048, 0},
    [FRAME_HEARTBEAT] = {"HEARTBEAT", 2048, 0},
    [FRAME_ECHO] = {"ECHO", 512, 0},
    [FRAME_STEP] = {"STEP", 256 << 10, LIMIT_FRAME_PAYLOAD},
    [FRAME_TOKENS] = {"TOKENS", 16384, 0},
    [FRAME_BYE] = {"BYE", 2048, 0},
    [FRAME_BULK] = {"BULK", 0, 0},
    [FRAME_ASK] = {"ASK", 128 << 10, 0},
    [FRAME_MANIFEST] = {"MANIFEST", 128 << 10, 0},
    [FRAME_FETCH] = {"FETCH", 512, 0},
    [FRAME_CHUNK] = {"CHUNK", 0, LIMIT_CHUNK_BYTES},
    [FRAME_ATTACH] = {"ATTACH", 512, 0},
    [FRAME_NEXT] = {"NEXT", 2048, 0},
    [FRAME_HOT] = {"HOT", 64, 0},
    [FRAME_UNLOAD] = {"UNLOAD", 0, 0},
    [FRAME_REPLAY] = {"REPLAY", 256 << 10, LIMIT_FRAME_PAYLOAD},
    [FRAME_FED] = {"FED", 0, 0},
    [FRAME_LEAVE] = {"LEAVE", 2048, 0},
    [FRAME_MAY_LEAVE] = {"MAY_LEAVE", 0, 0},
};

const char *frame_name(enum frame_type t) { return (unsigned)t < FRAME_N && types[t].name ? types[t].name : "?"; }

static void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v) {
    put16(p, v & 0xffff);
    put16(p + 2, v >> 16);
}

static void put64(uint8_t *p, uint64_t v) {
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t get32(const uint8_t *p) { return get16(p) | get16(p + 2) << 16; }
static uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }

// Offsets in the header. What is between RESERVED and BODY_CRC is zero in this version.
enum {
    AT_VERSION = 4,
    AT_TYPE = 6,
    AT_EPOCH = 8,
    AT_STAGE = 12,
    AT_STEP = 16,
    AT_ROWS = 24,
    AT_DTYPE = 28,
    AT_CONTROL = 32,
    AT_PAYLOAD = 36,
    AT_RESERVED = 40,
    AT_BODY_CRC = 56,
    AT_HEADER_CRC = 60
};

void frame_pack(const struct frame_header *h, uint8_t out[FRAME_HEADER_BYTES]) {
    memset(out, 0, FRAME_HEADER_BYTES);
    memcpy(out, magic, sizeof magic);
    put16(out + AT_VERSION, FRAME_VERSION);
    put16(out + AT_TYPE, (uint32_t)h->type);
    put32(out + AT_EPOCH, h->epoch);
    put32(out + AT_STAGE, h->stage);
    put64(out + AT_STEP, h->step);
    put32(out + AT_ROWS, h->rows);
    put32(out + AT_DTYPE, h->dtype);
    put32(out + AT_CONTROL, h->control_bytes);
    put32(out + AT_PAYLOAD, h->payload_bytes);
    put32(out + AT_BODY_CRC, h->body_crc);
    put32(out + AT_HEADER_CRC, crc32c(0, out, AT_HEADER_CRC));
}

static int check_lengths(const struct frame_header *h, uint32_t max_control_bytes, uint32_t max_payload_bytes,
                         struct err *e) {
    uint32_t control_max = types[h->type].control_bytes, payload_max = types[h->type].payload_bytes;
    if (control_max > max_control_bytes) control_max = max_control_bytes;
    if (payload_max > max_payload_bytes) payload_max = max_payload_bytes;
    if (h->control_bytes > control_max)
        return err_set(e, ERR_LIMIT, "frame %s: %u control bytes, at most %u here", frame_name(h->type),
                       h->control_bytes, control_max);
    if (h->payload_bytes > payload_max)
        return err_set(e, ERR_LIMIT, "frame %s: %u payload bytes, at most %u here", frame_name(h->type),
                       h->payload_bytes, payload_max);
    return ERR_OK;
}

int frame_unpack(const uint8_t in[FRAME_HEADER_BYTES], uint32_t max_control_bytes, uint32_t max_payload_bytes,
                 struct frame_header *h, struct err *e) {
    static const uint8_t zeros[AT_BODY_CRC - AT_RESERVED];
    if (memcmp(in, magic, sizeof magic) != 0) return err_set(e, ERR_FORMAT, "frame: it does not start with LOOM");
    if (get32(in + AT_HEADER_CRC) != crc32c(0, in, AT_HEADER_CRC))
        return err_set(e, ERR_FORMAT, "frame: the header's checksum is wrong");
    // The version comes before everything that another version may see otherwise.
    if (get16(in + AT_VERSION) != FRAME_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "frame: the peer speaks version %u of the protocol, this program version %d",
                       get16(in + AT_VERSION), FRAME_VERSION);
    uint32_t type = get16(in + AT_TYPE);
    if (type >= FRAME_N || !types[type].name) return err_set(e, ERR_FORMAT, "frame: there is no type %u", type);
    if (memcmp(in + AT_RESERVED, zeros, sizeof zeros) != 0)
        return err_set(e, ERR_FORMAT, "frame %s: reserved bytes are not zero", types[type].name);
    *h = (struct frame_header){.type = (enum frame_type)type,
                               .epoch = get32(in + AT_EPOCH),
                               .stage = get32(in + AT_STAGE),
                               .step = get64(in + AT_STEP),
                               .rows = get32(in + AT_ROWS),
                               .dtype = get32(in + AT_DTYPE),
                               .control_bytes = get32(in + AT_CONTROL),
                               .payload_bytes = get32(in + AT_PAYLOAD),
                               .body_crc = get32(in + AT_BODY_CRC)};
    return check_lengths(h, max_control_bytes, max_payload_bytes, e);
}

uint32_t frame_payload_offset(const struct frame_header *h) {
    return (h->control_bytes + (FRAME_PAD - 1)) / FRAME_PAD * FRAME_PAD;
}

uint32_t frame_body_shift(const struct frame_header *h) {
    uint32_t over = frame_payload_offset(h) % FRAME_ALIGN;
    return over ? FRAME_ALIGN - over : 0;
}

uint64_t frame_body_bytes(const struct frame_header *h) { return (uint64_t)frame_payload_offset(h) + h->payload_bytes; }

uint32_t frame_crc(const void *control, uint32_t control_bytes, const void *payload, uint32_t payload_bytes) {
    uint32_t c = control_bytes ? crc32c(0, control, control_bytes) : 0;
    return payload_bytes ? crc32c(c, payload, payload_bytes) : c;
}

int frame_check_body(const struct frame_header *h, const uint8_t *body, struct err *e) {
    uint32_t at = frame_payload_offset(h);
    for (uint32_t i = h->control_bytes; i < at; i++)
        if (body[i]) return err_set(e, ERR_FORMAT, "frame %s: padding is not zero", frame_name(h->type));
    if (frame_crc(body, h->control_bytes, body + at, h->payload_bytes) != h->body_crc)
        return err_set(e, ERR_FORMAT, "frame %s: the body's checksum is wrong", frame_name(h->type));
    return ERR_OK;
}
