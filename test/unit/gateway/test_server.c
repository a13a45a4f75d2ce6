// The HTTP server: endpoints, errors, framing, limits, deadlines.
#include "fixture.h"

static int get(const char *method, const char *path, struct response *r) {
    char line[256];
    int fd = http_connect(fx.port);
    int n = snprintf(line, sizeof line, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, path);
    assert_true(http_send(fd, line, (size_t)n));
    if (http_read_head(fd, r)) http_read_body(fd, r, strcmp(method, "HEAD") == 0);
    close(fd);
    return r->status;
}

static void test_gets(void **state) {
    (void)state;
    struct response r;
    char value[128];
    assert_int_equal(get("GET", "/v1/models", &r), 200);
    json_t *j = json_loads(http_text(&r), 0, NULL);
    assert_string_equal(fx_string(j, "object"), "list");
    assert_string_equal(fx_string(j, "data.0.id"), "demo");
    json_decref(j);
    assert_true(http_header(&r, "x-request-id", value, sizeof value));
    http_fini(&r);
    assert_int_equal(get("HEAD", "/v1/models", &r), 200);
    assert_int_equal(r.body.len_bytes, 0);
    http_fini(&r);
    assert_int_equal(get("GET", "/health", &r), 200);
    http_fini(&r);
    pthread_mutex_lock(&fx.head.lock);
    fx.head.ready = false;
    pthread_mutex_unlock(&fx.head.lock);
    assert_int_equal(get("GET", "/health", &r), 503);
    assert_non_null(strstr(http_text(&r), "loading 3 of 12 layers"));
    assert_true(http_header(&r, "Retry-After", value, sizeof value));
    assert_string_equal(value, "7");
    http_fini(&r);
    assert_int_equal(get("GET", "/loom/v1/status", &r), 200);
    assert_string_equal(http_text(&r), "{\"fake\":true}");
    http_fini(&r);
    assert_int_equal(get("GET", "/metrics", &r), 200);
    assert_non_null(strstr(http_text(&r), "loom_fake_metric 42\n"));
    assert_non_null(strstr(http_text(&r), "loom_http_requests_total{path=\"/health\",code=\"503\"} 1\n"));
    http_fini(&r);
}

static void test_not_there(void **state) {
    (void)state;
    struct response r;
    char value[64];
    assert_int_equal(get("GET", "/v2/models", &r), 404);
    assert_non_null(strstr(http_text(&r), "invalid_request_error"));
    http_fini(&r);
    assert_int_equal(get("GET", "/v1/chat/completions", &r), 405);
    assert_true(http_header(&r, "Allow", value, sizeof value));
    assert_string_equal(value, "POST");
    http_fini(&r);
    assert_int_equal(get("DELETE", "/v1/models", &r), 405);
    http_fini(&r);
    json_decref(fx_ask("/nothing", "{}", 404));
    json_decref(fx_ask("/health", "{}", 405));
}

static void expect_error(const char *path, const char *body, int status, const char *code, const char *part) {
    json_t *j = fx_ask(path, body, status);
    assert_string_equal(fx_string(j, "error.code"), code);
    if (!strstr(fx_string(j, "error.message"), part)) fail_msg("%s lacks %s", fx_string(j, "error.message"), part);
    json_decref(j);
}

// Far too long: that is said before anybody counts, so how long it is exactly is not.
static void refuses_the_endless(void) {
    enum { N = 1 << 20 };
    static const char *const kinds[][3] = {
        {"/v1/completions", "{\"model\":\"demo\",\"prompt\":\"", "\"}"},
        {"/v1/chat/completions", "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"}};
    for (int i = 0; i < 2; i++) {
        char *body = malloc(N + 256);
        assert_non_null(body);
        size_t n = (size_t)snprintf(body, 256, "%s", kinds[i][1]);
        memset(body + n, ' ', N);
        snprintf(body + n + N, 256 - n, "%s", kinds[i][2]);
        expect_error(kinds[i][0], body, 400, "context_length_exceeded", "or more in the");
        free(body);
    }
}

static void test_errors(void **state) {
    (void)state;
    expect_error("/v1/completions", "{\"model\":\"gpt-4\",\"prompt\":\"a\"}", 404, "model_not_found", "'demo'");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":\"a\",\"echo\":true}", 400, "unsupported_parameter",
                 "echo");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":\"\"}", 400, "invalid_value", "no tokens");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[]}", 400, "invalid_value", "empty");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[1,99999999]}", 400, "invalid_value", "entry 1");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[\"a\",5]}", 400, "invalid_type", "entry 1");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[[1],[2],[3,-1]]}", 400, "invalid_value",
                 "'prompt[2]': entry 1");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[\"a\",\"\"]}", 400, "invalid_value",
                 "'prompt[1]' has no tokens");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[[1],[2,3]],\"max_tokens\":511}", 400,
                 "context_length_exceeded", "2 in the prompt[1]");
    expect_error("/v1/completions", "{\"model\":\"demo\",\"prompt\":[1,2,3],\"max_tokens\":510}", 400,
                 "context_length_exceeded", "512 tokens, but 513");
    char body[8192] = "{\"model\":\"demo\",\"prompt\":[1";
    for (int i = 0; i < 511; i++) strcat(body, ",1");
    strcat(body, "]}");
    expect_error("/v1/completions", body, 400, "context_length_exceeded", "512 in the prompt");
    refuses_the_endless();
    expect_error("/v1/chat/completions", "{\"model\":\"demo\",\"messages\":[{\"role\":\"bad\",\"content\":\"\"}]}", 400,
                 "invalid_value", "bad");
    json_t *j = fx_ask("/v1/chat/completions",
                       "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                       "\"chat_template_kwargs\":{\"messages\":[]}}",
                       400);
    assert_string_equal(fx_string(j, "error.param"), "chat_template_kwargs");
    json_decref(j);
    assert_int_equal(fx.head.n_submitted, 0);
}

static void test_head_refuses(void **state) {
    (void)state;
    static const struct {
        int code, status;
        const char *retry;
    } cases[] = {{ERR_UNAVAILABLE, 503, "7"}, {ERR_LIMIT, 503, "1"}, {ERR_USAGE, 400, ""}, {ERR_IO, 500, ""}};
    fx_script("a b c", false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct response r;
        char value[64] = "";
        pthread_mutex_lock(&fx.head.lock);
        fx.head.submit_code = cases[i].code;
        fx.head.submit_left = 1; // the second choice is refused: the first must be cancelled
        pthread_mutex_unlock(&fx.head.lock);
        json_t *j = fx_post("/v1/completions", "{\"model\":\"demo\",\"prompt\":\"a\",\"n\":2}", &r);
        assert_int_equal(r.status, cases[i].status);
        http_header(&r, "Retry-After", value, sizeof value);
        assert_string_equal(value, cases[i].retry);
        json_decref(j);
        http_fini(&r);
        assert_true(fake_wait_live(&fx.head, 0));
    }
}

// The status, and whether the connection is closed without an answer to the request that is smuggled behind.
static int raw(const char *bytes, bool *closed) {
    static const char smuggled[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    struct response r;
    char all[1024], rest[4096], c;
    size_t n = 0;
    int fd = http_connect(fx.port);
    int len = snprintf(all, sizeof all, "%s%s", bytes, smuggled);
    assert_true(http_send(fd, all, (size_t)len));
    http_read(fd, &r);
    while (n + 1 < sizeof rest && http_byte(fd, &c)) rest[n++] = c;
    rest[n] = 0;
    *closed = strstr(rest, "200 OK") == NULL;
    int status = r.status;
    http_fini(&r);
    close(fd);
    return status;
}

static void test_framing(void **state) {
    (void)state;
    static const char *const bad[] = {
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 34\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 3\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 36\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length\t: 36\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool closed = false;
        int status = raw(bad[i], &closed);
        if (status != 400 || !closed) fail_msg("%s -> %d%s", bad[i], status, closed ? "" : ", still open");
    }
}

static void test_large_header(void **state) {
    (void)state;
    struct response r;
    size_t len = 200 << 10;
    char *head = malloc(len + 64);
    int n = sprintf(head, "GET /health HTTP/1.1\r\nHost: x\r\nX-Large: ");
    memset(head + n, 'a', len);
    strcpy(head + n + len, "\r\n\r\n");
    int fd = http_connect(fx.port);
    http_send(fd, head, strlen(head)); // the server may close before all was sent
    http_read(fd, &r);
    assert_true(r.status == 431 || r.status == 0);
    http_fini(&r);
    close(fd);
    free(head);
    assert_int_equal(get("GET", "/health", &r), 200);
    http_fini(&r);
}

static void test_large_body(void **state) {
    (void)state;
    struct response r;
    size_t len = LIMIT_HTTP_BODY + 1;
    char *body = malloc(len + 1);
    memset(body, ' ', len);
    body[len] = 0;
    json_t *j = fx_post("/v1/completions", body, &r);
    assert_int_equal(r.status, 413);
    json_decref(j);
    http_fini(&r);
    // The same without a length in front.
    char line[32];
    int fd = http_connect(fx.port);
    const char *head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    http_send(fd, head, strlen(head));
    int n = snprintf(line, sizeof line, "%zx\r\n", len);
    http_send(fd, line, (size_t)n);
    http_send(fd, body, len);
    http_send(fd, "\r\n0\r\n\r\n", 7);
    http_read(fd, &r);
    assert_int_equal(r.status, 413);
    http_fini(&r);
    close(fd);
    // Announced, and not even sent.
    fd = http_connect(fx.port);
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
    http_send(fd, head, strlen(head));
    http_read(fd, &r);
    assert_int_equal(r.status, 413);
    http_fini(&r);
    close(fd);
    // The largest that is allowed.
    body[len - 1] = 0;
    j = fx_post("/v1/completions", body, &r);
    assert_int_equal(r.status, 400);
    json_decref(j);
    http_fini(&r);
    free(body);
}

static void test_web_page(void **state) {
    (void)state;
    struct response r;
    int fd = http_connect(fx.port);
    const char *form = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\nContent-Type: "
                       "text/plain\r\nContent-Length: 2\r\n\r\n{}";
    http_send(fd, form, strlen(form));
    http_read(fd, &r);
    assert_int_equal(r.status, 415);
    http_fini(&r);
    close(fd);
}

// Three requests in one write, answered in order on one connection; the middle one streams.
static void test_pipeline(void **state) {
    (void)state;
    fx_script("one two three", true);
    char bytes[1024];
    const char *body = "{\"model\":\"demo\",\"prompt\":\"a\",\"stream\":true}";
    int n = snprintf(bytes, sizeof bytes,
                     "GET /health HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                     "Content-Length: %zu\r\n\r\n%sGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
                     strlen(body), body);
    int fd = http_connect(fx.port);
    assert_true(http_send(fd, bytes, (size_t)n));
    struct response r[3];
    for (int i = 0; i < 3; i++) {
        http_read(fd, &r[i]);
        assert_int_equal(r[i].status, 200);
        assert_false(r[i].cut);
    }
    assert_non_null(strstr(http_text(&r[0]), "ok"));
    assert_non_null(strstr(http_text(&r[1]), "data: [DONE]\n\n"));
    assert_non_null(strstr(http_text(&r[2]), "demo"));
    for (int i = 0; i < 3; i++) http_fini(&r[i]);
    close(fd);
}

// A header, and a body, that drip in: the connection is closed though it never falls silent.
static void test_drip(void **state) {
    (void)state;
    static const char *const starts[] = {"GET /health HTTP/1.1\r\nX: ",
                                         "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"};
    for (int i = 0; i < 2; i++) {
        int fd = http_connect(fx.port);
        bool closed = false;
        http_send(fd, starts[i], strlen(starts[i]));
        for (int k = 0; k < 1000 && !closed; k++) {
            char c;
            closed = !http_send(fd, "a", 1) || recv(fd, &c, 1, MSG_DONTWAIT) == 0;
            clock_sleep_ms(20);
        }
        assert_true(closed);
        close(fd);
    }
}

static int start_impatient(void **state) {
    fx.config.header_ms = 300;
    return fx_start(state);
}

static int stop_impatient(void **state) {
    fx_stop(state);
    fx.config.header_ms = 0;
    return 0;
}

static void test_bad_address(void **state) {
    (void)state;
    struct gateway *g = NULL;
    struct err e;
    struct gateway_config c = fx.config;
    char taken[32];
    static const char *const bad[] = {"localhost", "127.0.0.1:99999", "127.0.0.1: 80", "127.0.0.1:http", "::1:0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c.listen_addr = bad[i];
        assert_int_equal(gateway_new(&c, &g, &e), ERR_USAGE);
        assert_int_equal(gateway_check_listen(bad[i], &e), ERR_USAGE);
    }
    assert_int_equal(gateway_check_listen(":0", &e), ERR_OK);
    snprintf(taken, sizeof taken, "127.0.0.1:%u", fx.port);
    c.listen_addr = taken;
    assert_int_equal(gateway_new(&c, &g, &e), ERR_NET);
    assert_non_null(strstr(e.text, taken));
    assert_int_equal(gateway_check_listen(taken, &e), ERR_NET);
    assert_null(g);
    fx_stop(NULL);
    assert_int_equal(gateway_check_listen(taken, &e), ERR_OK);
    assert_int_equal(gateway_check_listen(taken, &e), ERR_OK); // the first did not keep the port
    fx_start(NULL);
}

int main(void) {
    fx_load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gets, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_not_there, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_errors, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_head_refuses, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_framing, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_large_header, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_large_body, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_web_page, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_pipeline, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_drip, start_impatient, stop_impatient),
        cmocka_unit_test_setup_teardown(test_bad_address, fx_start, fx_stop),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    fx_unload();
    return rc;
}
