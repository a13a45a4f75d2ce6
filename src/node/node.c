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

static void on_leave(void *arg) {
    struct node *n = arg;
    node_stop(n, ERR_OK, "");
}

static void on_signal(void *arg) {
    struct node *n = arg;
    LOG_I("node", "told to stop");
    session_bye(n);
    loop_timer_set(n->stop_timer, clock_now_us() + NODE_BYE_MS * 1000);
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

static int start(struct node *n, struct backend *be, struct err *e) {
    const struct node_config *c = n->config;
    char cache_dir[LIMIT_PATH];
    int rc = file_join(cache_dir, sizeof cache_dir, c->state_dir, "weights", e);
    if (!rc)
        rc = compute_start(&n->compute, be, n->memory_bytes, cache_dir,
                           c->cache_bytes ? c->cache_bytes : default_cache_bytes, c->model_dir, e);
    if (rc) return rc;
    if (!rc) rc = route_init(n, e);
    if (!rc) rc = session_init(n, e);
    if (!rc) {
        thread_raise_priority(); // after the compute thread was made, which must not inherit it
        loop_run(n->loop);
        rc = n->rc;
        if (rc) *e = n->e;
    }
    session_fini(n);
    route_fini(n);
    compute_stop(&n->compute);
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
    n->stop_timer = loop_timer_new(n->loop, on_leave, n);
    return n->control && n->term && n->interrupt && n->stop_timer ? ERR_OK : err_set(e, ERR_NOMEM, "node: no memory");
}

int node_run(const struct node_config *c, struct err *e) {
    struct node *n = calloc(1, sizeof *n);
    struct backend *be = NULL;
    int lock = -1;
    if (!n) return err_set(e, ERR_NOMEM, "node: no memory");
    n->config = c;
    n->memory_bytes = c->memory_bytes ? c->memory_bytes : cpu_memory_available_bytes() / 10 * 9;
    n->boot = random_u64() | 1; // 0 would be none
    signal(SIGPIPE, SIG_IGN);
    int rc = find_name(n, e);
    if (!rc) rc = lock_take(c->state_dir, "node.lock", false, &lock, e);
    if (!rc) rc = prepare(n, e);
    if (!rc) rc = backend_cpu_new(&c->cpu, &be, e);
    if (!rc) rc = start(n, be, e);
    if (be) be->ops->free(be);
    loop_timer_free(n->stop_timer);
    loop_watch_free(n->term);
    loop_watch_free(n->interrupt);
    tls_free(n->tls_connect);
    tls_free(n->tls_listen);
    ident_free(n->ident);
    control_free(n->control);
    loop_free(n->loop);
    lock_release(lock);
    free(n);
    return rc;
}
