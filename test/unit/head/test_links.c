// The head's links with nodes that are made up here: real TLS over loopback, one loop for all of them.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "compute/selftest.h"
#include "head/links.h"
#include "head/open.h"
#include "net/link.h"
#include "os/clock.h"

enum { N_NODES = 3, MAX_SEEN = 32, EPOCH = 5, WAIT_MS = 20000 };

static struct opened_model model;
static uint64_t digest;
static char dir[64];

// What a node was sent, in order.
struct seen {
    enum frame_type type;
    uint32_t epoch, stage;
    uint64_t step;
    uint32_t rows, n_releases;
    struct control_step_mark mark;
    struct control_load load;
    struct control_next next;
    bool hot;
};

struct world;

struct fake {
    struct world *world;
    struct ident *ident;
    struct tls *tls;
    struct link *link;
    uint64_t id; // as WELCOME said
    struct seen seen[MAX_SEEN];
    int n_seen, n_echoes;
    struct frame_header echo; // the last one
};

struct world {
    struct loop *loop;
    struct loop_timer *give_up;
    struct control *control;
    struct step *step;
    struct links *links;
    struct fake fake[N_NODES];
    int n_joined, n_lost, n_ready, n_fed, n_failed, n_leave, n_results, n_beats;
    uint64_t who; // of the last of them
    uint32_t stage, epoch;
    bool flag;
    char why[CONTROL_TEXT_MAX];
    struct cluster_stage_state state;
    uint64_t drop_when_lost; // a node that the brain drops in the moment in which it hears of a loss
    const int *wait;         // the loop runs until *wait == want
    int want;
};

static void look(struct world *w) {
    if (w->wait && *w->wait >= w->want) loop_stop(w->loop);
}

static void on_give_up(void *arg) { loop_stop(((struct world *)arg)->loop); }

static void wait_for(struct world *w, const int *counter, int want) {
    w->wait = counter;
    w->want = want;
    loop_timer_set(w->give_up, clock_now_us() + WAIT_MS * 1000ull);
    if (*counter < want) loop_run(w->loop);
    loop_timer_set(w->give_up, UINT64_MAX);
    w->wait = NULL;
    assert_true(*counter >= want);
}

// ---- the brain's side

static void b_joined(void *arg, uint64_t node, uint64_t memory_bytes) {
    struct world *w = arg;
    assert_int_equal(memory_bytes, 1000);
    w->who = node;
    w->n_joined++;
    look(w);
}

static void b_lost(void *arg, uint64_t node, const char *why) {
    struct world *w = arg;
    w->who = node;
    snprintf(w->why, sizeof w->why, "%s", why);
    w->n_lost++;
    struct cluster_action a = {.type = CLUSTER_DROP_NODE, .node = w->drop_when_lost, .why = "it goes with it"};
    if (w->drop_when_lost) links_act(w->links, &a);
    look(w);
}

static void b_heartbeat(void *arg, uint64_t node, uint32_t epoch, const struct cluster_stage_state *states,
                        uint32_t n_states, uint64_t loading_bytes) {
    struct world *w = arg;
    assert_int_equal(n_states, 1);
    assert_int_equal(loading_bytes, 77);
    w->who = node;
    w->epoch = epoch;
    w->state = states[0];
    w->n_beats++;
    look(w);
}

static void note(struct world *w, uint64_t node, uint32_t epoch, uint32_t stage, int *counter) {
    w->who = node;
    w->epoch = epoch;
    w->stage = stage;
    ++*counter;
    look(w);
}

static void b_ready(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    struct world *w = arg;
    note(w, node, epoch, stage, &w->n_ready);
}

static void b_fed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    struct world *w = arg;
    note(w, node, epoch, stage, &w->n_fed);
}

static void b_failed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage, enum stage_failure what,
                     const char *why) {
    struct world *w = arg;
    w->flag = what == STAGE_NO_REPLAY;
    snprintf(w->why, sizeof w->why, "%s", why);
    note(w, node, epoch, stage, &w->n_failed);
}

static void b_leave(void *arg, uint64_t node, bool leave, const char *why) {
    struct world *w = arg;
    w->flag = leave;
    snprintf(w->why, sizeof w->why, "%s", why);
    note(w, node, 0, 0, &w->n_leave);
}

static void b_result(void *arg, uint64_t node, const struct step_result *r) {
    struct world *w = arg;
    assert_int_equal(r->entry[0].token, 9);
    note(w, node, r->epoch, 0, &w->n_results);
}

// ---- a node's side

static void f_up(void *arg, struct link *l) {
    struct fake *f = arg;
    struct control_join join = {.ln = CONTROL_LN, .port = 7000, .selftest = digest, .memory_bytes = 1000, .boot = 1};
    join.port += (uint32_t)(f - f->world->fake);
    strcpy(join.name, "fake");
    link_settle(l);
    link_set_limits(l, 256 << 10, 1 << 20, 1 << 20);
    link_send_control(l, (struct frame_header){.type = FRAME_JOIN}, control_put_join(f->world->control, &join));
}

static void take(struct fake *f, const struct link_frame *in, struct seen *s) {
    struct control *c = f->world->control;
    struct step *step = f->world->step;
    uint32_t len = in->h.control_bytes;
    struct err e;
    int rc = ERR_OK;
    *s = (struct seen){.type = in->h.type, .epoch = in->h.epoch, .stage = in->h.stage, .step = in->h.step};
    if (s->type == FRAME_LOAD) rc = control_get_load(c, in->control, len, &s->load, &e);
    if (s->type == FRAME_NEXT) rc = control_get_next(c, in->control, len, &s->next, &e);
    if (s->type == FRAME_HOT) rc = control_get_hot(c, in->control, len, &s->hot, &e);
    if (s->type == FRAME_STEP || s->type == FRAME_REPLAY) {
        rc = control_get_step(c, in->control, len, step, &s->mark, &e);
        s->rows = step->n_rows;
        s->n_releases = step->n_releases;
    }
    if (rc) fail_msg("%s: %s", frame_name(s->type), e.text);
}

static void f_frame(void *arg, struct link *l, const struct link_frame *in) {
    struct fake *f = arg;
    struct control_welcome welcome;
    (void)l;
    if (in->h.type == FRAME_WELCOME) {
        assert_int_equal(control_get_welcome(f->world->control, in->control, in->h.control_bytes, &welcome, NULL), 0);
        f->id = welcome.node;
        return;
    }
    if (in->h.type == FRAME_ECHO) {
        f->echo = in->h;
        f->n_echoes++;
        look(f->world);
        return;
    }
    assert_true(f->n_seen < MAX_SEEN);
    take(f, in, &f->seen[f->n_seen++]);
    look(f->world);
}

static void f_closed(void *arg, struct link *l, const char *why) {
    struct fake *f = arg;
    (void)l;
    (void)why;
    f->link = NULL;
}
static const struct link_handlers fake_handlers = {.up = f_up, .frame = f_frame, .closed = f_closed};

// The next frame that this node got, waited for if need be.
static const struct seen *next_seen(struct world *w, int node, int *at) {
    wait_for(w, &w->fake[node].n_seen, *at + 1);
    return &w->fake[node].seen[(*at)++];
}

static void say(struct world *w, int node, enum frame_type type, uint32_t epoch, uint32_t stage,
                struct control_bytes control) {
    (void)w;
    link_send_control(w->fake[node].link, (struct frame_header){.type = type, .epoch = epoch, .stage = stage}, control);
}

static void say_token(struct world *w, int node, uint32_t epoch) {
    struct step_result r = {.n = 1};
    r.entry[0].token = 9;
    say(w, node, FRAME_TOKENS, epoch, 1, control_put_tokens(w->control, &r));
}

// ---- the world

static void make_ident(const struct ca *ca, struct ident **id) {
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    size_t csr_bytes, cert_bytes, root_bytes = ca_certificate(ca, root);
    char name[CA_NAME_MAX];
    struct err e;
    ca_fingerprint(ca, print);
    int rc = ident_new(id, &e);
    if (!rc) rc = ident_csr(*id, csr, &csr_bytes, &e);
    if (!rc) rc = ca_issue(ca, csr, csr_bytes, cert, &cert_bytes, name, &e);
    if (!rc) rc = ident_accept(*id, cert, cert_bytes, root, root_bytes, print, &e);
    if (rc) fail_msg("%s", e.text);
}

static void join(struct world *w, int i) {
    char address[64];
    struct err e;
    struct fake *f = &w->fake[i];
    f->world = w;
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w->links));
    assert_int_equal(tls_new(f->ident, TLS_CONNECT, &f->tls, &e), ERR_OK);
    assert_int_equal(link_connect(w->loop, f->tls, address, CA_HEAD_NAME, &fake_handlers, f, &f->link, &e), ERR_OK);
    wait_for(w, &w->n_joined, i + 1);
    f->id = w->who;
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof *w);
    struct ca *ca;
    struct err e;
    strcpy(dir, "/tmp/loom-links-test-XXXXXX");
    if (!w || !mkdtemp(dir) || ca_open(dir, &ca, &e)) {
        free(w);
        return -1;
    }
    for (int i = 0; i < N_NODES; i++) make_ident(ca, &w->fake[i].ident);
    ca_free(ca);
    w->control = control_new();
    w->step = step_new();
    struct links_config c = {.state_dir = dir,
                             .listen_addr = "127.0.0.1:0",
                             .heartbeat_us = 20000,
                             .model = {.name = "demo",
                                       .config_json = model.config_json,
                                       .config_bytes = model.config_bytes,
                                       .hparams = &model.hparams,
                                       .max_rows = 64,
                                       .max_context = 512,
                                       .tensors = model.tensors}};
    struct links_handlers h = {.arg = w,
                               .joined = b_joined,
                               .lost = b_lost,
                               .heartbeat = b_heartbeat,
                               .ready = b_ready,
                               .fed = b_fed,
                               .failed = b_failed,
                               .leave = b_leave,
                               .result = b_result};
    if (loop_new(&w->loop, &e) || links_new(w->loop, &c, &h, &w->links, &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    w->give_up = loop_timer_new(w->loop, on_give_up, w);
    for (int i = 0; i < N_NODES; i++) join(w, i);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    char command[128];
    links_free(w->links);
    for (int i = 0; i < N_NODES; i++) {
        link_close(w->fake[i].link);
        tls_free(w->fake[i].tls);
        ident_free(w->fake[i].ident);
    }
    loop_timer_free(w->give_up);
    loop_free(w->loop);
    control_free(w->control);
    step_free(w->step);
    free(w);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static struct cluster_action to_node(const struct world *w, enum cluster_act type, int node, uint32_t stage) {
    return (struct cluster_action){
        .type = type, .node = w->fake[node].id, .epoch = EPOCH, .stage = stage, .n_stages = 2, .n_blocks = 8};
}

static void load(struct world *w, int node, uint32_t stage, bool hot, int next) {
    struct cluster_action a = to_node(w, CLUSTER_LOAD, node, stage);
    a.a = stage * 6;
    a.b = a.a + 6;
    a.hot = hot;
    if (next >= 0) a.next[a.n_next++].node = w->fake[next].id;
    links_act(w->links, &a);
}

static void feed(struct world *w, int first, int second, bool replay) {
    struct cluster_action a = {.type = CLUSTER_FEED, .epoch = EPOCH};
    if (first >= 0) a.next[a.n_next++].node = w->fake[first].id;
    if (second >= 0) a.next[a.n_next++] = (struct cluster_holder){w->fake[second].id, replay};
    links_act(w->links, &a);
}

// A step of one sequence, n rows from pos on.
static void send_step(struct world *w, uint64_t id, uint32_t pos, uint32_t n) {
    struct step *s = step_new();
    s->id = id;
    s->epoch = EPOCH;
    s->n_seqs = 1;
    s->seqs[0] = (struct step_seq){.slot = 3, .pos = pos, .n_rows = n, .sampling = {.top_p = 1}};
    if (pos == 0) s->seqs[0].n_blocks = s->n_blocks = 1;
    for (uint32_t i = 0; i < n; i++) s->tokens[s->n_rows++] = (int32_t)(100 + pos + i);
    links_step(w->links, s);
    step_free(s);
}

static void expect_step(struct world *w, int node, int *at, uint64_t step, uint32_t rows, uint64_t stable) {
    const struct seen *s = next_seen(w, node, at);
    assert_int_equal(s->type, FRAME_STEP);
    assert_int_equal(s->epoch, EPOCH);
    assert_int_equal(s->stage, 0);
    assert_int_equal(s->step, step);
    assert_int_equal(s->rows, rows);
    assert_int_equal(s->mark.stable, stable);
    assert_false(s->mark.first || s->mark.last);
}

static void test_a_stage_with_two_holders(void **state) {
    struct world *w = *state;
    int at[N_NODES] = {0};
    load(w, 1, 1, true, -1);
    load(w, 0, 0, true, 1);
    const struct seen *s = next_seen(w, 0, &at[0]);
    assert_int_equal(s->type, FRAME_LOAD);
    assert_int_equal(s->stage, 0);
    assert_true(s->load.hot);
    assert_int_equal(s->load.next.n, 1);
    assert_int_equal(s->load.next.holder[0].node, w->fake[1].id);
    assert_string_equal(s->load.next.holder[0].address, "127.0.0.1:7001");
    assert_string_equal(s->load.next.holder[0].name, ident_name(w->fake[1].ident));
    const struct seen *s2 = next_seen(w, 1, &at[1]);
    assert_int_equal(s2->load.next.n, 0);
    assert_memory_equal(s->load.route_key, s2->load.route_key, CONTROL_KEY_BYTES);

    feed(w, 0, -1, false);
    send_step(w, 1, 0, 40);
    send_step(w, 2, 40, 1);
    expect_step(w, 0, &at[0], 1, 40, 0);
    expect_step(w, 0, &at[0], 2, 1, 0);
    links_stable(w->links, 1);
    // A second holder begins empty: it gets what was, and then the steps after it. The first one gets nothing anew.
    load(w, 2, 0, false, 1);
    feed(w, 0, 2, true);
    assert_int_equal(next_seen(w, 2, &at[2])->type, FRAME_LOAD);
    s = next_seen(w, 2, &at[2]);
    assert_int_equal(s->type, FRAME_REPLAY);
    assert_int_equal(s->step, 1);
    assert_int_equal(s->rows, 40);
    assert_true(s->mark.first && s->mark.last);
    expect_step(w, 2, &at[2], 2, 1, 1);
    send_step(w, 3, 41, 1);
    expect_step(w, 2, &at[2], 3, 1, 1);
    expect_step(w, 0, &at[0], 3, 1, 1);
    say(w, 2, FRAME_FED, EPOCH, 0, (struct control_bytes){0});
    wait_for(w, &w->n_fed, 1);
    assert_int_equal(w->who, w->fake[2].id);
    // The list again, without the word: nothing is sent anew. And without the first one.
    feed(w, 0, 2, false);
    feed(w, 2, -1, false);
    send_step(w, 4, 42, 1);
    expect_step(w, 2, &at[2], 4, 1, 1);
    // It lost what it had: once more from the beginning.
    links_stable(w->links, 3);
    feed(w, -1, 2, true);
    s = next_seen(w, 2, &at[2]);
    assert_int_equal(s->type, FRAME_REPLAY);
    assert_int_equal(s->step, 3);
    assert_int_equal(s->rows, 42);
    expect_step(w, 2, &at[2], 4, 1, 3);
    assert_int_equal(w->fake[0].n_seen, at[0]);
}

static void test_tokens_come_from_whoever_holds_the_last_stage(void **state) {
    struct world *w = *state;
    load(w, 0, 0, true, 1);
    load(w, 1, 1, true, -1);
    say_token(w, 1, EPOCH);
    wait_for(w, &w->n_results, 1);
    assert_int_equal(w->who, w->fake[1].id);
    // Neither from one who holds another stage, nor of another epoch.
    say_token(w, 0, EPOCH);
    say_token(w, 1, EPOCH - 1);
    say(w, 0, FRAME_READY, EPOCH, 0, (struct control_bytes){0});
    say(w, 1, FRAME_READY, EPOCH, 1, (struct control_bytes){0});
    wait_for(w, &w->n_ready, 2);
    assert_int_equal(w->n_results, 1);
    load(w, 0, 1, false, -1); // one node, two stages
    say_token(w, 0, EPOCH);
    wait_for(w, &w->n_results, 2);
    assert_int_equal(w->who, w->fake[0].id);
    struct cluster_action a = to_node(w, CLUSTER_UNLOAD, 0, 1);
    links_act(w->links, &a);
    say_token(w, 0, EPOCH);
    say(w, 0, FRAME_READY, EPOCH, 0, (struct control_bytes){0});
    wait_for(w, &w->n_ready, 3);
    assert_int_equal(w->n_results, 2);
    assert_int_equal(w->n_lost, 0);
}

static void test_orders(void **state) {
    struct world *w = *state;
    int at = 0;
    load(w, 0, 0, false, 0); // the next stage is at the same node
    const struct seen *s = next_seen(w, 0, &at);
    assert_false(s->load.hot);
    assert_int_equal(s->load.next.holder[0].node, w->fake[0].id);
    assert_string_equal(s->load.next.holder[0].address, "");
    struct cluster_action a = to_node(w, CLUSTER_NEXT, 0, 0);
    a.n_next = 3;
    a.next[0].node = w->fake[1].id;
    a.next[1].node = 12345; // lost in this moment
    a.next[2] = (struct cluster_holder){.node = w->fake[2].id, .replay = true};
    links_act(w->links, &a);
    s = next_seen(w, 0, &at);
    assert_int_equal(s->type, FRAME_NEXT);
    assert_int_equal(s->next.n, 2);
    assert_int_equal(s->next.holder[1].node, w->fake[2].id);
    assert_true(s->next.holder[1].replay);
    a = to_node(w, CLUSTER_HOT, 0, 0);
    a.hot = true;
    links_act(w->links, &a);
    s = next_seen(w, 0, &at);
    assert_int_equal(s->type, FRAME_HOT);
    assert_true(s->hot);
    a = to_node(w, CLUSTER_UNLOAD, 0, 0);
    links_act(w->links, &a);
    assert_int_equal(next_seen(w, 0, &at)->type, FRAME_UNLOAD);
    a = to_node(w, CLUSTER_MAY_LEAVE, 0, 0);
    links_act(w->links, &a);
    assert_int_equal(next_seen(w, 0, &at)->type, FRAME_MAY_LEAVE);
    // None of those that should come next is there: that must not make it the last stage.
    a = to_node(w, CLUSTER_NEXT, 0, 0);
    a.n_next = 1;
    a.next[0].node = 12345;
    links_act(w->links, &a);
    a = to_node(w, CLUSTER_DROP_NODE, 0, 0);
    links_act(w->links, &a);
    assert_int_equal(next_seen(w, 0, &at)->type, FRAME_BYE);
    assert_int_equal(w->n_lost, 0);
}

static void test_what_nodes_say(void **state) {
    struct world *w = *state;
    struct links_node nodes[LIMIT_NODES];
    load(w, 2, 1, false, -1);
    struct control_heartbeat h = {.loading_bytes = 77, .waited = 4, .n_stages = 1};
    h.stage[0] = (struct control_stage_state){.stage = 1, .accepted = 12, .done = 10, .waiting_rows = 2, .lag_us = 900};
    links_stable(w->links, 7);
    say(w, 2, FRAME_HEARTBEAT, EPOCH, 0, control_put_heartbeat(w->control, &h));
    wait_for(w, &w->fake[2].n_echoes, 1);
    assert_int_equal(w->n_beats, 1);
    assert_int_equal(w->fake[2].echo.epoch, EPOCH); // shadows hear what is stable although nothing runs
    assert_int_equal(w->fake[2].echo.step, 7);
    assert_int_equal(w->state.stage, 1);
    assert_int_equal(w->state.accepted, 12);
    assert_int_equal(w->state.done, 10);
    assert_int_equal(links_nodes(w->links, nodes, LIMIT_NODES), N_NODES);
    assert_int_equal(nodes[2].n_stages, 1);
    assert_int_equal(nodes[2].stage[0].accepted, 12);
    assert_int_equal(nodes[2].stage[0].lag_us, 900);
    assert_int_equal(links_waited(w->links), 4);
    say(w, 2, FRAME_FAILED, EPOCH, 1, control_put_failed(w->control, "no room", STAGE_NO_REPLAY));
    wait_for(w, &w->n_failed, 1);
    assert_true(w->flag);
    assert_int_equal(w->stage, 1);
    assert_string_equal(w->why, "no room");
    say(w, 2, FRAME_LEAVE, 0, 0, control_put_leave(w->control, true, "somebody sat down"));
    wait_for(w, &w->n_leave, 1);
    assert_true(w->flag);
    assert_string_equal(w->why, "somebody sat down");
    // A stage that cannot be costs the link; what is counted stays counted.
    say(w, 2, FRAME_READY, EPOCH, LIMIT_STAGES, (struct control_bytes){0});
    wait_for(w, &w->n_lost, 1);
    assert_int_equal(w->who, w->fake[2].id);
    assert_int_equal(w->n_ready, 0);
    assert_int_equal(links_waited(w->links), 4);
    assert_int_equal(links_nodes(w->links, nodes, LIMIT_NODES), N_NODES - 1);
}

// A node is lost while one of its own frames is worked on, and takes another one with it.
static void test_losses_inside_a_frame(void **state) {
    struct world *w = *state;
    w->drop_when_lost = w->fake[1].id;
    say(w, 0, FRAME_READY, EPOCH, LIMIT_STAGES, (struct control_bytes){0});
    wait_for(w, &w->n_lost, 1);
    int at = 0;
    assert_int_equal(next_seen(w, 1, &at)->type, FRAME_BYE);
    say(w, 2, FRAME_READY, EPOCH, 0, (struct control_bytes){0}); // the third one is well
    wait_for(w, &w->n_ready, 1);
    assert_int_equal(w->who, w->fake[2].id);
    assert_int_equal(w->n_lost, 1);
}

// More stages than a node can hold: it is told when the brain is not at work.
static void test_too_many_stages(void **state) {
    struct world *w = *state;
    for (uint32_t i = 0; i <= LIMIT_NODE_STAGES; i++) load(w, 0, i, false, i == 1 ? -1 : 1);
    assert_int_equal(w->n_failed, 0);
    wait_for(w, &w->n_failed, 1);
    assert_int_equal(w->stage, LIMIT_NODE_STAGES);
    assert_int_equal(w->who, w->fake[0].id);
    assert_false(w->flag);
}

int main(void) {
    struct err e;
    struct selftest_result *r = malloc(sizeof *r);
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_ERROR);
    if (!r || selftest_run(isa_best(), r, &e) || open_model(LOOM_SOURCE_DIR "/models/loom-demo", &model, &e)) return 1;
    digest = selftest_digest(r);
    free(r);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_stage_with_two_holders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens_come_from_whoever_holds_the_last_stage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_orders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_nodes_say, setup, teardown),
        cmocka_unit_test_setup_teardown(test_losses_inside_a_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_stages, setup, teardown),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    open_model_close(&model);
    return rc;
}
