// Streams that break and go on: by the same process, by a later one, at every event.
#include "fixture.h"
#include "gateway/record.h"
#include "gateway/resume.h"

#define CHAT(more) "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true" more "}"
#define COMP(more) "{\"model\":\"demo\",\"prompt\":\"hi\",\"stream\":true" more "}"
#define USAGE      ",\"stream_options\":{\"include_usage\":true}"

enum { BLOCKS_MAX = 600 };

struct stream { // a body cut at its empty lines
    char *text;
    char *block[BLOCKS_MAX];
    uint32_t n;
};

static int start(void **state) {
    fx.config.resume_ms = 60000;
    return fx_start(state);
}

static int start_hasty(void **state) {
    fx.config.resume_ms = 300;
    return fx_start(state);
}

static int stop(void **state) {
    fx_stop(state);
    fx.config.resume_ms = 0;
    return 0;
}

static void cut(struct stream *s, const char *body) {
    *s = (struct stream){.text = strdup(body)};
    for (char *at = s->text, *end; *at; at = end + 2) {
        end = strstr(at, "\n\n");
        assert_non_null(end);
        *end = 0;
        if (at[0] != ':') s->block[s->n++] = at;
        assert_true(s->n < BLOCKS_MAX);
    }
}

// The server learns that all was delivered a moment after the client has it.
static void wait_unforgotten(uint32_t n) {
    for (int i = 0; fake_n_unforgotten(&fx.head) != n; i++) {
        assert_int_not_equal(i, 5000);
        clock_sleep_ms(2);
    }
}

// The id of a block, "" if it has none.
static const char *id_of(const char *block) {
    static char id[600];
    id[0] = 0;
    if (block && strncmp(block, "id: ", 4) == 0)
        snprintf(id, sizeof id, "%.*s", (int)strcspn(block + 4, "\n"), block + 4);
    return id;
}

static int send_post(const char *path, const char *body, const char *last) {
    char head[1200], more[700] = "";
    int fd = http_connect(fx.port);
    if (last) snprintf(more, sizeof more, "Last-Event-ID: %s\r\n", last);
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
             more, strlen(body));
    assert_true(http_send(fd, head, strlen(head)) && http_send(fd, body, strlen(body)));
    return fd;
}

static int send_get(const char *method, const char *id, const char *last) {
    char head[1200], more[700] = "";
    int fd = http_connect(fx.port);
    if (last) snprintf(more, sizeof more, "Last-Event-ID: %s\r\n", last);
    snprintf(head, sizeof head, "%s /loom/v1/answers/%s HTTP/1.1\r\nHost: x\r\n%s\r\n", method, id, more);
    assert_true(http_send(fd, head, strlen(head)));
    return fd;
}

static int read_all(int fd, struct stream *s) {
    struct response r;
    http_read(fd, &r);
    close(fd);
    cut(s, r.status == 200 ? http_text(&r) : "");
    int status = r.cut ? -r.status : r.status;
    http_fini(&r);
    return status;
}

// Reads blocks until n came; the connection stays open.
static void read_some(int fd, struct stream *s, uint32_t n) {
    struct response r;
    assert_true(http_read_head(fd, &r));
    assert_int_equal(r.status, 200);
    for (;;) {
        bool end = false;
        assert_true(http_read_chunk(fd, &r, &end) && !end);
        assert_non_null(buf_cstr(&r.body));
        cut(s, http_text(&r));
        if (s->n >= n) break;
        free(s->text);
    }
    http_fini(&r);
}

static void assert_tail(const struct stream *whole, uint32_t from, const struct stream *tail) {
    assert_int_equal(tail->n, whole->n - from);
    for (uint32_t i = 0; i < tail->n; i++) assert_string_equal(tail->block[i], whole->block[from + i]);
}

// After each event the rest is had again, byte by byte; also from the start.
static void resume_everywhere(const char *path, const char *body) {
    struct stream whole, tail;
    assert_int_equal(read_all(send_post(path, body, NULL), &whole), 200);
    assert_string_equal(whole.block[whole.n - 1], "data: [DONE]");
    char answer[40];
    snprintf(answer, sizeof answer, "%.*s", (int)strcspn(id_of(whole.block[0]), ":"), id_of(whole.block[0]));
    for (uint32_t i = 0; i + 1 < whole.n; i++) {
        char want[60];
        snprintf(want, sizeof want, "%s:%u", answer, i + 1); // numbered one by one
        assert_string_equal(id_of(whole.block[i]), want);
        assert_int_equal(read_all(send_post(path, i & 1 ? "{}" : body, want), &tail), 200);
        assert_tail(&whole, i + 1, &tail);
        free(tail.text);
        if (i % 5) continue;
        assert_int_equal(read_all(send_get("GET", answer, want), &tail), 200);
        assert_tail(&whole, i + 1, &tail);
        free(tail.text);
    }
    assert_int_equal(read_all(send_get("GET", answer, NULL), &tail), 200);
    assert_tail(&whole, 0, &tail);
    free(tail.text);
    free(whole.text);
    wait_unforgotten(0);
}

static void test_every_event(void **state) {
    (void)state;
    fx_script("<think>\nhm, 織云 well\n</think>\n\nYes 😀🧵, naïve.", true);
    resume_everywhere("/v1/chat/completions", CHAT(USAGE));
    resume_everywhere("/v1/chat/completions", CHAT(""));
    resume_everywhere("/v1/chat/completions", CHAT(",\"max_tokens\":7" USAGE));
    resume_everywhere("/v1/completions", COMP(",\"stop\":[\"naïv\",\"zzz\"]" USAGE));
    fx_script("round and round ", false);
    resume_everywhere("/v1/completions", COMP(",\"stop\":\"d rou\"" USAGE));
    resume_everywhere("/v1/completions", COMP(",\"max_tokens\":40"));
    uint32_t n = fake_n_unforgotten(&fx.head);
    json_decref(fx_ask("/v1/completions", "{\"model\":\"demo\",\"prompt\":\"hi\",\"max_tokens\":4}", 200));
    assert_int_equal(fake_n_unforgotten(&fx.head), n); // not streamed: nothing is kept
    assert_null(fx.head.last.keep);
}

static void set_hold(uint32_t after) {
    pthread_mutex_lock(&fx.head.lock);
    fx.head.hold_after = after;
    pthread_mutex_unlock(&fx.head.lock);
}

// The connection breaks in the middle: the head goes on, and the client gets the rest.
static void test_in_the_making(void **state) {
    (void)state;
    struct stream whole, first, rest;
    fx_script("The answer does not care who listens to it, nor whether anybody does.", true);
    assert_int_equal(read_all(send_post("/v1/completions", COMP(USAGE), NULL), &whole), 200);
    set_hold(6);
    int fd = send_post("/v1/completions", COMP(USAGE), NULL);
    read_some(fd, &first, 6);
    uint32_t n_cancelled = fx.head.n_cancelled;
    char last[60];
    snprintf(last, sizeof last, "%s", id_of(first.block[3]));
    close(fd);
    clock_sleep_ms(50);
    fd = send_post("/v1/completions", "whatever", last);
    clock_sleep_ms(20);
    set_hold(UINT32_MAX);
    assert_int_equal(read_all(fd, &rest), 200);
    assert_int_equal(rest.n, whole.n - 4);
    assert_string_equal(rest.block[0], first.block[4]);
    // But for the answer's id and seed these are the events of the undisturbed one.
    for (uint32_t i = 0; i + 1 < rest.n; i++) {
        const char *a = strstr(rest.block[i], "\"choices\""), *b = strstr(whole.block[i + 4], "\"choices\"");
        assert_string_equal(a, b);
    }
    assert_int_equal(fx.head.n_cancelled, n_cancelled);
    wait_unforgotten(0);
    free(whole.text);
    free(first.text);
    free(rest.text);
}

// Two connections for one answer: the newest has it, the old one ends.
static void test_takeover(void **state) {
    (void)state;
    struct stream first, rest;
    fx_script("Whoever came last is served.", true);
    set_hold(3);
    int old = send_post("/v1/completions", COMP(""), NULL);
    read_some(old, &first, 3);
    int fd = send_post("/v1/completions", COMP(""), id_of(first.block[0]));
    char c[64];
    while (http_recv(old, c, sizeof c) > 0) {
    }
    close(old);
    set_hold(UINT32_MAX);
    assert_int_equal(read_all(fd, &rest), 200);
    assert_string_equal(rest.block[0], first.block[1]);
    assert_string_equal(rest.block[rest.n - 1], "data: [DONE]");
    free(first.text);
    free(rest.text);
}

static void test_nobody_comes_back(void **state) {
    (void)state;
    struct stream first;
    fx_script("on and on ", false);
    set_hold(2);
    int fd = send_post("/v1/completions", COMP(",\"n\":2"), NULL);
    read_some(fd, &first, 1);
    wait_unforgotten(2);
    close(fd);
    clock_sleep_ms(100);
    assert_true(fake_wait_live(&fx.head, 2)); // it is waited for
    assert_true(fake_wait_live(&fx.head, 0)); // not for ever
    wait_unforgotten(0);
    struct stream rest;
    assert_int_equal(read_all(send_post("/v1/completions", COMP(""), id_of(first.block[0])), &rest), 404);
    free(rest.text);
    free(first.text);
    // One that left before it knew an id cannot come back: cancelled at once.
    set_hold(0);
    fx.head.n_cancelled = 0;
    fd = send_post("/v1/completions", COMP(""), NULL);
    assert_true(fake_wait_live(&fx.head, 1));
    close(fd);
    assert_true(fake_wait_live(&fx.head, 0));
    assert_int_equal(fx.head.n_cancelled, 1);
    wait_unforgotten(0);
}

// Of each choice the blocks, in order.
static uint32_t blocks_of(const struct stream *s, uint32_t choice, const char *out[BLOCKS_MAX]) {
    char part[40];
    uint32_t n = 0;
    snprintf(part, sizeof part, "\"choices\":[{\"index\":%u,", choice);
    for (uint32_t i = 0; i < s->n; i++) {
        const char *at = strstr(s->block[i], part);
        if (at) out[n++] = at;
    }
    return n;
}

static void test_two_choices(void **state) {
    (void)state;
    struct stream whole, rest;
    const char *a[BLOCKS_MAX], *b[BLOCKS_MAX];
    fx_script("alpha beta gamma delta epsilon", true);
    assert_int_equal(read_all(send_post("/v1/chat/completions", CHAT(",\"n\":2" USAGE), NULL), &whole), 200);
    for (uint32_t i = 0; i + 1 < whole.n; i++) {
        unsigned had[2] = {0, 0};
        const char *id = id_of(whole.block[i]);
        char *end;
        had[0] = (unsigned)strtoul(strchr(id, ':') + 1, &end, 10);
        assert_int_equal(*end, '.');
        had[1] = (unsigned)strtoul(end + 1, &end, 10);
        assert_int_equal(*end, 0);
        assert_int_equal(had[0] + had[1], i + 1);
        assert_int_equal(read_all(send_post("/v1/chat/completions", "", id), &rest), 200);
        for (uint32_t c = 0; c < 2; c++) {
            uint32_t n = blocks_of(&whole, c, a), m = blocks_of(&rest, c, b);
            if (i + 2 == whole.n && c == 0) had[0]--; // usage counts as one of the first choice's
            assert_int_equal(m, n - had[c]);
            for (uint32_t k = 0; k < m; k++) assert_string_equal(b[k], a[had[c] + k]);
        }
        assert_string_equal(rest.block[rest.n - 1], "data: [DONE]");
        if (i + 2 < whole.n) {
            const char *usage = strstr(rest.block[rest.n - 2], "\"usage\"");
            assert_string_equal(usage, strstr(whole.block[whole.n - 2], "\"usage\""));
        }
        free(rest.text);
    }
    free(whole.text);
}

// The gateway goes, and another one takes over what is left: as after the end of the process.
static void restart(void) {
    struct err e;
    gateway_free(fx.gateway);
    assert_true(fake_wait_live(&fx.head, 0));
    assert_int_equal(gateway_new(&fx.config, &fx.gateway, &e), ERR_OK);
    fx.port = gateway_port(fx.gateway);
}

static void test_restart(void **state) {
    (void)state;
    enum { N = 6 };
    static const char *const bodies[N] = {CHAT(USAGE),
                                          CHAT(",\"n\":2" USAGE),
                                          COMP(""),
                                          COMP(",\"stop\":\"other pro\"" USAGE),
                                          COMP(",\"max_tokens\":9" USAGE),
                                          CHAT(",\"n\":3,\"max_tokens\":12")};
    struct stream whole[N], first[N], rest[N];
    int fd[N];
    fx_script("<think>\nA process ends\n</think>\n\n织 and other processes go on.", true);
    for (int i = 0; i < N; i++) {
        const char *path = bodies[i][17] == 'm' ? "/v1/chat/completions" : "/v1/completions";
        assert_int_equal(read_all(send_post(path, bodies[i], NULL), &whole[i]), 200);
    }
    wait_unforgotten(0);
    set_hold(5);
    for (int i = 0; i < N; i++) {
        const char *path = bodies[i][17] == 'm' ? "/v1/chat/completions" : "/v1/completions";
        fd[i] = send_post(path, bodies[i], NULL);
        read_some(fd[i], &first[i], 4);
    }
    restart();
    for (int i = 0; i < N; i++) close(fd[i]);
    set_hold(7);
    assert_true(fake_wait_live(&fx.head, 9)); // all choices go on by themselves
    restart();                                // and once more
    set_hold(UINT32_MAX);
    for (int i = 0; i < N; i++) {
        const char *path = bodies[i][17] == 'm' ? "/v1/chat/completions" : "/v1/completions";
        uint32_t had = first[i].n < 4 ? first[i].n : 4;
        assert_int_equal(read_all(send_post(path, "", id_of(first[i].block[had - 1])), &rest[i]), 200);
        for (uint32_t c = 0; c < 3; c++) {
            const char *a[BLOCKS_MAX], *b[BLOCKS_MAX];
            struct stream head = first[i];
            head.n = had;
            uint32_t n = blocks_of(&whole[i], c, a), m = blocks_of(&head, c, b);
            m += blocks_of(&rest[i], c, b + m);
            assert_int_equal(m, n);
            for (uint32_t k = 0; k < n; k++) assert_string_equal(b[k], a[k]);
        }
        assert_string_equal(rest[i].block[rest[i].n - 1], "data: [DONE]");
        if (strstr(bodies[i], "usage")) {
            assert_string_equal(strstr(rest[i].block[rest[i].n - 2], "\"usage\""),
                                strstr(whole[i].block[whole[i].n - 2], "\"usage\""));
        }
        free(whole[i].text);
        free(first[i].text);
        free(rest[i].text);
    }
    wait_unforgotten(0);
    assert_true(fake_wait_live(&fx.head, 0));
}

static void test_restored_and_not_wanted(void **state) {
    (void)state;
    struct stream first;
    fx_script("on and on ", false);
    set_hold(3);
    int fd = send_post("/v1/completions", COMP(",\"n\":2"), NULL);
    read_some(fd, &first, 2);
    // Of a second one the journal lost a choice; of a third what the gateway keeps is garbage.
    int fd2 = send_post("/v1/completions", COMP(",\"n\":2"), NULL);
    assert_true(fake_wait_live(&fx.head, 4));
    int fd3 = send_post("/v1/completions", COMP(""), NULL);
    assert_true(fake_wait_live(&fx.head, 5));
    fx.head.saved[3]->forgotten = true;
    fx.head.saved[4]->keep[0] ^= 0xff;
    gateway_free(fx.gateway);
    close(fd);
    close(fd2);
    close(fd3);
    for (int i = 2; i < 5; i++) fx.head.saved[i]->forgotten = i == 3; // they left unread: the shutdown forgot nothing
    struct err e;
    assert_int_equal(gateway_new(&fx.config, &fx.gateway, &e), ERR_OK);
    fx.port = gateway_port(fx.gateway);
    wait_unforgotten(2);
    assert_true(fake_wait_live(&fx.head, 2));
    assert_true(fake_wait_live(&fx.head, 0)); // nobody came
    wait_unforgotten(0);
    free(first.text);
}

static void test_bad_requests(void **state) {
    (void)state;
    struct stream s, whole;
    fx_script("a b c", true);
    assert_int_equal(read_all(send_post("/v1/completions", COMP(""), NULL), &whole), 200);
    char answer[60], last[100];
    snprintf(answer, sizeof answer, "%.*s", (int)strcspn(id_of(whole.block[0]), ":"), id_of(whole.block[0]));
    static const char *const malformed[] = {
        "x",           "cmpl-1:",   "cmpl-1:x",           ":1",     "cmpl-1:1.",
        "cmpl-1:1..2", "cmpl-1:-1", "cmpl-1:99999999999", "CMPL:1", "cmpl-0123456789012345678901234567890123456789:1"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        assert_int_equal(read_all(send_post("/v1/completions", COMP(""), malformed[i]), &s), 400);
        free(s.text);
    }
    assert_int_equal(read_all(send_post("/v1/completions", COMP(""), "cmpl-0000000000000000:1"), &s), 404);
    free(s.text);
    snprintf(last, sizeof last, "%s:1", answer);
    assert_int_equal(read_all(send_post("/v1/chat/completions", CHAT(""), last), &s), 404); // another kind of answer
    free(s.text);
    snprintf(last, sizeof last, "%s:1.1", answer);
    assert_int_equal(read_all(send_post("/v1/completions", COMP(""), last), &s), 400);
    free(s.text);
    assert_int_equal(read_all(send_get("GET", "cmpl-12", last), &s), 400);
    free(s.text);
    assert_int_equal(read_all(send_get("GET", "", NULL), &s), 404);
    free(s.text);
    assert_int_equal(read_all(send_get("GET", "0123456789012345678901234567890123456789012345", NULL), &s), 404);
    free(s.text);
    snprintf(last, sizeof last, "%s:4000000", answer); // events that never were: nothing is left to say
    assert_int_equal(read_all(send_post("/v1/completions", COMP(""), last), &s), 200);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.block[0], "data: [DONE]");
    free(s.text);
    free(whole.text);
}

static void test_record(void **state) {
    (void)state;
    char stops[] = "endSTOP";
    struct answer_ask k = {.head = {.chat = true, .with_usage = true, .created_s = 1 << 30, .seed = UINT64_MAX},
                           .n_choices = 128,
                           .max_tokens = 77,
                           .prompt_tokens = 5000000000,
                           .reason = {.state = REASON_CLOSED, .newlines_left = 2, .held_n = 3, .held = "</t"},
                           .stops = stops,
                           .n_stops = 2,
                           .stop_bytes = {3, 4}};
    strcpy(k.head.id, "chatcmpl-0123456789abcdef");
    struct buf b;
    buf_init(&b, LIMIT_KEEP_BYTES);
    assert_int_equal(record_put(&k, 127, &b), ERR_OK);
    struct answer_ask g;
    uint32_t choice;
    assert_int_equal(record_get(b.data, b.len_bytes, &g, &choice), ERR_OK);
    assert_int_equal(choice, 127);
    assert_true(g.head.chat && g.head.with_usage && g.head.with_ids && g.head.seed == UINT64_MAX);
    assert_string_equal(g.head.id, k.head.id);
    assert_true(g.prompt_tokens == 5000000000 && g.max_tokens == 77 && g.n_choices == 128);
    assert_memory_equal(&g.reason, &k.reason, sizeof g.reason);
    assert_memory_equal(g.stops, "endSTOP", 7);
    assert_int_equal(g.stop_bytes[1], 4);
    free(g.stops);
    for (size_t n = 0; n < b.len_bytes; n++) { // every prefix, from memory of its own
        uint8_t *part = malloc(n ? n : 1);
        memcpy(part, b.data, n);
        assert_int_equal(record_get(part, n, &g, &choice), ERR_FORMAT);
        free(part);
    }
    buf_fini(&b);
}

int main(void) {
    fx_load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_event, start, stop),
        cmocka_unit_test_setup_teardown(test_in_the_making, start, stop),
        cmocka_unit_test_setup_teardown(test_takeover, start, stop),
        cmocka_unit_test_setup_teardown(test_nobody_comes_back, start_hasty, stop),
        cmocka_unit_test_setup_teardown(test_two_choices, start, stop),
        cmocka_unit_test_setup_teardown(test_restart, start, stop),
        cmocka_unit_test_setup_teardown(test_restored_and_not_wanted, start_hasty, stop),
        cmocka_unit_test_setup_teardown(test_bad_requests, start, stop),
        cmocka_unit_test(test_record),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    fx_unload();
    return rc;
}
