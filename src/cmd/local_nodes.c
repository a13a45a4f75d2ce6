#include "cmd/local_nodes.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "net/token.h"
#include "os/clock.h"
#include "os/file.h"

enum { RESTART_US = 1000000, LEAVE_MS = 3000, MAX_ARGS = 24, TOKEN_TTL_S = 600, TOKEN_USES = 1000 };

struct one {
    pid_t pid; // 0: not running
    uint64_t start_again_us;
    char state_dir[LIMIT_PATH];
    char name[32];
};

struct local_nodes {
    struct local_nodes_config config;
    char token[TOKEN_TEXT_MAX], threads[16], memory[32];
    char token_file[LIMIT_PATH], join[LIMIT_PATH + 1]; // the token, for this user's eyes only; "@" and its path
    uint64_t token_us;                                 // when it was made
    struct one node[LIMIT_NODES];
};

static void revoke_token(struct local_nodes *l) {
    struct err e;
    if (l->token[0] && token_revoke(l->config.state_dir, l->token, &e)) LOG_D("serve", "%s", e.text);
    l->token[0] = 0;
    unlink(l->token_file);
}

// A node needs a token when it has no certificate yet, or lost it. One token serves all of them, for a short time, and
// a new one takes its place when a node starts after half of that.
static int renew_token(struct local_nodes *l, struct err *e) {
    char address[64], fresh[TOKEN_TEXT_MAX];
    uint64_t now_us = clock_now_us();
    if (l->token[0] && now_us - l->token_us < TOKEN_TTL_S / 2 * 1000000ull) return ERR_OK;
    snprintf(address, sizeof address, "127.0.0.1:%u", l->config.head_port);
    struct token_wish w = {.address = address, .uses = TOKEN_USES, .ttl_s = TOKEN_TTL_S};
    int rc = token_create(l->config.state_dir, &w, fresh, sizeof fresh, e);
    if (rc) return rc;
    revoke_token(l);
    memcpy(l->token, fresh, sizeof fresh);
    l->token_us = now_us;
    return file_write(l->token_file, fresh, strlen(fresh), 0600, e);
}

static int start_one(struct local_nodes *l, struct one *n, struct err *e) {
    const char *args[MAX_ARGS] = {"loom",    "node",       "--join",   l->join,       "--once",   "--name", n->name,
                                  "--state", n->state_dir, "--listen", "127.0.0.1:0", "--memory", l->memory};
    int k = 13;
    if (l->config.threads) {
        args[k++] = "--threads";
        args[k++] = l->threads;
    }
    if (l->config.isa) {
        args[k++] = "--isa";
        args[k++] = l->config.isa;
    }
    if (l->config.verbose) args[k++] = "--verbose";
    if (l->config.quiet) args[k++] = "--quiet";
    int rc = renew_token(l, e);
    if (rc) return rc;
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) return err_set(e, ERR_IO, "cannot start %s: no more processes", n->name);
    if (pid) {
        n->pid = pid;
        return ERR_OK;
    }
    // A node must not outlive the head, however that ends; nor hear the terminal's Ctrl-C before the head does.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    if (getppid() != parent) _exit(0);
    execv("/proc/self/exe", (char *const *)args);
    _exit(127);
}

int local_nodes_start(const struct local_nodes_config *c, struct local_nodes **out, struct err *e) {
    ASSERT(c->n <= LIMIT_NODES);
    struct local_nodes *l = calloc(1, sizeof *l);
    if (!l) return err_set(e, ERR_NOMEM, "no memory for the local nodes");
    l->config = *c;
    snprintf(l->threads, sizeof l->threads, "%u", c->threads);
    snprintf(l->memory, sizeof l->memory, "%llu", (unsigned long long)c->memory_bytes);
    int k = snprintf(l->token_file, sizeof l->token_file, "%s/local/token-%d", c->state_dir, (int)getpid());
    int rc =
        k < 0 || (size_t)k >= sizeof l->token_file ? err_set(e, ERR_LIMIT, "--state: the path is too long") : ERR_OK;
    snprintf(l->join, sizeof l->join, "@%s", l->token_file);
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        struct one *n = &l->node[i];
        snprintf(n->name, sizeof n->name, "node-%u", i);
        k = snprintf(n->state_dir, sizeof n->state_dir, "%s/local/node-%u", c->state_dir, i);
        if (k < 0 || (size_t)k >= sizeof n->state_dir) rc = err_set(e, ERR_LIMIT, "--state: the path is too long");
        if (!rc) rc = file_mkdir_all(n->state_dir, 0700, e);
        if (!rc) rc = start_one(l, n, e);
    }
    if (rc) {
        local_nodes_stop(l);
        return rc;
    }
    *out = l;
    return ERR_OK;
}

void local_nodes_supervise(struct local_nodes *l) {
    uint64_t now_us = clock_now_us();
    for (uint32_t i = 0; i < l->config.n; i++) {
        struct one *n = &l->node[i];
        int status;
        if (n->pid && waitpid(n->pid, &status, WNOHANG) == n->pid) {
            LOG_W("serve", "%s ended (%s %d); it starts again in a second", n->name,
                  WIFSIGNALED(status) ? "signal" : "exit code",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            n->pid = 0;
            n->start_again_us = now_us + RESTART_US;
        }
        struct err e;
        if (!n->pid && now_us >= n->start_again_us && start_one(l, n, &e)) {
            LOG_E("serve", "%s", e.text);
            n->start_again_us = now_us + RESTART_US;
        }
    }
}

pid_t local_nodes_pid(const struct local_nodes *l, uint32_t i) { return i < l->config.n ? l->node[i].pid : 0; }

void local_nodes_stop(struct local_nodes *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->config.n; i++)
        if (l->node[i].pid) kill(l->node[i].pid, SIGTERM);
    uint64_t until_ms = clock_now_ms() + LEAVE_MS;
    for (uint32_t i = 0; i < l->config.n; i++) {
        struct one *n = &l->node[i];
        while (n->pid && waitpid(n->pid, NULL, WNOHANG) == 0) {
            if (clock_now_ms() < until_ms) {
                clock_sleep_ms(10);
                continue;
            }
            kill(n->pid, SIGKILL);
            waitpid(n->pid, NULL, 0);
            break;
        }
    }
    revoke_token(l);
    free(l);
}
