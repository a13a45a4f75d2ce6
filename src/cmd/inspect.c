// loom inspect: what a model file holds, and whether and in how much memory it will run.
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "engine/stage.h"
#include "os/cpu.h"
#include "os/file.h"

struct inspect {
    struct compute_flags compute;
    bool json, tensors;
};

static void print_tensors(const struct tensors *t, bool json) {
    for (uint32_t i = 0; i < tensors_count(t); i++) {
        const struct tensor *x = tensors_at(t, i);
        char shape[128] = "";
        size_t at = 0;
        for (uint32_t d = 0; d < x->n_dims; d++)
            at +=
                (size_t)snprintf(shape + at, sizeof shape - at, "%s%llu", d ? ", " : "", (unsigned long long)x->dim[d]);
        if (json) {
            struct buf b;
            buf_init(&b, 1 << 20);
            if (!buf_add_json_string(&b, x->name, strlen(x->name)) && buf_cstr(&b))
                printf("%s{\"name\": %s, \"type\": \"%s\", \"shape\": [%s], \"bytes\": %llu}", i ? ", " : "",
                       (const char *)b.data, dtype_info(x->type)->name, shape, (unsigned long long)x->bytes);
            buf_fini(&b);
        } else {
            printf("  %-56s %-5s [%s]\n", x->name, dtype_info(x->type)->name, shape);
        }
    }
}

static uint64_t file_bytes(const struct tensors *t) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < tensors_count(t); i++) sum += tensors_at(t, i)->bytes;
    return sum;
}

struct memory {
    uint64_t weights_bytes, kv_token_bytes, kv_bytes, scratch_bytes, total_bytes, free_bytes;
};

static int need_memory(const struct opened_model *m, const struct head_config *c, struct memory *out, struct err *e) {
    const struct hparams *h = &m->hparams;
    struct backend *be;
    struct backend_cpu_config one = {.isa = ISA_REF, .n_threads = 1};
    int rc = backend_cpu_new(&one, &be, e);
    if (rc) return rc;
    struct stage_config sc = {.hparams = h,
                              .mode = c->mode,
                              .b = h->n_layers,
                              .n_kv_blocks = (c->context + LIMIT_BLOCK_TOKENS - 1) / LIMIT_BLOCK_TOKENS,
                              .max_rows = c->chunk_rows,
                              .max_context = c->context};
    struct stage_memory sm;
    stage_memory(&sc, be->ops, &sm);
    *out = (struct memory){.weights_bytes = sm.weights_bytes,
                           .kv_token_bytes = model_kv_bytes_per_token(h, c->mode.kv, h->n_layers),
                           .kv_bytes = sm.kv_bytes,
                           .scratch_bytes = sm.scratch_bytes,
                           .total_bytes = sm.weights_bytes + sm.kv_bytes + sm.scratch_bytes,
                           .free_bytes = c->memory_bytes ? c->memory_bytes : cpu_memory_available_bytes()};
    be->ops->free(be);
    return ERR_OK;
}

static void print_model_text(const struct opened_model *m, const struct head_config *c, const struct memory *x) {
    const struct hparams *h = &m->hparams;
    printf("%s\n", m->name);
    printf(flags_text("  %u layers, width %u, %u heads (%u for K and V) of %u, FFN %u, vocabulary %u, window %u\n",
                      "  %u 层，宽 %u，%u 个头（K、V 为 %u），头维 %u，FFN %u，词表 %u，窗口 %u\n"),
           h->n_layers, h->hidden, h->n_heads, h->n_kv_heads, h->head_dim, h->ffn, h->n_vocab, h->max_context);
    if (h->n_experts)
        printf(flags_text("  %u experts of %u, %u chosen per token\n", "  %u 个专家（FFN %u），每 token 选 %u 个\n"),
               h->n_experts, h->expert_ffn, h->top_k);
    printf(flags_text("  %u tensors, %.1f MB in files\n", "  %u 个张量，文件共 %.1f MB\n"), tensors_count(m->tensors),
           (double)file_bytes(m->tensors) / 1e6);
    printf(flags_text("  in memory at context %u: weights %.1f MB, KV %.1f MB (%llu bytes a token), scratch %.1f MB: "
                      "%.1f MB\n",
                      "  上下文 %u 时内存：权重 %.1f MB，KV %.1f MB（每 token %llu 字节），暂存 %.1f MB：共 %.1f MB\n"),
           c->context, (double)x->weights_bytes / 1e6, (double)x->kv_bytes / 1e6, (unsigned long long)x->kv_token_bytes,
           (double)x->scratch_bytes / 1e6, (double)x->total_bytes / 1e6);
    if (x->total_bytes <= x->free_bytes)
        printf(flags_text("  it will run here: %.1f MB are free\n", "  本机可以运行：可用 %.1f MB\n"),
               (double)x->free_bytes / 1e6);
    else
        printf(flags_text("  it will not run here alone: %.1f MB are free, %.1f MB are missing\n",
                          "  单靠本机不能运行：可用 %.1f MB，还差 %.1f MB\n"),
               (double)x->free_bytes / 1e6, (double)(x->total_bytes - x->free_bytes) / 1e6);
}

static void print_model_json(const struct opened_model *m, const struct head_config *c, const struct memory *x,
                             bool tensors) {
    const struct hparams *h = &m->hparams;
    struct buf b;
    buf_init(&b, 1 << 20);
    if (!buf_add_json_string(&b, m->name, strlen(m->name)) && buf_cstr(&b))
        printf(
            "{\"model\": %s, \"layers\": %u, \"hidden\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_dim\": %u, "
            "\"ffn\": %u, \"experts\": %u, \"vocab\": %u, \"max_context\": %u, \"context\": %u, \"file_bytes\": %llu, "
            "\"weight_bytes\": %llu, \"kv_bytes\": %llu, \"kv_bytes_per_token\": %llu, \"scratch_bytes\": %llu, "
            "\"total_bytes\": %llu, \"free_bytes\": %llu, \"fits\": %s",
            (const char *)b.data, h->n_layers, h->hidden, h->n_heads, h->n_kv_heads, h->head_dim, h->ffn, h->n_experts,
            h->n_vocab, h->max_context, c->context, (unsigned long long)file_bytes(m->tensors),
            (unsigned long long)x->weights_bytes, (unsigned long long)x->kv_bytes,
            (unsigned long long)x->kv_token_bytes, (unsigned long long)x->scratch_bytes,
            (unsigned long long)x->total_bytes, (unsigned long long)x->free_bytes,
            x->total_bytes <= x->free_bytes ? "true" : "false");
    buf_fini(&b);
    if (tensors) {
        printf(", \"tensors\": [");
        print_tensors(m->tensors, true);
        printf("]");
    }
    printf("}\n");
}

// A single file has no config.json: its tensors are all there is to tell.
static int inspect_file(const struct inspect *f, const char *path, struct err *e) {
    struct tensors *t;
    int rc = tensors_open(path, &t, e);
    if (rc) return rc;
    if (f->json) {
        printf("{\"file_bytes\": %llu, \"tensors\": [", (unsigned long long)file_bytes(t));
        print_tensors(t, true);
        printf("]}\n");
    } else {
        printf(flags_text("%s: %u tensors, %.1f MB\n", "%s：%u 个张量，%.1f MB\n"), path, tensors_count(t),
               (double)file_bytes(t) / 1e6);
        print_tensors(t, false);
    }
    tensors_free(t);
    return ERR_OK;
}

static int inspect_model(const struct inspect *f, const char *path, struct err *e) {
    struct opened_model m;
    struct head_config c;
    struct memory x;
    int rc = open_model(path, &m, e);
    if (rc) return rc;
    rc = compute_config(&f->compute, &m, true, &c, e);
    if (!rc) rc = need_memory(&m, &c, &x, e);
    if (!rc && f->json) print_model_json(&m, &c, &x, f->tensors);
    if (!rc && !f->json) {
        print_model_text(&m, &c, &x);
        if (f->tensors) print_tensors(m.tensors, false);
    }
    open_model_close(&m);
    return rc;
}

static int run(const struct command *c, int argc, char **argv) {
    struct inspect f = {.compute = compute_defaults};
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&f.compute, compute);
    const struct flag own[] = {
        {"--tensors", FLAG_BOOL, &f.tensors, 0, 0, "", "list every tensor of a model folder", "列出模型目录的所有张量"},
        {"--json", FLAG_BOOL, &f.json, 0, 0, "", "print one JSON object", "输出一个 JSON 对象"},
        {0}};
    const struct flag *tables[] = {own, compute, NULL};
    const char *path;
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    if (!rc && n_rest != 1) rc = err_set(&e, ERR_USAGE, "FILE is missing: a model folder or a .safetensors file");
    if (!rc && !file_exists(path)) rc = err_set(&e, ERR_NOT_FOUND, "%s: no such file or folder", path);
    if (!rc) rc = file_is_dir(path) ? inspect_model(&f, path, &e) : inspect_file(&f, path, &e);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_inspect = {.name = "inspect",
                                    .args = "FILE [--context N] [--tensors] [--json]",
                                    .en = "what a model holds, and whether it will run here",
                                    .zh = "查看模型内容及能否在本机运行",
                                    .run = run};
