// A head for tests of the node: it speaks the protocol over real TLS links and decides nothing. Nodes are processes of
// the test's own binary, with certificates made beforehand, and take their weights from the model's folder.
#pragma once
#include "compute/selftest.h"
#include "model/model.h"
#include "net/link.h"
#include "node/node.h"
#include "os/clock.h"
#include "os/file.h"
#include "weights/tensors.h"

#include <openssl/sha.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL_DIR LOOM_SOURCE_DIR "/models/loom-demo"

enum {
    FH_NODES = 4,
    FH_STAGES = 4,
    FH_STEPS = 512,
    FH_BLOCKS = 64,
    FH_ROWS = 256,
    FH_CONTEXT = 1024,
    FH_WAIT_MS = 15000
};

// What one node said of one stage in the present epoch.
struct fh_stage {
    bool ready, fed;
    uint64_t fed_step;
    bool failed;
    enum stage_failure failure;
    char why[CONTROL_TEXT_MAX];
    struct control_stage_state state; // of its last heartbeat
    bool listed;                      // in it
};

struct fh_node {
    pid_t pid;
    struct link *link;
    uint64_t number;
    char cert[64], address[64], dir[256];
    uint32_t beat_epoch, n_beats, n_joins;
    uint64_t waited, loading_bytes, memory_used_bytes;
    bool leaves, bye;
    struct fh_stage stage[FH_STAGES];
};

struct fh {
    struct loop *loop;
    struct control *control;
    struct ca *ca;
    struct ident *ident;
    struct tls *tls;
    struct listener *listener;
    struct loop_timer *give_up;
    bool (*until)(const struct fh *h);
    struct fh_node node[FH_NODES];
    uint64_t numbers, n_restarts; // of the head
    uint32_t epoch, n_failed;
    uint64_t stable;
    bool counts[FH_NODES][FH_STAGES];    // whose `accepted` makes steps stable
    int32_t token[FH_STEPS];             // of each step; -2: none yet
    uint32_t n_tokens, n_twice, n_other; // results; results that came again; of those, with another token
};

static char fh_dir[] = "/tmp/loom-stages-test-XXXXXX";
static struct hparams fh_hparams;
static struct tensors *fh_tensors;
static char *fh_config;
static size_t fh_config_bytes;
static const struct run_mode fh_mode = {.weights = WEIGHTS_NATIVE, .kv = KV_I8};

static inline void fh_look(struct fh *h) {
    if (h->until && h->until(h)) loop_stop(h->loop);
}

static inline struct fh_node *fh_of(struct fh *h, const struct link *l) {
    for (int i = 0; i < FH_NODES; i++)
        if (h->node[i].link == l) return &h->node[i];
    return NULL;
}

static inline void fh_join(struct fh *h, struct link *l, const struct link_frame *f) {
    struct control_join m;
    struct err e;
    if (control_get_join(h->control, f->control, f->h.control_bytes, &m, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < FH_NODES; i++) {
        struct fh_node *n = &h->node[i];
        if (strcmp(n->cert, link_peer_name(l))) continue;
        n->link = l;
        n->number = ++h->numbers;
        n->n_joins++;
        snprintf(n->address, sizeof n->address, "127.0.0.1:%u", m.port);
        struct control_welcome w = {.node = n->number,
                                    .model = "loom-demo",
                                    .weights = fh_mode.weights,
                                    .kv = fh_mode.kv,
                                    .max_rows = FH_ROWS,
                                    .max_context = FH_CONTEXT,
                                    .plan_hash = model_plan_hash(&fh_hparams, &fh_mode),
                                    .boot = 7 + h->n_restarts,
                                    .heartbeat_us = 10000};
        w.n_rope = model_rope_get(&fh_hparams, w.rope);
        link_set_limits(l, 256 << 10, 0, 32 << 20);
        link_send(l, (struct frame_header){.type = FRAME_WELCOME}, control_put_welcome(h->control, &w), fh_config,
                  (uint32_t)fh_config_bytes, NULL, 0);
        return;
    }
    fail_msg("%s is not known", link_peer_name(l));
}

static inline void fh_answer_ask(struct fh *h, struct link *l, const struct link_frame *f) {
    struct control_ask *ask = malloc(sizeof *ask);
    struct control_manifest *m = calloc(1, sizeof *m);
    struct err e;
    if (control_get_ask(h->control, f->control, f->h.control_bytes, ask, &e)) fail_msg("%s", e.text);
    m->n = ask->n;
    for (uint32_t i = 0; i < ask->n; i++) {
        const struct tensor *t = tensors_find(fh_tensors, ask->name[i]);
        if (!t) continue;
        m->entry[i] =
            (struct control_tensor){.found = true, .dtype = (uint32_t)t->type, .n_dims = t->n_dims, .bytes = t->bytes};
        memcpy(m->entry[i].dim, t->dim, sizeof t->dim);
        SHA256(t->data, t->bytes, m->entry[i].sha256);
    }
    link_send_control(l, (struct frame_header){.type = FRAME_MANIFEST, .step = f->h.step},
                      control_put_manifest(h->control, m));
    free(ask);
    free(m);
}

// What every holder that counts has, and the head behind the last stage too.
static inline void fh_set_stable(struct fh *h) {
    uint64_t least = h->stable;
    while (least + 1 < FH_STEPS && h->token[least + 1] != -2) least++;
    for (int i = 0; i < FH_NODES; i++)
        for (int s = 0; s < FH_STAGES; s++)
            if (h->counts[i][s] && h->node[i].stage[s].state.accepted < least)
                least = h->node[i].stage[s].state.accepted;
    if (least > h->stable) h->stable = least;
}

static inline void fh_beat(struct fh *h, struct fh_node *n, const struct link_frame *f) {
    struct control_heartbeat b;
    struct err e;
    if (control_get_heartbeat(h->control, f->control, f->h.control_bytes, &b, &e)) fail_msg("%s", e.text);
    n->n_beats++;
    n->beat_epoch = f->h.epoch;
    n->waited = b.waited;
    n->loading_bytes = b.loading_bytes;
    n->memory_used_bytes = b.memory_used_bytes;
    for (uint32_t i = 0; i < FH_STAGES; i++) n->stage[i].listed = false;
    for (uint32_t i = 0; i < b.n_stages && f->h.epoch == h->epoch; i++) {
        n->stage[b.stage[i].stage].state = b.stage[i];
        n->stage[b.stage[i].stage].listed = true;
    }
    fh_set_stable(h);
    struct control_heartbeat echo = {.time_us = b.time_us};
    link_send_control(n->link, (struct frame_header){.type = FRAME_ECHO, .epoch = h->epoch, .step = h->stable},
                      control_put_heartbeat(h->control, &echo));
}

static inline void fh_result(struct fh *h, const struct link_frame *f) {
    struct step_result r;
    struct err e;
    if (control_get_tokens(h->control, f->control, f->h.control_bytes, &r, &e)) fail_msg("%s", e.text);
    if (f->h.epoch != h->epoch) return;
    assert_true(f->h.step < FH_STEPS);
    assert_int_equal(r.n, 1);
    int32_t *t = &h->token[f->h.step];
    h->n_twice += *t != -2;
    h->n_other += *t != -2 && *t != r.entry[0].token;
    *t = r.entry[0].token;
    h->n_tokens++;
}

static inline void fh_node_frame(struct fh *h, struct fh_node *n, const struct link_frame *f) {
    struct err e;
    struct fh_stage *s = f->h.stage < FH_STAGES && f->h.epoch == h->epoch ? &n->stage[f->h.stage] : NULL;
    char text[CONTROL_TEXT_MAX];
    bool leave;
    switch (f->h.type) {
    case FRAME_HEARTBEAT:
        fh_beat(h, n, f);
        return;
    case FRAME_READY:
        if (s) s->ready = true;
        return;
    case FRAME_FED:
        if (s) s->fed = true;
        if (s) s->fed_step = f->h.step;
        return;
    case FRAME_FAILED:
        if (!s) return;
        if (control_get_failed(h->control, f->control, f->h.control_bytes, s->why, &s->failure, &e))
            fail_msg("%s", e.text);
        s->failed = true;
        h->n_failed++;
        return;
    case FRAME_TOKENS:
        fh_result(h, f);
        return;
    case FRAME_LEAVE:
        if (control_get_leave(h->control, f->control, f->h.control_bytes, &leave, text, &e)) fail_msg("%s", e.text);
        n->leaves = leave;
        return;
    case FRAME_BYE:
        n->bye = true;
        return;
    default:
        fail_msg("a node sent %s", frame_name(f->h.type));
    }
}

static inline void fh_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct fh *h = arg;
    struct fh_node *n = fh_of(h, l);
    link_settle(l);
    if (n)
        fh_node_frame(h, n, f);
    else if (f->h.type == FRAME_JOIN)
        fh_join(h, l, f);
    else if (f->h.type == FRAME_BULK)
        link_set_limits(l, 256 << 10, 0, 32 << 20);
    else if (f->h.type == FRAME_ASK)
        fh_answer_ask(h, l, f);
    else
        fail_msg("a frame %s", frame_name(f->h.type));
    fh_look(h);
}

static inline void fh_closed(void *arg, struct link *l, const char *why) {
    struct fh *h = arg;
    struct fh_node *n = fh_of(h, l);
    (void)why;
    if (n) n->link = NULL;
    fh_look(h);
}

static const struct link_handlers fh_handlers = {.frame = fh_frame, .closed = fh_closed};

static inline void fh_stop(void *arg) { loop_stop(((struct fh *)arg)->loop); }

static inline void fh_run_until(struct fh *h, bool (*until)(const struct fh *), const char *what) {
    h->until = until;
    if (!until(h)) {
        loop_timer_set(h->give_up, clock_now_us() + FH_WAIT_MS * 1000ull);
        loop_run(h->loop);
        loop_timer_set(h->give_up, UINT64_MAX);
    }
    if (until(h)) return;
    for (int i = 0; i < FH_NODES; i++)
        for (int s = 0; s < FH_STAGES; s++) {
            const struct fh_stage *g = &h->node[i].stage[s];
            if (g->listed || g->failed)
                print_error("node %d stage %d: hot %d accepted %lu done %lu waiting %u; ready %d fed %d; %s\n", i, s,
                            g->state.hot, g->state.accepted, g->state.done, g->state.waiting_rows, g->ready, g->fed,
                            g->why);
        }
    fail_msg("waited in vain for %s; stable is %lu, %u tokens came", what, h->stable, h->n_tokens);
}

static inline void fh_run_ms(struct fh *h, uint64_t ms) {
    h->until = NULL;
    loop_timer_set(h->give_up, clock_now_us() + ms * 1000);
    loop_run(h->loop);
    loop_timer_set(h->give_up, UINT64_MAX);
}

// A certificate as enrolment would give it.
static inline void fh_make_ident(struct fh *h, struct fh_node *n) {
    struct err e;
    struct ident *id;
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    size_t csr_bytes, cert_bytes;
    assert_int_equal(file_mkdir_all(n->dir, 0700, &e), ERR_OK);
    assert_int_equal(ident_new(&id, &e), ERR_OK);
    assert_int_equal(ident_csr(id, csr, &csr_bytes, &e), ERR_OK);
    assert_int_equal(ca_issue(h->ca, csr, csr_bytes, cert, &cert_bytes, n->cert, &e), ERR_OK);
    ca_fingerprint(h->ca, print);
    size_t root_bytes = ca_certificate(h->ca, root);
    assert_int_equal(ident_accept(id, cert, cert_bytes, root, root_bytes, print, &e), ERR_OK);
    assert_int_equal(ident_save(id, n->dir, &e), ERR_OK);
    ident_free(id);
}

static inline void fh_start(struct fh *h, int n_nodes) {
    struct err e;
    char join[64], name[16];
    memset(h, 0, sizeof *h);
    for (int i = 0; i < FH_STEPS; i++) h->token[i] = -2;
    h->control = control_new();
    if (loop_new(&h->loop, &e) || ca_open(fh_dir, &h->ca, &e) || ident_new_head(h->ca, &h->ident, &e) ||
        tls_new(h->ident, TLS_LISTEN_OPEN, &h->tls, &e) ||
        listener_new(h->loop, h->tls, "127.0.0.1:0", &fh_handlers, h, &h->listener, &e))
        fail_msg("%s", e.text);
    h->give_up = loop_timer_new(h->loop, fh_stop, h);
    snprintf(join, sizeof join, "127.0.0.1:%u", listener_port(h->listener));
    for (int i = 0; i < n_nodes; i++) {
        struct fh_node *n = &h->node[i];
        snprintf(n->dir, sizeof n->dir, "%s/n%d", fh_dir, i);
        snprintf(name, sizeof name, "n%d", i);
        fh_make_ident(h, n);
        fflush(NULL);
        n->pid = fork();
        if (n->pid) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves nobody behind
        execl("/proc/self/exe", "node", join, n->dir, name, (char *)NULL);
        _exit(127);
    }
}

// The node's process: node JOIN DIR NAME.
static inline int fh_node_main(char **argv) {
    struct err e;
    const struct node_config c = {.join = argv[1],
                                  .state_dir = argv[2],
                                  .name = argv[3],
                                  .model_dir = MODEL_DIR,
                                  .memory_bytes = 1 << 30,
                                  .listen_addr = "127.0.0.1:0",
                                  .drain_ms = 20000,
                                  .cpu = {.n_threads = 1}};
    int rc = node_run(&c, &e);
    if (rc) fprintf(stderr, "%s: %s\n", argv[3], e.text);
    return rc ? 1 : 0;
}

// Waits for its end while the head goes on; the wait status.
static inline int fh_wait_end(struct fh *h, int i) {
    int status = 0;
    while (waitpid(h->node[i].pid, &status, WNOHANG) == 0) fh_run_ms(h, 5);
    h->node[i].pid = 0;
    return status;
}

static inline int fh_kill(struct fh *h, int i, int signal) {
    kill(h->node[i].pid, signal);
    return fh_wait_end(h, i);
}

static inline void fh_end(struct fh *h) {
    for (int i = 0; i < FH_NODES; i++)
        if (h->node[i].pid) fh_kill(h, i, SIGKILL);
    fh_run_ms(h, 10);
    listener_free(h->listener);
    tls_free(h->tls);
    ident_free(h->ident);
    ca_free(h->ca);
    loop_timer_free(h->give_up);
    control_free(h->control);
    loop_free(h->loop);
}

// --- what it says

struct fh_next {
    int n;
    int node[LIMIT_HOLDERS];
    bool replay[LIMIT_HOLDERS];
};

static inline void fh_fill_next(const struct fh *h, int to, const struct fh_next *from, struct control_next *m) {
    m->n = (uint32_t)from->n;
    for (int i = 0; i < from->n; i++) {
        const struct fh_node *n = &h->node[from->node[i]];
        m->holder[i] = (struct control_holder){.node = n->number, .replay = from->replay[i]};
        if (from->node[i] == to) continue;
        snprintf(m->holder[i].address, sizeof m->holder[i].address, "%s", n->address);
        snprintf(m->holder[i].name, sizeof m->holder[i].name, "%s", n->cert);
    }
}

static inline struct frame_header fh_head(const struct fh *h, enum frame_type t, int stage) {
    return (struct frame_header){.type = t, .epoch = h->epoch, .stage = (uint32_t)stage};
}

static inline void fh_epoch(struct fh *h, uint32_t epoch) {
    h->epoch = epoch;
    h->stable = 0;
    memset(h->counts, 0, sizeof h->counts);
    for (int i = 0; i < FH_STEPS; i++) h->token[i] = -2;
    for (int i = 0; i < FH_NODES; i++) memset(h->node[i].stage, 0, sizeof h->node[i].stage);
}

static inline void fh_load(struct fh *h, int node, int stage, int n_stages, bool hot, struct fh_next next) {
    struct control_load m = {.n_stages = (uint32_t)n_stages,
                             .a = fh_hparams.n_layers * (uint32_t)stage / (uint32_t)n_stages,
                             .b = fh_hparams.n_layers * (uint32_t)(stage + 1) / (uint32_t)n_stages,
                             .n_blocks = FH_BLOCKS,
                             .hot = hot};
    memset(m.route_key, (int)h->epoch, sizeof m.route_key);
    fh_fill_next(h, node, &next, &m.next);
    h->node[node].stage[stage] = (struct fh_stage){0};
    link_send_control(h->node[node].link, fh_head(h, FRAME_LOAD, stage), control_put_load(h->control, &m));
}

static inline void fh_set_next(struct fh *h, int node, int stage, struct fh_next next) {
    struct control_next m = {0};
    fh_fill_next(h, node, &next, &m);
    link_send_control(h->node[node].link, fh_head(h, FRAME_NEXT, stage), control_put_next(h->control, &m));
}

static inline void fh_hot(struct fh *h, int node, int stage, bool hot) {
    link_send_control(h->node[node].link, fh_head(h, FRAME_HOT, stage), control_put_hot(h->control, hot));
}

static inline void fh_plain(struct fh *h, int node, enum frame_type t, int stage) {
    link_send_control(h->node[node].link, fh_head(h, t, stage), (struct control_bytes){0});
}

static inline void fh_step(struct fh *h, int node, enum frame_type t, const struct step *s, bool first, bool last) {
    struct frame_header f = fh_head(h, t, 0);
    const struct control_step_mark mark = {.stable = h->stable, .first = first, .last = last};
    f.step = s->id;
    f.rows = s->n_rows;
    if (h->node[node].link) link_send_control(h->node[node].link, f, control_put_step(h->control, s, &mark));
}

static inline int fh_setup(void) {
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(fh_dir) || file_read(MODEL_DIR "/config.json", LIMIT_CONFIG_BYTES, &fh_config, &fh_config_bytes, &e) ||
        model_parse_config(fh_config, fh_config_bytes, &fh_hparams, &e) || tensors_open(MODEL_DIR, &fh_tensors, &e)) {
        printf("%s\n", e.text);
        return 1;
    }
    return 0;
}

static inline int fh_teardown(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fh_dir);
    tensors_free(fh_tensors);
    free(fh_config);
    return system(command) ? 1 : 0;
}
