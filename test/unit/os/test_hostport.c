// HOST:PORT: what is taken apart, and what is none.
#include "os/hostport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void what_is_one(void **state) {
    (void)state;
    static const struct {
        const char *text, *host;
        unsigned port;
    } good[] = {{"127.0.0.1:8080", "127.0.0.1", 8080},
                {"head.lan:1", "head.lan", 1},
                {"node_1-a:65535", "node_1-a", 65535},
                {":0", "", 0},
                {"[::1]:77", "::1", 77},
                {"[fe80::1%eth0]:80", "fe80::1%eth0", 80},
                {"0.0.0.0:00080", "0.0.0.0", 80}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct hostport hp;
        struct err e;
        if (hostport_parse(good[i].text, &hp, &e)) fail_msg("%s: %s", good[i].text, e.text);
        assert_string_equal(hp.host, good[i].host);
        assert_int_equal(hp.port, good[i].port);
    }
}

static void what_is_none(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",       "localhost", "localhost:", "a:65536",     "a:99999",      "a:100000",     "a: 80",      "a:80 ",
        "a:+80",  "a:-1",      "a:0x50",     "a:http",      "a b:80",       "a\nb:80",      "a\x1b:80",   "a/b:80",
        "::1:77", "[::1:77",   "::1]:77",    "[a]:77",      "[]:77",        "[::1]",        "[::1%]:77",  "[::1] :77",
        "a@b:77", "\x7f:77",   "a:8\n",      "http://a:80", "[1.2.3.4]:80", "[::1%a b]:77", "\xc3\xa9:80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hostport hp = {.port = 7};
        struct err e;
        if (hostport_parse(bad[i], &hp, &e) != ERR_USAGE) fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(e.text, "is not HOST:PORT"));
        assert_int_equal(hp.port, 7);
    }
    char longest[300];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + 255, ":1", 3);
    struct hostport hp;
    assert_int_equal(hostport_parse(longest, &hp, NULL), ERR_OK);
    memcpy(longest + 255, "a:1", 4);
    assert_int_equal(hostport_parse(longest, &hp, NULL), ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_one), cmocka_unit_test(what_is_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
