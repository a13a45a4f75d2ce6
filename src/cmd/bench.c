// loom bench: how fast a model runs here, beside what the machine could do; and the self-test of the numerics.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/chain.h"
#include "cmd/cmd.h"
#include "cmd/reply.h"
#include "compute/roof.h"
#include "compute/selftest.h"
#include "os/clock.h"
#include "os/cpu.h"

struct bench {
    struct compute_flags compute;
    uint32_t prefill, decode;
    struct flag_u32s batches;
    bool selftest, json;
    struct opened_model model;
    struct head_config config;
    uint32_t threads;
    enum isa isa;
    double read_gb_s, peak_tops;
};

struct bench_row {
    uint32_t batch;
    double prefill_tps, ttft_ms, decode_tps, gb_s, tops, head_us;
};

static int self_test(const struct bench *b, struct err *e) {
    static const enum isa all[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
    int wrong = 0, failed = ERR_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct selftest_result r;
        if (b->isa != ISA_AUTO && b->isa != all[i]) continue;
        uint64_t t0 = clock_now_us();
        int rc = selftest_run(all[i], &r, e);
        if (rc == ERR_UNSUPPORTED) {
            printf("%s: %s\n", isa_name(all[i]), flags_text("not on this processor", "本处理器不支持"));
            continue;
        }
        if (rc) failed = rc;
        for (int k = 0; k < SELFTEST_HASHES; k++)
            if (r.hash[k] != r.want[k])
                printf("%s %s: %016llx, want %016llx\n", isa_name(all[i]), r.name[k], (unsigned long long)r.hash[k],
                       (unsigned long long)r.want[k]);
        wrong += r.n_wrong;
        printf(flags_text("%s: %d of %d hashes are right, %.2f s\n", "%s：%d / %d 个哈希正确，%.2f 秒\n"),
               isa_name(all[i]), SELFTEST_HASHES - r.n_wrong, SELFTEST_HASHES, (double)(clock_now_us() - t0) / 1e6);
    }
    return wrong || failed ? err_set(e, ERR_NUMERIC, "%d hashes of the numeric contract are wrong", wrong) : ERR_OK;
}

// Bytes of weights that one decode step of n sequences must read, and multiply-adds of one token. A mixture reads the
// experts that its tokens choose: at most all, at least one token's.
static void work_of_step(const struct bench *b, const struct backend_ops *ops, uint32_t n, double *bytes,
                         double *macs) {
    const struct hparams *h = &b->model.hparams;
    uint64_t all = model_layer_bytes(h, &b->config.mode, ops, 0, h->n_layers);
    double head = (double)h->n_vocab * h->hidden;
    double attn = (double)h->hidden * h->head_dim * (2.0 * h->n_heads + 2.0 * h->n_kv_heads);
    double mlp = 0, mlp_read = 0, mlp_all = 0;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        bool moe = h->n_experts && !h->dense_layer[i];
        double one = 3.0 * h->hidden * (moe ? h->expert_ffn : h->ffn);
        double chosen = moe ? h->top_k : 1, held = moe ? h->n_experts : 1;
        mlp += one * chosen;
        mlp_read += one * (chosen * n < held ? chosen * n : held);
        mlp_all += one * held;
    }
    double others = attn * h->n_layers + head;
    double embed = h->tied_embedding ? 0 : head; // looked up row by row, not read
    *macs = others + mlp;
    *bytes = (double)all * (others + mlp_read) / (others + mlp_all + embed);
}

static void fill(int32_t *tokens, uint32_t n, uint32_t n_vocab) {
    uint32_t x = 12345;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 8) % n_vocab);
    }
}

// Prefill of every sequence, then decode steps of all of them together. The tokens are arbitrary; the work is not.
static int run_chain(struct bench *b, struct chain *c, struct bench_row *row, struct err *e) {
    uint32_t n_vocab = c->hparams.n_vocab, n = row->batch;
    int32_t *tokens = malloc((b->prefill + b->decode) * sizeof *tokens);
    struct step_result r;
    int rc = tokens ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for tokens");
    if (!rc) fill(tokens, b->prefill + b->decode, n_vocab);
    uint64_t t0 = clock_now_us();
    for (uint32_t s = 0; s < n && !rc; s++) {
        for (uint32_t at = 0; at < b->prefill && !rc; at += c->max_rows) {
            uint32_t k = b->prefill - at < c->max_rows ? b->prefill - at : c->max_rows;
            chain_begin(c);
            chain_add(c, s, at, tokens + at, k, at + k == b->prefill);
            rc = chain_run(c, &r, e);
        }
        if (s == 0) row->ttft_ms = (double)(clock_now_us() - t0) / 1e3;
    }
    uint64_t t1 = clock_now_us();
    for (uint32_t i = 0; i < b->decode && !rc; i++) {
        chain_begin(c);
        for (uint32_t s = 0; s < n; s++) chain_add(c, s, b->prefill + i, tokens + b->prefill + i, 1, true);
        rc = chain_run(c, &r, e);
    }
    uint64_t t2 = clock_now_us();
    free(tokens);
    if (rc) return rc;
    double bytes, macs;
    work_of_step(b, c->backend->ops, n, &bytes, &macs);
    double kv = (double)model_kv_bytes_per_token(&c->hparams, c->mode.kv, c->hparams.n_layers) *
                (b->prefill + b->decode / 2.0) * n;
    row->prefill_tps = (double)b->prefill * n / (double)(t1 - t0) * 1e6;
    row->decode_tps = (double)b->decode * n / (double)(t2 - t1) * 1e6;
    row->gb_s = (bytes + kv) * b->decode / (double)(t2 - t1) / 1e3;
    row->tops = 2 * macs * row->prefill_tps / 1e12;
    return ERR_OK;
}

// The same decode through the head: what the scheduler and its thread add to a step.
static int run_head(struct bench *b, struct bench_row *row, struct err *e) {
    struct head_config c = b->config;
    struct head *head;
    c.sequences = row->batch;
    int rc = head_new(&c, &head, e);
    if (rc) return rc;
    rc = head_wait_ready(head, 600000, e);
    struct gateway_ops ops = head_gateway_ops(head);
    struct reply *replies = calloc(row->batch, sizeof *replies);
    int32_t prompt[8];
    uint32_t n = 0, n_prompt = b->prefill < 8 ? b->prefill : 8;
    fill(prompt, n_prompt, b->model.hparams.n_vocab);
    struct gen_request q = {.prompt = prompt, .n_prompt = n_prompt, .max_tokens = b->decode, .sampling = {.top_p = 1}};
    while (!rc && replies && n < row->batch) {
        rc = reply_start(&replies[n], &ops, &q, e);
        n += !rc;
    }
    for (uint32_t i = 0; i < n; i++) reply_fini(&replies[i]);
    free(replies);
    double us, results;
    head_step_cost(head, &us, &results);
    row->head_us = results > 0 ? us / results : 0;
    head_free(head);
    return rc;
}

static void print_json(const struct bench *b, const struct bench_row *r) {
    struct buf name;
    buf_init(&name, 1 << 16);
    bool good = !buf_add_json_string(&name, b->model.name, strlen(b->model.name)) && buf_cstr(&name);
    printf("{\"model\": %s, \"isa\": \"%s\", \"threads\": %u, \"batch\": %u, \"prefill\": %u, \"decode\": %u, "
           "\"prefill_tps\": %.2f, \"ttft_ms\": %.3f, \"decode_tps\": %.2f, \"gb_s\": %.3f, \"read_gb_s\": %.3f, "
           "\"tops\": %.4f, \"peak_tops\": %.4f, \"head_us\": %.2f}\n",
           good ? (const char *)name.data : "\"\"", isa_name(b->isa), b->threads, r->batch, b->prefill, b->decode,
           r->prefill_tps, r->ttft_ms, r->decode_tps, r->gb_s, b->read_gb_s, r->tops, b->peak_tops, r->head_us);
    buf_fini(&name);
}

// A share of the roof, or nothing where no roof was measured.
static const char *share(double value, double roof, char text[16]) {
    if (roof > 0)
        snprintf(text, 16, "%.0f%%", 100 * value / roof);
    else
        snprintf(text, 16, "-");
    return text;
}

static void print_row(const struct bench *b, const struct bench_row *r) {
    char read[16], ops[16];
    if (b->json)
        print_json(b, r);
    else
        printf("%5u %12.1f %9.2f %12.1f %8.2f %7s %8.3f %7s %9.1f\n", r->batch, r->prefill_tps, r->ttft_ms,
               r->decode_tps, r->gb_s, share(r->gb_s, b->read_gb_s, read), r->tops, share(r->tops, b->peak_tops, ops),
               r->head_us);
    fflush(stdout);
}

static int run_batch(struct bench *b, uint32_t batch, struct err *e) {
    struct bench_row row = {.batch = batch};
    struct chain chain;
    const struct head_config *c = &b->config;
    struct chain_config k = {.model = &b->model,
                             .mode = c->mode,
                             .cpu = c->cpu,
                             .n_stages = c->n_stages,
                             .layers = c->layers,
                             .context = b->prefill + b->decode,
                             .sequences = batch,
                             .max_rows = c->chunk_rows > batch ? c->chunk_rows : batch,
                             .progress = c->progress};
    int rc = chain_open(&chain, &k, e);
    if (rc) return rc;
    rc = run_chain(b, &chain, &row, e);
    chain_close(&chain);
    if (!rc) rc = run_head(b, &row, e);
    if (!rc) print_row(b, &row);
    return rc;
}

static int bench_model(struct bench *b, const char *path, struct err *e) {
    int rc = open_model(path, &b->model, e);
    if (rc) return rc;
    b->compute.context = b->prefill + b->decode;
    if (b->compute.context > b->model.hparams.max_context)
        return err_set(e, ERR_USAGE, "-p and -g: %u tokens are over the model's window of %u", b->compute.context,
                       b->model.hparams.max_context);
    rc = compute_config(&b->compute, &b->model, b->json, &b->config, e);
    if (rc) return rc;
    b->threads = b->compute.threads ? b->compute.threads : cpu_count_usable();
    if (b->isa == ISA_AUTO) b->isa = isa_best();
    b->read_gb_s = roof_read_gb_s(b->threads);
    b->peak_tops = roof_int8_tops(b->isa, b->threads);
    if (!b->json) {
        printf(flags_text("%s, %s, %u threads; reads %.1f GB/s, int8 peak %.3f TOP/s; prompt %u, answer %u tokens\n",
                          "%s，%s，%u 线程；读内存 %.1f GB/s，int8 峰值 %.3f TOP/s；提示 %u，回答 %u token\n"),
               b->model.name, isa_name(b->isa), b->threads, b->read_gb_s, b->peak_tops, b->prefill, b->decode);
        printf("%5s %12s %9s %12s %8s %7s %8s %7s %9s\n", "batch", "prefill t/s", "ttft ms", "decode t/s", "GB/s",
               "of roof", "TOP/s", "of roof", "head us");
    }
    for (uint32_t i = 0; i < b->batches.n && !rc; i++) rc = run_batch(b, b->batches.value[i], e);
    return rc;
}

static int check(struct bench *b, int n_rest, struct err *e) {
    if (n_rest != 1 && !b->selftest) return err_set(e, ERR_USAGE, "MODEL is missing (or --self-test)");
    if (b->compute.context) return err_set(e, ERR_USAGE, "--context: the window is -p and -g together, leave it out");
    for (uint32_t i = 0; i < b->batches.n; i++)
        if (b->batches.value[i] < 1 || b->batches.value[i] > LIMIT_SEQS)
            return err_set(e, ERR_USAGE, "-b: %u is not from 1 to %d", b->batches.value[i], LIMIT_SEQS);
    struct backend_cpu_config cpu;
    int rc = compute_cpu(&b->compute, &cpu, e);
    if (!rc) b->isa = cpu.isa;
    return rc;
}

static int run(const struct command *c, int argc, char **argv) {
    struct bench b = {.compute = compute_defaults, .prefill = 512, .decode = 128, .batches = {.n = 1, .value = {1}}};
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&b.compute, compute);
    const struct flag own[] = {
        {"-p", FLAG_U32, &b.prefill, 1, LIMIT_CONTEXT / 2, "N",
         "tokens of the prompt (default 512); --context is -p and -g together",
         "提示 token 数（默认 512）；--context 即 -p 与 -g 之和"},
        {"-g", FLAG_U32, &b.decode, 1, LIMIT_CONTEXT / 2, "N", "tokens of the answer (default 128)",
         "回答 token 数（默认 128）"},
        {"-b", FLAG_U32S, &b.batches, 0, 0, "1,8,32", "sequences at once", "同时的序列数"},
        {"--split", FLAG_U32S, &b.compute.split, 0, 0, "4,4,4", "several stages, layers of each", "分成几段，各段层数"},
        {"--self-test", FLAG_BOOL, &b.selftest, 0, 0, "", "the 37 hashes of the numeric contract, each instruction set",
         "对每个指令集核对数值契约的 37 个哈希"},
        {"--json", FLAG_BOOL, &b.json, 0, 0, "", "print one JSON object per run", "每次运行输出一个 JSON 对象"},
        {0}};
    const struct flag *tables[] = {own, compute, NULL};
    const char *path = NULL;
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    if (!rc) rc = check(&b, n_rest, &e);
    log_setup(b.compute.verbose, true);
    if (!rc && b.selftest) rc = self_test(&b, &e);
    if (!rc && n_rest) rc = bench_model(&b, path, &e);
    open_model_close(&b.model);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_bench = {.name = "bench",
                                  .args = "MODEL [-p 512] [-g 128] [-b 1,8,32] [--self-test] [--json]",
                                  .en = "speed here, beside what the machine could do",
                                  .zh = "测速，并与机器上限对比",
                                  .run = run};
