// What loom bench says: for each batch a table, or a line of JSON with all of it.
#include "cmd/bench.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

// Bytes, multiply-adds and time of an operation, or of a whole phase.
struct effort {
    double us, bytes, macs;
};

static struct effort effort_of(const struct bench_phase *p, enum model_op op) {
    return (struct effort){(double)p->op_ns[op] / 1e3, p->work.bytes[op], p->work.macs[op]};
}

static struct effort effort_of_all(const struct bench_phase *p) {
    struct effort all = {.us = p->us};
    for (int i = 0; i < OP_N; i++) {
        all.bytes += p->work.bytes[i];
        all.macs += p->work.macs[i];
    }
    return all;
}

static double gb_s(const struct effort *x) { return x->us > 0 ? x->bytes / x->us / 1e3 : 0; }
static double tops(const struct effort *x) { return x->us > 0 ? 2 * x->macs / x->us / 1e6 : 0; }
static double ratio(double value, double of) { return of > 0 ? value / of : 0; }

// "q8_0": the type that most of the weights have.
static void weights_name(const struct bench *b, char name[16]) {
    snprintf(name, 16, "%s", dtype_info(b->matrices.most)->name);
    for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
}

// ---- JSON

static json_t *rounded(double value, double unit) { return json_real(unit * (double)(long long)(value / unit + 0.5)); }

// Names of folders may be no UTF-8.
static json_t *text_json(const char *text) {
    json_t *j = json_string(text);
    return j ? j : json_string("");
}

static json_t *effort_json(const struct bench_roof *roof, const struct effort *x) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ms", rounded(x->us / 1e3, 1e-3), "bytes",
                     json_integer((json_int_t)x->bytes), "gb_s", rounded(gb_s(x), 1e-3), "read_share",
                     rounded(ratio(gb_s(x), roof->read_gb_s), 1e-4), "int8_ops",
                     json_integer((json_int_t)(2 * x->macs)), "tops", rounded(tops(x), 1e-5), "peak_share",
                     rounded(ratio(tops(x), roof->peak_tops), 1e-4));
}

static json_t *phase_json(const struct bench_phase *p) {
    struct effort all = effort_of_all(p);
    json_t *phase = effort_json(&p->roof, &all), *by_op = json_object();
    for (enum model_op i = 0; i < OP_N; i++) {
        struct effort x = effort_of(p, i);
        json_t *op = effort_json(&p->roof, &x);
        json_object_set_new(op, "time_share", rounded(ratio(x.us, all.us), 1e-4));
        json_object_set_new(by_op, model_op_name(i), op);
    }
    json_object_set_new(phase, "read_gb_s", rounded(p->roof.read_gb_s, 1e-3));
    json_object_set_new(phase, "peak_tops", rounded(p->roof.peak_tops, 1e-5));
    json_object_set_new(phase, "tps", rounded(p->us > 0 ? p->tokens / p->us * 1e6 : 0, 1e-2));
    json_object_set_new(phase, "steps", json_integer((json_int_t)p->steps));
    json_object_set_new(phase, "ops", by_op);
    return phase;
}

static void print_json(const struct bench *b, const struct bench_row *r) {
    char weights[16];
    struct effort prefill = effort_of_all(&r->prefill), decode = effort_of_all(&r->decode);
    weights_name(b, weights);
    json_t *row = json_pack("{s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o}}",
                            "model", text_json(b->model.name), "weights", weights, "isa", isa_name(b->isa), "threads",
                            (int)b->threads, "batch", (int)r->batch, "prefill", (int)b->prefill, "decode",
                            (int)b->decode, "prefill_tps", rounded(r->prefill.tokens / r->prefill.us * 1e6, 1e-2),
                            "ttft_ms", rounded(r->ttft_ms, 1e-3), "decode_tps",
                            rounded(r->decode.tokens / r->decode.us * 1e6, 1e-2), "gb_s", rounded(gb_s(&decode), 1e-3),
                            "read_gb_s", rounded(r->decode.roof.read_gb_s, 1e-3), "tops", rounded(tops(&prefill), 1e-5),
                            "peak_tops", rounded(r->prefill.roof.peak_tops, 1e-5), "head_us", rounded(r->head_us, 1e-2),
                            "phases", "prefill", phase_json(&r->prefill), "decode", phase_json(&r->decode));
    char *text = row ? json_dumps(row, JSON_REAL_PRECISION(9)) : NULL;
    printf("%s\n", text ? text : "{}");
    free(text);
    json_decref(row);
}

// ---- A table

// A share in per cent, or nothing where there is none.
static const char *percent(double value, double of, char text[16]) {
    if (of > 0 && value > 0)
        snprintf(text, 16, "%.0f%%", 100 * value / of);
    else
        snprintf(text, 16, "-");
    return text;
}

static const char *number(double value, int digits, char text[16]) {
    if (value > 0)
        snprintf(text, 16, "%.*f", digits, value);
    else
        snprintf(text, 16, "-");
    return text;
}

// times: how many steps or prompts the time is divided by.
static void print_effort(const struct bench_roof *roof, const char *name, double tps, const struct effort *x,
                         double times, double all_us) {
    char t[7][16];
    printf("  %-11s %10s %10.3f %6s %8s %5s %9s %5s\n", name, number(tps, 1, t[0]), x->us / times / 1e3,
           percent(x->us, all_us, t[1]), number(gb_s(x), 2, t[2]), percent(gb_s(x), roof->read_gb_s, t[3]),
           number(tops(x), 4, t[4]), percent(tops(x), roof->peak_tops, t[5]));
}

static void print_phase(const char *name, const char *of, const struct bench_phase *p, double times) {
    struct effort all = effort_of_all(p);
    printf(flags_text("%s: %.1f GB/s and %.3f TOP/s at best\n", "%s：上限 %.1f GB/s、%.3f TOP/s\n"), name,
           p->roof.read_gb_s, p->roof.peak_tops);
    printf("%-13s %10s %10s %6s %8s %5s %9s %5s\n", "", "tokens/s", of, "share", "GB/s", "roof", "TOP/s", "peak");
    print_effort(&p->roof, "all", p->tokens / p->us * 1e6, &all, times, p->us);
    for (enum model_op i = 0; i < OP_N; i++) {
        struct effort x = effort_of(p, i);
        if (x.us > 0) print_effort(&p->roof, model_op_name(i), 0, &x, times, p->us);
    }
}

static void print_table(const struct bench *b, const struct bench_row *r) {
    char weights[16];
    weights_name(b, weights);
    printf(
        flags_text("%s, %s, %s, %u threads, %u at once; prompt %u, answer %u tokens; first token after %.1f ms, head "
                   "%.1f us a step\n",
                   "%s，%s，%s，%u 线程，并发 %u；提示 %u，回答 %u token；首 token %.1f 毫秒，调度每步 %.1f 微秒\n"),
        b->model.name, weights, isa_name(b->isa), b->threads, r->batch, b->prefill, b->decode, r->ttft_ms, r->head_us);
    print_phase("prefill", "ms/prompt", &r->prefill, r->batch);
    print_phase("decode", "ms/step", &r->decode, r->decode.steps);
    printf("\n");
}

void bench_print(const struct bench *b, const struct bench_row *r) {
    if (b->json)
        print_json(b, r);
    else
        print_table(b, r);
    fflush(stdout);
}
