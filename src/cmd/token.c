// loom token create: a join token for nodes.
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cmd/cmd.h"
#include "net/token.h"

static int run(const struct command *c, int argc, char **argv) {
    struct token_wish w = {.uses = 1, .ttl_s = 86400};
    uint32_t ttl_h = 24;
    const char *state = NULL, *verb = NULL;
    const struct flag own[] = {
        {"--address", FLAG_STRING, &w.address, 0, 0, "HOST:PORT", "the head as nodes reach it", "节点可达的头节点地址"},
        {"--uses", FLAG_U32, &w.uses, 1, 1000000, "N", "nodes that may join with it (default 1)", "可用次数（默认 1）"},
        {"--hours", FLAG_U32, &ttl_h, 1, 876000, "N", "valid for so long (default 24)", "有效小时数（默认 24）"},
        {"--state", FLAG_STRING, &state, 0, 0, "DIR", "the head's --state", "头节点的 --state 目录"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    char dir[LIMIT_PATH], text[1024];
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &verb, 1, &n_rest, &e);
    if (!rc && (!n_rest || strcmp(verb, "create")))
        rc = err_set(&e, ERR_USAGE, "the verb is missing: loom token create");
    if (!rc && !w.address)
        rc = err_set(&e, ERR_USAGE, "--address: say how nodes reach the head, such as 192.168.1.10:7701");
    if (!rc) rc = address_flag("--address", w.address, true, &e);
    if (!rc) rc = state_dir(state, dir, sizeof dir, &e);
    w.ttl_s = ttl_h * 3600ull;
    if (!rc) rc = token_create(dir, &w, text, sizeof text, &e);
    if (rc) return flags_fail(c, &e);
    printf("%s\n", text);
    return EXIT_FINE;
}

const struct command cmd_token = {.name = "token",
                                  .args = "create --address HOST:PORT [--uses N] [--hours N]",
                                  .en = "make a join token for nodes",
                                  .zh = "生成节点加入令牌",
                                  .run = run};
