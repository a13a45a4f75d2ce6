// Pausing by the owner, and by a command of his. The command reads its exit codes from a file, a line each run.
#include "node/presence.h"
#include "os/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { EVENTS_MAX = 16, PATIENCE_MS = 20000 };

struct event {
    char what; // 'l': leave, 'b': back
    int line;  // lines of the file that were used up by then
};

struct node {
    struct loop *loop;
    struct presence presence;
    struct event events[EVENTS_MAX];
    int n_events, stop_at; // the loop ends with so many
    bool away;
    char why[64];
    char dir[64], codes[80], used[80], command[512];
    struct loop_timer *end;
};

static int count_lines(const char *path) {
    FILE *f = fopen(path, "r");
    int n = 0;
    for (int c = f ? fgetc(f) : EOF; c != EOF; c = fgetc(f)) n += c == '\n';
    if (f) fclose(f);
    return n;
}

static void add_event(struct node *n, char what) {
    assert_true(n->n_events < EVENTS_MAX);
    n->events[n->n_events++] = (struct event){what, count_lines(n->used)};
    if (n->n_events == n->stop_at) loop_stop(n->loop);
}

static void leave(struct node *n, const char *why) {
    snprintf(n->why, sizeof n->why, "%s", why);
    add_event(n, 'l');
}

static void back(struct node *n) { add_event(n, 'b'); }

static bool away(const struct node *n) { return n->away; }

static void on_end(void *arg) {
    struct node *n = arg;
    loop_stop(n->loop);
}

static int setup(void **state) {
    struct node *n = calloc(1, sizeof *n);
    struct err e;
    snprintf(n->dir, sizeof n->dir, "/tmp/loom-presence-XXXXXX");
    assert_non_null(mkdtemp(n->dir));
    snprintf(n->codes, sizeof n->codes, "%s/codes", n->dir);
    snprintf(n->used, sizeof n->used, "%s/used", n->dir);
    // The last code is repeated.
    snprintf(n->command, sizeof n->command,
             "cd %s; echo x >>used; c=$(sed -n \"$(wc -l <used)p\" codes); exit ${c:-$(tail -n 1 codes)}", n->dir);
    assert_int_equal(loop_new(&n->loop, &e), ERR_OK);
    n->end = loop_timer_new(n->loop, on_end, n);
    loop_timer_set(n->end, clock_now_us() + PATIENCE_MS * 1000ull);
    *state = n;
    return 0;
}

static int teardown(void **state) {
    struct node *n = *state;
    char command[128];
    presence_fini(&n->presence);
    presence_fini(&n->presence); // twice is fine
    loop_timer_free(n->end);
    loop_free(n->loop);
    snprintf(command, sizeof command, "rm -rf %s", n->dir);
    assert_int_equal(system(command), 0);
    free(n);
    return 0;
}

static void begin(struct node *n, const char *command, uint32_t limit_ms) {
    const struct presence_config c = {.busy_when = command,
                                      .every_ms = 5,
                                      .limit_ms = limit_ms,
                                      .leave = leave,
                                      .back = back,
                                      .away = away,
                                      .node = n};
    struct err e;
    assert_int_equal(presence_init(&n->presence, n->loop, &c, &e), ERR_OK);
}

static void write_codes(const struct node *n, const char *codes) {
    FILE *f = fopen(n->codes, "w");
    assert_non_null(f);
    for (; *codes; codes++) fprintf(f, "%c\n", *codes);
    fclose(f);
}

static void run_until(struct node *n, int n_events) {
    n->stop_at = n_events;
    if (n->n_events < n_events) loop_run(n->loop);
    assert_int_equal(n->n_events, n_events);
}

static void run_for(struct node *n, uint64_t ms) {
    n->stop_at = 0;
    loop_timer_set(n->end, clock_now_us() + ms * 1000);
    loop_run(n->loop);
    loop_timer_set(n->end, clock_now_us() + PATIENCE_MS * 1000ull);
}

static void says(const struct node *n, const char *text) {
    char out[PRESENCE_TEXT_BYTES];
    presence_describe(&n->presence, out);
    assert_string_equal(out, text);
}

static void one_busy_answer_leaves_and_two_free_ones_return(void **state) {
    struct node *n = *state;
    write_codes(n, "11010110117");
    begin(n, n->command, 0);
    says(n, "serving");
    run_until(n, 4);
    static const struct event want[] = {{'l', 3}, {'b', 7}, {'l', 8}, {'b', 10}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(n->events[i].what, want[i].what);
        assert_int_equal(n->events[i].line, want[i].line);
    }
    assert_string_equal(n->why, "its owner is busy");
    says(n, "serving");
}

static void the_owner_and_his_command_do_not_contradict(void **state) {
    struct node *n = *state;
    write_codes(n, "0");
    presence_pause(&(struct presence){.config = {.leave = leave, .node = n}});
    assert_int_equal(n->n_events, 1); // also without a command
    n->n_events = 0;
    begin(n, n->command, 0);
    presence_pause(&n->presence);
    presence_pause(&n->presence);
    assert_int_equal(n->n_events, 1);
    assert_string_equal(n->why, "paused by its owner");
    says(n, "leaving: paused by its owner");
    assert_false(presence_is_away(&n->presence));
    n->away = true;
    assert_true(presence_is_away(&n->presence));
    says(n, "away: paused by its owner");
    run_for(n, 100); // the command says busy
    assert_true(n->presence.busy);
    presence_resume(&n->presence);
    assert_int_equal(n->n_events, 1); // still away, for the other reason
    says(n, "away: its owner is busy");
    write_codes(n, "1");
    run_until(n, 2);
    assert_int_equal(n->events[1].what, 'b');
    says(n, "serving");
    assert_false(presence_is_away(&n->presence));
}

static void a_command_that_cannot_run_is_not_busy(void **state) {
    struct node *n = *state;
    static const char *const commands[] = {"/nonexistent/program", "exit 126", "kill -9 $$", ")"};
    for (int i = 0; i < 4; i++) {
        begin(n, commands[i], 0);
        n->presence.busy = n->presence.has_left = true; // as if it had been busy
        run_until(n, i + 1);
        assert_int_equal(n->events[i].what, 'b');
        assert_true(n->presence.complained || i == 3);
        presence_fini(&n->presence);
    }
}

static bool is_gone(int pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return true;
    if (!fgets(line, sizeof line, f)) line[0] = 0;
    fclose(f);
    const char *at = strrchr(line, ')');
    return !at || at[2] == 'Z' || at[2] == 'X';
}

static int read_pid(const struct node *n) {
    char path[96], line[32] = "";
    snprintf(path, sizeof path, "%s/pid", n->dir);
    FILE *f = fopen(path, "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    return (int)strtol(line, NULL, 10);
}

static void await_gone(int pid) {
    assert_true(pid > 0);
    for (int ms = 0; ms < PATIENCE_MS && !is_gone(pid); ms++) clock_sleep_ms(1);
    assert_true(is_gone(pid));
}

static void a_command_that_hangs_is_killed_with_all_it_started(void **state) {
    struct node *n = *state;
    char command[256];
    snprintf(command, sizeof command, "cd %s; sleep 1000 & echo $! >pid; wait; exit 0", n->dir);
    begin(n, command, 200);
    n->presence.busy = n->presence.has_left = true;
    run_until(n, 1);
    assert_int_equal(n->events[0].what, 'b');
    await_gone(read_pid(n));
    assert_true(n->presence.complained);
}

static void the_end_kills_a_command_that_runs(void **state) {
    struct node *n = *state;
    char command[256];
    snprintf(command, sizeof command, "cd %s; sleep 1000 & echo $! >pid; wait", n->dir);
    begin(n, command, 0);
    for (int i = 0; i < 200 && !read_pid(n); i++) run_for(n, 20);
    assert_true(n->presence.pid > 0);
    presence_fini(&n->presence);
    await_gone(read_pid(n));
    assert_int_equal(n->n_events, 0);
}

static void the_command_inherits_nothing(void **state) {
    struct node *n = *state;
    char command[384];
    int fd = dup(STDERR_FILENO), pipes[2];
    assert_int_equal(pipe(pipes), 0);
    signal(SIGPIPE, SIG_IGN);
    // Busy only if all is as it should be: no file but the standard ones (and what ls opens), no signal ignored (but
    // two that the C library keeps for itself) or blocked, and stdin is at its end.
    snprintf(command, sizeof command,
             "set -- $(ls /proc/self/fd); [ $# -le 4 ] && "
             "grep -qx 'SigBlk:.0*' /proc/self/status && grep -qx 'SigIgn:.*0000000' "
             "/proc/self/status && [ \"$(cat)\" = '' ]");
    begin(n, command, 0);
    run_until(n, 1);
    assert_int_equal(n->events[0].what, 'l');
    close(fd);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_busy_answer_leaves_and_two_free_ones_return, setup, teardown),
        cmocka_unit_test_setup_teardown(the_owner_and_his_command_do_not_contradict, setup, teardown),
        cmocka_unit_test_setup_teardown(a_command_that_cannot_run_is_not_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(a_command_that_hangs_is_killed_with_all_it_started, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_kills_a_command_that_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(the_command_inherits_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
