// loom chat: a conversation in the terminal with any OpenAI-compatible endpoint.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/http.h"
#include "cmd/visible.h"

struct chat {
    const struct command *cmd;
    const char *url, *model, *system, *once;
    char *listed; // owned: the model, where the endpoint named it
    bool think;
    double temperature; // < 0: the server's default
    json_t *messages;
    // Of the current answer:
    struct buf answer;
    struct visible shown;
    bool thinking;     // the terminal shows reasoning at the moment
    bool began;        // an event with a choice came
    struct err failed; // code 0, or why the answer ended
};

static void set_thinking(struct chat *c, bool thinking) {
    if (c->thinking == thinking) return;
    visible_end(&c->shown);
    if (c->shown.terminal) fputs(thinking ? "\033[2m" : "\033[0m", stdout);
    if (!thinking) putchar('\n');
    c->thinking = thinking;
}

// A text of a delta, which may be left out or null; NULL: nothing to show.
static const char *text_of(struct chat *c, const json_t *delta, const char *key) {
    const json_t *v = json_object_get(delta, key);
    if (v && !json_is_null(v) && !json_is_string(v))
        err_set(&c->failed, ERR_NET, "the answer broke off: %s of an event is no text", key);
    const char *text = json_string_value(v);
    return text && text[0] ? text : NULL;
}

// The delta of an event's first choice; NULL, perhaps with c->failed: there is none.
static const json_t *delta_of(struct chat *c, const json_t *root) {
    const json_t *error = json_object_get(root, "error"), *choices = json_object_get(root, "choices");
    const json_t *choice = json_array_get(choices, 0), *delta = json_object_get(choice, "delta");
    const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    if (!json_is_object(root))
        err_set(&c->failed, ERR_NET, "the answer broke off: an event is not a JSON object");
    else if (error && !json_is_null(error))
        err_set(&c->failed, ERR_NET, "the answer broke off: %s", message ? message : "the server gives no reason");
    else if (choices && !json_is_array(choices))
        err_set(&c->failed, ERR_NET, "the answer broke off: choices of an event is no array");
    else if (choice && !json_is_object(delta))
        err_set(&c->failed, ERR_NET, "the answer broke off: a choice of an event has no delta");
    else if (choice)
        c->began = true;
    return c->failed.code ? NULL : delta;
}

static int on_data(void *arg, const char *data, size_t len) {
    struct chat *c = arg;
    json_t *root = json_loadb(data, len, 0, NULL);
    const json_t *delta = delta_of(c, root);
    const char *reasoning = text_of(c, delta, "reasoning_content"), *content = text_of(c, delta, "content");
    if (reasoning) {
        set_thinking(c, true);
        visible_print(&c->shown, reasoning, strlen(reasoning));
    }
    if (content) {
        set_thinking(c, false);
        visible_print(&c->shown, content, strlen(content));
        if (buf_add(&c->answer, content, strlen(content))) err_set(&c->failed, ERR_NOMEM, "the answer is too long");
    }
    bool unread = fflush(stdout) != 0;
    json_decref(root);
    return c->failed.code || unread ? -1 : 0;
}

static int ask(struct chat *c, const char *question, struct err *e) {
    char url[1024];
    int rc = http_url(url, sizeof url, c->url, "/v1/chat/completions", e);
    if (rc) return rc;
    json_t *user = json_pack("{s:s,s:s}", "role", "user", "content", question);
    if (!user) return err_set(e, ERR_FORMAT, "the line is not UTF-8");
    json_array_append_new(c->messages, user);
    json_t *body = json_pack("{s:s,s:b,s:O,s:{s:b}}", "model", c->model, "stream", 1, "messages", c->messages,
                             "chat_template_kwargs", "enable_thinking", c->think ? 1 : 0);
    if (body && c->temperature >= 0) json_object_set_new(body, "temperature", json_real(c->temperature));
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the conversation");
    buf_clear(&c->answer);
    visible_stdout(&c->shown);
    c->thinking = c->began = false;
    c->failed = (struct err){0};
    rc = http_events(url, text, on_data, c, e);
    free(text);
    if (!rc && !c->failed.code && !c->began && !ferror(stdout))
        err_set(&c->failed, ERR_NET, "the answer broke off: no event of it has a choice");
    if (!rc && c->failed.code) {
        *e = c->failed;
        rc = e->code;
    }
    set_thinking(c, false);
    visible_end(&c->shown);
    if (!rc || c->answer.len_bytes) putchar('\n');
    if (rc) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1); // it was not answered
        return rc;
    }
    const char *answer = buf_cstr(&c->answer);
    json_array_append_new(c->messages, json_pack("{s:s,s:s}", "role", "assistant", "content", answer ? answer : ""));
    return ERR_OK;
}

// The endpoint's first model.
static int first_model(struct chat *c, struct err *e) {
    char url[1024];
    struct buf b;
    long status = 0;
    buf_init(&b, 1 << 20);
    int rc = http_url(url, sizeof url, c->url, "/v1/models", e);
    if (!rc) rc = http_call(url, NULL, &b, &status, e);
    json_t *root = rc ? NULL : json_loadb((const char *)b.data, b.len_bytes, 0, NULL);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    if (!rc && (status != 200 || !id)) rc = err_set(e, ERR_NET, "%s: no list of models (HTTP %ld)", url, status);
    if (!rc && !(c->model = c->listed = strdup(id))) rc = err_set(e, ERR_NOMEM, "no memory for a name");
    json_decref(root);
    buf_fini(&b);
    return rc;
}

static int begin(struct chat *c, struct err *e) {
    json_array_clear(c->messages);
    if (!c->system) return ERR_OK;
    int rc = json_array_append_new(c->messages, json_pack("{s:s,s:s}", "role", "system", "content", c->system));
    return rc ? err_set(e, ERR_NOMEM, "no memory for the conversation") : ERR_OK;
}

// Answers a line, or tells why not: that ends nothing but this answer. False: it was not answered.
static bool answer_line(struct chat *c, const char *line) {
    struct err e;
    int rc = !strcmp(line, "/new") ? begin(c, &e) : ask(c, line, &e);
    if (rc) flags_fail(c->cmd, &e);
    return rc == ERR_OK;
}

// How the program ends: at a terminal well, where every answer was seen to fail or not.
static int converse(struct chat *c) {
    bool tty = isatty(STDIN_FILENO), all = true;
    char *line = NULL;
    size_t cap = 0;
    if (tty) {
        visible_stdout(&c->shown);
        visible_print(&c->shown, c->model, strlen(c->model));
        visible_end(&c->shown);
        printf(" (%s)\n", flags_text("Ctrl-D ends, /new forgets", "Ctrl-D 结束，/new 清空对话"));
    }
    for (;;) {
        if (tty) printf("\n> ");
        if (fflush(stdout)) break;
        ssize_t n = getline(&line, &cap, stdin);
        if (n <= 0) break;
        if (line[n - 1] == '\n') line[n - 1] = 0;
        if (line[0] && !answer_line(c, line)) all = false;
    }
    free(line);
    return all || tty ? EXIT_FINE : EXIT_FAILED;
}

static int check(const struct chat *c, struct err *e) {
    char url[1024];
    const struct {
        const char *flag, *text;
    } texts[] = {{"--model", c->model}, {"--system", c->system}, {"-p", c->once}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_t *s = texts[i].text ? json_string(texts[i].text) : NULL;
        bool bad = texts[i].text && !s;
        json_decref(s);
        if (bad) return err_set(e, ERR_USAGE, "%s: the text is not UTF-8", texts[i].flag);
    }
    return http_url(url, sizeof url, c->url, "/v1/chat/completions", e);
}

static int run(const struct command *cmd, int argc, char **argv) {
    struct chat c = {.cmd = cmd, .url = "http://127.0.0.1:8080", .temperature = -1};
    const struct flag own[] = {
        {"--url", FLAG_STRING, &c.url, 0, 0, "URL", "the endpoint (default http://127.0.0.1:8080)",
         "服务地址（默认 http://127.0.0.1:8080）"},
        {"--model", FLAG_STRING, &c.model, 0, 0, "NAME", "default: the first that the endpoint lists",
         "默认取服务列出的第一个"},
        {"--system", FLAG_STRING, &c.system, 0, 0, "TEXT", "a system message", "系统消息"},
        {"--temp", FLAG_F64, &c.temperature, 0, 2, "T", "temperature; 0: greedy", "温度；0 为贪心"},
        {"--think", FLAG_BOOL, &c.think, 0, 0, "", "let the model think first", "先让模型思考"},
        {"-p", FLAG_STRING, &c.once, 0, 0, "TEXT", "one question, then end", "只问一句"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    int n_rest;
    struct err e;
    int rc = flags_parse(cmd, tables, argc, argv, NULL, 0, &n_rest, &e);
    if (rc) return flags_fail(cmd, &e);
    c.messages = json_array();
    buf_init(&c.answer, 64 << 20);
    rc = check(&c, &e);
    if (!rc) rc = begin(&c, &e);
    if (!rc && !c.model) rc = first_model(&c, &e);
    if (!rc && c.once) rc = ask(&c, c.once, &e);
    int code = rc ? flags_fail(cmd, &e) : c.once ? EXIT_FINE : converse(&c);
    json_decref(c.messages);
    buf_fini(&c.answer);
    free(c.listed);
    return code;
}

const struct command cmd_chat = {.name = "chat",
                                 .args = "[--url URL]",
                                 .en = "talk to an endpoint in the terminal",
                                 .zh = "在终端里与服务对话",
                                 .run = run};
