#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "os/clock.h"
#include "os/thread.h"
#include <fenv.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct seen {
    char name[THREAD_NAME_MAX];
    bool blocks_signals;
};

static void look(void *arg) {
    struct seen *s = arg;
    sigset_t mask;
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    s->blocks_signals = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
}

static void has_name_and_blocks_signals(void **state) {
    (void)state;
    struct seen s = {0};
    struct thread t;
    struct err e;
    assert_int_equal(thread_start(&t, "a-name-longer-than-fifteen", look, &s, &e), ERR_OK);
    thread_join(&t);
    assert_string_equal(s.name, "a-name-longer-t");
    assert_true(s.blocks_signals);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGTERM), 0);
}

// Runs break_mode and then thread_fp_init in a child; true if the child was aborted by the assertion.
static bool dies_after(void (*break_mode)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        break_mode();
        thread_fp_init();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void mode_stays(void) { feraiseexcept(FE_INEXACT | FE_DIVBYZERO); }
static void mode_rounds_up(void) { fesetround(FE_UPWARD); }
#ifdef __SSE__
static void mode_saw_denormal(void) { __builtin_ia32_ldmxcsr(0x1F80 | 0x0002); } // a status bit outside FE_ALL_EXCEPT
static void mode_flushes(void) { __builtin_ia32_ldmxcsr(0x1F80 | 0x8040); } // FTZ and DAZ, as fast-math start-up code
#endif

static void wrong_floating_point_mode_is_a_bug(void **state) {
    (void)state;
    assert_false(dies_after(mode_stays));
#ifdef __SSE__
    assert_false(dies_after(mode_saw_denormal));
#endif
    assert_true(dies_after(mode_rounds_up));
#ifdef __SSE__
    assert_true(dies_after(mode_flushes));
#endif
}

static void clock_goes_forward(void **state) {
    (void)state;
    uint64_t a = clock_now_us();
    clock_sleep_ms(5);
    uint64_t b = clock_now_us();
    assert_true(b - a >= 5000);
    uint64_t ns = clock_now_ns(), ms = clock_now_ms();
    assert_true(ms >= ns / 1000000 && ns / 1000 >= b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(has_name_and_blocks_signals),
                                       cmocka_unit_test(wrong_floating_point_mode_is_a_bug),
                                       cmocka_unit_test(clock_goes_forward)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
