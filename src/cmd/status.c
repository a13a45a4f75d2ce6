// loom status: what a running head knows of its cluster.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/http.h"

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static const json_t *node_of(const json_t *root, json_int_t node) {
    size_t i;
    json_t *n;
    json_array_foreach(json_object_get(root, "nodes"), i, n) {
        if (json_integer_value(json_object_get(n, "node")) == node) return n;
    }
    return NULL;
}

static const char *role_text(const char *role) {
    static const char *const words[][2] = {
        {"serving", "服务中"}, {"shadow", "影子"}, {"spare", "备用"}, {"loading", "载入中"}, {"feeding", "追赶中"}};
    for (size_t i = 0; role && i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(role, words[i][0])) return flags_text(words[i][0], words[i][1]);
    return role ? role : "?";
}

static void print_holder(const json_t *root, const json_t *s, const json_t *holder) {
    const json_t *layers = json_object_get(s, "layers");
    const json_t *n = node_of(root, json_integer_value(json_object_get(holder, "node")));
    const char *name = n ? json_string_value(json_object_get(n, "name")) : "local";
    printf("  %-16s %-22s %3lld-%-3lld %9.1f %9.1f %7.0f %9.0f %7.2f %7.1f %s%s%s\n", name,
           n ? json_string_value(json_object_get(n, "address")) : "-",
           (long long)json_integer_value(json_array_get(layers, 0)),
           (long long)json_integer_value(json_array_get(layers, 1)) - 1, number(s, "weight_bytes") / 0x1p20,
           number(s, "kv_bytes") / 0x1p20,
           n ? number(n, "blocks_used") : number(json_object_get(root, "local"), "blocks_used"),
           n ? number(n, "steps") : number(json_object_get(root, "local"), "steps"), n ? number(n, "rtt_ms") : 0.0,
           number(holder, "lag_ms"), role_text(json_string_value(json_object_get(holder, "role"))),
           json_is_true(json_object_get(holder, "suspect")) ? flags_text(", silent", "，无回应") : "",
           n && json_is_true(json_object_get(n, "leaving")) ? flags_text(", leaving", "，正在让出") : "");
}

static void print_stage(const json_t *root, const json_t *s) {
    size_t i;
    json_t *holder;
    json_array_foreach(json_object_get(s, "holders"), i, holder) print_holder(root, s, holder);
}

static void print_text(const json_t *root) {
    size_t i;
    json_t *s;
    bool ready = json_is_true(json_object_get(root, "ready"));
    const char *why = json_string_value(json_object_get(root, "why"));
    printf("%s: %s%s%s\n", json_string_value(json_object_get(root, "model")),
           ready ? flags_text("ready", "就绪") : flags_text("not ready", "未就绪"), why && why[0] ? ": " : "",
           why ? why : "");
    printf(flags_text("epoch %.0f, window %.0f tokens, KV blocks %.0f of %.0f used, %.0f running, %.0f waiting\n",
                      "纪元 %.0f，窗口 %.0f token，KV 块 %.0f / %.0f 已用，运行 %.0f，等待 %.0f\n"),
           number(root, "epoch"), number(root, "context"), number(root, "kv_blocks_used"), number(root, "kv_blocks"),
           number(root, "running"), number(root, "waiting"));
    printf(flags_text("%.0f tokens in %.0f steps, %.0f nodes lost, %.0f route changes, %.0f preemptions\n",
                      "%.0f 个 token，%.0f 步，丢失节点 %.0f，路线变更 %.0f，抢占 %.0f\n"),
           number(root, "tokens"), number(root, "steps"), number(root, "nodes_lost"), number(root, "route_changes"),
           number(root, "preemptions"));
    printf(flags_text("%.0f promotions, %.0f suspicions, %.0f of them false, %.0f nodes drained, %.0f steps waited\n",
                      "接替 %.0f 次，怀疑 %.0f 次，其中误报 %.0f 次，让出节点 %.0f，等待的步 %.0f\n"),
           number(root, "promotions"), number(root, "suspicions"), number(root, "false_alarms"),
           number(root, "drained"), number(root, "waited"));
    printf("  %-16s %-22s %-7s %9s %9s %7s %9s %7s %7s %s\n", "node", "address", "layers", "MiB", "KV MiB", "blocks",
           "steps", "rtt ms", "lag ms", flags_text("role", "角色"));
    json_array_foreach(json_object_get(root, "stages"), i, s) print_stage(root, s);
    json_array_foreach(json_object_get(root, "left_out"), i, s) {
        const json_t *n = node_of(root, json_integer_value(json_object_get(s, "node")));
        printf("  %-16s %s: %s\n", n ? json_string_value(json_object_get(n, "name")) : "?",
               n && json_is_true(json_object_get(n, "away")) ? flags_text("away", "已让出")
                                                             : flags_text("left out", "未使用"),
               json_string_value(json_object_get(s, "why")));
    }
}

static int run(const struct command *c, int argc, char **argv) {
    const char *url = "http://127.0.0.1:8080";
    bool json = false;
    const struct flag own[] = {{"--url", FLAG_STRING, &url, 0, 0, "URL", "the endpoint (default http://127.0.0.1:8080)",
                                "服务地址（默认 http://127.0.0.1:8080）"},
                               {"--json", FLAG_BOOL, &json, 0, 0, "", "print one JSON object", "输出一个 JSON 对象"},
                               {0}};
    const struct flag *tables[] = {own, NULL};
    char full[1024];
    int n_rest;
    long status = 0;
    struct err e;
    struct buf b;
    int rc = flags_parse(c, tables, argc, argv, NULL, 0, &n_rest, &e);
    if (rc) return flags_fail(c, &e);
    buf_init(&b, 16 << 20);
    rc = http_url(full, sizeof full, url, "/loom/v1/status", &e);
    if (!rc) rc = http_call(full, NULL, &b, &status, &e);
    json_t *root = rc ? NULL : json_loadb((const char *)b.data, b.len_bytes, 0, NULL);
    if (!rc && (status != 200 || !json_string_value(json_object_get(root, "model"))))
        rc = err_set(&e, ERR_NET, "%s: not the endpoint of a loom head (HTTP %ld)", full, status);
    if (!rc && json)
        printf("%.*s\n", (int)b.len_bytes, (const char *)b.data);
    else if (!rc)
        print_text(root);
    json_decref(root);
    buf_fini(&b);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_status = {.name = "status",
                                   .args = "[--url URL] [--json]",
                                   .en = "the cluster as a running head sees it",
                                   .zh = "查看运行中的集群",
                                   .run = run};
