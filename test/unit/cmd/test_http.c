// The client's side of HTTP: where a path is put behind what --url says.
#include "cmd/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void a_url_may_end_with_slashes(void **state) {
    (void)state;
    char url[32];
    struct err e;
    static const char *const bases[] = {"http://a:1", "http://a:1/", "http://a:1//"};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        assert_int_equal(http_url(url, sizeof url, bases[i], "/v1/models", &e), ERR_OK);
        assert_string_equal(url, "http://a:1/v1/models");
    }
    assert_int_equal(http_url(url, sizeof url, "http://a/v1", "/x", &e), ERR_OK);
    assert_string_equal(url, "http://a/v1/x");
    assert_int_equal(http_url(url, sizeof url, "http://a.long.name.example:80", "/v1", &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "--url"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_url_may_end_with_slashes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
