// The layer against the same mathematics written down a second time, in double and without any of the code under test:
// texts longer than a segment of 1024 keys, with and without a window, and rows longer than a segment of 1024 values.
#include "os/thread.h"
#include "unit/engine/synth.h"

#include <math.h>

struct plain {
    const struct synth *s;
    const struct hparams *h;
    uint32_t n;    // positions
    double *x;     // [n][hidden]
    double *k, *v; // [n][n_kv_heads * head_dim] of one layer
};

static const float *tensor_of(const struct plain *p, const char *fmt, uint32_t layer) {
    char name[128];
    snprintf(name, sizeof name, fmt, layer);
    const struct tensor *t = tensors_find(p->s->tensors, name);
    return t ? (const float *)(const void *)t->data : NULL;
}

#define LAYER(p, i, what) tensor_of(p, "model.layers.%u." what, i)

static void norm(const struct plain *p, const float *w, const double *x, double *y) {
    double sum = 0, one = p->h->norm_plus_one ? 1 : 0;
    for (uint32_t i = 0; i < p->h->hidden; i++) sum += x[i] * x[i];
    double r = 1 / sqrt(sum / p->h->hidden + (double)p->h->rms_eps);
    for (uint32_t i = 0; i < p->h->hidden; i++) y[i] = x[i] * r * ((double)w[i] + one);
}

static void times(const float *w, const float *bias, const double *x, uint32_t n, uint32_t k, double *y) {
    for (uint32_t i = 0; i < n; i++) {
        y[i] = bias ? (double)bias[i] : 0;
        for (uint32_t j = 0; j < k; j++) y[i] += (double)w[(size_t)i * k + j] * x[j];
    }
}

static void turn(const struct hparams *h, double *x, uint32_t n_heads, uint32_t pos) {
    uint32_t half = h->head_dim / 2;
    for (uint32_t head = 0; head < n_heads; head++, x += h->head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            double a = pos * pow(10000, -(double)i / half), c = cos(a), s = sin(a), u = x[i], v = x[i + half];
            x[i] = u * c - v * s;
            x[i + half] = v * c + u * s;
        }
    }
}

static double cap(double x, float by) { return by == 0 ? x : (double)by * tanh(x / (double)by); }

static void attend(const struct plain *p, uint32_t layer, const double *q, uint32_t pos, double *out) {
    const struct hparams *h = p->h;
    uint32_t d = h->head_dim, kv = h->n_kv_heads * d, first = 0;
    if (h->window_layer[layer] && pos >= h->window) first = pos - h->window + 1;
    double *score = malloc((pos + 1) * sizeof *score);
    for (uint32_t head = 0; head < h->n_heads; head++) {
        uint32_t at = head / (h->n_heads / h->n_kv_heads) * d;
        double most = -1e300, sum = 0;
        for (uint32_t j = first; j <= pos; j++) {
            double dot = 0;
            for (uint32_t i = 0; i < d; i++) dot += q[head * d + i] * p->k[(size_t)j * kv + at + i];
            score[j] = cap(dot / sqrt(d), h->attn_softcap);
            most = fmax(most, score[j]);
        }
        memset(out + head * d, 0, d * sizeof *out);
        for (uint32_t j = first; j <= pos; j++) {
            double weight = exp(score[j] - most);
            sum += weight;
            for (uint32_t i = 0; i < d; i++) out[head * d + i] += weight * p->v[(size_t)j * kv + at + i];
        }
        for (uint32_t i = 0; i < d; i++) out[head * d + i] /= sum;
    }
    free(score);
}

static double act(const struct hparams *h, double g) {
    if (h->act == ACT_SILU) return g / (1 + exp(-g));
    return g / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)));
}

static void add_back(const struct plain *p, const float *post, double *y, double *x) {
    if (post) norm(p, post, y, y);
    for (uint32_t i = 0; i < p->h->hidden; i++) x[i] += y[i];
}

static void layer(const struct plain *p, uint32_t l) {
    const struct hparams *h = p->h;
    uint32_t q_n = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    bool gemma = h->norms == NORM_PRE_POST;
    const float *post_attn = LAYER(p, l, "post_attention_layernorm.weight");
    const float *before_mlp = gemma ? LAYER(p, l, "pre_feedforward_layernorm.weight") : post_attn;
    double *in = malloc(h->hidden * sizeof *in), *y = malloc(h->hidden * sizeof *y);
    double *q = malloc(q_n * sizeof *q), *out = malloc(q_n * sizeof *out);
    double *gate = malloc(h->ffn * sizeof *gate), *up = malloc(h->ffn * sizeof *up);
    for (uint32_t pos = 0; pos < p->n; pos++) {
        double *x = p->x + (size_t)pos * h->hidden, *k = p->k + (size_t)pos * kv, *v = p->v + (size_t)pos * kv;
        norm(p, LAYER(p, l, "input_layernorm.weight"), x, in);
        times(LAYER(p, l, "self_attn.q_proj.weight"), LAYER(p, l, "self_attn.q_proj.bias"), in, q_n, h->hidden, q);
        times(LAYER(p, l, "self_attn.k_proj.weight"), LAYER(p, l, "self_attn.k_proj.bias"), in, kv, h->hidden, k);
        times(LAYER(p, l, "self_attn.v_proj.weight"), LAYER(p, l, "self_attn.v_proj.bias"), in, kv, h->hidden, v);
        turn(h, q, h->n_heads, pos);
        turn(h, k, h->n_kv_heads, pos);
        if (h->q_beta != 0)
            for (uint32_t i = 0; i < q_n; i++)
                q[i] *= 1 + (double)h->q_beta * log(1 + floor((double)pos / h->q_original));
        attend(p, l, q, pos, out);
        times(LAYER(p, l, "self_attn.o_proj.weight"), LAYER(p, l, "self_attn.o_proj.bias"), out, h->hidden, q_n, y);
        add_back(p, gemma ? post_attn : NULL, y, x);
        norm(p, before_mlp, x, in);
        times(LAYER(p, l, "mlp.gate_proj.weight"), LAYER(p, l, "mlp.gate_proj.bias"), in, h->ffn, h->hidden, gate);
        times(LAYER(p, l, "mlp.up_proj.weight"), LAYER(p, l, "mlp.up_proj.bias"), in, h->ffn, h->hidden, up);
        for (uint32_t i = 0; i < h->ffn; i++) gate[i] = act(h, gate[i]) * up[i];
        times(LAYER(p, l, "mlp.down_proj.weight"), LAYER(p, l, "mlp.down_proj.bias"), gate, h->hidden, h->ffn, y);
        add_back(p, LAYER(p, l, "post_feedforward_layernorm.weight"), y, x);
    }
    free(in);
    free(y);
    free(q);
    free(out);
    free(gate);
    free(up);
}

// logits [n][n_vocab].
static double *plain_logits(const struct synth *s, const int32_t *ids, uint32_t n) {
    const struct hparams *h = &s->h;
    uint32_t kv = h->n_kv_heads * h->head_dim;
    struct plain p = {.s = s, .h = h, .n = n};
    const float *embed = tensor_of(&p, "model.embed_tokens.weight", 0), *head = tensor_of(&p, "lm_head.weight", 0);
    p.x = malloc((size_t)n * h->hidden * sizeof *p.x);
    p.k = malloc((size_t)n * kv * sizeof *p.k);
    p.v = malloc((size_t)n * kv * sizeof *p.v);
    double *logits = malloc((size_t)n * h->n_vocab * sizeof *logits);
    double scale = h->norms == NORM_PRE_POST ? sqrt(h->hidden) : 1;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < h->hidden; i++)
            p.x[(size_t)r * h->hidden + i] = scale * (double)embed[(size_t)ids[r] * h->hidden + i];
    for (uint32_t l = 0; l < h->n_layers; l++) layer(&p, l);
    for (uint32_t r = 0; r < n; r++) {
        double *x = p.x + (size_t)r * h->hidden, *y = logits + (size_t)r * h->n_vocab;
        norm(&p, tensor_of(&p, "model.norm.weight", 0), x, x);
        times(head ? head : embed, NULL, x, h->n_vocab, h->hidden, y);
        for (uint32_t i = 0; i < h->n_vocab; i++) y[i] = cap(y[i], h->final_softcap);
    }
    free(p.x);
    free(p.k);
    free(p.v);
    return logits;
}

static float *stage_logits(struct synth *s, struct run_mode mode, enum isa isa, const int32_t *ids, uint32_t n,
                           uint32_t chunk) {
    struct backend *be;
    struct err e;
    struct model_part *part;
    struct stage *stage;
    struct stage_config c = {.hparams = &s->h,
                             .mode = mode,
                             .b = s->h.n_layers,
                             .n_kv_blocks = n / LIMIT_BLOCK_TOKENS + 1,
                             .max_rows = chunk,
                             .max_context = n};
    if (backend_cpu_new(&(struct backend_cpu_config){.isa = isa}, &be, &e)) fail_msg("%s", e.text);
    if (model_part_load(&s->h, &mode, s->tensors, be, 0, s->h.n_layers, NULL, &part, &e)) fail_msg("%s", e.text);
    if (stage_new(&c, be, part, &stage, &e)) fail_msg("%s", e.text);
    float *logits = malloc((size_t)n * s->h.n_vocab * sizeof *logits);
    struct step *step = step_new();
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        step_clear(step);
        synth_rows(step, 0, at, rows, 0);
        memcpy(step->tokens, ids + at, rows * sizeof *ids);
        if (stage_run_f32(stage, step, NULL, NULL, logits + (size_t)at * s->h.n_vocab, NULL, &e))
            fail_msg("%s", e.text);
    }
    step_free(step);
    stage_free(stage);
    be->ops->free(be);
    return logits;
}

static double error_of(const float *have, const double *want, size_t n) {
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++) {
        d += (have[i] - want[i]) * (have[i] - want[i]);
        r += want[i] * want[i];
    }
    return sqrt(d / r);
}

// Matrices that neither blow rows up nor let them shrink.
static void scale_matrices(struct synth *s) {
    for (uint32_t i = 0; i < tensors_count(s->tensors); i++) {
        const struct tensor *t = tensors_at(s->tensors, i);
        float *w = (float *)(uintptr_t)t->data;
        for (uint64_t j = 0; t->n_dims == 2 && j < t->dim[0] * t->dim[1]; j++) w[j] *= 2 / sqrtf((float)t->dim[1]);
    }
}

// loose: a bound for the paths that round weights and KV.
static void check(const char *config, uint32_t n, double loose) {
    static struct synth s;
    synth_open(&s, config);
    scale_matrices(&s);
    const uint32_t v = s.h.n_vocab;
    int32_t *ids = malloc(n * sizeof *ids);
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(rng_unit(&s.rng) * v);
    double *want = plain_logits(&s, ids, n);
    const struct run_mode verify = {.weights = WEIGHTS_AS_IS, .kv = KV_F32, .verify = true};
    const struct run_mode normal = {.weights = WEIGHTS_L8, .kv = KV_I8};
    float *have = stage_logits(&s, verify, ISA_REF, ids, n, 100);
    for (uint32_t r = 0; r < n; r++) {
        double bad = error_of(have + (size_t)r * v, want + (size_t)r * v, v);
        if (!(bad <= 2e-4)) fail_msg("position %u: relative error %g", r, bad);
    }
    free(have);
    have = stage_logits(&s, normal, ISA_AUTO, ids, n, 100);
    double bad = error_of(have, want, (size_t)n * v);
    if (!(bad <= loose)) fail_msg("int8: relative error %g", bad);
    float *again = stage_logits(&s, normal, ISA_AUTO, ids, n, 33);
    assert_memory_equal(have, again, (size_t)n * v * sizeof *have);
    free(have);
    free(again);
    free(want);
    free(ids);
    synth_close(&s);
}

static void test_long_text(void **state) {
    (void)state;
    check("{\"architectures\":[\"Gemma2ForCausalLM\"],\"num_hidden_layers\":4,\"hidden_size\":32,\"num_attention_"
          "heads\":4,"
          "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":48,\"vocab_size\":64,"
          "\"max_position_embeddings\":2048,\"sliding_window\":1100,\"query_pre_attn_scalar\":16}",
          1500, 0.2);
    check("{\"architectures\":[\"MistralForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_"
          "heads\":4,"
          "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":48,\"vocab_size\":64,"
          "\"max_position_embeddings\":2048,\"sliding_window\":70}",
          1200, 0.2);
}

// A window shorter than a block, and queries that grow with their position.
static void test_growing_queries(void **state) {
    (void)state;
    check("{\"architectures\":[\"Ministral3ForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":32,"
          "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":48,\"vocab_size\":"
          "64,"
          "\"max_position_embeddings\":2048,\"sliding_window\":50,\"rope_parameters\":{\"rope_theta\":10000.0,"
          "\"original_max_position_embeddings\":128,\"llama_4_scaling_beta\":0.4}}",
          700, 0.2);
}

static void test_wide_rows(void **state) {
    (void)state;
    check("{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":1088,\"num_attention_"
          "heads\":18,"
          "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":2112,\"vocab_size\":64,\"attention_bias\":"
          "true,"
          "\"mlp_bias\":true,\"max_position_embeddings\":2048}",
          12, 0.2);
}

int main(void) {
    thread_fp_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_text), cmocka_unit_test(test_growing_queries),
                                       cmocka_unit_test(test_wide_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
