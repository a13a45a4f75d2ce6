#include "node/node_int.h"

#include "base/log.h"
#include "compute/selftest.h"
#include "net/lock.h"
#include "net/token.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/random.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t default_cache_bytes = 64ull << 30;

void node_stop(struct node *n, int rc, const char *why) {
    if (n->stopping) return;
    n->stopping = true;
    n->rc = rc ? err_set(&n->e, rc, "%s", why) : ERR_OK;
    loop_stop(n->loop);
}

static void on_stop(void *arg) {
    struct node *n = arg;
    node_stop(n, ERR_OK, "");
}

// The last frames leave, then the process ends.
static void say_bye(struct node *n) {
    session_bye(n);
    loop_timer_set(n->stop_timer, clock_now_us() + NODE_BYE_MS * 1000);
}

// Its time to hand over is up, or it has handed over.
static void on_drained(void *arg) { say_bye(arg); }

static void on_signal(void *arg) {
    struct node *n = arg;
    bool again = n->ending;
    n->ending = true;
    if (again || !n->joined || !n->config->drain_ms || assign_are_none(n)) {
        LOG_I("node", "told to stop");
        say_bye(n);
        return;
    }
    LOG_I("node", "told to stop; others take over what this node holds");
    node_leave(n, "it was told to stop");
    if (n->may_leave)
        say_bye(n);
    else
        loop_timer_set(n->drain_timer, clock_now_us() + n->config->drain_ms * 1000ull);
}

void node_leave(struct node *n, const char *why) {
    if (n->away) return;
    n->away = true;
    n->may_leave = false;
    control_text_clean(why, n->away_why, sizeof n->away_why);
    session_send_leave(n);
}

void node_return(struct node *n) {
    if (!n->away || n->ending) return;
    n->away = n->may_leave = false;
    n->away_why[0] = 0;
    session_send_leave(n);
}

bool node_is_away(const struct node *n) { return n->away && (n->may_leave || !n->joined); }

void node_may_leave(struct node *n) {
    if (!n->away) return; // it came back meanwhile
    n->may_leave = true;
    if (n->ending) {
        say_bye(n);
        return;
    }
    assign_end_all(n); // the owner gets the memory back too; of an epoch that was over before, nobody says UNLOAD
    assign_settle_soon(n);
}

static int check_self(struct node *n, struct err *e) {
    struct selftest_result *r = malloc(sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "node: no memory");
    n->isa = n->config->cpu.isa == ISA_AUTO ? isa_best() : n->config->cpu.isa;
    int rc = selftest_run(n->isa, r, e);
    if (rc)
        err_prefix(e, "self-test: this machine computes other numbers and may not join");
    else
        n->selftest = selftest_digest(r);
    free(r);
    return rc;
}

// The name that status shows: of at most 63 bytes, of characters that may stand anywhere.
static int find_name(struct node *n, struct err *e) {
    const char *name = n->config->name;
    char host[256] = "";
    if (!name && (gethostname(host, sizeof host - 1) || !host[0])) snprintf(host, sizeof host, "node");
    if (!name) {
        control_text_clean(host, n->name, sizeof n->name);
        return ERR_OK;
    }
    if (!name[0]) return err_set(e, ERR_USAGE, "--name: it is empty");
    if (control_text_prefix(name, SIZE_MAX) != strlen(name))
        return err_set(e, ERR_USAGE, "--name: only UTF-8 without control characters is a name");
    control_text_clean(name, n->name, sizeof n->name);
    return ERR_OK;
}

static int find_identity(struct node *n, struct err *e) {
    const struct node_config *c = n->config;
    if (strncmp(c->join, "loom1-", 6) == 0) {
        struct token token;
        int rc = token_parse(c->join, &token, e);
        if (rc) return rc;
        // A service that is started with its token each time enrols once: a certificate of the token's CA will do.
        if (ident_load(c->state_dir, &n->ident, NULL) == ERR_OK) {
            if (ident_has_ca(n->ident, token.fingerprint)) {
                memcpy(n->head_address, token.address, strlen(token.address) + 1);
                return ERR_OK;
            }
            ident_free(n->ident);
            n->ident = NULL;
        }
        return enrol(c->join, c->state_dir, &n->ident, n->head_address, e);
    }
    if (strlen(c->join) >= sizeof n->head_address)
        return err_set(e, ERR_USAGE, "--join: the address is longer than %zu bytes", sizeof n->head_address - 1);
    memcpy(n->head_address, c->join, strlen(c->join) + 1);
    int rc = ident_load(c->state_dir, &n->ident, e);
    if (rc == ERR_NOT_FOUND)
        return err_set(e, rc, "%s holds no certificate: join with a token first (loom token create)", c->state_dir);
    return rc;
}

static int start_presence(struct node *n, struct err *e) {
    const struct presence_config c = {.busy_when = n->config->busy_when,
                                      .every_ms = n->config->busy_every_s * 1000,
                                      .leave = node_leave,
                                      .back = node_return,
                                      .away = node_is_away,
                                      .node = n};
    int rc = presence_init(&n->presence, n->loop, &c, e);
    if (!rc) local_ctl_init(&n->local_ctl, n->loop, n->config->state_dir, &n->presence);
    return rc;
}

// The threads have ended: what they did and did not do comes back, and nobody has anything in hand any more.
static void end_jobs(struct node *n) {
    assign_end_all(n);
    hold_tidy(&n->holds, n->model.head_boot, false);
    compute_stop(&n->compute);
    jobs_done(n);
    hold_fini(&n->holds);
    compute_fini(&n->compute);
}

static int start(struct node *n, struct err *e) {
    const struct node_config *c = n->config;
    char cache_dir[LIMIT_PATH];
    int rc = file_join(cache_dir, sizeof cache_dir, c->state_dir, "weights", e);
    if (!rc)
        rc = compute_start(&n->compute, &c->cpu, cache_dir, c->cache_bytes ? c->cache_bytes : default_cache_bytes,
                           c->model_dir, e);
    if (rc) return rc;
    hold_init(&n->holds, &n->compute, n->memory_bytes);
    n->done_watch = loop_watch_new(n->loop, queue_fd(&n->compute.done), jobs_done, n);
    rc = n->done_watch ? peers_init(n, e) : err_set(e, ERR_NOMEM, "node: no memory");
    if (!rc) rc = start_presence(n, e);
    if (!rc) rc = session_init(n, e);
    if (!rc) {
        thread_raise_priority(); // after the compute threads were made, which must not inherit it
        loop_run(n->loop);
        rc = n->rc;
        if (rc) *e = n->e;
    }
    local_ctl_fini(n->local_ctl);
    presence_fini(&n->presence);
    session_fini(n);
    end_jobs(n);
    peers_fini(n);
    loop_watch_free(n->done_watch);
    return rc;
}

static int prepare(struct node *n, struct err *e) {
    int rc = check_self(n, e);
    if (!rc) rc = find_identity(n, e);
    if (!rc) rc = loop_new(&n->loop, e);
    if (!rc) rc = tls_new(n->ident, TLS_CONNECT, &n->tls_connect, e);
    if (!rc) rc = tls_new(n->ident, TLS_LISTEN, &n->tls_listen, e);
    if (rc) return rc;
    n->control = control_new();
    n->term = loop_watch_signal(n->loop, SIGTERM, on_signal, n);
    n->interrupt = loop_watch_signal(n->loop, SIGINT, on_signal, n);
    n->stop_timer = loop_timer_new(n->loop, on_stop, n);
    n->drain_timer = loop_timer_new(n->loop, on_drained, n);
    n->settle_timer = loop_timer_new(n->loop, assign_settle, n);
    n->keep_timer = loop_timer_new(n->loop, assign_end_kept, n);
    n->step = step_new();
    n->fault = malloc(LIMIT_STEP_ROWS);
    bool whole = n->control && n->term && n->interrupt && n->stop_timer && n->drain_timer && n->settle_timer &&
                 n->keep_timer && n->step && n->fault;
    return whole ? ERR_OK : err_set(e, ERR_NOMEM, "node: no memory");
}

int node_run(const struct node_config *c, struct err *e) {
    struct node *n = calloc(1, sizeof *n);
    int lock = -1;
    if (!n) return err_set(e, ERR_NOMEM, "node: no memory");
    n->config = c;
    list_init(&n->assignments);
    n->memory_bytes = c->memory_bytes ? c->memory_bytes : cpu_memory_available_bytes() / 10 * 9;
    n->boot = random_u64() | 1; // 0 would be none
    signal(SIGPIPE, SIG_IGN);
    int rc = find_name(n, e);
    if (!rc) rc = lock_take(c->state_dir, "node.lock", false, &lock, e);
    if (!rc) rc = prepare(n, e);
    if (!rc) rc = start(n, e);
    loop_timer_free(n->stop_timer);
    loop_timer_free(n->drain_timer);
    loop_timer_free(n->settle_timer);
    loop_timer_free(n->keep_timer);
    loop_watch_free(n->term);
    loop_watch_free(n->interrupt);
    tls_free(n->tls_connect);
    tls_free(n->tls_listen);
    ident_free(n->ident);
    control_free(n->control);
    step_free(n->step);
    free(n->fault);
    loop_free(n->loop);
    lock_release(lock);
    free(n);
    return rc;
}
