// Every parameter: what is accepted, and by which name and code the rest is refused.
#include "gateway/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct sampling defaults = {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20};

static int parse(struct request *r, bool chat, const char *body, struct api_error *e) {
    return request_parse(r, chat, body, strlen(body), &defaults, e);
}

#define CHAT(more) "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"
#define COMP(more) "{\"model\":\"m\",\"prompt\":\"hi\"" more "}"

static void test_defaults(void **state) {
    (void)state;
    struct request r;
    struct api_error e;
    assert_int_equal(parse(&r, true, CHAT(""), &e), ERR_OK);
    assert_string_equal(r.model, "m");
    assert_false(r.stream);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.max_tokens, 0);
    assert_int_equal(r.n_stop, 0);
    assert_true(r.sampling.temperature == 0.6f && r.sampling.top_p == 0.95f && r.sampling.top_k == 20);
    assert_true(r.sampling.seed < UINT64_C(1) << 53);
    request_fini(&r);
}

static void test_values(void **state) {
    (void)state;
    struct request r;
    struct api_error e;
    int rc = parse(
        &r, false,
        COMP(",\"temperature\":0,\"top_p\":0,\"top_k\":-1,\"min_p\":0.25,\"seed\":-5,\"stop\":[\"a\",\"b\\u0000c\"],"
             "\"max_tokens\":7.0,\"n\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
        &e);
    assert_int_equal(rc, ERR_OK);
    assert_true(r.sampling.temperature == 0 && r.sampling.top_p > 0 && r.sampling.top_p < 1e-30f);
    assert_int_equal(r.sampling.top_k, -1);
    assert_true(r.sampling.min_p == 0.25f);
    assert_true((int64_t)r.sampling.seed == -5);
    assert_int_equal(r.n_stop, 2);
    assert_int_equal(r.stop_len_bytes[1], 3);
    assert_int_equal(r.max_tokens, 7);
    assert_int_equal(r.n, 3);
    assert_true(r.stream && r.include_usage);
    request_fini(&r);
}

// What clients send by default must pass.
static void test_inert(void **state) {
    (void)state;
    static const char *const chats[] = {
        CHAT(",\"user\":\"u\",\"store\":false,\"metadata\":{\"a\":\"b\"},\"n\":1,\"logprobs\":false,\"top_logprobs\":0,"
             "\"presence_penalty\":0,\"frequency_penalty\":0.0,\"parallel_tool_calls\":true,"
             "\"response_format\":{\"type\":\"text\"},\"logit_bias\":{},\"service_tier\":\"auto\",\"tools\":[],"
             "\"tool_choice\":\"auto\",\"modalities\":[\"text\"]"),
        CHAT(",\"tools\":null,\"seed\":null,\"stop\":null,\"max_tokens\":null,\"stream_options\":null,\"audio\":null,"
             "\"reasoning_effort\":null,\"temperature\":null,\"logit_bias\":null"),
        CHAT(",\"max_tokens\":5,\"max_completion_tokens\":5"),
        CHAT(",\"chat_template_kwargs\":{\"enable_thinking\":false}"),
        "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[],\"reasoning_content\":\"r\","
        "\"tool_calls\":[{\"id\":\"1\"}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"x\",\"name\":\"f\"}]"
        "}",
    };
    struct request r;
    struct api_error e;
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        if (parse(&r, true, chats[i], &e)) fail_msg("%s: %s", chats[i], e.message);
        request_fini(&r);
    }
    assert_int_equal(parse(&r, false, COMP(",\"echo\":false,\"suffix\":\"\",\"best_of\":1,\"logprobs\":null"), &e), 0);
    request_fini(&r);
}

static const struct refused {
    bool chat;
    const char *body, *param, *code;
} refused[] = {
    {true, "", "", "invalid_json"},
    {true, "{\"model\":\"m\"", "", "invalid_json"},
    {true, CHAT("") " x", "", "invalid_json"},
    {true, CHAT(",\"model\":\"m\""), "", "invalid_json"},
    {true, CHAT(",\"user\":\"\\ud800\""), "", "invalid_json"},
    {true, CHAT(",\"user\":\"\xff\""), "", "invalid_json"},
    {true, CHAT(",\"seed\":18446744073709551615"), "seed", "invalid_json"},
    {true, CHAT(",\"seed\" :\n -9223372036854775809 "), "seed", "invalid_json"},
    {false, COMP(",\"stop\":[9223372036854775808]"), "", "invalid_json"},
    {true, "9223372036854775808", "", "invalid_json"},
    {true, CHAT(",\"a\\u0062\":9223372036854775808"), "", "invalid_json"},
    {true, CHAT(",\"temperature\":1e400"), "", "invalid_json"},
    {true, "[]", "", "invalid_type"},
    {true, "7", "", "invalid_type"},
    {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "model", "missing_required_parameter"},
    {true, "{\"model\":\"m\"}", "messages", "missing_required_parameter"},
    {true, "{\"model\":\"m\",\"messages\":null}", "messages", "missing_required_parameter"},
    {false, "{\"model\":\"m\"}", "prompt", "missing_required_parameter"},
    {true, "{\"model\":7}", "model", "invalid_type"},
    {true, "{\"model\":\"m\",\"messages\":[]}", "messages", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":\"hi\"}", "messages", "invalid_type"},
    {true, "{\"model\":\"m\",\"messages\":[1]}", "messages[0]", "invalid_type"},
    {true, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "invalid_type"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0].role",
     "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "missing_required_parameter"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content", "invalid_type"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"weight\":1}]}", "messages[0].weight",
     "unknown_parameter"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
     "messages[0].content[0].type", "unsupported_value"},
    {true, CHAT(",\"frobnicate\":1"), "frobnicate", "unknown_parameter"},
    {true, CHAT(",\"frobnicate\":null"), "frobnicate", "unknown_parameter"},
    {true, CHAT(",\"prompt\":\"x\""), "prompt", "unknown_parameter"},
    {true, CHAT(",\"temperature\":\"1\""), "temperature", "invalid_type"},
    {true, CHAT(",\"temperature\":2.01"), "temperature", "invalid_value"},
    {true, CHAT(",\"temperature\":-1"), "temperature", "invalid_value"},
    {true, CHAT(",\"top_p\":1.5"), "top_p", "invalid_value"},
    {true, CHAT(",\"min_p\":-0.1"), "min_p", "invalid_value"},
    {true, CHAT(",\"top_k\":1.5"), "top_k", "invalid_type"},
    {true, CHAT(",\"top_k\":-2"), "top_k", "invalid_value"},
    {true, CHAT(",\"seed\":\"1\""), "seed", "invalid_type"},
    {true, CHAT(",\"seed\":1e300"), "seed", "invalid_type"},
    {true, CHAT(",\"n\":0"), "n", "invalid_value"},
    {true, CHAT(",\"n\":17"), "n", "invalid_value"},
    {true, CHAT(",\"max_tokens\":0"), "max_tokens", "invalid_value"},
    {true, CHAT(",\"max_tokens\":true"), "max_tokens", "invalid_type"},
    {true, CHAT(",\"max_tokens\":5,\"max_completion_tokens\":6"), "max_completion_tokens", "invalid_value"},
    {true, CHAT(",\"stop\":\"\""), "stop", "invalid_value"},
    {true, CHAT(",\"stop\":[\"a\",1]"), "stop[1]", "invalid_type"},
    {true, CHAT(",\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), "stop", "invalid_value"},
    {true, CHAT(",\"stream\":1"), "stream", "invalid_type"},
    {true, CHAT(",\"stream_options\":{\"include_usage\":true}"), "stream_options", "invalid_value"},
    {true, CHAT(",\"stream\":true,\"stream_options\":{\"x\":1}"), "stream_options.x", "unknown_parameter"},
    {true, CHAT(",\"chat_template_kwargs\":[]"), "chat_template_kwargs", "invalid_type"},
    {true, CHAT(",\"tools\":[{\"type\":\"function\"}]"), "tools", "unsupported_parameter"},
    {true, CHAT(",\"tool_choice\":\"required\""), "tool_choice", "unsupported_parameter"},
    {true, CHAT(",\"response_format\":{\"type\":\"json_object\"}"), "response_format", "unsupported_parameter"},
    {true, CHAT(",\"logprobs\":true"), "logprobs", "unsupported_parameter"},
    {true, CHAT(",\"logit_bias\":{\"1\":5}"), "logit_bias", "unsupported_parameter"},
    {true, CHAT(",\"presence_penalty\":0.5"), "presence_penalty", "unsupported_parameter"},
    {true, CHAT(",\"store\":true"), "store", "unsupported_parameter"},
    {true, CHAT(",\"reasoning_effort\":\"high\""), "reasoning_effort", "unsupported_parameter"},
    {false, COMP(",\"echo\":true"), "echo", "unsupported_parameter"},
    {false, COMP(",\"logprobs\":1"), "logprobs", "unsupported_parameter"},
    {false, COMP(",\"suffix\":\"x\""), "suffix", "unsupported_parameter"},
    {false, COMP(",\"best_of\":2"), "best_of", "unsupported_parameter"},
    {false, COMP(",\"messages\":[]"), "messages", "unknown_parameter"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct request r;
        struct api_error e;
        if (!parse(&r, refused[i].chat, refused[i].body, &e)) fail_msg("accepted: %s", refused[i].body);
        if (e.status != 400 || strcmp(e.code, refused[i].code) != 0 || strcmp(e.param, refused[i].param) != 0) {
            fail_msg("%s: %d %s %s: %s", refused[i].body, e.status, e.code, e.param, e.message);
        }
        bool large = strstr(refused[i].body, "922337203685477580") || strstr(refused[i].body, "18446744073709551615");
        assert_int_equal(large, strstr(e.message, "must fit in 64 bits (signed)") != NULL);
        assert_null(r.root);
    }
}

static void test_many_values(void **state) {
    (void)state;
    enum { N = LIMIT_JSON_CONTAINERS + 10 };
    char *body = malloc(2 * N + 64);
    size_t n = (size_t)sprintf(body, "{\"model\":\"m\",\"prompt\":\"");
    memset(body + n, '[', N); // in a string it is only text
    strcpy(body + n + N, "\"}");
    struct request r;
    struct api_error e;
    assert_int_equal(parse(&r, false, body, &e), ERR_OK);
    request_fini(&r);
    memset(body, '[', N);
    strcpy(body + N, "1");
    assert_int_not_equal(parse(&r, false, body, &e), ERR_OK);
    assert_int_equal(e.status, 413);
    free(body);
}

// An error's JSON stays JSON whatever a client wrote, cut characters included.
static void test_error_json(void **state) {
    (void)state;
    struct api_error e;
    struct buf out;
    char name[400];
    for (size_t i = 0; i + 3 < sizeof name; i += 3) memcpy(name + i, "\xe7\xbb\x87", 4);
    buf_init(&out, 1 << 16);
    errors_set(&e, 400, "unknown_parameter", name, "Unknown parameter: '%.*s' \"\n\xff", 50, name);
    assert_int_equal(errors_add_json(&e, &out), ERR_OK);
    json_t *j = json_loadb((char *)out.data, out.len_bytes, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "error"), "type")),
                        "invalid_request_error");
    json_decref(j);
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_values),      cmocka_unit_test(test_inert),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_many_values), cmocka_unit_test(test_error_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
