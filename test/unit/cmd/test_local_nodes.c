// Local nodes leave no tokens behind. This program plays the node too: it just waits.
#include "cmd/local_nodes.h"
#include "os/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/loom-local-test-XXXXXX";

static size_t count_tokens(void) {
    char path[256], *data;
    size_t len, n = 0;
    struct err e;
    snprintf(path, sizeof path, "%s/tokens", dir);
    assert_int_equal(file_read(path, 1 << 20, &data, &len, &e), ERR_OK);
    for (size_t i = 0; i < len; i++) n += data[i] == '\n';
    free(data);
    return n;
}

static void test_tokens_are_revoked(void **state) {
    (void)state;
    struct err e;
    const struct local_nodes_config c = {.n = 3, .head_port = 9, .state_dir = dir, .memory_bytes = 1 << 20};
    for (int i = 0; i < 3; i++) {
        struct local_nodes *l;
        assert_int_equal(local_nodes_start(&c, &l, &e), ERR_OK);
        assert_true(local_nodes_pid(l, 2) > 0);
        assert_int_equal(count_tokens(), 1);
        local_nodes_supervise(l);
        local_nodes_stop(l);
        assert_int_equal(count_tokens(), 0);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "node") == 0) {
        for (;;) pause();
    }
    if (!mkdtemp(dir)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens_are_revoked)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(dir);
    return rc;
}
