#include "node/cache.h"

#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 4096 };

static char dir[64];
static _Atomic uint64_t progress;
static atomic_bool quit;

static int setup(void **state) {
    (void)state;
    strcpy(dir, "/tmp/loom-cache-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void make(uint8_t fill, uint8_t data[BYTES], struct control_tensor *t) {
    memset(data, fill, BYTES);
    *t = (struct control_tensor){.found = true, .dtype = DT_BF16, .n_dims = 1, .dim = {BYTES / 2}, .bytes = BYTES};
    SHA256(data, BYTES, t->sha256);
}

static void put(struct cache *c, const uint8_t *data, const struct control_tensor *t) {
    struct cache_put p;
    struct err e;
    assert_int_equal(cache_put_begin(c, t, &p, &e), ERR_OK);
    assert_int_equal(cache_put_add(c, &p, data, 1000, &e), ERR_OK);
    assert_int_equal(cache_put_add(c, &p, data + 1000, BYTES - 1000, &e), ERR_OK);
    assert_int_equal(cache_put_end(c, &p, t, &e), ERR_OK);
}

static bool has(struct cache *c, const struct control_tensor *t, const uint8_t *want) {
    struct file_map m;
    const uint8_t *data;
    struct err e;
    int rc = cache_find(c, "x", t, &m, &data, &e);
    if (rc == ERR_NOT_FOUND) return false;
    assert_int_equal(rc, ERR_OK);
    assert_memory_equal(data, want, BYTES);
    file_map_close(&m);
    return true;
}

static void path_of(const struct control_tensor *t, char out[256]) {
    int n = snprintf(out, 256, "%s/", dir);
    for (int i = 0; i < 32; i++) n += snprintf(out + n, 256 - (size_t)n, "%02x", t->sha256[i]);
}

static void test_put_and_find(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t;
    struct cache_put p;
    uint8_t data[BYTES];
    char path[256];
    struct err e;
    make(7, data, &t);
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    assert_false(has(&c, &t, data));
    put(&c, data, &t);
    assert_true(has(&c, &t, data));
    // Other bytes than announced never get the name.
    struct control_tensor lie = t;
    lie.sha256[0] ^= 1;
    assert_int_equal(cache_put_begin(&c, &lie, &p, &e), ERR_OK);
    assert_int_equal(cache_put_add(&c, &p, data, BYTES, &e), ERR_OK);
    assert_int_equal(cache_put_end(&c, &p, &lie, &e), ERR_FORMAT);
    assert_false(has(&c, &lie, data));
    cache_fini(&c);

    // Another process finds it, unless the disk has changed it: then it is gone, to be fetched again.
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    assert_true(has(&c, &t, data));
    cache_fini(&c);
    path_of(&t, path);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\x08", 1, 100), 1);
    close(fd);
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    assert_false(has(&c, &t, data));
    assert_false(file_exists(path));
    put(&c, data, &t);
    assert_true(has(&c, &t, data));
    cache_fini(&c);
}

static void test_bound(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t[5];
    uint8_t data[5][BYTES];
    struct err e;
    assert_int_equal(cache_init(&c, dir, 3 * BYTES, NULL, &progress, &quit, &e), ERR_OK);
    for (int i = 0; i < 5; i++) {
        make((uint8_t)i, data[i], &t[i]);
        if (i == 3) { // 1 and 2 are older than 0 now
            char path[256];
            for (int k = 1; k <= 2; k++) {
                const struct timespec old[2] = {{.tv_sec = 1000 + k}, {.tv_sec = 1000 + k}};
                path_of(&t[k], path);
                assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
            }
        }
        put(&c, data[i], &t[i]);
    }
    assert_true(has(&c, &t[0], data[0]));
    assert_false(has(&c, &t[1], data[1]));
    assert_false(has(&c, &t[2], data[2]));
    assert_true(has(&c, &t[3], data[3]));
    assert_true(has(&c, &t[4], data[4]));
    assert_int_equal(c.total_bytes, 3 * BYTES);
    cache_fini(&c);
}

static void test_leftovers_go(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t;
    struct cache_put p;
    uint8_t data[BYTES];
    struct err e;
    make(1, data, &t);
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    assert_int_equal(cache_put_begin(&c, &t, &p, &e), ERR_OK);
    assert_int_equal(cache_put_add(&c, &p, data, 10, &e), ERR_OK);
    char kept[256], temp[LIMIT_PATH];
    memcpy(temp, p.temp, sizeof temp);
    snprintf(kept, sizeof kept, "%s/temp-killed", dir);
    assert_int_equal(link(temp, kept), 0); // as a killed process would leave it
    cache_put_abort(&p);
    assert_false(file_exists(temp));
    cache_fini(&c);
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    assert_false(file_exists(kept));
    cache_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_and_find, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leftovers_go, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
