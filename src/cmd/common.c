#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "cmd/cmd.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/file.h"
#include "os/hostport.h"
#include "text/chat.h"

enum { DEFAULT_CONTEXT = 8192 };

const struct compute_flags compute_defaults = {.chunk = COMPUTE_CHUNK, .sequences = COMPUTE_SEQUENCES};

void compute_flags_table(struct compute_flags *f, struct flag table[COMPUTE_FLAGS]) {
    const struct flag flags[COMPUTE_FLAGS] = {
        {"--weights", FLAG_STRING, &f->weights, 0, 0, "TYPE", "as-is, l8, q8_0 or q4_0 (default: l8 for float files)",
         "权重类型：as-is、l8、q8_0 或 q4_0（浮点文件默认 l8）"},
        {"--kv", FLAG_STRING, &f->kv, 0, 0, "TYPE", "KV cache: int8 (default) or f16", "KV 缓存：int8（默认）或 f16"},
        {"--context", FLAG_U32, &f->context, 2, LIMIT_CONTEXT, "N",
         "tokens of prompt and answer together (default: the model's, at most 8192)",
         "提示与回答合计的 token 数（默认取模型值，至多 8192）"},
        {"--sequences", FLAG_U32, &f->sequences, 1, LIMIT_SEQS, "N",
         "sequences of full length that the KV cache shall hold (default 16)", "KV 缓存可容纳的满长序列数（默认 16）"},
        {"--chunk", FLAG_U32, &f->chunk, 1, LIMIT_STEP_ROWS, "N", "rows of a step: prompts are cut into such pieces",
         "每步的行数：提示按此切块"},
        {"--threads", FLAG_U32, &f->threads, 0, 1024, "N", "compute threads (default: one per processor)",
         "计算线程数（默认每个处理器一个）"},
        {"--isa", FLAG_STRING, &f->isa, 0, 0, "ISA", "auto, ref, avx2 or avx512: all give the same bytes",
         "auto、ref、avx2 或 avx512：结果逐字节相同"},
        {"--device", FLAG_STRING, &f->device, 0, 0, "DEVICE", "cpu", "设备：cpu"},
        {"--memory", FLAG_BYTES, &f->memory_bytes, LEAST_SIZE_BYTES, 0, "SIZE",
         "memory that may be used, such as 8G; 1M at least", "可用内存上限，例如 8G；至少 1M"},
        {"--verbose", FLAG_BOOL, &f->verbose, 0, 0, "", "log more", "输出更多日志"},
        {0}};
    memcpy(table, flags, sizeof flags);
}

int compute_mode(const struct compute_flags *f, struct run_mode *mode, struct err *e) {
    static const char *const names[] = {"native", "as-is", "l8", "q8_0", "q4_0"};
    static const enum weight_mode modes[] = {WEIGHTS_NATIVE, WEIGHTS_AS_IS, WEIGHTS_L8, WEIGHTS_Q8_0, WEIGHTS_Q4_0};
    *mode = (struct run_mode){.weights = WEIGHTS_NATIVE, .kv = KV_I8};
    if (f->weights) {
        size_t i = 0;
        while (i < 5 && strcmp(f->weights, names[i])) i++;
        if (i == 5) return err_set(e, ERR_USAGE, "--weights: '%s' is none of as-is, l8, q8_0, q4_0", f->weights);
        mode->weights = modes[i];
    }
    if (f->kv && strcmp(f->kv, "int8") && strcmp(f->kv, "f16"))
        return err_set(e, ERR_USAGE, "--kv: '%s' is neither int8 nor f16", f->kv);
    if (f->kv && !strcmp(f->kv, "f16")) mode->kv = KV_F16;
    return ERR_OK;
}

int compute_cpu(const struct compute_flags *f, struct backend_cpu_config *cpu, struct err *e) {
    if (f->device && strcmp(f->device, "cpu"))
        return err_set(e, ERR_USAGE, "--device: '%s': this build computes on cpu only", f->device);
    int isa = f->isa ? isa_from_name(f->isa) : ISA_AUTO;
    if (isa < 0) return err_set(e, ERR_USAGE, "--isa: '%s' is none of auto, ref, avx2, avx512", f->isa);
    *cpu = (struct backend_cpu_config){.isa = (enum isa)isa, .n_threads = f->threads};
    return ERR_OK;
}

// --weights is about what a file holds as floats. Of one that has been quantised it would change nothing.
static void tell_kept_weights(const struct compute_flags *f, const struct opened_model *m, enum weight_mode mode) {
    if (!f->weights || mode == WEIGHTS_NATIVE || mode == WEIGHTS_AS_IS) return;
    for (uint32_t i = 0; i < tensors_count(m->tensors); i++) {
        const struct tensor *t = tensors_at(m->tensors, i);
        // A router is kept as it is in any case.
        if (t->n_dims == 2 && dtype_info(t->type)->is_float && !text_ends(t->name, ".gate.weight")) return;
    }
    fprintf(stderr,
            flags_text("--weights %s: changes nothing, as the weights of this file are quantised already\n",
                       "--weights %s：不起作用，文件里的权重已经量化\n"),
            f->weights);
}

int compute_config(const struct compute_flags *f, struct opened_model *m, bool quiet, struct head_config *c,
                   struct err *e) {
    const struct hparams *h = &m->hparams;
    *c = (struct head_config){.model = m,
                              .sequences = f->sequences,
                              .chunk_rows = f->chunk,
                              .memory_bytes = f->memory_bytes,
                              .min_nodes = 1,
                              .wait_for_node_ms = 60000,
                              .node_timeout_ms = 3000,
                              .heartbeat_ms = 200,
                              .step_deadline_ms = 10000};
    int rc = compute_mode(f, &c->mode, e);
    if (!rc) rc = compute_cpu(f, &c->cpu, e);
    if (rc) return rc;
    c->context = f->context ? f->context : h->max_context < DEFAULT_CONTEXT ? h->max_context : DEFAULT_CONTEXT;
    if (c->context > h->max_context)
        return err_set(e, ERR_USAGE, "--context: %u is over the model's window of %u", c->context, h->max_context);
    model_set_context(&m->hparams, c->context);
    c->n_stages = f->split.n ? f->split.n : 1;
    c->layers[0] = h->n_layers;
    for (uint32_t i = 0; i < f->split.n; i++) c->layers[i] = f->split.value[i];
    if (!quiet) {
        c->progress = progress_bar();
        tell_kept_weights(f, m, c->mode.weights);
    }
    return ERR_OK;
}

int memory_tell(const struct head_config *c, struct err *e) {
    struct head_memory m;
    char text[256];
    struct err why;
    int rc = head_memory(c, &m, &why);
    if (rc) return err_set(e, rc, "%s%s", why.text, rc == ERR_LIMIT ? " (--memory, --context)" : "");
    uint64_t loaded = cpu_memory_own_bytes() + m.weights_bytes + m.scratch_bytes + m.kv_begin_bytes;
    snprintf(text, sizeof text,
             flags_text("%.3f GB of weights; %.3f GB in all once it is loaded, %.3f GB at most, when the KV cache is "
                        "full (%llu tokens)",
                        "权重 %.3f GB；载入后共 %.3f GB，最多 %.3f GB（KV 缓存写满 %llu 个 token 时）"),
             (double)m.weights_bytes / 1e9, (double)loaded / 1e9,
             (double)(loaded + m.kv_bytes - m.kv_begin_bytes) / 1e9, (unsigned long long)m.kv_tokens);
    if (log_shows(LOG_INFO))
        LOG_I("memory", "%s", text);
    else if (isatty(STDERR_FILENO))
        fprintf(stderr, "%s%s\n", flags_text("memory: ", "内存："), text);
    return ERR_OK;
}

int text_open(const struct opened_model *m, const char *chat_template_path, uint32_t n_helpers, struct text_side *t,
              struct err *e) {
    const struct gguf *g = tensors_gguf(m->tensors);
    *t = (struct text_side){0};
    int rc = g ? tokenizer_new_gguf(g, &t->tokenizer, e) : tokenizer_open_folder(m->path, &t->tokenizer, e);
    if (rc && g) err_prefix(e, "%s", m->path);
    if (!rc && g && tokenizer_gguf_doubt(g))
        fprintf(stderr, "%s%s: %s\n", flags_text("warning: ", "警告："), m->path, tokenizer_gguf_doubt(g));
    // The other way round is usual: rows of the embedding that no token has.
    if (!rc && tokenizer_n_vocab(t->tokenizer) > m->hparams.n_vocab)
        rc = err_set(e, ERR_FORMAT, "%s: the tokenizer has ids up to %u, but the model's vocab_size is %u", m->path,
                     tokenizer_n_vocab(t->tokenizer) - 1, m->hparams.n_vocab);
    if (!rc && !n_helpers) return ERR_OK;
    struct chat_template_options o = {.n_helpers = n_helpers};
    if (!rc) {
        rc = g ? chat_template_open_gguf(g, m->path, chat_template_path, t->tokenizer, &o, &t->chat_template, e)
               : chat_template_open(m->path, chat_template_path, t->tokenizer, &o, &t->chat_template, e);
        if (rc == ERR_NOT_FOUND && !chat_template_path) return ERR_OK; // a base model
    }
    if (rc) text_close(t);
    return rc;
}

void text_close(struct text_side *t) {
    if (t->chat_template) chat_template_free(t->chat_template);
    tokenizer_free(t->tokenizer);
    *t = (struct text_side){0};
}

int address_flag(const char *name, const char *text, bool to_connect, struct err *e) {
    struct hostport hp;
    if (hostport_parse(text, &hp, e)) return err_prefix(e, "%s", name);
    if (to_connect && (!hp.host[0] || !hp.port))
        return err_set(e, ERR_USAGE, "%s: '%s' has no %s: one is needed to be reached", name, text,
                       hp.host[0] ? "port" : "host");
    return ERR_OK;
}

int ids_read_file(const char *path, uint32_t n_vocab, struct ids *out, struct err *e) {
    char *text;
    size_t len;
    int rc = file_read(path, 64 << 20, &text, &len, e);
    if (rc) return rc;
    json_error_t je;
    json_t *array = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (!json_is_array(array)) {
        json_decref(array);
        return err_set(e, ERR_FORMAT, "%s: not one JSON array of token ids", path);
    }
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v) {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= n_vocab)
            rc = err_set(e, ERR_FORMAT, "%s: entry %zu is not a token id from 0 to %u", path, i, n_vocab - 1);
        else if (ids_add(out, (int32_t)id))
            rc = err_set(e, ERR_LIMIT, "%s: too many ids", path);
        if (rc) break;
    }
    if (!rc && !json_array_size(array)) rc = err_set(e, ERR_FORMAT, "%s: no ids in it", path);
    json_decref(array);
    return rc;
}

int chat_request(const struct text_side *t, const char *body, bool think, struct ids *out, struct chat_prompt *prompt,
                 struct err *e) {
    int rc = chat_encode(t->tokenizer, t->chat_template, body, strlen(body),
                         think ? NULL : "{\"enable_thinking\": false}", true, out, prompt, e);
    if (rc == ERR_USAGE) e->code = rc = ERR_FORMAT; // no flag is at fault
    return rc;
}

int chat_one(const struct text_side *t, const char *message, bool think, struct ids *out, struct chat_prompt *prompt,
             struct err *e) {
    if (!t->chat_template)
        return err_set(e, ERR_UNSUPPORTED, "the model has no chat template; use --chat-template FILE");
    json_t *body = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", message);
    if (!body) return err_set(e, ERR_USAGE, "--chat: the text is not UTF-8");
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the message");
    int rc = chat_request(t, text, think, out, prompt, e);
    free(text);
    return rc;
}

int state_dir(const char *flag, char *out, size_t out_bytes, struct err *e) {
    const char *own = getenv("LOOM_STATE"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (flag)
        n = snprintf(out, out_bytes, "%s", flag);
    else if (own && own[0])
        n = snprintf(out, out_bytes, "%s", own);
    else if (xdg && xdg[0])
        n = snprintf(out, out_bytes, "%s/loom", xdg);
    else if (home && home[0])
        n = snprintf(out, out_bytes, "%s/.local/state/loom", home);
    else
        return err_set(e, ERR_USAGE, "--state: give a folder, as neither $LOOM_STATE nor $HOME is set");
    if (n < 0 || (size_t)n >= out_bytes) return err_set(e, ERR_LIMIT, "--state: the path is too long");
    return file_mkdir_all(out, 0700, e);
}

static void show_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes) {
    static uint64_t start_us;
    static int last = -1;
    (void)arg;
    if (!start_us) start_us = clock_now_us();
    if (clock_now_us() - start_us < 500000) return; // nobody waits for what is over in a moment
    int percent = total_bytes ? (int)(done_bytes * 100 / total_bytes) : 100;
    if (percent == last) return;
    last = percent;
    char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    fprintf(stderr, "\r\033[K%s %3d%% (%s / %s)", flags_text("loading", "载入"), percent, size_text(done_bytes, done),
            size_text(total_bytes, total));
    if (percent >= 100) fprintf(stderr, "\r\033[K");
}

struct model_progress progress_bar(void) {
    return (struct model_progress){.fn = isatty(STDERR_FILENO) ? show_progress : NULL};
}

void log_setup(bool verbose, bool quiet) { log_set_level(verbose ? LOG_DEBUG : quiet ? LOG_ERROR : LOG_INFO); }
