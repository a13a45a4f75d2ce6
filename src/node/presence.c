#include "node/presence.h"

#include "base/log.h"
#include "os/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *reason(const struct presence *p) { return p->paused ? "paused by its owner" : "its owner is busy"; }

static void update(struct presence *p) {
    bool leave = p->paused || p->busy;
    if (leave == p->has_left) return;
    p->has_left = leave;
    LOG_I("node", "%s: %s", leave ? "leaving" : "back", leave ? reason(p) : "its owner does not need this machine");
    if (leave)
        p->config.leave(p->config.node, reason(p));
    else
        p->config.back(p->config.node);
}

static void take_answer(struct presence *p, bool busy) {
    p->n_free = busy ? 0 : p->n_free + 1;
    if (busy)
        p->busy = true;
    else if (p->n_free >= PRESENCE_FREE_ANSWERS)
        p->busy = false;
    update(p);
    loop_timer_set(p->timer, clock_now_us() + p->config.every_ms * 1000ull);
}

// Said once: a command that cannot run is so each time.
static void complain(struct presence *p, const char *why) {
    if (!p->complained) LOG_W("node", "--busy-when: %s: taken as \"not busy\"", why);
    p->complained = true;
}

static void forget_command(struct presence *p) {
    loop_watch_free(p->watch);
    if (p->pidfd >= 0) close(p->pidfd);
    p->watch = NULL;
    p->pidfd = -1;
    p->pid = 0;
}

static void on_exit(void *arg) {
    struct presence *p = arg;
    int status = 0;
    char why[64] = "";
    if (waitpid(p->pid, &status, WNOHANG) == 0) return;
    forget_command(p);
    if (WIFSIGNALED(status)) snprintf(why, sizeof why, "the command was killed by signal %d", WTERMSIG(status));
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127))
        snprintf(why, sizeof why, "the command cannot be run");
    if (why[0]) complain(p, why);
    take_answer(p, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// /bin/sh in a process group of its own, with nothing of ours but stderr.
static int spawn(const char *command, pid_t *pid) {
    char *args[] = {"sh", "-c", (char *)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc) return rc;
    rc = posix_spawnattr_init(&attr);
    if (!rc) {
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        posix_spawnattr_setpgroup(&attr, 0);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawnattr_setsigdefault(&attr, &all); // an ignored SIGPIPE would be inherited
        rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        if (!rc) rc = posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
        if (!rc) rc = posix_spawn(pid, "/bin/sh", &files, &attr, args, environ);
        posix_spawnattr_destroy(&attr);
    }
    posix_spawn_file_actions_destroy(&files);
    if (!rc && setpriority(PRIO_PROCESS, (id_t)*pid, 0)) return 0; // the loop's own is raised; a wish
    return rc;
}

static void kill_command(struct presence *p) {
    kill(-p->pid, SIGKILL); // the shell and what it started
}

static void start_command(struct presence *p) {
    int rc = spawn(p->config.busy_when, &p->pid);
    if (rc) {
        p->pid = 0;
        complain(p, strerror(rc));
        take_answer(p, false);
        return;
    }
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (p->pidfd >= 0) p->watch = loop_watch_new(p->loop, p->pidfd, on_exit, p);
    if (!p->watch) {
        complain(p, "it cannot be waited for");
        kill_command(p);
        waitpid(p->pid, NULL, WNOHANG);
        forget_command(p);
        take_answer(p, false);
        return;
    }
    loop_timer_set(p->timer, clock_now_us() + p->config.limit_ms * 1000ull);
}

static void on_timer(void *arg) {
    struct presence *p = arg;
    if (!p->pid) {
        start_command(p);
        return;
    }
    complain(p, "the command takes too long and is killed");
    kill_command(p); // on_exit follows
}

int presence_init(struct presence *p, struct loop *l, const struct presence_config *c, struct err *e) {
    *p = (struct presence){.config = *c, .loop = l, .pidfd = -1};
    if (!p->config.every_ms) p->config.every_ms = PRESENCE_EVERY_MS;
    if (!p->config.limit_ms) p->config.limit_ms = PRESENCE_LIMIT_MS;
    if (!c->busy_when) return ERR_OK;
    p->timer = loop_timer_new(l, on_timer, p);
    if (!p->timer) return err_set(e, ERR_NOMEM, "presence: no memory");
    loop_timer_set(p->timer, 0);
    return ERR_OK;
}

void presence_fini(struct presence *p) {
    if (p->pid) {
        kill_command(p);
        waitpid(p->pid, NULL, WNOHANG); // one that hangs in the kernel is not waited for
        forget_command(p);
    }
    loop_timer_free(p->timer);
    *p = (struct presence){.pidfd = -1};
}

void presence_pause(struct presence *p) {
    p->paused = true;
    update(p);
}

void presence_resume(struct presence *p) {
    p->paused = false;
    update(p);
}

bool presence_is_away(const struct presence *p) { return p->has_left && p->config.away(p->config.node); }

void presence_describe(const struct presence *p, char out[PRESENCE_TEXT_BYTES]) {
    if (!p->has_left)
        snprintf(out, PRESENCE_TEXT_BYTES, "serving");
    else
        snprintf(out, PRESENCE_TEXT_BYTES, "%s: %s", presence_is_away(p) ? "away" : "leaving", reason(p));
}
