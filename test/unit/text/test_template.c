#include "text/chat.h"
#include "text/template.h"
#include "os/file.h"
#include "os/thread.h"
#include "small.h"
#include "tiny.h"
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

static struct tokenizer *t;

static int setup(void **state) {
    (void)state;
    t = tiny_new(&(struct tiny){0});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(t);
    return 0;
}

static struct chat_template *load(const char *text, const char *config, uint32_t deadline_ms) {
    struct chat_template_options options = {.n_helpers = 2, .deadline_ms = deadline_ms};
    struct chat_template *ct = NULL;
    struct err e = {0};
    if (chat_template_new(text, config, t, &options, &ct, &e)) fail_msg("%s", e.text);
    return ct;
}

static int render(struct chat_template *ct, const char *body, const char *extra, struct chat_prompt *p, struct err *e) {
    return chat_template_render(ct, body, strlen(body), extra, true, p, e);
}

static void renders(struct chat_template *ct, const char *body, const char *extra, const char *want) {
    struct chat_prompt p = {0};
    struct err e = {0};
    if (render(ct, body, extra, &p, &e)) fail_msg("%s", e.text);
    assert_string_equal(p.text, want);
    assert_int_equal(p.len_bytes, strlen(want));
    chat_prompt_fini(&p);
}

static void refuses(struct chat_template *ct, const char *body, int code, const char *word) {
    struct chat_prompt p = {0};
    struct err e = {0};
    assert_int_equal(render(ct, body, NULL, &p, &e), code);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not say \"%s\"", e.text, word);
    assert_null(p.text);
}

#define USER "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]"

// Loads a template, renders the request once, compares.
static void once(const char *text, const char *body, const char *want) {
    struct chat_template *ct = load(text, NULL, 0);
    renders(ct, body, NULL, want);
    chat_template_free(ct);
}

static void values_reach_the_prompt_as_they_came(void **state) {
    (void)state;
    once("{{ tools | tojson }}",
         USER ", \"tools\": [{\"z\": 0.1, \"a\": 1.0, \"n\": 123456789012345678901234567890, \"s\": \"\xc3\xa9</>\"}]}",
         "[{\"z\": 0.1, \"a\": 1.0, \"n\": 123456789012345678901234567890, \"s\": \"\xc3\xa9</>\"}]");
    once("{{ messages[0].tool_calls[0].function.arguments.x }}",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
         "\"f\", "
         "\"arguments\": \"{\\\"x\\\": [1.50]}\"}}]}]}",
         "[1.5]");
    once("{{ messages[0].tool_calls[0].function.arguments }}",
         "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": \"{broken\"}}]}]}",
         "{broken");
    once("{{ tools is none }} {{ documents is none }} {{ bos_token is defined }} {{ add_generation_prompt }}", USER "}",
         "True True False True");
}

static void the_environment_is_that_of_the_reference(void **state) {
    (void)state;
    once("{% for i in range(5) %}\n{% if i == 3 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}", USER "}",
         "0\n1\n2\n");
    once("{% generation %}{{ messages[0].content }}{% endgeneration %}", USER "}", "hi");
    once("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=1) }}", USER "}", "{\n \"b\": 1,\n \"a\": [\n  1,\n  2\n ]\n}");
    once("{{ strftime_now('%Y') | length }}", USER "}", "4");
    struct chat_template *ct = load("{{ bos_token }}{{ eos_token }}{{ mode }}",
                                    "{\"bos_token\": {\"content\": \"<s>\"}, "
                                    "\"eos_token\": \"</s>\"}",
                                    0);
    renders(ct, USER "}", "{\"mode\": 1}", "<s></s>1");
    renders(ct, USER ", \"chat_template_kwargs\": {\"mode\": 2}}", "{\"mode\": 1}", "<s></s>2");
    chat_template_free(ct);
}

static void templates_of_the_config(void **state) {
    (void)state;
    struct chat_template *ct =
        load(NULL,
             "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"tool_use\", "
             "\"template\": \"T\"}]}",
             0);
    renders(ct, USER "}", NULL, "D");
    renders(ct, USER ", \"tools\": []}", NULL, "D");
    renders(ct, USER ", \"tools\": [{}]}", NULL, "T");
    chat_template_free(ct);
    ct = load(NULL, "{\"chat_template\": \"C\"}", 0);
    renders(ct, USER "}", NULL, "C");
    chat_template_free(ct);
    ct = load("F", "{\"chat_template\": \"C\"}", 0);
    renders(ct, USER "}", NULL, "F");
    chat_template_free(ct);
    struct err e;
    ct = NULL;
    assert_int_equal(chat_template_new(NULL, "{}", t, NULL, &ct, &e), ERR_NOT_FOUND);
    assert_int_equal(chat_template_new(NULL, NULL, t, NULL, &ct, &e), ERR_NOT_FOUND);
    assert_int_equal(chat_template_new("x", "[", t, NULL, &ct, &e), ERR_FORMAT);
    assert_int_equal(chat_template_new("a\n{% if %}", NULL, t, NULL, &ct, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "line 2"));
    assert_int_equal(chat_template_new(NULL, "{\"chat_template\": \"{% if %}\"}", t, NULL, &ct, &e), ERR_FORMAT);
    if (strncmp(e.text, "tokenizer_config.json: chat template \"default\": line 1", 54) != 0) fail_msg("%s", e.text);
    assert_null(ct);
}

static void a_broken_one_of_a_gguf(void **state) {
    (void)state;
    static const char want[] = "x.gguf: tokenizer.chat_template: chat template \"default\": line 1";
    struct buf b = small_gguf(&(struct small_gguf){.chat_template = "{% if %}"});
    struct gguf *g = NULL;
    struct chat_template *ct = NULL;
    struct err e = {0};
    if (gguf_new(b.data, b.len_bytes, &g, &e)) fail_msg("%s", e.text);
    assert_int_equal(chat_template_open_gguf(g, "x.gguf", NULL, t, NULL, &ct, &e), ERR_FORMAT);
    if (strncmp(e.text, want, sizeof want - 1) != 0) fail_msg("%s", e.text);
    gguf_free(g);
    buf_fini(&b);
}

static void templates_of_a_gguf(void **state) {
    (void)state;
    struct buf b = small_gguf(&(struct small_gguf){.chat_template = "{{ bos_token }}{{ eos_token }}{{ unk_token }}"});
    struct gguf *g = NULL;
    struct tokenizer *own = NULL;
    struct chat_template *ct = NULL;
    struct err e = {0};
    if (gguf_new(b.data, b.len_bytes, &g, &e) || tokenizer_new_gguf(g, &own, &e)) fail_msg("%s", e.text);
    if (chat_template_open_gguf(g, "x.gguf", NULL, own, NULL, &ct, &e)) fail_msg("%s", e.text);
    renders(ct, USER "}", NULL, "<s></s>");
    renders(ct, USER ", \"tools\": [{}]}", NULL, "T");
    chat_template_free(ct);
    gguf_free(g);
    buf_fini(&b);
    b = small_gguf(&(struct small_gguf){0});
    assert_int_equal(gguf_new(b.data, b.len_bytes, &g, &e), 0);
    assert_int_equal(chat_template_open_gguf(g, "x.gguf", NULL, own, NULL, &ct, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "x.gguf"));
    gguf_free(g);
    tokenizer_free(own);
    buf_fini(&b);
}

// What the template says against a request is for the client to read.
static void errors_of_a_template(void **state) {
    (void)state;
    struct chat_template *ct = load("{% if messages[0].role != 'user' %}{{ raise_exception('user first, please') }}"
                                    "{% endif %}{{ nothing.at.all }}",
                                    NULL, 0);
    refuses(ct, "{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}", ERR_USAGE, "user first, please");
    refuses(ct, USER "}", ERR_USAGE, "'nothing' is undefined");
    chat_template_free(ct);
}

static void files_of_a_model(void **state) {
    (void)state;
    char dir[] = "/tmp/loom-test-template-XXXXXX", path[LIMIT_PATH];
    assert_non_null(mkdtemp(dir));
    struct chat_template *ct = NULL;
    struct err e = {0};
    assert_int_equal(chat_template_open(dir, NULL, t, NULL, &ct, &e), ERR_NOT_FOUND);
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja", "mine.jinja"};
    static const char *const texts[] = {"{\"chat_template\": \"C\"}", "J", "M"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(file_write(path, texts[i], strlen(texts[i]), 0600, NULL), 0);
        if (chat_template_open(dir, i == 2 ? path : NULL, t, NULL, &ct, &e)) fail_msg("%s", e.text);
        renders(ct, USER "}", NULL, (const char *const[]){"C", "J", "M"}[i]);
        chat_template_free(ct);
    }
    // Named ones beside it: one for requests with tools.
    char more[LIMIT_PATH], tools[LIMIT_PATH + 32];
    snprintf(more, sizeof more, "%s/additional_chat_templates", dir);
    snprintf(tools, sizeof tools, "%s/tool_use.jinja", more);
    assert_int_equal(file_mkdir_all(more, 0700, NULL), 0);
    assert_int_equal(file_write(tools, "T", 1, 0600, NULL), 0);
    if (chat_template_open(dir, NULL, t, NULL, &ct, &e)) fail_msg("%s", e.text);
    renders(ct, USER "}", NULL, "J");
    renders(ct, USER ", \"tools\": [{}]}", NULL, "T");
    chat_template_free(ct);
    unlink(tools);
    rmdir(more);
    assert_int_equal(file_write(path, "M\0N", 3, 0600, NULL), 0);
    assert_int_equal(chat_template_open(dir, path, t, NULL, &ct, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "NUL at byte 1"));
    assert_int_equal(chat_template_open(dir, "/nonexistent", t, NULL, &ct, &e), ERR_NOT_FOUND);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

#define PARTS                                                                                                          \
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "                       \
    "{\"type\": \"text\", \"text\": \"b\"}]}]}"

static void lists_of_parts(void **state) {
    (void)state;
    once("{{ messages[0].content }}", PARTS, "a\nb");
    once("{% for p in messages[0]['content'] %}[{{ p.text }}]{% endfor %}", PARTS, "[a][b]");
    once("{% for m in messages %}{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endfor %}", PARTS,
         "[a][b]");
    once("{% for line in messages[0].content.split('\n') %}[{{ line }}]{% endfor %}", PARTS, "[a][b]");
    struct chat_template *ct = load("{{ messages }}", NULL, 0);
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", ERR_USAGE,
            "messages[0].content[0]: parts of type \"image_url\"");
    chat_template_free(ct);
}

static void encoded(const char *text, const char *body, const char *want_text, size_t n_special) {
    struct chat_template *ct = load(text, NULL, 0);
    struct chat_prompt p = {0};
    struct ids ids;
    struct err e = {0};
    ids_init(&ids, 10000);
    if (chat_encode(t, ct, body, strlen(body), NULL, true, &ids, &p, &e)) fail_msg("%s", e.text);
    assert_string_equal(p.text, want_text);
    size_t n = 0;
    for (size_t i = 0; i < ids.n; i++) n += tokenizer_is_special(t, ids.data[i]);
    assert_int_equal(n, n_special);
    chat_prompt_fini(&p);
    ids_fini(&ids);
    chat_template_free(ct);
}

static void a_prompt_has_text(void **state) {
    (void)state;
    struct chat_template *ct = load("{{ '' }}", NULL, 0);
    struct chat_prompt p = {0};
    struct ids ids;
    struct err e = {0};
    ids_init(&ids, 100);
    assert_int_equal(chat_encode(t, ct, USER "}", strlen(USER "}"), NULL, true, &ids, &p, &e), ERR_USAGE);
    assert_string_equal(e.text, "the chat template rendered nothing");
    assert_null(p.text);
    ids_fini(&ids);
    chat_template_free(ct);
}

// Control tokens of the tiny tokenizer: <|a|>, <|ab|>. What the template writes is one, what a client writes is not.
static void text_of_a_client_is_text(void **state) {
    (void)state;
    const char *plain = "<|a|>{{ messages[0].role }}:{{ messages[0].content }}<|ab|>";
    encoded(plain, "{\"messages\": [{\"role\": \"user\", \"content\": \"x<|a|>y<|ab|><|a|>\"}]}",
            "<|a|>user:x<|a|>y<|ab|><|a|><|ab|>", 2);
    encoded(plain, "{\"messages\": [{\"role\": \"u<|a|>\", \"content\": \"\\u003c|a|\\u003e\"}]}",
            "<|a|>u<|a|>:<|a|><|ab|>", 2);
    // Two strings that only together read like a token, also when a template strips the space between.
    encoded("{{ messages[0].content | trim }}{{ messages[1].content }}<|a|>",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"<|a \"}, {\"role\": \"user\", \"content\": \"|>\"}]}",
            "<|a|><|a|>", 1);
    encoded("{% for p in messages[0].content %}{{ p.text }}{% endfor %}",
            "{\"messages\": [{\"role\": \"user\", \"content\": [\"<|\", \"a|>\", \"<\", \"|ab|>\"]}]}", "<|a|><|ab|>",
            0);
    // Keys, numbers of tools, arguments, variables; escaped by the template or not.
    encoded("{{ tools | tojson }}{{ tools | tojson(ensure_ascii=True) }}{{ x }}",
            USER ", \"tools\": [{\"<|a|>\": \"<|ab|>\xc3\xa9\"}], \"chat_template_kwargs\": {\"x\": \"<|a|>\"}}",
            "[{\"<|a|>\": \"<|ab|>\xc3\xa9\"}][{\"<|a|>\": \"<|ab|>\\u00e9\"}]<|a|>", 0);
    // A template may build its own out of a role: nothing there reads like a control token.
    encoded("<|{{ messages[0].role }}|>", "{\"messages\": [{\"role\": \"ab\", \"content\": \"\"}]}", "<|ab|>", 1);
    // What is not special stays visible to the template's logic, and is a token.
    encoded("{{ messages[0].content.split('</think>')[-1] }}<|a|>",
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<think>a</think>b\"}]}", "b<|a|>", 1);
}

// A vocabulary may have plain words for control tokens. The template knows the request's names all the same, and only
// by these may a client write them.
static void names_stay_what_they_are(void **state) {
    (void)state;
    struct tokenizer *all = t;
    t = tiny_new(
        &(struct tiny){.added = "[{\"id\": 1000, \"content\": \"<|a|>\", \"special\": true, \"normalized\": false},"
                                " {\"id\": 1001, \"content\": \"role\", \"special\": true, \"normalized\": false},"
                                " {\"id\": 1002, \"content\": \"user\", \"special\": true, \"normalized\": false},"
                                " {\"id\": 1003, \"content\": \"kwargs\", \"special\": true, \"normalized\": false},"
                                " {\"id\": 1004, \"content\": \"mood\", \"special\": true, \"normalized\": false}]"});
    encoded("{% for x in messages %}{% if x.role == 'user' %}<|a|>{{ x.content }}{{ mood }}{% endif %}{% endfor %}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"user <|a|> role\"}], \"chat_template_kwargs\": "
            "{\"mood\": 5}}",
            "<|a|>user <|a|> role5", 1);
    encoded("{{ tools | tojson }}{{ messages[0].role }}{{ '<|a|>' }}",
            "{\"messages\": [{\"role\": \"<|a|>\"}], \"tools\": [{\"<|a|>\": {\"kwargs\": 1}, \"type\": \"<|a|>\"}]}",
            "[{\"<|a|>\": {\"kwargs\": 1}, \"type\": \"<|a|>\"}]<|a|><|a|>", 1);
    tokenizer_free(t);
    t = all;
}

static void whose_fault(const char *text, const char *want) {
    struct chat_template_options options = {.deadline_ms = 500};
    struct chat_template *ct = NULL;
    struct err e = {0};
    assert_int_equal(chat_template_new(text, NULL, t, &options, &ct, &e), ERR_FORMAT);
    if (!strstr(e.text, want)) fail_msg("\"%s\" does not say \"%s\"", e.text, want);
}

static void templates_at_fault(void **state) {
    (void)state;
    whose_fault("{% break %}", "SyntaxError: 'break' outside loop");
    whose_fault("{{ 10**(10**9) }}", "not compiled within 500 ms"); // the power is computed while compiling
    struct chat_template *ct = load("{{ '\\ud800' }}", NULL, 0);
    refuses(ct, USER "}", ERR_USAGE, "chat template: it makes half of a surrogate pair");
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud83d\"}]}", ERR_USAGE,
            "the messages hold half");
    chat_template_free(ct);
}

static void requests_at_fault(void **state) {
    (void)state;
    struct chat_template *ct =
        load("{% if messages[0].role == 'bad' %}{{ raise_exception('Only good roles!') }}{% endif %}"
             "{{ messages[0].content + '' }}",
             NULL, 0);
    refuses(ct, "{\"messages\": [{\"role\": \"bad\", \"content\": \"\"}]}", ERR_USAGE, "Only good roles!");
    refuses(ct, "{\"messages\": [{\"role\": \"user\"}]}", ERR_USAGE, "chat template: UndefinedError");
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", ERR_USAGE, "TypeError");
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud83d\"}]}", ERR_USAGE, "surrogate");
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}", ERR_USAGE, "not JSON");
    refuses(ct, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", ERR_USAGE, "messages[0].content");
    refuses(ct, "{\"messages\": [{\"content\": \"\"}]}", ERR_USAGE, "messages[0]");
    refuses(ct, "{\"messages\": []}", ERR_USAGE, "messages");
    refuses(ct, "{", ERR_USAGE, "not JSON");
    refuses(ct, "[]", ERR_USAGE, "object");
    refuses(ct, USER ", \"seed\": NaN}", ERR_USAGE, "NaN");
    refuses(ct, USER ", \"chat_template_kwargs\": {\"messages\": []}}", ERR_USAGE, "must not hold messages");
    refuses(ct, USER ", \"tools\": 1}", ERR_USAGE, "tools");
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    refuses(ct, deep, ERR_USAGE, "deep");
    free(deep);
    struct chat_prompt p;
    assert_int_equal(render(ct, USER "}", "[]", &p, NULL), ERR_USAGE);
    renders(ct, USER "}", NULL, "hi");
    chat_template_free(ct);
}

// Each of these must be refused, and the next request must find a helper that works.
static void hostile_templates(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
        int code;
    } cases[] = {
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "500 ms", ERR_USAGE},
        {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "", ERR_USAGE},
        {"{{ raise_exception.__globals__['json'] }}", "unsafe", ERR_USAGE},
        {"{{ cycler.__init__.__globals__.os.popen('id').read() }}", "", ERR_USAGE},
        {"{{ messages.append(1) }}", "SecurityError", ERR_USAGE},
        {"{% include '/etc/passwd' %}", "", ERR_USAGE},
        {"{% import 'os' as os %}{{ os.getcwd() }}", "", ERR_USAGE},
        {"{{ range(1000000000) | list }}", "", ERR_USAGE},
        {"{{ messages[0].role * 33333333 }}", "larger", ERR_LIMIT},
        {"{{ ('%' ~ '2000000000d' ~ messages[0].content) % 1 }}", "memory", ERR_USAGE},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError", ERR_USAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, "{%% if messages[0].role == 'bad' %%}%s{%% endif %%}ok", cases[i].text);
        struct chat_template *ct = load(text, NULL, 500);
        refuses(ct, "{\"messages\": [{\"role\": \"bad\", \"content\": \"\"}]}", cases[i].code, cases[i].word);
        renders(ct, USER "}", NULL, "ok");
        chat_template_free(ct);
    }
}

static void kill_children(void) {
    char path[64], list[4096] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    if (!f) return;
    list[fread(list, 1, sizeof list - 1, f)] = 0;
    fclose(f);
    for (char *at = list, *end; *at; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at) break;
        if (pid > 1) kill((pid_t)pid, SIGKILL);
    }
}

static void a_dead_helper_is_replaced(void **state) {
    (void)state;
    struct chat_template *ct = load("{{ messages[0].content }}", NULL, 0);
    renders(ct, USER "}", NULL, "hi");
    kill_children();
    renders(ct, USER "}", NULL, "hi");
    chat_template_free(ct);
}

struct worker {
    struct thread thread;
    struct chat_template *ct;
    int index, wrong;
};

static void work(void *arg) {
    struct worker *w = arg;
    char body[128], want[32];
    for (int i = 0; i < 50; i++) {
        struct chat_prompt p = {0};
        snprintf(want, sizeof want, "%d.%d", w->index, i);
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}", want);
        if (render(w->ct, body, NULL, &p, NULL) || strcmp(p.text, want) != 0) w->wrong++;
        chat_prompt_fini(&p);
    }
}

static void many_threads(void **state) {
    (void)state;
    struct chat_template *ct = load("{{ messages[0].content }}", NULL, 0);
    struct worker workers[6];
    for (int i = 0; i < 6; i++) {
        workers[i] = (struct worker){.ct = ct, .index = i};
        assert_int_equal(thread_start(&workers[i].thread, "render", work, &workers[i], NULL), 0);
    }
    for (int i = 0; i < 6; i++) {
        thread_join(&workers[i].thread);
        assert_int_equal(workers[i].wrong, 0);
    }
    renders(ct, USER "}", NULL, "hi"); // the threads that started helpers are gone
    chat_template_free(ct);
}

static void a_large_request(void **state) {
    (void)state;
    enum { N = 6 << 20 };
    struct chat_template *ct = load("{{ messages[0].content | length }}", NULL, 0);
    char *body = malloc(N + 100), *at = body;
    at += sprintf(at, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    memset(at, 'x', N);
    strcpy(at + N, "\"}]}");
    renders(ct, body, NULL, "6291456");
    chat_template_free(ct);
    free(body);
}

int main(void) {
    if (!file_exists("/usr/lib/python3/dist-packages/jinja2")) {
        puts("skipped: needs python3-jinja2");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_reach_the_prompt_as_they_came),
        cmocka_unit_test(the_environment_is_that_of_the_reference),
        cmocka_unit_test(templates_of_the_config),
        cmocka_unit_test(templates_of_a_gguf),
        cmocka_unit_test(a_broken_one_of_a_gguf),
        cmocka_unit_test(errors_of_a_template),
        cmocka_unit_test(files_of_a_model),
        cmocka_unit_test(lists_of_parts),
        cmocka_unit_test(text_of_a_client_is_text),
        cmocka_unit_test(a_prompt_has_text),
        cmocka_unit_test(requests_at_fault),
        cmocka_unit_test(names_stay_what_they_are),
        cmocka_unit_test(templates_at_fault),
        cmocka_unit_test(hostile_templates),
        cmocka_unit_test(a_dead_helper_is_replaced),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(a_large_request),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
