#include "text/helper.h"
#include "os/clock.h"
#include "text/template_helper.inc"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

// By its full path: a python3 earlier on PATH may be one without jinja2. -I: neither the environment nor the user's
// folder decides which modules are loaded.
static const char python[] = "/usr/bin/python3";
enum { MEMORY_MAX_BYTES = 512 << 20, FILES_MAX = 32, HELLO_MAX_BYTES = 4096, START_MAX_MS = 20000 };

static void limit(int which, rlim_t value) {
    struct rlimit r = {value, value};
    (void)setrlimit((__rlimit_resource_t)which, &r);
}

// The child between vfork and exec: its memory is the parent's, so it makes system calls and nothing else.
__attribute__((noreturn)) static void become_helper(int fd, int null_fd, char *const argv[], char *const envp[]) {
    for (int s = 1; s < NSIG; s++) (void)signal(s, SIG_DFL);
    (void)setsid(); // Ctrl-C at the terminal is for the parent, who may still need us
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    // An empty network namespace, where the system lets us have one.
    if (unshare(CLONE_NEWNET)) (void)unshare(CLONE_NEWUSER | CLONE_NEWNET);
    if (dup2(fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0) _exit(127);
    (void)close_range(3, ~0u, 0);
    limit(RLIMIT_AS, MEMORY_MAX_BYTES);
    limit(RLIMIT_NOFILE, FILES_MAX);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NPROC, 0);
    limit(RLIMIT_CORE, 0);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    execve(python, argv, envp);
    _exit(127);
}

void helper_stop(struct helper *h) {
    if (!h->pid) return;
    close(h->fd);
    (void)kill(h->pid, SIGKILL);
    while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    *h = (struct helper){0};
}

static int wait_for(const struct helper *h, short events, uint64_t until_ms) {
    for (;;) {
        uint64_t now = clock_now_ms();
        if (now >= until_ms) return ERR_LIMIT;
        struct pollfd p = {h->fd, events, 0};
        int n = poll(&p, 1, (int)(until_ms - now));
        if (n > 0) return ERR_OK;
        if (n < 0 && errno != EINTR) return ERR_IO;
    }
}

static int send_all(const struct helper *h, const void *data, size_t n, uint64_t until_ms) {
    const uint8_t *p = data;
    while (n > 0) {
        ssize_t sent = send(h->fd, p, n, MSG_NOSIGNAL);
        if (sent > 0) {
            p += sent;
            n -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return ERR_IO;
        int rc = wait_for(h, POLLOUT, until_ms);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int receive_all(const struct helper *h, void *data, size_t n, uint64_t until_ms) {
    uint8_t *p = data;
    while (n > 0) {
        ssize_t got = recv(h->fd, p, n, 0);
        if (got > 0) {
            p += got;
            n -= (size_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR) continue;
        if (got == 0 || errno != EAGAIN) return ERR_IO;
        int rc = wait_for(h, POLLIN, until_ms);
        if (rc) return rc;
    }
    return ERR_OK;
}

static int receive_answer(const struct helper *h, size_t max_bytes, uint64_t until_ms, uint8_t **answer, size_t *n) {
    uint32_t len = 0;
    int rc = receive_all(h, &len, sizeof len, until_ms);
    if (!rc && (len < 1 || len > max_bytes)) rc = ERR_FORMAT;
    if (rc) return rc;
    uint8_t *got = malloc((size_t)len + 1);
    if (!got) return ERR_NOMEM;
    rc = receive_all(h, got, len, until_ms);
    if (rc) {
        free(got);
        return rc;
    }
    got[len] = 0;
    *answer = got;
    *n = len;
    return ERR_OK;
}

// The first word is the helper's: it has found jinja2, or why it has not.
static int greet(struct helper *h, struct err *e) {
    uint8_t *answer = NULL;
    size_t n = 0;
    int rc = receive_answer(h, HELLO_MAX_BYTES, clock_now_ms() + START_MAX_MS, &answer, &n);
    if (rc)
        rc = err_set(e, ERR_UNAVAILABLE, "chat template helper: %s does not start", python);
    else if (answer[0] != HELPER_OK)
        rc = err_set(e, ERR_UNAVAILABLE, "chat template helper: python3-jinja2 must be installed (%s)", answer + 1);
    free(answer);
    if (rc) helper_stop(h);
    return rc;
}

// vfork, since fork would copy the page tables of all weights and KV, and stall those who compute.
static pid_t spawn(int fd, int null_fd, char *const argv[], char *const envp[]) {
    pid_t pid = vfork();                                  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
    if (pid == 0) become_helper(fd, null_fd, argv, envp); // NOLINT(clang-analyzer-unix.Vfork): system calls only
    return pid;
}

int helper_start(struct helper *h, struct err *e) {
    char *argv[] = {"python3", "-I", "-B", "-c", (char *)template_helper, NULL};
    // The time zone is what strftime_now prints.
    const char *tz = getenv("TZ");
    char zone[256] = "TZ=";
    if (tz && strlen(tz) < sizeof zone - 3) strcpy(zone + 3, tz);
    char *envp[] = {"LANG=C.UTF-8", "PATH=/usr/bin:/bin", zone[3] ? zone : NULL, NULL};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return err_set(e, ERR_UNAVAILABLE, "chat template helper: no socket: %s", strerror(errno));
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = null_fd < 0 ? -1 : spawn(pair[1], null_fd, argv, envp);
    int why = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(pair[1]);
    if (null_fd >= 0) close(null_fd);
    if (pid < 0) {
        close(pair[0]);
        return err_set(e, ERR_UNAVAILABLE, "chat template helper: cannot start %s: %s", python, strerror(why));
    }
    (void)fcntl(pair[0], F_SETFL, O_NONBLOCK);
    *h = (struct helper){pid, pair[0]};
    return greet(h, e);
}

static int exchange(const struct helper *h, const uint32_t head[2], const void *header, const void *body,
                    size_t body_bytes, size_t max_bytes, uint64_t until_ms, uint8_t **answer, size_t *n) {
    int rc = send_all(h, head, 2 * sizeof *head, until_ms);
    if (!rc) rc = send_all(h, header, head[1], until_ms);
    if (!rc) rc = send_all(h, body, body_bytes, until_ms);
    return rc ? rc : receive_answer(h, max_bytes, until_ms, answer, n);
}

int helper_call(struct helper *h, const void *header, size_t header_bytes, const void *body, size_t body_bytes,
                size_t max_bytes, uint32_t deadline_ms, uint8_t **answer, size_t *n, struct err *e) {
    ASSERT(h->pid > 0 && header_bytes + body_bytes < INT32_MAX, "%zu + %zu bytes", header_bytes, body_bytes);
    uint32_t head[2] = {(uint32_t)(sizeof(uint32_t) + header_bytes + body_bytes), (uint32_t)header_bytes};
    uint64_t until = clock_now_ms() + deadline_ms;
    int rc = exchange(h, head, header, body, body_bytes, max_bytes, until, answer, n);
    if (!rc) return ERR_OK;
    helper_stop(h);
    switch (rc) {
    case ERR_LIMIT:
        return err_set(e, ERR_USAGE, "chat template: took longer than %u ms and was stopped", deadline_ms);
    case ERR_IO:
        return err_set(e, rc, "chat template: its helper process died");
    case ERR_FORMAT:
        return err_set(e, rc, "chat template: the helper's answer is longer than %zu bytes", max_bytes);
    default:
        return err_set(e, rc, "no memory for a rendered prompt");
    }
}
