#include "net/ca.h"
#include "net/token.h"
#include "os/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int setup(void **state) {
    (void)state;
    strcpy(dir, "/tmp/loom-ca-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void in_dir(const char *name, char path[256]) { snprintf(path, 256, "%s/%s", dir, name); }

static void test_ca_is_made_once(void **state) {
    (void)state;
    struct ca *ca;
    struct err e;
    uint8_t a[CA_FINGERPRINT_BYTES], b[CA_FINGERPRINT_BYTES];
    assert_int_equal(ca_open(dir, &ca, &e), ERR_OK);
    ca_fingerprint(ca, a);
    ca_free(ca);
    assert_int_equal(ca_open(dir, &ca, &e), ERR_OK);
    ca_fingerprint(ca, b);
    ca_free(ca);
    assert_memory_equal(a, b, sizeof a);
    char path[256];
    struct stat st;
    in_dir("ca.key", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    // A damaged key is told, not replaced.
    assert_int_equal(file_write(path, "nonsense", 8, 0600, &e), ERR_OK);
    assert_int_equal(ca_open(dir, &ca, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "ca.key"));
}

static void test_enrolment_by_hand(void **state) {
    (void)state;
    struct ca *ca, *other;
    struct ident *id, *again;
    struct err e;
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX], root[CA_DER_MAX], print[CA_FINGERPRINT_BYTES];
    uint8_t other_root[CA_DER_MAX], other_print[CA_FINGERPRINT_BYTES], other_cert[CA_DER_MAX];
    size_t csr_bytes, cert_bytes, other_bytes;
    char name[CA_NAME_MAX], other_name[CA_NAME_MAX], other_dir[256], node_dir[256];
    in_dir("other", other_dir);
    in_dir("node", node_dir);
    assert_int_equal(ca_open(dir, &ca, &e), ERR_OK);
    assert_int_equal(ca_open(other_dir, &other, &e), ERR_OK);
    ca_fingerprint(ca, print);
    ca_fingerprint(other, other_print);
    size_t root_bytes = ca_certificate(ca, root), other_root_bytes = ca_certificate(other, other_root);
    assert_int_equal(ident_load(node_dir, &id, &e), ERR_NOT_FOUND);
    assert_int_equal(ident_new(&id, &e), ERR_OK);
    assert_int_equal(ident_csr(id, csr, &csr_bytes, &e), ERR_OK);
    assert_int_equal(ca_issue(ca, csr, csr_bytes, cert, &cert_bytes, name, &e), ERR_OK);
    assert_int_equal(ca_issue(other, csr, csr_bytes, other_cert, &other_bytes, other_name, &e), ERR_OK);
    assert_string_not_equal(name, other_name);
    assert_int_equal(strncmp(name, "node-", 5), 0);

    // Wrong fingerprint; a certificate of another CA; garbage; a certificate for another key.
    assert_int_equal(ident_accept(id, cert, cert_bytes, root, root_bytes, other_print, &e), ERR_AUTH);
    assert_int_equal(ident_accept(id, other_cert, other_bytes, root, root_bytes, print, &e), ERR_AUTH);
    assert_int_equal(ident_accept(id, cert, cert_bytes, other_root, other_root_bytes, other_print, &e), ERR_AUTH);
    assert_int_equal(ident_accept(id, csr, csr_bytes, root, root_bytes, print, &e), ERR_AUTH);
    struct ident *thief;
    assert_int_equal(ident_new(&thief, &e), ERR_OK);
    assert_int_equal(ident_accept(thief, cert, cert_bytes, root, root_bytes, print, &e), ERR_AUTH);
    ident_free(thief);

    assert_int_equal(ident_accept(id, cert, cert_bytes, root, root_bytes, print, &e), ERR_OK);
    assert_string_equal(ident_name(id), name);
    assert_int_equal(ident_save(id, node_dir, &e), ERR_OK);
    assert_int_equal(ident_load(node_dir, &again, &e), ERR_OK);
    assert_string_equal(ident_name(again), name);
    assert_true(ident_has_ca(again, print));
    print[0] ^= 1;
    assert_false(ident_has_ca(again, print));
    ident_free(again);
    ident_free(id);
    ca_free(ca);
    ca_free(other);
}

static void test_broken_requests(void **state) {
    (void)state;
    struct ca *ca;
    struct ident *id;
    struct err e;
    uint8_t csr[CA_DER_MAX], cert[CA_DER_MAX];
    size_t n, cert_bytes;
    char name[CA_NAME_MAX];
    assert_int_equal(ca_open(dir, &ca, &e), ERR_OK);
    assert_int_equal(ident_new(&id, &e), ERR_OK);
    assert_int_equal(ident_csr(id, csr, &n, &e), ERR_OK);
    for (size_t i = 0; i < n; i++) { // one bit anywhere breaks its signature or its form
        csr[i] ^= 1;
        assert_int_equal(ca_issue(ca, csr, n, cert, &cert_bytes, name, &e), ERR_FORMAT);
        csr[i] ^= 1;
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(ca_issue(ca, csr, cut, cert, &cert_bytes, name, &e), ERR_FORMAT);
    csr[n] = 0;
    assert_int_equal(ca_issue(ca, csr, n + 1, cert, &cert_bytes, name, &e), ERR_FORMAT);
    ident_free(id);
    ca_free(ca);
}

static void make_token(uint32_t uses, uint64_t ttl_s, struct token *t) {
    char text[TOKEN_TEXT_MAX];
    struct err e;
    const struct token_wish w = {.address = "head.example:7701", .uses = uses, .ttl_s = ttl_s};
    assert_int_equal(token_create(dir, &w, text, sizeof text, &e), ERR_OK);
    assert_int_equal(token_parse(text, t, &e), ERR_OK);
    assert_string_equal(t->address, w.address);
}

static void test_token_life(void **state) {
    (void)state;
    struct token once, thrice, brief;
    struct ca *ca;
    struct err e;
    uint8_t print[CA_FINGERPRINT_BYTES], wrong[TOKEN_SECRET_BYTES];
    make_token(1, 600, &once);
    make_token(3, 600, &thrice);
    make_token(1, 1, &brief);
    assert_int_equal(ca_open(dir, &ca, &e), ERR_OK);
    ca_fingerprint(ca, print);
    ca_free(ca);
    assert_memory_equal(once.fingerprint, print, sizeof print);
    assert_memory_not_equal(once.secret, thrice.secret, sizeof once.secret);

    memcpy(wrong, once.secret, sizeof wrong);
    wrong[15] ^= 1;
    assert_int_equal(token_use(dir, wrong, &e), ERR_AUTH);
    assert_int_equal(token_use(dir, once.secret, &e), ERR_OK);
    assert_int_equal(token_use(dir, once.secret, &e), ERR_AUTH);
    for (int i = 0; i < 3; i++) assert_int_equal(token_use(dir, thrice.secret, &e), ERR_OK);
    assert_int_equal(token_use(dir, thrice.secret, &e), ERR_AUTH);
    sleep(2);
    assert_int_equal(token_use(dir, brief.secret, &e), ERR_AUTH);

    // The secret itself lies nowhere on disk.
    char path[256], *data;
    size_t len;
    in_dir("tokens", path);
    make_token(1, 600, &once);
    assert_int_equal(file_read(path, 1 << 20, &data, &len, &e), ERR_OK);
    assert_null(memmem(data, len, once.secret, sizeof once.secret));
    free(data);
}

static size_t count_tokens(void) {
    char path[256], *data;
    size_t len, n = 0;
    struct err e;
    in_dir("tokens", path);
    assert_int_equal(file_read(path, 1 << 20, &data, &len, &e), ERR_OK);
    for (size_t i = 0; i < len; i++) n += data[i] == '\n';
    free(data);
    return n;
}

static void test_tokens_go(void **state) {
    (void)state;
    struct token t;
    struct err e;
    char text[TOKEN_TEXT_MAX];
    const struct token_wish w = {.address = "head.example:7701", .uses = 5, .ttl_s = 600};
    make_token(1, 600, &t);
    assert_int_equal(token_use(dir, t.secret, &e), ERR_OK);
    make_token(1, 1, &t);
    sleep(2);
    assert_int_equal(token_create(dir, &w, text, sizeof text, &e), ERR_OK);
    assert_int_equal(count_tokens(), 1); // used up and expired ones are gone
    make_token(1, 600, &t);
    assert_int_equal(token_revoke(dir, text, &e), ERR_OK);
    assert_int_equal(count_tokens(), 1);
    assert_int_equal(token_revoke(dir, text, &e), ERR_NOT_FOUND);
    assert_int_equal(token_revoke(dir, "loom1-", &e), ERR_FORMAT);
    assert_int_equal(token_use(dir, t.secret, &e), ERR_OK);
    assert_int_equal(token_parse(text, &t, &e), ERR_OK);
    assert_int_equal(token_use(dir, t.secret, &e), ERR_AUTH);
    assert_int_equal(e.code, ERR_AUTH);
}

static void test_token_text(void **state) {
    (void)state;
    char text[TOKEN_TEXT_MAX], copy[TOKEN_TEXT_MAX];
    struct token t;
    struct err e;
    const struct token_wish w = {.address = "10.1.2.3:7701", .uses = 1, .ttl_s = 600};
    assert_int_equal(token_create(dir, &w, text, 256, &e), ERR_OK);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) { // a wrong letter, a missing end
        strcpy(copy, text);
        copy[i] = copy[i] == 'q' ? 'r' : 'q';
        assert_int_equal(token_parse(copy, &t, &e), ERR_FORMAT);
        strcpy(copy, text);
        copy[i] = 0;
        assert_int_equal(token_parse(copy, &t, &e), ERR_FORMAT);
    }
    snprintf(copy, sizeof copy, "%sa", text);
    assert_int_equal(token_parse(copy, &t, &e), ERR_FORMAT);
    memset(copy, 'a', sizeof copy);
    memcpy(copy, "loom1-", 6);
    copy[sizeof copy - 1] = 0;
    assert_int_equal(token_parse(copy, &t, &e), ERR_FORMAT);
    // The longest address still fits into what callers hold.
    char host[TOKEN_ADDRESS_MAX + 2];
    memset(host, 'h', sizeof host);
    strcpy(host + TOKEN_ADDRESS_MAX - 2, ":1");
    const struct token_wish longest = {.address = host, .uses = 1, .ttl_s = 1};
    assert_int_equal(token_create(dir, &longest, text, 256, &e), ERR_OK);
    assert_int_equal(token_parse(text, &t, &e), ERR_OK);
    assert_string_equal(t.address, host);
    const struct token_wish bad = {.address = "nothing", .uses = 1, .ttl_s = 1};
    assert_int_equal(token_create(dir, &bad, text, 256, &e), ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ca_is_made_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_enrolment_by_hand, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens_go, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token_text, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
