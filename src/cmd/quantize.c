// loom quantize: a model's folder, or a GGUF file, becomes a GGUF file of another type.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/convert.h"
#include "cmd/gguf_text.h"
#include "cmd/out_file.h"
#include "model/gguf_export.h"
#include "os/clock.h"
#include "os/file.h"

struct quantize {
    const char *type;
    bool force, requantize;
    uint32_t threads;
    const struct recipe *recipe;
    const char *in, *out;
};

static uint64_t tensor_bytes(const struct tensors *t) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < tensors_count(t); i++) sum += tensors_at(t, i)->bytes;
    return sum;
}

static int check_paths(struct quantize *q, char in[LIMIT_PATH], struct err *e) {
    int rc = open_model_path(q->in, in, e);
    q->in = in;
    if (!rc) rc = out_file_refuse_input(q->out, q->in, e);
    return rc ? rc : out_file_check(q->out, q->force, e);
}

// h: the folder's settings; NULL: those of a GGUF file are copied.
static int write_file(const struct quantize *q, struct convert *c, struct gguf_writer *w, const struct hparams *h,
                      uint64_t in_bytes, struct err *e) {
    struct gguf_file f = {
        .path = q->out, .force = q->force, .threads = q->threads, .progress = true, .writer = w, .settings = h};
    int rc = gguf_put_u32(w, "general.file_type", q->recipe->file_type);
    if (rc) return err_set(e, rc, "no room for general.file_type");
    const uint64_t t0 = clock_now_us();
    convert_fill(c, &f);
    rc = gguf_file_write(&f, e);
    if (rc) return rc;
    printf(flags_text("%s: %s, %u tensors, %.1f MB of %.1f MB, %.1f s\n",
                      "%s：%s，%u 个张量，%.1f MB（原 %.1f MB），%.1f 秒\n"),
           q->out, q->recipe->name, f.n_tensors, (double)gguf_file_data_bytes(&f) / 1e6, (double)in_bytes / 1e6,
           (double)(clock_now_us() - t0) / 1e6);
    return ERR_OK;
}

static void warn(const char *en, const char *zh) {
    fprintf(stderr, "%s%s\n", flags_text("warning: ", "警告："), flags_text(en, zh));
}

static int from_folder(const struct quantize *q, struct gguf_writer *w, struct err *e) {
    struct opened_model m;
    struct convert *c = NULL;
    struct gguf_text_lacks lacks = {0};
    int rc = open_model(q->in, &m, e);
    if (rc) return rc;
    rc = gguf_export_config(m.config_json, m.config_bytes, &m.hparams, &m.defaults, m.name, w, e);
    if (!rc) rc = gguf_text_export(q->in, &m.hparams, w, &lacks, e);
    if (!rc) rc = convert_from_folder(&m.hparams, m.config_json, m.config_bytes, m.tensors, q->recipe, &c, e);
    if (!rc) rc = write_file(q, c, w, &m.hparams, tensor_bytes(m.tensors), e);
    if (!rc && lacks.tokenizer)
        warn("the folder has no tokenizer, so the file takes token ids only",
             "目录中没有分词器，生成的文件只接受 token id");
    if (!rc && lacks.ends)
        warn(
            "GGUF has no keys for all end tokens of the model: Loom ends answers at all of them, other programs at the "
            "first ones only",
            "GGUF 的键放不下模型的全部结束 token：Loom 遇到任何一个都会结束，其他程序只认前几个");
    convert_free(c);
    open_model_close(&m);
    return rc;
}

static bool is_ours(const struct gguf_string *key) {
    static const char *const own[] = {"general.file_type", "general.quantization_version", "split.no", "split.count",
                                      "split.tensors.count"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (key->len_bytes == strlen(own[i]) && !memcmp(key->text, own[i], key->len_bytes)) return true;
    return false;
}

static int copy_values(const struct gguf *g, struct gguf_writer *w, struct err *e) {
    for (uint64_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        int rc = is_ours(&v->key) ? ERR_OK : gguf_put_value(w, v);
        if (rc) return err_set(e, rc, "%.*s: cannot be copied", (int)v->key.len_bytes, v->key.text);
    }
    int rc = gguf_put_u32(w, "general.quantization_version", 2);
    return rc ? err_set(e, rc, "no room for general.quantization_version") : ERR_OK;
}

static int from_gguf(const struct quantize *q, struct gguf_writer *w, struct err *e) {
    struct tensors *t;
    struct convert *c = NULL;
    int rc = tensors_open(q->in, &t, e);
    if (rc) return rc;
    if (!tensors_gguf(t))
        rc = err_set(e, ERR_USAGE, "%s: give the model's folder, which has the config.json to it", q->in);
    if (!rc) rc = copy_values(tensors_gguf(t), w, e);
    if (!rc) rc = convert_from_gguf(t, q->recipe, q->requantize, &c, e);
    if (!rc) rc = write_file(q, c, w, NULL, tensor_bytes(t), e);
    convert_free(c);
    tensors_free(t);
    return rc;
}

static int run(const struct command *c, int argc, char **argv) {
    struct quantize q = {0};
    const struct flag own[] = {
        {"--type", FLAG_STRING, &q.type, 0, 0, "TYPE",
         "q8_0, q6_k, q5_k_m, q4_k_m, q4_0, bf16, f16, ... or l8, which Loom alone reads",
         "q8_0、q6_k、q5_k_m、q4_k_m、q4_0、bf16、f16 等；l8 只有 Loom 能读"},
        {"--requantize", FLAG_BOOL, &q.requantize, 0, 0, "", "also what is quantised already: its loss adds up",
         "允许再次量化已量化的张量（误差会累加）"},
        {"--force", FLAG_BOOL, &q.force, 0, 0, "", "replace OUT if it is there", "若 OUT 已存在则替换"},
        {"--threads", FLAG_U32, &q.threads, 0, 256, "N", "default: one per processor", "默认每个处理器一个"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    const char *paths[2];
    char in[LIMIT_PATH];
    int n_rest;
    struct err e;
    struct gguf_writer *w = NULL;
    int rc = flags_parse(c, tables, argc, argv, paths, 2, &n_rest, &e);
    if (!rc && n_rest != 2) rc = err_set(&e, ERR_USAGE, "IN and OUT are needed: a model, and the file to write");
    if (!rc && !q.type) rc = err_set(&e, ERR_USAGE, "--type is missing: one of %s", recipe_names());
    if (!rc && !(q.recipe = recipe_find(q.type)))
        rc = err_set(&e, ERR_USAGE, "--type: '%s' is none of %s", q.type, recipe_names());
    if (rc) return flags_fail(c, &e);
    q.in = paths[0];
    q.out = paths[1];
    log_setup(false, true);
    rc = check_paths(&q, in, &e);
    if (rc) return flags_fail(c, &e);
    if (gguf_writer_new(&w)) rc = err_set(&e, ERR_NOMEM, "no memory for the metadata");
    if (!rc) rc = file_is_dir(q.in) ? from_folder(&q, w, &e) : from_gguf(&q, w, &e);
    // With several models at work an error without its model helps nobody.
    if (rc && !strstr(e.text, q.in) && !strstr(e.text, q.out)) err_prefix(&e, "%s", q.in);
    gguf_writer_free(w);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_quantize = {.name = "quantize",
                                     .args = "IN OUT.gguf --type TYPE [--requantize] [--force] [--threads N]",
                                     .en = "make a GGUF file of a model, smaller and faster",
                                     .zh = "把模型量化为 GGUF 文件",
                                     .run = run};
