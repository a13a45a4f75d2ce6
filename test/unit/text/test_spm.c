// The pieces of a SentencePiece model, byte by byte.
#include "text/spm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

// The first piece of a model; *found false: it has none.
static int first(const char *model, size_t n, struct spm_piece *p, bool *found) {
    struct spm_message m = {(const uint8_t *)model, (const uint8_t *)model + n};
    struct err e = {0};
    uint32_t id = 0;
    int rc = spm_next_piece(&m, &id, p, found, &e);
    if (rc) assert_true(e.code == rc && e.text[0]);
    if (!rc) assert_int_equal(id, *found);
    return rc;
}

#define FIRST(model) first(model, sizeof(model) - 1, &p, &found)

static void pieces(void **state) {
    (void)state;
    struct spm_piece p = {0};
    bool found = true;
    assert_int_equal(FIRST(""), ERR_OK);
    assert_false(found);
    // Another field is passed over; then a text, a score of 1, a type.
    assert_int_equal(FIRST("\x12\x01z\x0a\x0a\x0a\x01"
                           "a\x15\x00\x00\x80\x3f\x18\x06"),
                     ERR_OK);
    assert_true(found && p.len_bytes == 1 && p.text[0] == 'a' && p.score >= 1 && p.score <= 1 && p.type == SPM_BYTE);
    assert_int_equal(FIRST("\x0a\x05\x0a\x01"
                           "a\x18\x00"),
                     ERR_OK); // a type that nobody knows
    assert_int_equal(p.type, SPM_NORMAL);
}

static void broken(void **state) {
    (void)state;
    struct spm_piece p = {0};
    bool found = false;
    assert_int_equal(FIRST("\x0a\x02\x18\x01"), ERR_FORMAT);  // no text
    assert_int_equal(FIRST("\x0a\x02\x0a\x00"), ERR_FORMAT);  // an empty one
    assert_int_equal(FIRST("\x02\x01z"), ERR_FORMAT);         // a field without a number
    assert_int_equal(FIRST("\x0a\x03\x0a\x05z"), ERR_FORMAT); // longer than its message
    assert_int_equal(FIRST("\x0a\x09\x0a\x01z"), ERR_FORMAT); // a message longer than the file
    assert_int_equal(FIRST("\x0b"), ERR_FORMAT);              // a group
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces), cmocka_unit_test(broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
