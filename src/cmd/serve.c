// loom serve: the head, its endpoint, and perhaps nodes on this machine.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/serve.h"
#include "os/cpu.h"
#include "os/guard.h"
#include "os/hostport.h"

const struct serve_flags serve_defaults = {.listen = "127.0.0.1:8080",
                                           .wait_for_node_s = 60,
                                           .node_timeout_ms = 3000,
                                           .suspect_ms = 30,
                                           .resume_s = 30,
                                           .redundancy = "shadow",
                                           .compute = {.chunk = COMPUTE_CHUNK, .sequences = COMPUTE_SEQUENCES}};

enum { HEARTBEAT_MS = 20 };

static int redundancy_flag(const char *text, struct head_config *c, struct err *e) {
    static const char *const names[] = {"none", "spare", "shadow", "must"};
    static const enum cluster_redundancy values[] = {REDUNDANCY_NONE, REDUNDANCY_SPARE, REDUNDANCY_SHADOW,
                                                     REDUNDANCY_SHADOW};
    size_t i = 0;
    while (i < 4 && strcmp(text, names[i])) i++;
    if (i == 4) return err_set(e, ERR_USAGE, "--redundancy: '%s' is none of none, spare, shadow, must", text);
    c->redundancy = values[i];
    c->redundancy_first = i == 3;
    return ERR_OK;
}

static int start_head(struct serve *s, struct err *e) {
    const struct serve_flags *f = &s->flags;
    struct head_config c;
    int rc = compute_config(&f->compute, &s->model, false, &c, e);
    if (rc) return rc;
    c.wait_for_node_ms = f->wait_for_node_s * 1000;
    c.node_timeout_ms = f->node_timeout_ms;
    rc = redundancy_flag(f->redundancy, &c, e);
    if (rc) return rc;
    if (f->local_nodes || f->cluster) {
        c.heartbeat_ms = HEARTBEAT_MS;
        c.suspect_ms = f->suspect_ms;
        c.cluster_addr = f->cluster ? f->cluster : "127.0.0.1:0";
        c.min_nodes = f->min_nodes ? f->min_nodes : f->local_nodes ? f->local_nodes : 1;
        c.state_dir = s->state;
    } else {
        rc = memory_tell(&c, e); // with nodes, each of them tells its own
    }
    return rc ? rc : head_new(&c, &s->head, e);
}

static int start_nodes(struct serve *s, struct err *e) {
    const struct serve_flags *f = &s->flags;
    if (!f->local_nodes) return ERR_OK;
    struct local_nodes_config c = {.n = f->local_nodes,
                                   .head_port = head_cluster_port(s->head),
                                   .state_dir = s->state,
                                   .threads = f->compute.threads,
                                   .isa = f->compute.isa,
                                   .quiet = f->quiet_nodes,
                                   .verbose = f->compute.verbose};
    c.memory_bytes =
        f->compute.memory_bytes ? f->compute.memory_bytes : cpu_memory_available_bytes() / 10 * 9 / f->local_nodes;
    return local_nodes_start(&c, &s->nodes, e);
}

static int start_gateway(struct serve *s, struct err *e) {
    const struct hparams *h = &s->model.hparams;
    const struct gen_defaults *d = &s->model.defaults;
    struct head_config hc;
    int rc = compute_config(&s->flags.compute, &s->model, true, &hc, e);
    if (rc) return rc;
    struct gateway_config c = {
        .listen_addr = s->flags.listen,
        .n_threads = cpu_count_usable() > 4 ? 4 : 2,
        .resume_ms = s->flags.resume_s * 1000,
        .model = {.id = s->model.name,
                  .created_s = (uint64_t)time(NULL),
                  .context = hc.context,
                  .n_vocab = h->n_vocab,
                  .tokenizer = s->text.tokenizer,
                  .chat_template = s->text.chat_template,
                  .defaults = {.temperature = d->temperature, .top_p = d->top_p, .min_p = d->min_p, .top_k = d->top_k},
                  .n_stop_ids = h->n_eos},
        .ops = head_gateway_ops(s->head)};
    memcpy(c.model.stop_ids, h->eos_ids, h->n_eos * sizeof h->eos_ids[0]);
    return gateway_new(&c, &s->gateway, e);
}

void serve_url(const struct serve *s, char *out, size_t out_bytes) {
    struct hostport hp;
    struct err e;
    ASSERT(hostport_parse(s->flags.listen, &hp, &e) == ERR_OK, "the gateway listens there");
    bool any = !hp.host[0] || !strcmp(hp.host, "0.0.0.0");
    const char *host = any ? "127.0.0.1" : !strcmp(hp.host, "::") ? "::1" : hp.host;
    snprintf(out, out_bytes, strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u", host, gateway_port(s->gateway));
}

// The first line on stdout tells programs where to talk to; people read the rest on stderr.
static void announce(const struct serve *s) {
    char url[300];
    serve_url(s, url, sizeof url);
    printf("listening on %s\n", url);
    fflush(stdout);
    if (s->flags.cluster)
        LOG_I("serve", "nodes join at port %u: `loom token create --address HOST:%u` makes a token for one",
              head_cluster_port(s->head), head_cluster_port(s->head));
}

static int wait_for_signal(struct serve *s, const sigset_t *set, struct err *e) {
    struct timespec nap = {.tv_nsec = 200000000};
    bool was_ready = false;
    for (;;) {
        int sig = sigtimedwait(set, NULL, &nap);
        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) return ERR_OK;
        if (s->nodes) local_nodes_supervise(s->nodes);
        if (!was_ready && !head_wait_ready(s->head, 0, e)) {
            was_ready = true;
            LOG_I("serve", "ready to answer");
        }
    }
}

int serve_start(struct serve *s, const char *model_path, struct err *e) {
    // First what is quick to check: a model may take minutes.
    struct head_config unused;
    int rc = gateway_check_listen(s->flags.listen, e);
    if (!rc) rc = redundancy_flag(s->flags.redundancy, &unused, e);
    if (!rc && s->flags.cluster) rc = address_flag("--cluster", s->flags.cluster, false, e);
    if (!rc) rc = open_model(model_path, &s->model, e);
    if (!rc) rc = text_open(&s->model, s->flags.template_path, 2, &s->text, e);
    if (!rc && (s->flags.local_nodes || s->flags.cluster)) rc = state_dir(s->flags.state, s->state, sizeof s->state, e);
    if (!rc) rc = start_head(s, e);
    if (!rc) rc = start_nodes(s, e);
    if (!rc) rc = start_gateway(s, e);
    return rc;
}

void serve_stop(struct serve *s) {
    gateway_free(s->gateway);
    head_free(s->head);
    local_nodes_stop(s->nodes);
    text_close(&s->text);
    open_model_close(&s->model);
}

static int run(const struct command *c, int argc, char **argv) {
    struct serve s = {.flags = serve_defaults};
    struct serve_flags *f = &s.flags;
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&f->compute, compute);
    const struct flag own[] = {
        {"--listen", FLAG_STRING, &f->listen, 0, 0, "ADDR:PORT", "the HTTP endpoint (default 127.0.0.1:8080)",
         "HTTP 入口（默认 127.0.0.1:8080）"},
        {"--local-nodes", FLAG_U32, &f->local_nodes, 0, LIMIT_NODES, "N", "start N nodes on this machine",
         "在本机启动 N 个节点"},
        {"--cluster", FLAG_STRING, &f->cluster, 0, 0, "ADDR:PORT", "where nodes join, such as 0.0.0.0:7701",
         "节点加入的地址，例如 0.0.0.0:7701"},
        {"--min-nodes", FLAG_U32, &f->min_nodes, 1, LIMIT_NODES, "N", "wait for so many nodes before the first route",
         "首次成路前等待的节点数"},
        {"--wait-for-node", FLAG_U32, &f->wait_for_node_s, 0, 86400, "SECONDS",
         "how long answers wait for a node when none fits (default 60)", "无节点可用时回答等待的秒数（默认 60）"},
        {"--node-timeout", FLAG_U32, &f->node_timeout_ms, 400, 600000, "MS",
         "a node silent for so long is lost (default 3000, at least 400)",
         "节点静默多久视为丢失（默认 3000 毫秒，至少 400）"},
        {"--suspect-ms", FLAG_U32, &f->suspect_ms, 1, 600000, "MS",
         "a node silent for so long gets help from its shadow at once (default 30)",
         "节点静默多久即由影子代劳（默认 30 毫秒）"},
        {"--redundancy", FLAG_STRING, &f->redundancy, 0, 0, "KIND",
         "what is kept for the loss of a node: none, spare, shadow (default), or must: shadow, at the cost of KV "
         "blocks",
         "为节点丢失所留的后备：none、spare、shadow（默认）或 must（宁可减少 KV 块也要影子）"},
        {"--resume-seconds", FLAG_U32, &f->resume_s, 0, 3600, "SECONDS",
         "how long a stream waits for a client that lost its connection (default 30; 0: not at all)",
         "流式回答等待断线客户端重连的秒数（默认 30；0 表示不等）"},
        {"--state", FLAG_STRING, &f->state, 0, 0, "DIR", "keys, tokens and caches (default ~/.local/state/loom)",
         "密钥、令牌与缓存目录（默认 ~/.local/state/loom）"},
        {"--chat-template", FLAG_STRING, &f->template_path, 0, 0, "FILE", "a Jinja template instead of the model's",
         "用此 Jinja 模板代替模型自带的"},
        {"--config", FLAG_STRING, &f->config, 0, 0, "FILE", "lines `name = value` with these settings",
         "配置文件，每行“名字 = 值”"},
        {0}};
    const struct flag *tables[] = {own, compute, NULL};
    const char *path = NULL;
    char *settings = NULL;
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    if (!rc && f->config) {
        // The file comes before the command line: read it, then let the flags win once more.
        rc = flags_parse_file(f->config, tables, &settings, &e);
        if (!rc) rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    }
    if (!rc && n_rest != 1)
        rc = err_set(&e, ERR_USAGE, "MODEL is missing: a GGUF file, or a folder with config.json and *.safetensors");
    if (!rc && f->min_nodes > f->local_nodes && !f->cluster)
        rc = err_set(&e, ERR_USAGE, "--min-nodes: %u nodes cannot come without --cluster ADDR:PORT or --local-nodes %u",
                     f->min_nodes, f->min_nodes);
    log_setup(f->compute.verbose, false);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP); // the terminal went away; under nohup it is ignored and never comes
    sigprocmask(SIG_BLOCK, &set, NULL);
    // Before the first thread, and before there is much memory.
    if (!rc && guard_start(&e)) LOG_W("serve", "%s: if this process is killed, nodes notice it later", e.text);
    if (!rc) rc = serve_start(&s, path, &e);
    if (!rc) {
        announce(&s);
        rc = wait_for_signal(&s, &set, &e);
    }
    serve_stop(&s);
    guard_stop();
    free(settings);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_serve = {.name = "serve",
                                  .args = "MODEL [--listen ADDR:PORT] [--local-nodes N] [--cluster ADDR:PORT]",
                                  .en = "serve a model behind an OpenAI-compatible endpoint",
                                  .zh = "以 OpenAI 兼容接口提供模型服务",
                                  .run = run};
