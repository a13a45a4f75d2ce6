// A cluster of processes over real sockets: the head's links here, nodes beside it, a small model between them. Their
// tokens must be those of one stage in this process.
#include "compute/backend.h"
#include "engine/stage.h"
#include "head/links.h"
#include "model/model.h"
#include "net/token.h"
#include "node/node.h"
#include "os/clock.h"
#include "os/file.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL_DIR LOOM_SOURCE_DIR "/models/loom-demo"

enum { NODES = 3, N_BLOCKS = 64, MAX_ROWS = 256, CONTEXT = 1024, PROMPT = 70, ANSWER = 40, WAIT_MS = 60000 };

static char state_dir[] = "/tmp/loom-node-test-XXXXXX";
static struct hparams hparams;
static struct tensors *tensors;
static char *config_json;
static size_t config_bytes;
static const struct run_mode mode = {.weights = WEIGHTS_NATIVE, .kv = KV_I8};

struct world {
    struct loop *loop;
    struct links *links;
    struct loop_timer *give_up;
    pid_t pid[NODES];
    uint64_t node[NODES], lost_node;
    uint32_t n_joined, n_ready, n_lost, epoch;
    uint64_t heartbeats, loading_bytes;
    char failed[256];
    struct step_result result;
    bool have_result;
    bool (*until)(const struct world *w); // the loop runs until this holds
};

static void check(struct world *w) {
    if (w->until && w->until(w)) loop_stop(w->loop);
}

static void on_joined(void *arg, uint64_t node, uint64_t memory_bytes) {
    struct world *w = arg;
    assert_true(memory_bytes > 0);
    for (int i = 0; i < NODES; i++)
        if (!w->node[i]) {
            w->node[i] = node;
            break;
        }
    w->n_joined++;
    check(w);
}

static void on_lost(void *arg, uint64_t node, const char *why) {
    struct world *w = arg;
    (void)why;
    w->lost_node = node;
    w->n_lost++;
    for (int i = 0; i < NODES; i++)
        if (w->node[i] == node) w->node[i] = 0;
    check(w);
}

static void on_heartbeat(void *arg, uint64_t node, uint32_t epoch, const struct cluster_stage_state *states,
                         uint32_t n_states, uint64_t loading_bytes) {
    struct world *w = arg;
    (void)node;
    (void)epoch;
    (void)states;
    (void)n_states;
    w->heartbeats++;
    if (loading_bytes > w->loading_bytes) w->loading_bytes = loading_bytes;
    check(w);
}

static void on_ready(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    struct world *w = arg;
    (void)node;
    (void)stage;
    if (epoch == w->epoch) w->n_ready++;
    check(w);
}

static void on_fed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage) {
    (void)arg;
    (void)node;
    (void)epoch;
    (void)stage;
}

static void on_leave(void *arg, uint64_t node, bool leave, const char *why) {
    (void)arg;
    (void)node;
    (void)leave;
    (void)why;
}

static void on_failed(void *arg, uint64_t node, uint32_t epoch, uint32_t stage, enum stage_failure what,
                      const char *why) {
    struct world *w = arg;
    (void)node;
    (void)epoch;
    (void)stage;
    (void)what;
    snprintf(w->failed, sizeof w->failed, "%s", why);
    check(w);
}

static void on_result(void *arg, uint64_t node, const struct step_result *r) {
    struct world *w = arg;
    (void)node;
    w->result = *r;
    w->have_result = true;
    check(w);
}

static void on_give_up(void *arg) { loop_stop(((struct world *)arg)->loop); }

static void run_until(struct world *w, bool (*until)(const struct world *)) {
    w->until = until;
    if (!until(w)) {
        loop_timer_set(w->give_up, clock_now_us() + WAIT_MS * 1000ull);
        loop_run(w->loop);
        loop_timer_set(w->give_up, UINT64_MAX);
    }
    if (!until(w)) print_error("waited in vain; failed says \"%s\"\n", w->failed);
    assert_true(until(w));
}

static bool all_joined(const struct world *w) { return w->node[0] && w->node[1] && w->node[2]; }
static bool two_joined(const struct world *w) { return (w->node[0] != 0) + (w->node[1] != 0) + (w->node[2] != 0) == 2; }
static bool all_ready(const struct world *w) { return w->n_ready == NODES; }
static bool two_ready(const struct world *w) { return w->n_ready == 2; }
static bool has_result(const struct world *w) { return w->have_result; }
static bool has_failed(const struct world *w) { return w->failed[0] != 0; }
static bool one_lost(const struct world *w) { return w->n_lost >= 1; }
static bool some_heartbeats(const struct world *w) { return w->heartbeats >= 20; }

static void head_up_at(struct world *w, const char *address) {
    struct err e;
    const struct links_handlers h = {.arg = w,
                                     .joined = on_joined,
                                     .lost = on_lost,
                                     .heartbeat = on_heartbeat,
                                     .ready = on_ready,
                                     .fed = on_fed,
                                     .failed = on_failed,
                                     .leave = on_leave,
                                     .result = on_result};
    const struct links_config c = {.state_dir = state_dir,
                                   .listen_addr = address,
                                   .heartbeat_us = 20000,
                                   .model = {.name = "loom-demo",
                                             .config_json = config_json,
                                             .config_bytes = config_bytes,
                                             .hparams = &hparams,
                                             .mode = mode,
                                             .max_rows = MAX_ROWS,
                                             .max_context = CONTEXT,
                                             .tensors = tensors}};
    memset(w, 0, sizeof *w);
    assert_int_equal(loop_new(&w->loop, &e), ERR_OK);
    if (links_new(w->loop, &c, &h, &w->links, &e)) fail_msg("%s", e.text);
    w->give_up = loop_timer_new(w->loop, on_give_up, w);
}

static void head_up(struct world *w) { head_up_at(w, "127.0.0.1:0"); }

static void head_down(struct world *w) {
    links_free(w->links);
    loop_timer_free(w->give_up);
    loop_free(w->loop);
}

static void node_dir(int i, char out[256]) { snprintf(out, 256, "%s/node-%d", state_dir, i); }

// join NULL: with a fresh token.
static pid_t node_up(const struct world *w, int i, const char *join, const char *model_dir, uint64_t memory_bytes) {
    char address[64], token[TOKEN_TEXT_MAX], dir[256], name[32];
    struct err e;
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w->links));
    if (!join) {
        const struct token_wish wish = {.address = address, .uses = 1, .ttl_s = 600};
        assert_int_equal(token_create(state_dir, &wish, token, sizeof token, &e), ERR_OK);
        join = token;
    }
    node_dir(i, dir);
    snprintf(name, sizeof name, "n%d", i);
    char memory[32];
    snprintf(memory, sizeof memory, "%lu", memory_bytes);
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves nobody behind
    // A program of its own: this process has threads, which a bare fork would leave half-way.
    execl("/proc/self/exe", "node", join, dir, name, model_dir ? model_dir : "", memory, (char *)NULL);
    _exit(127);
}

// The node's process: node JOIN DIR NAME MODEL_DIR MEMORY.
static int node_main(char **argv) {
    struct err e;
    const struct node_config c = {.join = argv[1],
                                  .state_dir = argv[2],
                                  .name = argv[3],
                                  .model_dir = argv[4][0] ? argv[4] : NULL,
                                  .memory_bytes = strtoull(argv[5], NULL, 10),
                                  .listen_addr = "127.0.0.1:0",
                                  .cpu = {.n_threads = 1},
                                  .once = !getenv("LOOM_TEST_STAYS")};
    int rc = node_run(&c, &e);
    if (rc) fprintf(stderr, "%s: %s\n", argv[3], e.text);
    return rc ? 1 : 0;
}

static int node_down(pid_t pid, int signal) {
    int status;
    kill(pid, signal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void load_blocks(struct world *w, uint32_t epoch, uint32_t n_stages, uint32_t n_blocks) {
    w->epoch = epoch;
    w->n_ready = 0;
    w->failed[0] = 0;
    for (uint32_t i = 0; i < n_stages; i++) {
        struct cluster_action a = {.type = CLUSTER_LOAD,
                                   .node = w->node[i],
                                   .epoch = epoch,
                                   .stage = i,
                                   .n_stages = n_stages,
                                   .a = hparams.n_layers * i / n_stages,
                                   .b = hparams.n_layers * (i + 1) / n_stages,
                                   .n_blocks = n_blocks,
                                   .hot = true,
                                   .n_next = i + 1 < n_stages};
        if (a.n_next) a.next[0].node = w->node[i + 1];
        links_act(w->links, &a);
    }
    struct cluster_action feed = {.type = CLUSTER_FEED, .epoch = epoch, .n_next = 1, .next = {{.node = w->node[0]}}};
    links_act(w->links, &feed);
}

static void load(struct world *w, uint32_t epoch, uint32_t n_stages) { load_blocks(w, epoch, n_stages, N_BLOCKS); }

static void drop(struct world *w, uint64_t node, const char *why) {
    struct cluster_action a = {.type = CLUSTER_DROP_NODE, .node = node};
    snprintf(a.why, sizeof a.why, "%s", why);
    links_act(w->links, &a);
}

// The step that continues one sequence by these tokens, blocks 0, 1, ... in order.
static void make_step(struct step *s, uint64_t id, uint32_t epoch, uint32_t pos, const int32_t *tokens, uint32_t n) {
    step_clear(s);
    s->id = id;
    s->epoch = epoch;
    s->n_seqs = 1;
    s->n_rows = n;
    uint32_t have = (pos + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    uint32_t need = (pos + n + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS;
    s->seqs[0] = (struct step_seq){.slot = 3,
                                   .pos = pos,
                                   .n_rows = n,
                                   .first_block = have,
                                   .n_blocks = need - have,
                                   .sample = true,
                                   .sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = 1234}};
    for (uint32_t i = have; i < need; i++) s->blocks[s->n_blocks++] = i;
    memcpy(s->tokens, tokens, n * sizeof tokens[0]);
}

static void make_prompt(int32_t prompt[PROMPT]) {
    for (int i = 0; i < PROMPT; i++) prompt[i] = 100 + i * 37 % 3000;
}

// ANSWER tokens from the route of this epoch.
static void answer_from_route(struct world *w, uint32_t epoch, int32_t out[ANSWER]) {
    struct step *s = step_new();
    int32_t prompt[PROMPT];
    make_prompt(prompt);
    uint32_t pos = 0;
    uint64_t start_us = 0, decode_us = 0;
    for (uint32_t i = 0; i < ANSWER; i++) {
        uint32_t n = i ? 1 : PROMPT;
        make_step(s, i + 1, epoch, pos, i ? &out[i - 1] : prompt, n);
        w->have_result = false;
        start_us = clock_now_us();
        links_step(w->links, s);
        run_until(w, has_result);
        if (i) decode_us += clock_now_us() - start_us;
        assert_int_equal(w->result.id, i + 1);
        assert_int_equal(w->result.epoch, epoch);
        assert_int_equal(w->result.n, 1);
        assert_int_equal(w->result.entry[0].slot, 3);
        assert_false(w->result.entry[0].fault);
        out[i] = w->result.entry[0].token;
        pos += n;
    }
    step_free(s);
    print_message("epoch %u: %lu us a decode step over the route\n", epoch, decode_us / (ANSWER - 1));
}

static void answer_from_one_stage(int32_t out[ANSWER]) {
    struct err e;
    struct backend *be;
    struct model_part *part;
    struct stage *stage;
    const struct backend_cpu_config cpu = {.n_threads = 1};
    assert_int_equal(backend_cpu_new(&cpu, &be, &e), ERR_OK);
    if (model_part_load(&hparams, &mode, tensors, be, 0, hparams.n_layers, NULL, &part, &e)) fail_msg("%s", e.text);
    const struct stage_config c = {.hparams = &hparams,
                                   .mode = mode,
                                   .b = hparams.n_layers,
                                   .n_kv_blocks = N_BLOCKS,
                                   .max_rows = MAX_ROWS,
                                   .max_context = CONTEXT};
    if (stage_new(&c, be, part, &stage, &e)) fail_msg("%s", e.text);
    struct step *s = step_new();
    int32_t prompt[PROMPT];
    uint8_t fault[MAX_ROWS];
    struct step_result r;
    make_prompt(prompt);
    uint32_t pos = 0;
    uint64_t start_us = 0;
    for (uint32_t i = 0; i < ANSWER; i++) {
        uint32_t n = i ? 1 : PROMPT;
        make_step(s, i + 1, 1, pos, i ? &out[i - 1] : prompt, n);
        memset(fault, 0, sizeof fault);
        if (i == 1) start_us = clock_now_us();
        if (stage_run(stage, s, NULL, NULL, fault, &r, &e)) fail_msg("%s", e.text);
        out[i] = r.entry[0].token;
        pos += n;
    }
    print_message("one stage in this process: %lu us a decode step\n", (clock_now_us() - start_us) / (ANSWER - 1));
    step_free(s);
    stage_free(stage);
    be->ops->free(be);
}

static void remove_weights(int i) {
    char command[512], dir[256];
    node_dir(i, dir);
    snprintf(command, sizeof command, "rm -rf '%s/weights'", dir);
    assert_int_equal(system(command), 0);
}

static uint64_t count_cached(int i) {
    char command[512], dir[256];
    char line[32] = "";
    node_dir(i, dir);
    snprintf(command, sizeof command, "ls '%s/weights' | wc -l", dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    pclose(f);
    return strtoull(line, NULL, 10);
}

static void test_three_nodes_give_the_same_tokens(void **state) {
    (void)state;
    struct world w;
    int32_t want[ANSWER], got[ANSWER];
    answer_from_one_stage(want);
    head_up(&w);
    w.pid[0] = node_up(&w, 0, NULL, NULL, 1 << 30);
    w.pid[1] = node_up(&w, 1, NULL, NULL, 1 << 30);
    w.pid[2] = node_up(&w, 2, NULL, MODEL_DIR, 1 << 30);
    run_until(&w, all_joined);

    load(&w, 1, NODES);
    run_until(&w, all_ready);
    assert_true(w.loading_bytes > 0);
    answer_from_route(&w, 1, got);
    assert_memory_equal(got, want, sizeof want);
    assert_true(count_cached(0) > 0);     // fetched
    assert_int_equal(count_cached(2), 0); // from its model folder

    // The same layers for another epoch: the stages stay, and have forgotten the sequence.
    load(&w, 2, NODES);
    run_until(&w, all_ready);
    answer_from_route(&w, 2, got);
    assert_memory_equal(got, want, sizeof want);

    // Another split, over two of the nodes.
    load(&w, 3, 2);
    run_until(&w, two_ready);
    answer_from_route(&w, 3, got);
    assert_memory_equal(got, want, sizeof want);

    struct links_node nodes[NODES + 1];
    run_until(&w, some_heartbeats);
    assert_int_equal(links_nodes(w.links, nodes, NODES + 1), NODES);
    for (int i = 0; i < NODES; i++) {
        assert_true(nodes[i].received_bytes > 0 && nodes[i].name[0] == 'n');
        // The one that the route left out holds nothing for it, whatever its own books say.
        assert_int_equal(nodes[i].slots_used, nodes[i].epoch == 3);
        assert_int_equal(nodes[i].blocks_used > 0, nodes[i].epoch == 3);
    }

    for (int i = 0; i < NODES; i++) {
        int status = node_down(w.pid[i], SIGTERM);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    head_down(&w);
}

// Goes on from the state that the test before left: certificates and cached tensors.
static void test_kill_and_join_again(void **state) {
    (void)state;
    struct world w;
    int32_t want[ANSWER], got[ANSWER];
    char address[64];
    answer_from_one_stage(want);
    head_up(&w);
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w.links));
    for (int i = 0; i < NODES; i++) w.pid[i] = node_up(&w, i, address, NULL, 1 << 30);
    run_until(&w, all_joined);
    load(&w, 7, NODES);
    run_until(&w, all_ready);
    answer_from_route(&w, 7, got);
    assert_memory_equal(got, want, sizeof want);

    node_down(w.pid[1], SIGKILL);
    run_until(&w, one_lost);
    run_until(&w, two_joined);
    w.pid[1] = node_up(&w, 1, address, NULL, 1 << 30);
    run_until(&w, all_joined);
    load(&w, 8, NODES);
    run_until(&w, all_ready);
    answer_from_route(&w, 8, got);
    assert_memory_equal(got, want, sizeof want);

    // Dropped by the head, a local node ends.
    drop(&w, w.node[0], "it was told so");
    int status;
    w.until = NULL;
    loop_timer_set(w.give_up, clock_now_us() + 200000);
    loop_run(w.loop);
    assert_int_equal(links_nodes(w.links, (struct links_node[NODES]){0}, NODES), NODES - 1);
    // The head goes away: local nodes end too; to them that is no failure.
    head_down(&w);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(waitpid(w.pid[i], &status, 0), w.pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_memory_bound_is_kept(void **state) {
    (void)state;
    struct world w;
    char address[64];
    head_up(&w);
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w.links));
    remove_weights(0);
    w.pid[0] = node_up(&w, 0, address, NULL, 1 << 20);
    w.until = NULL;
    while (!w.n_joined) {
        loop_timer_set(w.give_up, clock_now_us() + 20000);
        loop_run(w.loop);
    }
    load(&w, 1, 1);
    run_until(&w, has_failed);
    assert_non_null(strstr(w.failed, "this node may use 1.0 MiB"));
    assert_int_equal(count_cached(0), 0); // refused before anything was fetched
    node_down(w.pid[0], SIGTERM);
    head_down(&w);
}

static void test_foreign_nodes_stay_out(void **state) {
    (void)state;
    struct world w;
    char address[64], token[TOKEN_TEXT_MAX];
    struct err e;
    int status;
    head_up(&w);
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w.links));
    const struct token_wish wish = {.address = address, .uses = 1, .ttl_s = 600};
    assert_int_equal(token_create(state_dir, &wish, token, sizeof token, &e), ERR_OK);
    // A one-time token works once.
    w.pid[0] = node_up(&w, 10, token, NULL, 1 << 30);
    w.until = NULL;
    while (!w.n_joined) {
        loop_timer_set(w.give_up, clock_now_us() + 20000);
        loop_run(w.loop);
    }
    pid_t second = node_up(&w, 11, token, NULL, 1 << 30);
    while (waitpid(second, &status, WNOHANG) == 0) {
        loop_timer_set(w.give_up, clock_now_us() + 20000);
        loop_run(w.loop);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    // No certificate, no token: it does not even start to dial.
    pid_t third = node_up(&w, 12, address, NULL, 1 << 30);
    assert_int_equal(waitpid(third, &status, 0), third);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_int_equal(w.n_joined, 1);
    // Started with the used token again, the first one comes back with the certificate that it has.
    node_down(w.pid[0], SIGTERM);
    w.pid[0] = node_up(&w, 10, token, NULL, 1 << 30);
    for (int i = 0; i < 500 && w.n_joined < 2; i++) {
        loop_timer_set(w.give_up, clock_now_us() + 20000);
        loop_run(w.loop);
    }
    assert_int_equal(w.n_joined, 2);
    node_down(w.pid[0], SIGTERM);
    head_down(&w);
}

static void run_for(struct world *w, uint64_t ms) {
    w->until = NULL;
    loop_timer_set(w->give_up, clock_now_us() + ms * 1000);
    loop_run(w->loop);
    loop_timer_set(w->give_up, UINT64_MAX);
}

static bool one_joined(const struct world *w) { return w->n_joined >= 1; }
static bool another_joined(const struct world *w) { return w->n_joined >= 2; }

// A next stage that takes the connection and says nothing.
static void test_silent_next_stage(void **state) {
    (void)state;
    struct world w;
    head_up(&w);
    w.pid[0] = node_up(&w, 20, NULL, MODEL_DIR, 1 << 30);
    run_until(&w, one_joined);
    w.pid[1] = node_up(&w, 21, NULL, MODEL_DIR, 1 << 30);
    run_until(&w, two_joined);
    kill(w.pid[1], SIGSTOP);
    load(&w, 1, 2);
    run_until(&w, has_failed);
    assert_non_null(strstr(w.failed, "the link to the next stage at 127.0.0.1:"));
    assert_non_null(strstr(w.failed, "no answer"));
    kill(w.pid[1], SIGCONT);
    load(&w, 2, 2);
    run_until(&w, two_ready);
    node_down(w.pid[0], SIGTERM);
    node_down(w.pid[1], SIGTERM);
    head_down(&w);
}

// Two processes with one certificate: the second waits, without disturbing the first, and takes its place when it dies.
static void test_copied_state(void **state) {
    (void)state;
    struct world w;
    char command[640], from[256], to[256], address[64];
    head_up(&w);
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w.links));
    setenv("LOOM_TEST_STAYS", "1", 1);
    w.pid[0] = node_up(&w, 22, NULL, NULL, 1 << 30);
    run_until(&w, one_joined);
    node_dir(22, from);
    node_dir(23, to);
    snprintf(command, sizeof command, "cp -r '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
    w.pid[1] = node_up(&w, 23, address, NULL, 1 << 30);
    run_for(&w, 2000);
    assert_int_equal(w.n_joined, 1);
    assert_int_equal(w.n_lost, 0);
    assert_int_equal(waitpid(w.pid[1], NULL, WNOHANG), 0); // it goes on trying
    node_down(w.pid[0], SIGKILL);
    run_until(&w, another_joined);
    node_down(w.pid[1], SIGTERM);
    unsetenv("LOOM_TEST_STAYS");
    head_down(&w);
}

// A node that is dropped whenever it joins comes back ever more slowly.
static void test_backoff(void **state) {
    (void)state;
    struct world w;
    head_up(&w);
    setenv("LOOM_TEST_STAYS", "1", 1);
    w.pid[0] = node_up(&w, 22, NULL, NULL, 1 << 30);
    run_until(&w, one_joined);
    uint64_t end_us = clock_now_us() + 2500000;
    while (clock_now_us() < end_us) {
        if (w.node[0]) drop(&w, w.node[0], "not wanted");
        w.node[0] = 0;
        run_for(&w, 20);
    }
    assert_true(w.n_joined >= 2 && w.n_joined <= 12); // after 100, 125, 156, ... ms
    node_down(w.pid[0], SIGTERM);
    unsetenv("LOOM_TEST_STAYS");
    head_down(&w);
}

// Enrolment outlasts a head that is not there yet.
static void test_enrolment_waits(void **state) {
    (void)state;
    struct world w;
    char address[64], token[TOKEN_TEXT_MAX];
    struct err e;
    head_up(&w);
    snprintf(address, sizeof address, "127.0.0.1:%u", links_port(w.links));
    const struct token_wish wish = {.address = address, .uses = 1, .ttl_s = 600};
    assert_int_equal(token_create(state_dir, &wish, token, sizeof token, &e), ERR_OK);
    pid_t pid = node_up(&w, 24, token, NULL, 1 << 30);
    head_down(&w);
    clock_sleep_ms(600);
    head_up_at(&w, address);
    run_until(&w, one_joined);
    node_down(pid, SIGTERM);
    head_down(&w);
}

static bool one_ready(const struct world *w) { return w->n_ready == 1; }

// A node whose disk takes no weights serves all the same; one whose cache is taken away makes it anew.
static void test_no_cache(void **state) {
    (void)state;
    struct world w;
    char dir[256], path[300];
    struct err e;
    head_up(&w);
    node_dir(25, dir);
    snprintf(path, sizeof path, "%s/weights", dir);
    assert_int_equal(file_mkdir_all(dir, 0700, &e), ERR_OK);
    assert_int_equal(file_write(path, "not a folder", 12, 0600, &e), ERR_OK);
    w.pid[0] = node_up(&w, 25, NULL, NULL, 1 << 30);
    run_until(&w, one_joined);
    load(&w, 1, 1);
    run_until(&w, one_ready);
    assert_int_equal(unlink(path), 0);
    load_blocks(&w, 2, 1, 9); // not the blocks of before: it is loaded again
    run_until(&w, one_ready);
    assert_true(count_cached(25) > 0);
    node_down(w.pid[0], SIGTERM);
    head_down(&w);
}

static void test_names(void **state) {
    (void)state;
    static const char *const bad[] = {"", "a\nb", "\xff", "\x1b[2J"};
    struct node_config c = {.join = "127.0.0.1:9", .state_dir = state_dir, .once = true};
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c.name = bad[i];
        assert_int_equal(node_run(&c, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "--name"));
    }
}

int main(int argc, char **argv) {
    struct err e;
    if (argc == 6) return node_main(argv);
    signal(SIGPIPE, SIG_IGN); // as the program does
    if (!mkdtemp(state_dir) ||
        file_read(MODEL_DIR "/config.json", LIMIT_CONFIG_BYTES, &config_json, &config_bytes, &e) ||
        model_parse_config(config_json, config_bytes, &hparams, &e) || tensors_open(MODEL_DIR, &tensors, &e)) {
        printf("%s\n", e.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_nodes_give_the_same_tokens),
        cmocka_unit_test(test_kill_and_join_again),
        cmocka_unit_test(test_memory_bound_is_kept),
        cmocka_unit_test(test_foreign_nodes_stay_out),
        cmocka_unit_test(test_silent_next_stage),
        cmocka_unit_test(test_copied_state),
        cmocka_unit_test(test_backoff),
        cmocka_unit_test(test_enrolment_waits),
        cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_names),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", state_dir);
    if (system(command)) rc = 1;
    tensors_free(tensors);
    free(config_json);
    return rc;
}
