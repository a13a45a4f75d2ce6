#include "node/cache.h"
#include "os/clock.h"

#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <sched.h>
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
    struct file_map m;
    struct err e;
    assert_int_equal(cache_put_begin(c, t, &p, &e), ERR_OK);
    assert_int_equal(cache_put_add(c, &p, data, 1000, &e), ERR_OK);
    assert_int_equal(cache_put_add(c, &p, data + 1000, BYTES - 1000, &e), ERR_OK);
    assert_int_equal(cache_put_end(c, &p, t, &m, &e), ERR_OK);
    assert_int_equal(m.len_bytes, BYTES);
    assert_memory_equal(m.data, data, BYTES);
    file_map_close(&m);
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
    struct file_map m;
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
    assert_int_equal(cache_put_end(&c, &p, &lie, &m, &e), ERR_FORMAT);
    assert_null(m.data);
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

static void poke(const char *path, off_t at) {
    clock_sleep_ms(20); // some file systems' times have steps
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x55", 1, at), 1);
    close(fd);
}

// The process that hashed a file does not believe it any more once it changed.
static void test_change_after_the_hash(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t;
    uint8_t data[BYTES];
    char path[256];
    struct err e;
    make(9, data, &t);
    path_of(&t, path);
    assert_int_equal(cache_init(&c, dir, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    put(&c, data, &t);
    assert_true(has(&c, &t, data));
    poke(path, 77);
    assert_false(has(&c, &t, data));
    assert_false(file_exists(path));
    put(&c, data, &t);
    assert_true(has(&c, &t, data));
    assert_int_equal(truncate(path, 0), 0);
    assert_false(has(&c, &t, data));
    assert_false(file_exists(path));
    // Another file under the name.
    put(&c, data, &t);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(file_write(path, "short", 5, 0600, &e), ERR_OK);
    assert_false(has(&c, &t, data));
    put(&c, data, &t);
    // What has not changed is not hashed again.
    assert_true(has(&c, &t, data));
    uint64_t before = progress;
    assert_true(has(&c, &t, data));
    assert_int_equal(progress, before);
    cache_fini(&c);
}

static void test_changes_in_the_model_folder(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t;
    uint8_t data[BYTES], file[8 + 128 + BYTES] = {128};
    char model[100], cache[100], path[200];
    struct err e;
    make(3, data, &t);
    memset(file + 8, ' ', 128);
    int n = snprintf((char *)file + 8, 128, "{\"x\":{\"dtype\":\"BF16\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                     BYTES / 2, BYTES);
    file[8 + n] = ' ';
    memcpy(file + 136, data, BYTES);
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_int_equal(file_mkdir_all(model, 0700, &e), ERR_OK);
    assert_int_equal(file_write(path, file, sizeof file, 0600, &e), ERR_OK);
    if (cache_init(&c, cache, 1 << 20, model, &progress, &quit, &e)) fail_msg("%s", e.text);
    assert_true(has(&c, &t, data));
    cache_begin(&c);
    assert_true(has(&c, &t, data));
    poke(path, 136 + 50);
    assert_false(has(&c, &t, data)); // within the load
    cache_begin(&c);
    assert_false(has(&c, &t, data));
    assert_int_equal(truncate(path, 200), 0);
    assert_false(has(&c, &t, data));
    cache_begin(&c);
    assert_false(has(&c, &t, data));
    assert_int_equal(file_write(path, file, sizeof file, 0600, &e), ERR_OK);
    cache_begin(&c);
    assert_true(has(&c, &t, data));
    cache_fini(&c);
}

static void test_the_folder_goes_away(void **state) {
    (void)state;
    struct cache c;
    struct control_tensor t;
    uint8_t data[BYTES];
    char folder[100], path[256];
    struct err e;
    make(5, data, &t);
    snprintf(folder, sizeof folder, "%s/a/weights", dir);
    assert_int_equal(cache_init(&c, folder, 1 << 20, NULL, &progress, &quit, &e), ERR_OK);
    snprintf(path, sizeof path, "%s/a", dir);
    file_remove_tree(path);
    put(&c, data, &t);
    assert_true(has(&c, &t, data));
    // Where no folder can be, the bytes come all the same, from memory.
    file_remove_tree(path);
    assert_int_equal(file_write(path, "x", 1, 0600, &e), ERR_OK);
    put(&c, data, &t);
    assert_false(has(&c, &t, data));
    // Taken away in the middle.
    assert_int_equal(unlink(path), 0);
    struct cache_put p;
    struct file_map m;
    assert_int_equal(cache_put_begin(&c, &t, &p, &e), ERR_OK);
    file_remove_tree(path);
    assert_int_equal(cache_put_add(&c, &p, data, BYTES, &e), ERR_OK);
    assert_int_equal(cache_put_end(&c, &p, &t, &m, &e), ERR_OK);
    assert_memory_equal(m.data, data, BYTES);
    file_map_close(&m);
    cache_fini(&c);
}

// In a process of its own, with a file system of 64 KB. Returns an exit code; 77: that may not be had here.
static int fill_a_small_disk(void) {
    struct cache c;
    struct err e;
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 77;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 77;
    if (mount("none", dir, "tmpfs", 0, "size=64k")) return 77;
    if (cache_init(&c, dir, 1 << 30, NULL, &progress, &quit, &e)) return 1;
    static uint8_t big[40 << 10], huge[200 << 10];
    for (int i = 0; i < 4; i++) { // more than there is room for: the oldest go
        uint8_t *data = i < 3 ? big : huge;
        size_t bytes = i < 3 ? sizeof big : sizeof huge;
        memset(data, i + 1, bytes);
        struct control_tensor t = {.found = true, .dtype = DT_BF16, .n_dims = 1, .dim = {bytes / 2}, .bytes = bytes};
        struct cache_put p;
        struct file_map m;
        SHA256(data, bytes, t.sha256);
        if (cache_put_begin(&c, &t, &p, &e)) return 2;
        for (size_t at = 0; at < bytes; at += 4096)
            if (cache_put_add(&c, &p, data + at, 4096, &e)) return 3;
        if (cache_put_end(&c, &p, &t, &m, &e)) return 4;
        if (m.len_bytes != bytes || memcmp(m.data, data, bytes) != 0) return 5;
        file_map_close(&m);
        if (c.warned != (i == 3)) return 6;
        char path[256];
        path_of(&t, path);
        if (file_exists(path) != (i < 3)) return 7;
    }
    cache_fini(&c);
    return 0;
}

static void test_full_disk(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(fill_a_small_disk());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        print_message("no small disk may be mounted here\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
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
        cmocka_unit_test_setup_teardown(test_change_after_the_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changes_in_the_model_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_folder_goes_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leftovers_go, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
