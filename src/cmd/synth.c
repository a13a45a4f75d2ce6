// loom synth: a file of a real model's shape with random weights, for tests of size and speed. Each block of a tensor
// is made from its place and the seed alone, so that the bytes are the same everywhere, whatever the number of threads.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cmd/cmd.h"
#include "cmd/convert.h"
#include "cmd/gguf_text.h"
#include "cmd/out_file.h"
#include "cmd/shapes.h"
#include "model/gguf_export.h"
#include "os/clock.h"
#include "os/file.h"
#include "weights/quantize.h"

enum { BLOCK_WORDS = 64 }; // a block takes at most that many words of chance

struct synth {
    const char *type;
    int64_t seed;
    bool force;
    uint32_t threads;
    const struct recipe *recipe;
    const char *config, *folder; // folder: NULL, or where a tokenizer may lie
    char *text;                  // of a file, to be freed
    size_t config_bytes;
    struct hparams hparams;
    struct gguf_file file;
    int (*given)(void *arg, uint32_t tensor, uint64_t row, uint64_t n, uint8_t *dst, struct err *e);
    void *given_arg;
};

// ---- Blocks whose codes are uniform. std: of the values wanted.

// Roots of the mean squares of what the codes stand for: -128 .. 127, -127 .. 127, -8 .. 7 (or 0 .. 15 from their
// middle), -16 .. 15, -32 .. 31; and of scales from 32 to 63, and from 64 to 127.
#define RMS_INT8    73.9f
#define RMS_4       4.61f
#define RMS_5       9.23f
#define RMS_6       18.47f
#define RMS_SCALE   48.4f
#define RMS_SCALE_6 97.3f

static uint16_t f16_of(float x) {
    uint16_t h;
    struct err e;
    int rc = floats_from_f32(DT_F16, &x, 1, &h, &e);
    ASSERT(rc == 0);
    return h;
}

static void put_f16(uint8_t *out, float x) {
    const uint16_t h = f16_of(x);
    out[0] = (uint8_t)h;
    out[1] = (uint8_t)(h >> 8);
}

// Groups of 32 without a minimum: a sign by chance takes away that the codes' mean is not 0.
static void group_signed(const uint8_t *chance, float d, uint32_t code_bytes, uint8_t *out) {
    put_f16(out, chance[code_bytes] & 1 ? d : -d);
    memcpy(out + 2, chance, code_bytes);
}

static void group_min(const uint8_t *chance, float d, float middle, uint32_t code_bytes, uint8_t *out) {
    put_f16(out, d);
    put_f16(out + 2, -middle * d);
    memcpy(out + 4, chance, code_bytes);
}

// A minimum that is the middle of the codes, in the same multiples as the scale.
static void super_min(const uint8_t *chance, float d, float middle, uint32_t code_bytes, uint8_t *out) {
    uint8_t sc[8];
    put_f16(out, d);
    put_f16(out + 2, middle * d);
    for (uint32_t i = 0; i < 8; i++) sc[i] = (uint8_t)(32 + (chance[code_bytes + i] & 31));
    for (uint32_t i = 0; i < 4; i++) {
        out[4 + i] = out[8 + i] = (uint8_t)(sc[i] | (sc[i + 4] >> 4) << 6);
        out[12 + i] = (uint8_t)((sc[i + 4] & 15) * 17);
    }
    memcpy(out + 16, chance, code_bytes);
}

static void super_q6_k(const uint8_t *chance, float d, uint8_t *out) {
    memcpy(out, chance, 192);
    for (uint32_t i = 0; i < 16; i++) {
        const int scale = 64 + (chance[192 + i] & 63);
        out[192 + i] = (uint8_t)(chance[192 + i] & 64 ? -scale : scale);
    }
    put_f16(out + 208, d);
}

// 128 codes from -127 to 127.
static void block_l8(const uint8_t *chance, float d, uint8_t *out) {
    memcpy(out, &d, sizeof d);
    for (uint32_t i = 0; i < 128; i++) out[4 + i] = chance[i] == 0x80 ? 0 : chance[i];
}

// Uniform values of the same spread, from 16 bits of chance each.
static void floats(const uint8_t *chance, float std, enum dtype t, uint32_t n, uint8_t *out) {
    float x[BLOCK_WORDS * 2];
    struct err e;
    for (uint32_t i = 0; i < n; i++) {
        const int u = chance[2 * i] | chance[2 * i + 1] << 8;
        x[i] = ((float)u - 32767.5f) * (std * (0x1.bb67aep+0f * 0x1p-15f)); // sqrt(3)
    }
    int rc = floats_from_f32(t, x, n, out, &e);
    ASSERT(rc == 0);
}

static void make_block(enum dtype t, const uint8_t *chance, float std, uint32_t n, uint8_t *out) {
    switch (t) {
    case DT_Q8_0:
        group_signed(chance, std / RMS_INT8, 32, out);
        return;
    case DT_Q4_0:
        group_signed(chance, std / RMS_4, 16, out);
        return;
    case DT_Q5_0:
        group_signed(chance, std / RMS_5, 20, out);
        return;
    case DT_Q4_1:
        group_min(chance, std / RMS_4, 7.5f, 16, out);
        return;
    case DT_Q5_1:
        group_min(chance, std / RMS_5, 15.5f, 20, out);
        return;
    case DT_Q4_K:
        super_min(chance, std / (RMS_SCALE * RMS_4), 7.5f, 128, out);
        return;
    case DT_Q5_K:
        super_min(chance, std / (RMS_SCALE * RMS_5), 15.5f, 160, out);
        return;
    case DT_Q6_K:
        super_q6_k(chance, std / (RMS_SCALE_6 * RMS_6), out);
        return;
    case DT_L8:
        block_l8(chance, std / RMS_INT8, out);
        return;
    default:
        floats(chance, std, t, n, out);
    }
}

// ---- Tensors

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

// So that the values after a matrix are about as large as those before, what a layer adds stays below what it is added
// to, and the best logits stand out a little.
static float spread(const struct hparams *h, const struct gguf_file_tensor *t) {
    const float k = sqrtf((float)t->dim[0]);
    if (strcmp(t->name, "token_embd.weight") == 0) return h->tied_embedding ? 3 / k : 1;
    if (strcmp(t->name, "output.weight") == 0) return 3 / k;
    if (has(t->name, "attn_output") || has(t->name, "ffn_down")) return 1 / (k * sqrtf(2 * (float)h->n_layers));
    return 1 / k;
}

// Norms are 1, biases 0; the numbers that config.json gives are what they are.
static bool fixed_value(const struct gguf_file_tensor *t, float *value) {
    *value = has(t->name, "norm") ? 1 : 0;
    return t->n_dims == 1;
}

static int make_rows(void *arg, uint32_t tensor, uint64_t row, uint64_t n, uint8_t *dst, struct err *e) {
    const struct synth *s = arg;
    const struct gguf_file_tensor *t = &s->file.tensors[tensor];
    float value;
    if (strncmp(t->name, "rope_", 5) == 0) return s->given(s->given_arg, tensor, row, n, dst, e);
    if (fixed_value(t, &value)) {
        for (uint64_t i = 0; i < n * t->dim[0]; i++) memcpy(dst + i * sizeof value, &value, sizeof value);
        return ERR_OK;
    }
    const struct dtype_info *info = dtype_info(t->type);
    const uint32_t size = info->is_float ? BLOCK_WORDS * 2 : info->block_values;
    const uint64_t blocks = (t->dim[0] + size - 1) / size;
    const float std = spread(&s->hparams, t);
    for (uint64_t i = row * blocks; i < (row + n) * blocks; i++) {
        uint32_t chance[BLOCK_WORDS] = {0};
        const uint64_t at = i % blocks * size, left = t->dim[0] - at;
        const uint32_t values = left < size ? (uint32_t)left : size;
        const uint32_t bytes = info->is_float ? values * info->block_bytes : info->block_bytes;
        const uint32_t words = info->is_float ? values / 2 + 1 : (bytes + 3) / 4 + 1;
        for (uint32_t w = 0; w < words && w < BLOCK_WORDS; w += 4) {
            uint32_t *c = chance + w;
            c[0] = (uint32_t)i;
            c[1] = (uint32_t)(i >> 32);
            c[2] = tensor;
            c[3] = w;
            philox4x32(c, (uint32_t)s->seed, (uint32_t)((uint64_t)s->seed >> 32));
        }
        make_block(t->type, (const uint8_t *)chance, std, values, dst);
        dst += bytes;
    }
    return ERR_OK;
}

// The tensors that the model needs, without any data.
static int add_shape(void *arg, const struct tensor_need *n) {
    const struct tensor one = {
        .name = n->name, .type = DT_F32, .n_dims = n->dim[1] ? 2 : 1, .dim = {n->dim[0], n->dim[1]}};
    struct err e;
    return tensors_add(arg, &one, &e);
}

static int write_file(struct synth *s, const char *name, struct gguf_writer *w, struct err *e) {
    const struct hparams *h = &s->hparams;
    const struct gen_defaults g = {.temperature = 1, .top_p = 1};
    struct tensors *t;
    struct convert *c = NULL;
    if (tensors_new(&t)) return err_set(e, ERR_NOMEM, "no memory for the tensors");
    int rc = model_needs(h, 0, h->n_layers, add_shape, t);
    if (rc) rc = err_set(e, rc, "no memory for the tensors");
    if (!rc) rc = gguf_export_config(s->config, s->config_bytes, h, &g, name, w, e);
    if (!rc && s->folder) rc = gguf_text_export(s->folder, h, w, NULL, e);
    if (!rc && !s->folder) rc = gguf_text_make_up(h, w, e);
    if (!rc && gguf_put_u32(w, "general.file_type", s->recipe->file_type)) rc = err_set(e, ERR_NOMEM, "no memory");
    if (!rc) rc = convert_from_folder(h, s->config, s->config_bytes, t, s->recipe, &c, e);
    if (!rc) {
        convert_fill(c, &s->file);
        s->given = s->file.rows;
        s->given_arg = s->file.arg;
        s->file.rows = make_rows;
        s->file.arg = s;
        rc = gguf_file_write(&s->file, e);
    }
    convert_free(c);
    tensors_free(t);
    return rc;
}

// SHAPE: a folder, a config.json, or the name of a shape.
static int read_config(struct synth *s, const char *from, struct err *e) {
    char path[LIMIT_PATH], tokenizer[LIMIT_PATH];
    if (!file_exists(from)) {
        s->config = shapes_find(from);
        s->config_bytes = s->config ? strlen(s->config) : 0;
        if (!s->config)
            return err_set(e, ERR_NOT_FOUND, "%s: neither a config.json, nor a folder, nor one of %s", from,
                           shapes_names());
        return model_parse_config(s->config, s->config_bytes, &s->hparams, e);
    }
    const bool folder = file_is_dir(from);
    int rc = folder ? file_join(path, sizeof path, from, "config.json", e) : ERR_OK;
    if (!rc) rc = file_read(folder ? path : from, LIMIT_CONFIG_BYTES, &s->text, &s->config_bytes, e);
    if (rc) return rc;
    s->config = s->text;
    rc = model_parse_config(s->config, s->config_bytes, &s->hparams, e);
    if (rc) return err_prefix(e, "%s", from);
    if (folder && !file_join(tokenizer, sizeof tokenizer, from, "tokenizer.json", e) && file_exists(tokenizer))
        s->folder = from;
    return ERR_OK;
}

// How the model is called: the last part of SHAPE, without "/" or ".json" behind it.
static void name_of(const char *from, char out[LIMIT_PATH]) {
    size_t len = strlen(from);
    while (len > 1 && from[len - 1] == '/') len--;
    size_t at = len;
    while (at > 0 && from[at - 1] != '/') at--;
    if (len - at > 5 && memcmp(from + len - 5, ".json", 5) == 0) len -= 5;
    snprintf(out, LIMIT_PATH, "%.*s", (int)(len - at), from + at);
}

static int make_file(struct synth *s, const char *from, const char *out, struct err *e) {
    char name[LIMIT_PATH];
    struct gguf_writer *w = NULL;
    int rc = file_exists(from) ? out_file_refuse_input(out, from, e) : ERR_OK;
    if (!rc) rc = out_file_check(out, s->force, e);
    if (!rc) rc = read_config(s, from, e);
    if (!rc && gguf_writer_new(&w)) rc = err_set(e, ERR_NOMEM, "no memory for the metadata");
    if (!rc) {
        name_of(from, name);
        s->file = (struct gguf_file){.path = out,
                                     .force = s->force,
                                     .threads = s->threads,
                                     .progress = true,
                                     .writer = w,
                                     .settings = &s->hparams};
        rc = write_file(s, name, w, e);
    }
    gguf_writer_free(w);
    return rc;
}

static int run(const struct command *c, int argc, char **argv) {
    struct synth s = {.type = "q4_k_m", .seed = 1};
    char en[512], zh[512];
    snprintf(
        en, sizeof en,
        "random weights of a real model's shape, for tests. SHAPE is a config.json, a folder with one, or one of %s",
        shapes_names());
    snprintf(zh, sizeof zh, "生成真实形状的随机权重，用于测试。SHAPE 为 config.json、含有它的目录，或以下之一：%s",
             shapes_names());
    struct command described = *c; // its help lists the shapes
    described.en = en;
    described.zh = zh;
    const struct flag own[] = {
        {"--type", FLAG_STRING, &s.type, 0, 0, "TYPE", "as of loom quantize (default q4_k_m)",
         "同 loom quantize（默认 q4_k_m）"},
        {"--seed", FLAG_I64, &s.seed, 0, 0, "N", "the same seed gives the same bytes (default 1)",
         "相同种子得到相同字节（默认 1）"},
        {"--force", FLAG_BOOL, &s.force, 0, 0, "", "replace OUT if it is there", "若 OUT 已存在则替换"},
        {"--threads", FLAG_U32, &s.threads, 0, 256, "N", "default: one per processor", "默认每个处理器一个"},
        {0}};
    const struct flag *tables[] = {own, NULL};
    const char *paths[2];
    int n_rest;
    struct err e;
    int rc = flags_parse(&described, tables, argc, argv, paths, 2, &n_rest, &e);
    if (!rc && n_rest != 2)
        rc = err_set(&e, ERR_USAGE, "SHAPE and OUT are needed; SHAPE is a config.json, a folder, or one of %s",
                     shapes_names());
    if (!rc && !(s.recipe = recipe_find(s.type)))
        rc = err_set(&e, ERR_USAGE, "--type: '%s' is none of %s", s.type, recipe_names());
    log_setup(false, true);
    const uint64_t t0 = clock_now_us();
    if (!rc) rc = make_file(&s, paths[0], paths[1], &e);
    free(s.text);
    if (rc) return flags_fail(c, &e);
    printf(flags_text("%s: %s, %.1f s\n", "%s：%s，%.1f 秒\n"), paths[1], s.recipe->name,
           (double)(clock_now_us() - t0) / 1e6);
    return EXIT_FINE;
}

const struct command cmd_synth = {.name = "synth",
                                  .args = "SHAPE OUT.gguf [--type TYPE] [--seed N] [--force]",
                                  .en = "random weights of a real model's shape, for tests",
                                  .zh = "生成真实形状的随机权重，用于测试",
                                  .run = run};
