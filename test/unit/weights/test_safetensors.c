#include "base/buf.h"
#include "os/file.h"
#include "weights/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

// A file of this header and n bytes of data 0, 1, 2, ...
static void make_file(struct buf *b, const char *header, size_t n) {
    buf_init(b, 1 << 20);
    uint64_t len = strlen(header);
    uint8_t head[8];
    for (int i = 0; i < 8; i++) head[i] = (uint8_t)(len >> 8 * i);
    assert_int_equal(buf_add(b, head, 8), ERR_OK);
    assert_int_equal(buf_add(b, header, len), ERR_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(buf_add(b, &(uint8_t){(uint8_t)i}, 1), ERR_OK);
}

static void expect_error(const char *header, size_t n, int code, const char *text) {
    struct buf b;
    struct tensors *t;
    struct err e;
    make_file(&b, header, n);
    int rc = tensors_open_memory(b.data, b.len_bytes, &t, &e);
    if (rc != code || !strstr(e.text, text)) fail_msg("%s -> %d %s", header, rc, rc ? e.text : "");
    buf_fini(&b);
}

static void test_good(void **state) {
    (void)state;
    struct buf b;
    struct tensors *t;
    struct err e;
    make_file(&b,
              "{\"__metadata__\":{\"format\":\"pt\"},"
              "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[4,16]},"
              "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
              "\"z\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[16,16]}}  ",
              16);
    assert_int_equal(tensors_open_memory(b.data, b.len_bytes, &t, &e), ERR_OK);
    assert_int_equal(tensors_count(t), 3);
    const struct tensor *x = tensors_find(t, "b");
    assert_non_null(x);
    assert_int_equal(x->type, DT_BF16);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(x->dim[0], 3);
    assert_int_equal(x->dim[1], 2);
    assert_int_equal(x->bytes, 12);
    assert_int_equal(x->data[0], 4);
    assert_int_equal(tensors_find(t, "a")->bytes, 4);
    assert_null(tensors_find(t, "c"));
    assert_null(tensors_find(t, "__metadata__"));
    tensors_free(t);
    buf_fini(&b);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_hostile_headers(void **state) {
    (void)state;
    expect_error(ONE("\"F32\"", "[1]", "[0,4]"), 3, ERR_FORMAT, "not inside");
    expect_error(ONE("\"F32\"", "[1]", "[0,4]"), 5, ERR_FORMAT, "end at byte 4 of 5");
    expect_error(ONE("\"F32\"", "[1]", "[1,5]"), 5, ERR_FORMAT, "begins at 1");
    expect_error(ONE("\"F32\"", "[1]", "[4,0]"), 4, ERR_FORMAT, "not inside");
    expect_error(ONE("\"F32\"", "[1]", "[-4,0]"), 4, ERR_FORMAT, "not inside");
    expect_error(ONE("\"F32\"", "[1]", "[0,4.0]"), 4, ERR_FORMAT, "data_offsets");
    expect_error(ONE("\"F32\"", "[1]", "[0]"), 4, ERR_FORMAT, "data_offsets");
    expect_error(ONE("\"F32\"", "[2]", "[0,4]"), 4, ERR_FORMAT, "needs 8");
    expect_error(ONE("\"F32\"", "[-1]", "[0,4]"), 4, ERR_FORMAT, "shape[0]");
    expect_error(ONE("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, ERR_FORMAT, "2^64");
    expect_error(ONE("\"F32\"", "[9223372036854775807,9223372036854775807]", "[0,4]"), 4, ERR_FORMAT, "2^64");
    expect_error(ONE("\"F32\"", "[99999999999999999999]", "[0,4]"), 4, ERR_FORMAT, "header");
    expect_error(ONE("\"F32\"", "[1,1,1,1,1]", "[0,4]"), 4, ERR_UNSUPPORTED, "5 dimensions");
    expect_error(ONE("\"F32\"", "7", "[0,4]"), 4, ERR_FORMAT, "shape is not an array");
    expect_error(ONE("\"Q8_0\"", "[1]", "[0,4]"), 4, ERR_UNSUPPORTED, "Q8_0");
    expect_error(ONE("\"F99\"", "[1]", "[0,4]"), 4, ERR_UNSUPPORTED, "tensor a: dtype F99");
    expect_error(ONE("3", "[1]", "[0,4]"), 4, ERR_FORMAT, "dtype is not a string");
    expect_error("{\"a\":3}", 0, ERR_FORMAT, "not an object");
    expect_error("{\"a\":{}}", 0, ERR_FORMAT, "dtype");
    expect_error("[]", 0, ERR_FORMAT, "not an object");
    expect_error("{", 0, ERR_FORMAT, "header");
    expect_error("{} x", 0, ERR_FORMAT, "header");
    expect_error("{\"__metadata__\":3}", 0, ERR_FORMAT, "__metadata__");
    expect_error("{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT, "name has 0 bytes");
    expect_error("{\"a\\u001b[2J\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT, "control");
}

static void test_duplicates_and_overlap(void **state) {
    (void)state;
    expect_error("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                 2, ERR_FORMAT, "header");
    expect_error("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
                 6, ERR_FORMAT, "tensor b: begins at 2; the one before ends at 4");
    expect_error("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                 4, ERR_FORMAT, "begins at 0");
}

static void test_lengths(void **state) {
    (void)state;
    struct tensors *t;
    struct err e;
    static const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, big[10] = {3, 0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(tensors_open_memory(huge, 0, &t, &e), ERR_FORMAT);
    assert_int_equal(tensors_open_memory(huge, 7, &t, &e), ERR_FORMAT);
    assert_int_equal(tensors_open_memory(huge, 8, &t, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "18446744073709551615"));
    assert_int_equal(tensors_open_memory(big, 10, &t, &e), ERR_FORMAT);
}

// Every prefix of a good file is refused, and none is read beyond its end (the sanitizer builds see that).
static void test_truncation(void **state) {
    (void)state;
    struct buf b;
    struct tensors *t;
    struct err e;
    make_file(&b, ONE("\"F32\"", "[2]", "[0,8]"), 8);
    for (size_t n = 0; n < b.len_bytes; n++) {
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, b.data, n);
        assert_int_not_equal(tensors_open_memory(copy, n, &t, &e), ERR_OK);
        free(copy);
    }
    buf_fini(&b);
}

static void put(const char *folder, const char *name, const void *data, size_t n) {
    char path[256];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write(path, data, n, 0600, &e), ERR_OK);
}

static void put_shard(const char *folder, const char *name, const char *header, size_t n) {
    struct buf b;
    make_file(&b, header, n);
    put(folder, name, b.data, b.len_bytes);
    buf_fini(&b);
}

static void expect_index(const char *folder, const char *index, int code, const char *text) {
    struct tensors *t;
    struct err e;
    put(folder, "model.safetensors.index.json", index, strlen(index));
    int rc = tensors_open(folder, &t, &e);
    if (rc != code || (rc && !strstr(e.text, text))) fail_msg("%s -> %d %s", index, rc, rc ? e.text : "");
    if (!rc) {
        assert_int_equal(tensors_count(t), 2);
        assert_int_equal(tensors_find(t, "b")->data[1], 1);
        tensors_free(t);
    }
}

#define MAP(x) "{\"metadata\":{},\"weight_map\":" x "}"

static void test_index(void **state) {
    (void)state;
    char d[] = "/tmp/loom-test-XXXXXX", path[256];
    struct tensors *t;
    struct err e;
    assert_non_null(mkdtemp(d));
    assert_int_equal(tensors_open(d, &t, &e), ERR_NOT_FOUND);
    put_shard(d, "m1.safetensors", ONE("\"U8\"", "[2]", "[0,2]"), 2);
    put_shard(d, "m2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    expect_index(d, MAP("{\"a\":\"m1.safetensors\",\"b\":\"m2.safetensors\"}"), ERR_OK, "");
    expect_index(d, MAP("{\"a\":\"m2.safetensors\",\"b\":\"m1.safetensors\"}"), ERR_FORMAT, "is not in");
    expect_index(d, MAP("{\"a\":\"m1.safetensors\",\"c\":\"m2.safetensors\"}"), ERR_FORMAT, "tensor c is not in");
    expect_index(d, MAP("{\"a\":\"m1.safetensors\",\"b\":\"m3.safetensors\"}"), ERR_NOT_FOUND, "m3.safetensors");
    expect_index(d, MAP("{\"a\":\"../m1.safetensors\"}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{\"a\":\"/etc/m1.safetensors\"}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{\"a\":\"x/../m1.safetensors\"}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{\"a\":\".safetensors\"}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{\"a\":\"m1.bin\"}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{\"a\":7}"), ERR_FORMAT, "plain");
    expect_index(d, MAP("{}"), ERR_FORMAT, "weight_map");
    expect_index(d, "{}", ERR_FORMAT, "weight_map");
    expect_index(d, "[", ERR_FORMAT, "index.json");
    put_shard(d, "m2.safetensors", ONE("\"U8\"", "[2]", "[0,2]"), 2);
    expect_index(d, MAP("{\"a\":\"m1.safetensors\",\"b\":\"m2.safetensors\"}"), ERR_FORMAT, "there twice");
    static const char *const names[] = {"m1.safetensors", "m2.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", d, names[i]);
        unlink(path);
    }
    rmdir(d);
}

// Reading a file that shrank is an error; looking at its map would end the process.
static void test_read(void **state) {
    (void)state;
    char d[] = "/tmp/loom-test-XXXXXX", path[256];
    uint8_t got[4] = {0};
    struct tensors *t;
    struct err e;
    assert_non_null(mkdtemp(d));
    put_shard(d, "model.safetensors", ONE("\"U8\"", "[8]", "[0,8]"), 8);
    assert_int_equal(tensors_open(d, &t, &e), ERR_OK);
    const struct tensor *a = tensors_find(t, "a");
    assert_int_equal(tensors_read(t, a, 3, got, 4, &e), ERR_OK);
    assert_memory_equal(got, "\3\4\5\6", 4);
    assert_int_equal(tensors_read(t, a, 8, got, 0, &e), ERR_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", d);
    assert_int_equal(truncate(path, 16), 0);
    assert_int_equal(tensors_read(t, a, 3, got, 4, &e), ERR_IO);
    assert_non_null(strstr(e.text, "tensor a"));
    tensors_free(t);
    unlink(path);
    rmdir(d);
}

static void test_add(void **state) {
    (void)state;
    struct tensors *t;
    struct err e;
    uint8_t data[4] = {0};
    char name[16];
    assert_int_equal(tensors_new(&t), ERR_OK);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "t%d", i);
        struct tensor one = {.name = name, .type = DT_U8, .n_dims = 1, .dim = {4}, .data = data, .bytes = 4};
        assert_int_equal(tensors_add(t, &one, &e), ERR_OK);
        assert_int_equal(tensors_add(t, &one, &e), ERR_FORMAT);
    }
    assert_int_equal(tensors_count(t), 200);
    assert_string_equal(tensors_find(t, "t150")->name, "t150");
    assert_string_equal(tensors_at(t, 199)->name, "t199");
    tensors_free(t);
}

static uint64_t resident_file_bytes(void) {
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "RssFile:", 8)) kb = strtoull(line + 8, NULL, 10);
    fclose(f);
    return kb << 10;
}

// A tensor whose data comes later, in a map of its own: read in pieces, nothing of it stays.
static void test_put_data(void **state) {
    (void)state;
    enum { N = 32 << 20, PIECE = 300001 };
    char path[] = "/tmp/loom-weights-XXXXXX";
    uint8_t *bytes = malloc(N), *got = malloc(PIECE);
    struct file_map map;
    struct tensors *t;
    struct err e;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && bytes && got);
    for (uint32_t i = 0; i < N; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(write(fd, bytes, N), N);
    close(fd);
    assert_int_equal(file_map_open(&map, path, &e), ERR_OK);
    assert_int_equal(tensors_new(&t), ERR_OK);
    const struct tensor one = {.name = "x", .type = DT_U8, .n_dims = 1, .dim = {N}, .bytes = N, .is_mapped = true};
    assert_int_equal(tensors_add(t, &one, &e), ERR_OK);
    tensors_put_data(t, "x", map.data);
    const uint64_t before = resident_file_bytes();
    for (uint32_t at = 0; at < N; at += PIECE) {
        uint32_t n = N - at < PIECE ? N - at : PIECE;
        assert_int_equal(tensors_read(t, tensors_find(t, "x"), at, got, n, &e), ERR_OK);
        assert_memory_equal(got, bytes + at, n);
    }
    assert_true(resident_file_bytes() < before + N / 4);
    tensors_free(t);
    file_map_close(&map);
    unlink(path);
    free(bytes);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good),       cmocka_unit_test(test_hostile_headers),
                                       cmocka_unit_test(test_lengths),    cmocka_unit_test(test_duplicates_and_overlap),
                                       cmocka_unit_test(test_truncation), cmocka_unit_test(test_index),
                                       cmocka_unit_test(test_read),       cmocka_unit_test(test_add),
                                       cmocka_unit_test(test_put_data)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
