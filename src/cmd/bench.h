// loom bench, between its files: what was asked, and what was measured.
#pragma once
#include "cmd/chain.h"
#include "cmd/cmd.h"

struct bench {
    struct compute_flags compute;
    uint32_t prefill, decode; // tokens of prompt and answer
    struct flag_u32s batches;
    bool selftest, json;
    struct opened_model model;
    struct head_config config;
    uint32_t threads;
    enum isa isa;
    struct model_matrices matrices;
};

// What the machine can do at most at a time: other machines on the same memory make it more or less.
struct bench_roof {
    double read_gb_s, peak_tops;
};

// All prompts of a batch, or all decode steps.
struct bench_phase {
    double tokens, steps, us;
    struct bench_roof roof; // the mean of before and after
    uint64_t op_ns[OP_N];   // OP_REST: all that is no other operation
    struct model_work work;
};

struct bench_row {
    uint32_t batch;
    struct bench_phase prefill, decode;
    double ttft_ms; // of the first prompt
    double head_us; // what the head's thread adds to a step
};

// bench_run.c: measures rows[b->batches.n] and hands each to done as soon as it is complete. b is ready but for the
// matrices, which come first.
int bench_run(struct bench *b, struct bench_row *rows, void (*done)(const struct bench *b, const struct bench_row *r),
              struct err *e) MUST_CHECK;
// bench_print.c: a table for people, or a line of JSON.
void bench_print(const struct bench *b, const struct bench_row *r);
