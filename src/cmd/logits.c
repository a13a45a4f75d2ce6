// loom logits: the logits of every position of a prompt, for comparisons with other implementations.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "cmd/chain.h"
#include "cmd/cmd.h"
#include "cmd/out_file.h"

struct logits_flags {
    struct compute_flags compute;
    const char *ids_path, *out_path;
    bool verify, hidden;
};

struct logits {
    struct logits_flags flags;
    struct opened_model model;
    struct ids ids;
    struct chain chain;
    float *logits; // [T][V]
    float *hidden; // [L + 1][T][H]
};

static int compute(struct logits *l, struct err *e) {
    const struct hparams *h = &l->chain.hparams;
    size_t n = l->ids.n, chunk = l->chain.max_rows;
    float *part = l->flags.hidden ? malloc((h->n_layers + 1) * chunk * h->hidden * sizeof *part) : NULL;
    l->logits = malloc(n * h->n_vocab * sizeof *l->logits);
    if (l->flags.hidden) l->hidden = malloc((h->n_layers + 1) * n * h->hidden * sizeof *l->hidden);
    int rc = ERR_OK;
    if (!l->logits || (l->flags.hidden && (!l->hidden || !part)))
        rc = err_set(e, ERR_NOMEM, "no memory for the logits of %zu positions", n);
    for (size_t at = 0; at < n && !rc; at += chunk) {
        uint32_t k = (uint32_t)(n - at < chunk ? n - at : chunk);
        chain_begin(&l->chain);
        chain_add(&l->chain, 0, (uint32_t)at, l->ids.data + at, k, false);
        rc = chain_run_f32(&l->chain, l->logits + at * h->n_vocab, part, e);
        for (uint32_t i = 0; i <= h->n_layers && part && !rc; i++)
            memcpy(l->hidden + ((size_t)i * n + at) * h->hidden, part + (size_t)i * k * h->hidden,
                   (size_t)k * h->hidden * sizeof(float));
    }
    free(part);
    return rc;
}

// What is half written must not stand under the file's name, except where the name is a pipe or a device.
static FILE *open_out(const char *path, char *temp, size_t temp_bytes, struct err *e) {
    struct stat st;
    FILE *f = NULL;
    temp[0] = 0;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        f = fopen(path, "wb");
    } else if (snprintf(temp, temp_bytes, "%s.XXXXXX", path) < (int)temp_bytes) {
        mode_t mask = umask(0);
        umask(mask);
        int fd = mkostemp(temp, O_CLOEXEC);
        if (fd >= 0 && fchmod(fd, 0666 & ~mask) == 0) f = fdopen(fd, "wb");
        if (!f && fd >= 0) {
            close(fd);
            unlink(temp);
        }
    } else {
        errno = ENAMETOOLONG;
    }
    if (!f) err_set(e, ERR_IO, "--out: %s cannot be written: %s", path, strerror(errno));
    return f;
}

// safetensors: u64 length of the JSON header, the header, the bytes.
static int write_out(const struct logits *l, struct err *e) {
    const struct hparams *h = &l->chain.hparams;
    size_t n = l->ids.n, at = n * h->n_vocab * sizeof(float), rows = n * h->hidden * sizeof(float);
    struct buf b;
    buf_init(&b, 1 << 20);
    int rc =
        buf_addf(&b, "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%u],\"data_offsets\":[0,%zu]}", n, h->n_vocab, at);
    for (uint32_t i = 0; i <= h->n_layers && l->hidden && !rc; i++, at += rows)
        rc = buf_addf(&b, ",\"hidden.%u\":{\"dtype\":\"F32\",\"shape\":[%zu,%u],\"data_offsets\":[%zu,%zu]}", i, n,
                      h->hidden, at, at + rows);
    if (!rc) rc = buf_addf(&b, "}");
    while (!rc && b.len_bytes % 8) rc = buf_addf(&b, " ");
    if (rc) err_set(e, rc, "no memory for a header");
    char temp[LIMIT_PATH];
    FILE *f = rc ? NULL : open_out(l->flags.out_path, temp, sizeof temp, e);
    if (!f) {
        buf_fini(&b);
        return rc ? rc : ERR_IO;
    }
    uint64_t len = b.len_bytes; // little-endian machines only (NUMERICS 10)
    bool good = fwrite(&len, sizeof len, 1, f) == 1 && fwrite(b.data, 1, len, f) == len &&
                fwrite(l->logits, sizeof(float) * h->n_vocab, n, f) == n &&
                (!l->hidden || fwrite(l->hidden, rows, h->n_layers + 1, f) == h->n_layers + 1);
    good &= fclose(f) == 0;
    if (good && temp[0]) good = rename(temp, l->flags.out_path) == 0;
    if (!good) rc = err_set(e, ERR_IO, "--out: %s: write failed: %s", l->flags.out_path, strerror(errno));
    if (!good && temp[0]) unlink(temp);
    buf_fini(&b);
    return rc;
}

static int open_all(struct logits *l, const char *path, struct err *e) {
    struct logits_flags *f = &l->flags;
    int rc = out_file_refuse_input(f->out_path, path, e);
    if (!rc) rc = out_file_refuse_input(f->out_path, f->ids_path, e);
    if (!rc) rc = open_model(path, &l->model, e);
    if (!rc) rc = ids_read_file(f->ids_path, l->model.hparams.n_vocab, &l->ids, e);
    if (rc) return rc;
    f->compute.context = (uint32_t)l->ids.n;
    struct head_config c;
    rc = compute_config(&f->compute, &l->model, false, &c, e);
    if (rc) return rc;
    if (f->verify) {
        c.mode = (struct run_mode){.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true};
        c.cpu.isa = ISA_REF;
    }
    struct chain_config k = {.model = &l->model,
                             .mode = c.mode,
                             .cpu = c.cpu,
                             .n_stages = c.n_stages,
                             .layers = c.layers,
                             .context = c.context,
                             .sequences = 1,
                             .max_rows = c.chunk_rows,
                             .progress = c.progress};
    return chain_open(&l->chain, &k, e);
}

static int run(const struct command *c, int argc, char **argv) {
    struct logits l = {.flags = {.compute = compute_defaults}};
    struct logits_flags *f = &l.flags;
    struct flag compute_table[COMPUTE_FLAGS];
    compute_flags_table(&f->compute, compute_table);
    const struct flag own[] = {
        {"--ids", FLAG_STRING, &f->ids_path, 0, 0, "FILE", "a JSON array of token ids", "JSON 数组形式的 token id"},
        {"--out", FLAG_STRING, &f->out_path, 0, 0, "FILE", "safetensors with F32 [T,V] `logits`",
         "输出 safetensors，含 F32 [T,V] 的 logits"},
        {"--verify", FLAG_BOOL, &f->verify, 0, 0, "", "the plain mathematics: float weights and KV, nothing rounded",
         "纯数学：浮点权重与 KV，不作舍入"},
        {"--hidden", FLAG_BOOL, &f->hidden, 0, 0, "", "add hidden.0 .. hidden.L", "附带 hidden.0 .. hidden.L"},
        {"--split", FLAG_U32S, &f->compute.split, 0, 0, "4,4,4", "several stages, layers of each",
         "分成几段，各段层数"},
        {0}};
    const struct flag *tables[] = {own, compute_table, NULL};
    const char *path;
    int n_rest;
    struct err e;
    ids_init(&l.ids, LIMIT_CONTEXT);
    int rc = flags_parse(c, tables, argc, argv, &path, 1, &n_rest, &e);
    if (!rc && n_rest != 1) rc = err_set(&e, ERR_USAGE, "MODEL is missing");
    if (!rc && !f->ids_path) rc = err_set(&e, ERR_USAGE, "--ids: a file with token ids is missing");
    if (!rc && !f->out_path) rc = err_set(&e, ERR_USAGE, "--out: the file to write is missing");
    if (!rc && f->verify && (f->compute.weights || f->compute.kv))
        rc = err_set(&e, ERR_USAGE, "--verify: goes without --weights and --kv, it is float throughout");
    log_setup(f->compute.verbose, true);
    if (!rc) rc = open_all(&l, path, &e);
    if (!rc) rc = compute(&l, &e);
    if (!rc) rc = write_out(&l, &e);
    chain_close(&l.chain);
    open_model_close(&l.model);
    ids_fini(&l.ids);
    free(l.logits);
    free(l.hidden);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_logits = {.name = "logits",
                                   .args = "MODEL --ids FILE --out FILE.safetensors [--verify] [--hidden]",
                                   .en = "write the logits of every position",
                                   .zh = "输出每个位置的 logits",
                                   .run = run};
