#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/log.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void holds_code_and_text(void **state) {
    (void)state;
    struct err e;
    assert_int_equal(err_set(&e, ERR_FORMAT, "config.json: %s is %d", "n_heads", 0), ERR_FORMAT);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.text, "config.json: n_heads is 0");
    assert_int_equal(err_prefix(&e, "model %s", "m"), ERR_FORMAT);
    assert_string_equal(e.text, "model m: config.json: n_heads is 0");
    assert_int_equal(err_set(NULL, ERR_FORMAT, "nobody listens"), ERR_FORMAT);
    assert_true(err_prefix(NULL, "nobody") != ERR_OK);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    struct err e;
    char big[2 * ERR_TEXT_MAX];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, ERR_IO, "%s", big);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
    err_prefix(&e, "%s", big);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

static void every_code_has_its_name(void **state) {
    (void)state;
    assert_string_equal(err_name(ERR_OK), "ok");
    assert_string_equal(err_name(ERR_LIMIT), "limit");
    assert_string_equal(err_name(ERR_UNAVAILABLE), "unavailable");
    assert_string_equal(err_name(ERR_UNAVAILABLE - 1), "unknown");
    assert_string_equal(err_name(1), "unknown");
}

// Runs act in a child whose stderr comes back as text. Returns how it ended.
static int child_stderr(void (*act)(void), char *out, size_t out_bytes) {
    int p[2], status;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(p[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        act();
        _exit(0);
    }
    close(p[1]);
    size_t n = 0;
    for (ssize_t k; n < out_bytes - 1 && (k = read(p[0], out + n, out_bytes - 1 - n)) > 0;) n += (size_t)k;
    out[n] = 0;
    close(p[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void broken_promise(void) {
    int two = 2;
    ASSERT(two == 3, "two is %d", two);
}

static void a_bug_says_where_and_dies(void **state) {
    (void)state;
    char text[1024];
    int status = child_stderr(broken_promise, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "test_err.c:"));
    assert_non_null(strstr(text, "two == 3 does not hold. two is 2\n"));
}

static void log_forged_lines(void) {
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    log_set_name("node-2");
    LOG_D("net", "not shown at the level info");
    LOG_W("net", "peer said: %s", "a\nb\rc");
    LOG_I("net", "%s", big);
}

static void a_log_entry_is_one_line(void **state) {
    (void)state;
    char text[8192];
    child_stderr(log_forged_lines, text, sizeof text);
    char *second = strchr(text, '\n');
    assert_non_null(second);
    *second++ = 0;
    assert_non_null(strstr(text, "Z warn node-2 net: peer said: a b c"));
    assert_non_null(strstr(second, "info node-2 net: xxx"));
    assert_ptr_equal(strchr(second, '\n'), second + strlen(second) - 1);
    assert_in_range(strlen(second), 1000, 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_code_and_text),     cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(every_code_has_its_name), cmocka_unit_test(a_bug_says_where_and_dies),
        cmocka_unit_test(a_log_entry_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
