#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "os/file.h"
#include "pull/disk.h"
#include "pull/state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Against one flag a byte.
static void ranges_are_a_set(void **state) {
    (void)state;
    enum { SIZE = 200 };
    struct rng rng;
    rng_init(&rng, 1);
    for (int round = 0; round < 300; round++) {
        struct ranges r = {0};
        bool has[SIZE + 1] = {0};
        for (int k = 0; k < 12; k++) {
            uint32_t begin = rng_below(&rng, SIZE), len = rng_below(&rng, 30), end = begin + len;
            if (end > SIZE) end = SIZE;
            assert_true(ranges_add(&r, begin, end));
            for (uint32_t i = begin; i < end; i++) has[i] = true;
            uint32_t sum = 0, from = rng_below(&rng, SIZE), first = from;
            for (uint32_t i = 0; i < SIZE; i++) sum += has[i];
            assert_int_equal(ranges_total(&r), sum);
            for (uint32_t i = 1; i < r.n; i++) assert_true(r.at[i - 1].end < r.at[i].begin);
            while (first < SIZE && has[first]) first++;
            uint32_t last = first;
            while (last < SIZE && !has[last]) last++;
            struct range gap;
            assert_int_equal(ranges_gap(&r, from, SIZE, &gap), first < SIZE);
            if (first < SIZE) {
                assert_int_equal(gap.begin, first);
                assert_int_equal(gap.end, last);
            }
        }
    }
}

static void ranges_have_a_limit(void **state) {
    (void)state;
    struct ranges r = {0};
    for (uint64_t i = 0; i < LIMIT_PULL_RANGES; i++) assert_true(ranges_add(&r, 3 * i, 3 * i + 1));
    assert_false(ranges_add(&r, 5000, 5001));
    assert_int_equal(r.n, LIMIT_PULL_RANGES);
    assert_true(ranges_add(&r, 1, 3)); // joins two
    assert_true(ranges_add(&r, 5000, 5001));
}

static struct state sample(void) {
    struct state s = {.size_bytes = 1000, .etag = "\"abc\""};
    assert_true(digest_from_text(&s.digest, "git-sha1:0123456789abcdef0123456789abcdef01234567"));
    assert_true(ranges_add(&s.done, 0, 10) && ranges_add(&s.done, 500, 1000));
    return s;
}

static void state_comes_back(void **state) {
    char path[] = "/tmp/loom-state-XXXXXX", *text;
    struct state s = sample(), back;
    struct err e;
    size_t len;
    (void)state;
    close(mkstemp(path));
    assert_int_equal(state_write(path, &s, &e), ERR_OK);
    assert_true(state_read(path, &back));
    assert_int_equal(back.size_bytes, 1000);
    assert_string_equal(back.etag, "\"abc\"");
    assert_true(digest_equal(&back.digest, &s.digest));
    assert_int_equal(back.done.n, 2);
    assert_int_equal(ranges_total(&back.done), 510);
    assert_int_equal(file_read(path, 10000, &text, &len, &e), ERR_OK);
    // Every damage is noticed: a byte that is another one, an end that is missing, something behind it.
    for (size_t i = 0; i < len; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            assert_false(state_parse(text, len, &back));
            text[i] = (char)(text[i] ^ 1 << bit);
        }
        assert_false(state_parse(text, i, &back));
    }
    assert_true(state_parse(text, len, &back));
    assert_false(state_parse(text, len + 1, &back)); // its NUL
    free(text);
    unlink(path);
    assert_false(state_read(path, &back));
}

static void record_comes_back(void **state) {
    char path[] = "/tmp/loom-record-XXXXXX", name[20];
    struct state_record r = {0}, back;
    struct err e;
    (void)state;
    close(mkstemp(path));
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "sub/f %d", i * 7 % 50);
        struct state_record_file f = {.path = name, .size_bytes = (uint64_t)i, .mtime_ns = 1234567890123456789};
        assert_int_equal(state_record_put(&r, &f, &e), ERR_OK);
        f.size_bytes += 100;
        assert_int_equal(state_record_put(&r, &f, &e), ERR_OK);
    }
    assert_int_equal(r.n, 50);
    assert_int_equal(state_record_write(path, &r, &e), ERR_OK);
    assert_true(state_record_read(path, &back));
    assert_int_equal(back.n, 50);
    struct state_record_file same = {.path = "sub/f 7", .size_bytes = 101, .mtime_ns = 1234567890123456789};
    assert_int_equal(state_record_put(&back, &same, &e), ERR_OK);
    assert_false(back.changed);
    same.mtime_ns++;
    assert_int_equal(state_record_put(&back, &same, &e), ERR_OK);
    assert_true(back.changed);
    same.mtime_ns--;
    assert_int_equal(state_record_put(&back, &same, &e), ERR_OK);
    assert_int_equal(state_record_find(&back, "sub/f 7")->size_bytes, 101);
    assert_true(state_record_find(&back, "sub/f 7")->mtime_ns == 1234567890123456789);
    assert_null(state_record_find(&back, "sub/f 50"));
    assert_true(state_record_knows(&back, "sub/f 7", 101, 1234567890123456789, NULL));
    assert_false(state_record_knows(&back, "sub/f 7", 102, 1234567890123456789, NULL));
    assert_false(state_record_knows(&back, "sub/f 7", 101, 1234567890123456788, NULL));
    assert_false(state_record_knows(&back, "sub/f 7", 101, 1234567890123456789, &(struct digest){DIGEST_SHA256, {9}}));
    assert_false(state_record_knows(&back, "sub/f 50", 101, 1234567890123456789, NULL));
    state_record_fini(&back);
    assert_int_equal(truncate(path, 100), 0);
    assert_false(state_record_read(path, &back));
    assert_int_equal(back.n, 0);
    state_record_fini(&r);
    unlink(path);
}

static void digests(void **state) {
    char path[] = "/tmp/loom-digest-XXXXXX", text[DIGEST_TEXT_BYTES];
    atomic_bool stop = false;
    struct digest d;
    struct err e;
    (void)state;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "abc", 3), 3);
    close(fd);
    assert_int_equal(digest_file(path, DIGEST_SHA256, &stop, &d, &e), ERR_OK);
    digest_text(&d, text);
    assert_string_equal(text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(digest_file(path, DIGEST_GIT_SHA1, &stop, &d, &e), ERR_OK);
    digest_text(&d, text);
    assert_string_equal(text, "git-sha1:f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"); // git hash-object
    atomic_store(&stop, true);
    assert_int_equal(digest_file(path, DIGEST_SHA256, &stop, &d, &e), ERR_CANCELLED);
    unlink(path);
    assert_false(digest_from_text(&d, "sha256:12"));
    assert_false(digest_from_text(&d, "md5:d41d8cd98f00b204e9800998ecf8427e"));
    assert_true(digest_from_text(&d, "none"));
    assert_int_equal(d.kind, DIGEST_NONE);
}

static void parts_have_their_length(void **state) {
    char dir[] = "/tmp/loom-part-XXXXXX", path[64];
    struct disk_paths p;
    struct err e;
    char byte;
    int fd;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(disk_paths(&p, dir, "a/b/c", &e), ERR_OK);
    snprintf(path, sizeof path, "%s/.loom-pull/a/b/c.part", dir);
    assert_string_equal(p.part, path);
    assert_int_equal(disk_open_part(p.part, 5000, &fd, &e), ERR_OK);
    assert_int_equal(disk_write(fd, p.part, "x", 1, 4999, &e), ERR_OK);
    close(fd);
    assert_int_equal(disk_open_part(p.part, 5000, &fd, &e), ERR_OK);
    assert_int_equal(pread(fd, &byte, 1, 4999), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(disk_write(fd, p.part, "y", 1, 3999, &e), ERR_OK);
    close(fd);
    assert_int_equal(disk_open_part(p.part, 4000, &fd, &e), ERR_OK);
    assert_int_equal(lseek(fd, 0, SEEK_END), 4000); // and what it held is gone
    assert_int_equal(pread(fd, &byte, 1, 3999), 1);
    assert_int_equal(byte, 0);
    close(fd);
    assert_int_equal(disk_check_room(dir, 1, &e), ERR_OK);
    assert_int_equal(disk_check_room(dir, UINT64_MAX, &e), ERR_LIMIT);
    disk_forget(dir, &p);
    snprintf(path, sizeof path, "%s/.loom-pull/a", dir);
    assert_false(file_exists(path));
    snprintf(path, sizeof path, "%s/.loom-pull", dir);
    assert_true(file_exists(path));
    file_remove_tree(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_are_a_set), cmocka_unit_test(ranges_have_a_limit),
                                       cmocka_unit_test(state_comes_back), cmocka_unit_test(record_comes_back),
                                       cmocka_unit_test(digests),          cmocka_unit_test(parts_have_their_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
