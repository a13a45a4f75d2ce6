// The owner's door: what it obeys, and what it takes from somebody who means ill.
#include "node/local_ctl.h"
#include "os/clock.h"
#include "os/file.h"
#include "os/thread.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000 };

// A node's loop in a thread of its own.
struct node {
    struct loop *loop;
    struct presence presence;
    struct local_ctl *ctl;
    struct thread thread;
    _Atomic bool away;
    _Atomic int n_leave, n_back;
    char dir[512], base[64];
};

static void leave(struct node *n, const char *why) {
    (void)why;
    n->n_leave++;
}

static void back(struct node *n) { n->n_back++; }

static bool away(const struct node *n) { return n->away; }

static void run(void *arg) {
    struct node *n = arg;
    loop_run(n->loop);
}

static void begin(struct node *n) {
    const struct presence_config c = {.leave = leave, .back = back, .away = away, .node = n};
    struct err e;
    assert_int_equal(loop_new(&n->loop, &e), ERR_OK);
    assert_int_equal(presence_init(&n->presence, n->loop, &c, &e), ERR_OK);
    local_ctl_init(&n->ctl, n->loop, n->dir, &n->presence);
    assert_int_equal(thread_start(&n->thread, "loop", run, n, &e), ERR_OK);
}

static void end(struct node *n) {
    loop_stop(n->loop);
    thread_join(&n->thread);
    local_ctl_fini(n->ctl);
    presence_fini(&n->presence);
    loop_free(n->loop);
}

static int setup_in(void **state, const char *below) {
    struct node *n = calloc(1, sizeof *n);
    struct err e;
    snprintf(n->base, sizeof n->base, "/tmp/loom-local-ctl-XXXXXX");
    assert_non_null(mkdtemp(n->base));
    snprintf(n->dir, sizeof n->dir, "%s%s", n->base, below);
    assert_int_equal(file_mkdir_all(n->dir, 0700, &e), ERR_OK);
    begin(n);
    *state = n;
    return 0;
}

static int setup(void **state) { return setup_in(state, ""); }

static int setup_far(void **state) {
    static const char far[] = "/a-name-of-a-folder-that-takes-its-time/and-another-one-that-is-not-shorter-at-all"
                              "/so-that-no-socket-address-can-hold-all-of-it";
    _Static_assert(sizeof far > sizeof((struct sockaddr_un *)0)->sun_path, "it is long enough");
    return setup_in(state, far);
}

static int teardown(void **state) {
    struct node *n = *state;
    end(n);
    file_remove_tree(n->base);
    free(n);
    return 0;
}

static void says(const struct node *n, const char *request, const char *want) {
    char answer[LOCAL_CTL_LINE_BYTES];
    struct err e = {.text = ""};
    int rc = local_ctl_ask(n->dir, request, answer, &e);
    if (rc) fail_msg("%s: %s", request, e.text);
    assert_string_equal(answer, want);
}

static void pauses_and_resumes(void **state) {
    struct node *n = *state;
    says(n, "show", "serving");
    says(n, "pause", "leaving: paused by its owner");
    says(n, "pause", "leaving: paused by its owner");
    n->away = true;
    says(n, "show", "away: paused by its owner");
    says(n, "pause wait", "away: paused by its owner");
    says(n, "resume", "serving");
    says(n, "resume", "serving");
    assert_int_equal(n->n_leave, 1);
    assert_int_equal(n->n_back, 1);
}

struct waiter {
    const struct node *node;
    int rc;
    char answer[LOCAL_CTL_LINE_BYTES];
    struct err e;
};

static void wait_for_pause(void *arg) {
    struct waiter *w = arg;
    w->rc = local_ctl_ask(w->node->dir, "pause wait", w->answer, &w->e);
}

static void await_leave(const struct node *n, int n_leave) {
    for (int ms = 0; ms < PATIENCE_MS && n->n_leave < n_leave; ms++) clock_sleep_ms(1);
    assert_int_equal(n->n_leave, n_leave);
}

static void waits_until_nothing_depends_on_it(void **state) {
    struct node *n = *state;
    struct waiter w = {.node = n};
    struct thread t;
    struct err e;
    assert_int_equal(thread_start(&t, "waiter", wait_for_pause, &w, &e), ERR_OK);
    await_leave(n, 1);
    says(n, "show", "leaving: paused by its owner");
    n->away = true;
    thread_join(&t);
    assert_int_equal(w.rc, ERR_OK);
    assert_string_equal(w.answer, "away: paused by its owner");
    says(n, "resume", "serving");

    n->away = false; // and who is resumed meanwhile waits no longer
    assert_int_equal(thread_start(&t, "waiter", wait_for_pause, &w, &e), ERR_OK);
    await_leave(n, 2);
    says(n, "resume", "serving");
    thread_join(&t);
    assert_int_equal(w.rc, ERR_UNAVAILABLE);
    assert_non_null(strstr(w.e.text, "resumed"));
}

static void only_the_owner_sees_the_socket(void **state) {
    struct node *n = *state;
    char path[600];
    struct stat s;
    snprintf(path, sizeof path, "%s/node.sock", n->dir);
    assert_int_equal(stat(path, &s), 0);
    assert_true(S_ISSOCK(s.st_mode));
    assert_int_equal(s.st_mode & 0777, 0600);
}

static void tells_when_no_node_is_there(void **state) {
    struct node *n = *state;
    char answer[LOCAL_CTL_LINE_BYTES], path[600];
    struct err e;
    end(n);
    assert_int_equal(local_ctl_ask(n->dir, "show", answer, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, n->dir));
    // The leftover of a node that was killed is no obstacle.
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "%s/node.sock", n->dir);
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    assert_int_equal(local_ctl_ask(n->dir, "show", answer, &e), ERR_NOT_FOUND);
    begin(n);
    says(n, "show", "serving");
}

static void serves_without_a_door(void **state) {
    struct node *n = *state;
    end(n);
    snprintf(n->dir, sizeof n->dir, "%s/missing", n->base);
    begin(n); // warns
    assert_null(n->ctl);
}

static int connect_to(const struct node *n) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char path[600];
    snprintf(path, sizeof path, "%s/node.sock", n->dir);
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

// All that comes back until the end.
static void answers(int fd, const void *bytes, size_t n_bytes, const char *want) {
    char out[2 * LOCAL_CTL_LINE_BYTES];
    size_t len = 0;
    ssize_t n = send(fd, bytes, n_bytes, MSG_NOSIGNAL);
    assert_true(n == (ssize_t)n_bytes || errno == EPIPE);
    while (len < sizeof out - 1 && (n = recv(fd, out + len, sizeof out - 1 - len, 0)) > 0) len += (size_t)n;
    out[len] = 0;
    assert_string_equal(out, want);
    close(fd);
}

static void nonsense_changes_nothing(void **state) {
    struct node *n = *state;
    static const char not_a_word[] = "error not one of: pause, pause wait, resume, show\n";
    char noise[1000];
    memset(noise, 'p', sizeof noise);
    answers(connect_to(n), "\n", 1, not_a_word);
    answers(connect_to(n), "paus\n", 5, not_a_word);
    answers(connect_to(n), "pause\0\n", 7, not_a_word);
    answers(connect_to(n), " pause\n", 7, not_a_word);
    answers(connect_to(n), "\xff\xfe\n", 3, not_a_word);
    answers(connect_to(n), noise, 32, "error the line is too long\n");
    answers(connect_to(n), "show\nresume\n", 12, "ok serving\n"); // one line a connection
    int fd = connect_to(n), many[3 * LOCAL_CTL_CLIENTS];
    assert_int_equal(send(fd, "pau", 3, 0), 3); // in pieces
    close(fd);
    fd = connect_to(n);
    assert_int_equal(send(fd, "sh", 2, 0), 2);
    clock_sleep_ms(5);
    answers(fd, "ow\n", 3, "ok serving\n");
    // Those who say nothing take all places for a while; the node goes on, and the places come back.
    for (int i = 0; i < 3 * LOCAL_CTL_CLIENTS; i++) many[i] = connect_to(n);
    for (int i = 0; i < 3 * LOCAL_CTL_CLIENTS; i++) close(many[i]);
    struct err e;
    char answer[LOCAL_CTL_LINE_BYTES];
    int rc = ERR_UNAVAILABLE;
    for (int ms = 0; ms < PATIENCE_MS && rc == ERR_UNAVAILABLE; ms++, clock_sleep_ms(1))
        rc = local_ctl_ask(n->dir, "show", answer, &e);
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(n->n_leave, 0);
}

static void who_says_nothing_is_sent_away(void **state) {
    struct node *n = *state;
    answers(connect_to(n), "", 0, ""); // after LOCAL_CTL_IDLE_MS
}

static void the_end_of_the_node_ends_who_waits(void **state) {
    struct node *n = *state;
    struct waiter w = {.node = n};
    struct thread t;
    struct err e;
    assert_int_equal(thread_start(&t, "waiter", wait_for_pause, &w, &e), ERR_OK);
    await_leave(n, 1);
    end(n);
    thread_join(&t);
    assert_int_equal(w.rc, ERR_UNAVAILABLE);
    begin(n);
}

// A user who gets to the socket, as its folder is open to all, is still not its owner.
static void other_users_are_not_heard(void **state) {
    struct node *n = *state;
    char path[600], b;
    if (geteuid() != 0) skip();
    snprintf(path, sizeof path, "%s/node.sock", n->dir);
    assert_int_equal(chmod(n->dir, 0755), 0);
    assert_int_equal(chmod(path, 0666), 0);
    pid_t pid = fork();
    if (!pid) {
        if (setgid(65534) || setuid(65534)) _exit(1);
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        memcpy(a.sun_path, path, strlen(path));
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a)) _exit(2);
        send(fd, "pause\n", 6, MSG_NOSIGNAL);
        _exit(recv(fd, &b, 1, 0) > 0 ? 3 : 0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    says(n, "show", "serving");
}

static void words_are_exact(void **state) {
    (void)state;
    assert_int_equal(local_ctl_parse("pause", 5), LOCAL_CTL_PAUSE);
    assert_int_equal(local_ctl_parse("pause wait", 10), LOCAL_CTL_PAUSE_WAIT);
    assert_int_equal(local_ctl_parse("resume", 6), LOCAL_CTL_RESUME);
    assert_int_equal(local_ctl_parse("show", 4), LOCAL_CTL_SHOW);
    assert_int_equal(local_ctl_parse("show", 3), LOCAL_CTL_NONE);
    assert_int_equal(local_ctl_parse("shown", 5), LOCAL_CTL_NONE);
    assert_int_equal(local_ctl_parse("", 0), LOCAL_CTL_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_exact),
        cmocka_unit_test_setup_teardown(pauses_and_resumes, setup, teardown),
        cmocka_unit_test_setup_teardown(pauses_and_resumes, setup_far, teardown),
        cmocka_unit_test_setup_teardown(waits_until_nothing_depends_on_it, setup, teardown),
        cmocka_unit_test_setup_teardown(only_the_owner_sees_the_socket, setup, teardown),
        cmocka_unit_test_setup_teardown(only_the_owner_sees_the_socket, setup_far, teardown),
        cmocka_unit_test_setup_teardown(tells_when_no_node_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(serves_without_a_door, setup, teardown),
        cmocka_unit_test_setup_teardown(other_users_are_not_heard, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(who_says_nothing_is_sent_away, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_of_the_node_ends_who_waits, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
