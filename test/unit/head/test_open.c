// What a model's folder has to be, and what is said where it is none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "head/open.h"
#include "os/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/loom-open-XXXXXX";

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void refused(int code, const char *word) {
    struct opened_model m;
    struct err e = {0};
    assert_int_equal(open_model(folder, &m, &e), code);
    if (!strstr(e.text, word)) fail_msg("\"%s\": no %s", e.text, word);
}

static void folders_without_config(void **state) {
    (void)state;
    struct err e;
    assert_non_null(mkdtemp(folder));
    refused(ERR_NOT_FOUND, "neither config.json nor a .gguf file");
    assert_int_equal(file_write(in_folder("model-00002-of-00002.gguf"), "GGUF", 4, 0600, &e), ERR_OK);
    assert_int_equal(file_write(in_folder("model-00001-of-00002.gguf"), "GGUF", 4, 0600, &e), ERR_OK);
    // What sees pictures is no model. A split one counts once, and being the only one it is taken.
    assert_int_equal(file_write(in_folder("mmproj-model.gguf"), "GGUF", 4, 0600, &e), ERR_OK);
    char path[LIMIT_PATH];
    assert_int_equal(open_model_path(folder, path, &e), ERR_OK);
    assert_string_equal(path, in_folder("model-00001-of-00002.gguf"));
    refused(ERR_FORMAT, in_folder("model-00001-of-00002.gguf"));
    assert_int_equal(file_write(in_folder("other.gguf"), "GGUF", 4, 0600, &e), ERR_OK);
    refused(ERR_NOT_FOUND, in_folder("model-00001-of-00002.gguf"));
    assert_int_equal(open_model_path(folder, path, &e), ERR_NOT_FOUND);
    assert_int_equal(unlink(in_folder("other.gguf")), 0);
    assert_int_equal(unlink(in_folder("mmproj-model.gguf")), 0);
    assert_int_equal(unlink(in_folder("model-00001-of-00002.gguf")), 0);
    assert_int_equal(unlink(in_folder("model-00002-of-00002.gguf")), 0);
    assert_int_equal(rmdir(folder), 0);
}

// A hub's name for a model: what fetches it is named.
static void hub_names(void **state) {
    (void)state;
    static const struct {
        const char *path;
        bool pull;
    } cases[] = {{"Qwen/Qwen3-4B", true}, {"nowhere", false},       {"./a/b", false}, {"/a/b", false},
                 {"../Qwen3-4B", false},  {"models/a.gguf", false}, {"a/b/c", false}, {"a/", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct opened_model m;
        struct err e;
        assert_int_equal(open_model(cases[i].path, &m, &e), ERR_NOT_FOUND);
        if (!strstr(e.text, "loom pull") == cases[i].pull) fail_msg("%s", e.text);
    }
}

// How clients call a model: the folder, or the file without its ending and the number of a split.
static void names(void **state) {
    (void)state;
    struct opened_model m;
    struct err e;
    if (open_model(LOOM_SOURCE_DIR "/models/loom-demo/", &m, &e)) fail_msg("%s", e.text);
    assert_string_equal(m.name, "loom-demo");
    open_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(folders_without_config), cmocka_unit_test(hub_names),
                                       cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
