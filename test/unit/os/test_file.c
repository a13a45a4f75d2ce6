#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "os/file.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/loom-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
    return system(cmd);
}

static const char *in_folder(const char *name) {
    static char path[256];
    assert_int_equal(file_join(path, sizeof path, folder, name, NULL), ERR_OK);
    return path;
}

static size_t count_entries(void) {
    size_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *entry; (entry = readdir(d));) n += entry->d_name[0] != '.';
    closedir(d);
    return n;
}

static void what_is_written_is_read(void **state) {
    (void)state;
    struct err e;
    struct stat st;
    char *data = NULL;
    size_t n = 0;
    const char *path = in_folder("f");
    assert_int_equal(file_write(path, "abc\0def", 7, 0600, &e), ERR_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(file_read(path, 7, &data, &n, &e), ERR_OK);
    assert_int_equal(n, 7);
    assert_memory_equal(data, "abc\0def", 8);
    free(data);
    assert_int_equal(file_write(path, "xy", 2, 0644, &e), ERR_OK);
    assert_int_equal(file_read(path, 100, &data, &n, &e), ERR_OK);
    assert_string_equal(data, "xy");
    free(data);
    assert_int_equal(count_entries(), 1); // no temporary file stays
    unlink(path);
}

static void reading_has_a_maximum(void **state) {
    (void)state;
    struct err e = {0};
    char *data = NULL;
    size_t n;
    const char *path = in_folder("big");
    assert_int_equal(file_write(path, "12345678", 8, 0600, &e), ERR_OK);
    assert_int_equal(file_read(path, 7, &data, &n, &e), ERR_LIMIT);
    assert_null(data);
    assert_non_null(strstr(e.text, "big: has 8 bytes, at most 7"));
    assert_int_equal(file_read(folder, 7, &data, &n, &e), ERR_IO);
    assert_int_equal(file_read(in_folder("absent"), 7, &data, &n, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "absent"));
    unlink(in_folder("big"));
}

static void failed_write_leaves_the_old(void **state) {
    (void)state;
    struct err e;
    char *data;
    size_t n;
    char deep[300];
    snprintf(deep, sizeof deep, "%s/none/f", folder);
    assert_int_equal(file_write(deep, "x", 1, 0600, &e), ERR_NOT_FOUND);
    snprintf(deep, sizeof deep, "%s/dir", folder);
    assert_int_equal(file_mkdir_all(in_folder("dir/inner"), 0700, &e), ERR_OK);
    assert_int_equal(file_write(deep, "x", 1, 0600, &e), ERR_IO); // a folder is not replaced
    assert_true(file_is_dir(in_folder("dir/inner")));
    assert_int_equal(count_entries(), 1);
    assert_int_equal(file_write(in_folder("f"), "old", 3, 0600, &e), ERR_OK);
    assert_int_equal(file_mkdir_all(in_folder("f/g"), 0700, &e), ERR_IO); // f is no folder
    assert_int_equal(file_read(in_folder("f"), 9, &data, &n, &e), ERR_OK);
    assert_string_equal(data, "old");
    free(data);
}

static void maps_files(void **state) {
    (void)state;
    struct err e;
    struct file_map m;
    assert_int_equal(file_write(in_folder("m"), "mapped", 6, 0600, &e), ERR_OK);
    assert_int_equal(file_map_open(&m, in_folder("m"), &e), ERR_OK);
    assert_int_equal(m.len_bytes, 6);
    assert_memory_equal(m.data, "mapped", 6);
    file_map_close(&m);
    assert_null(m.data);
    assert_int_equal(file_write(in_folder("m"), "", 0, 0600, &e), ERR_OK);
    assert_int_equal(file_map_open(&m, in_folder("m"), &e), ERR_OK);
    assert_int_equal(m.len_bytes, 0);
    file_map_close(&m);
    assert_int_equal(file_map_open(&m, in_folder("nothing"), &e), ERR_NOT_FOUND);
    assert_int_equal(file_map_open(&m, folder, &e), ERR_IO);
}

static void joins_paths(void **state) {
    (void)state;
    char out[8];
    assert_int_equal(file_join(out, sizeof out, "a", "b", NULL), ERR_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(file_join(out, sizeof out, "a/", "b", NULL), ERR_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(file_join(out, sizeof out, "", "b", NULL), ERR_OK);
    assert_string_equal(out, "b");
    assert_int_equal(file_join(out, sizeof out, "abcd", "efg", NULL), ERR_LIMIT);
    assert_true(file_exists("/dev/null"));
    assert_false(file_exists("/dev/null/x"));
}

// A link in a circle, or to nowhere, is something that is wrong, not something that is not there.
static void what_cannot_be_opened_exists(void **state) {
    (void)state;
    struct err e;
    char *data;
    size_t n;
    assert_int_equal(symlink("circle", in_folder("circle")), 0);
    assert_true(file_exists(in_folder("circle")));
    assert_int_equal(file_read(in_folder("circle"), 10, &data, &n, &e), ERR_IO);
    assert_int_equal(symlink("nowhere", in_folder("astray")), 0);
    assert_true(file_exists(in_folder("astray")));
    assert_false(file_exists(in_folder("nowhere")));
    assert_int_equal(file_write(in_folder("plain"), "", 0, 0600, &e), ERR_OK);
    assert_false(file_exists(in_folder("plain/below")));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_written_is_read),
                                       cmocka_unit_test(reading_has_a_maximum),
                                       cmocka_unit_test(failed_write_leaves_the_old),
                                       cmocka_unit_test(maps_files),
                                       cmocka_unit_test(joins_paths),
                                       cmocka_unit_test(what_cannot_be_opened_exists)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
