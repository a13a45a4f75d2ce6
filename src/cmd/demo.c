// loom demo: head and three nodes on this machine, a question, kill -9 of a node in the middle of the answer, and the
// comparison with the undisturbed answer.
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/http.h"
#include "cmd/serve.h"
#include "cmd/visible.h"
#include "os/clock.h"
#include "os/file.h"

enum { MAX_PIECES = 4096, TYPE_MS = 12, KILL_AT = 16, TRIES = 4, SHADOWS_MS = 10000 };

// One streamed answer: pieces of text with the times at which they came.
struct telling {
    const char *url, *body;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct buf text;
    uint32_t n; // pieces
    size_t end[MAX_PIECES];
    uint64_t at_us[MAX_PIECES];
    pid_t victim; // killed when piece kill_at came; 0: nobody
    uint32_t kill_at;
    uint64_t kill_us;
    struct visible shown;
    bool ended;
    int rc;
    struct err err;
};

static int on_piece(void *arg, const char *data, size_t len) {
    struct telling *t = arg;
    uint64_t now_us = clock_now_us();
    json_t *root = json_loadb(data, len, 0, NULL);
    json_t *delta = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "delta");
    const char *text = json_string_value(json_object_get(delta, "content"));
    pthread_mutex_lock(&t->lock);
    if (text && text[0] && t->n < MAX_PIECES && !buf_add(&t->text, text, strlen(text))) {
        t->end[t->n] = t->text.len_bytes;
        t->at_us[t->n++] = now_us;
        if (t->n == t->kill_at && t->victim) {
            kill(t->victim, SIGKILL);
            t->kill_us = clock_now_us();
        }
        pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    json_decref(root);
    return 0;
}

static void *tell(void *arg) {
    struct telling *t = arg;
    t->rc = http_events(t->url, t->body, on_piece, t, &t->err);
    pthread_mutex_lock(&t->lock);
    t->ended = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void print_piece(struct telling *t, uint32_t i) {
    size_t from = i ? t->end[i - 1] : 0;
    const char *text = (const char *)t->text.data + from;
    const bool was_killed = i == t->kill_at && i > 0 && t->victim;
    if (was_killed && text[0] != ' ' && text[0] != '\n') putchar(' ');
    visible_print(&t->shown, text, t->end[i] - from);
    if (i + 1 == t->kill_at && t->victim)
        printf(" %s[kill -9 %d]%s", t->shown.terminal ? "\033[31m" : "", (int)t->victim,
               t->shown.terminal ? "\033[0m" : "");
    fflush(stdout);
}

// Prints the pieces at the pace of a fast typist, while they are received (and timed) on a thread of their own.
static int run_telling(struct telling *t, bool show, struct err *e) {
    pthread_t thread;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    buf_init(&t->text, 1 << 20);
    visible_stdout(&t->shown);
    if (pthread_create(&thread, NULL, tell, t)) return err_set(e, ERR_NOMEM, "no room for a thread");
    uint32_t shown = 0;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (shown == t->n && !t->ended) pthread_cond_wait(&t->changed, &t->lock);
        if (shown == t->n) break;
        if (show) print_piece(t, shown);
        shown++;
        pthread_mutex_unlock(&t->lock);
        if (show) clock_sleep_ms(TYPE_MS);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    pthread_join(thread, NULL);
    visible_end(&t->shown);
    if (show) printf("\n\n");
    if (t->rc) *e = t->err;
    return t->rc;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

// The longest interval that overlaps the kill or comes after it, and the median of those before.
static void measure(const struct telling *t, double *gap_ms, double *median_ms) {
    static uint64_t before[MAX_PIECES];
    uint32_t n = 0;
    uint64_t gap = 0;
    for (uint32_t i = 1; i < t->n; i++) {
        uint64_t d = t->at_us[i] - t->at_us[i - 1];
        if (t->at_us[i] <= t->kill_us)
            before[n++] = d;
        else if (d > gap)
            gap = d;
    }
    qsort(before, n, sizeof before[0], by_size);
    *median_ms = n ? (double)before[n / 2] / 1e3 : 0;
    *gap_ms = (double)gap / 1e3;
}

static int read_status(const char *url, json_t **root, struct err *e) {
    char full[320];
    struct buf b;
    long status = 0;
    snprintf(full, sizeof full, "%s/loom/v1/status", url);
    buf_init(&b, 4 << 20);
    int rc = http_call(full, NULL, &b, &status, e);
    *root = rc ? NULL : json_loadb((const char *)b.data, b.len_bytes, 0, NULL);
    buf_fini(&b);
    if (!rc && !*root) rc = err_set(e, ERR_FORMAT, "%s: no status came", full);
    return rc;
}

static const char *node_name(const json_t *root, json_int_t node) {
    size_t i;
    json_t *n;
    json_array_foreach(json_object_get(root, "nodes"), i, n) {
        if (json_integer_value(json_object_get(n, "node")) == node)
            return json_string_value(json_object_get(n, "name"));
    }
    return "?";
}

// The holders of a stage that are more than the one that serves it.
static void show_reserve(const json_t *root, const json_t *stage) {
    size_t i;
    json_t *holder;
    json_array_foreach(json_object_get(stage, "holders"), i, holder) {
        const char *role = json_string_value(json_object_get(holder, "role"));
        if (i == 0 || !role) continue;
        printf(flags_text(", %s: %s", "，%s：%s"), !strcmp(role, "shadow") ? flags_text("shadow", "影子") : role,
               node_name(root, json_integer_value(json_object_get(holder, "node"))));
    }
}

// How often stages have changed hands, with or without a new route.
static uint32_t count_moves(const json_t *root) {
    return (uint32_t)(json_integer_value(json_object_get(root, "epoch")) +
                      json_integer_value(json_object_get(root, "promotions")));
}

// Prints the route and finds the name of its middle stage's node.
static int show_route(const char *url, char *middle, size_t middle_bytes, uint32_t *moves, struct err *e) {
    json_t *root, *s;
    int rc = read_status(url, &root, e);
    if (rc) return rc;
    const json_t *stages = json_object_get(root, "stages");
    size_t i, n = json_array_size(stages);
    json_array_foreach(stages, i, s) {
        const char *name = node_name(root, json_integer_value(json_object_get(s, "node")));
        const json_t *layers = json_object_get(s, "layers");
        printf("  %-8s %s %lld-%lld", name, flags_text("layers", "层"),
               (long long)json_integer_value(json_array_get(layers, 0)),
               (long long)json_integer_value(json_array_get(layers, 1)) - 1);
        show_reserve(root, s);
        printf("\n");
        if (i == n / 2) snprintf(middle, middle_bytes, "%s", name);
    }
    *moves = count_moves(root);
    json_decref(root);
    return ERR_OK;
}

static bool has_shadow(const json_t *stage) {
    size_t i;
    json_t *holder;
    json_array_foreach(json_object_get(stage, "holders"), i, holder) {
        const char *role = json_string_value(json_object_get(holder, "role"));
        if (role && !strcmp(role, "shadow")) return true;
    }
    return false;
}

// Shadows come after the route. Where memory allows none, the demo shows how it goes without.
static int wait_for_shadows(const char *url, struct err *e) {
    uint64_t until_ms = clock_now_ms() + SHADOWS_MS;
    bool all = false;
    while (!all && clock_now_ms() < until_ms) {
        json_t *root, *s;
        size_t i;
        int rc = read_status(url, &root, e);
        if (rc) return rc;
        all = true;
        json_array_foreach(json_object_get(root, "stages"), i, s) all = all && has_shadow(s);
        json_decref(root);
        if (!all) clock_sleep_ms(50);
    }
    return ERR_OK;
}

static pid_t pid_of(const struct serve *s, const char *name) {
    for (uint32_t i = 0; i < s->flags.local_nodes; i++) {
        char own[32];
        snprintf(own, sizeof own, "node-%u", i);
        if (!strcmp(own, name)) return local_nodes_pid(s->nodes, i);
    }
    return 0;
}

// ERR_UNAVAILABLE: the answer was over before the route changed, which shows nothing.
static int report(const struct telling *calm, const struct telling *hurt, const char *url, uint32_t moves,
                  struct err *e) {
    char name[64];
    uint32_t moves_now;
    double gap_ms, median_ms;
    bool same =
        calm->text.len_bytes == hurt->text.len_bytes && !memcmp(calm->text.data, hurt->text.data, calm->text.len_bytes);
    json_t *root;
    int rc = read_status(url, &root, e);
    if (rc) return rc;
    bool moved = count_moves(root) != moves;
    json_decref(root);
    if (hurt->n <= hurt->kill_at || !moved)
        return err_set(e, ERR_UNAVAILABLE, "the answer was over before the kill could touch it");
    printf("%s\n", flags_text("The route now:", "现在的路线："));
    rc = show_route(url, name, sizeof name, &moves_now, e);
    if (rc) return rc;
    measure(hurt, &gap_ms, &median_ms);
    if (flags_chinese()) printf("\n与未受干扰的回答逐字节相同：%s", same ? "是" : "否");
    printf("\nsame bytes as undisturbed: %s\n", same ? "yes" : "no"); // for programs, so in one language
    if (!same) return err_set(e, ERR_FORMAT, "the answer changed when a node was killed");
    printf(flags_text("gap: %.0f ms (between tokens before the kill: %.1f ms; %u pieces after it)\n",
                      "间隔：%.0f 毫秒（被杀前两个 token 之间：%.1f 毫秒；其后还有 %u 段）\n"),
           gap_ms, median_ms, hurt->n - hurt->kill_at);
    return ERR_OK;
}

// One question: the undisturbed answer unseen, then the same with a kill after kill_at pieces, or in its middle.
static int tell_twice(struct serve *s, const char *question, const char *body, uint32_t kill_at, struct err *e) {
    char url[300], full[340], middle[64];
    uint32_t moves;
    serve_url(s, url, sizeof url);
    snprintf(full, sizeof full, "%s/v1/chat/completions", url);
    int rc = wait_for_shadows(url, e);
    if (rc) return rc;
    printf("%s\n", flags_text("The nodes hold the model:", "各节点共同持有模型："));
    rc = show_route(url, middle, sizeof middle, &moves, e);
    if (rc) return rc;
    struct telling *calm = calloc(1, sizeof *calm), *hurt = calloc(1, sizeof *hurt);
    if (!calm || !hurt) {
        rc = err_set(e, ERR_NOMEM, "no memory for two answers");
    } else {
        *calm = (struct telling){.url = full, .body = body};
        *hurt = (struct telling){.url = full, .body = body, .victim = pid_of(s, middle), .kill_at = kill_at};
        printf("\n> %s\n\n", question);
        rc = run_telling(calm, false, e); // what it should be
        if (hurt->kill_at > calm->n / 2) hurt->kill_at = calm->n / 2 ? calm->n / 2 : 1;
        if (!rc) rc = run_telling(hurt, true, e);
        if (!rc) rc = report(calm, hurt, url, moves, e);
        buf_fini(&calm->text);
        buf_fini(&hurt->text);
    }
    free(calm);
    free(hurt);
    return rc;
}

// This model answers in a tenth of a second. On a busy machine the kill can come too late to show anything: then the
// dead node is started again and the kill comes earlier.
static int tell_until_hurt(struct serve *s, const char *question, struct err *e) {
    json_t *body =
        json_pack("{s:s,s:b,s:f,s:{s:b},s:[{s:s,s:s}]}", "model", s->model.name, "stream", 1, "temperature", 0.0,
                  "chat_template_kwargs", "enable_thinking", 0, "messages", "role", "user", "content", question);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return err_set(e, ERR_USAGE, "--question: is not UTF-8");
    uint32_t kill_at = KILL_AT;
    int rc = tell_twice(s, question, text, kill_at, e);
    for (int i = 1; i < TRIES && rc == ERR_UNAVAILABLE; i++) {
        printf("(%s)\n\n", flags_text("the answer was over before the kill could touch it; once more",
                                      "回答在被杀之前已经结束，再来一次"));
        kill_at = kill_at / 2 ? kill_at / 2 : 1;
        uint64_t until_ms = clock_now_ms() + 15000;
        do {
            local_nodes_supervise(s->nodes);
            clock_sleep_ms(100);
        } while (head_count_nodes(s->head) < s->flags.local_nodes && clock_now_ms() < until_ms);
        clock_sleep_ms(1500); // an idle cluster takes its spare back in
        rc = head_wait_ready(s->head, 30000, e);
        if (!rc) rc = tell_twice(s, question, text, kill_at, e);
    }
    free(text);
    return rc;
}

// The bundled model: beside the source tree that the program was built in, or where it was installed.
static const char *find_model(void) {
    static const char *const places[] = {LOOM_SOURCE_DIR "/models/loom-demo", LOOM_DATA_DIR "/models/loom-demo",
                                         "models/loom-demo"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (file_is_dir(places[i])) return places[i];
    return NULL;
}

// Ctrl-C ends the demo at once: its nodes end with it, and its folder, which holds a key, is removed.
static void *end_on_signal(void *arg) {
    sigset_t set;
    int sig;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    while (sigwait(&set, &sig)) {
    }
    if (fork() == 0) { // the nodes end when this process has ended; until then they write into the folder
        clock_sleep_ms(500);
        file_remove_tree(arg);
        _exit(0);
    }
    _exit(128 + sig);
}

// From here on these two signals come to that thread alone.
static int watch_signals(char *state, struct err *e) {
    sigset_t set;
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, end_on_signal, state)) return err_set(e, ERR_NOMEM, "no room for a thread");
    pthread_detach(thread);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv) {
    struct serve s = {.flags = serve_defaults};
    const char *model = find_model(), *question = NULL;
    char state[] = "/tmp/loom-demo-XXXXXX";
    const struct flag own[] = {
        {"--question", FLAG_STRING, &question, 0, 0, "TEXT", "ask this instead", "改问这个"},
        {"--model", FLAG_STRING, &model, 0, 0, "DIR", "another model than the bundled loom-demo", "换用其他模型"},
        {"--verbose", FLAG_BOOL, &s.flags.compute.verbose, 0, 0, "", "show the log", "显示日志"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, NULL, 0, &n_rest, &e);
    if (!rc && !model) rc = err_set(&e, ERR_NOT_FOUND, "--model: the bundled models/loom-demo was not found");
    if (rc) return flags_fail(c, &e);
    if (!question) question = flags_text("Tell me a story about a dog named Gus.", "从1数到60");
    log_setup(s.flags.compute.verbose, true);
    if (!mkdtemp(state)) return flags_fail(c, &(struct err){ERR_IO, "no folder could be made in /tmp"});
    s.flags.state = state;
    s.flags.listen = "127.0.0.1:0";
    s.flags.local_nodes = 3;
    s.flags.compute.threads = 1;
    s.flags.quiet_nodes = !s.flags.compute.verbose;
    rc = watch_signals(state, &e);
    if (!rc) rc = serve_start(&s, model, &e);
    if (!rc) rc = head_wait_ready(s.head, 120000, &e);
    if (!rc) rc = tell_until_hurt(&s, question, &e);
    serve_stop(&s);
    file_remove_tree(state);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_demo = {.name = "demo",
                                 .args = "",
                                 .en = "three nodes, a question, kill -9 of one, the same answer",
                                 .zh = "三个节点，一个问题，杀掉其一，答案不变",
                                 .run = run};
