// The peer's side of a killed process. This process keeps a duplicate of the killed one's socket, so that the end of a
// connection can come from nobody but the guardian: no clock decides.
#include "os/clock.h"
#include "os/guard.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, MEMORY_MB = 512, REPEATS = 5 };

// A child, and what connects it with this process.
struct guarded {
    pid_t pid, guardian;
    int peer, own;   // a connection: our end; the child's, which we hold as well
    int peer2, own2; // another one
    int tell;        // a byte makes the child go on
    int heard;       // a byte says that it did; at its end the child and all it started are gone
};

static bool ends(int fd) { // whether the connection has ended, now
    char b;
    return recv(fd, &b, 1, MSG_DONTWAIT) == 0;
}

static bool comes_to_end(int fd) {
    for (int ms = 0; ms < PATIENCE_MS; ms++, clock_sleep_ms(1))
        if (ends(fd)) return true;
    return false;
}

static int read_number(const char *path, const char *key) {
    char line[256];
    int value = -1;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) value = (int)strtol(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return value;
}

static bool has_name(pid_t pid, const char *name) {
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *f = fopen(path, "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    line[strcspn(line, "\n")] = 0;
    return !strcmp(line, name);
}

// The child of parent that calls itself loom-guard; 0: none.
static pid_t find_guardian(pid_t parent) {
    pid_t found = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e = readdir(d); e && !found; e = readdir(d)) {
        char path[280];
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/status", pid);
        if (read_number(path, "PPid:") == parent && has_name(pid, "loom-guard")) found = pid;
    }
    closedir(d);
    return found;
}

static int count_entries(pid_t pid, const char *what) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
    DIR *d = opendir(path);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

// Both its threads are there (a sanitizer adds its own), and it holds so many sockets besides the three standard
// streams and its own.
static void await_guardian(struct guarded *g, int n_sockets) {
    for (int ms = 0; ms < PATIENCE_MS; ms++, clock_sleep_ms(1)) {
        if (!g->guardian) g->guardian = find_guardian(g->pid);
        if (g->guardian && count_entries(g->guardian, "task") >= 2 && count_entries(g->guardian, "fd") == 4 + n_sockets)
            return;
    }
    fail_msg("the guardian %d has %d files and %d threads", g->guardian, count_entries(g->guardian, "fd"),
             count_entries(g->guardian, "task"));
}

static void await_end_of(pid_t pid) {
    char path[64], line[256], state = 'R';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    for (int ms = 0; ms < PATIENCE_MS; ms++, clock_sleep_ms(1)) {
        FILE *f = fopen(path, "r");
        if (!f) return;
        const char *at = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        if (at) state = at[2];
        fclose(f);
        if (state == 'Z' || state == 'X') return;
    }
    fail_msg("process %d is still there", pid);
}

static void go_on(struct guarded *g) {
    char b = 'x';
    assert_int_equal(write(g->tell, &b, 1), 1);
    assert_int_equal(read(g->heard, &b, 1), 1);
}

struct child {
    int own, own2, told, say;
    size_t memory_bytes;
    bool huge;
    bool without;
};

static void child_waits(const struct child *c) {
    char b = 'x';
    if (write(c->say, &b, 1) != 1 || read(c->told, &b, 1) != 1) _exit(1);
}

typedef void child_fn(const struct child *c);

static struct guarded start(child_fn *fn, struct child c) {
    int a[2], b[2], tell[2], say[2];
    struct guarded g = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    assert_int_equal(pipe(tell), 0);
    assert_int_equal(pipe(say), 0);
    g.pid = fork();
    if (!g.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0);
        close(a[0]);
        close(b[0]);
        close(tell[1]);
        close(say[0]);
        c.own = a[1];
        c.own2 = b[1];
        c.told = tell[0];
        c.say = say[1];
        fn(&c);
        _exit(0);
    }
    setpgid(g.pid, g.pid);
    close(tell[0]);
    close(say[1]);
    g.peer = a[0];
    g.own = a[1];
    g.peer2 = b[0];
    g.own2 = b[1];
    g.tell = tell[1];
    g.heard = say[0];
    char x;
    assert_int_equal(read(g.heard, &x, 1), 1);
    return g;
}

static void finish(struct guarded *g) {
    char b;
    kill(g->pid, SIGKILL);
    waitpid(g->pid, NULL, 0);
    assert_int_equal(read(g->heard, &b, 1), 0);
    close(g->peer);
    close(g->own);
    close(g->peer2);
    close(g->own2);
    close(g->tell);
    close(g->heard);
}

static void guard_or_exit(void) {
    struct err e;
    if (!guard_start(&e)) return;
    fprintf(stderr, "%s\n", e.text);
    _exit(1);
}

static void child_guards_one(const struct child *c) {
    guard_or_exit();
    guard_fd_add(c->own);
    child_waits(c);
    guard_fd_add(c->own2);
    child_waits(c);
    guard_fd_remove(c->own2);
    child_waits(c);
}

static void a_killed_process_ends_its_connections(void **state) {
    (void)state;
    struct guarded g = start(child_guards_one, (struct child){0});
    await_guardian(&g, 1);
    go_on(&g);
    await_guardian(&g, 2);
    go_on(&g);
    await_guardian(&g, 1);
    assert_false(ends(g.peer));
    kill(g.pid, SIGKILL);
    assert_true(comes_to_end(g.peer));
    await_end_of(g.guardian);
    assert_false(ends(g.peer2)); // it was taken back
    finish(&g);
}

static void signals_to_the_guardian_and_the_group_change_nothing(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1};
    struct guarded g = start(child_guards_one, (struct child){0});
    await_guardian(&g, 1);
    assert_int_not_equal(getpgid(g.guardian), g.pid);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) assert_int_equal(kill(g.guardian, signals[i]), 0);
    go_on(&g);
    await_guardian(&g, 2);
    assert_int_equal(kill(-g.pid, SIGKILL), 0);
    assert_true(comes_to_end(g.peer));
    assert_true(comes_to_end(g.peer2));
    await_end_of(g.guardian);
    finish(&g);
}

static void child_ends_by_itself(const struct child *c) {
    guard_or_exit();
    guard_fd_add(c->own);
    child_waits(c);
    abort();
}

static void a_crash_is_a_death_too(void **state) {
    (void)state;
    struct guarded g = start(child_ends_by_itself, (struct child){0});
    await_guardian(&g, 1);
    assert_int_equal(write(g.tell, "x", 1), 1);
    assert_true(comes_to_end(g.peer));
    finish(&g);
}

static void child_stops(const struct child *c) {
    guard_or_exit();
    guard_fd_add(c->own);
    child_waits(c);
    guard_stop();
    guard_fd_add(c->own2); // nothing
    guard_stop();
    child_waits(c);
    guard_or_exit(); // a new one
    guard_fd_add(c->own2);
    child_waits(c);
}

static void a_guardian_that_is_stopped_ends_nothing(void **state) {
    (void)state;
    struct guarded g = start(child_stops, (struct child){0});
    await_guardian(&g, 1);
    go_on(&g);
    assert_int_equal(find_guardian(g.pid), 0);
    assert_false(ends(g.peer));
    g.guardian = 0;
    go_on(&g);
    await_guardian(&g, 1);
    kill(g.pid, SIGKILL);
    assert_true(comes_to_end(g.peer2));
    await_end_of(g.guardian);
    assert_false(ends(g.peer));
    finish(&g);
}

static void child_lives_on(const struct child *c) {
    guard_or_exit();
    guard_fd_add(c->own);
    child_waits(c);
    for (int i = 0; i < 100; i++) {
        guard_fd_add(c->own2);
        guard_fd_remove(c->own);
    }
    guard_stop();
    child_waits(c);
}

static void a_guardian_that_is_killed_takes_nothing_along(void **state) {
    (void)state;
    struct guarded g = start(child_lives_on, (struct child){0});
    await_guardian(&g, 1);
    kill(g.guardian, SIGKILL);
    await_end_of(g.guardian);
    assert_false(ends(g.peer));
    go_on(&g); // it lives
    assert_false(ends(g.peer));
    finish(&g);
}

static void child_adds_nonsense(const struct child *c) {
    int high = GUARD_FDS + 10;
    guard_fd_add(c->own); // without a guardian
    guard_fd_remove(c->own);
    guard_or_exit();
    guard_fd_add(-1);
    guard_fd_add(999); // not open
    if (dup2(c->own2, high) == high) guard_fd_add(high);
    guard_fd_remove(high);
    for (int i = 0; i < 1000; i++) guard_fd_add(c->own); // the same again takes no more room
    child_waits(c);
}

static void what_cannot_be_guarded_does_no_harm(void **state) {
    (void)state;
    struct guarded g = start(child_adds_nonsense, (struct child){0});
    await_guardian(&g, 1);
    kill(g.pid, SIGKILL);
    assert_true(comes_to_end(g.peer));
    await_end_of(g.guardian);
    assert_false(ends(g.peer2));
    finish(&g);
}

// ---- What it is for, in figures

static void child_is_large(const struct child *c) {
    if (!c->without) guard_or_exit();
    guard_fd_add(c->own);
    char *m = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) _exit(1);
    madvise(m, c->memory_bytes, c->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(m, 1, c->memory_bytes);
    child_waits(c);
}

static double kill_and_measure_ms(struct child c) {
    struct guarded g = start(child_is_large, c);
    char b;
    if (!c.without) await_guardian(&g, 1);
    close(g.own); // here the end may come from the kernel too
    g.own = -1;
    uint64_t from_us = clock_now_us();
    kill(g.pid, SIGKILL);
    assert_int_equal(read(g.peer, &b, 1), 0);
    uint64_t until_us = clock_now_us();
    finish(&g);
    return (double)(until_us - from_us) / 1e3;
}

static void how_long_it_takes(void **state) {
    (void)state;
    for (int huge = 0; huge < 2; huge++)
        for (int without = 0; without < 2; without++) {
            struct child c = {.memory_bytes = (size_t)MEMORY_MB << 20, .huge = huge, .without = without};
            double least_ms = 1e9;
            for (int i = 0; i < REPEATS; i++) {
                double ms = kill_and_measure_ms(c);
                if (ms < least_ms) least_ms = ms;
            }
            printf("%d MB of %s pages, %s guardian: the peer knows after %.2f ms\n", MEMORY_MB,
                   huge ? "large" : "small", without ? "without" : "with", least_ms);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_ends_its_connections),
        cmocka_unit_test(signals_to_the_guardian_and_the_group_change_nothing),
        cmocka_unit_test(a_crash_is_a_death_too),
        cmocka_unit_test(a_guardian_that_is_stopped_ends_nothing),
        cmocka_unit_test(a_guardian_that_is_killed_takes_nothing_along),
        cmocka_unit_test(what_cannot_be_guarded_does_no_harm),
        cmocka_unit_test(how_long_it_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
