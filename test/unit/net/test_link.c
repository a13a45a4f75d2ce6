// Links over loopback with real TLS, and peers that do not behave. The hostile ones are plain OpenSSL in a thread.
#include "net/link.h"
#include "os/clock.h"
#include "os/thread.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], other_dir[80];
static struct ca *ca, *other_ca;
static struct ident *head, *node, *stranger;

struct world {
    struct loop *loop;
    struct tls *listen_tls, *connect_tls;
    struct listener *listener;
    struct link *server, *client;
    struct loop_timer *give_up;
    struct control *control;
    int n_up, n_closed, n_frames, echoes, n_pumped, n_drained;
    char why[ERR_TEXT_MAX], peer_name[CA_NAME_MAX];
    uint32_t last_rows, last_bytes;
    bool server_answers, close_in_frame, held;
    uint64_t start_us;
};

static void s_up(void *arg, struct link *l) {
    struct world *w = arg;
    w->server = l;
    w->n_up++;
    snprintf(w->peer_name, sizeof w->peer_name, "%s", link_peer_name(l));
    link_set_limits(l, 256 << 10, 8 << 20, 16 << 20);
}

static void s_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct world *w = arg;
    w->n_frames++;
    w->last_rows = f->h.rows;
    w->last_bytes = f->h.payload_bytes;
    for (uint32_t i = 0; i < f->h.payload_bytes; i += 997) assert_int_equal(f->payload[i], (uint8_t)(i * 31));
    assert_int_equal((uintptr_t)f->payload % FRAME_ALIGN, 0);
    if (w->close_in_frame) {
        link_close(l);
        w->server = NULL;
        loop_stop(w->loop);
        return;
    }
    if (w->server_answers) link_send_control(l, f->h, (struct control_bytes){f->control, f->h.control_bytes});
}

static void s_closed(void *arg, struct link *l, const char *why) {
    struct world *w = arg;
    if (l == w->server) w->server = NULL;
    w->n_closed++;
    snprintf(w->why, sizeof w->why, "%s", why);
    loop_stop(w->loop);
}

static const struct link_handlers server_handlers = {.up = s_up, .frame = s_frame, .closed = s_closed};

static void on_give_up(void *arg) { loop_stop(((struct world *)arg)->loop); }

static void world_up(struct world *w, enum tls_role role) {
    struct err e;
    memset(w, 0, sizeof *w);
    assert_int_equal(loop_new(&w->loop, &e), ERR_OK);
    assert_int_equal(tls_new(head, role, &w->listen_tls, &e), ERR_OK);
    assert_int_equal(listener_new(w->loop, w->listen_tls, "127.0.0.1:0", &server_handlers, w, &w->listener, &e),
                     ERR_OK);
    w->give_up = loop_timer_new(w->loop, on_give_up, w);
    w->control = control_new();
}

static void world_down(struct world *w) {
    link_close(w->client);
    link_close(w->server);
    listener_free(w->listener);
    loop_timer_free(w->give_up);
    tls_free(w->listen_tls);
    tls_free(w->connect_tls);
    control_free(w->control);
    loop_free(w->loop);
}

static void run_ms(struct world *w, uint64_t ms) {
    loop_timer_set(w->give_up, clock_now_us() + ms * 1000);
    loop_run(w->loop);
    loop_timer_set(w->give_up, UINT64_MAX);
}

static void dial(struct world *w, const struct ident *who, const char *want, const struct link_handlers *h) {
    char address[64];
    struct err e;
    snprintf(address, sizeof address, "127.0.0.1:%u", listener_port(w->listener));
    assert_int_equal(tls_new(who, TLS_CONNECT, &w->connect_tls, &e), ERR_OK);
    assert_int_equal(link_connect(w->loop, w->connect_tls, address, want, h, w, &w->client, &e), ERR_OK);
}

// A well-behaved client: sends frames of growing size, each once the one before came back.
static void send_next(struct world *w) {
    static const uint32_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000, 1 << 20, 5 << 20};
    if (w->echoes == (int)(sizeof sizes / sizeof sizes[0])) {
        loop_stop(w->loop);
        return;
    }
    uint32_t n = sizes[w->echoes], half = n / 2;
    uint8_t *payload = malloc(n + 1);
    for (uint32_t i = 0; i < n; i++) payload[i] = (uint8_t)(i * 31);
    struct frame_header h = {.type = FRAME_STEP, .rows = n, .epoch = 5};
    link_send(w->client, h, control_put_text(w->control, "hello"), payload, half, payload + half, n - half);
    free(payload);
}

static void c_up(void *arg, struct link *l) {
    struct world *w = arg;
    assert_string_equal(link_peer_name(l), CA_HEAD_NAME);
    link_set_limits(l, 256 << 10, 0, 16 << 20);
    send_next(w);
}

static void c_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct world *w = arg;
    char text[CONTROL_TEXT_MAX];
    (void)l;
    assert_int_equal(control_get_text(w->control, f->control, f->h.control_bytes, text, NULL), ERR_OK);
    assert_string_equal(text, "hello");
    assert_int_equal(f->h.rows, w->last_rows);
    assert_int_equal(w->last_rows, w->last_bytes);
    w->echoes++;
    send_next(w);
}

static void c_closed(void *arg, struct link *l, const char *why) {
    struct world *w = arg;
    assert_ptr_equal(l, w->client);
    w->client = NULL;
    w->n_closed++;
    snprintf(w->why, sizeof w->why, "%s", why);
    loop_stop(w->loop);
}

static const struct link_handlers client_handlers = {.up = c_up, .frame = c_frame, .closed = c_closed};

static void test_frames_go_both_ways(void **state) {
    (void)state;
    struct world w;
    world_up(&w, TLS_LISTEN);
    w.server_answers = true;
    dial(&w, node, CA_HEAD_NAME, &client_handlers);
    run_ms(&w, 20000);
    assert_int_equal(w.echoes, 9);
    assert_int_equal(w.n_closed, 0);
    assert_string_equal(w.peer_name, ident_name(node));
    assert_int_equal(link_sent_bytes(w.client), link_received_bytes(w.server));
    world_down(&w);
}

static void test_close_inside_a_callback(void **state) {
    (void)state;
    struct world w;
    world_up(&w, TLS_LISTEN);
    w.close_in_frame = true;
    dial(&w, node, CA_HEAD_NAME, &client_handlers);
    run_ms(&w, 20000);
    assert_int_equal(w.n_frames, 1);
    run_ms(&w, 20000); // the client sees the end
    assert_int_equal(w.n_closed, 1);
    assert_null(w.client);
    world_down(&w);
}

static void nothing_up(void *arg, struct link *l) {
    (void)arg;
    (void)l;
}
static const struct link_handlers idle_handlers = {.up = nothing_up, .frame = c_frame, .closed = c_closed};

static void test_strangers_stay_out(void **state) {
    (void)state;
    struct world w;
    // A certificate of another CA: neither side takes the other.
    world_up(&w, TLS_LISTEN_OPEN);
    dial(&w, stranger, CA_HEAD_NAME, &idle_handlers);
    run_ms(&w, 20000);
    assert_int_equal(w.n_up, 0);
    assert_true(w.n_closed >= 1);
    world_down(&w);
    // The right CA, but not the peer that was meant: a node may not play the head.
    world_up(&w, TLS_LISTEN);
    dial(&w, node, "node-of-somebody-else", &idle_handlers);
    run_ms(&w, 20000);
    assert_int_equal(w.n_up, 0);
    assert_true(w.n_closed >= 1);
    world_down(&w);
    // Enrolment: the wrong fingerprint ends the handshake, before any secret could be sent.
    world_up(&w, TLS_LISTEN_OPEN);
    uint8_t print[CA_FINGERPRINT_BYTES];
    char address[64];
    struct err e;
    ca_fingerprint(other_ca, print);
    snprintf(address, sizeof address, "127.0.0.1:%u", listener_port(w.listener));
    assert_int_equal(tls_new_enrol(print, &w.connect_tls, &e), ERR_OK);
    assert_int_equal(link_connect(w.loop, w.connect_tls, address, CA_HEAD_NAME, &idle_handlers, &w, &w.client, &e),
                     ERR_OK);
    run_ms(&w, 20000);
    assert_int_equal(w.n_up, 0);
    assert_true(w.n_closed >= 1);
    world_down(&w);
}

static void test_nobody_listens(void **state) {
    (void)state;
    struct world w;
    world_up(&w, TLS_LISTEN);
    struct err e;
    uint32_t port = listener_port(w.listener);
    listener_free(w.listener);
    w.listener = NULL;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    assert_int_equal(tls_new(node, TLS_CONNECT, &w.connect_tls, &e), ERR_OK);
    assert_int_equal(link_connect(w.loop, w.connect_tls, address, CA_HEAD_NAME, &idle_handlers, &w, &w.client, &e),
                     ERR_OK);
    run_ms(&w, 20000);
    assert_int_equal(w.n_closed, 1);
    assert_non_null(strstr(w.why, "refused"));
    assert_int_equal(link_connect(w.loop, w.connect_tls, "no port", "", &idle_handlers, &w, &w.client, &e), ERR_USAGE);
    world_down(&w);
}

// What a hostile client does, in a thread of its own.
struct hostile {
    uint32_t port;
    int max_version; // TLS1_2_VERSION or TLS1_3_VERSION
    bool plain, with_cert, reads_never;
    const void *bytes; // sent after the handshake
    size_t len;
    bool shook;
    int got; // bytes that came back, or <= 0
    struct thread thread;
    char dir[80];
};

static void be_hostile(void *arg) {
    struct hostile *h = arg;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa)) return;
    char buf[64];
    if (h->plain) {
        if (write(fd, h->bytes, h->len) < 0) h->got = -1;
        h->got = (int)read(fd, buf, sizeof buf);
        close(fd);
        return;
    }
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(ctx, h->max_version);
    if (h->with_cert) {
        char path[128];
        snprintf(path, sizeof path, "%s/node.crt", h->dir);
        SSL_CTX_use_certificate_file(ctx, path, SSL_FILETYPE_PEM);
        snprintf(path, sizeof path, "%s/node.key", h->dir);
        SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM);
    }
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    h->shook = SSL_connect(ssl) == 1;
    if (h->shook && h->len) SSL_write(ssl, h->bytes, (int)h->len);
    if (h->reads_never)
        clock_sleep_ms(1500);
    else
        h->got = SSL_read(ssl, buf, sizeof buf);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
}

static void attack(struct world *w, struct hostile *h) {
    struct err e;
    h->port = listener_port(w->listener);
    snprintf(h->dir, sizeof h->dir, "%s", dir);
    assert_int_equal(thread_start(&h->thread, "hostile", be_hostile, h, &e), ERR_OK);
}

static void test_hostile_handshakes(void **state) {
    (void)state;
    struct world w;
    world_up(&w, TLS_LISTEN);
    struct hostile old = {.max_version = TLS1_2_VERSION, .with_cert = true};
    attack(&w, &old);
    run_ms(&w, 20000);
    thread_join(&old.thread);
    assert_false(old.shook);
    assert_int_equal(w.n_up, 0);
    assert_int_equal(w.n_closed, 1);

    struct hostile naked = {.max_version = TLS1_3_VERSION}; // in TLS 1.3 the client learns of it with its first read
    attack(&w, &naked);
    run_ms(&w, 20000);
    thread_join(&naked.thread);
    assert_true(naked.got <= 0);
    assert_int_equal(w.n_up, 0);
    assert_int_equal(w.n_closed, 2);

    struct hostile plain = {.plain = true, .bytes = "GET / HTTP/1.1\r\n\r\n", .len = 18};
    attack(&w, &plain);
    run_ms(&w, 20000);
    thread_join(&plain.thread);
    assert_int_equal(w.n_up, 0);
    assert_int_equal(w.n_closed, 3);
    world_down(&w);
}

static void test_garbage_after_the_handshake(void **state) {
    (void)state;
    struct world w;
    world_up(&w, TLS_LISTEN);
    static uint8_t garbage[4096];
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (uint8_t)(i * 7);
    struct hostile h = {.max_version = TLS1_3_VERSION, .with_cert = true, .bytes = garbage, .len = sizeof garbage};
    attack(&w, &h);
    run_ms(&w, 20000);
    thread_join(&h.thread);
    assert_int_equal(w.n_up, 1);
    assert_int_equal(w.n_frames, 0);
    assert_int_equal(w.n_closed, 1);
    assert_non_null(strstr(w.why, "LOOM"));

    // A header that promises 256 MB: refused before a byte of it is waited for.
    uint8_t raw[FRAME_HEADER_BYTES];
    struct frame_header lie = {.type = FRAME_STEP, .payload_bytes = LIMIT_FRAME_PAYLOAD};
    frame_pack(&lie, raw);
    struct hostile liar = {.max_version = TLS1_3_VERSION, .with_cert = true, .bytes = raw, .len = sizeof raw};
    attack(&w, &liar);
    run_ms(&w, 20000);
    thread_join(&liar.thread);
    assert_int_equal(w.n_closed, 2);
    assert_non_null(strstr(w.why, "payload bytes"));
    world_down(&w);
}

// Connections that say nothing; returns how many could be opened.
static int open_idle(const struct world *w, int *fds, int n) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)listener_port(w->listener))};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < n; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&sa, sizeof sa)) return i;
    }
    return n;
}

static void i_closed(void *arg, struct link *l, const char *why) {
    struct world *w = arg;
    if (l == w->server) w->server = NULL;
    if (strstr(why, "too many")) w->n_closed++;
}
static const struct link_handlers idle_server_handlers = {.up = s_up, .frame = s_frame, .closed = i_closed};

// Those who say nothing do not keep others out; what is still shaking hands at the end goes with the listener.
static void test_idle_connections(void **state) {
    (void)state;
    struct world w;
    struct err e;
    static int fds[LIMIT_LINKS + 44];
    world_up(&w, TLS_LISTEN_OPEN);
    listener_free(w.listener);
    assert_int_equal(listener_new(w.loop, w.listen_tls, "127.0.0.1:0", &idle_server_handlers, &w, &w.listener, &e),
                     ERR_OK);
    w.server_answers = true;
    int n = 0;
    while (n < LIMIT_LINKS + 44) { // the backlog holds fewer at once
        int some = open_idle(&w, fds + n, 25);
        assert_int_equal(some, 25);
        n += some;
        run_ms(&w, 20);
    }
    assert_int_equal(w.n_closed, n - LIMIT_LINKS_UNPROVEN);
    dial(&w, node, CA_HEAD_NAME, &client_handlers);
    run_ms(&w, 4000); // before they are told to go for being silent
    assert_int_equal(w.echoes, 9);
    link_close(w.client);
    w.client = NULL;
    world_down(&w);
    for (int i = 0; i < n; i++) close(fds[i]);
}

static void f_up(void *arg, struct link *l) {
    static uint8_t chunk[1 << 20];
    s_up(arg, l);
    link_settle(l);
    for (int i = 0; i < 64; i++)
        link_send(l, (struct frame_header){.type = FRAME_CHUNK}, (struct control_bytes){0}, chunk, sizeof chunk, NULL,
                  0);
}
static const struct link_handlers flood_handlers = {.up = f_up, .frame = s_frame, .closed = s_closed};

static void test_slow_reader(void **state) {
    (void)state;
    struct world w;
    struct err e;
    world_up(&w, TLS_LISTEN);
    listener_free(w.listener);
    assert_int_equal(listener_new(w.loop, w.listen_tls, "127.0.0.1:0", &flood_handlers, &w, &w.listener, &e), ERR_OK);
    struct hostile h = {.max_version = TLS1_3_VERSION, .with_cert = true, .reads_never = true};
    attack(&w, &h);
    run_ms(&w, 20000);
    assert_int_equal(w.n_up, 1);
    assert_int_equal(w.n_closed, 1);
    assert_non_null(strstr(w.why, "too slowly"));
    thread_join(&h.thread);
    world_down(&w);
}

// A sender that goes by what waits: it never has more than a frame above the mark, and is called when there is room.
enum { PUMP_FRAMES = 400, PUMP_BYTES = 50000 };

static void p_pump(void *arg, struct link *l) {
    static uint8_t payload[PUMP_BYTES];
    struct world *w = arg;
    for (uint32_t i = 0; i < PUMP_BYTES; i++) payload[i] = (uint8_t)(i * 31);
    w->n_drained++;
    while (w->n_pumped < PUMP_FRAMES && link_waiting_bytes(l) < LINK_LOW_BYTES) {
        link_set_bulk(l, w->n_pumped < PUMP_FRAMES / 2); // no frame is hurt when it changes
        struct frame_header h = {.type = FRAME_STEP, .rows = (uint32_t)w->n_pumped++};
        link_send(l, h, (struct control_bytes){0}, payload, PUMP_BYTES, NULL, 0);
        if (link_waiting_bytes(l) > LINK_LOW_BYTES + PUMP_BYTES + FRAME_HEADER_BYTES) w->n_drained = -1000;
    }
}

static void p_up(void *arg, struct link *l) {
    link_settle(l);
    p_pump(arg, l);
}

// The other end closes the link with the last frame: output below the mark calls nobody then.
static void p_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct world *w = arg;
    assert_int_equal(f->h.rows, w->n_frames);
    w->n_frames++;
    assert_int_equal(f->payload[PUMP_BYTES - 1], (uint8_t)((PUMP_BYTES - 1) * 31));
    if (w->n_frames < PUMP_FRAMES) return;
    link_close(l);
    w->server = NULL;
}
static const struct link_handlers pump_handlers = {.up = p_up, .frame = c_frame, .closed = c_closed, .drained = p_pump};
static const struct link_handlers sink_handlers = {.up = s_up, .frame = p_frame, .closed = s_closed};

static void test_room_is_told(void **state) {
    (void)state;
    struct world w;
    struct err e;
    world_up(&w, TLS_LISTEN);
    listener_free(w.listener);
    assert_int_equal(listener_new(w.loop, w.listen_tls, "127.0.0.1:0", &sink_handlers, &w, &w.listener, &e), ERR_OK);
    dial(&w, node, CA_HEAD_NAME, &pump_handlers);
    run_ms(&w, 20000);
    assert_int_equal(w.n_frames, PUMP_FRAMES);
    assert_int_equal(w.n_closed, 1); // the shutdown reached the sender
    assert_null(w.client);
    assert_true(w.n_drained > 2);
    world_down(&w);
}

// A link that is held: nothing arrives, and the sender has to wait; afterwards everything comes, in order. It is held
// again inside every 20th frame.
static void h_frame(void *arg, struct link *l, const struct link_frame *f) {
    struct world *w = arg;
    assert_false(w->held);
    assert_int_equal(f->h.rows, w->n_frames);
    w->n_frames++;
    assert_int_equal(f->payload[PUMP_BYTES - 1], (uint8_t)((PUMP_BYTES - 1) * 31));
    if (w->n_frames % 20 && w->n_frames < PUMP_FRAMES) return;
    link_hold(l, true);
    w->held = true;
    loop_stop(w->loop);
}
static const struct link_handlers held_handlers = {.up = s_up, .frame = h_frame, .closed = s_closed};

static void test_hold(void **state) {
    (void)state;
    struct world w;
    struct err e;
    int n_holds = 0;
    world_up(&w, TLS_LISTEN);
    listener_free(w.listener);
    assert_int_equal(listener_new(w.loop, w.listen_tls, "127.0.0.1:0", &held_handlers, &w, &w.listener, &e), ERR_OK);
    dial(&w, node, CA_HEAD_NAME, &pump_handlers);
    while (w.n_frames < PUMP_FRAMES) {
        run_ms(&w, 20000);
        assert_true(w.held); // by the frame that came last
        assert_int_equal(w.n_frames, 20 * ++n_holds);
        if (n_holds < 4) run_ms(&w, 100); // whatever there is to come does not
        if (n_holds == 1) assert_true(w.n_pumped < PUMP_FRAMES && link_waiting_bytes(w.client) >= LINK_LOW_BYTES);
        int before = w.n_frames;
        w.held = false;
        link_hold(w.server, false);
        assert_int_equal(w.n_frames, before); // not inside the call
    }
    // One that is held can be closed, and so can one whose frames are on their way.
    link_hold(w.server, true);
    link_hold(w.server, false);
    link_close(w.server);
    w.server = NULL;
    run_ms(&w, 20000);
    assert_null(w.client);
    world_down(&w);
}

static void make_ident(struct ca *from, const char *where, struct ident **id) {
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    size_t csr_bytes, cert_bytes;
    char name[CA_NAME_MAX];
    struct err e;
    int rc = ident_new(id, &e);
    if (!rc) rc = ident_csr(*id, csr, &csr_bytes, &e);
    if (!rc) rc = ca_issue(from, csr, csr_bytes, cert, &cert_bytes, name, &e);
    size_t root_bytes = ca_certificate(from, root);
    ca_fingerprint(from, print);
    if (!rc) rc = ident_accept(*id, cert, cert_bytes, root, root_bytes, print, &e);
    if (!rc) rc = ident_save(*id, where, &e);
    assert_int_equal(rc, ERR_OK);
}

static int setup(void **state) {
    (void)state;
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    strcpy(dir, "/tmp/loom-link-test-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(other_dir, sizeof other_dir, "%s/other", dir);
    if (ca_open(dir, &ca, &e) || ca_open(other_dir, &other_ca, &e) || ident_new_head(ca, &head, &e)) return -1;
    make_ident(ca, dir, &node);
    make_ident(other_ca, other_dir, &stranger);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    ident_free(head);
    ident_free(node);
    ident_free(stranger);
    ca_free(ca);
    ca_free(other_ca);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_go_both_ways), cmocka_unit_test(test_close_inside_a_callback),
        cmocka_unit_test(test_strangers_stay_out),  cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_hostile_handshakes),  cmocka_unit_test(test_garbage_after_the_handshake),
        cmocka_unit_test(test_slow_reader),         cmocka_unit_test(test_idle_connections),
        cmocka_unit_test(test_room_is_told),        cmocka_unit_test(test_hold),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
