// Senders that are faster than a stage computes: however much they have, the stage never fails for it, and everything
// arrives. Links are real ones; the stage computes one job at a time, when a timer says so.
#include "node/node_int.h"
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

enum { HIDDEN = 128, ROWS = 64, BLOCKS = 512, BOUND = 1 << 20, TIMES = 3, EPOCH = 4, STAGE = 1 };
enum { PIECE_BYTES = ROWS * (2 * HIDDEN + 1), N_PIECES = TIMES * BOUND / PIECE_BYTES + 1 };

struct bench {
    struct node n;
    struct assignment a, before; // `before` sends to it within this node
    struct loop_timer *compute, *give_up;
    struct link *client;
    uint32_t n_sent, n_done, n_holds;
    uint64_t at_most_bytes;
    bool closed, has_failed;
};

static char dir[] = "/tmp/loom-feed-test-XXXXXX";
static struct ca *ca;
static struct ident *head, *node;
static struct step *piece;
static uint8_t hidden[ROWS * 2 * HIDDEN], fault[ROWS];

// Piece i of a replay as of step 9: sequence i / 4 from position i % 4 * ROWS on.
static void make_piece(uint32_t i) {
    step_clear(piece);
    piece->id = 9;
    piece->epoch = EPOCH;
    piece->n_seqs = 1;
    piece->n_rows = ROWS;
    piece->n_blocks = 1;
    piece->blocks[0] = i % BLOCKS;
    piece->seqs[0] =
        (struct step_seq){.slot = i / 4, .pos = i % 4 * ROWS, .n_rows = ROWS, .first_block = i % 4, .n_blocks = 1};
    for (uint32_t r = 0; r < ROWS; r++) piece->tokens[r] = (int32_t)(i * 7 + r) % 1000;
    memset(hidden, (int)(i % 251), sizeof hidden);
}

static void watch(struct bench *b) {
    struct holder_counts c;
    holder_counts(b->a.holder, &c);
    if (c.used_bytes > b->at_most_bytes) b->at_most_bytes = c.used_bytes;
    b->has_failed |= b->a.state == ASSIGN_FAILED;
}

static void on_compute(void *arg) {
    struct bench *b = arg;
    const struct holder_job *job = holder_next(b->a.holder);
    watch(b);
    if (job) {
        make_piece(b->n_done);
        assert_true(job->replay);
        assert_int_equal(job->step->n_rows, ROWS);
        assert_memory_equal(job->step->tokens, piece->tokens, ROWS * sizeof *piece->tokens);
        assert_memory_equal(job->hidden, hidden, sizeof hidden);
        assert_int_equal(job->fed, ++b->n_done == N_PIECES);
        bool was_full = b->a.full;
        struct holder_counts before, after;
        holder_done(b->a.holder, job);
        holder_counts(b->a.holder, &before);
        feed_check_room(&b->a);
        holder_counts(b->a.holder, &after); // who is of this node sends inside that call
        b->n_holds += was_full && (!b->a.full || after.used_bytes > before.used_bytes);
    }
    if (b->n_done == N_PIECES || b->has_failed)
        loop_stop(b->n.loop);
    else
        loop_timer_set(b->compute, clock_now_us() + 500);
}

static void on_settle(void *arg) { (void)arg; }

static void on_give_up(void *arg) { loop_stop(((struct bench *)arg)->n.loop); }

// An assignment whose layers are on their way: it takes steps, and no thread computes them.
static void make_assignment(struct bench *b, struct assignment *a, uint32_t stage) {
    struct err e;
    *a = (struct assignment){.node = &b->n,
                             .state = ASSIGN_LOADING,
                             .epoch = EPOCH,
                             .stage = stage,
                             .n_stages = 3,
                             .hidden = HIDDEN,
                             .n_vocab = 1000,
                             .hot = true,
                             .max_in_bytes = BOUND};
    a->key.n_blocks = BLOCKS;
    a->key.max_rows = ROWS;
    const struct holder_config in = {.hidden_bytes = 2 * HIDDEN, .max_rows = ROWS, .max_bytes = BOUND};
    assert_int_equal(holder_new(&in, &a->holder, &e), ERR_OK);
    list_push_back(&b->n.assignments, &a->all);
}

static void up(struct bench *b) {
    struct err e;
    memset(b, 0, sizeof *b);
    list_init(&b->n.assignments);
    list_init(&b->n.holds.all);
    assert_int_equal(loop_new(&b->n.loop, &e), ERR_OK);
    b->n.control = control_new();
    b->n.step = step_new();
    b->n.fault = malloc(LIMIT_STEP_ROWS);
    b->n.epoch = EPOCH;
    make_assignment(b, &b->a, STAGE);
    b->compute = loop_timer_new(b->n.loop, on_compute, b);
    b->n.settle_timer = loop_timer_new(b->n.loop, on_settle, b);
    b->give_up = loop_timer_new(b->n.loop, on_give_up, b);
}

static void down(struct bench *b) {
    holder_free(b->a.holder);
    loop_timer_free(b->compute);
    loop_timer_free(b->n.settle_timer);
    loop_timer_free(b->give_up);
    control_free(b->n.control);
    step_free(b->n.step);
    free(b->n.fault);
    loop_free(b->n.loop);
}

static void run(struct bench *b) {
    loop_timer_set(b->compute, 0);
    loop_timer_set(b->give_up, clock_now_us() + 30000000);
    loop_run(b->n.loop);
    assert_false(b->has_failed);
    assert_int_equal(b->n_done, N_PIECES);
    assert_true(b->n_holds > 2);
    assert_true(b->at_most_bytes > BOUND / 2 && b->at_most_bytes <= BOUND);
    assert_false(b->a.full);
    struct holder_counts c;
    holder_counts(b->a.holder, &c);
    assert_true(c.fed);
    assert_int_equal(c.done, 9);
    assert_int_equal(c.used_bytes, 0);
}

// --- by a link

static void r_up(void *arg, struct link *l) {
    struct bench *b = arg;
    link_settle(l);
    link_set_limits(l, 64 << 10, PIECE_BYTES, LINK_QUEUE_BYTES);
    b->n.attached[5] =
        (struct node_attached){.link = l, .epoch = EPOCH, .stage = STAGE - 1, .settled = true, .sender = 7};
}

static void r_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct bench *b = arg;
    (void)l;
    assert_false(b->a.full); // else the link is not read
    feed_arrived(&b->n, 7, f);
    watch(b);
}

static void on_closed(void *arg, struct link *l, const char *why) {
    struct bench *b = arg;
    (void)l;
    (void)why;
    b->closed = true;
    loop_stop(b->n.loop);
}

// It sends whenever there is room on the way.
static void s_pump(void *arg, struct link *l) {
    struct bench *b = arg;
    while (b->n_sent < N_PIECES && link_waiting_bytes(l) < LINK_LOW_BYTES) {
        make_piece(b->n_sent);
        const struct control_step_mark mark = {.first = b->n_sent == 0, .last = b->n_sent + 1 == N_PIECES};
        const struct frame_header h = {
            .type = FRAME_REPLAY, .epoch = EPOCH, .stage = STAGE, .step = 9, .rows = ROWS, .dtype = DT_BF16};
        link_send(l, h, control_put_step(b->n.control, piece, &mark), hidden, sizeof hidden, fault, sizeof fault);
        b->n_sent++;
    }
}

static void s_up(void *arg, struct link *l) {
    link_settle(l);
    s_pump(arg, l);
}

static void no_frame(void *arg, struct link *l, const struct link_frame *f) {
    (void)arg;
    (void)l;
    (void)f;
}

static const struct link_handlers receiver = {.up = r_up, .frame = r_frame, .closed = on_closed};
static const struct link_handlers sender = {.up = s_up, .frame = no_frame, .closed = on_closed, .drained = s_pump};

static void test_a_link_waits(void **state) {
    (void)state;
    struct bench *b = malloc(sizeof *b);
    struct err e;
    char address[64];
    struct tls *listens, *dials;
    struct listener *listener;
    up(b);
    assert_int_equal(tls_new(head, TLS_LISTEN, &listens, &e), ERR_OK);
    assert_int_equal(tls_new(node, TLS_CONNECT, &dials, &e), ERR_OK);
    assert_int_equal(listener_new(b->n.loop, listens, "127.0.0.1:0", &receiver, b, &listener, &e), ERR_OK);
    snprintf(address, sizeof address, "127.0.0.1:%u", listener_port(listener));
    assert_int_equal(link_connect(b->n.loop, dials, address, CA_HEAD_NAME, &sender, b, &b->client, &e), ERR_OK);
    run(b);
    assert_false(b->closed);
    assert_int_equal(b->n_sent, N_PIECES);
    link_close(b->client);
    link_close(b->n.attached[5].link);
    listener_free(listener);
    tls_free(listens);
    tls_free(dials);
    down(b);
    free(b);
}

// One that fails while it is full lets the link go on: what still comes is for nobody.
static void test_who_fails_holds_nobody(void **state) {
    (void)state;
    struct bench *b = malloc(sizeof *b);
    up(b);
    b->a.full = true;
    assign_fail(&b->a, "for a test");
    assert_false(b->a.full);
    down(b);
    free(b);
}

// --- within the node

static void test_the_node_itself_waits(void **state) {
    (void)state;
    struct bench *b = malloc(sizeof *b);
    struct err e;
    up(b);
    make_assignment(b, &b->before, STAGE - 1);
    const struct sent_config c = {.hidden_bytes = 2 * HIDDEN, .max_rows = ROWS, .max_bytes = 4 * TIMES * BOUND};
    struct next_holder next = {.owner = &b->before, .is_first = true, .is_local = true, .owes_replay = true};
    assert_int_equal(sent_new(&c, &b->before.sent, &e), ERR_OK);
    b->before.next[0] = &next;
    b->before.n_next = 1;
    b->before.state = ASSIGN_SERVING;
    for (uint32_t i = 0; i < N_PIECES; i++) {
        make_piece(i);
        sent_replayed(b->before.sent, 9, i + 1 == N_PIECES, piece, hidden, fault);
    }
    feed_open_all(&b->before);
    feed_pump(&b->before);
    assert_true(b->a.full);
    watch(b);
    run(b);
    sent_close(next.cursor);
    sent_free(b->before.sent);
    holder_free(b->before.holder);
    down(b);
    free(b);
}

static int setup(void **state) {
    (void)state;
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    size_t csr_bytes, cert_bytes;
    char name[CA_NAME_MAX];
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    piece = step_new();
    if (!piece || !mkdtemp(dir) || ca_open(dir, &ca, &e) || ident_new_head(ca, &head, &e) || ident_new(&node, &e))
        return -1;
    if (ident_csr(node, csr, &csr_bytes, &e) || ca_issue(ca, csr, csr_bytes, cert, &cert_bytes, name, &e)) return -1;
    size_t root_bytes = ca_certificate(ca, root);
    ca_fingerprint(ca, print);
    return ident_accept(node, cert, cert_bytes, root, root_bytes, print, &e);
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    step_free(piece);
    ident_free(head);
    ident_free(node);
    ca_free(ca);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_link_waits),
        cmocka_unit_test(test_who_fails_holds_nobody),
        cmocka_unit_test(test_the_node_itself_waits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
