// Files that synth and quantize make, opened again: the settings come back as they were, the bytes depend on nothing
// but the seed, and a failure leaves nothing.
#include "cmd/cmd.h"
#include "cmd/out_file.h"
#include "compute/ref/ref.h"
#include "gguf/gguf.h"
#include "os/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/loom_gguf_XXXXXX";

static const char *in_folder(const char *name) {
    static char path[64][512];
    static int at;
    char *p = path[at++ % 64];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static int call(const struct command *c, const char *const *args) {
    char *argv[16];
    int n = 0;
    for (; args[n]; n++) argv[n] = (char *)(uintptr_t)args[n];
    return c->run(c, n, argv);
}
#define RUN(c, ...) call(c, (const char *const[]){__VA_ARGS__, NULL})

static int n_files(void) {
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    if (!d) return 0;
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static void write_text(const char *name, const char *text) {
    struct err e;
    assert_int_equal(file_write(in_folder(name), text, strlen(text), 0644, &e), ERR_OK);
}

static void assert_same_files(const char *a, const char *b, bool same) {
    char *x, *y;
    size_t n, m;
    struct err e;
    assert_int_equal(file_read(a, 64 << 20, &x, &n, &e), ERR_OK);
    assert_int_equal(file_read(b, 64 << 20, &y, &m, &e), ERR_OK);
    assert_int_equal(n == m && memcmp(x, y, n) == 0, same);
    free(x);
    free(y);
}

#define SHAPE                                                                                                          \
    "\"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "         \
    "\"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 600, \"max_position_embeddings\": 2048, "           \
    "\"bos_token_id\": 1, \"eos_token_id\": 2, \"dtype\": \"bfloat16\", "
#define THETA(t) "\"rope_theta\": " #t
// One config for each architecture, with the settings that tell it from the others.
static const struct {
    const char *name, *config;
} configs[] = {
    {"llama", "{\"architectures\": [\"LlamaForCausalLM\"], " SHAPE "\"rms_norm_eps\": 1e-5, \"rope_parameters\": "
              "{\"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
              "\"original_max_position_embeddings\": 256, \"rope_theta\": 500000.0, \"rope_type\": \"llama3\"}}"},
    {"linear", "{\"architectures\": [\"LlamaForCausalLM\"], " SHAPE "\"rms_norm_eps\": 1e-6, \"rope_scaling\": "
               "{\"type\": \"linear\", \"factor\": 2.5}, " THETA(20000) "}"},
    {"mistral", "{\"architectures\": [\"MistralForCausalLM\"], " SHAPE "\"sliding_window\": 48, " THETA(10000) "}"},
    {"mixtral", "{\"architectures\": [\"MixtralForCausalLM\"], " SHAPE
                "\"num_local_experts\": 4, \"num_experts_per_tok\": 2, " THETA(1000000) "}"},
    {"ministral3", "{\"architectures\": [\"Ministral3ForCausalLM\"], " SHAPE "\"rope_parameters\": {\"beta_fast\": "
                   "32.0, \"beta_slow\": 1.0, \"factor\": 16.0, \"llama_4_scaling_beta\": 0.1, \"mscale\": 1.0, "
                   "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 16384, \"rope_theta\": 1000000.0, "
                   "\"rope_type\": \"yarn\"}}"},
    {"qwen2", "{\"architectures\": [\"Qwen2ForCausalLM\"], " SHAPE THETA(1000000) "}"},
    {"qwen3", "{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE "\"tie_word_embeddings\": true, "
              "\"rope_parameters\": {\"factor\": 4.0, \"original_max_position_embeddings\": 512, \"rope_theta\": "
              "1000000.0, \"rope_type\": \"yarn\"}}"},
    {"qwen3moe", "{\"architectures\": [\"Qwen3MoeForCausalLM\"], " SHAPE "\"moe_intermediate_size\": 64, "
                 "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, " THETA(1000000) "}"},
    {"phi3", "{\"architectures\": [\"Phi3ForCausalLM\"], " SHAPE "\"original_max_position_embeddings\": 1024, "
             "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
             "1,1,1,1.25,1.25,1.5,1.5,1.5,1.5,1.5,1.5], \"long_factor\": [1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2,4,4,4,4,4,4,"
             "4,4,8.5,8.5,8.5,8.5,8.5,8.5,8.5,8.5]}, " THETA(10000) "}"},
    {"olmo3",
     "{\"architectures\": [\"Olmo3ForCausalLM\"], " SHAPE "\"sliding_window\": 32, \"layer_types\": "
     "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"], " THETA(500000) "}"},
    {"smollm3", "{\"architectures\": [\"SmolLM3ForCausalLM\"], " SHAPE "\"no_rope_layers\": [1, 1, 1, 0], "
                "\"tie_word_embeddings\": false, " THETA(2000000) "}"},
    {"seed_oss", "{\"architectures\": [\"SeedOssForCausalLM\"], " SHAPE "\"attention_bias\": true, " THETA(10000) "}"},
    {"gemma2", "{\"architectures\": [\"Gemma2ForCausalLM\"], " SHAPE "\"sliding_window\": 32, "
               "\"query_pre_attn_scalar\": 64, \"hidden_activation\": \"gelu_pytorch_tanh\", "
               "\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0, " THETA(10000) "}"},
    {"gemma3", "{\"architectures\": [\"Gemma3ForCausalLM\"], " SHAPE "\"sliding_window\": 32, "
               "\"query_pre_attn_scalar\": 64, \"hidden_activation\": \"gelu_pytorch_tanh\", \"layer_types\": "
               "[\"sliding_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"], "
               "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1000000.0, \"rope_type\": \"linear\", "
               "\"factor\": 8.0}, \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}}"},
    {"glm4moe", "{\"architectures\": [\"Glm4MoeForCausalLM\"], " SHAPE "\"first_k_dense_replace\": 1, "
                "\"moe_intermediate_size\": 64, \"n_routed_experts\": 8, \"n_shared_experts\": 1, \"n_group\": 2, "
                "\"topk_group\": 1, \"num_experts_per_tok\": 2, \"routed_scaling_factor\": 1.5, \"use_qk_norm\": true, "
                "\"partial_rotary_factor\": 0.5, \"norm_topk_prob\": true, " THETA(10000) "}"},
    {"minimax", "{\"architectures\": [\"MiniMaxM2ForCausalLM\"], " SHAPE "\"num_local_experts\": 8, "
                "\"num_experts_per_tok\": 2, \"rotary_dim\": 32, " THETA(5000000) "}"},
};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

// Frequencies that a file has as divisors in f32 come back but for the last bit. The rest of h is left to the hash.
static void compare_frequencies(struct hparams *h, const struct hparams *back) {
    for (uint32_t i = 0; i < h->rope[0].n_freq; i++) {
        const double a = h->rope[0].fq[i], b = back->rope[0].fq[i];
        assert_true(fabs(a - b) <= fabs(a) * 0x1p-23);
        h->rope[0].fq[i] = b;
    }
}

// All settings on which the bytes of an answer depend come through metadata and back.
static void test_settings_come_back(void **state) {
    (void)state;
    const struct run_mode mode = {.weights = WEIGHTS_NATIVE, .kv = KV_I8};
    for (size_t i = 0; i < N_CONFIGS; i++) {
        struct hparams h;
        struct opened_model m;
        struct err e = {0};
        print_message("%s\n", configs[i].name);
        assert_int_equal(model_parse_config(configs[i].config, strlen(configs[i].config), &h, &e), ERR_OK);
        write_text("config.json", configs[i].config);
        assert_int_equal(RUN(&cmd_synth, in_folder("config.json"), in_folder("a.gguf"), "--type", "q4_k_m", "--force"),
                         EXIT_FINE);
        int rc = open_model(in_folder("a.gguf"), &m, &e);
        if (rc) print_message("%s\n", e.text);
        assert_int_equal(rc, ERR_OK);
        compare_frequencies(&h, &m.hparams);
        if (model_plan_hash(&h, &mode) != model_plan_hash(&m.hparams, &mode)) print_message("%s\n", m.config_json);
        assert_true(model_plan_hash(&h, &mode) == model_plan_hash(&m.hparams, &mode));
        if (model_check_tensors(&m.hparams, m.tensors, &e)) fail_msg("%s", e.text);
        m.hparams.n_vocab++; // what does not fit is told by the name that the file has
        assert_int_equal(model_check_tensors(&m.hparams, m.tensors, &e), ERR_FORMAT);
        if (!strstr(e.text, "tensor token_embd.weight: shape [600, 256], but the keys of the file make it [601, 256]"))
            fail_msg("%s", e.text);
        m.hparams.n_vocab--;
        assert_int_equal(m.hparams.eos_ids[0], 2);
        assert_int_equal(m.hparams.n_vocab, h.n_vocab);
        assert_string_equal(m.name, "a");
        struct gguf_string name = {"", 0};
        assert_int_equal(gguf_get_string(tensors_gguf(m.tensors), "general.name", &name, &e), ERR_OK);
        assert_int_equal(name.len_bytes, strlen("config"));
        assert_memory_equal(name.text, "config", name.len_bytes);
        open_model_close(&m);
    }
}

// Settings without a key of their own are refused by their name, before any data is written.
static void test_lost_settings(void **state) {
    (void)state;
    static const struct {
        const char *config, *name;
    } lost[] = {
        {"{\"architectures\": [\"LlamaForCausalLM\"], " SHAPE
         "\"hidden_act\": \"gelu_pytorch_tanh\", " THETA(10000) "}",
         "hidden_act"},
        {"{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE "\"rope_parameters\": {\"factor\": 4.0, \"truncate\": "
         "false, \"original_max_position_embeddings\": 512, \"rope_theta\": 1000000.0, \"rope_type\": \"yarn\"}}",
         "rope_parameters"},
        {"{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE "\"rope_parameters\": {\"factor\": 4.0, \"mscale\": "
         "0.5, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 512, \"rope_theta\": 1000000.0, "
         "\"rope_type\": \"yarn\"}}",
         "rope_parameters"},
        {"{\"architectures\": [\"Gemma3ForCausalLM\"], " SHAPE "\"sliding_window\": 32, \"query_pre_attn_scalar\": 64, "
         "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\"], \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1000000.0, "
         "\"rope_type\": \"default\"}, \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"linear\", "
         "\"factor\": 8.0}}}",
         "rope_parameters"},
    };
    const char *config = in_folder("config.json"), *out = in_folder("lost.gguf");
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        write_text("config.json", lost[i].config);
        const int files = n_files();
        print_message("%s\n", lost[i].name);
        assert_int_equal(RUN(&cmd_synth, config, out), EXIT_FAILED);
        assert_int_equal(n_files(), files);
    }
}

static void test_made_up_tokens(void **state) {
    (void)state;
    struct opened_model m;
    struct text_side t;
    struct err e = {0};
    struct ids ids;
    struct buf text;
    static const char words[] = "the quick brown fox";
    write_text("config.json", configs[5].config);
    assert_int_equal(RUN(&cmd_synth, in_folder("config.json"), in_folder("a.gguf"), "--force"), EXIT_FINE);
    assert_int_equal(open_model(in_folder("a.gguf"), &m, &e), ERR_OK);
    int rc = text_open(&m, NULL, 0, &t, &e);
    if (rc) print_message("%s\n", e.text);
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(tokenizer_n_vocab(t.tokenizer), 600);
    ids_init(&ids, 100);
    buf_init(&text, 1000);
    assert_int_equal(tokenizer_encode(t.tokenizer, words, strlen(words), false, &ids, &e), ERR_OK);
    assert_true(ids.n < strlen(words)); // merges are found
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        const uint8_t *bytes = tokenizer_token_bytes(t.tokenizer, ids.data[i], &len);
        assert_int_equal(buf_add(&text, bytes, len), ERR_OK);
    }
    assert_int_equal(text.len_bytes, strlen(words));
    assert_memory_equal(text.data, words, strlen(words));
    assert_int_equal(tokenizer_id_of(t.tokenizer, "<|im_end|>"), 2);
    ids_fini(&ids);
    buf_fini(&text);
    text_close(&t);
    open_model_close(&m);
}

static void test_same_bytes(void **state) {
    (void)state;
    static const char *const types[] = {"q8_0", "q4_k_m", "q5_k_m", "q6_k", "q5_0", "q5_1",
                                        "q4_1", "q4_0",   "l8",     "bf16", "f16",  "f32"};
    write_text("config.json", configs[7].config);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *config = in_folder("config.json"), *a = in_folder("a.gguf"), *b = in_folder("b.gguf");
        assert_int_equal(RUN(&cmd_synth, config, a, "--type", types[i], "--threads", "1", "--force"), EXIT_FINE);
        assert_int_equal(RUN(&cmd_synth, config, b, "--type", types[i], "--threads", "3", "--force"), EXIT_FINE);
        assert_same_files(a, b, true);
        assert_int_equal(RUN(&cmd_synth, config, b, "--type", types[i], "--seed", "2", "--force"), EXIT_FINE);
        assert_same_files(a, b, false);
    }
}

// Values of a matrix: centred, and spread as wide as they should be.
static void test_spread(void **state) {
    (void)state;
    static const char *const types[] = {"q8_0", "q4_k_m", "q5_k_m", "q6_k", "q5_0",
                                        "q5_1", "q4_1",   "q4_0",   "l8",   "bf16"};
    write_text("config.json", configs[5].config);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tensors *t;
        struct err e;
        float x[256];
        double sum = 0, squares = 0;
        assert_int_equal(RUN(&cmd_synth, in_folder("config.json"), in_folder("a.gguf"), "--type", types[i], "--force"),
                         EXIT_FINE);
        assert_int_equal(tensors_open(in_folder("a.gguf"), &t, &e), ERR_OK);
        const struct tensor *w = tensors_find(t, "model.layers.1.mlp.up_proj.weight");
        for (uint64_t r = 0; r < w->dim[0]; r++) {
            ref_row_f32(w->type, w->data + r * dtype_row_bytes(w->type, 256), 256, x);
            for (int k = 0; k < 256; k++) {
                sum += (double)x[k];
                squares += (double)x[k] * (double)x[k];
            }
        }
        const double n = (double)w->dim[0] * 256, std = sqrt(squares / n);
        assert_true(fabs(std * 16 - 1) < 0.03); // 1 / sqrt(256)
        assert_true(fabs(sum / n) < 0.02 * std);
        tensors_free(t);
    }
}

static void test_quantize_gguf(void **state) {
    (void)state;
    const char *a = in_folder("a.gguf"), *b = in_folder("b.gguf");
    struct tensors *x, *y;
    struct err e;
    write_text("config.json", configs[7].config);
    assert_int_equal(RUN(&cmd_synth, in_folder("config.json"), a, "--type", "bf16", "--force"), EXIT_FINE);
    assert_int_equal(RUN(&cmd_quantize, a, b, "--type", "q6_k", "--force"), EXIT_FINE);
    assert_int_equal(tensors_open(a, &x, &e), ERR_OK);
    assert_int_equal(tensors_open(b, &y, &e), ERR_OK);
    assert_int_equal(tensors_count(x), tensors_count(y));
    for (uint32_t i = 0; i < tensors_count(x); i++) {
        const struct tensor *s = tensors_at(x, i), *t = tensors_find(y, s->name);
        float u[512], v[512];
        assert_non_null(t);
        assert_int_equal(s->n_dims, t->n_dims);
        const uint64_t k = s->dim[s->n_dims - 1], rows = s->n_dims == 2 ? s->dim[0] : 1;
        double error = 0, all = 1e-30;
        for (uint64_t r = 0; r < rows; r++) {
            ref_row_f32(s->type, s->data + r * dtype_row_bytes(s->type, k), (uint32_t)k, u);
            ref_row_f32(t->type, t->data + r * dtype_row_bytes(t->type, k), (uint32_t)k, v);
            for (uint64_t c = 0; c < k; c++) {
                error += (double)(u[c] - v[c]) * (double)(u[c] - v[c]);
                all += (double)u[c] * (double)u[c];
            }
        }
        assert_true(error < all * 0.02 * 0.02);
    }
    tensors_free(x);
    tensors_free(y);
    // A second loss is made on demand only; the same type again is a copy.
    const int files = n_files();
    const char *c = in_folder("c.gguf");
    assert_int_equal(RUN(&cmd_quantize, b, c, "--type", "q4_k_m"), EXIT_USAGE);
    assert_int_equal(n_files(), files);
    assert_int_equal(RUN(&cmd_quantize, b, c, "--type", "q4_k_m", "--requantize"), EXIT_FINE);
    assert_int_equal(RUN(&cmd_quantize, b, c, "--type", "q6_k", "--force"), EXIT_FINE);
    assert_same_files(b, c, true);
}

static void test_refused(void **state) {
    (void)state;
    write_text("config.json", configs[7].config);
    const char *config = in_folder("config.json"), *a = in_folder("a.gguf");
    assert_int_equal(RUN(&cmd_synth, config, a, "--type", "bf16", "--force"), EXIT_FINE);
    const int files = n_files();
    assert_int_equal(RUN(&cmd_synth, config, a), EXIT_USAGE); // it is there
    assert_int_equal(RUN(&cmd_synth, "qwen9-1b", in_folder("z.gguf")), EXIT_FAILED);
    assert_int_equal(RUN(&cmd_synth, config, in_folder("z.gguf"), "--type", "q3_k"), EXIT_USAGE);
    assert_int_equal(RUN(&cmd_quantize, a, a, "--type", "q8_0", "--force"), EXIT_USAGE); // its own input
    assert_int_equal(RUN(&cmd_quantize, a, in_folder("z.gguf")), EXIT_USAGE);
    assert_int_equal(RUN(&cmd_quantize, in_folder("no"), in_folder("z.gguf"), "--type", "q8_0"), EXIT_FAILED);
    assert_int_equal(RUN(&cmd_quantize, a, in_folder("no/z.gguf"), "--type", "q8_0"), EXIT_FAILED);
    assert_int_equal(RUN(&cmd_quantize, folder, in_folder("z.gguf"), "--type", "q8_0"), EXIT_FAILED); // no tensors
    assert_int_equal(n_files(), files);
    // A NaN among the weights ends the conversion, and nothing of it is left.
    struct tensors *t;
    struct err e;
    assert_int_equal(tensors_open(a, &t, &e), ERR_OK);
    const struct tensor *w = tensors_find(t, "model.layers.2.self_attn.q_proj.weight");
    struct file_map map;
    assert_int_equal(file_map_open(&map, a, &e), ERR_OK);
    // Where the tensor's bytes are found in the file is where one is broken.
    const uint8_t *at = memmem(map.data, map.len_bytes, w->data, 64);
    assert_non_null(at);
    FILE *f = fopen(a, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(at - map.data), SEEK_SET), 0);
    assert_int_equal(fwrite("\xc0\x7f", 1, 2, f), 2);
    fclose(f);
    file_map_close(&map);
    tensors_free(t);
    assert_int_equal(RUN(&cmd_quantize, a, in_folder("z.gguf"), "--type", "q8_0"), EXIT_FAILED);
    assert_int_equal(n_files(), files);
}

// Types whose values are not made floats are refused, not stumbled over.
static void test_odd_types(void **state) {
    (void)state;
    static const char *const types[] = {"F64", "I32", "I64"};
    static const int bytes[] = {8, 4, 8};
    assert_int_equal(mkdir(in_folder("odd"), 0700), 0);
    write_text("odd/config.json", configs[5].config);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[256];
        const int data = 600 * 256 * bytes[i];
        const int n = snprintf(header + 8, sizeof header - 8,
                               "{\"model.embed_tokens.weight\": {\"dtype\": \"%s\", \"shape\": [600, 256], "
                               "\"data_offsets\": [0, %d]}}",
                               types[i], data);
        const uint64_t len = (uint64_t)n;
        struct err e;
        memcpy(header, &len, sizeof len);
        const char *path = in_folder("odd/model.safetensors");
        assert_int_equal(file_write(path, header, 8 + len, 0600, &e), ERR_OK);
        assert_int_equal(truncate(path, (off_t)(8 + len) + data), 0);
        assert_int_equal(RUN(&cmd_quantize, in_folder("odd"), in_folder("z.gguf"), "--type", "q8_0"), EXIT_FAILED);
        assert_false(file_exists(in_folder("z.gguf")));
    }
}

// What is read is never written over, whatever it is called; what is no regular file is not replaced.
static void test_own_input(void **state) {
    (void)state;
    static const char tokenizer[] = "{\"model\": {}}";
    char *back;
    size_t len;
    struct err e;
    assert_int_equal(mkdir(in_folder("model"), 0700), 0);
    write_text("model/config.json", configs[5].config);
    write_text("model/tokenizer.json", tokenizer);
    write_text("ids.json", "[1, 2]");
    assert_int_equal(symlink("../blob", in_folder("model/model.safetensors")), 0);
    write_text("blob", "weights");
    const char *model = in_folder("model");
    static const char *const outs[] = {"model/tokenizer.json", "model/config.json", "model/model.safetensors", "blob"};
    for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
        assert_int_equal(RUN(&cmd_quantize, model, in_folder(outs[i]), "--type", "q8_0", "--force"), EXIT_USAGE);
        assert_int_equal(RUN(&cmd_synth, model, in_folder(outs[i]), "--force"), EXIT_USAGE);
        assert_int_equal(RUN(&cmd_logits, model, "--ids", in_folder("ids.json"), "--out", in_folder(outs[i])),
                         EXIT_USAGE);
    }
    assert_int_equal(RUN(&cmd_logits, model, "--ids", in_folder("ids.json"), "--out", in_folder("ids.json")),
                     EXIT_USAGE);
    const char *config = in_folder("model/config.json");
    assert_int_equal(RUN(&cmd_synth, config, config, "--force"), EXIT_USAGE);
    assert_int_equal(file_read(in_folder("model/tokenizer.json"), 1000, &back, &len, &e), ERR_OK);
    assert_string_equal(back, tokenizer);
    free(back);
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(RUN(&cmd_synth, config, in_folder("fifo"), "--force"), EXIT_USAGE);
}

static void test_out_file(void **state) {
    (void)state;
    struct out_file a, b;
    struct err e;
    char name[400];
    const char *path = in_folder("new"), *beside = in_folder("new.1");
    const int files = n_files();
    // Of two that began at once the second does not replace the first one's.
    assert_int_equal(out_file_open(&a, path, false, &e), ERR_OK);
    assert_int_equal(out_file_open(&b, path, false, &e), ERR_OK);
    assert_int_equal(write(a.fd, "a", 1), 1);
    assert_int_equal(out_file_place(&a, &e), ERR_OK);
    assert_int_equal(out_file_place(&b, &e), ERR_USAGE);
    out_file_close(&a);
    out_file_close(&b);
    assert_int_equal(n_files(), files + 1);
    // The same with a temporary name, as where a file cannot be without.
    snprintf(b.temp, sizeof b.temp, "%s", beside);
    b.fd = open(beside, O_CREAT | O_EXCL | O_RDWR, 0600);
    assert_true(b.fd >= 0);
    assert_int_equal(out_file_place(&b, &e), ERR_USAGE);
    b.force = true;
    assert_int_equal(out_file_place(&b, &e), ERR_OK);
    out_file_close(&b);
    assert_int_equal(n_files(), files + 1);
    // Told before the work.
    assert_int_equal(out_file_check(path, false, &e), ERR_USAGE);
    assert_int_equal(out_file_check(path, true, &e), ERR_OK);
    assert_int_equal(out_file_check(folder, true, &e), ERR_USAGE);
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    assert_int_equal(out_file_check(in_folder(name), true, &e), ERR_IO);
    assert_int_equal(out_file_check(in_folder("none/new"), true, &e), ERR_IO);
    assert_int_equal(unlink(path), 0);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    file_remove_tree(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_settings_come_back),
                                       cmocka_unit_test(test_made_up_tokens),
                                       cmocka_unit_test(test_lost_settings),
                                       cmocka_unit_test(test_same_bytes),
                                       cmocka_unit_test(test_spread),
                                       cmocka_unit_test(test_quantize_gguf),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_own_input),
                                       cmocka_unit_test(test_odd_types),
                                       cmocka_unit_test(test_out_file)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
