// Answers: whole and streamed, stop strings, characters, choices, clients that go away or do not read.
#include "fixture.h"

#define CHAT(more) "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"
#define COMP(more) "{\"model\":\"demo\",\"prompt\":\"hi\"" more "}"

// What a stream said, put together.
struct said {
    char text[2][1 << 16], reasoning[2][1 << 16]; // of choice 0 and 1
    char finish[2][16];
    int n_events, n_heartbeats;
    json_int_t prompt_tokens, completion_tokens; // -1: no usage came
    bool done, role_first;
    char error[256];
};

static void add_string(char *to, json_t *from) {
    if (json_is_string(from)) strcat(to, json_string_value(from));
}

static void take_event(struct said *s, json_t *j) {
    s->n_events++;
    if (json_object_get(j, "error")) {
        snprintf(s->error, sizeof s->error, "%s", fx_string(j, "error.message"));
        return;
    }
    json_t *usage = json_object_get(j, "usage");
    if (json_is_object(usage)) {
        s->prompt_tokens = fx_int(usage, "prompt_tokens");
        s->completion_tokens = fx_int(usage, "completion_tokens");
        assert_int_equal(json_array_size(json_object_get(j, "choices")), 0);
        return;
    }
    assert_int_equal(json_array_size(json_object_get(j, "choices")), 1);
    json_t *choice = fx_at(j, "choices.0");
    json_int_t i = fx_int(choice, "index");
    assert_in_range(i, 0, 1);
    assert_string_equal(s->finish[i], ""); // nothing behind the finish
    bool first = !s->text[i][0] && !s->reasoning[i][0];
    if (fx_at(choice, "delta.role")) s->role_first = first;
    add_string(s->text[i], fx_at(choice, "delta.content"));
    add_string(s->text[i], json_object_get(choice, "text"));
    add_string(s->reasoning[i], fx_at(choice, "delta.reasoning_content"));
    add_string(s->finish[i], json_object_get(choice, "finish_reason"));
}

// Each event must be whole: JSON that a strict parser takes, half characters would not pass.
static void take_stream(struct said *s, const char *body) {
    *s = (struct said){.prompt_tokens = -1, .completion_tokens = -1};
    while (*body) {
        const char *end = strstr(body, "\n\n");
        assert_non_null(end);
        assert_false(s->done);
        if (body[0] == ':') {
            s->n_heartbeats++;
        } else if (strncmp(body, "data: [DONE]", 12) == 0) {
            s->done = true;
        } else {
            assert_memory_equal(body, "data: ", 6);
            json_t *j = json_loadb(body + 6, (size_t)(end - body - 6), 0, NULL);
            assert_non_null(j);
            take_event(s, j);
            json_decref(j);
        }
        body = end + 2;
    }
}

static struct said *ask_stream(const char *path, const char *body) {
    static struct said s;
    struct response r;
    char type[64] = "";
    json_decref(fx_post(path, body, &r));
    assert_int_equal(r.status, 200);
    assert_false(r.cut);
    http_header(&r, "Content-Type", type, sizeof type);
    assert_string_equal(type, "text/event-stream; charset=utf-8");
    take_stream(&s, http_text(&r));
    http_fini(&r);
    return &s;
}

static void test_whole(void **state) {
    (void)state;
    uint32_t n = fx_script("The loom weaves on.", true);
    json_t *j = fx_ask("/v1/chat/completions", CHAT(",\"seed\":77,\"temperature\":0"), 200);
    assert_string_equal(fx_string(j, "object"), "chat.completion");
    assert_string_equal(fx_string(j, "choices.0.message.content"), "The loom weaves on.");
    assert_string_equal(fx_string(j, "choices.0.message.role"), "assistant");
    assert_null(fx_at(j, "choices.0.message.reasoning_content"));
    assert_string_equal(fx_string(j, "choices.0.finish_reason"), "stop");
    assert_int_equal(fx_int(j, "usage.completion_tokens"), n + 1); // the end token is counted
    assert_int_equal(fx_int(j, "usage.prompt_tokens"), fx.head.last_n_prompt);
    assert_int_equal(fx_int(j, "usage.total_tokens"), n + 1 + fx.head.last_n_prompt);
    assert_int_equal(fx_int(j, "seed"), 77);
    assert_int_equal(fx.head.last.sampling.seed, 77);
    assert_true(fx.head.last.sampling.temperature == 0);
    assert_int_equal(fx.head.last.max_tokens, 512 - fx.head.last_n_prompt);
    json_decref(j);
    j = fx_ask("/v1/completions", COMP(",\"max_tokens\":3"), 200);
    assert_string_equal(fx_string(j, "object"), "text_completion");
    assert_string_equal(fx_string(j, "choices.0.finish_reason"), "length");
    assert_int_equal(fx_int(j, "usage.completion_tokens"), 3);
    assert_true(json_is_integer(fx_at(j, "seed")));
    assert_int_equal(fx_int(j, "seed"), fx.head.last.sampling.seed);
    json_decref(j);
}

// Every form of prompt reaches the head as the same ids; a control token in a chat is text, in a completion itself.
static void test_prompts(void **state) {
    (void)state;
    fx_script("x", true);
    json_decref(fx_ask("/v1/completions", "{\"model\":\"demo\",\"prompt\":[5,6,7]}", 200));
    assert_int_equal(fx.head.last_n_prompt, 3);
    assert_int_equal(fx.head.last_prompt[2], 7);
    json_t *j = fx_ask("/v1/completions", "{\"model\":\"demo\",\"prompt\":[[5],[6,7]],\"n\":2,\"max_tokens\":1}", 200);
    assert_int_equal(json_array_size(json_object_get(j, "choices")), 4);
    assert_int_equal(fx_int(j, "choices.3.index"), 3);
    assert_int_equal(fx_int(j, "usage.prompt_tokens"), 3); // each prompt once
    assert_int_equal(fx_int(j, "usage.completion_tokens"), 4);
    assert_int_equal(fx.head.last.sampling.choice, 1);
    json_decref(j);
    j = fx_ask("/v1/completions", "{\"model\":\"demo\",\"prompt\":[\"a\",\"b\"],\"max_tokens\":1}", 200);
    assert_int_equal(json_array_size(json_object_get(j, "choices")), 2);
    json_decref(j);
    json_decref(fx_ask("/v1/completions", "{\"model\":\"demo\",\"prompt\":\"<|im_end|>\"}", 200));
    assert_int_equal(fx.head.last_n_prompt, 1);
    json_decref(fx_ask("/v1/chat/completions",
                       "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}", 200));
    uint32_t ends = 0;
    for (uint32_t i = 0; i < fx.head.last_n_prompt; i++) {
        ends += fx.head.last_prompt[i] == fx.config.model.stop_ids[0];
    }
    assert_int_equal(ends, 1); // the template's own
}

static void test_streams(void **state) {
    (void)state;
    uint32_t n = fx_script("One event a token.", true);
    struct said *s = ask_stream("/v1/chat/completions", CHAT(",\"stream\":true"));
    assert_string_equal(s->text[0], "One event a token.");
    assert_string_equal(s->finish[0], "stop");
    assert_true(s->done && s->role_first);
    assert_int_equal(s->prompt_tokens, -1);
    assert_int_equal(s->n_events, n + 2); // role, tokens, finish
    s = ask_stream("/v1/chat/completions", CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    assert_int_equal(s->completion_tokens, n + 1);
    assert_int_equal(s->prompt_tokens, fx.head.last_n_prompt);
    assert_true(s->done);
    s = ask_stream("/v1/completions", COMP(",\"stream\":true,\"max_tokens\":2"));
    assert_string_equal(s->finish[0], "length");
    assert_true(s->done);
}

static void test_reasoning(void **state) {
    (void)state;
    fx_script("<think>\nhm, well\n</think>\n\nYes.", true);
    struct said *s = ask_stream("/v1/chat/completions", CHAT(",\"stream\":true"));
    assert_string_equal(s->reasoning[0], "hm, well");
    assert_string_equal(s->text[0], "Yes.");
    json_t *j = fx_ask("/v1/chat/completions", CHAT(""), 200);
    assert_string_equal(fx_string(j, "choices.0.message.reasoning_content"), "hm, well");
    assert_string_equal(fx_string(j, "choices.0.message.content"), "Yes.");
    json_decref(j);
}

// Characters of several tokens: each event holds whole ones, and what never becomes whole is U+FFFD.
static void test_characters(void **state) {
    (void)state;
    const char *text = "織云 😀🧵 naïve 🇩🇪 한국어";
    uint32_t n = fx_script(text, true);
    assert_true(n > 12); // several tokens a character, or this tests nothing
    struct said *s = ask_stream("/v1/completions", COMP(",\"stream\":true"));
    assert_string_equal(s->text[0], text);
    for (uint32_t max = 1; max <= n; max++) {
        char body[128];
        snprintf(body, sizeof body, COMP(",\"stream\":true,\"max_tokens\":%u"), max);
        s = ask_stream("/v1/completions", body);
        snprintf(body, sizeof body, COMP(",\"max_tokens\":%u"), max);
        json_t *j = fx_ask("/v1/completions", body, 200);
        assert_string_equal(fx_string(j, "choices.0.text"), s->text[0]);
        json_decref(j);
    }
}

static void test_stop_strings(void **state) {
    (void)state;
    static const struct {
        const char *stop, *text;
    } cases[] = {
        {"\"derful wo\"", "Hello won"},
        {"[\"zzz\",\"d, and\"]", "Hello wonderful worl"},
        {"\"H\"", ""},
        {"[\"more.\",\"mo\"]", "Hello wonderful world, and "},
        {"\"more.!\"", NULL},
    };
    const char *all = "Hello wonderful world, and more.";
    fx_script(all, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        json_int_t tokens = 0;
        for (int k = 0; k < 3; k++) { // twice whole: the count must not depend on time
            snprintf(body, sizeof body, COMP(",\"stop\":%s"), cases[i].stop);
            fx.head.tick_us = k ? 2000 : 1;
            json_t *j = fx_ask("/v1/completions", body, 200);
            assert_string_equal(fx_string(j, "choices.0.text"), cases[i].text ? cases[i].text : all);
            assert_string_equal(fx_string(j, "choices.0.finish_reason"), "stop");
            if (k) assert_int_equal(fx_int(j, "usage.completion_tokens"), tokens);
            tokens = fx_int(j, "usage.completion_tokens");
            json_decref(j);
        }
        snprintf(body, sizeof body, COMP(",\"stop\":%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
                 cases[i].stop);
        struct said *s = ask_stream("/v1/completions", body);
        assert_string_equal(s->text[0], cases[i].text ? cases[i].text : all);
        assert_string_equal(s->finish[0], "stop");
        assert_int_equal(s->completion_tokens, tokens);
    }
    // A script without an end: the match itself must end the work.
    fx_script("round and round ", false);
    json_decref(fx_ask("/v1/completions", COMP(",\"stop\":\"d rou\""), 200));
    assert_true(fake_wait_live(&fx.head, 0));
}

static void test_two_choices(void **state) {
    (void)state;
    fx_script("alpha beta gamma", true);
    json_t *j = fx_ask("/v1/chat/completions", CHAT(",\"n\":2"), 200);
    const char *second = fx_string(j, "choices.1.message.content");
    assert_string_equal(fx_string(j, "choices.0.message.content"), "alpha beta gamma");
    assert_string_not_equal(second, "alpha beta gamma");
    struct said *s = ask_stream("/v1/chat/completions",
                                CHAT(",\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    assert_string_equal(s->text[0], "alpha beta gamma");
    assert_string_equal(s->text[1], second);
    assert_string_equal(s->finish[1], "stop");
    assert_int_equal(s->completion_tokens, fx_int(j, "usage.completion_tokens"));
    assert_int_equal(s->prompt_tokens, fx_int(j, "usage.prompt_tokens"));
    assert_int_equal(s->prompt_tokens, fx.head.last_n_prompt); // counted once
    json_decref(j);
}

static void set_head(uint32_t hold_after, uint32_t fail_after) {
    pthread_mutex_lock(&fx.head.lock);
    fx.head.hold_after = hold_after;
    fx.head.fail_after = fail_after;
    pthread_mutex_unlock(&fx.head.lock);
}

// A head that gives up before the first byte knows when to come back; other failures say a second.
static void expect_retry(const char *body, int code, const char *want) {
    struct response r;
    char value[64] = "";
    pthread_mutex_lock(&fx.head.lock);
    fx.head.fail_code = code;
    pthread_mutex_unlock(&fx.head.lock);
    json_decref(fx_post("/v1/completions", body, &r));
    assert_int_equal(r.status, 503);
    http_header(&r, "Retry-After", value, sizeof value);
    assert_string_equal(value, want);
    http_fini(&r);
}

static void test_failures(void **state) {
    (void)state;
    fx_script("a b c d e f g h", false);
    set_head(UINT32_MAX, 0);
    json_t *j = fx_ask("/v1/completions", COMP(",\"stream\":true"), 503); // nothing was sent yet: a status of its own
    assert_string_equal(fx_string(j, "error.message"), "no node is left");
    json_decref(j);
    expect_retry(COMP(""), ERR_UNAVAILABLE, "7");
    expect_retry(COMP(",\"stream\":true"), ERR_UNAVAILABLE, "7");
    expect_retry(COMP(",\"stream\":true"), ERR_LIMIT, "1");
    set_head(UINT32_MAX, 3);
    json_decref(fx_ask("/v1/completions", COMP(""), 503));
    struct said *s = ask_stream("/v1/completions", COMP(",\"stream\":true"));
    assert_string_equal(s->text[0], "a b c");
    assert_string_equal(s->error, "no node is left");
    assert_false(s->done);
    assert_true(fake_wait_live(&fx.head, 0));
}

// A client that hangs up, or closes its half: the head is told though no byte is on its way.
static void test_disconnect(void **state) {
    (void)state;
    fx_script("on and on ", false);
    for (int kind = 0; kind < 4; kind++) {
        const bool stream = kind & 1, silent = kind & 2;
        uint32_t before = fx.head.n_cancelled;
        set_head(silent ? 2 : UINT32_MAX, UINT32_MAX);
        int fd = http_connect(fx.port);
        assert_true(http_post(fd, "/v1/completions", stream ? COMP(",\"stream\":true,\"n\":2") : COMP(",\"n\":2")));
        assert_true(fake_wait_live(&fx.head, 2));
        if (stream) {
            struct response r;
            assert_true(http_read_head(fd, &r));
            http_fini(&r);
        }
        if (silent) shutdown(fd, SHUT_WR);
        if (!silent) close(fd);
        assert_true(fake_wait_live(&fx.head, 0));
        assert_int_equal(fx.head.n_cancelled - before, 2);
        if (silent) close(fd);
    }
}

static unsigned open_streams(void) {
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    struct response r;
    unsigned n;
    int fd = http_connect(fx.port);
    assert_true(http_send(fd, request, strlen(request)));
    http_read(fd, &r);
    static const char name[] = "\nloom_http_streams ";
    const char *line = strstr(http_text(&r), name);
    assert_non_null(line);
    n = (unsigned)strtoul(line + strlen(name), NULL, 10);
    http_fini(&r);
    close(fd);
    return n;
}

static void test_heartbeat_and_stall(void **state) {
    (void)state;
    struct said s;
    struct response r;
    // A head that is silent from the first token on: comments come, then the answer goes on.
    fx_script("beat", true);
    set_head(0, UINT32_MAX);
    int fd = http_connect(fx.port);
    http_post(fd, "/v1/completions", COMP(",\"stream\":true"));
    assert_true(http_read_head(fd, &r));
    assert_int_equal(r.status, 200);
    clock_sleep_ms(600);
    set_head(UINT32_MAX, UINT32_MAX);
    http_read_body(fd, &r, false);
    take_stream(&s, http_text(&r));
    assert_true(s.n_heartbeats >= 1);
    assert_string_equal(s.text[0], "beat");
    assert_true(s.done);
    http_fini(&r);
    close(fd);
    // A reader that reads nothing is cut off, once the socket takes no more.
    fx_script("flood flood flood flood ", false);
    fx.head.tick_us = 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)fx.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    http_post(fd, "/v1/completions", "{\"model\":\"demo\",\"prompt\":[1],\"stream\":true,\"n\":16}");
    assert_true(fake_wait_live(&fx.head, 16));
    // Meanwhile another one is served.
    json_decref(fx_ask("/v1/completions", COMP(",\"max_tokens\":5"), 200));
    assert_true(fake_wait_live(&fx.head, 0));
    for (int i = 0; open_streams() > 0; i++) {
        assert_int_not_equal(i, 5000);
        clock_sleep_ms(2);
    }
    close(fd);
}

static int start_impatient(void **state) {
    fx.config.stall_ms = 400;
    fx.config.heartbeat_ms = 100;
    return fx_start(state);
}

static int stop_impatient(void **state) {
    fx_stop(state);
    fx.config.stall_ms = fx.config.heartbeat_ms = 0;
    return 0;
}

static void test_many(void **state) {
    (void)state;
    enum { N = 200 };
    static int fd[N];
    const char *text = "All of these go on side by side, and none waits for another one.";
    fx_script(text, true);
    set_head(1, UINT32_MAX);
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(fx.port);
        assert_true(http_post(fd[i], "/v1/completions", COMP(",\"stream\":true")));
    }
    assert_true(fake_wait_live(&fx.head, N)); // all at once
    set_head(UINT32_MAX, UINT32_MAX);
    for (int i = 0; i < N; i++) {
        struct response r;
        static struct said s;
        http_read(fd[i], &r);
        assert_int_equal(r.status, 200);
        take_stream(&s, http_text(&r));
        assert_string_equal(s.text[0], text);
        assert_true(s.done);
        http_fini(&r);
        close(fd[i]);
    }
}

// The gateway goes while answers are being made: each client is told.
static void test_free_with_open_streams(void **state) {
    (void)state;
    enum { N = 8 };
    int fd[N];
    struct response r[N];
    fx_script("never ends ", false);
    set_head(2, UINT32_MAX);
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(fx.port);
        assert_true(http_post(fd[i], "/v1/completions", i & 1 ? COMP("") : COMP(",\"stream\":true")));
        if (!(i & 1)) assert_true(http_read_head(fd[i], &r[i]));
    }
    assert_true(fake_wait_live(&fx.head, N));
    gateway_free(fx.gateway);
    fx.gateway = NULL;
    assert_true(fake_wait_live(&fx.head, 0));
    for (int i = 0; i < N; i++) {
        if (i & 1) {
            http_read(fd[i], &r[i]);
            assert_int_equal(r[i].status, 503);
        } else {
            http_read_body(fd[i], &r[i], false);
            assert_non_null(strstr(http_text(&r[i]), "data: {\"error\":{\"message\":\"The server is shutting down\""));
        }
        assert_false(r[i].cut);
        http_fini(&r[i]);
        close(fd[i]);
    }
}

// Clients that come and go at random moments: run under the sanitizers.
static void *come_and_go(void *arg) {
    unsigned seed = *(unsigned *)arg;
    for (int i = 0; i < 60; i++) {
        int fd = http_connect(fx.port);
        http_post(fd, i % 3 ? "/v1/completions" : "/v1/chat/completions",
                  i % 3 ? COMP(",\"stream\":true,\"n\":2,\"stop\":\"zz\"") : CHAT(",\"max_tokens\":4"));
        struct timespec t = {.tv_nsec = (long)(rand_r(&seed) % 3000) * 1000};
        nanosleep(&t, NULL);
        char c[64];
        if (i % 5 == 0) recv(fd, c, sizeof c, 0);
        close(fd);
    }
    return NULL;
}

static void test_storm(void **state) {
    (void)state;
    enum { N = 4 };
    pthread_t t[N];
    unsigned seeds[N];
    fx_script("a storm of clients ", false);
    for (unsigned i = 0; i < N; i++) {
        seeds[i] = i + 1;
        assert_int_equal(pthread_create(&t[i], NULL, come_and_go, &seeds[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    assert_true(fake_wait_live(&fx.head, 0));
}

int main(void) {
    fx_load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_prompts, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_streams, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_reasoning, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_characters, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_stop_strings, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_two_choices, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_failures, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_disconnect, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_heartbeat_and_stall, start_impatient, stop_impatient),
        cmocka_unit_test_setup_teardown(test_many, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_free_with_open_streams, fx_start, fx_stop),
        cmocka_unit_test_setup_teardown(test_storm, fx_start, fx_stop),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    fx_unload();
    return rc;
}
