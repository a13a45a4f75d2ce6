// Addresses that people paste from a hub's pages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pull/page.h"
#include <string.h>

static void addresses(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum pull_hub hub;
        const char *model, *revision, *file;
    } cases[] = {
        {"https://huggingface.co/Qwen/Qwen3-4B", PULL_HUGGINGFACE, "Qwen/Qwen3-4B", "", ""},
        {"http://hf.co/Qwen/Qwen3-4B/", PULL_HUGGINGFACE, "Qwen/Qwen3-4B", "", ""},
        {"huggingface.co/unsloth/Qwen3-8B-GGUF:Q4_K_M", PULL_HUGGINGFACE, "unsloth/Qwen3-8B-GGUF:Q4_K_M", "", ""},
        {"https://huggingface.co/Qwen/Qwen3-4B?library=x#top", PULL_HUGGINGFACE, "Qwen/Qwen3-4B", "", ""},
        {"https://huggingface.co/Qwen/Qwen3-4B/tree/v2", PULL_HUGGINGFACE, "Qwen/Qwen3-4B", "v2", ""},
        {"https://huggingface.co/a/b/blob/main/Q8_0/b-00001-of-00002.gguf?download=true", PULL_HUGGINGFACE, "a/b",
         "main", "Q8_0/b-00001-of-00002.gguf"},
        {"https://huggingface.co/a/b/resolve/main/b.gguf", PULL_HUGGINGFACE, "a/b", "main", "b.gguf"},
        {"https://huggingface.co/a/b/discussions/3", PULL_HUGGINGFACE, "a/b", "", ""},
        {"https://modelscope.cn/models/Qwen/Qwen3-4B", PULL_MODELSCOPE, "Qwen/Qwen3-4B", "", ""},
        {"https://www.modelscope.cn/models/Qwen/Qwen3-4B/files", PULL_MODELSCOPE, "Qwen/Qwen3-4B", "", ""},
        {"https://www.modelscope.cn/models/a/b/file/view/master/b.gguf?status=2", PULL_MODELSCOPE, "a/b", "master",
         "b.gguf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct page p;
        struct err e;
        assert_true(page_is_one(cases[i].text));
        if (page_parse(cases[i].text, &p, &e)) fail_msg("%s", e.text);
        assert_int_equal(p.hub, cases[i].hub);
        assert_string_equal(p.model, cases[i].model);
        assert_string_equal(p.revision, cases[i].revision);
        assert_string_equal(p.file, cases[i].file);
    }
}

static void no_model(void **state) {
    (void)state;
    static const char *const bad[] = {"https://huggingface.co",
                                      "https://huggingface.co/Qwen",
                                      "https://huggingface.co/Qwen/",
                                      "https://huggingface.co/datasets/a/b",
                                      "https://example.com/Qwen/Qwen3-4B",
                                      "https://huggingface.co.example.com/a/b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct page p;
        struct err e;
        assert_true(page_is_one(bad[i]));
        assert_int_equal(page_parse(bad[i], &p, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "OWNER/NAME"));
    }
    assert_false(page_is_one("Qwen/Qwen3-4B"));
    assert_false(page_is_one("hf.com/Qwen3-4B"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses), cmocka_unit_test(no_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
