// loom eval: perplexity over a text file, or the share of exact answers over a JSON file of questions.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cmd/chain.h"
#include "cmd/cmd.h"
#include "cmd/reply.h"
#include "os/file.h"
#include "text/detok.h"

enum { MAX_FILE = 256 << 20 };

struct eval {
    struct compute_flags compute;
    bool json;
    uint32_t n; // tokens of an answer
    struct opened_model model;
    struct text_side text;
};

// ---- perplexity

static double row_nll(const float *logits, uint32_t n_vocab, int32_t target) {
    double best = logits[0], sum = 0;
    for (uint32_t i = 1; i < n_vocab; i++) best = logits[i] > best ? logits[i] : best;
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp(logits[i] - best);
    return log(sum) + best - logits[target];
}

// Windows of the context's length side by side; the first token of each is given, the others are predicted.
static int perplexity(struct eval *v, const struct head_config *c, const struct ids *ids, struct err *e) {
    struct chain_config k = {.model = &v->model,
                             .mode = c->mode,
                             .cpu = c->cpu,
                             .n_stages = c->n_stages,
                             .layers = c->layers,
                             .context = c->context,
                             .sequences = 1,
                             .max_rows = c->chunk_rows,
                             .progress = c->progress};
    struct chain chain;
    int rc = chain_open(&chain, &k, e);
    if (rc) return rc;
    uint32_t n_vocab = chain.hparams.n_vocab;
    float *logits = malloc((size_t)c->chunk_rows * n_vocab * sizeof *logits);
    double sum = 0;
    uint64_t count = 0;
    if (!logits) rc = err_set(e, ERR_NOMEM, "no memory for logits");
    for (size_t at = 0; at + 1 < ids->n && !rc; at += c->context) {
        for (uint32_t i = 0; i < chain.n_stages; i++) stage_reset(chain.stage[i]);
        size_t window = ids->n - at < c->context ? ids->n - at : c->context;
        for (size_t p = 0; p < window && !rc; p += c->chunk_rows) {
            uint32_t rows = (uint32_t)(window - p < c->chunk_rows ? window - p : c->chunk_rows);
            chain_begin(&chain);
            chain_add(&chain, 0, (uint32_t)p, ids->data + at + p, rows, false);
            rc = chain_run_f32(&chain, logits, NULL, e);
            for (uint32_t r = 0; r < rows && !rc && p + r + 1 < window; r++, count++)
                sum += row_nll(logits + (size_t)r * n_vocab, n_vocab, ids->data[at + p + r + 1]);
        }
    }
    free(logits);
    chain_close(&chain);
    if (rc) return rc;
    if (!count) return err_set(e, ERR_FORMAT, "the text has fewer than two tokens");
    double nll = sum / (double)count;
    if (v->json)
        printf("{\"perplexity\": %.6f, \"nll\": %.6f, \"tokens\": %llu}\n", exp(nll), nll, (unsigned long long)count);
    else
        printf(flags_text("perplexity %.4f (%.4f nats a token over %llu tokens)\n",
                          "困惑度 %.4f（每 token %.4f 奈特，共 %llu 个 token）\n"),
               exp(nll), nll, (unsigned long long)count);
    return ERR_OK;
}

// ---- questions

static int question_ids(struct eval *v, const json_t *q, struct ids *out, struct err *e) {
    char *body = json_dumps(q, JSON_COMPACT);
    if (!body) return err_set(e, ERR_NOMEM, "no memory for a question");
    int rc = chat_request(&v->text, body, false, out, NULL, e);
    free(body);
    return rc;
}

static int answer_text(struct eval *v, struct head *head, const struct ids *ids, uint32_t context, struct buf *out,
                       struct err *e) {
    const struct hparams *h = &v->model.hparams;
    if (ids->n >= context) return err_set(e, ERR_LIMIT, "%zu tokens are over the window of %u", ids->n, context);
    uint32_t room = context - (uint32_t)ids->n;
    struct gen_request q = {.prompt = ids->data,
                            .n_prompt = (uint32_t)ids->n,
                            .sampling = {.top_p = 1},
                            .max_tokens = v->n < room ? v->n : room,
                            .n_stop_ids = h->n_eos};
    memcpy(q.stop_ids, h->eos_ids, h->n_eos * sizeof h->eos_ids[0]);
    struct gateway_ops ops = head_gateway_ops(head);
    struct detok *d = detok_new(v->text.tokenizer);
    struct reply a;
    int rc = d ? reply_start(&a, &ops, &q, e) : err_set(e, ERR_NOMEM, "no memory for an answer");
    if (rc) {
        detok_free(d);
        return rc;
    }
    int32_t token;
    size_t len;
    while (reply_next(&a, &token)) {
        const char *text = detok_feed(d, token, &len);
        if (!rc) rc = buf_add(out, text, len);
    }
    const char *text = detok_flush(d, &len);
    if (!rc) rc = buf_add(out, text, len);
    if (!rc && a.finish == GEN_FAILED) rc = err_set(e, a.err.code, "%s", a.err.text);
    reply_fini(&a);
    detok_free(d);
    return rc;
}

// An entry: {"messages": [...], "tools": [...]?, "greedy_text" or "expected": "..."}. greedy_text wins.
static int ask_all(struct eval *v, struct head *head, uint32_t context, const json_t *list, struct err *e) {
    size_t i, right = 0;
    json_t *q;
    json_array_foreach(list, i, q) {
        const char *want = json_string_value(json_object_get(q, "greedy_text"));
        if (!want) want = json_string_value(json_object_get(q, "expected"));
        if (!want || !json_is_array(json_object_get(q, "messages")))
            return err_set(e, ERR_FORMAT, "entry %zu: `messages` and `greedy_text` or `expected` are needed", i);
        struct ids ids;
        struct buf text;
        ids_init(&ids, LIMIT_CONTEXT);
        buf_init(&text, 64 << 20);
        int rc = question_ids(v, q, &ids, e);
        if (!rc) rc = answer_text(v, head, &ids, context, &text, e);
        bool same = !rc && text.len_bytes == strlen(want) && !memcmp(text.data, want, text.len_bytes);
        right += same;
        if (!rc && !same && !v->json)
            printf("%s %zu\n  %s: %s\n  %s: %.*s\n", flags_text("entry", "第"), i, flags_text("want", "应为"), want,
                   flags_text("got ", "得到"), (int)text.len_bytes, (const char *)text.data);
        ids_fini(&ids);
        buf_fini(&text);
        if (rc) return err_prefix(e, "entry %zu", i);
    }
    size_t n = json_array_size(list);
    if (v->json)
        printf("{\"right\": %zu, \"of\": %zu}\n", right, n);
    else
        printf(flags_text("%zu of %zu answers are as expected\n", "%zu / %zu 个回答符合预期\n"), right, n);
    return ERR_OK;
}

static int questions(struct eval *v, const struct head_config *c, const json_t *list, struct err *e) {
    struct head *head;
    if (!v->text.chat_template) return err_set(e, ERR_UNSUPPORTED, "the model has no chat template for the questions");
    struct head_config one = *c;
    one.sequences = 1;
    int rc = head_new(&one, &head, e);
    if (rc) return rc;
    rc = head_wait_ready(head, 600000, e);
    if (!rc) rc = ask_all(v, head, c->context, list, e);
    head_free(head);
    return rc;
}

static int eval_file(struct eval *v, const char *model, const char *path, struct err *e) {
    struct head_config c;
    char *text = NULL;
    size_t len;
    int rc = open_model(model, &v->model, e);
    if (!rc) rc = text_open(&v->model, NULL, 1, &v->text, e);
    if (!rc) rc = compute_config(&v->compute, &v->model, false, &c, e);
    if (!rc) rc = file_read(path, MAX_FILE, &text, &len, e);
    if (rc) return rc;
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".json")) {
        json_t *list = json_loadb(text, len, 0, NULL);
        rc = json_is_array(list) ? questions(v, &c, list, e) : err_set(e, ERR_FORMAT, "not a JSON array of questions");
        if (rc) err_prefix(e, "%s", path);
        json_decref(list);
    } else {
        struct ids ids;
        ids_init(&ids, SIZE_MAX / sizeof(int32_t));
        rc = tokenizer_encode(v->text.tokenizer, text, len, false, &ids, e);
        if (!rc) rc = perplexity(v, &c, &ids, e);
        if (rc) err_prefix(e, "%s", path);
        ids_fini(&ids);
    }
    free(text);
    return rc;
}

static int run(const struct command *c, int argc, char **argv) {
    struct eval v = {.compute = compute_defaults, .n = 256};
    struct flag compute[COMPUTE_FLAGS];
    compute_flags_table(&v.compute, compute);
    const struct flag own[] = {
        {"-n", FLAG_U32, &v.n, 1, LIMIT_CONTEXT, "N", "tokens of an answer at most (default 256)",
         "每个回答最多 token 数（默认 256）"},
        {"--split", FLAG_U32S, &v.compute.split, 0, 0, "4,4,4", "several stages, layers of each", "分成几段，各段层数"},
        {"--json", FLAG_BOOL, &v.json, 0, 0, "", "print one JSON object", "输出一个 JSON 对象"},
        {0}};
    const struct flag *tables[] = {own, compute, NULL};
    const char *rest[2];
    int n_rest;
    struct err e;
    int rc = flags_parse(c, tables, argc, argv, rest, 2, &n_rest, &e);
    if (!rc && n_rest != 2)
        rc = err_set(&e, ERR_USAGE, "MODEL and FILE are needed: a text, or a .json array of questions");
    log_setup(v.compute.verbose, true);
    if (!rc) rc = eval_file(&v, rest[0], rest[1], &e);
    text_close(&v.text);
    open_model_close(&v.model);
    return rc ? flags_fail(c, &e) : EXIT_FINE;
}

const struct command cmd_eval = {.name = "eval",
                                 .args = "MODEL FILE",
                                 .en = "perplexity of a text, or score over questions",
                                 .zh = "计算文本困惑度，或按问题打分",
                                 .run = run};
