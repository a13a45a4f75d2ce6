#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pull/choice.h"
#include "pull/quant.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct listing list(const char *const *paths) {
    struct listing l = {0};
    char json[400];
    for (; *paths; paths++) {
        snprintf(json, sizeof json, "[{\"type\":\"file\",\"path\":\"%s\",\"size\":%d}]", *paths,
                 strstr(*paths, "gguf") ? 1000000000 : 5000);
        assert_int_equal(listing_add_hf(&l, json, strlen(json), NULL), ERR_OK);
    }
    assert_int_equal(listing_finish(&l, NULL), ERR_OK);
    return l;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// What is chosen, in order of the paths: "a b c"; after an error its text.
static int choose(const char *const *paths, const char *file, char out[2048], char opened[200]) {
    struct listing l = list(paths);
    struct choice c;
    struct err e;
    const char *names[64];
    int rc = choice_make(&l, "o/r", file, &c, &e);
    size_t at = 0;
    opened[0] = 0;
    if (rc) {
        snprintf(out, 2048, "%s", e.text);
    } else {
        for (uint32_t i = 0; i < c.n; i++) names[i] = l.files[c.files[i]].path;
        qsort(names, c.n, sizeof names[0], by_text);
        for (uint32_t i = 0; i < c.n; i++) at += (size_t)snprintf(out + at, 2048 - at, "%s%s", i ? " " : "", names[i]);
        if (c.opened) snprintf(opened, 200, "%s", c.opened);
        choice_fini(&c);
    }
    listing_fini(&l);
    return rc;
}

static void check(const char *const *paths, const char *file, const char *want, const char *want_opened) {
    char got[2048], opened[200];
    assert_int_equal(choose(paths, file, got, opened), ERR_OK);
    assert_string_equal(got, want);
    assert_string_equal(opened, want_opened);
}

static void fails(const char *const *paths, const char *file, int code, const char *text) {
    char got[2048], opened[200];
    assert_int_equal(choose(paths, file, got, opened), code);
    if (!strstr(got, text)) fail_msg("'%s' is not in '%s'", text, got);
}

static void labels(void **state) {
    (void)state;
    static const char *const want[][2] = {{"Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"},
                                          {"qwen2.5-7b-instruct-q8_0-00001-of-00003.gguf", "Q8_0"},
                                          {"x/M-UD-IQ2_XXS-00001-of-00002.gguf", "UD-IQ2_XXS"},
                                          {"m.i1-Q6_K.gguf", "Q6_K"},
                                          {"ggml_model_q5_1.gguf", "Q5_1"},
                                          {"m-BF16.gguf", "BF16"},
                                          {"m.f16.GGUF", "F16"},
                                          {"m-Q4_K_M-v2.gguf", "Q4_K_M"},
                                          {"m-mxfp4.gguf", "MXFP4"},
                                          {"m-TQ1_0.gguf", "TQ1_0"},
                                          {"UD-Q2_K_XL/model-00001-of-00002.gguf", "UD-Q2_K_XL"},
                                          {"gpt-oss-20b.gguf", "gpt-oss-20b"},
                                          {"AQ4_K.gguf", "AQ4_K"},
                                          {"Q9_0.gguf", "Q9_0"},
                                          {"", ""}};
    char got[QUANT_LABEL_BYTES];
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        quant_label(want[i][0], got);
        assert_string_equal(got, want[i][1]);
    }
}

static const char *const folder[] = {"README.md",
                                     "config.json",
                                     "generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "model-00001-of-00002.safetensors",
                                     "model-00002-of-00002.safetensors",
                                     "model.safetensors.index.json",
                                     "model.safetensors",
                                     "consolidated.safetensors",
                                     "adapter_model.safetensors",
                                     "pytorch_model.bin",
                                     "onnx/model.onnx",
                                     "original/model.safetensors",
                                     "original/tokenizer.model",
                                     "x.pth",
                                     "chat_template.jinja",
                                     "additional_chat_templates/tools.jinja",
                                     NULL};
static const char *const quants[] = {"a-Q4_K_M.gguf",
                                     "a-UD-Q4_K_M.gguf",
                                     "a-UD-Q3_K_XL.gguf",
                                     "mmproj-F16.gguf",
                                     "b/a-Q8_0-00001-of-00002.gguf",
                                     "b/a-Q8_0-00002-of-00002.gguf",
                                     "c-Q6_K-00001-of-00002.gguf",
                                     "imatrix.gguf",
                                     "README.md",
                                     NULL};

static void a_type_of_a_folder(void **state) {
    (void)state;
    fails(folder, "Q4_K_M", ERR_NOT_FOUND, "has no GGUF files, and so no 'Q4_K_M'");
    fails(folder, "ud-q3_k_xl", ERR_NOT_FOUND, "has no GGUF files");
    fails(folder, "confg.json", ERR_NOT_FOUND, "near it: config.json");
}

static void chooses_what_is_needed(void **state) {
    (void)state;
    check(folder, NULL,
          "additional_chat_templates/tools.jinja chat_template.jinja config.json generation_config.json "
          "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json "
          "tokenizer.json tokenizer_config.json",
          "");
    static const char *const mistral[] = {"config.json", "consolidated.safetensors", "params.json", "tokenizer.model",
                                          NULL};
    check(mistral, NULL, "config.json consolidated.safetensors tokenizer.model", "");
    static const char *const single[] = {"x-Q4_0.gguf", "mmproj-x.gguf", "config.json", NULL};
    check(single, NULL, "x-Q4_0.gguf", "x-Q4_0.gguf");
    static const char *const old[] = {"config.json", "pytorch_model.bin", "adapter_model.safetensors", NULL};
    fails(old, NULL, ERR_UNSUPPORTED, "neither");
    fails(quants, NULL, ERR_USAGE, "Q8_0 2.0 GB");
    fails(quants, NULL, ERR_USAGE, "UD-Q3_K_XL 1.0 GB");
}

static void chooses_by_name(void **state) {
    (void)state;
    check(quants, "Q4_K_M", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf");
    check(quants, "ud-q4_k_m", "a-UD-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf");
    check(quants, "q3_k_xl", "a-UD-Q3_K_XL.gguf", "a-UD-Q3_K_XL.gguf");
    check(quants, "Q8_0", "b/a-Q8_0-00001-of-00002.gguf b/a-Q8_0-00002-of-00002.gguf", "b/a-Q8_0-00001-of-00002.gguf");
    check(quants, "b/a-Q8_0-00002-of-00002.gguf", "b/a-Q8_0-00001-of-00002.gguf b/a-Q8_0-00002-of-00002.gguf",
          "b/a-Q8_0-00001-of-00002.gguf");
    check(quants, "mmproj-F16.gguf", "mmproj-F16.gguf", "mmproj-F16.gguf");
    check(quants, "*.md", "README.md", "");
    check(folder, "model.onnx", "onnx/model.onnx", "");
    check(folder, "o*", "onnx/model.onnx original/model.safetensors original/tokenizer.model", "");
    fails(quants, "Q6_K", ERR_FORMAT, "1 of its 2 shards");
    fails(quants, "F16", ERR_NOT_FOUND, "Q4_K_M 1.0 GB");
    fails(folder, "tokeniser.json", ERR_NOT_FOUND, "near it: tokenizer.json");
    fails(folder, "*.gguf", ERR_NOT_FOUND, "has no '*.gguf'");
    static const char *const two[] = {"a-Q4_0.gguf", "b-Q4_0.gguf", NULL};
    fails(two, "Q4_0", ERR_USAGE, "a-Q4_0.gguf 1.0 GB, b-Q4_0.gguf 1.0 GB");
}

static void many_choices_fit_into_the_error(void **state) {
    (void)state;
    static char names[60][40];
    const char *paths[61];
    for (int i = 0; i < 60; i++) {
        snprintf(names[i], sizeof names[i], "m%d-variant-of-it.gguf", i);
        paths[i] = names[i];
    }
    paths[60] = NULL;
    fails(paths, NULL, ERR_USAGE, " more");
}

static void sizes(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } want[] = {{0, "0 bytes"}, {999, "999 bytes"}, {1000, "1.0 KB"}, {4920000000, "4.9 GB"}, {999960000, "1.0 GB"}};
    char got[24];
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        choice_size_text(want[i].bytes, got, sizeof got);
        assert_string_equal(got, want[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_type_of_a_folder),
                                       cmocka_unit_test(labels),
                                       cmocka_unit_test(chooses_what_is_needed),
                                       cmocka_unit_test(chooses_by_name),
                                       cmocka_unit_test(many_choices_fit_into_the_error),
                                       cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
