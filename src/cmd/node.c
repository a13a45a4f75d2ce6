// loom node: one machine's (or device's) part of a cluster.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "net/token.h"
#include "node/local_ctl.h"
#include "node/node.h"
#include "os/file.h"
#include "os/guard.h"

enum { DRAIN_S = 30 };

static int check(const struct node_config *n, struct err *e) {
    static const char prefix[] = "loom1-";
    struct token token;
    int rc = address_flag("--listen", n->listen_addr, false, e);
    if (rc) return rc;
    if (n->busy_when && !n->busy_when[0]) return err_set(e, ERR_USAGE, "--busy-when: the command is empty");
    if (!n->join) return err_set(e, ERR_USAGE, "--join: a token (loom token create) or HOST:PORT is missing");
    if (!strncmp(n->join, prefix, sizeof prefix - 1)) {
        if (token_parse(n->join, &token, e))
            return err_set(e, ERR_USAGE, "--join: the token is damaged, copy it again");
    } else if (address_flag("--join", n->join, true, NULL)) {
        return err_set(e, ERR_USAGE, "--join: '%s' is neither a token (%s...) nor HOST:PORT", n->join, prefix);
    }
    return ERR_OK;
}

// "@FILE": the token stands in a file, because a command line is there for all users of the machine to read.
static int read_join(struct node_config *n, char **text, struct err *e) {
    size_t len;
    if (!n->join || n->join[0] != '@') return ERR_OK;
    int rc = file_read(n->join + 1, TOKEN_TEXT_MAX + 64, text, &len, e);
    if (rc) return err_prefix(e, "--join");
    (*text)[strcspn(*text, " \t\r\n")] = 0;
    n->join = *text;
    return ERR_OK;
}

// What the owner of this machine says to the node that runs on it.
static const struct command words[] = {
    {.name = "node pause",
     .args = "[--wait] [--state DIR]",
     .en = "the node on this machine leaves the cluster's work to others, until loom node resume",
     .zh = "本机节点把工作交给其他节点，直到 loom node resume"},
    {.name = "node resume",
     .args = "[--state DIR]",
     .en = "the node on this machine may be used again",
     .zh = "本机节点恢复工作"},
    {.name = "node show",
     .args = "[--state DIR]",
     .en = "what the node on this machine is doing: serving, leaving, away",
     .zh = "显示本机节点状态：serving、leaving 或 away"}};
enum { N_WORDS = sizeof words / sizeof words[0], WORD_AT = 5 }; // behind "node "

static const struct command *find_word(const char *text) {
    for (int i = 0; i < N_WORDS; i++)
        if (text && !strcmp(text, words[i].name + WORD_AT)) return &words[i];
    return NULL;
}

static int run_word(const struct command *word, int argc, char **argv) {
    const char *state = NULL;
    bool wait = false;
    const struct flag all[] = {
        {"--state", FLAG_STRING, &state, 0, 0, "DIR", "that of the node", "该节点的 --state 目录"}, {0}};
    const struct flag of_pause[] = {
        {"--wait", FLAG_BOOL, &wait, 0, 0, "", "until nothing depends on it any more", "等到没有任何工作依赖它为止"},
        {0}};
    bool pause = word == &words[0];
    const struct flag *tables[] = {all, pause ? of_pause : NULL, NULL};
    char dir[LIMIT_PATH], answer[LOCAL_CTL_LINE_BYTES];
    int n_rest;
    struct err e;
    int rc = flags_parse(word, tables, argc, argv, NULL, 0, &n_rest, &e);
    if (!rc) rc = state_dir(state, dir, sizeof dir, &e);
    if (!rc) rc = local_ctl_ask(dir, wait ? "pause wait" : word->name + WORD_AT, answer, &e);
    if (rc) return flags_fail(word, &e);
    printf("%s\n", answer);
    return EXIT_FINE;
}

// Before the first thread, and before there is much memory.
static void start_guardian(void) {
    struct err e;
    if (guard_start(&e)) LOG_W("node", "%s: if this process is killed, others notice it later", e.text);
}

static int run(const struct command *c, int argc, char **argv) {
    struct compute_flags compute = {0};
    struct node_config n = {.listen_addr = "0.0.0.0:0"};
    uint32_t drain_s = DRAIN_S;
    const char *state = NULL;
    bool quiet = false;
    const struct flag own[] = {
        {"--join", FLAG_STRING, &n.join, 0, 0, "TOKEN|ADDR",
         "a join token, @FILE with one, or HOST:PORT of a head that knows this node",
         "加入令牌、含令牌的 @文件，或已认识本节点的头节点 HOST:PORT"},
        {"--listen", FLAG_STRING, &n.listen_addr, 0, 0, "ADDR:PORT", "where other nodes connect (default: any port)",
         "供其他节点连接的地址（默认任意端口）"},
        {"--model", FLAG_STRING, &n.model_dir, 0, 0, "DIR",
         "take weights from here instead of the network, if they fit", "若匹配则从此目录而非网络取权重"},
        {"--name", FLAG_STRING, &n.name, 0, 0, "NAME", "shown in status (default: the host's name)",
         "状态中显示的名字（默认主机名）"},
        {"--memory", FLAG_BYTES, &n.memory_bytes, LEAST_SIZE_BYTES, 0, "SIZE",
         "memory that may be used, such as 8G; 1M at least", "可用内存上限，例如 8G；至少 1M"},
        {"--cache", FLAG_BYTES, &n.cache_bytes, LEAST_SIZE_BYTES, 0, "SIZE",
         "bound of the weight cache on disk (default 64G)", "磁盘权重缓存上限（默认 64G）"},
        {"--busy-when", FLAG_STRING, &n.busy_when, 0, 0, "COMMAND",
         "for the shell; exit code 0: the owner needs this machine, leave the work to others",
         "交给 shell 的命令；退出码 0 表示机主在用本机，工作交给其他节点"},
        {"--busy-every", FLAG_U32, &n.busy_every_s, 1, 86400, "SECONDS", "from one run of it to the next (default 5)",
         "两次运行的间隔秒数（默认 5）"},
        {"--drain-seconds", FLAG_U32, &drain_s, 0, 86400, "SECONDS",
         "when told to stop: how long to wait until others have taken over (default 30)",
         "收到停止信号后，等待其他节点接管的秒数（默认 30）"},
        {"--threads", FLAG_U32, &compute.threads, 0, 1024, "N", "compute threads (default: one per processor)",
         "计算线程数（默认每个处理器一个）"},
        {"--isa", FLAG_STRING, &compute.isa, 0, 0, "ISA", "auto, ref, avx2 or avx512", "auto、ref、avx2 或 avx512"},
        {"--device", FLAG_STRING, &compute.device, 0, 0, "DEVICE", "cpu", "设备：cpu"},
        {"--state", FLAG_STRING, &state, 0, 0, "DIR", "key, certificate and weight cache", "密钥、证书与权重缓存目录"},
        {"--once", FLAG_BOOL, &n.once, 0, 0, "", "leave when the head goes away", "头节点离开后即退出"},
        {"--quiet", FLAG_BOOL, &quiet, 0, 0, "", "log errors only", "只记录错误"},
        {"--verbose", FLAG_BOOL, &compute.verbose, 0, 0, "", "log more", "输出更多日志"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    char dir[LIMIT_PATH];
    int n_rest;
    struct err e;
    char *join = NULL;
    const struct command *word = find_word(argc ? argv[0] : NULL);
    if (word) return run_word(word, argc - 1, argv + 1);
    int rc = flags_parse(c, tables, argc, argv, NULL, 0, &n_rest, &e);
    if (!rc) rc = read_join(&n, &join, &e);
    if (!rc) rc = check(&n, &e);
    if (!rc) rc = compute_cpu(&compute, &n.cpu, &e);
    if (!rc) rc = state_dir(state, dir, sizeof dir, &e);
    log_setup(compute.verbose, quiet);
    n.state_dir = dir;
    log_set_name(n.name);
    n.drain_ms = drain_s * 1000;
    if (!rc) start_guardian();
    if (!rc) rc = node_run(&n, &e);
    guard_stop();
    free(join);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_node = {.name = "node",
                                 .args =
                                     "--join TOKEN|ADDR [--memory 8G] [--threads N], or loom node pause|resume|show",
                                 .en = "lend this machine to a cluster",
                                 .zh = "把本机借给集群",
                                 .run = run};
