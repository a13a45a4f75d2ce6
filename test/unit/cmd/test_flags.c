#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/flags.h"

static struct {
    bool b;
    const char *s;
    uint32_t u;
    int64_t i;
    double f;
    uint64_t bytes;
    struct flag_u32s list;
    struct flag_strings strings;
} v;

static const struct flag table[] = {{"--bool", FLAG_BOOL, &v.b, 0, 0, "", "", ""},
                                    {"-s", FLAG_STRING, &v.s, 0, 0, "TEXT", "", ""},
                                    {"--count", FLAG_U32, &v.u, 1, 100, "N", "", ""},
                                    {"--seed", FLAG_I64, &v.i, 0, 9.2e18, "S", "", ""},
                                    {"--float", FLAG_F64, &v.f, 0, 2, "F", "", ""},
                                    {"--memory", FLAG_BYTES, &v.bytes, 0, 0, "SIZE", "", ""},
                                    {"--cache", FLAG_BYTES, &v.bytes, 1 << 20, 0, "SIZE", "", ""},
                                    {"--split", FLAG_U32S, &v.list, 0, 0, "4,4", "", ""},
                                    {"--stop", FLAG_STRINGS, &v.strings, 0, 0, "TEXT", "", ""},
                                    {0}};
static const struct flag *const tables[] = {table, NULL};
static const struct command command = {.name = "test", .args = "", .en = "", .zh = ""};

static const char *rest[2];
static int n_rest;
static struct err e;

static int parse(int argc, const char **argv) {
    memset(&v, 0, sizeof v);
    e.text[0] = 0;
    return flags_parse(&command, tables, argc, (char **)argv, rest, 2, &n_rest, &e);
}
#define PARSE(...) parse((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static void every_kind_is_read(void **state) {
    (void)state;
    assert_int_equal(PARSE("--bool", "-s", "text", "--count=7", "a", "--seed", "9007199254740993", "--float", "0.5",
                           "--memory", "8G", "--split", "4,3,1", "--stop", "x", "--stop=y", "--", "--b"),
                     ERR_OK);
    assert_true(v.b);
    assert_string_equal(v.s, "text");
    assert_int_equal(v.u, 7);
    assert_int_equal(v.i, 9007199254740993);
    assert_true(v.f == 0.5);
    assert_int_equal(v.bytes, 8ull << 30);
    assert_int_equal(v.list.n, 3);
    assert_int_equal(v.list.value[2], 1);
    assert_int_equal(v.strings.n, 2);
    assert_int_equal(n_rest, 2);
    assert_string_equal(rest[1], "--b");
}

static void sizes_have_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},       {"1k", 1024},        {"1.5G", 3ull << 29},
                {"2GiB", 2ull << 30}, {"3MB", 3ull << 20}, {"1024T", 1ull << 50}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(PARSE("--memory", good[i].text), ERR_OK);
        assert_int_equal(v.bytes, good[i].bytes);
    }
    static const char *const bad[] = {"", "G", "-1", "8GG", "8X", "1e30", "nan", "inf", "2000T", "1e15T"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(PARSE("--memory", bad[i]), ERR_USAGE);
    assert_int_equal(PARSE("--cache", "0"), ERR_USAGE);
    assert_non_null(strstr(e.text, "at least 1024K"));
    assert_int_equal(PARSE("--cache", "1M"), ERR_OK);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const struct {
        const char *argv[3];
        int n;
        const char *names;
    } bad[] = {{{"--nonsense"}, 1, "--nonsense"},    {{"--count"}, 1, "--count"},
               {{"--count", "0"}, 2, "--count"},     {{"--count", "101"}, 2, "101"},
               {{"--count", "7x"}, 2, "7x"},         {{"--count", "7.5"}, 2, "7.5"},
               {{"--float", "2.1"}, 2, "--float"},   {{"--float", "nan"}, 2, "nan"},
               {{"--bool=1"}, 1, "--bool"},          {{"--split", "4,,4"}, 2, "--split"},
               {{"--split", "4,"}, 2, "--split"},    {{"--split", "-4"}, 2, "--split"},
               {{"--seed", "1e3"}, 2, "--seed"},     {{"--seed", "99999999999999999999"}, 2, "--seed"},
               {{"one", "two", "three"}, 3, "three"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(bad[i].n, (const char **)bad[i].argv), ERR_USAGE);
        assert_non_null(strstr(e.text, bad[i].names));
    }
}

static void a_list_has_a_limit(void **state) {
    (void)state;
    const char *argv[2 * FLAG_LIST_MAX + 2];
    for (int i = 0; i <= FLAG_LIST_MAX; i++) {
        argv[2 * i] = "--stop";
        argv[2 * i + 1] = "x";
    }
    assert_int_equal(parse(2 * FLAG_LIST_MAX, argv), ERR_OK);
    assert_int_equal(parse(2 * FLAG_LIST_MAX + 2, argv), ERR_USAGE);
}

static int parse_file(const char *text) {
    char path[] = "/tmp/loom-flags-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    memset(&v, 0, sizeof v);
    char *kept;
    int rc = flags_parse_file(path, tables, &kept, &e);
    if (!rc && v.s) assert_string_equal(v.s, "two words");
    free(kept);
    unlink(path);
    return rc;
}

static void a_file_gives_the_same(void **state) {
    (void)state;
    assert_int_equal(parse_file("# a comment\n\ncount = 12   # of something\n  memory=2G\r\nbool\n"), ERR_OK);
    assert_int_equal(v.u, 12);
    assert_int_equal(v.bytes, 2ull << 30);
    assert_true(v.b);
    assert_int_equal(parse_file("bool = false\n"), ERR_OK);
    assert_false(v.b);
    assert_int_equal(parse_file("count = 12\n\nwrong = 1\n"), ERR_USAGE);
    assert_non_null(strstr(e.text, ":3:"));
    assert_int_equal(parse_file("count\n"), ERR_USAGE);
    assert_int_equal(parse_file("bool = perhaps\n"), ERR_USAGE);
}

static void the_language_follows_the_environment(void **state) {
    (void)state;
    unsetenv("LC_ALL");
    unsetenv("LC_MESSAGES");
    setenv("LANG", "zh_CN.UTF-8", 1);
    assert_string_equal(flags_text("yes", "是"), "是");
    setenv("LC_ALL", "C.UTF-8", 1);
    assert_string_equal(flags_text("yes", "是"), "yes");
}

// What flags_fail prints for text, with its exit code in *code.
static void told(int err_code, const char *text, int *code, char out[200]) {
    int saved = dup(STDERR_FILENO), ends[2];
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    err_set(&e, err_code, "%s", text);
    *code = flags_fail(&command, &e);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t n = read(ends[0], out, 199);
    assert_true(n > 0);
    out[n] = 0;
    close(ends[0]);
}

static void an_error_is_one_line_of_text(void **state) {
    (void)state;
    char out[200];
    int code;
    told(ERR_FORMAT, "tensor \033[31ma\nb\x7f\t\xe7\xbb\x87", &code, out);
    assert_int_equal(code, EXIT_FAILED);
    assert_string_equal(out, "loom test: tensor ?[31ma?b??\xe7\xbb\x87\n");
    told(ERR_USAGE, "a\rb", &code, out);
    assert_int_equal(code, EXIT_USAGE);
    assert_string_equal(out, "loom test: a?b (loom test --help)\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read),           cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(what_is_wrong_is_named),       cmocka_unit_test(a_list_has_a_limit),
        cmocka_unit_test(a_file_gives_the_same),        cmocka_unit_test(the_language_follows_the_environment),
        cmocka_unit_test(an_error_is_one_line_of_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
