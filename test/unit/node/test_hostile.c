// Peers that come to the head's door with bad manners. A well-behaved node is joined all the while and must not notice.
#include "compute/selftest.h"
#include "head/links.h"
#include "net/link.h"
#include "net/token.h"
#include "os/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char config_json[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":128,\"intermediate_size\":128,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":64,\"vocab_size\":256,"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,"
    "\"hidden_act\":\"silu\",\"eos_token_id\":1}";
static uint8_t model_file[8 + 64 + 8];
static struct hparams hparams;
static struct tensors *tensors;
static char state_dir[64];
static uint64_t selftest;

struct world {
    struct loop *loop;
    struct links *links;
    struct loop_timer *give_up;
    struct control *control;
    struct tls *tls; // of a proven node
    uint32_t n_joined, n_lost, n_results;
    // The peer under test: what it sends once it is up, what it got.
    struct frame_header say;
    struct control_bytes say_control;
    int times;
    bool up, closed;
    struct frame_header got;
    char got_text[CONTROL_TEXT_MAX];
    bool got_retry;
    uint8_t got_payload[16];
    struct link *peer, *good;
};

static void on_joined(void *arg, uint64_t node, uint64_t memory_bytes) {
    (void)node;
    (void)memory_bytes;
    ((struct world *)arg)->n_joined++;
}
static void on_lost(void *arg, uint64_t node, const char *why) {
    (void)node;
    (void)why;
    ((struct world *)arg)->n_lost++;
}
static void on_beat(void *arg, uint64_t node, uint32_t epoch, const struct cluster_stage_state *states,
                    uint32_t n_states, uint64_t loading_bytes) {
    (void)arg;
    (void)node;
    (void)epoch;
    (void)states;
    (void)n_states;
    (void)loading_bytes;
}
static void on_ready(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    (void)arg;
    (void)node;
    (void)epoch;
    (void)stage;
}
static void on_failed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage, enum stage_failure what,
                      const char *why) {
    (void)arg;
    (void)node;
    (void)epoch;
    (void)stage;
    (void)what;
    (void)why;
}
static void on_leave(void *arg, uint64_t node, bool leave, const char *why) {
    (void)arg;
    (void)node;
    (void)leave;
    (void)why;
}
static void on_result(void *arg, uint64_t node, const struct step_result *r) {
    (void)node;
    (void)r;
    ((struct world *)arg)->n_results++;
}

static void on_give_up(void *arg) { loop_stop(((struct world *)arg)->loop); }

static void run_ms(struct world *w, uint64_t ms) {
    loop_timer_set(w->give_up, clock_now_us() + ms * 1000);
    loop_run(w->loop);
    loop_timer_set(w->give_up, UINT64_MAX);
}

static void p_up(void *arg, struct link *l) {
    struct world *w = arg;
    w->up = true;
    link_set_limits(l, 256 << 10, LIMIT_CONFIG_BYTES, LINK_QUEUE_BYTES);
    for (int i = 0; i < w->times; i++) {
        link_send_control(l, w->say, w->say_control);
        w->say.step++;
        if (w->say.type == FRAME_BULK) { // the questions follow
            w->say.type = FRAME_FETCH;
            struct control_fetch f = {.name = "w", .bytes = 4, .offset = w->say.rows};
            w->say_control = control_put_fetch(w->control, &f);
        }
    }
}

static void p_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct world *w = arg;
    (void)l;
    w->got = f->h;
    if (f->h.type == FRAME_REFUSED)
        assert_int_equal(
            control_get_refused(w->control, f->control, f->h.control_bytes, w->got_text, &w->got_retry, NULL), ERR_OK);
    if (f->payload && f->h.payload_bytes <= sizeof w->got_payload)
        memcpy(w->got_payload, f->payload, f->h.payload_bytes);
    loop_stop(w->loop);
}

static void p_closed(void *arg, struct link *l, const char *why) {
    struct world *w = arg;
    (void)why;
    if (l == w->peer) w->peer = NULL;
    if (l == w->good) w->good = NULL;
    w->closed = true;
    loop_stop(w->loop);
}

static const struct link_handlers peer_handlers = {.up = p_up, .frame = p_frame, .closed = p_closed};

static void address_of(const struct world *w, char out[64]) { snprintf(out, 64, "127.0.0.1:%u", links_port(w->links)); }

// Connects, says it, and runs until an answer or the end.
static struct link *say(struct world *w, struct tls *tls, struct frame_header h, struct control_bytes c, int times) {
    char address[64];
    struct err e;
    address_of(w, address);
    w->say = h;
    w->say_control = c;
    w->times = times;
    w->up = w->closed = false;
    w->got = (struct frame_header){0};
    w->got_text[0] = 0;
    assert_int_equal(link_connect(w->loop, tls, address, CA_HEAD_NAME, &peer_handlers, w, &w->peer, &e), ERR_OK);
    run_ms(w, 20000);
    return w->peer;
}

static void hang_up(struct world *w) {
    link_close(w->peer);
    w->peer = NULL;
    run_ms(w, 20);
}

static struct control_join join_message(void) {
    struct control_join m = {.ln = CONTROL_LN, .port = 9, .selftest = selftest, .memory_bytes = 1 << 20};
    strcpy(m.name, "t");
    return m;
}

static void enrol_self(struct world *w, struct token *token) {
    char address[64], text[TOKEN_TEXT_MAX];
    struct err e;
    struct ident *id;
    struct ca *ca;
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    size_t csr_bytes, cert_bytes;
    char name[CA_NAME_MAX];
    address_of(w, address);
    const struct token_wish wish = {.address = address, .uses = 1, .ttl_s = 60};
    assert_int_equal(token_create(state_dir, &wish, text, sizeof text, &e), ERR_OK);
    assert_int_equal(token_parse(text, token, &e), ERR_OK);
    assert_int_equal(ca_open(state_dir, &ca, &e), ERR_OK);
    assert_int_equal(ident_new(&id, &e), ERR_OK);
    assert_int_equal(ident_csr(id, csr, &csr_bytes, &e), ERR_OK);
    assert_int_equal(ca_issue(ca, csr, csr_bytes, cert, &cert_bytes, name, &e), ERR_OK);
    ca_fingerprint(ca, print);
    size_t root_bytes = ca_certificate(ca, root);
    assert_int_equal(ident_accept(id, cert, cert_bytes, root, root_bytes, print, &e), ERR_OK);
    assert_int_equal(tls_new(id, TLS_CONNECT, &w->tls, &e), ERR_OK);
    ident_free(id);
    ca_free(ca);
}

static void enrol_badly(struct world *w, struct tls *naked, const struct token *token) {
    const struct frame_header join_frame = {.type = FRAME_JOIN}, enrol_frame = {.type = FRAME_ENROL};
    struct err e;
    // Without a certificate: anything but ENROL ends the connection.
    struct control_join join = join_message();
    say(w, naked, join_frame, control_put_join(w->control, &join), 1);
    assert_true(w->up && w->closed);
    assert_int_equal(w->n_joined, 0);

    // ENROL with a wrong secret, with the right one, and the right one again.
    struct control_enrol enrol = {0};
    struct ident *id;
    size_t n;
    assert_int_equal(ident_new(&id, &e), ERR_OK);
    assert_int_equal(ident_csr(id, enrol.csr, &n, &e), ERR_OK);
    enrol.csr_bytes = (uint32_t)n;
    ident_free(id);
    memcpy(enrol.secret, token->secret, sizeof enrol.secret);
    enrol.secret[0] ^= 1;
    say(w, naked, enrol_frame, control_put_enrol(w->control, &enrol), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    hang_up(w);
    enrol.secret[0] ^= 1;
    enrol.csr[40] ^= 1; // a broken request does not use the token up
    say(w, naked, enrol_frame, control_put_enrol(w->control, &enrol), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    hang_up(w);
    enrol.csr[40] ^= 1;
    say(w, naked, enrol_frame, control_put_enrol(w->control, &enrol), 1);
    assert_int_equal(w->got.type, FRAME_ENROLLED);
    hang_up(w);
    say(w, naked, enrol_frame, control_put_enrol(w->control, &enrol), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    assert_non_null(strstr(w->got_text, "used up"));
    hang_up(w);
}

static void join_badly(struct world *w) {
    const struct frame_header join_frame = {.type = FRAME_JOIN};
    struct control_join join = join_message();
    // Nodes that would compute other numbers are told why they may not join.
    join.ln = 2;
    say(w, w->tls, join_frame, control_put_join(w->control, &join), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    assert_non_null(strstr(w->got_text, "version 2 of the numeric contract"));
    hang_up(w);
    join = join_message();
    join.selftest ^= 1;
    say(w, w->tls, join_frame, control_put_join(w->control, &join), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    assert_non_null(strstr(w->got_text, "self-test"));
    hang_up(w);
}

static void ask_badly(struct world *w) {
    const struct frame_header join_frame = {.type = FRAME_JOIN};
    // Weights: what is there, what is not, too many questions at once, a frame that is no question.
    say(w, w->tls, (struct frame_header){.type = FRAME_BULK, .rows = 2}, (struct control_bytes){0}, 2);
    assert_int_equal(w->got.type, FRAME_CHUNK);
    assert_memory_equal(w->got_payload, "\3\4\5\6", 4);
    hang_up(w);
    say(w, w->tls, (struct frame_header){.type = FRAME_BULK, .rows = 5}, (struct control_bytes){0}, 2);
    assert_true(w->closed); // 5 + 4 > 8 bytes
    say(w, w->tls, (struct frame_header){.type = FRAME_BULK, .rows = 2}, (struct control_bytes){0}, 1000);
    for (int i = 0; i < 50 && !w->closed; i++) run_ms(w, 200);
    assert_true(w->closed);
    say(w, w->tls, (struct frame_header){.type = FRAME_STEP}, (struct control_bytes){0}, 1);
    assert_true(w->closed);
    // A control part that is no message, a name that is no text, memory that nobody has: told why.
    say(w, w->tls, join_frame, (struct control_bytes){(const uint8_t *)"\xff\xff\xff", 3}, 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    hang_up(w);
    say(w, w->tls, join_frame, (struct control_bytes){(const uint8_t *)"\x28\x09\x32\x02\xc3\x28", 6}, 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    assert_non_null(strstr(w->got_text, "JOIN: name"));
    hang_up(w);
    struct control_join join = join_message();
    join.memory_bytes = UINT64_MAX;
    say(w, w->tls, join_frame, control_put_join(w->control, &join), 1);
    assert_int_equal(w->got.type, FRAME_REFUSED);
    assert_non_null(strstr(w->got_text, "memory_bytes"));
    hang_up(w);
}

static void test_bad_manners(void **state) {
    (void)state;
    struct world w = {0};
    struct err e;
    struct token token;
    struct tls *naked;
    struct links_handlers h = {&w, on_joined, on_lost, on_beat, on_ready, on_ready, on_failed, on_leave, on_result};
    const struct links_config c = {.state_dir = state_dir,
                                   .listen_addr = "127.0.0.1:0",
                                   .heartbeat_us = 50000,
                                   .model = {.name = "t",
                                             .config_json = config_json,
                                             .config_bytes = sizeof config_json - 1,
                                             .hparams = &hparams,
                                             .max_rows = 64,
                                             .max_context = 512,
                                             .tensors = tensors}};
    assert_int_equal(loop_new(&w.loop, &e), ERR_OK);
    w.control = control_new();
    w.give_up = loop_timer_new(w.loop, on_give_up, &w);
    if (links_new(w.loop, &c, &h, &w.links, &e)) fail_msg("%s", e.text);
    enrol_self(&w, &token);
    assert_int_equal(tls_new_enrol(token.fingerprint, &naked, &e), ERR_OK);
    enrol_badly(&w, naked, &token);
    join_badly(&w);

    // One that behaves.
    const struct frame_header join_frame = {.type = FRAME_JOIN};
    struct control_join join = join_message();
    w.good = say(&w, w.tls, join_frame, control_put_join(w.control, &join), 1);
    w.peer = NULL;
    assert_int_equal(w.got.type, FRAME_WELCOME);
    assert_int_equal(w.n_joined, 1);

    // Tokens of a node that has no stage are not believed.
    struct step_result r = {.n = 1};
    link_send_control(w.good, (struct frame_header){.type = FRAME_TOKENS, .epoch = 4},
                      control_put_tokens(w.control, &r));
    run_ms(&w, 50);
    assert_int_equal(w.n_results, 0);

    ask_badly(&w);
    assert_non_null(w.good);
    assert_int_equal(w.n_lost, 0);
    struct links_node nodes[2];
    assert_int_equal(links_nodes(w.links, nodes, 2), 1);

    // Another process with the same certificate has to wait while the first is heard.
    struct control_join copy = join_message();
    copy.boot = 2;
    link_send_control(w.good, (struct frame_header){.type = FRAME_HEARTBEAT},
                      control_put_heartbeat(w.control, &(struct control_heartbeat){.time_us = 1}));
    run_ms(&w, 1000); // until the echo
    assert_int_equal(w.got.type, FRAME_ECHO);
    say(&w, w.tls, join_frame, control_put_join(w.control, &copy), 1);
    assert_int_equal(w.got.type, FRAME_REFUSED);
    assert_true(w.got_retry);
    assert_non_null(strstr(w.got_text, "each machine needs its own --state"));
    hang_up(&w);
    assert_non_null(w.good);
    assert_int_equal(w.n_joined, 1);

    // The same process joins again: the first link is the one that goes.
    say(&w, w.tls, join_frame, control_put_join(w.control, &join), 1);
    for (int i = 0; i < 50 && w.good; i++) run_ms(&w, 200);
    assert_null(w.good);
    assert_int_equal(w.n_joined, 2);
    assert_int_equal(w.n_lost, 1);
    assert_int_equal(links_nodes(w.links, nodes, 2), 1);

    // Another process, when the first has been silent for long enough.
    w.good = w.peer;
    clock_sleep_ms(700); // 3 heartbeats and 500 ms
    say(&w, w.tls, join_frame, control_put_join(w.control, &copy), 1);
    for (int i = 0; i < 50 && w.good; i++) run_ms(&w, 200);
    assert_null(w.good);
    assert_int_equal(w.n_joined, 3);
    assert_int_equal(w.n_lost, 2);

    // One head a folder.
    struct links *second;
    assert_int_equal(links_new(w.loop, &c, &h, &second, &e), ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, state_dir));

    // What still shakes hands when the head leaves, leaves with it.
    struct link *late;
    char address[64];
    address_of(&w, address);
    assert_int_equal(link_connect(w.loop, w.tls, address, CA_HEAD_NAME, &peer_handlers, &w, &late, &e), ERR_OK);
    for (int i = 0; i < 3; i++) run_ms(&w, 0);
    link_close(w.peer);
    links_free(w.links);
    link_close(late);
    tls_free(naked);
    tls_free(w.tls);
    loop_timer_free(w.give_up);
    control_free(w.control);
    loop_free(w.loop);
}

int main(void) {
    static const char header[64] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}       ";
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    model_file[0] = 64;
    memset(model_file + 8, ' ', 64);
    memcpy(model_file + 8, header, strlen(header));
    for (int i = 0; i < 8; i++) model_file[72 + i] = (uint8_t)(i + 1);
    strcpy(state_dir, "/tmp/loom-hostile-test-XXXXXX");
    struct selftest_result r;
    if (!mkdtemp(state_dir) || model_parse_config(config_json, sizeof config_json - 1, &hparams, &e) ||
        tensors_open_memory(model_file, sizeof model_file, &tensors, &e) || selftest_run(isa_best(), &r, &e)) {
        printf("%s\n", e.text);
        return 1;
    }
    selftest = selftest_digest(&r);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_manners)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", state_dir);
    if (system(command)) rc = 1;
    tensors_free(tensors);
    return rc;
}
