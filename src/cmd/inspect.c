// loom inspect: what a model file holds, and whether and in how much memory it will run.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/inspect_gguf.h"
#include "os/file.h"

struct inspect {
    struct compute_flags compute;
    bool json, tensors;
    const char *path;
    struct file_map map; // of a GGUF file
    struct gguf *gguf;   // its header; NULL: no GGUF file
    json_t *out;         // with json: what is printed at the end
};

// ---- Tensors

static void print_tensors(const struct tensors *t) {
    for (uint32_t i = 0; i < tensors_count(t); i++) {
        const struct tensor *x = tensors_at(t, i);
        char shape[128] = "";
        size_t at = 0;
        for (uint32_t d = 0; d < x->n_dims; d++)
            at +=
                (size_t)snprintf(shape + at, sizeof shape - at, "%s%llu", d ? ", " : "", (unsigned long long)x->dim[d]);
        printf(flags_text("  %-56s %-5s [%s] %llu bytes\n", "  %-56s %-5s [%s] %llu 字节\n"), x->name,
               dtype_info(x->type)->name, shape, (unsigned long long)x->bytes);
    }
}

static json_t *tensors_json(const struct tensors *t) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < tensors_count(t); i++) {
        const struct tensor *x = tensors_at(t, i);
        json_t *shape = json_array();
        for (uint32_t d = 0; d < x->n_dims; d++) json_array_append_new(shape, json_integer((json_int_t)x->dim[d]));
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:I}", "name", x->name, "type", dtype_info(x->type)->name,
                                        "shape", shape, "bytes", (json_int_t)x->bytes));
    }
    return list;
}

static void print_types(const struct inspect_types *y) {
    uint64_t n = 0, bytes = 0;
    bool unknown = false;
    for (uint32_t i = 0; i < y->n; i++) {
        const struct inspect_type *t = &y->list[i];
        printf(flags_text("  %-8s %6u tensors %12.1f MB%s\n", "  %-8s %6u 个张量 %12.1f MB%s\n"), t->name, t->n,
               (double)t->bytes / 1e6, t->unknown ? flags_text(" and what is not known here", "（另有未知部分）") : "");
        n += t->n;
        bytes += t->bytes;
        unknown |= t->unknown;
    }
    printf(flags_text("  %llu tensors, %.1f MB in files%s\n", "  %llu 个张量，文件共 %.1f MB%s\n"),
           (unsigned long long)n, (double)bytes / 1e6, unknown ? " +" : "");
}

static json_t *types_json(const struct inspect_types *y) {
    json_t *o = json_object();
    for (uint32_t i = 0; i < y->n; i++)
        json_object_set_new(o, y->list[i].name,
                            json_pack("{s:I, s:o}", "tensors", (json_int_t)y->list[i].n, "bytes",
                                      y->list[i].unknown ? json_null() : json_integer((json_int_t)y->list[i].bytes)));
    return o;
}

// Of all files that a split model lies in; those that are missing or broken are left out.
static void types_of_files(const struct inspect *f, struct inspect_types *types) {
    char name[LIMIT_PATH];
    for (uint32_t i = 0; tensors_file_name(f->path, i, name); i++) {
        struct file_map map;
        struct gguf *g;
        struct err unused;
        if (file_map_open(&map, name, &unused)) continue;
        if (gguf_new(map.data, map.len_bytes, &g, &unused) == ERR_OK) {
            inspect_types_of_gguf(types, g);
            gguf_free(g);
        }
        file_map_close(&map);
    }
}

// What is in the files, whether Loom computes it or not. t: NULL if they could not be opened as a model's tensors.
static void tell_files(const struct inspect *f, const struct tensors *t, bool list) {
    struct inspect_types types = {.n = 0};
    uint64_t bytes = 0;
    if (f->gguf && (!t || gguf_n_tensors(f->gguf)))
        types_of_files(f, &types);
    else
        for (uint32_t i = 0; t && i < tensors_count(t); i++)
            inspect_types_add(&types, dtype_info(tensors_at(t, i)->type)->name, tensors_at(t, i)->bytes, false);
    for (uint32_t i = 0; i < types.n; i++) bytes += types.list[i].bytes;
    if (f->json) {
        json_object_set_new(f->out, "file_bytes", json_integer((json_int_t)bytes));
        json_object_set_new(f->out, "types", types_json(&types));
        if (f->gguf)
            inspect_gguf_json(f->gguf, list, f->out);
        else if (list && t)
            json_object_set_new(f->out, "tensors", tensors_json(t));
        return;
    }
    if (f->gguf)
        inspect_gguf_print(f->gguf, list);
    else if (list && t)
        print_tensors(t);
    print_types(&types);
}

// ---- Whether it runs

// What run, serve and node would say before they load. m->fits is false where ERR_LIMIT would end them.
struct memory {
    struct head_memory need;
    uint64_t kv_token_bytes, total_bytes, missing_bytes;
    bool fits;
};

static int need_memory(const struct head_config *c, struct memory *m, struct err *e) {
    const struct hparams *h = &c->model->hparams;
    struct head_memory *n = &m->need;
    int rc = head_memory(c, n, e);
    if (rc && rc != ERR_LIMIT) return rc;
    m->fits = rc == ERR_OK;
    m->kv_token_bytes = model_kv_bytes_per_token(h, c->mode.kv, h->n_layers);
    m->total_bytes = n->weights_bytes + n->kv_bytes + n->scratch_bytes;
    m->missing_bytes = m->fits ? 0 : n->least_bytes - n->limit_bytes;
    return ERR_OK;
}

// The checks of a load, but for the values of the weights.
static int check_model(const struct opened_model *m, struct err *e) {
    struct text_side text;
    int rc = model_check_tensors(&m->hparams, m->tensors, e);
    if (rc) return err_prefix(e, "%s", m->path);
    rc = text_open(m, NULL, 0, &text, e);
    text_close(&text);
    return rc;
}

static void print_model(const struct opened_model *m, const struct head_config *c, const struct memory *x,
                        const char *conversions) {
    const struct hparams *h = &m->hparams;
    printf("%s\n", m->name);
    printf(flags_text("  %u layers, width %u, %u heads (%u for K and V) of %u, FFN %u, vocabulary %u, window %u\n",
                      "  %u 层，宽 %u，%u 个头（K、V 为 %u），头维 %u，FFN %u，词表 %u，窗口 %u\n"),
           h->n_layers, h->hidden, h->n_heads, h->n_kv_heads, h->head_dim, h->ffn, h->n_vocab, h->max_context);
    if (h->n_experts)
        printf(flags_text("  %u experts of %u, %u chosen per token\n", "  %u 个专家（FFN %u），每 token 选 %u 个\n"),
               h->n_experts, h->expert_ffn, h->top_k);
    if (conversions[0]) printf(flags_text("  converted when it is loaded: %s\n", "  载入时转换：%s\n"), conversions);
    const struct head_memory *n = &x->need;
    printf(
        flags_text("  in memory at context %u: weights %.1f MB, KV for %llu tokens %.1f MB (%llu bytes each), scratch "
                   "%.1f MB: %.1f MB\n",
                   "  上下文 %u 时内存：权重 %.1f MB，%llu 个 token 的 KV %.1f MB（每个 %llu 字节），暂存 %.1f MB：共 "
                   "%.1f MB\n"),
        c->context, (double)n->weights_bytes / 1e6, (unsigned long long)n->kv_tokens, (double)n->kv_bytes / 1e6,
        (unsigned long long)x->kv_token_bytes, (double)n->scratch_bytes / 1e6, (double)x->total_bytes / 1e6);
    if (x->fits)
        printf(flags_text("  it will run here: %.1f MB may be used, %.1f MB are the least\n",
                          "  本机可以运行：可用 %.1f MB，至少需要 %.1f MB\n"),
               (double)n->limit_bytes / 1e6, (double)n->least_bytes / 1e6);
    else
        printf(flags_text("  it will not run here alone: %.1f MB may be used, %.1f MB are the least, %.1f MB are "
                          "missing\n",
                          "  单靠本机不能运行：可用 %.1f MB，至少需要 %.1f MB，还差 %.1f MB\n"),
               (double)n->limit_bytes / 1e6, (double)n->least_bytes / 1e6, (double)x->missing_bytes / 1e6);
}

static void add_model(const struct opened_model *m, const struct head_config *c, const struct memory *x,
                      const char *conversions, json_t *o) {
    const struct hparams *h = &m->hparams;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"layers", h->n_layers},
                   {"hidden", h->hidden},
                   {"heads", h->n_heads},
                   {"kv_heads", h->n_kv_heads},
                   {"head_dim", h->head_dim},
                   {"ffn", h->ffn},
                   {"experts", h->n_experts},
                   {"vocab", h->n_vocab},
                   {"max_context", h->max_context},
                   {"context", c->context},
                   {"sequences", c->sequences},
                   {"weight_bytes", x->need.weights_bytes},
                   {"kv_bytes", x->need.kv_bytes},
                   {"kv_tokens", x->need.kv_tokens},
                   {"kv_bytes_per_token", x->kv_token_bytes},
                   {"scratch_bytes", x->need.scratch_bytes},
                   {"total_bytes", x->total_bytes},
                   {"least_bytes", x->need.least_bytes},
                   {"free_bytes", x->need.limit_bytes}};
    json_object_set_new(o, "model", json_string(m->name));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    json_object_set_new(o, "conversions", json_string(conversions));
    json_object_set_new(o, "fits", json_boolean(x->fits));
    json_object_set_new(o, "runs", json_true());
    const char *doubt = tensors_gguf(m->tensors) ? tokenizer_gguf_doubt(tensors_gguf(m->tensors)) : NULL;
    if (doubt) json_object_set_new(o, "warning", json_string(doubt));
}

// ---- One path

// Whether the model can be computed, and in how much memory.
static int tell_model(const struct inspect *f, struct opened_model *m, struct err *e) {
    struct head_config c;
    struct memory x;
    char conversions[512];
    int rc = open_model(f->path, m, e);
    if (!rc) rc = compute_config(&f->compute, m, true, &c, e);
    if (!rc) rc = check_model(m, e);
    if (!rc) rc = need_memory(&c, &x, e);
    if (rc) return rc;
    model_conversions(&m->hparams, &c.mode, m->tensors, 0, m->hparams.n_layers, conversions, sizeof conversions);
    if (f->json)
        add_model(m, &c, &x, conversions, f->out);
    else
        print_model(m, &c, &x, conversions);
    return ERR_OK;
}

// The header of a GGUF file, whatever its tensors are. A file of another kind has none.
static int open_header(struct inspect *f, struct err *e) {
    int rc = file_map_open(&f->map, f->path, e);
    if (rc || f->map.len_bytes < 4 || memcmp(f->map.data, "GGUF", 4) != 0) return rc;
    rc = gguf_new(f->map.data, f->map.len_bytes, &f->gguf, e);
    return rc ? err_prefix(e, "%s", f->path) : ERR_OK;
}

// What is in the files is told in any case. A file of safetensors alone has no settings: its tensors are all there is.
static int inspect(struct inspect *f, struct err *e) {
    const bool folder = file_is_dir(f->path);
    struct opened_model m = {0};
    struct tensors *alone = NULL;
    int rc = folder ? ERR_OK : open_header(f, e);
    if (rc) return rc;
    if (!folder && !f->gguf) {
        rc = tensors_open(f->path, &alone, e);
        if (!rc) tell_files(f, alone, true);
        tensors_free(alone);
        return rc;
    }
    rc = tell_model(f, &m, e);
    if (rc && rc != ERR_USAGE) {
        struct err other;
        if (folder && tensors_open(f->path, &alone, &other)) alone = NULL;
        if (!f->json) printf(flags_text("it will not run: %s\n", "不能运行：%s\n"), e->text);
        if (f->gguf || alone) tell_files(f, alone, f->tensors);
        tensors_free(alone);
    } else if (!rc) {
        tell_files(f, m.tensors, f->tensors);
    }
    open_model_close(&m);
    return rc;
}

static int print_json(const json_t *o, struct err *e) {
    char *text = json_dumps(o, JSON_ENSURE_ASCII);
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the answer");
    puts(text);
    free(text);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv) {
    struct inspect f = {.compute = compute_defaults};
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&f.compute, compute);
    const struct flag own[] = {{"--tensors", FLAG_BOOL, &f.tensors, 0, 0, "", "list every tensor", "列出所有张量"},
                               {"--json", FLAG_BOOL, &f.json, 0, 0, "", "print one JSON object", "输出一个 JSON 对象"},
                               {0}};
    const struct flag *tables[] = {own, compute, NULL};
    int n_rest;
    struct err e, other;
    int rc = flags_parse(c, tables, argc, argv, &f.path, 1, &n_rest, &e);
    if (!rc && n_rest != 1)
        rc = err_set(&e, ERR_USAGE, "FILE is missing: a model folder, a .gguf or a .safetensors file");
    if (!rc && !file_exists(f.path)) rc = err_set(&e, ERR_NOT_FOUND, "%s: no such file or folder", f.path);
    char file[LIMIT_PATH];
    if (!rc && !open_model_path(f.path, file, &other)) f.path = file; // else the reason comes with the rest
    log_setup(f.compute.verbose, true);
    if (!rc && !(f.out = json_object())) rc = err_set(&e, ERR_NOMEM, "no memory");
    if (!rc) rc = inspect(&f, &e);
    if (rc && rc != ERR_USAGE && f.out) {
        json_object_set_new(f.out, "runs", json_false());
        json_object_set_new(f.out, "reason", json_string(e.text));
    }
    if (f.json && f.out && json_object_size(f.out) && print_json(f.out, &other) && !rc) {
        e = other;
        rc = e.code;
    }
    json_decref(f.out);
    gguf_free(f.gguf);
    file_map_close(&f.map);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_inspect = {.name = "inspect",
                                    .args = "FILE [--context N] [--sequences N] [--kv TYPE] [--tensors] [--json]",
                                    .en = "what a model holds, and whether it will run here",
                                    .zh = "查看模型内容及能否在本机运行",
                                    .run = run};
