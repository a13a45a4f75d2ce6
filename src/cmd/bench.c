// loom bench: how fast a model runs here, beside what the machine could do; and the self-test of the numerics.
#include <stdio.h>

#include "cmd/bench.h"
#include "compute/selftest.h"
#include "os/clock.h"
#include "os/cpu.h"

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
    struct bench_row rows[FLAG_LIST_MAX] = {{0}};
    for (uint32_t i = 0; i < b->batches.n; i++) rows[i].batch = b->batches.value[i];
    return bench_run(b, rows, bench_print, e);
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
