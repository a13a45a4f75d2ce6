#include "base/crc32c.h"
#include "wire/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct frame_header sample = {.type = FRAME_STEP,
                                           .epoch = 7,
                                           .stage = 3,
                                           .step = 0x1122334455667788,
                                           .rows = 5,
                                           .dtype = 2,
                                           .control_bytes = 70,
                                           .payload_bytes = 1000,
                                           .body_crc = 0xdeadbeef};

static int unpack(const uint8_t raw[FRAME_HEADER_BYTES], struct frame_header *h, struct err *e) {
    return frame_unpack(raw, UINT32_MAX, UINT32_MAX, h, e);
}

static void fix_crc(uint8_t raw[FRAME_HEADER_BYTES]) {
    uint32_t c = crc32c(0, raw, 60);
    for (int i = 0; i < 4; i++) raw[60 + i] = (uint8_t)(c >> (8 * i));
}

static void test_round_trip(void **state) {
    (void)state;
    uint8_t raw[FRAME_HEADER_BYTES], again[FRAME_HEADER_BYTES];
    struct frame_header h;
    struct err e;
    frame_pack(&sample, raw);
    assert_int_equal(unpack(raw, &h, &e), ERR_OK);
    frame_pack(&h, again);
    assert_memory_equal(raw, again, sizeof raw);
    assert_int_equal(h.step, sample.step);
    assert_int_equal(h.payload_bytes, sample.payload_bytes);
    assert_int_equal(frame_payload_offset(&h), 72);
    assert_int_equal(frame_body_bytes(&h), 1072);
    assert_int_equal((frame_body_shift(&h) + frame_payload_offset(&h)) % FRAME_ALIGN, 0);
    assert_true(frame_body_shift(&h) < FRAME_ALIGN);
    // The layout is a promise to other versions: a few bytes of it, spelled out.
    static const uint8_t start[] = {'L', 'O', 'O', 'M', 2, 0, 11, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0x88, 0x77};
    assert_memory_equal(raw, start, sizeof start);
}

static void test_every_flipped_bit_is_seen(void **state) {
    (void)state;
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header h;
    frame_pack(&sample, raw);
    for (int bit = 0; bit < FRAME_HEADER_BYTES * 8; bit++) {
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(unpack(raw, &h, NULL), ERR_OK);
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(unpack(raw, &h, NULL), ERR_OK);
}

static void test_lying_lengths(void **state) {
    (void)state;
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header h = sample, got;
    struct err e;
    for (int type = 0; type <= FRAME_N + 1; type++) {
        h.type = (enum frame_type)type;
        h.control_bytes = 0;
        h.payload_bytes = UINT32_MAX;
        frame_pack(&h, raw);
        assert_int_not_equal(unpack(raw, &got, &e), ERR_OK);
        h.control_bytes = UINT32_MAX;
        h.payload_bytes = 0;
        frame_pack(&h, raw);
        assert_int_not_equal(unpack(raw, &got, &e), ERR_OK);
    }
    // What the link allows now counts as well as the type's own limit.
    frame_pack(&sample, raw);
    assert_int_equal(frame_unpack(raw, 70, 1000, &got, &e), ERR_OK);
    assert_int_equal(frame_unpack(raw, 69, 1000, &got, &e), ERR_LIMIT);
    assert_int_equal(frame_unpack(raw, 70, 999, &got, &e), ERR_LIMIT);
}

static void test_other_version(void **state) {
    (void)state;
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header h;
    struct err e;
    frame_pack(&sample, raw);
    static const uint8_t others[] = {1, 3};
    for (int i = 0; i < 2; i++) {
        raw[4] = others[i];
        fix_crc(raw);
        assert_int_equal(unpack(raw, &h, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, i ? "version 3" : "version 1"));
    }
    raw[4] = FRAME_VERSION;
    raw[45] = 1; // reserved
    fix_crc(raw);
    assert_int_equal(unpack(raw, &h, &e), ERR_FORMAT);
}

static void test_body(void **state) {
    (void)state;
    uint8_t body[256] = {0};
    struct frame_header h = {.type = FRAME_STEP, .control_bytes = 10, .payload_bytes = 100};
    struct err e;
    for (int i = 0; i < 10; i++) body[i] = (uint8_t)(i + 1);
    for (int i = 16; i < 116; i++) body[i] = (uint8_t)i;
    h.body_crc = frame_crc(body, 10, body + 16, 100);
    assert_int_equal(frame_check_body(&h, body, &e), ERR_OK);
    for (int i = 0; i < 116; i++) {
        body[i] ^= 1;
        assert_int_equal(frame_check_body(&h, body, &e), ERR_FORMAT);
        body[i] ^= 1;
    }
    h = (struct frame_header){.type = FRAME_READY, .body_crc = frame_crc(NULL, 0, NULL, 0)};
    assert_int_equal(frame_check_body(&h, body, &e), ERR_OK);
    assert_int_equal(frame_body_bytes(&h), 0);
}

static void test_garbage(void **state) {
    (void)state;
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header h;
    srand(5);
    for (int round = 0; round < 100000; round++) {
        for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)rand();
        if (round & 1) memcpy(raw, "LOOM", 4);
        assert_int_not_equal(unpack(raw, &h, NULL), ERR_OK);
    }
}

// Rows travel with a replay as with a step; what only orders something carries nothing.
static void test_bounds_of_types(void **state) {
    (void)state;
    static const enum frame_type bare[] = {FRAME_READY, FRAME_UNLOAD, FRAME_FED, FRAME_MAY_LEAVE, FRAME_BULK};
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header h = {.type = FRAME_REPLAY, .payload_bytes = LIMIT_FRAME_PAYLOAD, .control_bytes = 256 << 10},
                        got;
    frame_pack(&h, raw);
    assert_int_equal(unpack(raw, &got, NULL), ERR_OK);
    h.type = FRAME_STEP;
    frame_pack(&h, raw);
    assert_int_equal(unpack(raw, &got, NULL), ERR_OK);
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++) {
        h = (struct frame_header){.type = bare[i]};
        frame_pack(&h, raw);
        assert_int_equal(unpack(raw, &got, NULL), ERR_OK);
        h.control_bytes = 1;
        frame_pack(&h, raw);
        assert_int_equal(unpack(raw, &got, NULL), ERR_LIMIT);
        h.control_bytes = 0;
        h.payload_bytes = 1;
        frame_pack(&h, raw);
        assert_int_equal(unpack(raw, &got, NULL), ERR_LIMIT);
    }
    for (int t = 1; t < FRAME_N; t++) assert_string_not_equal(frame_name((enum frame_type)t), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_flipped_bit_is_seen),
        cmocka_unit_test(test_lying_lengths),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_body),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_bounds_of_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
