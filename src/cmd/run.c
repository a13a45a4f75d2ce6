// loom run: one answer, one process.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/reply.h"
#include "cmd/cmd.h"
#include "cmd/visible.h"
#include "os/clock.h"
#include "os/random.h"
#include "text/detok.h"
#include "text/stop.h"

struct run_flags {
    struct compute_flags compute;
    const char *prompt, *chat, *ids_path, *template_path;
    uint32_t n;
    double temperature, top_p, min_p; // NAN: the model's own
    int64_t top_k, seed;              // top_k < 0 and seed < 0: not given
    struct flag_strings stop;
    bool think, json;
};

struct run {
    struct run_flags flags;
    struct opened_model model;
    struct text_side text;
    struct head *head;
    struct ids ids;
    struct chat_prompt chat_prompt;
    struct stop *stop; // of --stop
    struct buf out;    // the whole answer, as text
    struct visible shown;
    uint64_t load_us;
};

static int read_prompt(struct run *r, struct err *e) {
    const struct run_flags *f = &r->flags;
    if (f->ids_path) return ids_read_file(f->ids_path, r->model.hparams.n_vocab, &r->ids, e);
    if (f->chat) return chat_one(&r->text, f->chat, f->think, &r->ids, &r->chat_prompt, e);
    uint32_t n;
    const int32_t *prefix = tokenizer_prefix(r->text.tokenizer, &n);
    for (uint32_t i = 0; i < n; i++)
        if (ids_add(&r->ids, prefix[i])) return err_set(e, ERR_NOMEM, "no memory for the prompt");
    int rc = tokenizer_encode(r->text.tokenizer, f->prompt, strlen(f->prompt), true, &r->ids, e);
    if (rc == ERR_FORMAT) return err_set(e, ERR_USAGE, "-p: the text is not UTF-8");
    if (!rc && !r->ids.n) rc = err_set(e, ERR_USAGE, "-p: the text is empty");
    return rc;
}

static int open_all(struct run *r, const char *path, struct err *e) {
    const struct run_flags *f = &r->flags;
    uint64_t t0 = clock_now_us();
    int rc = open_model(path, &r->model, e);
    if (!rc && !f->ids_path) rc = text_open(&r->model, f->template_path, f->chat ? 1 : 0, &r->text, e);
    if (rc) return rc;
    ids_init(&r->ids, LIMIT_CONTEXT);
    rc = read_prompt(r, e);
    if (rc) return rc;
    struct head_config c;
    rc = compute_config(&f->compute, &r->model, f->json, &c, e);
    if (rc) return rc;
    c.sequences = 1;
    if (r->ids.n >= c.context)
        return err_set(e, ERR_USAGE, "the prompt has %zu tokens, the window %u; at least one must be left to answer",
                       r->ids.n, c.context);
    rc = memory_tell(&c, e);
    if (!rc) rc = head_new(&c, &r->head, e);
    if (!rc) rc = head_wait_ready(r->head, 600000, e);
    r->load_us = clock_now_us() - t0;
    return rc;
}

static void make_request(const struct run *r, uint32_t context, uint64_t seed, struct gen_request *q) {
    const struct run_flags *f = &r->flags;
    const struct gen_defaults *d = &r->model.defaults;
    uint32_t room = context - (uint32_t)r->ids.n;
    *q = (struct gen_request){.prompt = r->ids.data, .n_prompt = (uint32_t)r->ids.n};
    q->max_tokens = f->n && f->n < room ? f->n : room;
    q->sampling = (struct sampling){.temperature = isnan(f->temperature) ? d->temperature : (float)f->temperature,
                                    .top_p = isnan(f->top_p) ? d->top_p : (float)f->top_p,
                                    .min_p = isnan(f->min_p) ? d->min_p : (float)f->min_p,
                                    .top_k = f->top_k < 0 ? d->top_k : (int32_t)f->top_k,
                                    .seed = seed};
    q->n_stop_ids = r->model.hparams.n_eos;
    memcpy(q->stop_ids, r->model.hparams.eos_ids, q->n_stop_ids * sizeof q->stop_ids[0]);
}

static void print_from(struct run *r, size_t from) {
    const struct buf *b = &r->out;
    if (b->len_bytes > from) visible_print(&r->shown, (const char *)b->data + from, b->len_bytes - from);
}

// Text that is safe to show goes to stdout at once and into r->out.
static int show(struct run *r, const char *text, size_t len, bool *matched, struct err *e) {
    size_t before = r->out.len_bytes;
    if (stop_feed(r->stop, text, len, &r->out, matched)) return err_set(e, ERR_NOMEM, "no memory for the answer");
    if (r->flags.json) return ERR_OK;
    print_from(r, before);
    return flags_check_stdout(e); // nobody reads any more: the rest need not be made
}

static int stream(struct run *r, struct reply *a, bool *matched, struct err *e) {
    struct detok *d = r->text.tokenizer ? detok_new(r->text.tokenizer) : NULL;
    int rc = ERR_OK;
    int32_t token;
    size_t len;
    *matched = false;
    visible_stdout(&r->shown);
    while (!rc && !*matched && reply_next(a, &token)) {
        if (d) {
            const char *text = detok_feed(d, token, &len);
            rc = show(r, text, len, matched, e);
        } else if (!r->flags.json) {
            printf("%s%d", a->n_taken > 1 ? " " : "", token);
            rc = flags_check_stdout(e);
        }
    }
    if (rc || *matched) reply_cancel(a);
    if (!rc && d && !*matched) {
        const char *text = detok_flush(d, &len);
        rc = show(r, text, len, matched, e);
        size_t before = r->out.len_bytes;
        if (!rc && stop_flush(r->stop, &r->out)) rc = err_set(e, ERR_NOMEM, "no memory for the answer");
        if (!rc && !r->flags.json) print_from(r, before);
    }
    visible_end(&r->shown);
    if (!r->flags.json) printf("\n");
    detok_free(d);
    return rc;
}

static void print_json(const struct run *r, const struct reply *a, uint32_t n, const char *finish, uint64_t seed) {
    struct buf b;
    buf_init(&b, 1u << 30);
    int rc = buf_addf(&b, "{\"text\": ");
    if (!rc) rc = buf_add_json_string(&b, (const char *)r->out.data, r->out.len_bytes);
    if (!rc) rc = buf_addf(&b, ", \"token_ids\": [");
    for (uint32_t i = 0; i < n && !rc; i++) rc = buf_addf(&b, "%s%d", i ? ", " : "", a->tokens[i]);
    double decode_s = (double)(a->last_us - a->first_us) / 1e6;
    if (!rc)
        rc =
            buf_addf(&b,
                     "], \"finish_reason\": \"%s\", \"prompt_tokens\": %zu, \"completion_tokens\": %u, \"seed\": %llu, "
                     "\"timings\": {\"load_ms\": %.3f, \"ttft_ms\": %.3f, \"decode_tps\": %.3f}}\n",
                     finish, r->ids.n, n, (unsigned long long)seed, (double)r->load_us / 1e3,
                     (double)(a->first_us - a->start_us) / 1e3, decode_s > 0 ? (double)(n - 1) / decode_s : 0);
    if (!rc) fwrite(b.data, 1, b.len_bytes, stdout);
    buf_fini(&b);
}

static int answer_it(struct run *r, struct err *e) {
    uint64_t seed = r->flags.seed >= 0 ? (uint64_t)r->flags.seed : random_u64() >> 11; // a double holds it in JSON
    struct head_config c;
    int rc = compute_config(&r->flags.compute, &r->model, true, &c, e);
    if (rc) return rc;
    struct gen_request q;
    make_request(r, c.context, seed, &q);
    struct gateway_ops ops = head_gateway_ops(r->head);
    struct reply a;
    rc = reply_start(&a, &ops, &q, e);
    if (rc) return rc;
    buf_init(&r->out, 1u << 28);
    bool matched;
    rc = stream(r, &a, &matched, e);
    uint32_t n = a.n_taken;
    if (!rc && !matched && a.finish == GEN_FAILED) rc = err_set(e, a.err.code, "%s", a.err.text);
    if (!rc && r->flags.json) print_json(r, &a, n, matched || a.finish == GEN_STOP ? "stop" : "length", seed);
    reply_fini(&a);
    return rc;
}

static int check(struct run *r, int n_rest, struct err *e) {
    const struct run_flags *f = &r->flags;
    size_t lens[FLAG_LIST_MAX];
    if (n_rest != 1)
        return err_set(e, ERR_USAGE, "MODEL is missing: a GGUF file, or a folder with config.json and *.safetensors");
    if (!!f->prompt + !!f->chat + !!f->ids_path != 1)
        return err_set(e, ERR_USAGE, "give exactly one of -p TEXT, --chat TEXT and --ids FILE");
    if (f->think && !f->chat) return err_set(e, ERR_USAGE, "--think: goes with --chat");
    if (f->ids_path && f->stop.n) return err_set(e, ERR_USAGE, "--stop: --ids gives no text to look for it in");
    for (uint32_t i = 0; i < f->stop.n; i++) lens[i] = strlen(f->stop.value[i]);
    return stop_new(f->stop.value, lens, f->stop.n, &r->stop, e) ? err_prefix(e, "--stop") : ERR_OK;
}

static int run(const struct command *c, int argc, char **argv) {
    struct run r = {.flags = {.compute = compute_defaults,
                              .n = 256,
                              .temperature = NAN,
                              .top_p = NAN,
                              .min_p = NAN,
                              .top_k = -1,
                              .seed = -1}};
    struct run_flags *f = &r.flags;
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&f->compute, compute);
    const struct flag own[] = {
        {"-p", FLAG_STRING, &f->prompt, 0, 0, "TEXT", "a prompt, as it is", "原样的提示"},
        {"--chat", FLAG_STRING, &f->chat, 0, 0, "TEXT", "one user message, through the chat template",
         "一条用户消息，经过对话模板"},
        {"--ids", FLAG_STRING, &f->ids_path, 0, 0, "FILE", "a JSON array of token ids, used as they are",
         "JSON 数组形式的 token id，原样使用"},
        {"-n", FLAG_U32, &f->n, 0, LIMIT_CONTEXT, "N", "tokens at most (default 256, 0: to the window)",
         "最多生成的 token 数（默认 256，0 表示到窗口末尾）"},
        {"--temp", FLAG_F64, &f->temperature, 0, 100, "T", "temperature; 0: greedy", "温度；0 为贪心"},
        {"--top-p", FLAG_F64, &f->top_p, 1e-7, 1, "P", "nucleus sampling", "核采样"},
        {"--top-k", FLAG_I64, &f->top_k, 0, LIMIT_VOCAB, "K", "the K likeliest only; 0: off",
         "只取最可能的 K 个；0 为关"},
        {"--min-p", FLAG_F64, &f->min_p, 0, 1, "P", "least share of the likeliest", "相对最可能者的最小份额"},
        {"--seed", FLAG_I64, &f->seed, -1, 9.2e18, "S", "the same seed gives the same answer; -1: drawn",
         "相同种子得到相同回答；-1 为随机"},
        {"--stop", FLAG_STRINGS, &f->stop, 0, 0, "TEXT", "ends the answer; may be given several times",
         "遇到即停，可多次给出"},
        {"--think", FLAG_BOOL, &f->think, 0, 0, "", "let the model think first", "先让模型思考"},
        {"--chat-template", FLAG_STRING, &f->template_path, 0, 0, "FILE", "a Jinja template instead of the model's",
         "用此 Jinja 模板代替模型自带的"},
        {"--split", FLAG_U32S, &f->compute.split, 0, 0, "4,4,4", "several stages in this process, layers of each",
         "在本进程内分成几段，各段层数"},
        {"--json", FLAG_BOOL, &f->json, 0, 0, "", "print one JSON object", "输出一个 JSON 对象"},
        {0}};
    const struct flag *tables[] = {own, compute, NULL};
    const char *path;
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    if (!rc) rc = check(&r, n_rest, &e);
    log_setup(f->compute.verbose, true);
    if (!rc) rc = open_all(&r, path, &e);
    if (!rc) rc = answer_it(&r, &e);
    head_free(r.head);
    text_close(&r.text);
    open_model_close(&r.model);
    chat_prompt_fini(&r.chat_prompt);
    ids_fini(&r.ids);
    buf_fini(&r.out);
    stop_free(r.stop);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_run = {.name = "run",
                                .args = "MODEL -p TEXT | --chat TEXT | --ids FILE",
                                .en = "one answer, in this process",
                                .zh = "在本进程内回答一次",
                                .run = run};
